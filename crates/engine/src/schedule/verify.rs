//! Verify steps: drafts of the next tokens, checked by one step of the target model.

use std::{mem, time::Instant};

use super::Scheduler;
use crate::{
    Backend, BackendError, Capacity, DraftRow, VerifyRows,
    job::Decoding,
    speculate::{GuidedDraft, MAX_DRAFTS, allocate, draft_steps},
};

impl<B: Backend> Scheduler<B> {
    /// Runs a verify step of the selected requests if drafts are expected to pay. Returns whether it did; a plain decode run
    /// is left to do if not.
    pub(super) fn verify_step(&mut self, selected: &[bool]) -> Result<bool, BackendError> {
        let drafting_since = Instant::now();
        let Some(drafts) = self.draft(selected)? else { return Ok(false) };
        let tokens: Vec<Vec<u32>> = drafts.iter().map(GuidedDraft::tokens).collect();
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

    /// The drafts of the selected requests; `None` if none are expected to pay.
    fn draft(&mut self, selected: &[bool]) -> Result<Option<Vec<GuidedDraft>>, BackendError> {
        let Capacity { max_verify_rows, context_length, has_draft_model, .. } = self.shared.capacity;
        let (max_rows, sequences) = (max_verify_rows as usize, selected.iter().filter(|is| **is).count());
        if !self.shared.options.speculate || sequences >= max_rows || self.trials.are_paused() {
            return Ok(None);
        }
        let Self { backend, decoding, acceptance, trials, .. } = self;
        let times: Vec<_> = (1..=max_rows).map(|rows| backend.step_time(rows)).collect();
        let seconds = |rows: usize| times[rows - 1].map(|time| time.as_secs_f64());
        // Looking for drafts takes time as well, above all with a grammar.
        let all_accepted = vec![vec![1.0; MAX_DRAFTS]; sequences];
        if !trials.is_due() && allocate(&all_accepted, max_rows, seconds).iter().all(|count| *count == 0) {
            return Ok(None);
        }
        let (mut drafts, mut survival, mut asked) = (vec![], vec![], vec![]);
        for Decoding { job, .. } in selected_mut(decoding, selected) {
            // A step yields a token more than it has drafts.
            let left = job.remaining_tokens().min(context_length as usize - job.sequence_len());
            let max = left.saturating_sub(1).min(max_rows - sequences).min(MAX_DRAFTS);
            let guided = job.draft(max);
            let from_text = job.drafter.survival(acceptance, &guided.drafts);
            // The draft model where its first draft is more likely to be right.
            let may_ask = has_draft_model && job.may_speculate();
            let from_model = job.drafter.model_survival(acceptance, if may_ask { max } else { 0 });
            let is_better = from_model.first() > from_text.first();
            asked.push(is_better.then_some(from_model));
            survival.push(from_text);
            drafts.push(guided);
        }
        if asked.iter().any(Option::is_some) {
            let drafted = match self.draft_with_model(selected, &survival, &asked, seconds) {
                Ok(drafted) => drafted,
                Err(BackendError::DeviceLost(reason)) => return Err(BackendError::DeviceLost(reason)),
                Err(error) => {
                    tracing::debug!(%error, "the draft model failed: decoding without drafts");
                    self.trials.record_failure();
                    return Ok(None);
                }
            };
            let jobs = self.decoding.iter().zip(selected).filter(|(_, selected)| **selected);
            for (index, (tokens, (Decoding { job, .. }, _))) in drafted.into_iter().zip(jobs).enumerate() {
                if !tokens.is_empty() {
                    drafts[index] = job.model_drafts(&tokens);
                    survival[index] = job.drafter.survival(&self.acceptance, &drafts[index].drafts);
                }
            }
        }
        let trials = &mut self.trials;
        let mut counts = allocate(&survival, max_rows, seconds);
        if counts.iter().all(|count| *count == 0) {
            let first = |index: &usize| survival[*index].first().copied().unwrap_or(0.0);
            let Some(best) = (0..sequences).max_by(|a, b| first(a).total_cmp(&first(b))) else {
                return Ok(None);
            };
            counts[best] = trials.next(drafts[best].drafts.len());
            if counts[best] == 0 {
                return Ok(None);
            }
        }
        drafts.iter_mut().zip(counts).for_each(|(draft, count)| draft.truncate(count));
        Ok(Some(drafts))
    }

    /// Drafts of the draft model for the selected requests, as many as are expected to pay, or one that is due to be tried;
    /// none for the others. `asked` has the rates of its drafts, for those where they are better than those of other
    /// drafts, which `survival` has.
    fn draft_with_model(
        &mut self,
        selected: &[bool],
        survival: &[Vec<f64>],
        asked: &[Option<Vec<f64>>],
        step_seconds: impl Fn(usize) -> Option<f64>,
    ) -> Result<Vec<Vec<u32>>, BackendError> {
        let max_rows = self.shared.capacity.max_verify_rows as usize;
        let Self { backend, decoding, trials, .. } = self;
        let by_model: Vec<bool> = asked.iter().map(Option::is_some).collect();
        let rates: Vec<Vec<f64>> = asked
            .iter()
            .zip(survival)
            .map(|(model, other)| model.as_ref().unwrap_or(other).clone())
            .collect();
        let sequences = asked.iter().flatten().count();
        let steps = match backend.draft_step_time(sequences).map(|time| time.as_secs_f64()) {
            Some(seconds) => draft_steps(&rates, &by_model, max_rows, step_seconds, seconds),
            // One, to measure it.
            None => 1,
        };
        let steps = if trials.is_due() { steps.max(1) } else { steps };
        let mut all = vec![vec![]; asked.len()];
        let requests: Vec<(usize, &mut Decoding<B>)> = selected_mut(decoding, selected)
            .enumerate()
            .filter(|(index, _)| by_model[*index] && steps.min(rates[*index].len()) > 0)
            .collect();
        let texts: Vec<Vec<u32>> = requests.iter().map(|(_, decoding)| decoding.job.text()).collect();
        let (mut batch, mut indices) = (vec![], vec![]);
        for ((index, Decoding { job, draft_sequence: sequence, .. }), text) in
            requests.into_iter().zip(&texts)
        {
            let max_drafts = steps.min(rates[index].len());
            batch.push(DraftRow { sequence, text, sampling: job.sampling(), max_drafts });
            indices.push(index);
        }
        if !batch.is_empty() {
            let drafted = backend.draft(&mut batch)?;
            indices.into_iter().zip(drafted).for_each(|(index, tokens)| all[index] = tokens);
        }
        Ok(all)
    }
}

/// The selected requests of a decode batch.
fn selected_mut<'a, B: Backend>(
    decoding: &'a mut [Decoding<B>],
    selected: &'a [bool],
) -> impl Iterator<Item = &'a mut Decoding<B>> {
    decoding.iter_mut().zip(selected).filter_map(|(decoding, selected)| selected.then_some(decoding))
}
