//! Steps: selection of the batch, execution, and delivery of the sampled tokens.

use std::{collections::VecDeque, mem, time::Instant};

use model::{Sampled, image_blocks, whole_image_prefix};

use super::{Scheduler, recovery::request_error};
use crate::{
    Backend, BackendError, PrefillChunk, RequestError,
    job::{Decoding, Job, Outcome, Prefilling},
    recent::Sample,
};

/// Every 64th decode run uses the full batch, to refresh its timing.
const FULL_BATCH_INTERVAL: u64 = 64;

impl<B: Backend> Scheduler<B> {
    /// Runs one mixed step, or a decode run if nothing is in prefill.
    pub(super) fn step(&mut self) {
        // Scored prompts join the prefilling ones, so there may be more of them than a step takes.
        let chunks = self.prefilling.len().min(self.shared.capacity.max_chunks_per_step as usize);
        let result = match (self.prefilling.is_empty(), self.decoding.is_empty()) {
            (false, _) => self.mixed_step(self.decoding.len(), chunks),
            (true, false) => self.decode_run(),
            (true, true) => Ok(()),
        };
        match result {
            Ok(()) => {}
            Err(BackendError::DeviceLost(reason)) => self.on_device_lost(&reason),
            Err(error @ (BackendError::NoFreePages | BackendError::OutOfMemory(_))) => {
                self.preempt_youngest(error);
            }
            // The error does not identify the request that caused it. Steps with one request each do.
            Err(error @ (BackendError::NonFiniteLogits | BackendError::Other(_))) => match self.running() {
                1 => self.fail_youngest(error),
                _ => self.step_individually(),
            },
        }
    }

    /// One step with decode rows, which are all decoding requests or none, and chunks of the oldest
    /// `max_chunks` prefills.
    ///
    /// The oldest prefill gets as many tokens as the step has room for: the prefill budget if nothing
    /// decodes, else the mixed budget. The others share the rest of the mixed budget. An image is prefilled as a whole.
    pub(super) fn mixed_step(&mut self, decode_rows: usize, max_chunks: usize) -> Result<(), BackendError> {
        let chunk_tokens = self.chunk_tokens(decode_rows, max_chunks)?;
        let prefill_rows: usize = chunk_tokens.iter().sum();
        if prefill_rows == 0 {
            // All of them wait for their images.
            return if decode_rows > 0 { self.decode_run() } else { Ok(()) };
        }
        let mut chunks = vec![];
        for (prefilling, count) in
            self.prefilling.iter_mut().zip(&chunk_tokens).filter(|(_, count)| **count > 0)
        {
            let rest = &prefilling.tokens[prefilling.prefilled..];
            let tokens = &rest[..*count];
            // A preempted request already has the token after its last chunk.
            let last = tokens.len() == rest.len() && prefilling.job.generated.is_empty();
            let (sampling, mask) = (prefilling.job.sampling(), prefilling.job.mask());
            chunks.push(PrefillChunk { sequence: &mut prefilling.sequence, tokens, sampling, mask, last });
        }
        let mut rows: Vec<_> = self.decoding[..decode_rows].iter_mut().map(Decoding::row).collect();
        let start = Instant::now();
        let output = self.backend.mixed(&mut rows, &mut chunks)?;
        let joules = self.step_energy(start);
        let all_rows = decode_rows + prefill_rows;
        for decoding in &mut self.decoding[..decode_rows] {
            decoding.job.joules.add(joules.share(1, all_rows));
        }
        for (prefilling, tokens) in self.prefilling.iter_mut().zip(&chunk_tokens) {
            prefilling.job.joules.add(joules.share(*tokens, all_rows));
        }
        tracing::trace!(
            decode = ?job_ids(self.decoding[..decode_rows].iter().map(|decoding| &decoding.job)),
            prefill = ?job_ids(self.prefilling.iter().take(chunk_tokens.len()).map(|chunk| &chunk.job)),
            ?chunk_tokens,
            "mixed step"
        );
        self.record_steps(1, all_rows);
        if decode_rows > 0 {
            self.deliver_steps(vec![output.decoded], &vec![true; decode_rows]);
        }
        let mut first_tokens = output.first_tokens.into_iter();
        let first_token = |count: usize| if count > 0 { first_tokens.next().flatten() } else { None };
        let first_tokens: Vec<_> = chunk_tokens.iter().copied().map(first_token).collect();
        self.complete_chunks(chunk_tokens.into_iter().zip(first_tokens));
        Ok(())
    }

