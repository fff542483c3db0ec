//! Log probabilities of a prompt's tokens: prefill with the logits of every token, one request and a few tokens at a
//! time, in steps of their own.

use std::time::Instant;

use super::{Scheduler, insert_in_order, recovery::request_error};
use crate::{
    Backend, BackendError, FinishReason,
    energy::Joules,
    job::{Outcome, Prefilling},
    recent::Sample,
};

impl<B: Backend> Scheduler<B> {
    /// Scores the next tokens of the oldest request that reports log probabilities of its prompt.
    pub(super) fn score_step(&mut self) {
        if self.scoring.is_empty() {
            return;
        }
        match self.score_oldest() {
            Ok(()) => {}
            Err(BackendError::DeviceLost(reason)) => self.on_device_lost(&reason),
            Err(error) if error.is_resource_exhausted() => self.preempt_youngest(error),
            Err(error) => {
                let Prefilling { job, .. } = self.scoring.remove(0);
                self.finish(job, Outcome::Failed(request_error(error)));
                self.admission_paused = false;
            }
        }
    }

    fn score_oldest(&mut self) -> Result<(), BackendError> {
        let options = &self.shared.options;
        let budget = match self.running() {
            1 => options.prefill_step_budget.max(options.mixed_step_budget),
            _ => options.mixed_step_budget,
        };
        let room = self.max_prefill_tokens(0, budget).min(self.backend.max_scored_tokens());
        let Prefilling { job, sequence, tokens, prefilled } = &mut self.scoring[0];
        // The last token is followed by none. It is prefilled like that of any prompt, if a completion is wanted.
        let (all, following) = (&tokens[..tokens.len() - 1], &tokens[1..]);
        let end = all.len().min(*prefilled + room);
        if end > *prefilled {
            let range = *prefilled..end;
            let top = job.to_score().unwrap_or(0);
            let start = Instant::now();
            let scored = self.backend.score(sequence, &all[range.clone()], &following[range.clone()], top)?;
            let joules = Joules::of_step(self.power.as_ref(), start.elapsed());
            self.joules.add(joules);
            job.joules.add(joules);
            job.push_prompt_tokens(*prefilled, scored);
            *prefilled = end;
            tracing::trace!(request = job.id, tokens = range.len(), "score step");
            self.status.prompt_tokens += range.len() as u64;
            self.samples.push(Sample::PromptTokens(range.len() as u64));
            self.record_steps(1, range.len());
        }
        if self.scoring[0].remaining() > 1 {
            return Ok(());
        }
        let mut scored = self.scoring.remove(0);
        if scored.job.request.max_tokens == 0 {
            self.finish(scored.job, Outcome::Finished(FinishReason::MaxTokens));
            self.admission_paused = false;
            return Ok(());
        }
        if let Err(error) = self.reset_counts_of_prefill(&mut scored) {
            self.scoring.insert(0, scored);
            return Err(error);
        }
        insert_in_order(&mut self.prefilling, scored);
        Ok(())
    }
}
