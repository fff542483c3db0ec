//! Autotuning of matrix–vector products: times plans on this device, with this driver, on a model's own
//! weights.
//!
//! [`crate::matmul::gemv::policy`] selects a plan by rules that hold for many devices. When a loaded model
//! has products that are new to this device, a [`Tuning`] times a short list of other plans for each, and
//! saves the results in a file next to the cached pipelines: the next start only reads it.
//!
//! Only GPUs are tuned. A CPU driver takes seconds for what is to be timed, other processes disturb it, and
//! its policy has only one sensible plan, one row per lane. `INDRIK_TUNE=off` disables tuning: nothing is
//! timed, and earlier results are not used.
//!
//! Another number of slices sums a row in another order, so a tuned product may differ from an untuned one in
//! the last bits of an f32. A plan is therefore replaced only by one that is clearly faster, by the better of
//! two timings each, and then kept: later starts give the same results. Products that did not fit the time
//! budget are timed at the next start.

mod file;
mod product;
mod search;
#[cfg(test)]
mod tests;
mod timer;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    time::Duration,
};

use gpu::{AdapterKind, Caps, Device, Result};
use serde::Serialize;
use tensor::Layout;

pub use product::{Entry, Input, Product};

use crate::matmul::gemv::{
    MAX_COLUMNS,
    policy::{self, Plan, Shape},
};

/// Time budget for all products of a model, not counting compilation, which comes first.
pub const BUDGET: Duration = Duration::from_secs(2);

/// Pipelines that a core compiles in about 1.5 s: with few cores fewer plans are tried.
const PIPELINES_PER_CORE: usize = 15;
/// Minimum plans per shape nevertheless.
const MIN_PLANS: usize = 4;

/// The result of a tuning run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TuningReport {
    /// Time of compiling and timing.
    pub seconds: f64,
    /// Of which recording and compiling.
    pub compile_seconds: f64,
    /// The shapes that were timed.
    pub timed: Vec<Entry>,
    /// Shapes that did not fit the time budget: they keep the policy's plan.
    pub left: usize,
}

impl TuningReport {
    /// Number of replaced plans.
    pub fn changed(&self) -> usize {
        self.timed.iter().filter(|entry| entry.changed()).count()
    }
}

/// Runs some milliseconds of GPU work when the GPU is free for it, at once or later. Returns false, without having run it,
/// to end the tuning.
pub type Turn<'a> = dyn FnMut(&mut dyn FnMut() -> Result<()>) -> Result<bool> + 'a;

/// The tuned plans of one device.
#[derive(Clone, Debug, Default)]
pub struct Tuning {
    file: Option<PathBuf>,
    entries: HashMap<Shape, Entry>,
}

/// Whether products can and may be tuned on a device.
pub fn is_enabled(device: &Device) -> bool {
    device.info().kind != AdapterKind::Cpu && !device.info().compile_only && !is_off()
}

/// `INDRIK_TUNE=off`.
fn is_off() -> bool {
    std::env::var_os("INDRIK_TUNE").is_some_and(|value| value == "off")
}

impl Tuning {
    /// Loads the tuned plans of a device from its file; empty where there is none, and with
    /// `INDRIK_TUNE=off`. Entries that no longer match the policy are skipped.
    pub fn open(device: &Device) -> Self {
        if is_off() {
            return Self::default();
        }
        let Some(file) = device.cache_path("tuning", "json") else { return Self::default() };
        let entries = file::read(&file).into_iter().filter(|entry| is_valid(device.caps(), entry));
        Self { entries: entries.map(|entry| (entry.shape, entry)).collect(), file: Some(file) }
    }

    /// The plan for a shape: tuned, or else the policy's.
    pub fn plan(&self, caps: &Caps, shape: &Shape) -> Plan {
        self.entries.get(shape).map_or_else(|| policy::plan(caps, shape), |entry| entry.plan)
    }

    /// The shapes that were timed, in no order.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.entries.values()
    }

    /// The file that stores them, if any.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Times the products with new shapes until `budget` is used up, and saves the results. `progress` gets
    /// the number of shapes before the first is timed, and `turn` everything that runs on the GPU.
    pub fn tune(
        &mut self,
        device: &Device,
        products: &[Product<'_>],
        budget: Duration,
        progress: impl FnOnce(usize),
        turn: &mut Turn<'_>,
    ) -> Result<TuningReport> {
        let mut timer = timer::Timer::new(device, products, turn, |shape| {
            !self.entries.contains_key(shape) && policy::short_list(device.caps(), shape).len() > 1
        });
        let shapes = timer.shapes();
        if shapes.is_empty() {
            return Ok(TuningReport::default());
        }
        progress(shapes.len());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let max_plans = (PIPELINES_PER_CORE * cores / shapes.len()).max(MIN_PLANS);
        let list = |shape: &Shape| {
            let mut plans = policy::short_list(device.caps(), shape);
            plans.truncate(max_plans);
            plans
        };
        let timed = search::search(&shapes, list, budget, &mut timer)?;
        self.entries.extend(timed.iter().map(|entry| (entry.shape, *entry)));
        if let Some(file) = self.file.as_deref().filter(|_| !timed.is_empty()) {
            file::add(file, device.info(), &timed);
        }
        let (seconds, compile_seconds) = (timer.seconds(), timer.compile_seconds());
        Ok(TuningReport { seconds, compile_seconds, left: shapes.len() - timed.len(), timed })
    }
}

/// Whether this policy could have produced an entry on this device: the file is external input, and a plan
/// that does not fit its shape would compute nonsense.
fn is_valid(caps: &Caps, entry: &Entry) -> bool {
    let Entry { shape, policy, plan, .. } = entry;
    let Layout { scheme, rows, k } = shape.weights;
    Layout::new(scheme, rows, k).is_some()
        && (1..=MAX_COLUMNS).contains(&shape.columns)
        && [1, policy::splits(caps, &shape.weights)].contains(&shape.splits)
        && policy::plan(caps, shape) == *policy
        && policy::candidates(caps, shape).contains(plan)
}
