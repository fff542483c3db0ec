//! The backend that runs a model on a GPU.

use std::time::Duration;

use model::{
    DecodeRow, DraftInput, DraftRunner, DraftSequence, Error, Image, ImageEncoder, MixedOutput, PrefillChunk,
    Runner, Sampled, Sequence, VerifyRows, WriteBehind,
};

use crate::{Backend, BackendError, Capacity};

/// Reopens the device, reloads the models and creates runners with the same limits.
type Reload = Box<dyn FnMut() -> model::Result<Runners> + Send>;

/// The runners of a backend, on one device.
pub struct Runners {
    /// Runner of the target model.
    pub target: Runner,
    /// The draft model, for speculative decoding.
    pub draft: Option<DraftRunner>,
}

impl Runners {
    /// The target model's runner, then the draft model's.
    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut Runner> {
        [&mut self.target].into_iter().chain(self.draft.as_mut().map(DraftRunner::runner_mut))
    }
}

/// A [`Runner`] as a [`Backend`], with a way to create another when its device is lost.
pub struct GpuBackend {
    /// `None` while the device is lost: the old runners' memory is freed before the new ones allocate as
    /// much.
    runners: Option<Runners>,
    capacity: Capacity,
    reload: Reload,
    /// Number of recorded programs when malloc was last trimmed.
    trimmed_at: u64,
}

impl GpuBackend {
    /// `reload` is called after the device was lost: it reopens the device, reloads the model and creates a
    /// runner with the same limits. Nothing else should hold the model, or its memory is not freed before.
    pub fn new(runner: Runner, mut reload: impl FnMut() -> model::Result<Runner> + Send + 'static) -> Self {
        let runners = |target| Runners { target, draft: None };
        Self::with_runners(runners(runner), move || reload().map(runners))
    }

    /// Like [`GpuBackend::new`], with an optional draft model.
    pub fn with_runners(
        runners: Runners,
        reload: impl FnMut() -> model::Result<Runners> + Send + 'static,
    ) -> Self {
        let capacity = capacity(&runners);
        gpu::trim_malloc();
        // 0 programs: drivers that compile a program at its first execution leave garbage after this trim.
        Self { runners: Some(runners), capacity, reload: Box::new(reload), trimmed_at: 0 }
    }

    /// The target model's runner, for use between steps; an error while the device is lost.
    pub fn runner(&mut self) -> Result<&mut Runner, BackendError> {
        Ok(&mut self.runners()?.target)
    }

    /// The runners, for use between steps; an error while the device is lost.
    pub fn runners(&mut self) -> Result<&mut Runners, BackendError> {
        self.runners.as_mut().ok_or_else(|| BackendError::DeviceLost("the device is not open".into()))
    }

    fn target(&self) -> Option<&Runner> {
        self.runners.as_ref().map(|runners| &runners.target)
    }

    /// Returns memory that the driver's compiler has left in malloc's pool to the system, if programs were
    /// recorded. Called after a step, since Mesa's CPU driver compiles a program at its first execution.
    fn trim_after_recording(&mut self) {
        let programs = self.runners.as_ref().map_or(0, |Runners { target, draft }| {
            let draft = draft.as_ref().map_or(0, |draft| draft.runner().counters().programs);
            target.counters().programs + draft
        });
        if programs != self.trimmed_at {
            gpu::trim_malloc();
            self.trimmed_at = programs;
        }
    }
}

fn capacity(Runners { target: runner, draft }: &Runners) -> Capacity {
    let limits = runner.cache().limits();
    Capacity {
        max_sequences: runner.max_sequences(),
        context_length: limits.context_length,
        vocab_size: runner.model().config.vocab,
        page_size: limits.page_size,
        pages: runner.cache().pages(),
        max_chunks_per_step: model::MAX_CHUNKS_PER_STEP as u32,
        max_verify_rows: runner.max_verify_rows() as u32,
        max_verify_sequences: runner.max_verify_sequences(),
        has_draft_model: draft.is_some(),
        max_images_per_step: runner.encoder().map_or(0, ImageEncoder::max_images_per_step),
        prefix_cache: limits.prefix_cache,
    }
}

impl From<Error> for BackendError {
    fn from(error: Error) -> Self {
        match error {
            Error::NoFreePages { .. } => BackendError::NoFreePages,
            Error::NonFiniteLogits { .. } => BackendError::NonFiniteLogits,
            // A submission that exceeds its time limit will not complete later either.
            Error::Gpu(gpu::Error::DeviceLost { .. } | gpu::Error::Timeout { .. }) => {
                BackendError::DeviceLost(error.to_string())
            }
            Error::Gpu(gpu::Error::OutOfDeviceMemory { .. } | gpu::Error::OutOfHostMemory { .. }) => {
                BackendError::OutOfMemory(error.to_string())
            }
            error => BackendError::Other(error.to_string()),
        }
    }
}

/// Frees pages that a failed step allocated beyond the sequence's length.
fn free_unused_pages(runner: &Runner, sequence: &mut Sequence) {
    let len = sequence.len();
    runner.truncate(sequence, len);
}

impl Backend for GpuBackend {
    type Sequence = Sequence;
    type DraftSequence = DraftSequence;

    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn free_pages(&self) -> u32 {
        self.target().map_or(0, |runner| runner.cache().free_pages().0 as u32)
    }

    fn cached_pages(&self) -> u32 {
        self.target().map_or(0, |runner| runner.cache().cached_pages().0 as u32)
    }

    fn shared_pages(&self, tokens: &[u32]) -> u32 {
        self.target().map_or(0, |runner| runner.cache().shared_pages(tokens))
    }

