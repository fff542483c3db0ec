//! The norm of rows of the residual stream as int16, as a prologue of [`gemv`] computes it: for products of
//! more rows than fit the shared memory of a prologue. A row gets the same bits from both, so that it does not matter to
//! its logits how many rows a step has.

mod cases;
pub mod policy;
#[cfg(test)]
mod tests;

use gpu::{Address, Device, Error, Pipeline, Recorder, Result, View};

use crate::{
    Kernel, Vectors,
    matmul::gemv::{self, Norm, Sublayer, policy::Prologue},
    shaders::gemv_norm::{Constants, Push, TIERS},
    variant::Variant,
    vectors::VectorData,
};
use policy::Plan;

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "gemv_norm",
    about: "norm of the residual stream to int16, with a factor per row",
    variants: policy::variants,
    cases: cases::cases,
};

/// The kernel for one row length and norm.
pub struct GemvNorm {
    prologue: Prologue,
    k: usize,
    pipeline: Pipeline,
}

impl GemvNorm {
    /// Compiles the kernel for rows of `k` values, for a prologue that norms.
    pub fn new(device: &Device, prologue: Prologue, k: usize) -> Result<Self> {
        let possible = prologue.norms() && k > 0 && gemv::policy::has_prologue(device.caps(), k, 1);
        if !possible {
            let reason = format!("{prologue:?} of rows of {k} values is no prologue on this device");
            return Err(Error::InvalidUse { what: "gemv_norm".into(), reason });
        }
        let pipeline = variant(prologue, k, policy::plan(device.caps(), k)).pipeline(device)?;
        Ok(Self { prologue, k, pipeline })
    }

    /// Records the norm of all rows: int16 without the rows' factors to `y`, an f32 per row to `factors`.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        norm: &Norm,
        y: &Vectors,
        factors: &View,
    ) -> Result<()> {
        let wrong = |reason: &str| Err(Error::InvalidUse { what: name.to_string(), reason: reason.into() });
        let VectorData::Int16 { values, scales } = &y.data else {
            return wrong("the output must be int16");
        };
        if !norm.matches(self.prologue, self.k) {
            return wrong("the norm is not the one that the kernel was created for");
        }
        if (y.k, y.columns) != (self.k, norm.rows) || factors.len() < norm.rows as u64 * 4 {
            return wrong("the output has another shape than the rows, or there are too few factors");
        }
        let optional = |view: Option<&View>| view.cloned().map_or(Address::NONE, Address::from);
        let sublayer = norm.sublayer.as_ref();
        let stream = sublayer.and_then(|sublayer| sublayer.stream.as_ref());
        let push = Push {
            y: values.into(),
            y_scales: scales.into(),
            factors: factors.clone().into(),
            residual: norm.residual.clone().into(),
            sublayer: optional(sublayer.map(|Sublayer { output, .. }| output)),
            post_weight: optional(sublayer.and_then(|sublayer| sublayer.weight.as_ref())),
            weight: norm.weight.clone().into(),
            stream: optional(stream),
            experts: optional(sublayer.and_then(|sublayer| sublayer.residual_scale.as_ref())),
            k: self.k as u32,
            epsilon: norm.epsilon,
            writes_stream: u32::from(stream.is_some()),
            rows: norm.rows as u32,
        };
        recorder.dispatch(name, &self.pipeline, [norm.rows as u32, 1, 1], &push)
    }
}

fn variant(prologue: Prologue, k: usize, plan: Plan) -> Variant {
    let (number, sublayer_partials) = gemv::prologue_constants(prologue);
    let constants = Constants {
        threads: plan.threads,
        shared_x_quads: k.div_ceil(tensor::QUAD) as u32,
        prologue: number,
        sublayer_partials,
        wide_subgroups: gemv::has_wide_subgroups(plan.subgroup),
        residual_scaled: matches!(prologue, Prologue::AddAndNorm { scaled: true, .. }),
    };
    let label = format!("{k} values, {prologue:?}, {} threads", plan.threads);
    Variant::new(label, TIERS, gpu::Tier::T1, &constants, plan.subgroup)
}
