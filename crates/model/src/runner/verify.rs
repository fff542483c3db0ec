//! Verify steps: a row for the last token of each sequence and for every draft after it, with a token sampled for each.
//!
//! The rows of a sequence with drafts are a chunk, as in prefill; a sequence without drafts is a decode row. The host
//! compares the drafts with the sampled tokens, which it reads after the step in any case.

use std::time::Duration;

use super::Runner;
#[cfg(doc)]
use crate::Model;
use crate::{
    Error, Result, Sampled, VerifyRows,
    bucket::bucket,
    pacer::StepExtent,
    programs::{Output, ProgramKey},
    sampling::RowSampling,
    state::{Row, RowCounts},
};

impl Runner {
    /// Makes verify steps use the kernels of a decode step of one row, for as many rows as there are: each row gets the bits
    /// that it gets by itself. Batches of several sequences keep the fastest kernels, which round differently. Changes
    /// nothing where [`Model::check_exact_verify`] fails.
    pub fn with_exact_verify(mut self) -> Self {
        self.exact_verify = self.model.check_exact_verify().is_ok();
        self
    }

    /// Whether the rows of verify steps get the bits of single decode steps because they have their kernels. With
    /// row-invariant and batch-invariant logits they do so anyway.
    pub fn has_exact_verify(&self) -> bool {
        self.exact_verify
    }

    /// Whether it was loaded to verify drafts.
    pub fn verifies(&self) -> bool {
        self.verifies
    }

    /// Maximum rows of [`Runner::verify`], of all sequences together.
    pub fn max_verify_rows(&self) -> usize {
        // A sequence has pages for its window and one chunk.
        self.model.max_verify_rows().min(self.cache.limits().prefill_chunk as usize)
    }

    /// Maximum sequences of [`Runner::verify`] whose tokens are those of [`Runner::decode`], if drafts must not change any:
    /// exact verify steps have the kernels of a single row, and batches have others.
    pub fn max_verify_sequences(&self) -> u32 {
        if self.exact_verify { 1 } else { self.max_sequences() }
    }

    /// Time of a decode or verify step of this many rows, by the latest of them; `None` before it was measured.
    pub fn step_time(&self, rows: usize) -> Option<Duration> {
        self.pacer.step_time(rows)
    }

    /// Runs one verify step and returns, per sequence, the tokens that were sampled for its first row and after each
    /// accepted draft: at least one, and one more than there are accepted drafts. The last of them is not in the KV cache
    /// yet, and neither are rejected drafts.
    ///
    /// They are the tokens that [`Runner::decode`] samples one by one: bit for bit where the model has exact verify steps
    /// ([`Runner::with_exact_verify`]) or is row-invariant
    /// ([`Model::with_row_invariant`](crate::Model::with_row_invariant)), which it always is on CPU drivers. On an error
    /// no sequence advances.
    pub fn verify(&mut self, batch: &mut [VerifyRows<'_>]) -> Result<Vec<Vec<Sampled>>> {
        self.check_verify(batch)?;
        // Decode rows come first in a step.
        let mut order: Vec<usize> = (0..batch.len()).collect();
        order.sort_by_key(|index| !batch[*index].drafts.is_empty());
        let decode = batch.iter().filter(|rows| rows.drafts.is_empty()).count();
        let mut rows: Vec<Row> = vec![];
        let mut first_rows = vec![0; batch.len()];
        for index in &order {
            let VerifyRows { sequence, sampling, .. } = &mut batch[*index];
            self.start_counting(sequence, sampling)?;
            let tokens: Vec<u32> = batch[*index].tokens().collect();
            first_rows[*index] = rows.len();
            rows.extend(self.extend(batch[*index].sequence, &tokens)?);
        }
        let samplings: Vec<RowSampling<'_>> =
            order.iter().flat_map(|index| row_samplings(&batch[*index])).collect();
        let exact = self.exact_verify && rows.len() > 1;
        let counts = match exact {
            true => RowCounts::new(rows.len(), 0),
            false => RowCounts::new(decode, rows.len() - decode),
        };
        let output = Output::Sample { rows: bucket(rows.len()) };
        let output_rows: Vec<u32> = (0..rows.len() as u32).collect();
        let key = self.key(counts, output, &samplings);
        let key = if exact { ProgramKey::exact_verify(rows.len(), key.features) } else { key };
        self.prepare_programs(&[key])?;
        self.write_inputs(&rows, counts, 1, output, &output_rows, &samplings)?;
        let extent = StepExtent::new(&rows, counts, output.rows());
        let elapsed = self.run(key, &extent, 1)?;
        self.record_steps(key, &extent, 1, elapsed);
        self.pacer.record_step_time(key.bucket, elapsed);

        let sampled = self.read_rows(0, &rows)?;
        let mut outputs = Vec::with_capacity(batch.len());
        for (verified, first) in batch.iter().zip(first_rows) {
            let sampled = &sampled[first..];
            // Rows after a rejected draft may well have logits that are not finite: nobody asked for them.
            let tokens = sampled.iter().map_while(|sampled| sampled.as_ref().map(|sampled| sampled.token));
            let accepted = verified.accepted(tokens);
            let output: Option<Vec<Sampled>> = sampled[..=accepted].iter().cloned().collect();
            outputs.push(output.ok_or_else(|| self.non_finite(&rows[first + accepted]))?);
        }
        for (verified, output) in batch.iter_mut().zip(&outputs) {
            let held: Vec<u32> = verified.tokens().take(output.len()).collect();
            self.cache.advance(verified.sequence, &held);
            // Free the pages of rejected drafts.
            self.cache.truncate(verified.sequence, verified.sequence.len());
        }
        Ok(outputs)
    }

    fn check_verify(&self, batch: &[VerifyRows<'_>]) -> Result<()> {
        let (rows, max) =
            (batch.iter().map(|rows| 1 + rows.drafts.len()).sum::<usize>(), self.max_verify_rows());
        if rows == 0 || rows > max || batch.len() > self.max_sequences() as usize {
            return Err(Error::Limits(format!(
                "{rows} rows of {} sequences in a verify step; it takes 1 to {max} rows of at most {} sequences",
                batch.len(),
                self.max_sequences()
            )));
        }
        for rows in batch {
            rows.sampling.check(self.model.config.vocab)?;
            let tokens: Vec<u32> = rows.tokens().collect();
            self.check(rows.sequence, &tokens)?;
            rows.masks.iter().try_for_each(|mask| self.check_mask(Some(mask)))?;
            if !rows.drafts.is_empty() && rows.sampling.has_penalties() {
                let text = "drafts with penalties: their token counts would include rejected drafts";
                return Err(Error::Limits(text.into()));
            }
        }
        Ok(())
    }
}

/// How each row of a sequence is sampled.
fn row_samplings<'a>(rows: &VerifyRows<'a>) -> impl Iterator<Item = RowSampling<'a>> {
    let (sampling, masks) = (rows.sampling, rows.masks);
    (0..=rows.drafts.len()).map(move |row| RowSampling { sampling, mask: masks.get(row).copied() })
}
