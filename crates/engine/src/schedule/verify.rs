//! Verify steps: drafts of the next tokens, checked by one step of the target model.

use std::{mem, time::Instant};

use super::Scheduler;
use crate::{Backend, BackendError, VerifyRows, job::Decoding, speculate::GuidedDrafts};

impl<B: Backend> Scheduler<B> {
    /// Runs a verify step of the selected requests if drafts are expected to pay. Returns whether it did; a plain decode run
    /// is left to do if not.
    pub(super) fn verify_step(&mut self, selected: &[bool]) -> Result<bool, BackendError> {
        let drafting_since = Instant::now();
        let Some(drafts) = self.draft(selected)? else { return Ok(false) };
        let tokens: Vec<Vec<u32>> = drafts.iter().map(GuidedDrafts::tokens).collect();
        let (mut sequences, mut jobs, mut masks) = (vec![], vec![], vec![]);
        for (Decoding { job, sequence, .. }, draft) in selected_mut(&mut self.decoding, selected).zip(&drafts)
        {
            sequences.push(sequence);
            masks.push(
                job.mask().into_iter().chain(draft.masks.iter().map(|mask| &mask[..])).collect::<Vec<_>>(),
            );
            jobs.push(&*job);
        }
        let mut batch: Vec<VerifyRows<'_, B::Sequence>> = vec![];
        for (((sequence, job), drafts), masks) in sequences.into_iter().zip(jobs).zip(&tokens).zip(&masks) {
            let (token, sampling) = (job.generated.last().copied().unwrap_or_default(), job.sampling());
            batch.push(VerifyRows { sequence, token, drafts, sampling, masks });
        }
        let start = Instant::now();
        let outputs = match self.backend.verify(&mut batch) {
            Ok(outputs) => outputs,
            Err(error) => return self.without_drafts(error),
        };
        let elapsed = start.elapsed();

        let rows: usize = tokens.iter().map(|drafts| 1 + drafts.len()).sum();
        let joules = self.step_energy(drafting_since);
        let jobs = || self.decoding.iter().zip(selected).filter(|(_, selected)| **selected);
        let depths: Vec<u32> = jobs().map(|(decoding, _)| decoding.job.sequence_len() as u32).collect();
        let bytes = self.backend.step_bytes(&depths);
        let generated: usize = outputs.iter().map(Vec::len).sum();
        tracing::trace!(
            verify = ?jobs().map(|(decoding, _)| decoding.job.id).collect::<Vec<_>>(),
            drafts = rows - depths.len(),
            accepted = generated - depths.len(),
            elapsed_us = elapsed.as_micros() as u64,
            "verify step"
        );
        if let Some(bytes) = bytes {
            self.status.memory_traffic.record(bytes, elapsed, generated as u64);
        }
        self.trials.record_verify_step(generated > depths.len());
        self.model_trials.record_steps(1);
        self.status.verify_steps += 1;
        self.record_steps(1, rows);
        let mut results = outputs.into_iter().zip(&drafts);
        for (mut decoding, selected) in mem::take(&mut self.decoding).into_iter().zip(selected) {
            let result = if *selected { results.next() } else { None };
            let Some((sampled, draft)) = result else {
                self.decoding.push(decoding);
                continue;
            };
            let (job, accepted) = (&mut decoding.job, sampled.len() - 1);
            job.drafter.record(&draft.drafts, accepted);
            self.acceptance.record(&draft.drafts, accepted);
            self.status.drafts.record(&draft.drafts, accepted);
            job.joules.add(joules.share(1 + draft.drafts.len(), rows));
            if let Some(bytes) = bytes {
                job.decode_bytes += bytes / depths.len() as u64;
                job.decode_tokens += sampled.len() as u32;
            }
            self.deliver(decoding, sampled);
        }
        Ok(true)
    }

    /// Handles an error of a verify step. Drafts must not cause the failure of a request, so a plain step is run instead.
    fn without_drafts(&mut self, error: BackendError) -> Result<bool, BackendError> {
        // Whatever follows: the same verify step again would fail again, and a device that it loses would be lost for good.
        self.trials.record_failure();
        match error {
            BackendError::DeviceLost(_) => Err(error),
            // The failed step may have counted tokens for the penalties of requests without drafts: each is run on its own
            // after resetting them.
            BackendError::NonFiniteLogits | BackendError::Other(_) if self.running() > 1 => Err(error),
            error => {
                tracing::debug!(%error, "verify step failed: decoding without drafts");
                Ok(false)
            }
        }
    }
}

/// The selected requests of a decode batch.
pub(super) fn selected_mut<'a, B: Backend>(
    decoding: &'a mut [Decoding<B>],
    selected: &'a [bool],
) -> impl Iterator<Item = &'a mut Decoding<B>> {
    decoding.iter_mut().zip(selected).filter_map(|(decoding, selected)| selected.then_some(decoding))
}
