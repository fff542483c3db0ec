//! Draft models: a small model proposes the next tokens of sequences, which a verify step of the target model checks.
//!
//! It samples with the noise of the target model's sampler, which depends on the seed, the position and the token only. So
//! where both models agree about a distribution they sample the same token, greedy or not.

use std::{borrow::Cow, time::Duration};

use crate::{DecodeRow, MAX_CHUNKS_PER_STEP, PrefillChunk, Result, Runner, Sampling, pages::Sequence};

/// Time budget of a prefill step of the draft model, for new prompts and for tokens decoded without drafts. Other
/// requests wait for it, as they do for a prefill step of the target model.
const CATCH_UP_BUDGET: Duration = Duration::from_millis(50);

/// Runs a draft model: one that drafts for another with the same vocabulary.
pub struct DraftRunner {
    runner: Runner,
}

/// A request's sequence in the draft model's KV cache. Dropping it frees its pages.
#[derive(Default)]
pub struct DraftSequence {
    sequence: Option<Sequence>,
    /// The tokens in its KV cache: a prefix of the request's, and drafts after it.
    cached_tokens: Vec<u32>,
}

/// The tokens of one request, to be continued.
pub struct DraftInput<'a, S = DraftSequence> {
    /// Its sequence in the draft model.
    pub sequence: &'a mut S,
    /// The prompt and the completion so far.
    pub tokens: &'a [u32],
    /// How the next tokens will be sampled. Without penalties, which would have to count rejected drafts.
    pub sampling: &'a Sampling,
    /// Maximum number of drafts.
    pub max_drafts: usize,
}

/// An input for which drafts can be made.
struct ActiveInput<'a> {
    /// Index in the batch.
    index: usize,
    /// Where the sequence returns to.
    slot: &'a mut Option<Sequence>,
    sequence: Sequence,
    cached_tokens: &'a mut Vec<u32>,
    tokens: &'a [u32],
    sampling: Cow<'a, Sampling>,
    max_drafts: usize,
    drafts: Vec<u32>,
}

impl ActiveInput<'_> {
    /// Tokens that the KV cache does not hold: at least the last.
    fn missing(&self) -> usize {
        self.tokens.len() - self.cached_tokens.len()
    }

    /// The last token, drafts included.
    fn last(&self) -> u32 {
        self.drafts.last().or(self.tokens.last()).copied().unwrap_or_default()
    }

    /// Whether drafts can follow without prefilling more.
    fn is_ready(&self) -> bool {
        !self.drafts.is_empty() || self.missing() == 1
    }

    fn decode_row(&mut self) -> DecodeRow<'_> {
        let token = self.last();
        DecodeRow::new(&mut self.sequence, token, &self.sampling)
    }
}

impl DraftRunner {
    /// Drafts with this runner's model.
    pub fn new(runner: Runner) -> Self {
        Self { runner }
    }

    /// The runner.
    pub fn runner(&self) -> &Runner {
        &self.runner
    }

    /// The runner, to prepare its programs.
    pub fn runner_mut(&mut self) -> &mut Runner {
        &mut self.runner
    }

    /// Time of a step of this many sequences, by the latest of them; `None` before it was measured.
    pub fn step_time(&self, sequences: usize) -> Option<Duration> {
        self.runner.step_time(sequences)
    }

    /// Time that prefilling a request with this many tokens is expected to take; zero if few are missing, as after a verify
    /// step.
    pub fn prefill_time(&self, sequence: &DraftSequence, tokens: usize) -> Duration {
        let cached = sequence.cached_tokens.len();
        let missing = tokens.saturating_sub(cached);
        if missing <= self.runner.model().max_verify_rows() {
            return Duration::ZERO;
        }
        self.runner.prefill_time(missing, cached as u32, CATCH_UP_BUDGET)
    }

