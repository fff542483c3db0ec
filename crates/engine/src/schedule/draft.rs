//! What is drafted for the next verify step: repeated text, forced tokens, and the drafts of a draft model.

use super::{Scheduler, verify::selected_mut};
use crate::{
    Backend, BackendError, Capacity, DraftInput,
    job::Decoding,
    speculate::{GuidedDrafts, MAX_DRAFTS, allocate, draft_steps},
};

/// Tokens that a completion is expected to have: as many as its limit, but few have thousands.
const EXPECTED_TOKENS: usize = 256;

/// Maximum time that the draft model may take to prefill a request, relative to the time of decoding the expected tokens.
const MAX_PREFILL_SHARE: f64 = 0.1;

/// What is proposed for one request of a verify step.
struct Proposal {
    guided: GuidedDrafts,
    /// Probability that each draft is accepted with all before it.
    survival: Vec<f64>,
    /// The same for drafts of the draft model, where the first of them is more likely to be accepted.
    model_survival: Option<Vec<f64>>,
    /// Whether a draft is to be verified although it is not expected to pay.
    is_trial: bool,
}

/// Seconds of a step of the target model, by rows less one; `None` where it was not measured.
struct StepTimes(Vec<Option<f64>>);

impl StepTimes {
    fn get(&self, rows: usize) -> Option<f64> {
        self.0[rows - 1]
    }

    fn max_rows(&self) -> usize {
        self.0.len()
    }
}

impl<B: Backend> Scheduler<B> {
    /// The drafts of the selected requests; `None` if none are expected to pay.
    pub(super) fn draft(&mut self, selected: &[bool]) -> Result<Option<Vec<GuidedDrafts>>, BackendError> {
        let Some(times) = self.times_for_drafts(selected) else { return Ok(None) };
        let mut proposals = self.propose(selected, &times);
        if let Err(error) = self.add_model_drafts(selected, &mut proposals, &times) {
            // Whatever follows: the same drafts would fail again, and a device that they lose would be lost for good.
            self.model_trials.record_failure();
            if let BackendError::DeviceLost(_) = error {
                return Err(error);
            }
            tracing::debug!(%error, "the draft model failed");
            let reset = |decoding: &mut Decoding<B>| decoding.draft_sequence = B::DraftSequence::default();
            selected_mut(&mut self.decoding, selected).for_each(reset);
        }
        Ok(self.allocate_rows(proposals, &times))
    }

    /// The step times by which drafts are chosen; `None` where it is not worth looking for any.
    fn times_for_drafts(&self, selected: &[bool]) -> Option<StepTimes> {
        let Capacity { max_verify_rows, max_verify_sequences, .. } = self.shared.capacity;
        let (max_rows, max_sequences) = (max_verify_rows as usize, max_verify_sequences as usize);
        let sequences = selected.iter().filter(|is| **is).count();
        let is_possible = self.shared.options.speculate && sequences < max_rows && sequences <= max_sequences;
        if !is_possible || self.trials.are_paused() {
            return None;
        }
        let seconds = |rows: usize| self.backend.step_time(rows).map(|time| time.as_secs_f64());
        let times = StepTimes((1..=max_rows).map(seconds).collect());
        // Looking for drafts takes time as well, above all with a grammar.
        let all_accepted = vec![vec![1.0; MAX_DRAFTS]; sequences];
        let counts = allocate(&all_accepted, max_rows, |rows| times.get(rows));
        let has_draft_model = self.shared.capacity.has_draft_model;
        let is_due = self.trials.is_due() || has_draft_model && self.model_trials.is_due();
        (is_due || counts.iter().any(|count| *count > 0)).then_some(times)
    }

    /// Drafts that need no model, and where the draft model is expected to do better.
    fn propose(&mut self, selected: &[bool], times: &StepTimes) -> Vec<Proposal> {
        let Capacity { max_verify_rows, context_length, has_draft_model, .. } = self.shared.capacity;
        let sequences = selected.iter().filter(|is| **is).count();
        let has_draft_model = has_draft_model && !self.model_trials.are_paused();
        let Self { backend, decoding, acceptance, .. } = self;
        let propose = |Decoding { job, draft_sequence, .. }: &mut Decoding<B>| {
            // A step yields a token more than it has drafts.
            let left = job.remaining_tokens().min(context_length as usize - job.sequence_len());
            let max_drafts = left.saturating_sub(1).min(max_verify_rows as usize - sequences).min(MAX_DRAFTS);
            let guided = job.lookup_drafts(max_drafts);
            let survival = job.drafter.survival(acceptance, &guided.drafts);
            let may_use_model = has_draft_model && job.may_speculate() && {
                // Prefilling a long prompt must not cost more than drafts can gain before the completion ends.
                let seconds = backend.draft_prefill_time(draft_sequence, job.tokens_len()).as_secs_f64();
                let expected_tokens = job.remaining_tokens().min(EXPECTED_TOKENS);
                let decoding_seconds = times.get(1).unwrap_or(0.0) * expected_tokens as f64;
                seconds <= MAX_PREFILL_SHARE * decoding_seconds
            };
            let of_model = job.drafter.model_survival(acceptance, if may_use_model { max_drafts } else { 0 });
            let is_better = of_model.first() > survival.first();
            Proposal { guided, survival, model_survival: is_better.then_some(of_model), is_trial: false }
        };
        selected_mut(decoding, selected).map(propose).collect()
    }

