//! Steps: who takes part, and what everyone gets of it.

use std::{collections::VecDeque, mem, time::Instant};

use model::Sampled;

use super::{Scheduler, recovery::failure};
use crate::{
    Backend, BackendError, PrefillChunk, RequestError,
    job::{Ending, Reading, Writing},
};

/// One run in so many is of all who write, even if they take turns else.
const RUNS_TO_ALL: u64 = 64;

impl<B: Backend> Scheduler<B> {
    /// One step, or a run of them.
    pub(super) fn step(&mut self) {
        let result = match (self.reading.is_empty(), self.writing.is_empty()) {
            (false, _) => self.mixed(self.writing.len(), self.reading.len()),
            (true, false) => self.run_steps(),
            (true, true) => Ok(()),
        };
        match result {
            Ok(()) => {}
            Err(BackendError::DeviceLost(text)) => self.lose(&text),
            Err(fault @ (BackendError::NoFreePages | BackendError::OutOfMemory(_))) => {
                self.set_youngest_back(fault)
            }
            // Whose fault it was shows when each goes by itself.
            Err(fault @ (BackendError::NonFiniteLogits | BackendError::Other(_))) => match self.under_way() {
                1 => self.fail_the_only(fault),
                _ => self.step_apart(),
            },
        }
    }

    /// A token for those who write, all of them or none, and chunks of the first so many who read: all that the first has to read, if it can
    /// be, and what there is room for of the others.
    pub(super) fn mixed(&mut self, writers: usize, readers: usize) -> Result<(), BackendError> {
        let options = &self.shared.options;
        let together = self.room(writers, options.mixed_step_budget);
        let mut room = if writers == 0 {
            self.room(0, options.prefill_step_budget.max(options.mixed_step_budget))
        } else {
            together
        };
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
            chunks.push(PrefillChunk { sequence: &mut reading.sequence, tokens, sampling, mask, last });
        }
        let read: Vec<usize> = chunks.iter().map(|chunk| chunk.tokens.len()).collect();
        let mut next: Vec<_> = self.writing[..writers].iter_mut().map(Writing::next).collect();
        let mixed = self.backend.mixed(&mut next, &mut chunks)?;
        self.note_steps(1, writers + rows);
        if writers > 0 {
            self.hand_out(vec![mixed.decoded], &vec![true; writers]);
        }
        self.have_read(read.into_iter().zip(mixed.first_tokens));
        Ok(())
    }

    /// Tokens for all who write, in a run.
    fn run_steps(&mut self) -> Result<(), BackendError> {
        let context = self.shared.capacity.context_length as usize;
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
            Err(BackendError::NoFreePages) if most > 1 => self.run_of(1, &turns),
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

    fn run_of(&mut self, most: usize, turns: &[bool]) -> Result<Vec<Vec<Sampled>>, BackendError> {
        let taking_part =
            self.writing.iter_mut().zip(turns).filter_map(|(writing, turn)| turn.then_some(writing));
        let of_each = taking_part.map(|writing| (writing.job.len() as u32, writing.next()));
        let (depths, mut next): (Vec<u32>, Vec<_>) = of_each.unzip();
        let start = Instant::now();
        let steps = self.backend.decode(&mut next, most)?;
        // Depths grow by one a step: those of the middle stand for all.
        let middle: Vec<u32> = depths.iter().map(|depth| depth + steps.len() as u32 / 2).collect();
        self.status
            .memory_traffic
            .note(self.backend.step_bytes(&middle) * steps.len() as u64, start.elapsed());
        Ok(steps)
    }

    pub(super) fn note_steps(&mut self, steps: usize, rows: usize) {
        self.status.steps += steps as u64;
        self.status.rows += (steps * rows) as u64;
        self.status.last_step_rows = rows as u64;
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

    pub(super) fn hand_to(&mut self, mut writing: Writing<B::Sequence>, sampled: Vec<Sampled>) {
        let job = &mut writing.job;
        let (now, before, steps) = (Instant::now(), job.written.len(), sampled.len());
        let ending =
            sampled.into_iter().find_map(|sampled| job.tell(sampled, self.shared.capacity.context_length));
        let told = (job.written.len() - before) as u64;
        let waited = now.saturating_duration_since(mem::replace(&mut job.told, now));
        match before {
            0 if told > 0 => self.status.time_to_first_token.note(waited, 1),
            _ => self.status.inter_token_latency.note(waited / steps.max(1) as u32, told),
        }
        self.status.generation_tokens += told;
        self.losses = 0;
        self.go_on(writing, ending);
    }

    /// Who has ended frees its pages now; everyone else goes on.
    pub(super) fn go_on(&mut self, writing: Writing<B::Sequence>, ending: Option<Ending>) {
        match ending {
            None => self.writing.push(writing),
            Some(ending) => {
                self.end(writing.job, ending);
                self.full = false;
            }
        }
    }

    /// The same for who reads.
    pub(super) fn read_on(&mut self, reading: Reading<B::Sequence>, ending: Option<Ending>) {
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
            self.status.prompt_tokens += read as u64;
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
                    self.go_on(writing, Some(Ending::Failed(RequestError::Internal(text))));
                }
                None => {
                    let mut recounted = self.recount(&mut writing);
                    if recounted.as_ref().is_err_and(BackendError::is_resource_exhausted) {
                        // Those who came after it may leave what it lacks.
                        let behind = done.drain(..).map(|(reading, _)| reading);
                        let behind = behind.chain(mem::take(&mut self.reading)).collect();
                        if self.set_readers_back(behind) {
                            recounted = self.recount(&mut writing);
                        }
                    }
                    match recounted {
                        Ok(()) => self.writing.push(writing),
                        Err(BackendError::DeviceLost(lost)) => {
                            let Writing { job, sequence } = writing;
                            let own = Reading { job, sequence, text, read };
                            let behind = done.into_iter().map(|(reading, _)| reading);
                            let behind = behind.chain(mem::take(&mut self.reading));
                            self.reading = [own].into_iter().chain(behind).collect();
                            return self.lose(&lost);
                        }
                        // One of those who write may leave it yet.
                        Err(fault) if fault.is_resource_exhausted() && !self.writing.is_empty() => {
                            self.set_back(writing.job);
                            self.full = true;
                        }
                        Err(fault) => self.go_on(writing, Some(Ending::Failed(failure(fault)))),
                    }
                }
            }
        }
    }
}
