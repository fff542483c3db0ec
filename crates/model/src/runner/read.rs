//! Reading: prompts chunk by chunk, and the logits or scores of their tokens.

use std::collections::{BTreeMap, btree_map::Entry};

use gpu::{Arena, Buffer, Lifetime, Memory, Program};

use super::{
    MAX_OUTPUT_ROWS, Row, Runner, Sampled, TIMEOUT, pace,
    record::{Count, Output, extent},
};
use crate::{Error, Result, Sampling, bucket::bucket, pages::Sequence, sampling::Choice};

impl Runner {
    /// Reads tokens into a sequence, chunk by chunk, and chooses the one after them. `progress` is told how many were read
    /// after each chunk, and stops the reading with `false`.
    pub fn prompt(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        sampling: &Sampling,
        mut progress: impl FnMut(usize) -> bool,
    ) -> Result<Sampled> {
        self.check(sequence, tokens)?;
        sampling.check(self.model.config.vocab)?;
        self.count_from_here(sequence, sampling)?;
        let mut done = 0;
        while done < tokens.len() {
            let size = self.chunk_rows(sequence.len(), self.cache.limits().prefill_chunk as usize);
            let chunk = &tokens[done..tokens.len().min(done + size)];
            let rows = self.extend(sequence, chunk)?;
            done += chunk.len();
            let choices = [Choice { sampling, mask: None }];
            if done < tokens.len() {
                self.step(&rows, Output::None, &[], &choices)?;
            } else {
                let output = Output::Sample { rows: 1 };
                self.step(&rows, output, &[rows.len() as u32 - 1], &choices)?;
            }
            self.cache.advance(sequence, chunk);
            if !progress(done) {
                return Err(Error::Cancelled);
            }
        }
        let last =
            Row { token: tokens[tokens.len() - 1], position: sequence.len() - 1, slot: sequence.slot() };
        Ok(self.sampled(0, &[last])?.remove(0))
    }

    /// Lets a sequence have more positions, whatever is there.
    pub(crate) fn skip(&mut self, sequence: &mut Sequence, rows: u32) -> Result<()> {
        self.cache.extend(sequence, rows)?;
        sequence.advance_blindly(rows);
        Ok(())
    }

    /// Reads tokens into a sequence and gives `each` the logits of every one of them, in order.
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
            let size = self.chunk_rows(sequence.len(), self.most_outputs());
            let chunk = &tokens[done..tokens.len().min(done + size)];
            done += chunk.len();
            let rows = self.extend(sequence, chunk)?;
            let count = bucket(rows.len());
            let list: Vec<u32> = (0..rows.len() as u32).collect();
            self.step(&rows, Output::Logits { rows: count }, &list, &[])?;
            self.cache.advance(sequence, chunk);
            let (buffer, copy) = match on_host.entry(count) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => {
                    let logits = &self.outputs[&count].logits;
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
                self.counters.read_back += vocab as u64 * 4;
                each(&line)?;
            }
        }
        Ok(())
    }

    /// Reads tokens into a sequence; for each of them the negative log probability of its target, 0 where it has none.
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
            let size = self.chunk_rows(sequence.len(), self.most_outputs()).min(tokens.len());
            let (chunk, targets) =
                (tokens.split_off(..size).unwrap_or_default(), targets.split_off(..size).unwrap_or_default());
            let rows = self.extend(sequence, chunk)?;
            let wanted: Vec<(u32, u32)> =
                (0..).zip(targets).filter_map(|(row, target)| Some((row, (*target)?))).collect();
            if let Some((_, token)) = wanted.iter().find(|(_, token)| *token >= vocab) {
                return Err(Error::UnknownToken { token: *token, vocab });
            }
            let (list, wanted): (Vec<u32>, Vec<u32>) = wanted.into_iter().unzip();
            let output = match list.len() {
                0 => Output::None,
                count => Output::Score { rows: bucket(count) },
            };
            self.state.targets.write(0, bytemuck::cast_slice(&wanted))?;
            self.step(&rows, output, &list, &[])?;
            let mut nll = vec![0.0_f32; list.len()];
            self.state.nll.read(0, bytemuck::cast_slice_mut(&mut nll))?;
            self.counters.read_back += nll.len() as u64 * 4;
            let first = scores.len();
            scores.resize(first + rows.len(), 0.0);
            for (row, value) in list.iter().zip(nll) {
                if !value.is_finite() {
                    self.cache.clear_prefix_cache();
                    return Err(Error::NotFinite { position: sequence.len() + row });
                }
                scores[first + *row as usize] = value;
            }
            self.cache.advance(sequence, chunk);
        }
        Ok(scores)
    }

    /// Rows of the next chunk of a prompt, of at most `most`: fewer where a step of so many would take too long.
    pub fn chunk_rows(&self, held: u32, most: usize) -> usize {
        let longest = |rows: usize| {
            let depth = held.saturating_add(rows as u32);
            let extent = extent(Count::new(0, rows), depth, Output::None);
            self.estimate(&extent).into_iter().fold(0.0, f64::max)
        };
        pace::chunk(most, self.pace(most), longest)
    }

    /// Logits of all rows of a chunk are large: fewer rows at a time.
    pub(super) fn most_outputs(&self) -> usize {
        self.cache.limits().prefill_chunk.min(MAX_OUTPUT_ROWS) as usize
    }

    pub(super) fn extend(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Result<Vec<Row>> {
        self.cache.extend(sequence, tokens.len() as u32)?;
        let row = |(position, token): (u32, &u32)| Row { token: *token, position, slot: sequence.slot() };
        Ok((sequence.len()..).zip(tokens).map(row).collect())
    }
}
