//! The output of a dense block and that of experts beside it, each normed, added up (Gemma 4).

mod cases;
pub mod reference;
#[cfg(test)]
mod tests;

use gpu::{Address, Caps, Device, Error, Pipeline, Recorder, Result, Subgroup, Tier, View};

use crate::{
    Kernel,
    shaders::combine::{Constants, Push, TIERS},
    variant::Variant,
};

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "combine",
    about: "sum of a dense block and experts, each normed",
    variants,
    cases: cases::cases,
};

/// The rows of both blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Length of a row.
    pub n: usize,
    /// Split-K partial sums of the dense block's output, at least 1.
    pub dense_partials: u32,
    /// Outputs of experts per row, at least 1.
    pub expert_partials: u32,
    /// Each output of an expert has a weight.
    pub weighted: bool,
    /// Epsilon of the norms.
    pub epsilon: f32,
}

/// The kernel for one shape.
pub struct Combine {
    shape: Shape,
    pipeline: Pipeline,
}

/// The buffers of one call, all f32 except `active`.
pub struct Operands {
    /// `[row][partial sum][n]`: the dense block's output.
    pub dense: View,
    /// `[row][expert][n]`: the experts' outputs.
    pub experts: View,
    /// `[row][expert]`: their weights, if the shape has them.
    pub expert_weights: Option<View>,
    /// Weight of the dense block's norm.
    pub dense_norm: View,
    /// Weight of the experts' norm.
    pub experts_norm: View,
    /// One u32: the number of active rows.
    pub active: View,
    /// `[row][n]`, written.
    pub y: View,
}

impl Combine {
    /// Compiles the kernel.
    pub fn new(device: &Device, shape: Shape) -> Result<Self> {
        Self::at_tier(device, shape, best_tier(device.caps()))
    }

    fn at_tier(device: &Device, shape: Shape, tier: Tier) -> Result<Self> {
        let caps = device.caps();
        if shape.n == 0
            || shape.n > max_length(caps)
            || shape.dense_partials == 0
            || shape.expert_partials == 0
        {
            let reason =
                format!("{shape:?}: n must be from 1 to {}, the others at least 1", max_length(caps));
            return Err(Error::InvalidUse { what: "combine".into(), reason });
        }
        Ok(Self { shape, pipeline: variant(caps, &shape, tier).pipeline(device)? })
    }

    /// Records the kernel for up to `rows` rows.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        rows: usize,
        operands: &Operands,
    ) -> Result<()> {
        let Shape { n, dense_partials, expert_partials, weighted, epsilon } = self.shape;
        let Operands { dense, experts, expert_weights, dense_norm, experts_norm, active, y } = operands;
        let lengths = [
            ("dense", dense, rows * dense_partials as usize * n),
            ("experts", experts, rows * expert_partials as usize * n),
            ("dense_norm", dense_norm, n),
            ("experts_norm", experts_norm, n),
            ("active", active, 1),
            ("y", y, rows * n),
        ];
        if let Some((buffer, view, words)) =
            lengths.iter().find(|(_, view, words)| view.len() < *words as u64 * 4)
        {
            let reason = format!("{buffer} has {} bytes, but {} are needed", view.len(), words * 4);
            return Err(Error::InvalidUse { what: name.to_string(), reason });
        }
        let weights_fit =
            expert_weights.as_ref().map(|view| view.len() >= (rows * expert_partials as usize * 4) as u64);
        if weights_fit != weighted.then_some(true) {
            let reason = "weights of experts must be given if and only if the shape has them, one for each";
            return Err(Error::InvalidUse { what: name.to_string(), reason: reason.into() });
        }
        let push = Push {
            dense: dense.clone().into(),
            experts: experts.clone().into(),
            expert_weights: expert_weights.clone().map_or(Address::NONE, Address::from),
            dense_weight: dense_norm.clone().into(),
            experts_weight: experts_norm.clone().into(),
            y: y.clone().into(),
            active_rows: active.clone().into(),
            n: n as u32,
            epsilon,
        };
        recorder.dispatch(name, &self.pipeline, [rows as u32, 1, 1], &push)
    }
}

fn best_tier(caps: &Caps) -> Tier {
    if caps.tier() >= Some(Tier::T1) { Tier::T1 } else { Tier::T0 }
}

/// Maximum values per thread: more would not fit the registers.
const MAX_VALUES_PER_THREAD: usize = 16;

/// Threads per workgroup, a power of two.
fn threads(caps: &Caps) -> u32 {
    1 << 512.min(caps.max_threads).ilog2()
}

fn max_length(caps: &Caps) -> usize {
    threads(caps) as usize * MAX_VALUES_PER_THREAD
}

fn variant(caps: &Caps, shape: &Shape, tier: Tier) -> Variant {
    let threads = threads(caps);
    let values_per_thread = shape.n.div_ceil(threads as usize) as u32;
    let constants = Constants {
        threads,
        values_per_thread,
        dense_partials: shape.dense_partials,
        expert_partials: shape.expert_partials,
        weighted: shape.weighted,
    };
    let label = format!(
        "{} values, {} + {}{} partials, {threads} threads",
        shape.n,
        shape.dense_partials,
        shape.expert_partials,
        if shape.weighted { " weighted" } else { "" }
    );
    Variant::new(label, TIERS, tier, &constants, Subgroup::Any)
}

/// Gemma 4 26B-A4B, with and without split-K, and with experts that were added up.
fn variants(caps: &Caps) -> Vec<Variant> {
    let shape = |dense_partials, expert_partials| {
        let weighted = expert_partials > 1;
        Shape { n: 2816, dense_partials, expert_partials, weighted, epsilon: 1e-6 }
    };
    [(1, 8), (4, 8), (4, 1)]
        .map(|(dense, experts)| variant(caps, &shape(dense, experts), best_tier(caps)))
        .into()
}
