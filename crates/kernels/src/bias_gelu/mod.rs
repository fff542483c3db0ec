//! gelu(x + bias): the activation between the two products of an MLP without a gate, in image encoders (by tanh) and in
//! BERT (exact). Output in f32 or f16.
//!
//! One shader at tier T0 serves every device: it is limited by memory bandwidth.

mod cases;
pub mod policy;
pub mod reference;
#[cfg(test)]
mod tests;

use gpu::{Device, Error, Pipeline, Recorder, Result, Subgroup, Tier, View};

use crate::{
    Activations, Kernel, Target, Vectors,
    shaders::bias_gelu::{Constants, Push, TIERS},
    variant::Variant,
};
use policy::Plan;

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "bias_gelu",
    about: "GELU of a product and its bias",
    variants: policy::variants,
    cases: cases::cases,
};

/// How GELU is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gelu {
    /// ½ x (1 + tanh(√(2/π) (x + 0.044715 x³))), as image encoders.
    Tanh,
    /// x Φ(x) = ½ x (1 + erf(x / √2)), as BERT.
    Erf,
}

/// The kernel for one row length and output format.
pub struct BiasGelu {
    output: Activations,
    n: usize,
    plan: Plan,
    pipeline: Pipeline,
}

impl BiasGelu {
    /// Compiles the kernel for rows of `n` values, a multiple of 4, to f32 or f16.
    pub fn new(device: &Device, gelu: Gelu, output: Activations, n: usize) -> Result<Self> {
        let wrong = |reason: String| Error::InvalidUse { what: "bias_gelu".into(), reason };
        if !matches!(output, Activations::F32 | Activations::F16) {
            return Err(wrong(format!("the output must be f32 or f16, not {output}")));
        }
        let plan = policy::plan(device.caps(), n)
            .ok_or_else(|| wrong(format!("rows of {n} values: the length must be a multiple of 4")))?;
        Ok(Self { output, n, plan, pipeline: variant(gelu, output, plan).pipeline(device)? })
    }

    /// Records the kernel for the first `active` rows (one u32) of `x`, f32; `bias` is one row of f32, and `y` has one
    /// column per row.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        x: &View,
        bias: &View,
        y: &Vectors,
        active: &View,
    ) -> Result<()> {
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        if y.k != self.n {
            return wrong(format!(
                "the output has rows of {}, but the kernel was created for {}",
                y.k, self.n
            ));
        }
        let target = Target::vectors(y)?;
        target.check(name, self.output, self.n, y.columns)?;
        crate::row::check(name, &[("x", Some(x), self.n * y.columns), ("bias", Some(bias), self.n)])?;
        if active.len() < 4 {
            return wrong(format!("active has {} bytes, but needs 4", active.len()));
        }
        let push = Push {
            x: x.clone().into(),
            bias: bias.clone().into(),
            y: target.y.into(),
            active_rows: active.clone().into(),
            n: self.n as u32,
            y_stride: target.stride as u32,
        };
        recorder.dispatch(name, &self.pipeline, [y.columns as u32, self.plan.groups_per_row, 1], &push)
    }
}

fn variant(gelu: Gelu, output: Activations, plan: Plan) -> Variant {
    let Plan { threads, vec4s_per_thread, .. } = plan;
    let to = if output == Activations::F32 { String::new() } else { format!(" → {output}") };
    let name = if gelu == Gelu::Erf { "exact gelu" } else { "gelu" };
    let label = format!("{name}{to} {threads} threads × {}", vec4s_per_thread * 4);
    let constants = Constants { threads, vec4s_per_thread, output: output as u32, erf: gelu == Gelu::Erf };
    Variant::new(label, TIERS, Tier::T0, &constants, Subgroup::Any)
}
