//! Autotuning of the matrix–vector products that a model decodes with: see [`kernels::matmul::tuning`].

use std::{
    sync::{
        PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use gpu::{Caps, Device, Recorder};
use kernels::matmul::{
    gemv::policy::{Plan, Shape},
    tuning::{self, Entry, Product, Tuning, TuningReport, Turn},
};

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

/// The tuned plans of a device. They may be tuned while programs are recorded.
pub(crate) struct TunedPlans {
    plans: RwLock<Tuning>,
    /// Changes whenever plans do.
    version: AtomicU64,
}

impl TunedPlans {
    /// Those that the device's file has.
    pub fn open(device: &Device) -> Self {
        Self { plans: RwLock::new(Tuning::open(device)), version: AtomicU64::new(0) }
    }

    /// The plan for a shape: tuned, or else the policy's.
    pub fn plan(&self, caps: &Caps, shape: &Shape) -> Plan {
        self.plans.read().unwrap_or_else(PoisonError::into_inner).plan(caps, shape)
    }
}

/// Maximum rows of a step whose matrix–vector products are tuned.
pub(crate) const TUNED_ROWS: usize = 2;

impl Model {
    /// The shapes of matrix–vector products that were timed on this device, in no order.
    pub fn tuned_shapes(&self) -> Vec<Entry> {
        let plans = self.tuning.plans.read().unwrap_or_else(PoisonError::into_inner);
        plans.entries().copied().collect()
    }

    /// Changes whenever tuned plans do: a program recorded before may have older ones.
    pub(crate) fn tuning_version(&self) -> u64 {
        self.tuning.version.load(Ordering::Acquire)
    }

    /// Autotunes the matrix–vector products of decoding that are not known for this device, on the model's
    /// own weights; programs recorded from now on use the results. `progress` receives the number of
    /// products, if there are any.
    pub fn tune(
        &self,
        mode: TuneMode,
        budget: Duration,
        progress: impl FnOnce(usize),
    ) -> Result<TuningReport> {
        self.tune_in_turns(mode, budget, progress, &mut |work| work().map(|()| true))
    }

    /// The same beside requests. Pipelines are compiled at once; whatever runs on the GPU, some milliseconds at a time,
    /// is passed to `turn`, which runs it when the GPU is free, or returns false to end the tuning.
    pub fn tune_in_turns(
        &self,
        mode: TuneMode,
        budget: Duration,
        progress: impl FnOnce(usize),
        turn: &mut Turn<'_>,
    ) -> Result<TuningReport> {
        let enabled = tuning::is_enabled(&self.device) && self.device.caps().timestamp_period_ns.is_some();
        if mode == TuneMode::Auto && !enabled {
            return Ok(TuningReport::default());
        }
        // Timed on a copy: programs are recorded meanwhile.
        let mut tuning = self.tuning.plans.read().unwrap_or_else(PoisonError::into_inner).clone();
        let tuned = self.with_products(1, |one_row| {
            self.with_products(TUNED_ROWS, |two_rows| {
                let mut products: Vec<Product<'_>> = one_row;
                products.extend(two_rows);
                Ok(tuning.tune(&self.device, &products, budget, progress, turn)?)
            })
        })?;
        if !tuned.timed.is_empty() {
            *self.tuning.plans.write().unwrap_or_else(PoisonError::into_inner) = tuning;
            self.tuning.version.fetch_add(1, Ordering::Release);
        }
        Ok(tuned)
    }

    /// The matrix–vector products of a decode step of this many rows, in order, on buffers like a runner's.
    fn with_products<T>(&self, rows: usize, work: impl FnOnce(Vec<Product<'_>>) -> Result<T>) -> Result<T> {
        let context = DEFAULT_PAGE_SIZE.min(self.config.max_positions);
        let limits = Limits::new(self.device.info(), &self.config, rows as u32, context);
        let limits = Limits { prefill_chunk: 1, ..limits };
        let cache = KvCache::new(&self.device, &self.config, limits)?;
        let mut arenas = HostArenas::new(&self.device);
        let state = StepState::new(&mut arenas, limits.max_sequences, self.attention_variants().len())?;
        let (scratch, outputs) = (Scratch::new(self, rows, rows)?, Outputs::new(self, rows, rows)?);
        let mut kv_splits = KvSplits::default();
        kv_splits.prepare(self, limits, Batch::Decode, rows)?;
        // Everything but products is recorded here; never sealed, the recorder compiles nothing.
        let mut recorder: Recorder = self.device.recorder()?;
        let buffers = StepBuffers {
            model: self,
            cache: &cache,
            state: &state,
            scratch: &scratch,
            kv_splits: &kv_splits,
            outputs: Some(&outputs),
            soft_tokens: None,
            attention_cuts: None,
        };
        let mut step = Step::listing_products(buffers, Batch::Decode, &mut recorder);
        decoder::layers(&mut step, 0..self.config.layers)?;
        decoder::head(&mut step)?;
        work(step.into_products())
    }
}
