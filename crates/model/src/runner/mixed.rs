//! Mixed steps: rows that decode and chunks of prompts through the model together, so that who reads an answer does not wait for
//! another's prompt, and short prompts do not wait for each other.

use std::time::Duration;

use super::{
    Next, Row, Runner, Sampled,
    pace::{self, FEWEST_ROWS},
    record::{Count, Output, extent},
};
use crate::{Error, Result, Sampling, bucket::bucket, pages::Sequence, sampling::Choice, state::MOST_CHUNKS};

/// A part of a prompt.
pub struct Chunk<'a> {
    /// The sequence that it goes to.
    pub sequence: &'a mut Sequence,
    /// The tokens, which follow those that the sequence holds.
    pub tokens: &'a [u32],
    /// How the token after the prompt is chosen. Penalties count the tokens of every chunk, so that all of a prompt's have the same.
    pub sampling: &'a Sampling,
    /// The prompt ends here: the token after it is chosen.
    pub last: bool,
}

/// What a mixed step has chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixed {
    /// One more token for each sequence that decodes, in their order.
    pub decoded: Vec<Sampled>,
    /// For each chunk the token after the prompt, if it was its last.
    pub firsts: Vec<Option<Sampled>>,
}

impl Runner {
    /// One more token for each of some sequences, and chunks of others' prompts, in one step. The chunks may together be as long as
    /// [`Runner::chunk_rows_beside`] says, and there may be [`MOST_CHUNKS`] of them. Nothing is advanced on an error.
    pub fn mixed(&mut self, decoding: &mut [Next<'_>], chunks: &mut [Chunk<'_>]) -> Result<Mixed> {
        self.mixed_masked(decoding, chunks, &[])
    }

    /// The same with masks of the tokens that may be chosen: one or none for each sequence that decodes, and for each chunk that is its
    /// prompt's last. As for [`Runner::decode_masked`].
    pub fn mixed_masked(
        &mut self,
        decoding: &mut [Next<'_>],
        chunks: &mut [Chunk<'_>],
        masks: &[Option<&[u32]>],
    ) -> Result<Mixed> {
        let vocab = self.model.config.vocab;
        for Chunk { sequence, tokens, sampling, .. } in chunks.iter() {
            self.check(sequence, tokens)?;
            sampling.check(vocab)?;
        }
        for Next { sequence, token, sampling } in decoding.iter() {
            self.check(sequence, &[*token])?;
            sampling.check(vocab)?;
        }
        let lasts = chunks.iter().filter(|chunk| chunk.last).count();
        self.check_mixed(decoding.len(), chunks, lasts)?;
        self.check_masks(decoding.len() + lasts, masks)?;

        for Chunk { sequence, sampling, .. } in chunks.iter_mut() {
            self.count_from_here(sequence, sampling)?;
        }
        let mut rows = if decoding.is_empty() { vec![] } else { self.decode_rows(decoding, 1)? };
        let mut samplings: Vec<&Sampling> = decoding.iter().map(|next| next.sampling).collect();
        let mut output_rows: Vec<u32> = (0..decoding.len() as u32).collect();
        for Chunk { sequence, tokens, sampling, last } in chunks.iter_mut() {
            rows.extend(self.extend(sequence, tokens)?);
            if *last {
                samplings.push(sampling);
                output_rows.push(rows.len() as u32 - 1);
            }
        }
        let count = Count::new(decoding.len(), rows.len() - decoding.len());

        let output = match output_rows.len() {
            0 => Output::None,
            outputs => Output::Sample { rows: bucket(outputs) },
        };
        let choices = Choice::list(samplings, masks);
        let mut key = self.key(count, output, &choices);
        key.form.counts |= chunks.iter().any(|chunk| chunk.sampling.form(vocab).counts);
        self.advance(key, count, &rows, &output_rows, &choices)?;

        let sampled_rows: Vec<Row> = output_rows.iter().map(|row| rows[*row as usize]).collect();
        let mut decoded = self.sampled(0, &sampled_rows)?;
        for next in decoding.iter_mut() {
            self.cache.advance(next.sequence, &[next.token]);
        }
        let mut chosen = decoded.split_off(decoding.len()).into_iter();
        let mut firsts = Vec::with_capacity(chunks.len());
        for Chunk { sequence, tokens, last, .. } in chunks.iter_mut() {
            self.cache.advance(sequence, tokens);
            firsts.push(if *last { chosen.next() } else { None });
        }
        Ok(Mixed { decoded, firsts })
    }

    /// Whether a step can have so many rows of each kind.
    fn check_mixed(&self, decoding: usize, chunks: &[Chunk<'_>], lasts: usize) -> Result<()> {
        if chunks.is_empty() || chunks.len() > MOST_CHUNKS {
            return Err(Error::Limits(format!(
                "{} chunks in a step; it takes 1 to {MOST_CHUNKS}",
                chunks.len()
            )));
        }
        let sampled = decoding + lasts;
        let most = self.most_sequences() as usize;
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
        (limits.chunk as usize).min((limits.rows() as usize).saturating_sub(decoding))
    }

    /// How many tokens of prompts to read in a mixed step beside so many sequences that decode, for it to take no longer than
    /// `within`, by what steps took so far; `depth` is how many positions the longest of all the sequences has. Few at first, until a
    /// step was measured; and at least 8, or as many as there is room for, since fewer would not take less time.
    pub fn chunk_rows_beside(&self, decoding: usize, depth: u32, within: Duration) -> usize {
        let most = self.most_beside(decoding);
        // As many as fill a bucket with the others: what is left of one would take memory for nothing, and a program of its own.
        let largest = self.cache.limits().rows() as usize;
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
