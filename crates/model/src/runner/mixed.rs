//! Mixed steps: rows that decode and chunks of prompts through the model together, so that who reads an answer does not wait for
//! another's prompt, and short prompts do not wait for each other.

use std::time::Duration;

use super::{
    Row, Runner,
    pace::{self, FEWEST_ROWS},
    record::{Count, Output, extent},
};
use crate::{
    DecodeRow, Error, MixedOutput, PrefillChunk, Result, bucket::bucket, sampling::Choice,
    state::MAX_CHUNKS_PER_STEP,
};

impl Runner {
    /// Runs one step of a mixed batch: a token for each decode row, and prefill chunks of other sequences. The batch takes
    /// up to [`MAX_CHUNKS_PER_STEP`] chunks, with as many tokens together as [`Runner::max_prefill_tokens`] returns. On an
    /// error no sequence advances.
    pub fn mixed(
        &mut self,
        decoding: &mut [DecodeRow<'_>],
        chunks: &mut [PrefillChunk<'_>],
    ) -> Result<MixedOutput> {
        let vocab = self.model.config.vocab;
        for PrefillChunk { sequence, tokens, sampling, .. } in chunks.iter() {
            self.check(sequence, tokens)?;
            sampling.check(vocab)?;
        }
        for DecodeRow { sequence, token, sampling, .. } in decoding.iter() {
            self.check(sequence, &[*token])?;
            sampling.check(vocab)?;
        }
        self.check_mixed(decoding.len(), chunks)?;
        let first_masks = chunks.iter().filter(|chunk| chunk.last).map(|chunk| chunk.mask);
        decoding.iter().map(|row| row.mask).chain(first_masks).try_for_each(|mask| self.check_mask(mask))?;

        for PrefillChunk { sequence, sampling, .. } in chunks.iter_mut() {
            self.count_from_here(sequence, sampling)?;
        }
        let mut rows = if decoding.is_empty() { vec![] } else { self.decode_rows(decoding, 1)? };
        let mut choices: Vec<Choice<'_>> = decoding.iter().map(Choice::for_decode).collect();
        let mut output_rows: Vec<u32> = (0..decoding.len() as u32).collect();
        for chunk in chunks.iter_mut() {
            rows.extend(self.extend(chunk.sequence, chunk.tokens)?);
            if chunk.last {
                choices.push(Choice { sampling: chunk.sampling, mask: chunk.mask });
                output_rows.push(rows.len() as u32 - 1);
            }
        }
        let count = Count::new(decoding.len(), rows.len() - decoding.len());

        let output = match output_rows.len() {
            0 => Output::None,
            outputs => Output::Sample { rows: bucket(outputs) },
        };
        let mut key = self.key(count, output, &choices);
        key.form.counts |= chunks.iter().any(|chunk| chunk.sampling.form(vocab).counts);
        self.advance(key, count, &rows, &output_rows, &choices)?;

        let sampled_rows: Vec<Row> = output_rows.iter().map(|row| rows[*row as usize]).collect();
        let mut decoded = self.sampled(0, &sampled_rows)?;
        for row in decoding.iter_mut() {
            self.cache.advance(row.sequence, &[row.token]);
        }
        let mut after_prompts = decoded.split_off(decoding.len()).into_iter();
        let mut first_tokens = Vec::with_capacity(chunks.len());
        for PrefillChunk { sequence, tokens, last, .. } in chunks.iter_mut() {
            self.cache.advance(sequence, tokens);
            first_tokens.push(if *last { after_prompts.next() } else { None });
        }
        Ok(MixedOutput { decoded, first_tokens })
    }

    /// Whether a step can have so many rows of each kind.
    fn check_mixed(&self, decoding: usize, chunks: &[PrefillChunk<'_>]) -> Result<()> {
        if chunks.is_empty() || chunks.len() > MAX_CHUNKS_PER_STEP {
            return Err(Error::Limits(format!(
                "{} chunks in a step; it takes 1 to {MAX_CHUNKS_PER_STEP}",
                chunks.len()
            )));
        }
        let sampled = decoding + chunks.iter().filter(|chunk| chunk.last).count();
        let most = self.max_sequences() as usize;
        if sampled > most {
            return Err(Error::Limits(format!(
                "{sampled} sequences in a step; it takes at most {most}: let some wait for the next step"
            )));
        }
        let tokens: usize = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
        let room = self.most_beside(decoding);
        if tokens > room {
            return Err(Error::Limits(format!(
                "{tokens} tokens of prompts beside {decoding} sequences that decode; a step takes at most {room}: read \
                 them in more chunks, or make the runner for longer ones (--chunk)"
            )));
        }
        Ok(())
    }

    /// Rows of chunks that there is room for beside so many that decode.
    pub(super) fn most_beside(&self, decoding: usize) -> usize {
        let limits = self.cache.limits();
        (limits.prefill_chunk as usize).min((limits.max_rows() as usize).saturating_sub(decoding))
    }

    /// How many tokens of prompts to read in a mixed step beside so many sequences that decode, for it to take no longer than
    /// `within`, by what steps took so far; `depth` is how many positions the longest of all the sequences has. Few at first, until a
    /// step was measured; and at least 8, or as many as there is room for, since fewer would not take less time.
    pub fn max_prefill_tokens(&self, decoding: usize, depth: u32, within: Duration) -> usize {
        let most = self.most_beside(decoding);
        // As many as fill a bucket with the others: what is left of one would take memory for nothing, and a program of its own.
        let largest = self.cache.limits().max_rows() as usize;
        let buckets = std::iter::successors(Some(1), |rows| (*rows < largest).then_some(2 * rows));
        let mut choices: Vec<usize> = buckets
            .filter_map(|rows| rows.checked_sub(decoding))
            .map(|rows| rows.min(most))
            .filter(|rows| *rows >= FEWEST_ROWS.min(most).max(1))
            .collect();
        choices.dedup();
        let seconds = |rows: usize| {
            let count = Count::new(decoding, rows);
            let output = Output::Sample { rows: bucket(decoding + 1) };
            let depth = depth.saturating_add(rows as u32);
            let estimate: f64 = self.estimate(&extent(count, depth, output)).iter().sum();
            let pace = self.bucket_paces.get(&bucket(count.rows())).copied();
            estimate * pace.unwrap_or_else(|| self.pace(count.rows()))
        };
        pace::beside(&choices, within.as_secs_f64(), seconds)
    }
}