    /// Replaces drafts by those of the draft model, as many as are expected to pay, or one if a trial is due.
    fn add_model_drafts(
        &mut self,
        selected: &[bool],
        proposals: &mut [Proposal],
        times: &StepTimes,
    ) -> Result<(), BackendError> {
        let vocab_size = self.shared.capacity.vocab_size;
        let drafted_sequences = proposals.iter().filter(|proposal| proposal.model_survival.is_some()).count();
        if drafted_sequences == 0 {
            return Ok(());
        }
        let Self { backend, decoding, acceptance, model_trials, .. } = self;
        let steps = match backend.draft_step_time(drafted_sequences) {
            Some(time) => {
                let from_model: Vec<bool> =
                    proposals.iter().map(|proposal| proposal.model_survival.is_some()).collect();
                let best = |Proposal { survival, model_survival, .. }: &Proposal| {
                    model_survival.as_ref().unwrap_or(survival).clone()
                };
                let survival: Vec<Vec<f64>> = proposals.iter().map(best).collect();
                let step_seconds = |rows: usize| times.get(rows);
                draft_steps(&survival, &from_model, times.max_rows(), step_seconds, time.as_secs_f64())
            }
            // Of two drafts at least the second takes a step of its own, whose time is measured.
            None => 2,
        };
        let is_trial = steps == 0 && model_trials.is_due();
        if steps == 0 && !is_trial {
            return Ok(());
        }
        model_trials.record_attempt();
        let steps = steps.max(1);
        let mut requests: Vec<(&mut Decoding<B>, &mut Proposal, usize)> = selected_mut(decoding, selected)
            .zip(proposals)
            .filter_map(|(decoding, proposal)| {
                let max_drafts = steps.min(proposal.model_survival.as_ref()?.len());
                Some((decoding, proposal, max_drafts))
            })
            .collect();
        if is_trial {
            // For one request: the one with the least to prefill.
            let prefill = |(decoding, ..): &(&mut Decoding<B>, &mut Proposal, usize)| {
                backend.draft_prefill_time(&decoding.draft_sequence, decoding.job.tokens_len())
            };
            requests.sort_by_key(prefill);
            requests.truncate(1);
        }
        let tokens: Vec<Vec<u32>> = requests.iter().map(|(decoding, ..)| decoding.job.tokens()).collect();
        let mut batch = vec![];
        for ((Decoding { job, draft_sequence: sequence, .. }, _, max_drafts), tokens) in
            requests.iter_mut().zip(&tokens)
        {
            batch.push(DraftInput { sequence, tokens, sampling: job.sampling(), max_drafts: *max_drafts });
        }
        let drafted = backend.draft(&mut batch)?;
        for ((Decoding { job, .. }, proposal, _), drafted) in requests.into_iter().zip(drafted) {
            let guided = job.model_drafts(&drafted, vocab_size);
            match (drafted.first(), guided.drafts.is_empty()) {
                // Its prompt is being prefilled: other drafts serve meanwhile.
                (None, _) => {}
                // The grammar does not allow the first: as wrong as a rejected one, and nothing to verify.
                (Some(_), true) => {
                    job.drafter.record_unusable();
                    acceptance.record_unusable();
                }
                (Some(_), false) => {
                    proposal.survival = job.drafter.survival(acceptance, &guided.drafts);
                    proposal.guided = guided;
                    proposal.is_trial = is_trial;
                }
            }
        }
        Ok(())
    }

    /// The drafts that are expected to pay, or those of a trial; `None` if there are none.
    fn allocate_rows(&mut self, proposals: Vec<Proposal>, times: &StepTimes) -> Option<Vec<GuidedDrafts>> {
        let trial = proposals.iter().position(|proposal| proposal.is_trial);
        let (mut drafts, survival): (Vec<GuidedDrafts>, Vec<Vec<f64>>) =
            proposals.into_iter().map(|proposal| (proposal.guided, proposal.survival)).unzip();
        let mut counts = allocate(&survival, times.max_rows(), |rows| times.get(rows));
        if counts.iter().all(|count| *count == 0) {
            let first = |index: &usize| survival[*index].first().copied().unwrap_or(0.0);
            let best = (0..drafts.len()).max_by(|a, b| first(a).total_cmp(&first(b)))?;
            match trial {
                Some(trial) => counts[trial] = 1,
                None => counts[best] = self.trials.next(drafts[best].drafts.len()),
            }
            if counts.iter().all(|count| *count == 0) {
                return None;
            }
        }
        drafts.iter_mut().zip(counts).for_each(|(guided, count)| guided.truncate(count));
        Some(drafts)
    }
}