    /// Drafts of the next tokens, one list per input. Takes one step to prefill inputs of which more than the last token is
    /// new, and one step per draft. An input that needs more than one step to prefill, that does not fit the context of
    /// the draft model, or that has tokens outside its vocabulary, has no drafts.
    pub fn draft(&mut self, batch: &mut [DraftInput<'_>]) -> Result<Vec<Vec<u32>>> {
        let mut drafts = vec![vec![]; batch.len()];
        let mut rows = vec![];
        for (index, row) in batch.iter_mut().enumerate() {
            rows.extend(self.reuse_prefix(index, row)?);
        }
        let result = self.catch_up(&mut rows).and_then(|()| self.decode(&mut rows));
        for ActiveInput { index, slot, mut sequence, cached_tokens, drafts: drafted, .. } in rows {
            // A failed step leaves pages beyond the length.
            let len = sequence.len();
            self.runner.truncate(&mut sequence, len);
            cached_tokens.truncate(len as usize);
            drafts[index] = drafted;
            *slot = Some(sequence);
        }
        result.map(|()| drafts)
    }

    /// Truncates the KV cache to its longest common prefix with the tokens, or starts a new sequence. `None` if nothing can
    /// be drafted.
    fn reuse_prefix<'a>(
        &self,
        index: usize,
        input: &'a mut DraftInput<'_>,
    ) -> Result<Option<ActiveInput<'a>>> {
        let DraftInput {
            sequence: DraftSequence { sequence: slot, cached_tokens },
            tokens,
            sampling,
            max_drafts,
        } = input;
        let tokens: &[u32] = tokens;
        let Some(before_last) = tokens.len().checked_sub(1) else { return Ok(None) };
        let vocab = self.runner.model().config.vocab;
        let pairs = cached_tokens.iter().zip(&tokens[..before_last]);
        let common = pairs.take_while(|(cached, token)| cached == token).count();
        let left = (self.runner.cache().limits().context_length as usize).saturating_sub(tokens.len());
        let max_drafts = left.min(*max_drafts);
        // Soft tokens of images are outside every vocabulary.
        if max_drafts == 0 || tokens[common..].iter().any(|token| *token >= vocab) {
            return Ok(None);
        }
        let kept = slot.take().filter(|_| common > 0);
        let kept = kept
            .and_then(|mut sequence| self.runner.truncate(&mut sequence, common as u32).then_some(sequence));
        let sequence = match kept {
            Some(sequence) => {
                cached_tokens.truncate(common);
                sequence
            }
            None => {
                cached_tokens.clear();
                let sequence = self.runner.start_with(tokens)?;
                cached_tokens.extend(&tokens[..sequence.len() as usize]);
                sequence
            }
        };
        let is_known = |(token, _): &(u32, f32)| *token < vocab;
        let sampling = match sampling.top == 0 && sampling.biases.iter().all(is_known) {
            true => Cow::Borrowed(*sampling),
            // Log probabilities of drafts are not reported. The target may have more entries at the end of its vocabulary.
            false => {
                let biases = sampling.biases.iter().copied().filter(is_known).collect();
                Cow::Owned(Sampling { top: 0, biases, ..(*sampling).clone() })
            }
        };
        Ok(Some(ActiveInput {
            index,
            slot,
            sequence,
            cached_tokens,
            tokens,
            sampling,
            max_drafts,
            drafts: vec![],
        }))
    }

    /// Prefills missing tokens, in one step; samples the first draft of the sequences that it completes.
    fn catch_up(&mut self, rows: &mut [ActiveInput<'_>]) -> Result<()> {
        let (mut decoding, mut behind): (Vec<_>, Vec<_>) =
            rows.iter_mut().partition(|row| row.missing() == 1);
        if behind.is_empty() {
            return Ok(());
        }
        // Those that lack a few tokens must not wait for a long prompt.
        behind.sort_by_key(|row| row.missing());
        behind.truncate(MAX_CHUNKS_PER_STEP);
        let depth = behind.iter().map(|row| row.cached_tokens.len()).max().unwrap_or(0);
        let mut left = self.runner.max_prefill_tokens(decoding.len(), depth as u32, CATCH_UP_BUDGET);
        let mut chunks = vec![];
        let mut fed = vec![];
        for row in &mut behind {
            let count = row.missing().min(left);
            if count == 0 {
                break;
            }
            left -= count;
            let tokens = &row.tokens[row.cached_tokens.len()..][..count];
            let last = count == row.missing();
            fed.push(tokens);
            chunks.push(PrefillChunk::new(&mut row.sequence, tokens, &row.sampling, last));
        }
        let mut decode: Vec<DecodeRow<'_>> = decoding.iter_mut().map(|row| row.decode_row()).collect();
        let output = self.runner.mixed(&mut decode, &mut chunks)?;
        drop((decode, chunks));
        for (row, sampled) in decoding.into_iter().zip(output.decoded) {
            row.cached_tokens.push(row.last());
            row.drafts.push(sampled.token);
        }
        for ((row, tokens), first) in behind.into_iter().zip(fed).zip(output.first_tokens) {
            row.cached_tokens.extend(tokens);
            row.drafts.extend(first.map(|sampled| sampled.token));
        }
        Ok(())
    }

    /// Decodes the drafts of all sequences that lack none of their tokens, in one run where the device allows.
    fn decode(&mut self, rows: &mut [ActiveInput<'_>]) -> Result<()> {
        let mut ready: Vec<_> = rows.iter_mut().filter(|row| row.is_ready()).collect();
        loop {
            ready.retain(|row| row.drafts.len() < row.max_drafts);
            let Some(steps) = ready.iter().map(|row| row.max_drafts - row.drafts.len()).min() else {
                return Ok(());
            };
            let mut batch: Vec<DecodeRow<'_>> = ready.iter_mut().map(|row| row.decode_row()).collect();
            let sampled = self.runner.decode(&mut batch, steps)?;
            for step in sampled {
                for (row, sampled) in ready.iter_mut().zip(step) {
                    let fed = row.last();
                    row.cached_tokens.push(fed);
                    row.drafts.push(sampled.token);
                }
            }
        }
    }
}
