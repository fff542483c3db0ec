//! Mixed steps: decode rows and prefill chunks in one step, so that long prompts do not stall decoding and
//! short prompts do not wait for each other.

use std::time::Duration;

use super::Runner;
use crate::{
    DecodeRow, Error, MixedOutput, PrefillChunk, Result,
    bucket::bucket,
    pacer::StepExtent,
    programs::Output,
    sampling::RowSampling,
    state::{MAX_CHUNKS_PER_STEP, Row, RowCounts},
};

impl Runner {
    /// Runs one step of a mixed batch: a token for each decode row, and prefill chunks of other sequences.
    /// The batch takes up to [`MAX_CHUNKS_PER_STEP`] chunks, with as many tokens together as
    /// [`Runner::max_prefill_tokens`] returns. On an error no sequence advances.
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
            self.start_counting(sequence, sampling)?;
        }
        let mut rows = if decoding.is_empty() { vec![] } else { self.decode_rows(decoding, 1)? };
        let mut samplings: Vec<RowSampling<'_>> = decoding.iter().map(DecodeRow::row_sampling).collect();
        let mut output_rows: Vec<u32> = (0..decoding.len() as u32).collect();
        for chunk in chunks.iter_mut() {
            rows.extend(self.extend(chunk.sequence, chunk.tokens)?);
            if chunk.last {
                samplings.push(RowSampling { sampling: chunk.sampling, mask: chunk.mask });
                output_rows.push(rows.len() as u32 - 1);
            }
        }
        let counts = RowCounts::new(decoding.len(), rows.len() - decoding.len());
        let output = match output_rows.len() {
            0 => Output::None,
            outputs => Output::Sample { rows: bucket(outputs) },
        };
        let mut key = self.key(counts, output, &samplings);
        key.features.counts |= chunks.iter().any(|chunk| chunk.sampling.features(vocab).counts);
        self.step(key, counts, &rows, &output_rows, &samplings)?;

        let sampled_rows: Vec<Row> = output_rows.iter().map(|row| rows[*row as usize]).collect();
        let mut decoded = self.read_sampled(0, &sampled_rows)?;
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

    /// Checks that a step can hold this many decode rows and these chunks.
    fn check_mixed(&self, decoding: usize, chunks: &[PrefillChunk<'_>]) -> Result<()> {
        if chunks.is_empty() || chunks.len() > MAX_CHUNKS_PER_STEP {
            return Err(Error::Limits(format!(
                "{} prefill chunks in a step; it takes 1 to {MAX_CHUNKS_PER_STEP}",
                chunks.len()
            )));
        }
        let sampled = decoding + chunks.iter().filter(|chunk| chunk.last).count();
        let max = self.max_sequences() as usize;
        if sampled > max {
            return Err(Error::Limits(format!(
                "{sampled} sequences in a step; it takes at most {max}: leave some for the next step"
            )));
        }
        let tokens: usize = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
        let max = self.max_prefill_rows(decoding);
        if tokens > max {
            return Err(Error::Limits(format!(
                "{tokens} prefill tokens beside {decoding} decode rows; a step takes at most {max}: split the \
                 prompts into more chunks, or raise the prefill chunk (--prefill-chunk)"
            )));
        }
        Ok(())
    }

    /// Prefill rows that fit into a step beside this many decode rows.
    pub(super) fn max_prefill_rows(&self, decode: usize) -> usize {
        let limits = self.cache.limits();
        (limits.prefill_chunk as usize).min((limits.max_rows() as usize).saturating_sub(decode))
    }

    /// Prefill tokens for a mixed step with this many decode rows that takes no longer than `limit`, by the
    /// steps measured so far; `depth` is the length of the longest sequence. Few tokens until a step has
    /// been measured; at least 8, or as many as fit, since fewer would not take less time.
    pub fn max_prefill_tokens(&self, decoding: usize, depth: u32, limit: Duration) -> usize {
        let max = self.max_prefill_rows(decoding);
        let max_step_rows = self.cache.limits().max_rows() as usize;
        let extent = |rows: usize| mixed_extent(decoding, rows, depth);
        self.pacer.mixed_chunk_rows(decoding, max, max_step_rows, limit, extent)
    }

    /// Time to prefill this many tokens after `depth` others, in steps that take no longer than `limit`: by the steps measured
    /// so far, before the first by an estimate for a slow GPU.
    pub fn prefill_time(&self, tokens: usize, depth: u32, limit: Duration) -> Duration {
        let rows = tokens.min(self.max_prefill_tokens(0, depth, limit)).max(1);
        let seconds = self.pacer.estimated_seconds(bucket(rows), &mixed_extent(0, rows, depth));
        Duration::from_secs_f64(seconds * tokens as f64 / rows as f64)
    }
}

/// What a mixed step costs that prefills this many rows, at this depth.
fn mixed_extent(decoding: usize, rows: usize, depth: u32) -> StepExtent {
    let depth = depth.saturating_add(rows as u32);
    StepExtent::uniform(RowCounts::new(decoding, rows), depth, bucket(decoding + 1))
}
