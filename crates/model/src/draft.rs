//! Draft models: a small model proposes the next tokens of sequences, which a verify step of the target model checks.
//!
//! It samples with the noise of the target model's sampler, which depends on the seed, the position and the token only. So
//! where both models agree about a distribution they sample the same token, greedy or not.

use std::{borrow::Cow, time::Duration};

use crate::{DecodeRow, MAX_CHUNKS_PER_STEP, PrefillChunk, Result, Runner, Sampling, pages::Sequence};

/// Time of a step that reads text which the draft model has not seen: of a new request, or decoded without drafts. Other
/// sequences wait for it.
const CATCH_UP_BUDGET: Duration = Duration::from_millis(50);

/// A model that drafts for another one with the same vocabulary.
pub struct DraftModel {
    runner: Runner,
}

/// What a draft model has seen of one request's text. Dropping it frees the pages.
#[derive(Default)]
pub struct DraftSequence {
    sequence: Option<Sequence>,
    /// The tokens in its KV cache: a prefix of the text, and drafts after it.
    held: Vec<u32>,
}

/// The text of one request, to be continued.
pub struct DraftRow<'a, S = DraftSequence> {
    /// What the draft model has seen of it.
    pub sequence: &'a mut S,
    /// The prompt and the completion so far.
    pub text: &'a [u32],
    /// How the next tokens will be sampled. Without penalties, which would have to count rejected drafts.
    pub sampling: &'a Sampling,
    /// Maximum number of drafts.
    pub max_drafts: usize,
}

/// A row of one call.
struct Row<'a> {
    /// Index in the batch.
    index: usize,
    /// Where the sequence returns to.
    home: &'a mut Option<Sequence>,
    sequence: Sequence,
    held: &'a mut Vec<u32>,
    text: &'a [u32],
    sampling: Cow<'a, Sampling>,
    max_drafts: usize,
    drafts: Vec<u32>,
}

impl Row<'_> {
    /// Tokens of the text that the KV cache does not hold: at least the last.
    fn missing(&self) -> usize {
        self.text.len() - self.held.len()
    }

    /// The last token of the text, or of the drafts after it.
    fn last(&self) -> u32 {
        self.drafts.last().or(self.text.last()).copied().unwrap_or_default()
    }

    /// Whether drafts can follow without reading more of the text.
    fn is_ready(&self) -> bool {
        !self.drafts.is_empty() || self.missing() == 1
    }

    fn decode_row(&mut self) -> DecodeRow<'_> {
        let token = self.last();
        DecodeRow::new(&mut self.sequence, token, &self.sampling)
    }
}

impl DraftModel {
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

    /// Drafts of the next tokens of these texts, a list for each. Takes one step to catch up with texts of which more than
    /// the last token is new, and one per draft. A text that needs more steps to catch up, that does not fit the context
    /// of the draft model, or that has tokens outside its vocabulary, has no drafts.
    pub fn draft(&mut self, batch: &mut [DraftRow<'_>]) -> Result<Vec<Vec<u32>>> {
        let mut drafts = vec![vec![]; batch.len()];
        let mut rows = vec![];
        for (index, row) in batch.iter_mut().enumerate() {
            rows.extend(self.synchronise(index, row)?);
        }
        let result = self.catch_up(&mut rows).and_then(|()| self.decode(&mut rows));
        for Row { index, home, mut sequence, held, drafts: drafted, .. } in rows {
            // A failed step leaves pages beyond the length.
            let len = sequence.len();
            self.runner.truncate(&mut sequence, len);
            held.truncate(len as usize);
            drafts[index] = drafted;
            *home = Some(sequence);
        }
        result.map(|()| drafts)
    }

    /// Removes what the text has not in common with the KV cache. `None` if nothing can be drafted for it.
    fn synchronise<'a>(&self, index: usize, row: &'a mut DraftRow<'_>) -> Result<Option<Row<'a>>> {
        let DraftRow { sequence: DraftSequence { sequence: home, held }, text, sampling, max_drafts } = row;
        let text: &[u32] = text;
        let Some(before_last) = text.len().checked_sub(1) else { return Ok(None) };
        let vocab = self.runner.model().config.vocab;
        let common = held.iter().zip(&text[..before_last]).take_while(|(held, token)| held == token).count();
        let left = (self.runner.cache().limits().context_length as usize).saturating_sub(text.len());
        let max_drafts = left.min(*max_drafts);
        // Soft tokens of images are outside every vocabulary.
        if max_drafts == 0 || text[common..].iter().any(|token| *token >= vocab) {
            return Ok(None);
        }
        let kept = home.take().filter(|_| common > 0);
        let kept = kept
            .and_then(|mut sequence| self.runner.truncate(&mut sequence, common as u32).then_some(sequence));
        let sequence = match kept {
            Some(sequence) => {
                held.truncate(common);
                sequence
            }
            None => {
                let sequence = self.runner.start_with(text)?;
                *held = text[..sequence.len() as usize].to_vec();
                sequence
            }
        };
        let sampling = match sampling.top {
            0 => Cow::Borrowed(*sampling),
            // Nobody sees them.
            _ => Cow::Owned(Sampling { top: 0, ..(*sampling).clone() }),
        };
        Ok(Some(Row { index, home, sequence, held, text, sampling, max_drafts, drafts: vec![] }))
    }

    /// Reads text, in one step. Where that completes a text it samples the first draft.
    fn catch_up(&mut self, rows: &mut [Row<'_>]) -> Result<()> {
        let (mut decoding, mut behind): (Vec<_>, Vec<_>) =
            rows.iter_mut().partition(|row| row.missing() == 1);
        if behind.is_empty() {
            return Ok(());
        }
        behind.truncate(MAX_CHUNKS_PER_STEP);
        let depth = behind.iter().map(|row| row.held.len()).max().unwrap_or(0);
        let mut left = self.runner.max_prefill_tokens(decoding.len(), depth as u32, CATCH_UP_BUDGET);
        let mut chunks = vec![];
        let mut fed = vec![];
        for row in &mut behind {
            let count = row.missing().min(left);
            if count == 0 {
                break;
            }
            left -= count;
            let tokens = &row.text[row.held.len()..][..count];
            let last = count == row.missing();
            fed.push(tokens);
            chunks.push(PrefillChunk::new(&mut row.sequence, tokens, &row.sampling, last));
        }
        let mut decode: Vec<DecodeRow<'_>> = decoding.iter_mut().map(|row| row.decode_row()).collect();
        let output = self.runner.mixed(&mut decode, &mut chunks)?;
        drop((decode, chunks));
        for (row, sampled) in decoding.into_iter().zip(output.decoded) {
            row.held.push(row.last());
            row.drafts.push(sampled.token);
        }
        for ((row, tokens), first) in behind.into_iter().zip(fed).zip(output.first_tokens) {
            row.held.extend(tokens);
            row.drafts.extend(first.map(|sampled| sampled.token));
        }
        Ok(())
    }

    /// Decodes the drafts of all texts that it has caught up with, in one run where the device allows.
    fn decode(&mut self, rows: &mut [Row<'_>]) -> Result<()> {
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
                    row.held.push(fed);
                    row.drafts.push(sampled.token);
                }
            }
        }
    }
}
