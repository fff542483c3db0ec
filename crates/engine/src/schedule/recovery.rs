//! What becomes of a fault: who is set back, who is tried alone, who fails, and how a lost device is put back.

use std::{collections::VecDeque, mem};

use super::Scheduler;
use crate::{
    Backend, BackendError, RequestError,
    job::{Ending, Job, Reading, Writing},
};

/// Losses of the device without a token between them after which it is given up.
const MOST_LOSSES: u32 = 3;

impl<B: Backend> Scheduler<B> {
    /// Puts these back, who read or have just read all: nobody is admitted before one of the others has ended. Says whether there are any.
    pub(super) fn set_readers_back(&mut self, reading: Vec<Reading<B::Sequence>>) -> bool {
        let any = !reading.is_empty();
        self.full |= any;
        // The last first, so that they stand in their order.
        reading.into_iter().rev().for_each(|reading| self.set_back(reading.job));
        any
    }

    /// Lets penalties know what was written, and only that.
    pub(super) fn recount(&mut self, writing: &mut Writing<B::Sequence>) -> Result<(), BackendError> {
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
            let mut recounted = self.recount_reader(&mut reading);
            if recounted.as_ref().is_err_and(BackendError::is_resource_exhausted)
                && self.set_readers_back(waiting.drain(..).collect())
            {
                // They may have left what it lacks.
                recounted = self.recount_reader(&mut reading);
            }
            match recounted {
                Ok(()) => self.reading.push(reading),
                Err(BackendError::DeviceLost(text)) => {
                    self.reading.push(reading);
                    self.reading.extend(waiting);
                    return self.lose(&text);
                }
                // It begins anew, with nothing counted, when one of the others has ended.
                Err(fault) if fault.is_resource_exhausted() && self.under_way() > 0 => {
                    self.set_readers_back(vec![reading]);
                }
                Err(fault) => self.read_on(reading, Some(Ending::Failed(failure(fault)))),
            }
        }
    }

    fn recount_reader(&mut self, reading: &mut Reading<B::Sequence>) -> Result<(), BackendError> {
        let Reading { job, sequence, text, read } = reading;
        match job.sampling().has_penalties() && job.written.is_empty() {
            true => self.backend.recount(sequence, &text[..*read], &[]),
            false => Ok(()),
        }
    }

    /// A step for each by itself, after one that failed for all of them. Who fails again is ended.
    pub(super) fn step_apart(&mut self) {
        let mut waiting: VecDeque<_> = mem::take(&mut self.writing).into();
        while let Some(mut writing) = waiting.pop_front() {
            // The step that failed may have counted a token.
            let stepped =
                self.recount(&mut writing).and_then(|()| self.backend.decode(&mut [writing.next()], 1));
            match stepped {
                Ok(steps) => {
                    self.note_steps(1, 1);
                    self.hand_to(writing, steps.concat());
                }
                // That is for the next round.
                Err(BackendError::NoFreePages | BackendError::OutOfMemory(_)) => self.writing.push(writing),
                Err(BackendError::DeviceLost(text)) => {
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
                Err(BackendError::DeviceLost(text)) => return self.lose(&text),
                Err(fault) if fault.is_resource_exhausted() => return self.set_youngest_back(fault),
                Err(fault) => {
                    let Reading { job, .. } = self.reading.remove(0);
                    self.end(job, Ending::Failed(failure(fault)));
                    self.full = false;
                }
            }
        }
    }

    pub(super) fn fail_the_only(&mut self, fault: BackendError) {
        let ending = Ending::Failed(failure(fault));
        if let Some(job) = self.youngest() {
            self.end(job, ending);
        }
    }

    /// Takes the one that came last of those under way; its pages are free.
    pub(super) fn youngest(&mut self) -> Option<Job> {
        let reading = self.reading.pop().map(|reading| reading.job);
        reading.or_else(|| self.writing.pop().map(|writing| writing.job))
    }

    /// Puts the one that came last of those under way back to the front of the queue, where it came from. It keeps what it has written, and
    /// its stream goes on when that has been read again.
    pub(super) fn set_youngest_back(&mut self, fault: BackendError) {
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

    pub(super) fn set_back(&mut self, job: Job) {
        self.status.preemptions += 1;
        self.queue.push_front(job);
    }

    /// The device is lost: nothing of any sequence is left.
    pub(super) fn lose(&mut self, why: &str) {
        tracing::warn!(under_way = self.under_way(), "{why}");
        self.lost = true;
        self.losses += 1;
        self.status.devices_lost += 1;
        self.set_all_back();
    }

    fn set_all_back(&mut self) {
        while let Some(job) = self.youngest() {
            self.set_back(job);
        }
    }

    /// Puts the device back, or gives up.
    pub(super) fn revive(&mut self) {
        if self.losses >= MOST_LOSSES {
            tracing::error!(
                "the device was lost {MOST_LOSSES} times without a token between: all requests fail"
            );
            for job in self.set_all_aside() {
                self.end(job, Ending::Failed(RequestError::DeviceLost));
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
    pub(super) fn set_all_aside(&mut self) -> Vec<Job> {
        let mut all = vec![];
        while let Some(job) = self.youngest() {
            all.push(job);
        }
        all.extend(self.queue.drain(..));
        all
    }
}

/// What a request that fails by this fault is told.
pub(super) fn failure(fault: BackendError) -> RequestError {
    match fault {
        BackendError::NoFreePages | BackendError::OutOfMemory(_) => RequestError::OutOfMemory,
        BackendError::DeviceLost(_) => RequestError::DeviceLost,
        BackendError::NonFiniteLogits => RequestError::NonFiniteLogits,
        BackendError::Other(text) => RequestError::Internal(text),
    }
}
