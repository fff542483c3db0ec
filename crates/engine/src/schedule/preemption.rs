//! Preemption by recomputation: a preempted request frees its pages, keeps its generated tokens and returns
//! to its place in the queue. When it is admitted again it recomputes its sequence, less the tokens that
//! the prefix cache still holds, and its stream continues without a repeated token.

use std::fmt::Display;

use super::Scheduler;
use crate::{
    Backend, BackendError,
    job::{Job, Prefilling},
};

impl<B: Backend> Scheduler<B> {
    /// Preempts the youngest running request. A request that runs alone fails: no other will free anything.
    pub(super) fn preempt_youngest(&mut self, error: BackendError) {
        if self.running() == 1 {
            return self.fail_youngest(error);
        }
        if let Some(job) = self.pop_youngest() {
            self.preempt(job, &error);
            self.admission_paused = true;
        }
    }

    /// Preempts these prefilling requests and pauses admission. Returns whether there
    /// are any.
    pub(super) fn preempt_prefilling(
        &mut self,
        prefilling: Vec<Prefilling<B::Sequence>>,
        reason: &BackendError,
    ) -> bool {
        let any = !prefilling.is_empty();
        self.admission_paused |= any;
        prefilling.into_iter().for_each(|prefilling| self.preempt(prefilling.job, reason));
        any
    }

    /// Preempts all running requests.
    pub(super) fn preempt_all(&mut self, reason: &str) {
        while let Some(job) = self.pop_youngest() {
            self.preempt(job, reason);
        }
    }

    /// Returns a request to the queue, before all younger ones. It holds no sequence any more.
    pub(super) fn preempt<R: Display + ?Sized>(&mut self, job: Job, reason: &R) {
        tracing::debug!(
            parent: &job.request.span,
            request = job.id,
            completion_tokens = job.generated.len(),
            %reason,
            "preempted"
        );
        self.status.preemptions += 1;
        let older = self.queue.partition_point(|other| other.id < job.id);
        self.queue.insert(older, job);
    }

    /// Removes the youngest running request and frees its pages.
    pub(super) fn pop_youngest(&mut self) -> Option<Job> {
        let ids = [
            self.scoring.last().map(|last| last.job.id),
            self.prefilling.last().map(|last| last.job.id),
            self.decoding.last().map(|last| last.job.id),
        ];
        let youngest = ids.iter().max()?;
        match ids.iter().position(|id| id == youngest)? {
            0 => self.scoring.pop().map(|scoring| scoring.job),
            1 => self.prefilling.pop().map(|prefilling| prefilling.job),
            _ => self.decoding.pop().map(|decoding| decoding.job),
        }
    }

    /// Removes all requests, running and waiting, and frees their pages.
    pub(super) fn remove_all(&mut self) -> Vec<Job> {
        let mut all = vec![];
        while let Some(job) = self.pop_youngest() {
            all.push(job);
        }
        all.extend(self.queue.drain(..));
        all
    }
}