    fn restore(&mut self, tokens: &[u32], budget: Duration, wait: bool) -> Result<bool, BackendError> {
        Ok(self.runner()?.restore(tokens, budget, wait)?)
    }

    fn forget_restore(&mut self) {
        self.runners.iter_mut().for_each(|runners| runners.target.forget_restore());
    }

    fn write_behind(&mut self) -> Result<WriteBehind, BackendError> {
        Ok(self.runner()?.write_behind()?)
    }

    fn start_empty(&mut self) -> Result<Sequence, BackendError> {
        Ok(self.runner()?.start()?)
    }

    fn start(&mut self, tokens: &[u32]) -> Result<(Sequence, usize), BackendError> {
        let sequence = self.runner()?.start_with(tokens)?;
        let cached = sequence.len() as usize;
        Ok((sequence, cached))
    }

    fn max_prefill_tokens(&self, decode_rows: usize, depth: u32, budget: Duration) -> usize {
        self.target().map_or(1, |runner| runner.max_prefill_tokens(decode_rows, depth, budget))
    }

    fn decode_batch_size(&self, decoding: usize) -> usize {
        self.target().map_or(decoding, |runner| runner.decode_batch_size(decoding))
    }

    fn decode_run_steps(&self, rows: usize) -> usize {
        self.target().map_or(1, |runner| runner.decode_run_steps(rows))
    }

    fn step_bytes(&self, depths: &[u32]) -> Option<u64> {
        let runner = self.target()?;
        let model = runner.model();
        let kv_bytes = depths.iter().map(|depth| runner.cache().bytes_read(&model.config, *depth));
        Some(model.bytes_per_step(depths.len(), None)? + kv_bytes.sum::<u64>())
    }

    fn encode(&mut self, images: &[Image], budget: Duration) -> Result<bool, BackendError> {
        Ok(self.runner()?.encode(images, budget)?)
    }

    fn mixed(
        &mut self,
        decoding: &mut [DecodeRow<'_>],
        chunks: &mut [PrefillChunk<'_>],
    ) -> Result<MixedOutput, BackendError> {
        let runner = self.runner()?;
        let output = runner.mixed(decoding, chunks);
        if output.is_err() {
            decoding.iter_mut().for_each(|row| free_unused_pages(runner, row.sequence));
            chunks.iter_mut().for_each(|chunk| free_unused_pages(runner, chunk.sequence));
        }
        self.trim_after_recording();
        Ok(output?)
    }

    fn decode(
        &mut self,
        batch: &mut [DecodeRow<'_>],
        max_steps: usize,
    ) -> Result<Vec<Vec<Sampled>>, BackendError> {
        let runner = self.runner()?;
        let steps = runner.decode(batch, max_steps);
        if steps.is_err() {
            batch.iter_mut().for_each(|row| free_unused_pages(runner, row.sequence));
        }
        self.trim_after_recording();
        Ok(steps?)
    }

    fn max_scored_tokens(&self) -> usize {
        self.target().map_or(1, Runner::max_scored_rows)
    }

    fn score(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        following: &[u32],
        top: u32,
    ) -> Result<Vec<Sampled>, BackendError> {
        let runner = self.runner()?;
        let scored = runner.score_chunk(sequence, tokens, following, top);
        if scored.is_err() {
            free_unused_pages(runner, sequence);
        }
        self.trim_after_recording();
        Ok(scored?)
    }

    fn verify(&mut self, batch: &mut [VerifyRows<'_>]) -> Result<Vec<Vec<Sampled>>, BackendError> {
        let runner = self.runner()?;
        let outputs = runner.verify(batch);
        if outputs.is_err() {
            batch.iter_mut().for_each(|rows| free_unused_pages(runner, rows.sequence));
        }
        self.trim_after_recording();
        Ok(outputs?)
    }

    fn draft(&mut self, batch: &mut [DraftInput<'_>]) -> Result<Vec<Vec<u32>>, BackendError> {
        let Some(draft) = &mut self.runners()?.draft else { return Ok(vec![vec![]; batch.len()]) };
        let drafts = draft.draft(batch);
        self.trim_after_recording();
        Ok(drafts?)
    }

    fn draft_prefill_time(&self, sequence: &DraftSequence, tokens: usize) -> Duration {
        let draft = self.runners.as_ref().and_then(|runners| runners.draft.as_ref());
        draft.map_or(Duration::ZERO, |draft| draft.prefill_time(sequence, tokens))
    }

    fn draft_step_time(&self, sequences: usize) -> Option<Duration> {
        let draft = self.runners.as_ref()?.draft.as_ref()?;
        // A batch that was not measured takes hardly less than a smaller one.
        (1..=sequences).rev().find_map(|sequences| draft.step_time(sequences))
    }

    fn step_time(&self, rows: usize) -> Option<Duration> {
        self.target()?.step_time(rows)
    }

    fn reset_token_counts(
        &mut self,
        sequence: &mut Sequence,
        prompt: &[u32],
        generated: &[u32],
    ) -> Result<(), BackendError> {
        Ok(self.runner()?.reset_token_counts(sequence, prompt, generated)?)
    }

    fn probe(&mut self) -> Result<(), BackendError> {
        Ok(self.runner()?.probe()?)
    }

    fn recover(&mut self) -> Result<(), BackendError> {
        self.runners = None;
        gpu::trim_malloc();
        self.trimmed_at = 0;
        let runners = (self.reload)()?;
        let found = capacity(&runners);
        if found != self.capacity {
            let text = format!("the reopened device has {found:?} instead of {:?}", self.capacity);
            return Err(BackendError::Other(text));
        }
        self.runners = Some(runners);
        Ok(())
    }
}
