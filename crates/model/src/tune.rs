//! Autotuning of the matrix–vector products that a model decodes with: see [`kernels::matmul::tuning`].

use std::time::Duration;

use gpu::Recorder;
use kernels::matmul::tuning::{self, Product, Tuning, TuningReport};

use crate::{
    DEFAULT_PAGE_SIZE, Limits, Model, Result, decoder,
    kv_cache::KvCache,
    state::{Batch, HostArenas, StepState},
    step::{KvSplits, Outputs, Scratch, Step, StepBuffers},
};

/// When to autotune.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TuneMode {
    /// On GPUs, unless `INDRIK_TUNE=off`.
    Auto,
    /// On any device: for tests.
    Always,
}

impl Model {
    /// Autotuned plans of matrix–vector products on this device.
    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Autotunes the matrix–vector products of decoding that are not known for this device, on the model's
    /// own weights; programs recorded from now on use the results. `progress` receives the number of
    /// products, if there are any.
    pub fn tune(
        &mut self,
        mode: TuneMode,
        budget: Duration,
        progress: impl FnOnce(usize),
    ) -> Result<TuningReport> {
        let enabled = tuning::is_enabled(&self.device) && self.device.caps().timestamp_period_ns.is_some();
        if mode == TuneMode::Auto && !enabled {
            return Ok(TuningReport::default());
        }
        let mut tuning = std::mem::take(&mut self.tuning);
        let tuned =
            self.with_products(|products| Ok(tuning.tune(&self.device, products, budget, progress)?));
        self.tuning = tuning;
        tuned
    }

    /// The products of a decode step of one row, in order, on buffers like a runner's.
    fn with_products<T>(&self, work: impl FnOnce(&[Product<'_>]) -> Result<T>) -> Result<T> {
        let context = DEFAULT_PAGE_SIZE.min(self.config.max_positions);
        let limits = Limits { prefill_chunk: 1, ..Limits::new(self.device.info(), &self.config, 1, context) };
        let cache = KvCache::new(&self.device, &self.config, limits)?;
        let mut arenas = HostArenas::new(&self.device);
        let state = StepState::new(&mut arenas, 1, self.attention_variants().len())?;
        let (scratch, outputs) = (Scratch::new(self, 1)?, Outputs::new(self, 1)?);
        let mut kv_splits = KvSplits::default();
        kv_splits.prepare(self, limits, Batch::Decode, 1)?;
        // Everything but products is recorded here; never sealed, the recorder compiles nothing.
        let mut recorder: Recorder = self.device.recorder()?;
        let buffers = StepBuffers {
            model: self,
            cache: &cache,
            state: &state,
            scratch: &scratch,
            kv_splits: &kv_splits,
            outputs: Some(&outputs),
        };
        let mut step = Step::listing_products(buffers, Batch::Decode, &mut recorder);
        decoder::layers(&mut step, 0..self.config.layers)?;
        decoder::head(&mut step)?;
        work(&step.into_products())
    }
}
