//! The loop of the engine's thread: who is admitted, what the next step is, and what becomes of a fault.

use std::{
    collections::VecDeque,
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use model::Sampled;
use tokio::sync::{mpsc::UnboundedSender, oneshot};

use crate::{
    Backend, Bounds, Chunk, Event, Failure, Fault, Pages, Status,
    handle::Shared,
    job::{Ending, Job, Reading, Writing},
};

/// Losses of the device without a token between them after which it is given up.
const MOST_LOSSES: u32 = 3;

/// One run in so many is of all who write, even if they take turns else.
const RUNS_TO_ALL: u64 = 64;

/// Between attempts to put a lost device back that nobody waits for.
const REVIVE_PAUSE: Duration = Duration::from_secs(2);

/// Owns the backend, and everything that was taken.
///
/// Whoever reads came after all who write, and before all who wait: admission is in the order of arrival, and who is set back is the
/// youngest of those under way.
pub(crate) struct Scheduler<B: Backend> {
    backend: B,
    shared: Arc<Shared>,
    queue: VecDeque<Job>,
    /// Those who ask whether the device answers.
    probes: Vec<oneshot::Sender<()>>,
    /// The oldest first, here too.
    reading: Vec<Reading<B::Sequence>>,
    /// The oldest first.
    writing: Vec<Writing<B::Sequence>>,
    /// Last events, which are sent when the status knows of them.
    last: Vec<(UnboundedSender<Event>, Event)>,
    status: Status,
    /// Someone was set back for want of pages or memory: nobody is admitted before one of the others has ended.
    full: bool,
    /// Runs so far.
    runs: u64,
    /// Whose turn it is to sit out a run.
    turn: usize,
    /// The device is lost, and not put back yet.
    lost: bool,
    /// How often it was lost since the last token.
    losses: u32,
}

impl<B: Backend> Scheduler<B> {
    pub fn new(backend: B, shared: Arc<Shared>) -> Self {
        let mut scheduler = Self {
            backend,
            shared,
            queue: VecDeque::new(),
            probes: vec![],
            reading: vec![],
            writing: vec![],
            last: vec![],
            status: Status::default(),
            full: false,
            runs: 0,
            turn: 0,
            lost: false,
            losses: 0,
        };
        scheduler.publish();
        scheduler
    }

    /// Until the engine is closed.
    pub fn run(mut self) {
        while self.take() {
            self.round();
        }
        for job in self.set_all_aside() {
            self.end(job, Ending::Failed(Failure::Stopped));
        }
        self.publish();
    }

    /// Takes what has come in, and sleeps while there is nothing to do. Says whether to go on.
    pub fn take(&mut self) -> bool {
        let shared = self.shared.clone();
        let mut inbox = shared.inbox();
        loop {
            self.queue.extend(inbox.arrived.drain(..));
            self.probes.append(&mut inbox.probes);
            // Until the next round they are counted as what waits.
            inbox.status.queued = self.queue.len();
            match inbox.closing {
                Some(until) => return !self.is_idle() && Instant::now() < until,
                None if self.is_idle() && self.probes.is_empty() && self.lost => {
                    // Nobody may come while it is gone: it is put back for those who would.
                    drop(shared.wait_within(inbox, REVIVE_PAUSE));
                    return true;
                }
                None if self.is_idle() && self.probes.is_empty() => inbox = shared.wait(inbox),
                None => return true,
            }
        }
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.under_way() == 0
    }

    /// One round: out with whom nobody waits for, in with the next, and a step.
    pub fn round(&mut self) {
        self.sweep();
        if self.lost {
            self.revive();
        }
        self.probe();
        if !self.lost {
            self.admit();
            self.look_ahead();
            self.step();
        }
        self.publish();
    }

    /// Tells those who ask whether the device answers. Who is not told finds its channel closed.
    fn probe(&mut self) {
        let probes = mem::take(&mut self.probes);
        if probes.is_empty() || self.lost {
            return;
        }
        match self.backend.probe() {
            Ok(()) => {
                // Who asks next how things stand should hear what the probe has found.
                self.publish();
                probes.into_iter().for_each(|probe| {
                    // Who does not wait any more needs no answer.
                    let _ = probe.send(());
                });
            }
            Err(Fault::Lost(text)) => self.lose(&text),
            Err(fault) => tracing::warn!("the device did not answer: {fault}"),
        }
    }

    fn under_way(&self) -> usize {
        self.reading.len() + self.writing.len()
    }

    /// Ends what was cancelled and what is too late. Their pages are free before the next step.
    fn sweep(&mut self) {
        let now = Instant::now();
        for job in mem::take(&mut self.queue) {
            match job.given_up(now) {
                Some(ending) => self.end(job, ending),
                None => self.queue.push_back(job),
            }
        }
        for reading in mem::take(&mut self.reading) {
            let ending = reading.job.given_up(now);
            self.read_on(reading, ending);
        }
        for writing in mem::take(&mut self.writing) {
            let ending = writing.job.given_up(now);
            self.go_on(writing, ending);
        }
    }

    /// Lets those who wait begin to read, the first of them and as many more as the next step has room for.
    fn admit(&mut self) {
        while self.has_room() && self.admit_next() {}
    }

    /// Whether the next step could read for one more.
    fn has_room(&self) -> bool {
        let left: usize = self.reading.iter().map(Reading::left).sum();
        let Bounds { sequences, chunks, .. } = self.shared.bounds;
        self.under_way() < sequences as usize
            && (self.reading.is_empty()
                || self.reading.len() < chunks as usize && left < self.room_together())
    }

    /// Tokens that the next step reads for several. The first of them waits for all the others, so even where nobody writes it is as long
    /// as those who write would wait.
    fn room_together(&self) -> usize {
        self.room(self.writing.len(), self.shared.options.beside)
    }

    /// Tokens that a step reads beside so many who write.
    fn room(&self, writers: usize, within: Duration) -> usize {
        let written = self.writing[..writers].iter().map(|writing| writing.job.len());
        let depth = self.reading.iter().map(|reading| reading.read).chain(written).max().unwrap_or(0);
        self.backend.chunk(writers, depth as u32, within).max(1)
    }

    /// Lets the first who waits begin to read, if there are a sequence and pages for it. Says whether it does.
    fn admit_next(&mut self) -> bool {
        let alone = self.under_way() == 0;
        if self.full && !alone {
            return false;
        }
        let Some(job) = self.queue.front() else { return false };
        let text = job.text();
        let Bounds { page, prefix, .. } = self.shared.bounds;
        // What it has in common with who reads now it need not read itself, a step later.
        if prefix && self.reading.iter().any(|reading| reading.will_share(&text, page as usize)) {
            return false;
        }
        // Everyone's next tokens need pages too: one for each, lest what is admitted now be set back at once; and those who read, pages
        // for what they have not read. Alone, there are enough.
        let spare = if alone { 0 } else { self.under_way() as u32 + 1 };
        let unread: u32 = self.reading.iter().map(|reading| reading.pages_left(page)).sum();
        let wanted = (job.len() as u32).div_ceil(page) + spare + unread;
        let free = self.backend.free_pages();
        if wanted > free && wanted > free + self.backend.shared_pages(&text) {
            return false;
        }
        self.full = false;
        let Some(mut job) = self.queue.pop_front() else { return false };
        match self.backend.start(&text) {
            Ok((sequence, read)) => {
                self.status.cached += read as u64;
                self.status.starts += 1;
                self.status.hits += u64::from(read > 0);
                if !mem::replace(&mut job.started, true) {
                    job.cached = read as u32;
                    // Who does not listen any more is found in the next round.
                    let _ = job.events.send(Event::Started { cached: job.cached });
                }
                self.reading.push(Reading { job, sequence, text, read });
                return true;
            }
            Err(Fault::NoPage | Fault::OutOfMemory(_)) if !alone => {
                self.queue.push_front(job);
                self.full = true;
            }
            Err(Fault::Lost(text)) => {
                self.queue.push_front(job);
                self.lose(&text);
            }
            Err(fault) => self.end(job, Ending::Failed(failure(fault))),
        }
        false
    }

    /// Finds the tokens that may come next, where an answer follows a grammar. Who cannot go on is ended.
    fn look_ahead(&mut self) {
        let vocab = self.shared.bounds.vocab;
        for mut writing in mem::take(&mut self.writing) {
            let failure = writing.job.look_ahead(vocab).err();
            self.go_on(writing, failure.map(Ending::Failed));
        }
        for mut reading in mem::take(&mut self.reading) {
            let failure = reading.job.look_ahead(vocab).err();
            self.read_on(reading, failure.map(Ending::Failed));
        }
    }

    /// One step, or a run of them.
    fn step(&mut self) {
        let result = match (self.reading.is_empty(), self.writing.is_empty()) {
            (false, _) => self.mixed(self.writing.len(), self.reading.len()),
            (true, false) => self.run_steps(),
            (true, true) => Ok(()),
        };
        match result {
            Ok(()) => {}
            Err(Fault::Lost(text)) => self.lose(&text),
            Err(fault @ (Fault::NoPage | Fault::OutOfMemory(_))) => self.set_youngest_back(fault),
            // Whose fault it was shows when each goes by itself.
            Err(fault @ (Fault::NotFinite | Fault::Other(_))) => match self.under_way() {
                1 => self.fail_the_only(fault),
                _ => self.step_apart(),
            },
        }
    }

    /// A token for those who write, all of them or none, and chunks of the first so many who read: all that the first has to read, if it can
    /// be, and what there is room for of the others.
    fn mixed(&mut self, writers: usize, readers: usize) -> Result<(), Fault> {
        let options = &self.shared.options;
        let within = if writers == 0 { options.alone.max(options.beside) } else { options.beside };
        let (mut room, together) = (self.room(writers, within), self.room(writers, options.beside));
        let mut chunks = vec![];
        let mut rows = 0;
        for reading in &mut self.reading[..readers] {
            let rest = &reading.text[reading.read..];
            let tokens = &rest[..room.min(rest.len())];
            if tokens.is_empty() {
                break;
            }
            rows += tokens.len();
            room = together.saturating_sub(rows);
            // What was written before is not chosen again.
            let last = tokens.len() == rest.len() && reading.job.written.is_empty();
            let (sampling, mask) = (reading.job.sampling(), reading.job.mask());
            chunks.push(Chunk { sequence: &mut reading.sequence, tokens, sampling, mask, last });
        }
        let read: Vec<usize> = chunks.iter().map(|chunk| chunk.tokens.len()).collect();
        let mut next: Vec<_> = self.writing[..writers].iter_mut().map(|writing| writing.next().0).collect();
        let mixed = self.backend.mixed(&mut next, &mut chunks)?;
        self.note_steps(1, writers + rows);
        if writers > 0 {
            self.hand_out(vec![mixed.decoded], &vec![true; writers]);
        }
        self.have_read(read.into_iter().zip(mixed.firsts));
        Ok(())
    }

    /// Tokens for all who write, in a run.
    fn run_steps(&mut self) -> Result<(), Fault> {
        let context = self.shared.bounds.context as usize;
        let left = |writing: &Writing<B::Sequence>| writing.job.left().min(context - writing.job.len());
        let turns = self.take_turns();
        let taking_part =
            || turns.iter().zip(&self.writing).filter(|(turn, _)| **turn).map(|(_, writing)| writing);
        let most = taking_part().map(left).min().unwrap_or(1);
        // What a grammar allows next depends on what came before: only the host knows, and not before the step is done.
        let guided = taking_part().any(|writing| writing.job.mask().is_some());
        let rows = taking_part().count();
        let steps = if guided { 1 } else { self.backend.steps(rows) };
        let most = most.min(steps).max(1);
        let steps = match self.run_of(most, &turns) {
            // A run takes the pages of all its steps at once. For one step there may be enough.
            Err(Fault::NoPage) if most > 1 => self.run_of(1, &turns),
            steps => steps,
        }?;
        self.note_steps(steps.len(), rows);
        self.hand_out(steps, &turns);
        Ok(())
    }

    /// Who takes part in the next run: all who write, unless fewer at once make more tokens in all; then each sits out one run in
    /// its turn.
    fn take_turns(&mut self) -> Vec<bool> {
        let all = self.writing.len();
        self.runs = self.runs.wrapping_add(1);
        // Now and then all, so that what it takes is known.
        let fewer = !self.runs.is_multiple_of(RUNS_TO_ALL);
        let out = if fewer { all - self.backend.at_once(all).clamp(1, all) } else { 0 };
        let mut turns = vec![true; all];
        for sits_out in self.turn..self.turn + out {
            turns[sits_out % all] = false;
        }
        self.turn = (self.turn + out) % all;
        turns
    }

    fn run_of(&mut self, most: usize, turns: &[bool]) -> Result<Vec<Vec<Sampled>>, Fault> {
        let taking_part =
            self.writing.iter_mut().zip(turns).filter_map(|(writing, turn)| turn.then_some(writing));
        let of_each = taking_part.map(|writing| (writing.job.len() as u32, writing.next()));
        let (depths, (mut next, ends)): (Vec<u32>, (Vec<_>, Vec<_>)) = of_each.unzip();
        let start = Instant::now();
        let steps = self.backend.run(&mut next, most, &ends)?;
        // Depths grow by one a step: those of the middle stand for all.
        let middle: Vec<u32> = depths.iter().map(|depth| depth + steps.len() as u32 / 2).collect();
        self.status.traffic.note(self.backend.step_bytes(&middle) * steps.len() as u64, start.elapsed());
        Ok(steps)
    }

    fn note_steps(&mut self, steps: usize, rows: usize) {
        self.status.steps += steps as u64;
        self.status.rows += (steps * rows) as u64;
        self.status.last_rows = rows as u64;
    }

    /// Gives everyone who took part in some steps its tokens.
    fn hand_out(&mut self, steps: Vec<Vec<Sampled>>, turns: &[bool]) {
        let mut steps: Vec<_> = steps.into_iter().map(Vec::into_iter).collect();
        for (writing, turn) in mem::take(&mut self.writing).into_iter().zip(turns) {
            match turn {
                true => {
                    let sampled = steps.iter_mut().filter_map(Iterator::next).collect();
                    self.hand_to(writing, sampled);
                }
                false => self.writing.push(writing),
            }
        }
    }

    fn hand_to(&mut self, mut writing: Writing<B::Sequence>, sampled: Vec<Sampled>) {
        let job = &mut writing.job;
        let (now, before, steps) = (Instant::now(), job.written.len(), sampled.len());
        let ending = sampled.into_iter().find_map(|sampled| job.tell(sampled, self.shared.bounds.context));
        let told = (job.written.len() - before) as u64;
        let waited = now.saturating_duration_since(mem::replace(&mut job.told, now));
        match before {
            0 if told > 0 => self.status.first_token.note(waited, 1),
            _ => self.status.between_tokens.note(waited / steps.max(1) as u32, told),
        }
        self.status.written += told;
        self.losses = 0;
        self.go_on(writing, ending);
    }

    /// Who has ended frees its pages now; everyone else goes on.
    fn go_on(&mut self, writing: Writing<B::Sequence>, ending: Option<Ending>) {
        match ending {
            None => self.writing.push(writing),
            Some(ending) => {
                self.end(writing.job, ending);
                self.full = false;
            }
        }
    }

    /// The same for who reads.
    fn read_on(&mut self, reading: Reading<B::Sequence>, ending: Option<Ending>) {
        match ending {
            None => self.reading.push(reading),
            Some(ending) => {
                self.end(reading.job, ending);
                self.full = false;
            }
        }
    }

    /// Takes note of chunks of the first who read: tokens of each, and the one after its prompt. After its last chunk, who has read writes.
    fn have_read(&mut self, chunks: impl Iterator<Item = (usize, Option<Sampled>)>) {
        let mut done = VecDeque::new();
        let mut reading = mem::take(&mut self.reading).into_iter();
        for ((read, first), mut reading) in chunks.zip(&mut reading) {
            reading.read += read;
            self.status.read += read as u64;
            match reading.left() {
                0 => done.push_back((reading, first)),
                _ => self.reading.push(reading),
            }
        }
        self.reading.extend(reading);
        while let Some((Reading { job, sequence, text, read }, first)) = done.pop_front() {
            let mut writing = Writing { job, sequence };
            match first {
                Some(first) => self.hand_to(writing, vec![first]),
                None if writing.job.written.is_empty() => {
                    let text = "the prompt was read, and no token came after it".to_string();
                    self.go_on(writing, Some(Ending::Failed(Failure::Internal(text))));
                }
                None => {
                    let mut recounted = self.recount(&mut writing);
                    if recounted.as_ref().is_err_and(Fault::is_want) && self.set_readers_back(&mut done) {
                        // They may have left what it lacks.
                        recounted = self.recount(&mut writing);
                    }
                    match recounted {
                        Ok(()) => self.writing.push(writing),
                        Err(Fault::Lost(lost)) => {
                            let Writing { job, sequence } = writing;
                            done.push_front((Reading { job, sequence, text, read }, None));
                            self.set_readers_back(&mut done);
                            return self.lose(&lost);
                        }
                        // One of those who write may leave it yet.
                        Err(fault) if fault.is_want() && !self.writing.is_empty() => {
                            self.set_back(writing.job);
                            self.full = true;
                        }
                        Err(fault) => self.go_on(writing, Some(Ending::Failed(failure(fault)))),
                    }
                }
            }
        }
    }

    /// Puts all who read back, and before them those who have just read all. Says whether there was any.
    fn set_readers_back(&mut self, done: &mut VecDeque<(Reading<B::Sequence>, Option<Sampled>)>) -> bool {
        let readers = done.drain(..).map(|(reading, _)| reading).chain(mem::take(&mut self.reading));
        let jobs: Vec<Job> = readers.map(|reading| reading.job).collect();
        let any = !jobs.is_empty();
        self.full |= any;
        jobs.into_iter().rev().for_each(|job| self.set_back(job));
        any
    }

    /// Lets penalties know what was written, and only that.
    fn recount(&mut self, writing: &mut Writing<B::Sequence>) -> Result<(), Fault> {
        let Writing { job, sequence } = writing;
        match job.sampling().has_penalties() {
            true => self.backend.recount(sequence, &job.request.prompt, &job.written),
            false => Ok(()),
        }
    }

    /// The same for those who read: a step that failed may have counted the first token of an answer, which is chosen again.
    fn recount_readers(&mut self) {
        let mut waiting: VecDeque<_> = mem::take(&mut self.reading).into();
        while let Some(mut reading) = waiting.pop_front() {
            let Reading { job, sequence, text, read } = &mut reading;
            let recounted = match job.sampling().has_penalties() && job.written.is_empty() {
                true => self.backend.recount(sequence, &text[..*read], &[]),
                false => Ok(()),
            };
            match recounted {
                Ok(()) => self.reading.push(reading),
                Err(Fault::Lost(text)) => {
                    self.reading.push(reading);
                    self.reading.extend(waiting);
                    return self.lose(&text);
                }
                // They begin anew, with nothing counted, when one of those who write has left what was lacking.
                Err(fault) if fault.is_want() && !self.writing.is_empty() => {
                    self.reading.push(reading);
                    self.reading.extend(waiting);
                    self.set_readers_back(&mut VecDeque::new());
                    return;
                }
                Err(fault) => self.read_on(reading, Some(Ending::Failed(failure(fault)))),
            }
        }
    }

    /// A step for each by itself, after one that failed for all of them. Who fails again is ended.
    fn step_apart(&mut self) {
        let mut waiting: VecDeque<_> = mem::take(&mut self.writing).into();
        while let Some(mut writing) = waiting.pop_front() {
            // The step that failed may have counted a token.
            let stepped = self.recount(&mut writing).and_then(|()| {
                let (next, ends) = writing.next();
                self.backend.run(&mut [next], 1, &[ends])
            });
            match stepped {
                Ok(steps) => {
                    self.note_steps(1, 1);
                    self.hand_to(writing, steps.concat());
                }
                // That is for the next round.
                Err(Fault::NoPage | Fault::OutOfMemory(_)) => self.writing.push(writing),
                Err(Fault::Lost(text)) => {
                    self.writing.push(writing);
                    self.writing.extend(waiting);
                    return self.lose(&text);
                }
                Err(fault) => self.go_on(writing, Some(Ending::Failed(failure(fault)))),
            }
        }
        // Each in its turn, as far as one round goes: who has not read all is the first in the next.
        self.recount_readers();
        while !self.reading.is_empty() {
            let readers = self.reading.len();
            match self.mixed(0, 1) {
                Ok(()) if self.reading.len() < readers => {}
                Ok(()) => return,
                Err(Fault::Lost(text)) => return self.lose(&text),
                Err(fault) if fault.is_want() => return self.set_youngest_back(fault),
                Err(fault) => {
                    let Reading { job, .. } = self.reading.remove(0);
                    self.end(job, Ending::Failed(failure(fault)));
                    self.full = false;
                }
            }
        }
    }

    fn fail_the_only(&mut self, fault: Fault) {
        let ending = Ending::Failed(failure(fault));
        if let Some(job) = self.youngest() {
            self.end(job, ending);
        }
    }

    /// Takes the one that came last of those under way; its pages are free.
    fn youngest(&mut self) -> Option<Job> {
        let reading = self.reading.pop().map(|reading| reading.job);
        reading.or_else(|| self.writing.pop().map(|writing| writing.job))
    }

    /// Puts the one that came last of those under way back to the front of the queue, where it came from. It keeps what it has written, and
    /// its stream goes on when that has been read again.
    fn set_youngest_back(&mut self, fault: Fault) {
        if self.under_way() == 1 {
            // Nobody else will free anything.
            return self.fail_the_only(fault);
        }
        if let Some(job) = self.youngest() {
            tracing::debug!(request = job.number, %fault, "set back");
            self.set_back(job);
            self.full = true;
        }
    }

    fn set_back(&mut self, job: Job) {
        self.status.set_back += 1;
        self.queue.push_front(job);
    }

    /// The device is lost: nothing of any sequence is left.
    fn lose(&mut self, why: &str) {
        tracing::warn!(under_way = self.under_way(), "{why}");
        self.lost = true;
        self.losses += 1;
        self.status.lost += 1;
        self.set_all_back();
    }

    fn set_all_back(&mut self) {
        while let Some(job) = self.youngest() {
            self.set_back(job);
        }
    }

    /// Puts the device back, or gives up.
    fn revive(&mut self) {
        if self.losses >= MOST_LOSSES {
            tracing::error!(
                "the device was lost {MOST_LOSSES} times without a token between: all requests fail"
            );
            for job in self.set_all_aside() {
                self.end(job, Ending::Failed(Failure::DeviceLost));
            }
            // Who comes next may have more luck.
            self.losses = 0;
            return;
        }
        match self.backend.revive() {
            Ok(()) => {
                tracing::info!("the device is back");
                self.lost = false;
                self.full = false;
            }
            Err(fault) => {
                tracing::warn!("the device could not be put back: {fault}");
                self.losses += 1;
            }
        }
    }

    /// Everyone there is, in no sequence any more.
    fn set_all_aside(&mut self) -> Vec<Job> {
        let mut all = vec![];
        while let Some(job) = self.youngest() {
            all.push(job);
        }
        all.extend(self.queue.drain(..));
        all
    }

    /// Takes note of how a job ended.
    fn end(&mut self, job: Job, ending: Ending) {
        match ending {
            Ending::Cancelled => self.status.cancelled += 1,
            Ending::Finished(finish) => {
                self.status.finished += 1;
                self.status.whole.note(job.arrived.elapsed(), 1);
                let usage = job.usage();
                self.last.push((job.events, Event::Finished { finish, usage }));
            }
            Ending::Failed(failure) => {
                self.status.failed += 1;
                tracing::debug!(request = job.number, "{failure}");
                self.last.push((job.events, Event::Failed(failure)));
            }
        }
    }

    /// Lets the handles know how things stand, and then those who have ended.
    fn publish(&mut self) {
        self.status.queued = self.queue.len();
        self.status.reading = self.reading.len();
        self.status.writing = self.writing.len();
        self.status.device_gone = self.lost;
        self.status.pages = Pages {
            free: self.backend.free_pages(),
            cached: self.backend.cached_pages(),
            total: self.shared.bounds.pages,
        };
        self.shared.inbox().status = self.status.clone();
        for (events, event) in self.last.drain(..) {
            // Who has gone meanwhile needs no last word.
            let _ = events.send(event);
        }
    }
}

/// What a request that fails by this fault is told.
fn failure(fault: Fault) -> Failure {
    match fault {
        Fault::NoPage | Fault::OutOfMemory(_) => Failure::OutOfMemory,
        Fault::Lost(_) => Failure::DeviceLost,
        Fault::NotFinite => Failure::NotFinite,
        Fault::Other(text) => Failure::Internal(text),
    }
}

#[cfg(test)]
mod tests;
