//! Prefill of one sequence: a prompt chunk by chunk, and the logits or scores of its tokens.

use std::collections::{BTreeMap, btree_map::Entry};

use gpu::{Arena, Buffer, Lifetime, Memory, Program};

use super::{MAX_OUTPUT_ROWS, Runner};
use crate::{
    Error, Result, Sampled, Sampling,
    bucket::bucket,
    image::whole_image_prefix,
    pages::Sequence,
    programs::Output,
    sampling::RowSampling,
    state::{Row, RowCounts, TIMEOUT},
};

impl Runner {
    /// Prefills a prompt chunk by chunk, and samples the token after it. Its images must have been encoded
    /// ([`Runner::encode`]). `progress` receives the number of
    /// tokens done after each chunk, and cancels by returning `false`.
    pub fn prompt(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        sampling: &Sampling,
        mut progress: impl FnMut(usize) -> bool,
    ) -> Result<Sampled> {
        self.check(sequence, tokens)?;
        sampling.check(self.model.config.vocab)?;
        self.start_counting(sequence, sampling)?;
        let mut done = 0;
        while done < tokens.len() {
            let max = self.cache.limits().prefill_chunk as usize;
            let chunk = self.next_chunk(sequence, &tokens[done..], max);
            let rows = self.extend(sequence, chunk)?;
            done += chunk.len();
            let samplings = [RowSampling { sampling, mask: None }];
            if done < tokens.len() {
                self.prefill_step(&rows, Output::None, &[], &samplings)?;
            } else {
                let output = Output::Sample { rows: 1 };
                self.prefill_step(&rows, output, &[rows.len() as u32 - 1], &samplings)?;
            }
            self.cache.advance(sequence, chunk);
            if !progress(done) {
                return Err(Error::Cancelled);
            }
        }
        let last = Row::text(tokens[tokens.len() - 1], sequence.len() - 1, sequence.slot());
        Ok(self.read_sampled(0, &[last])?.remove(0))
    }

