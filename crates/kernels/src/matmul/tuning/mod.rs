//! Plans of matrix–vector products that were found by timing them: on this device, with this driver, on a model's own weights.
//!
//! [`crate::matmul::gemv::policy`] chooses a plan by rules that hold for many devices. When a model is loaded that has products this
//! device has not met, a [`Tuning`] times a short list of other plans for each of them, and keeps what it found in a file beside the
//! compiled pipelines: the next start only reads it.
//!
//! Only products of a GPU are tuned. A CPU driver takes seconds for what is to be timed, other processes disturb it, and its
//! policy has one plan worth having, a row a lane. `INDRIK_TUNE=off` leaves it all to the policy: nothing is timed, and what was
//! found before is not used.
//!
//! Another number of slices sums a row in another order, so that a tuned product may differ from an untuned one in the last bits
//! of an f32. A plan is therefore replaced only by one that is clearly faster, by the better of two times each, and then kept: later starts
//! give the same results. Products that the time did not suffice for are timed at the next start.

mod file;
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
use serde::{Deserialize, Serialize};

use crate::{
    Layout, Matrix, Target, Vectors,
    matmul::gemv::{
        self, MAX_COLUMNS, Source,
        policy::{self, Plan, Shape},
    },
};

/// Time that timing may take for all products of a model; compiling what is timed comes before.
pub const BUDGET: Duration = Duration::from_secs(2);

/// Pipelines that a core compiles in about 1.5 s: with few cores fewer plans are tried.
const PIPELINES_PER_CORE: usize = 15;
/// Plans that are tried for a shape even so.
const FEWEST_PLANS: usize = 4;

/// What x of a product is, or is made of.
pub enum Input<'a> {
    /// Itself; timing fills it with random values.
    Vectors(&'a Vectors),
    /// A norm that the product computes. Timing fills what it reads with random values, and writes the stream as decoding does.
    Norm(gemv::Norm),
}

impl Input<'_> {
    /// As the kernel takes it.
    pub fn source(&self) -> Source<'_> {
        match self {
            Input::Vectors(x) => Source::Vectors(x),
            Input::Norm(norm) => Source::Norm(norm),
        }
    }
}

/// One product, as a program makes it.
pub struct Product<'a> {
    /// What is multiplied, and how.
    pub shape: Shape,
    /// The weights.
    pub matrix: &'a Matrix,
    /// The activations.
    pub x: Input<'a>,
    /// Where the result goes.
    pub target: Target,
}

/// What was found for one shape.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// What is multiplied.
    pub shape: Shape,
    /// What the policy chose when it was timed; with another choice of the policy the entry no longer holds.
    pub policy: Plan,
    /// What is used: the policy's plan, or a faster one.
    pub plan: Plan,
    /// GPU time of one product by the policy's plan, in microseconds.
    pub policy_us: f64,
    /// The same by the plan that is used.
    pub plan_us: f64,
}

impl Entry {
    /// Whether the policy's plan was replaced.
    pub fn changed(&self) -> bool {
        self.plan != self.policy
    }
}

/// What a tuning did.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TuningReport {
    /// By the clock, compiling included.
    pub seconds: f64,
    /// Of it, recording and compiling.
    pub compile_seconds: f64,
    /// The shapes that were timed.
    pub timed: Vec<Entry>,
    /// Shapes that the time did not suffice for: they keep the policy's plan.
    pub left: usize,
}

impl TuningReport {
    /// How many plans were replaced.
    pub fn changed(&self) -> usize {
        self.timed.iter().filter(|entry| entry.changed()).count()
    }
}

/// The plans of one device.
#[derive(Debug, Default)]
pub struct Tuning {
    file: Option<PathBuf>,
    entries: HashMap<Shape, Entry>,
}

/// Whether products are worth timing on such a device, and may be.
pub fn is_enabled(device: &Device) -> bool {
    device.info().kind != AdapterKind::Cpu && !device.info().compile_only && !is_off()
}

/// `INDRIK_TUNE=off`.
fn is_off() -> bool {
    std::env::var_os("INDRIK_TUNE").is_some_and(|value| value == "off")
}

impl Tuning {
    /// What is known of a device, from its file; nothing where there is none, and nothing with `INDRIK_TUNE=off`. Entries that no
    /// longer fit the policy are passed over.
    pub fn open(device: &Device) -> Self {
        if is_off() {
            return Self::default();
        }
        let Some(file) = device.cache_path("tuning", "json") else { return Self::default() };
        let entries = file::read(&file).into_iter().filter(|entry| holds(device.caps(), entry));
        Self { entries: entries.map(|entry| (entry.shape, entry)).collect(), file: Some(file) }
    }

    /// The plan for a shape: what was found, else the policy's.
    pub fn plan(&self, caps: &Caps, shape: &Shape) -> Plan {
        self.entries.get(shape).map_or_else(|| policy::plan(caps, shape), |entry| entry.plan)
    }

    /// The shapes that were timed, in no order.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.entries.values()
    }

    /// Where they are kept, if anywhere.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Times the products whose shape is not known yet and that are worth it, until `budget` is used up, and keeps what was found. `progress` is told how
    /// many shapes there are before the first is timed.
    pub fn tune(
        &mut self,
        device: &Device,
        products: &[Product<'_>],
        budget: Duration,
        progress: impl FnOnce(usize),
    ) -> Result<TuningReport> {
        let mut timer = timer::Timer::new(device, products, |shape| {
            !self.entries.contains_key(shape) && policy::short_list(device.caps(), shape).len() > 1
        });
        let shapes = timer.shapes();
        if shapes.is_empty() {
            return Ok(TuningReport::default());
        }
        progress(shapes.len());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let most = (PIPELINES_PER_CORE * cores / shapes.len()).max(FEWEST_PLANS);
        let list = |shape: &Shape| {
            let mut plans = policy::short_list(device.caps(), shape);
            plans.truncate(most);
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

/// Whether an entry of a file is one that this policy could have made on this device: it came from outside, and a plan that does
/// not fit its shape would compute nonsense.
fn holds(caps: &Caps, entry: &Entry) -> bool {
    let Entry { shape, policy, plan, .. } = entry;
    let Layout { scheme, rows, k } = shape.weights;
    Layout::new(scheme, rows, k).is_some()
        && (1..=MAX_COLUMNS).contains(&shape.columns)
        && [1, policy::splits(caps, &shape.weights)].contains(&shape.splits)
        && policy::plan(caps, shape) == *policy
        && policy::candidates(caps, shape).contains(plan)
}
