//! Decoding: runs of steps in one submission, which the GPU ends by itself.

use std::time::{Duration, Instant};

use gpu::{Buffer, TimestampMode, Timing};
use kernels::{
    matmul::gemv,
    sample::{self, CountMode, CountTokens, MAX_STOP_TOKENS},
};

use super::{
    Row, Runner, Sampled, TIMEOUT, extent_of,
    pace::{self, Extent},
    record::{Count, Key, Output},
};
use crate::{
    DecodeRow, Error, Result, Sampling,
    bucket::{bucket, buckets},
    pages::Sequence,
    sampling::Choice,
    state::MAX_STEPS,
};

impl Runner {
    /// Decodes up to `max_steps` tokens per row in one submission and returns one list per step, with one token per row: at
    /// least one step.
    ///
    /// The run ends, for all rows, with the step in which any row samples one of its stop tokens: the GPU skips the
    /// remaining steps, and the caller decides which sequences continue. A run is also shortened by the context length, and
    /// it is a single step where a row has a token mask (the next mask depends on the sampled token, which the host has to
    /// see first) or more than 16 stop tokens, and on devices without conditional rendering.
    pub fn decode(&mut self, batch: &mut [DecodeRow<'_>], max_steps: usize) -> Result<Vec<Vec<Sampled>>> {
        batch.iter().try_for_each(|row| self.check_mask(row.mask))?;
        let choices: Vec<Choice<'_>> = batch.iter().map(Choice::for_decode).collect();
        let output = Output::Sample { rows: bucket(batch.len()) };
        let count = Count::new(batch.len(), 0);
        let key = self.key(count, output, &choices);
        let steps = self.steps_that_fit(batch, key, max_steps);
        let mut rows = self.decode_rows(batch, steps)?;
        let list: Vec<u32> = (0..rows.len() as u32).collect();
        self.prepare_keys(&[key])?;
        self.write_state(&rows, count, steps as u32, output, &list, &choices)?;
        self.write_stop_tokens(batch)?;
        let mut extent = extent_of(&rows, count, output);
        extent.apart.depth += steps as u32 - 1;
        let took = self.submit(key, &extent, steps)?;

        let mut all: Vec<Vec<Sampled>> = Vec::with_capacity(steps);
        for step in 0..steps {
            match self.sampled(step, &rows) {
                Ok(sampled) => all.push(sampled),
                // What came before is good. The next call begins with this step, and fails. Where tokens are counted those of this step
                // are already, so nothing of the run holds: who asked tells anew what was written, and asks again.
                Err(Error::NotFinite { .. }) if step > 0 && !key.form.counts => {
                    rows.clear();
                    break;
                }
                Err(error) => return Err(error),
            }
            for (row, sampled) in rows.iter_mut().zip(&all[step]) {
                *row = Row { token: sampled.token, position: row.position + 1, slot: row.slot };
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
        self.learn(key, &extent, all.len(), took);
        let most = self.runs.get(&key.rows).map_or(0, |(most, _)| *most).max(all.len());
        self.runs.insert(key.rows, (most, took / all.len() as u32));
        self.next = rows;
        Ok(all)
    }

    /// How many steps of so many sequences to ask of [`Runner::decode`] for a submission of about 50 ms, by what the last took.
    pub fn decode_run_steps(&self, sequences: usize) -> usize {
        pace::steps(self.runs.get(&bucket(sequences)).copied())
    }

    /// How many of so many sequences to carry forward at once for the most tokens per second, by what the last steps took. A few more than
    /// a bucket has rows take the time of the next one: then they had better take turns.
    pub fn decode_batch_size(&self, sequences: usize) -> usize {
        let step = |rows: usize| self.runs.get(&rows).map(|(_, step)| *step);
        let below = buckets(sequences).filter(|rows| *rows < sequences).last();
        pace::at_once(sequences, step(bucket(sequences)), below.and_then(|below| Some((below, step(below)?))))
    }

    /// The most sequences below this number that a program is recorded for, where this number is no such: what [`Runner::decode_batch_size`] holds
    /// it against.
    pub fn bucket_below(&self, sequences: usize) -> Option<usize> {
        let between = bucket(sequences) != sequences;
        buckets(sequences).filter(|rows| between && *rows < sequences).last()
    }

    /// Undoes the last steps of a sequence: one for each of these tokens, which were sampled by them and are not wanted. As if the
    /// steps had not been: its positions end before them, and penalties do not know the tokens.
    pub fn rollback(&mut self, sequence: &mut Sequence, tokens: &[u32], sampling: &Sampling) -> Result<()> {
        if tokens.is_empty() {
            return Ok(());
        }
        let counted = sequence.counted;
        let len = u32::try_from(tokens.len()).ok().and_then(|count| sequence.len().checked_sub(count));
        if !len.is_some_and(|len| self.cache.truncate(sequence, len)) {
            let text = format!("{} steps cannot be taken back: they were not its last", tokens.len());
            return Err(Error::Limits(text));
        }
        if counted && sampling.form(self.model.config.vocab).counts {
            self.count(CountMode::Revert, sequence.slot(), tokens)?;
        }
        sequence.counted = counted;
        Ok(())
    }

    /// Changes the counts of some tokens of a sequence.
    pub(super) fn count(&mut self, counting: CountMode, slot: u32, tokens: &[u32]) -> Result<()> {
        let kernel = CountTokens::new(&self.model.device, counting, self.model.config.vocab as usize)?;
        let counts = self.counts()?.view();
        let most = (self.state.tokens.len() / 4) as usize;
        for tokens in tokens.chunks(most) {
            self.next.clear();
            let state = &mut self.state;
            state.set_rows(tokens.len(), std::iter::empty())?;
            state.tokens.write(0, bytemuck::cast_slice(tokens))?;
            state.slots.write(0, bytemuck::cast_slice(&vec![slot; tokens.len()]))?;
            let [ids, slots] = [&state.tokens, &state.slots].map(Buffer::view);
            let active = &state.active;
            let mut recorder = self.model.device.recorder()?;
            kernel.record(&mut recorder, "count tokens", tokens.len(), [active, &ids, &slots, &counts])?;
            recorder.seal()?.run(TIMEOUT)?;
        }
        Ok(())
    }

    /// A step of decoding with a program that is recorded for it, in one part, and timed.
    pub(crate) fn decode_timed(
        &mut self,
        batch: &mut [DecodeRow<'_>],
        stamps: TimestampMode,
    ) -> Result<Vec<Timing>> {
        let rows = self.decode_rows(batch, 1)?;
        let choices: Vec<Choice<'_>> = batch.iter().map(Choice::for_decode).collect();
        let output = Output::Sample { rows: bucket(rows.len()) };
        let list: Vec<u32> = (0..rows.len() as u32).collect();
        let count = Count::new(rows.len(), 0);
        let key = self.key(count, output, &choices);
        self.write_state(&rows, count, 1, output, &list, &choices)?;
        let program = self.record_timed(key, stamps)?;
        program.run(TIMEOUT)?;
        for row in batch.iter_mut() {
            self.cache.advance(row.sequence, &[row.token]);
        }
        Ok(program.timings()?)
    }

    /// One chunk of a prompt, of at most as many tokens as a chunk has, with timestamps as asked for.
    pub(crate) fn prompt_timed(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        stamps: TimestampMode,
    ) -> Result<Vec<Timing>> {
        self.check(sequence, tokens)?;
        let rows = self.extend(sequence, tokens)?;
        let count = Count::new(0, rows.len());
        let key = self.key(count, Output::None, &[]);
        self.write_state(&rows, count, 1, Output::None, &[], &[])?;
        // In parts, as it would be submitted: all at once might take longer than a driver allows.
        let mut timings: Vec<Timing> = Vec::new();
        for part in self.parts(key) {
            let recorder = self.model.device.timed_recorder(stamps)?;
            let program = self.record(key, part, recorder)?.seal()?;
            program.run(TIMEOUT)?;
            let level = timings.last().map_or(0, |timing| timing.level + 1);
            timings.extend(
                program.timings()?.into_iter().map(|timing| Timing { level: timing.level + level, ..timing }),
            );
        }
        self.cache.advance(sequence, tokens);
        Ok(timings)
    }

    /// Steps of the next run: `max_steps`, or as many as are possible.
    fn steps_that_fit(&self, batch: &[DecodeRow<'_>], key: Key, max_steps: usize) -> usize {
        let limits = self.cache.limits();
        let single = |row: &DecodeRow<'_>| row.mask.is_some() || row.stop_token_ids.len() > MAX_STOP_TOKENS;
        if !self.model.device.caps().conditional_rendering || batch.iter().any(single) {
            return 1;
        }
        let left = batch.iter().map(|row| limits.context_length.saturating_sub(row.sequence.len()) as usize);
        let left = left.min().unwrap_or(1);
        // A sequence has pages for its window and one chunk; a run goes into one submission.
        let fit = left.min(limits.prefill_chunk as usize).min(MAX_STEPS);
        max_steps.min(fit).min(gpu::MAX_PROGRAMS_PER_SUBMIT / self.part_count(key).max(1)).max(1)
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
            self.count_from_here(sequence, sampling)?;
            self.cache.extend(sequence, steps as u32)?;
            rows.push(Row { token: *token, position: sequence.len(), slot: sequence.slot() });
        }
        Ok(rows)
    }

    /// Writes the stop tokens of each row, unless the GPU has them already.
    fn write_stop_tokens(&mut self, batch: &[DecodeRow<'_>]) -> Result<()> {
        let mut words = vec![sample::NO_TOKEN; batch.len() * MAX_STOP_TOKENS];
        for (words, row) in words.chunks_mut(MAX_STOP_TOKENS).zip(batch) {
            // A row with more than fit decodes a single step; the host checks its token.
            let count = row.stop_token_ids.len().min(MAX_STOP_TOKENS);
            words[..count].copy_from_slice(&row.stop_token_ids[..count]);
        }
        if words != self.ends {
            self.state.ends.write(0, bytemuck::cast_slice(&words))?;
            self.ends = words;
        }
        Ok(())
    }

    /// Runs the program of a step so many times and waits for the last; says what that took. One submission, unless that would take
    /// too long.
    pub(super) fn submit(&self, key: Key, extent: &Extent, steps: usize) -> Result<Duration> {
        let recorded = &self.programs[&key];
        let seconds = self.estimate(extent);
        let of_part = |part: &std::ops::Range<usize>| seconds[part.clone()].iter().sum::<f64>();
        let of_parts: Vec<f64> = recorded.parts.iter().map(|(part, _)| of_part(part)).collect();
        let programs: Vec<_> = recorded.parts.iter().map(|(_, program)| program).collect();
        let (programs, of_parts) = (programs.repeat(steps), of_parts.repeat(steps));
        let start = Instant::now();
        let mut last = None;
        let pace = if self.layer_by_layer { f64::INFINITY } else { self.pace(key.rows) };
        for range in pace::submissions(&of_parts, pace) {
            last = Some(self.model.device.submit(&programs[range])?);
        }
        if let Some(ticket) = last {
            self.model.device.wait(ticket, self.step_time)?;
        }
        Ok(start.elapsed())
    }

    /// Takes note of what so many steps took.
    pub(super) fn learn(&mut self, key: Key, extent: &Extent, steps: usize, took: Duration) {
        let estimated = self.estimate(extent).iter().sum::<f64>() * steps as f64;
        let pace = &mut self.paces[usize::from(many(key.rows))];
        *pace = pace::measured(*pace, estimated, took);
        let of_bucket = pace::measured(self.bucket_paces.get(&key.rows).copied(), estimated, took);
        self.bucket_paces.extend(of_bucket.map(|pace| (key.rows, pace)));
        self.counters.steps += steps as u64;
    }

    /// How much longer than estimated steps of so many rows took so far.
    pub(super) fn pace(&self, rows: usize) -> f64 {
        self.paces[usize::from(many(rows))].unwrap_or(1.0)
    }
}

/// Few rows are bound by memory, many by arithmetic: what is found of the one says nothing of the other.
pub(super) fn many(rows: usize) -> bool {
    rows > gemv::MAX_COLUMNS
}