    /// The number of tokens in the next chunk of each of the oldest prefills. Encodes their images first; a chunk ends
    /// before the first image that is not ready.
    fn chunk_tokens(&mut self, decode_rows: usize, max_chunks: usize) -> Result<Vec<usize>, BackendError> {
        let options = self.shared.options;
        let mixed_budget = self.mixed_budget();
        let mixed = self.max_prefill_tokens(decode_rows, mixed_budget);
        let budget = match decode_rows {
            0 => options.prefill_step_budget.max(mixed_budget),
            _ => mixed_budget,
        };
        // The step comes on top of it.
        let encode_budget = if decode_rows == 0 { budget } else { options.mixed_step_budget };
        let mut room = if decode_rows == 0 { self.max_prefill_tokens(0, budget) } else { mixed };
        let mut max_images = self.shared.capacity.max_images_per_step as usize;
        let mut all_ready = true;
        let mut counts = vec![];
        let mut prefill_rows = 0;
        for index in 0..max_chunks {
            let prefilling = &self.prefilling[index];
            let rest = &prefilling.tokens[prefilling.prefilled..];
            let count = whole_image_prefix(rest, room, prefill_rows == 0);
            let too_many = image_blocks(&rest[..count]).nth(max_images);
            let mut count = too_many.map_or(count, |image| image.start);
            if count == 0 {
                break;
            }
            let first_image = image_blocks(&rest[..count]).next();
            let images = image_blocks(&rest[..count]).count();
            if let Some(first_image) = first_image {
                let start = Instant::now();
                let before = image_blocks(&prefilling.tokens[..prefilling.prefilled]).count();
                let images = &prefilling.job.request.images[before..before + images];
                // Once an image is not ready, those of younger requests wait: the encoder works for one request at a time.
                all_ready = all_ready && self.backend.encode(images, encode_budget)?;
                let joules = self.step_energy(start);
                self.prefilling[index].job.joules.add(joules);
                count = if all_ready { count } else { first_image.start };
            }
            max_images -= images;
            prefill_rows += count;
            room = mixed.saturating_sub(prefill_rows);
            counts.push(count);
        }
        Ok(counts)
    }

    /// Verifies drafts in one step, or decodes several steps in one submission, as far as no request of the batch needs the
    /// host in between.
    fn decode_run(&mut self) -> Result<(), BackendError> {
        let context_length = self.shared.capacity.context_length as usize;
        let selected = self.select_decode_batch();
        if self.verify_step(&selected)? {
            return Ok(());
        }
        let batch = || selected_jobs(&self.decoding, &selected);
        let remaining = |job: &Job| job.remaining_tokens().min(context_length - job.sequence_len());
        let shortest = batch().map(remaining).min().unwrap_or(1);
        // A token mask depends on the token before it, which the host sees only after the step.
        let masked = batch().any(|job| job.mask().is_some());
        let rows = batch().count();
        let usual = if masked { 1 } else { self.trials.run_steps(self.backend.decode_run_steps(rows)) };
        let max_steps = shortest.min(usual).max(1);
        let steps = match self.decode_batch(max_steps, &selected) {
            // A run allocates the pages of all its steps at once. There may be enough for a single step.
            Err(BackendError::NoFreePages) if max_steps > 1 => self.decode_batch(1, &selected),
            steps => steps,
        }?;
        self.record_steps(steps.len(), rows);
        self.trials.record_steps(steps.len());
        self.model_trials.record_steps(steps.len());
        self.deliver_steps(steps, &selected);
        Ok(())
    }

