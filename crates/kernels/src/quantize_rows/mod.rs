//! f32 activations as int16 ones, for a product that takes them so: what attention gives out.

pub(crate) mod cases;
pub mod policy;
pub mod reference;
#[cfg(test)]
mod tests;

use gpu::{Device, Error, Pipeline, Recorder, Result, View};

use crate::{
    HALF_GROUP, Kernel, Vectors,
    shaders::quantize_rows::{Constants, Push, TIERS},
    variant::Variant,
    vectors::VectorData,
};
use policy::Plan;

/// For the self-test and the compile checks.
pub static KERNEL: Kernel =
    Kernel { name: "quantize_rows", about: "f32 activations as int16", variants: policy::variants, cases: cases::cases };

/// The kernel for rows of one length.
pub struct QuantizeRows {
    k: usize,
    plan: Plan,
    pipeline: Pipeline,
}

impl QuantizeRows {
    /// Compiles it for rows of `k` values, a multiple of 16.
    pub fn new(device: &Device, k: usize) -> Result<Self> {
        Self::with_plan(device, k, policy::plan(device.caps()))
    }

    /// The same with a plan given.
    pub fn with_plan(device: &Device, k: usize, plan: Plan) -> Result<Self> {
        if k == 0 || !k.is_multiple_of(HALF_GROUP) {
            let reason = format!("rows of {k} values do not divide into half groups of {HALF_GROUP}");
            return Err(Error::InvalidUse { what: "quantize_rows".into(), reason });
        }
        Ok(Self { k, plan, pipeline: variant(plan).pipeline(device)? })
    }

    /// Records it for the first `active` rows (one u32) of `x`, f32; `y`, int16, has no more columns than `x`.
    pub fn record(&self, recorder: &mut Recorder, name: &str, x: &Vectors, y: &Vectors, active: &View) -> Result<()> {
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        let (VectorData::F32(floats), VectorData::Int16 { values, scales }) = (&x.data, &y.data) else {
            return wrong(format!("{} becomes {}: it must be f32 that becomes int16", x.kind(), y.kind()));
        };
        if x.k != self.k || y.k != self.k || x.columns < y.columns || active.len() < 4 {
            return wrong(format!(
                "{} columns of {} become {} of {} in a kernel for {}, active has {} bytes",
                x.columns,
                x.k,
                y.columns,
                y.k,
                self.k,
                active.len()
            ));
        }
        let push = Push {
            x: floats.into(),
            y: values.into(),
            y_scales: scales.into(),
            in_use: active.clone().into(),
            k: self.k as u32,
            stride: y.stride() as u32,
            plane_words: (y.stride() * y.columns / 4) as u32,
        };
        recorder.dispatch(name, &self.pipeline, [self.plan.groups(y.stride()), y.columns as u32, 1], &push)
    }
}

fn variant(plan: Plan) -> Variant {
    let label = format!("f32 → int16, {} threads", plan.threads);
    Variant::new(label, TIERS, plan.tier, &Constants { threads: plan.threads }, plan.subgroup)
}
