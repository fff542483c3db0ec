//! Decoding: runs of several steps in one submission, which a stop token ends on the GPU.

use kernels::sample::MAX_STOP_TOKENS;

use super::Runner;
use crate::{
    DecodeRow, Error, Result, Sampled, Sampling,
    bucket::{bucket, buckets},
    pacer::StepExtent,
    pages::Sequence,
    programs::{Output, ProgramKey},
    sampling::RowSampling,
    state::{MAX_STEPS, Row, RowCounts},
};

impl Runner {
    /// Decodes up to `max_steps` tokens per row in one submission and returns one list per step, with one
    /// token per row: at least one step.
    ///
    /// The run ends, for all rows, with the step in which any row samples one of its stop tokens: the GPU
    /// skips the remaining steps, and the caller decides which sequences continue. A run is also shortened by
    /// the context length, and it is a single step where a row has a token mask (the next mask depends on the
    /// sampled token, which the host has to see first) or more than 16 stop tokens, and on devices without
    /// conditional rendering.
    pub fn decode(&mut self, batch: &mut [DecodeRow<'_>], max_steps: usize) -> Result<Vec<Vec<Sampled>>> {
        batch.iter().try_for_each(|row| self.check_mask(row.mask))?;
        let samplings: Vec<RowSampling<'_>> = batch.iter().map(DecodeRow::row_sampling).collect();
        let output = Output::Sample { rows: bucket(batch.len()) };
        let counts = RowCounts::new(batch.len(), 0);
        let key = self.key(counts, output, &samplings);
        let steps = self.run_length(batch, key, max_steps);
        let mut rows = self.decode_rows(batch, steps)?;
        let output_rows: Vec<u32> = (0..rows.len() as u32).collect();
        self.prepare_programs(&[key])?;
        self.write_inputs(&rows, counts, steps as u32, output, &output_rows, &samplings)?;
        self.sampler.write_stop_tokens(batch)?;
        let mut extent = StepExtent::new(&rows, counts, output.rows());
        extent.decode.depth += steps as u32 - 1;
        let elapsed = self.run(key, &extent, steps)?;

        let mut all: Vec<Vec<Sampled>> = Vec::with_capacity(steps);
        for step in 0..steps {
            match self.read_sampled(step, &rows) {
                Ok(sampled) => all.push(sampled),
                // The earlier steps are good; the next call starts with this step and fails. With penalties
                // this step's tokens have been counted already, so the whole run is an error: the caller
                // resets the counts and tries again.
                Err(Error::NonFiniteLogits { .. }) if step > 0 && !key.features.counts => {
                    rows.clear();
                    break;
                }
                Err(error) => return Err(error),
            }
            for (row, sampled) in rows.iter_mut().zip(&all[step]) {
                *row = Row::text(sampled.token, row.position + 1, row.slot);
            }
            let stopped =
                |(sampled, row): (&Sampled, &DecodeRow<'_>)| row.stop_token_ids.contains(&sampled.token);
            if all[step].iter().zip(batch.iter()).any(stopped) {
                break;
            }
        }
        for (number, row) in batch.iter_mut().enumerate() {
            // The last sampled token is not in the cache yet.
            let sampled = all.iter().map(|step| step[number].token);
            let held: Vec<u32> = [row.token].into_iter().chain(sampled).take(all.len()).collect();
            self.cache.advance(row.sequence, &held);
            // Free the pages of skipped steps.
            self.cache.truncate(row.sequence, row.sequence.len());
        }
        self.record_steps(key, &extent, all.len(), elapsed);
        self.pacer.record_run(key.bucket, all.len(), elapsed);
        // The times by which drafts are chosen are those of verify steps, which may have other kernels.
        if key.bucket == 1 || !self.exact_verify {
            self.pacer.record_step_time(key.bucket, elapsed / all.len() as u32);
        }
        self.state.set_next_rows(rows);
        Ok(all)
    }

    /// The number of steps to request of [`Runner::decode`] for a run of about 50 ms, by the step time of the
    /// last run.
    pub fn decode_run_steps(&self, sequences: usize) -> usize {
        self.pacer.decode_run_steps(sequences)
    }

    /// The decode batch size with the highest throughput for this many sequences, by the latest step times. A
    /// few more sequences than a bucket has rows take as long as the next bucket; a smaller batch, rotated
    /// among the sequences, can then be faster.
    pub fn decode_batch_size(&self, sequences: usize) -> usize {
        self.pacer.decode_batch_size(sequences)
    }

    /// The largest bucket below this number of sequences, unless the number is a bucket itself: the
    /// alternative that [`Runner::decode_batch_size`] considers.
    pub fn bucket_below(&self, sequences: usize) -> Option<usize> {
        let between = bucket(sequences) != sequences;
        buckets(sequences).filter(|rows| between && *rows < sequences).last()
    }

    /// Undoes the last decode steps of a sequence, one for each of these tokens that they sampled: shortens
    /// the sequence, and removes the tokens from the counts that penalties use.
    pub fn rollback(&mut self, sequence: &mut Sequence, tokens: &[u32], sampling: &Sampling) -> Result<()> {
        if tokens.is_empty() {
            return Ok(());
        }
        let counted = sequence.counted;
        let len = u32::try_from(tokens.len()).ok().and_then(|count| sequence.len().checked_sub(count));
        if !len.is_some_and(|len| self.cache.truncate(sequence, len)) {
            let text = format!(
                "{} steps cannot be rolled back: they are not the last of the sequence",
                tokens.len()
            );
            return Err(Error::Limits(text));
        }
        if counted && sampling.features(self.model.config.vocab).counts {
            self.sampler.uncount(&mut self.state, sequence.slot(), tokens)?;
        }
        sequence.counted = counted;
        Ok(())
    }

    /// Steps of the next run: `max_steps`, or fewer where the batch or the device requires it.
    fn run_length(&self, batch: &[DecodeRow<'_>], key: ProgramKey, max_steps: usize) -> usize {
        let limits = self.cache.limits();
        let single_step =
            |row: &DecodeRow<'_>| row.mask.is_some() || row.stop_token_ids.len() > MAX_STOP_TOKENS;
        if !self.model.device.caps().conditional_rendering || batch.iter().any(single_step) {
            return 1;
        }
        let left = batch.iter().map(|row| limits.context_length.saturating_sub(row.sequence.len()) as usize);
        let left = left.min().unwrap_or(1);
        // A sequence has pages for its window and one chunk; a run is one submission.
        let fit = left.min(limits.prefill_chunk as usize).min(MAX_STEPS);
        max_steps.min(fit).min(gpu::MAX_PROGRAMS_PER_SUBMIT / self.segment_count(key).max(1)).max(1)
    }

    /// The input rows of a run's first step, after allocating pages for all of its steps.
    pub(super) fn decode_rows(&mut self, batch: &mut [DecodeRow<'_>], steps: usize) -> Result<Vec<Row>> {
        let vocab = self.model.config.vocab;
        let max = self.max_sequences();
        if batch.is_empty() || batch.len() > max as usize {
            return Err(Error::Limits(format!("{} sequences in a step; it takes 1 to {max}", batch.len())));
        }
        let mut rows = Vec::with_capacity(batch.len());
        for DecodeRow { sequence, token, sampling, .. } in batch.iter_mut() {
            sampling.check(vocab)?;
            self.check(sequence, &[*token])?;
            self.start_counting(sequence, sampling)?;
            self.cache.extend(sequence, steps as u32)?;
            rows.push(Row::text(*token, sequence.len(), sequence.slot()));
        }
        Ok(rows)
    }
}