    /// Selects the requests of the next decode run: all, unless a smaller batch has more throughput. The
    /// requests left out rotate from run to run.
    fn select_decode_batch(&mut self) -> Vec<bool> {
        let all = self.decoding.len();
        self.decode_runs = self.decode_runs.wrapping_add(1);
        let refresh = self.decode_runs.is_multiple_of(FULL_BATCH_INTERVAL);
        let skipped = if refresh { 0 } else { all - self.backend.decode_batch_size(all).clamp(1, all) };
        let mut selected = vec![true; all];
        for index in self.next_to_skip..self.next_to_skip + skipped {
            selected[index % all] = false;
        }
        self.next_to_skip = (self.next_to_skip + skipped) % all;
        selected
    }

    /// Runs up to `max_steps` decode steps of the selected requests and records their memory traffic.
    fn decode_batch(
        &mut self,
        max_steps: usize,
        selected: &[bool],
    ) -> Result<Vec<Vec<Sampled>>, BackendError> {
        let pairs = self.decoding.iter_mut().zip(selected);
        let batch = pairs.filter_map(|(decoding, selected)| selected.then_some(decoding));
        let (depths, mut rows): (Vec<u32>, Vec<_>) =
            batch.map(|decoding| (decoding.job.sequence_len() as u32, decoding.row())).unzip();
        let start = Instant::now();
        let steps = self.backend.decode(&mut rows, max_steps)?;
        let elapsed = start.elapsed();
        tracing::trace!(
            decode = ?job_ids(selected_jobs(&self.decoding, selected)),
            steps = steps.len(),
            elapsed_us = elapsed.as_micros() as u64,
            "decode run"
        );
        // Depths grow by one per step; those of the middle step are the average.
        let middle: Vec<u32> = depths.iter().map(|depth| depth + steps.len() as u32 / 2).collect();
        let bytes = self.backend.step_bytes(&middle).map(|bytes| bytes * steps.len() as u64);
        let rows = depths.len();
        if let Some(bytes) = bytes {
            self.status.memory_traffic.record(bytes, elapsed, (steps.len() * rows) as u64);
        }
        let joules = self.step_energy(start);
        for (decoding, _) in self.decoding.iter_mut().zip(selected).filter(|(_, selected)| **selected) {
            decoding.job.joules.add(joules.share(1, rows));
            // Tokens of steps whose bytes are not known do not count either.
            if let Some(bytes) = bytes {
                decoding.job.decode_bytes += bytes / rows as u64;
                decoding.job.decode_tokens += steps.len() as u32;
            }
        }
        Ok(steps)
    }

    pub(super) fn record_steps(&mut self, steps: usize, rows: usize) {
        self.status.steps += steps as u64;
        self.status.rows += (steps * rows) as u64;
        self.status.last_step_rows = rows as u64;
    }

    /// Delivers the tokens of some steps to the selected requests. `steps` has one list per step, with one
    /// token per selected request.
    fn deliver_steps(&mut self, steps: Vec<Vec<Sampled>>, selected: &[bool]) {
        let mut steps: Vec<_> = steps.into_iter().map(Vec::into_iter).collect();
        for (decoding, selected) in mem::take(&mut self.decoding).into_iter().zip(selected) {
            match selected {
                true => {
                    let sampled = steps.iter_mut().filter_map(Iterator::next).collect();
                    self.deliver(decoding, sampled);
                }
                false => self.decoding.push(decoding),
            }
        }
    }

    /// Sends tokens to a request's stream and records their latency. Afterwards the request decodes on or
    /// ends.
    pub(super) fn deliver(&mut self, mut decoding: Decoding<B>, sampled: Vec<Sampled>) {
        let job = &mut decoding.job;
        let (now, before, steps) = (Instant::now(), job.generated.len(), sampled.len());
        let context_length = self.shared.capacity.context_length;
        let outcome = sampled.into_iter().find_map(|sampled| job.push_token(sampled, context_length));
        let delivered = (job.generated.len() - before) as u64;
        let elapsed = now.saturating_duration_since(mem::replace(&mut job.last_token_at, now));
        match before {
            0 if delivered > 0 => {
                let ttft_ms = elapsed.as_millis() as u64;
                tracing::debug!(parent: &job.request.span, request = job.id, ttft_ms, "first token");
                job.first_token_at = Some(now);
                self.status.time_to_first_token.record(elapsed, 1);
                self.samples.push(Sample::TimeToFirstToken(elapsed));
            }
            _ => {
                let latency = elapsed / steps.max(1) as u32;
                self.status.inter_token_latency.record(latency, delivered);
                self.samples.push(Sample::InterTokenLatency(latency, delivered));
            }
        }
        self.status.generation_tokens += delivered;
        self.samples.push(Sample::GenerationTokens(delivered));
        self.losses = 0;
        self.keep_decoding(decoding, outcome);
    }