    /// Prefills tokens and passes the logits of every one of them to `each`, in order.
    pub fn logits(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        mut each: impl FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        self.check(sequence, tokens)?;
        let vocab = self.model.config.vocab as usize;
        let mut arena = Arena::new(&self.model.device, Lifetime::Staging, Memory::Readback);
        let mut on_host: BTreeMap<usize, (Buffer, Program)> = BTreeMap::new();
        let mut done = 0;
        while done < tokens.len() {
            let chunk = self.next_chunk(sequence, &tokens[done..], self.max_output_rows());
            done += chunk.len();
            let rows = self.extend(sequence, chunk)?;
            let bucket = bucket(rows.len());
            let output_rows: Vec<u32> = (0..rows.len() as u32).collect();
            self.prefill_step(&rows, Output::Logits { rows: bucket }, &output_rows, &[])?;
            self.cache.advance(sequence, chunk);
            let (buffer, copy) = match on_host.entry(bucket) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => {
                    let logits = self.programs.logits(bucket);
                    let buffer = arena.buffer("logits", logits.len())?;
                    let mut recorder = self.model.device.recorder()?;
                    recorder.copy("logits", logits, &buffer)?;
                    entry.insert((buffer, recorder.seal()?))
                }
            };
            copy.run(TIMEOUT)?;
            let mut line = vec![0.0_f32; vocab];
            for row in 0..rows.len() {
                buffer.read((row * vocab * 4) as u64, bytemuck::cast_slice_mut(&mut line))?;
                self.read_back += vocab as u64 * 4;
                each(&line)?;
            }
        }
        Ok(())
    }

    /// Prefills tokens and returns the negative log probability of each token's target, 0 for tokens without
    /// a target.
    pub fn score(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        targets: &[Option<u32>],
    ) -> Result<Vec<f32>> {
        self.check(sequence, tokens)?;
        let vocab = self.model.config.vocab;
        let mut scores = Vec::with_capacity(tokens.len());
        let (mut tokens, mut targets) = (tokens, targets);
        while !tokens.is_empty() {
            let size = self.next_chunk(sequence, tokens, self.max_output_rows()).len();
            let (chunk, targets) =
                (tokens.split_off(..size).unwrap_or_default(), targets.split_off(..size).unwrap_or_default());
            let rows = self.extend(sequence, chunk)?;
            let scored: Vec<(u32, u32)> =
                (0..).zip(targets).filter_map(|(row, target)| Some((row, (*target)?))).collect();
            if let Some((_, token)) = scored.iter().find(|(_, token)| *token >= vocab) {
                return Err(Error::UnknownToken { token: *token, vocab });
            }
            let (output_rows, targets): (Vec<u32>, Vec<u32>) = scored.into_iter().unzip();
            let output = match output_rows.len() {
                0 => Output::None,
                count => Output::Score { rows: bucket(count) },
            };
            self.state.write_targets(&targets)?;
            self.prefill_step(&rows, output, &output_rows, &[])?;
            let nll = self.state.read_scores(output_rows.len())?;
            self.read_back += nll.len() as u64 * 4;
            let first = scores.len();
            scores.resize(first + rows.len(), 0.0);
            for (row, value) in output_rows.iter().zip(nll) {
                if !value.is_finite() {
                    self.clear_caches();
                    return Err(Error::NonFiniteLogits { position: sequence.len() + row });
                }
                scores[first + *row as usize] = value;
            }
            self.cache.advance(sequence, chunk);
        }
        Ok(scores)
    }

    /// Prefills one chunk of a prompt and returns, for each of its tokens, the token that follows it in the prompt
    /// with its log probability and the `top` most probable tokens. `following` are those tokens: as many as the
    /// chunk has, at most [`Runner::max_scored_rows`].
    pub fn score_chunk(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        following: &[u32],
        top: u32,
    ) -> Result<Vec<Sampled>> {
        let vocab = self.model.config.vocab;
        self.check(sequence, tokens)?;
        if let Some(token) = following.iter().find(|token| **token >= vocab) {
            return Err(Error::UnknownToken { token: *token, vocab });
        }
        let max = self.max_scored_rows();
        if tokens.is_empty() || tokens.len() > max || tokens.len() != following.len() {
            return Err(Error::Limits(format!(
                "{} tokens to score, followed by {}; a step takes 1 to {max}, each followed by one",
                tokens.len(),
                following.len()
            )));
        }
        let sampling = Sampling { top, ..Sampling::default() };
        sampling.check(vocab)?;
        // The sampler reports the log probability of what it samples, by the model's unedited logits. A mask leaves it
        // one token to sample.
        let masks: Vec<Vec<u32>> = following.iter().map(|token| single_token_mask(*token, vocab)).collect();
        let samplings: Vec<RowSampling<'_>> =
            masks.iter().map(|mask| RowSampling { sampling: &sampling, mask: Some(mask) }).collect();
        let rows = self.extend(sequence, tokens)?;
        let output_rows: Vec<u32> = (0..rows.len() as u32).collect();
        self.prefill_step(&rows, Output::Sample { rows: bucket(rows.len()) }, &output_rows, &samplings)?;
        let scored = self.read_sampled(0, &rows)?;
        self.cache.advance(sequence, tokens);
        Ok(scored)
    }

    /// Maximum tokens of [`Runner::score_chunk`].
    pub fn max_scored_rows(&self) -> usize {
        self.cache.limits().scored_rows() as usize
    }

    /// Rows of the next prefill chunk after `held` tokens, at most `max`: fewer where a layer would take too
    /// long.
    pub fn chunk_rows(&self, held: u32, max: usize) -> usize {
        self.pacer.chunk_rows(held, max)
    }

    /// The tokens of the next prefill chunk, at most `max`: images are prefilled as a whole.
    fn next_chunk<'a>(&self, sequence: &Sequence, tokens: &'a [u32], max: usize) -> &'a [u32] {
        &tokens[..whole_image_prefix(tokens, self.chunk_rows(sequence.len(), max), true)]
    }

    /// A step of one prefill chunk.
    pub(super) fn prefill_step(
        &mut self,
        rows: &[Row],
        output: Output,
        output_rows: &[u32],
        samplings: &[RowSampling<'_>],
    ) -> Result<()> {
        let counts = RowCounts::new(0, rows.len());
        let key = self.key(counts, output, samplings);
        self.step(key, counts, rows, output_rows, samplings)
    }

    /// Maximum rows of a step that computes logits for every row: logits are large.
    fn max_output_rows(&self) -> usize {
        self.cache.limits().prefill_chunk.min(MAX_OUTPUT_ROWS) as usize
    }
}

/// A token mask that allows one token.
fn single_token_mask(token: u32, vocab: u32) -> Vec<u32> {
    let mut mask = vec![0; vocab.div_ceil(32) as usize];
    mask[token as usize / 32] = 1 << (token % 32);
    mask
}
