//! The loop of the engine's thread: who is admitted, what the next step is, and what becomes of a fault.

mod recovery;
mod steps;

use std::{
    collections::VecDeque,
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::{mpsc::UnboundedSender, oneshot};

use crate::{
    Backend, BackendError, Capacity, Event, Pages, RequestError, Status,
    handle::Shared,
    job::{Ending, Job, Reading, Writing},
};
use recovery::failure;

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
            self.end(job, Ending::Failed(RequestError::Stopped));
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
            inbox.status.waiting = self.queue.len();
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
            Err(BackendError::DeviceLost(text)) => self.lose(&text),
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
        while !self.queue.is_empty() && self.has_room() && self.admit_next() {}
    }

    /// Whether the next step could read for one more.
    fn has_room(&self) -> bool {
        let left: usize = self.reading.iter().map(Reading::left).sum();
        let Capacity { max_sequences, max_chunks_per_step, .. } = self.shared.capacity;
        self.under_way() < max_sequences as usize
            && (self.reading.is_empty()
                || self.reading.len() < max_chunks_per_step as usize && left < self.room_together())
    }

    /// Tokens that the next step reads for several. The first of them waits for all the others, so even where nobody writes it is as long
    /// as those who write would wait.
    fn room_together(&self) -> usize {
        self.room(self.writing.len(), self.shared.options.mixed_step_budget)
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
        let Capacity { page_size: page, prefix_cache, .. } = self.shared.capacity;
        // What it has in common with who reads now it need not read itself, a step later.
        if prefix_cache && self.reading.iter().any(|reading| reading.will_share(&text, page as usize)) {
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
                self.status.cached_tokens += read as u64;
                self.status.sequences_started += 1;
                self.status.prefix_cache_hits += u64::from(read > 0);
                if !mem::replace(&mut job.started, true) {
                    job.cached = read as u32;
                    // Who does not listen any more is found in the next round.
                    let _ = job.events.send(Event::Started { cached_tokens: job.cached });
                }
                self.reading.push(Reading { job, sequence, text, read });
                return true;
            }
            Err(BackendError::NoFreePages | BackendError::OutOfMemory(_)) if !alone => {
                self.queue.push_front(job);
                self.full = true;
            }
            Err(BackendError::DeviceLost(text)) => {
                self.queue.push_front(job);
                self.lose(&text);
            }
            Err(fault) => self.end(job, Ending::Failed(failure(fault))),
        }
        false
    }

    /// Finds the tokens that may come next, where an answer follows a grammar. Who cannot go on is ended.
    fn look_ahead(&mut self) {
        let vocab = self.shared.capacity.vocab_size;
        for mut writing in mem::take(&mut self.writing) {
            let failure = writing.job.look_ahead(vocab).err();
            self.go_on(writing, failure.map(Ending::Failed));
        }
        for mut reading in mem::take(&mut self.reading) {
            let failure = reading.job.look_ahead(vocab).err();
            self.read_on(reading, failure.map(Ending::Failed));
        }
    }

    /// Takes note of how a job ended.
    fn end(&mut self, job: Job, ending: Ending) {
        match ending {
            Ending::Cancelled => self.status.cancelled += 1,
            Ending::Finished(finish) => {
                self.status.finished += 1;
                self.status.request_latency.note(job.arrived.elapsed(), 1);
                let usage = job.usage();
                self.last.push((job.events, Event::Finished { reason: finish, usage }));
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
        self.status.waiting = self.queue.len();
        self.status.prefilling = self.reading.len();
        self.status.decoding = self.writing.len();
        self.status.device_lost = self.lost;
        self.status.pages = Pages {
            free: self.backend.free_pages(),
            cached: self.backend.cached_pages(),
            total: self.shared.capacity.pages,
        };
        self.shared.inbox().status = self.status.clone();
        for (events, event) in self.last.drain(..) {
            // Who has gone meanwhile needs no last word.
            let _ = events.send(event);
        }
    }
}

#[cfg(test)]
mod tests;
