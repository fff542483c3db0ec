//! A model's runner as a backend.

use std::time::Duration;

use model::{DecodeRow, Error, MixedOutput, PrefillChunk, Runner, Sampled, Sequence};

use crate::{Backend, BackendError, Capacity};

/// Opens the device again, loads the model and makes a runner with the same limits.
type Reload = Box<dyn FnMut() -> model::Result<Runner> + Send>;

/// A runner, and the way to another when its device is lost.
pub struct GpuBackend {
    /// None while the device is lost: the old one's memory is given back before the new one takes as much.
    runner: Option<Runner>,
    capacity: Capacity,
    reload: Reload,
    /// Programs that the runner had recorded when malloc last gave back what they left behind.
    tidied: u64,
}

impl GpuBackend {
    /// `reload` is called when the device was lost: it opens it again, loads the model and makes a runner with the same limits. Nobody
    /// else should hold the model, or its memory cannot be given back before.
    pub fn new(runner: Runner, reload: impl FnMut() -> model::Result<Runner> + Send + 'static) -> Self {
        let capacity = capacity(&runner);
        gpu::trim_malloc();
        // What its programs leave behind when they run first is to come.
        Self { runner: Some(runner), capacity, reload: Box::new(reload), tidied: 0 }
    }

    fn runner(&mut self) -> Result<&mut Runner, BackendError> {
        self.runner.as_mut().ok_or_else(|| BackendError::DeviceLost("the device is not open".into()))
    }

    /// Gives back what the driver's compiler has left in malloc's pool, if programs were recorded: after a step, since Mesa's CPU driver
    /// compiles a program when it runs first.
    fn tidy(&mut self) {
        let programs = self.runner.as_ref().map_or(0, |runner| runner.counters().programs);
        if programs != self.tidied {
            gpu::trim_malloc();
            self.tidied = programs;
        }
    }
}

fn capacity(runner: &Runner) -> Capacity {
    let limits = runner.cache().limits();
    Capacity {
        max_sequences: runner.max_sequences(),
        context_length: limits.context_length,
        vocab_size: runner.model().config.vocab,
        page_size: limits.page_size,
        pages: runner.cache().pages(),
        max_chunks_per_step: model::MAX_CHUNKS_PER_STEP as u32,
        prefix_cache: limits.prefix_cache,
    }
}

impl From<Error> for BackendError {
    fn from(error: Error) -> Self {
        match error {
            Error::NoFreePages { .. } => BackendError::NoFreePages,
            Error::NotFinite { .. } => BackendError::NonFiniteLogits,
            // What does not come back in time would not come back later either.
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

/// Gives back pages that were taken for positions which did not come.
fn give_back(runner: &Runner, sequence: &mut Sequence) {
    let len = sequence.len();
    runner.truncate(sequence, len);
}

impl Backend for GpuBackend {
    type Sequence = Sequence;

    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn free_pages(&self) -> u32 {
        self.runner.as_ref().map_or(0, |runner| runner.cache().free_pages().0 as u32)
    }

    fn cached_pages(&self) -> u32 {
        self.runner.as_ref().map_or(0, |runner| runner.cache().cached_pages().0 as u32)
    }

    fn shared_pages(&self, text: &[u32]) -> u32 {
        self.runner.as_ref().map_or(0, |runner| runner.cache().shared_pages(text))
    }

    fn start(&mut self, text: &[u32]) -> Result<(Sequence, usize), BackendError> {
        let sequence = self.runner()?.start_with(text)?;
        let held = sequence.len() as usize;
        Ok((sequence, held))
    }

    fn max_prefill_tokens(&self, decode_rows: usize, depth: u32, budget: Duration) -> usize {
        self.runner.as_ref().map_or(1, |runner| runner.max_prefill_tokens(decode_rows, depth, budget))
    }

    fn decode_batch_size(&self, decoding: usize) -> usize {
        self.runner.as_ref().map_or(decoding, |runner| runner.decode_batch_size(decoding))
    }

    fn decode_run_steps(&self, rows: usize) -> usize {
        self.runner.as_ref().map_or(1, |runner| runner.decode_run_steps(rows))
    }

    fn step_bytes(&self, depths: &[u32]) -> u64 {
        self.runner.as_ref().map_or(0, |runner| {
            let model = runner.model();
            let lines = depths.iter().map(|depth| runner.cache().bytes_read(&model.config, *depth));
            model.bytes_per_step() + lines.sum::<u64>()
        })
    }

    fn mixed(
        &mut self,
        decoding: &mut [DecodeRow<'_>],
        chunks: &mut [PrefillChunk<'_>],
    ) -> Result<MixedOutput, BackendError> {
        let runner = self.runner()?;
        let output = runner.mixed(decoding, chunks);
        if output.is_err() {
            decoding.iter_mut().for_each(|row| give_back(runner, row.sequence));
            chunks.iter_mut().for_each(|chunk| give_back(runner, chunk.sequence));
        }
        self.tidy();
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
            batch.iter_mut().for_each(|row| give_back(runner, row.sequence));
        }
        self.tidy();
        Ok(steps?)
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
        self.runner = None;
        gpu::trim_malloc();
        self.tidied = 0;
        let runner = (self.reload)()?;
        let found = capacity(&runner);
        if found != self.capacity {
            let text = format!("the device came back with {found:?} in place of {:?}", self.capacity);
            return Err(BackendError::Other(text));
        }
        self.runner = Some(runner);
        Ok(())
    }
}