    /// Accounts for the chunks of the oldest prefills: their token counts, and the first sampled token where
    /// the prompt ended. Requests whose prefill is complete start to decode.
    fn complete_chunks(&mut self, chunks: impl Iterator<Item = (usize, Option<Sampled>)>) {
        let mut completed = VecDeque::new();
        let mut all = mem::take(&mut self.prefilling).into_iter();
        for ((tokens, first_token), mut prefilling) in chunks.zip(&mut all) {
            prefilling.prefilled += tokens;
            self.status.prompt_tokens += tokens as u64;
            self.samples.push(Sample::PromptTokens(tokens as u64));
            match prefilling.remaining() {
                0 => completed.push_back((prefilling, first_token)),
                _ => self.prefilling.push(prefilling),
            }
        }
        self.prefilling.extend(all);
        while let Some((Prefilling { job, sequence, tokens, prefilled }, first_token)) = completed.pop_front()
        {
            let mut decoding = Decoding::new(job, sequence);
            match first_token {
                Some(first_token) => self.deliver(decoding, vec![first_token]),
                None if decoding.job.generated.is_empty() => {
                    let text = "the prefill is complete, but no token was sampled".to_string();
                    self.keep_decoding(decoding, Some(Outcome::Failed(RequestError::Internal(text))));
                }
                // A preempted request that is recomputed: it decodes on from its last token.
                None => {
                    let mut reset = self.reset_decode_counts(&mut decoding);
                    if let Err(error) = &reset
                        && error.is_resource_exhausted()
                    {
                        // Preempting the younger ones may free enough memory.
                        let others = completed.drain(..).map(|(prefilling, _)| prefilling);
                        let (younger, older) = others
                            .chain(mem::take(&mut self.prefilling))
                            .partition(|prefilling| prefilling.job.id > decoding.job.id);
                        self.prefilling = older;
                        if self.preempt_prefilling(younger, error) {
                            reset = self.reset_decode_counts(&mut decoding);
                        }
                    }
                    match reset {
                        Ok(()) => self.keep_decoding(decoding, None),
                        Err(BackendError::DeviceLost(reason)) => {
                            let Decoding { job, sequence, .. } = decoding;
                            let own = Prefilling { job, sequence, tokens, prefilled };
                            let younger = completed.into_iter().map(|(prefilling, _)| prefilling);
                            let younger = younger.chain(mem::take(&mut self.prefilling));
                            self.prefilling = [own].into_iter().chain(younger).collect();
                            self.prefilling.sort_by_key(|prefilling| prefilling.job.id);
                            return self.on_device_lost(&reason);
                        }
                        // A decoding request may free enough when it ends.
                        Err(error) if error.is_resource_exhausted() && !self.decoding.is_empty() => {
                            self.preempt(decoding.job, &error);
                            self.admission_paused = true;
                        }
                        Err(error) => {
                            self.keep_decoding(decoding, Some(Outcome::Failed(request_error(error))));
                        }
                    }
                }
            }
        }
    }
}

/// Selected requests of a decode batch.
fn selected_jobs<'a, B: Backend>(
    decoding: &'a [Decoding<B>],
    selected: &'a [bool],
) -> impl Iterator<Item = &'a Job> + use<'a, B> {
    let pairs = decoding.iter().zip(selected);
    pairs.filter(|(_, selected)| **selected).map(|(decoding, _)| &decoding.job)
}

fn job_ids<'a>(jobs: impl Iterator<Item = &'a Job>) -> Vec<u64> {
    jobs.map(|job| job.id).collect()
}
