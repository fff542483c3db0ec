//! Per-layer embeddings (Gemma 4 E2B, E4B): the inputs of all layers from a row's token and embedding, and the gate
//! through which a layer adds its own to the residual stream.

mod cases;
pub mod reference;
#[cfg(test)]
mod tests;

use gpu::{Caps, Device, Error, Pipeline, Recorder, Result, Subgroup, Tier, View};

use crate::{
    Activations, Kernel, Target, Vectors,
    shaders::{per_layer_gate, per_layer_inputs},
    variant::Variant,
};

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "per_layer",
    about: "per-layer embeddings: inputs and gate",
    variants,
    cases: cases::cases,
};

/// The dimensions of a model's per-layer embeddings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Length of a row of the residual stream.
    pub hidden: usize,
    /// Length of a layer's input.
    pub width: usize,
    /// Layers.
    pub layers: usize,
    /// Epsilon of the norms.
    pub epsilon: f32,
}

/// Computes the inputs of all layers.
pub struct PerLayerInputs {
    shape: Shape,
    pipeline: Pipeline,
}

/// The buffers of [`PerLayerInputs`].
pub struct InputOperands {
    /// f32, `[row][hidden]`: the embeddings, with their factor.
    pub embedding: View,
    /// f32, `[row][layer][width]`: the projection of the normed embeddings.
    pub projected: View,
    /// f32, `[row][layer][width]`: the per-layer embeddings of the tokens, with their factor.
    pub token: View,
    /// f32, one per value of a layer's input: the weight of the projection's norm.
    pub weight: View,
    /// One u32: the number of active rows.
    pub active: View,
    /// f32, `[layer][row][width]`, written.
    pub inputs: View,
}

impl PerLayerInputs {
    /// Compiles the kernel.
    pub fn new(device: &Device, shape: Shape) -> Result<Self> {
        Self::at_tier(device, shape, best_tier(device.caps()))
    }

    fn at_tier(device: &Device, shape: Shape, tier: Tier) -> Result<Self> {
        Ok(Self { shape, pipeline: inputs_variant(device.caps(), tier).pipeline(device)? })
    }

    /// Records the kernel for up to `rows` rows.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        rows: usize,
        operands: &InputOperands,
    ) -> Result<()> {
        let Shape { hidden, width, layers, epsilon } = self.shape;
        let InputOperands { embedding, projected, token, weight, active, inputs } = operands;
        let all = rows * layers * width;
        check(
            name,
            &[
                ("embedding", embedding, rows * hidden),
                ("projected", projected, all),
                ("token", token, all),
                ("weight", weight, width),
                ("active", active, 1),
                ("inputs", inputs, all),
            ],
        )?;
        let push = per_layer_inputs::Push {
            embedding: embedding.clone().into(),
            projected: projected.clone().into(),
            token: token.clone().into(),
            weight: weight.clone().into(),
            inputs: inputs.clone().into(),
            active_rows: active.clone().into(),
            hidden: hidden as u32,
            width: width as u32,
            layers: layers as u32,
            rows: rows as u32,
            epsilon,
        };
        recorder.dispatch(name, &self.pipeline, [layers as u32, rows as u32, 1], &push)
    }
}

/// Computes a layer's gated input.
pub struct PerLayerGate {
    shape: Shape,
    pipeline: Pipeline,
}

/// The buffers of [`PerLayerGate`].
pub struct GateOperands<'a> {
    /// f32, `[row][hidden]`: the residual stream.
    pub residual: View,
    /// f32, `[row][width]`: the gate's projection of the normed residual stream.
    pub gate: View,
    /// f32, `[row][width]`: the layer's inputs.
    pub inputs: View,
    /// One u32: the number of active rows.
    pub active: View,
    /// Columns of `width` values in f32, written.
    pub y: &'a Vectors,
}

impl PerLayerGate {
    /// Compiles the kernel.
    pub fn new(device: &Device, shape: Shape) -> Result<Self> {
        Self::at_tier(device, shape, best_tier(device.caps()))
    }

    fn at_tier(device: &Device, shape: Shape, tier: Tier) -> Result<Self> {
        Ok(Self { shape, pipeline: gate_variant(device.caps(), tier).pipeline(device)? })
    }

    /// Records the kernel for as many rows as `y` has columns.
    pub fn record(&self, recorder: &mut Recorder, name: &str, operands: &GateOperands<'_>) -> Result<()> {
        let Shape { hidden, width, epsilon, .. } = self.shape;
        let GateOperands { residual, gate, inputs, active, y } = operands;
        let rows = y.columns;
        check(
            name,
            &[
                ("residual", residual, rows * hidden),
                ("gate", gate, rows * width),
                ("inputs", inputs, rows * width),
                ("active", active, 1),
            ],
        )?;
        let target = Target::vectors(y)?;
        target.check(name, Activations::F32, width, rows)?;
        let push = per_layer_gate::Push {
            residual: residual.clone().into(),
            gate: gate.clone().into(),
            inputs: inputs.clone().into(),
            y: target.y.into(),
            active_rows: active.clone().into(),
            hidden: hidden as u32,
            width: width as u32,
            y_stride: target.stride as u32,
            epsilon,
        };
        recorder.dispatch(name, &self.pipeline, [rows as u32, 1, 1], &push)
    }
}

fn check(name: &str, buffers: &[(&str, &View, usize)]) -> Result<()> {
    match buffers.iter().find(|(_, view, words)| view.len() < *words as u64 * 4) {
        None => Ok(()),
        Some((buffer, view, words)) => {
            let reason = format!("{buffer} has {} bytes, but {} are needed", view.len(), words * 4);
            Err(Error::InvalidUse { what: name.to_string(), reason })
        }
    }
}

fn best_tier(caps: &Caps) -> Tier {
    if caps.tier() >= Some(Tier::T1) { Tier::T1 } else { Tier::T0 }
}

/// Threads per workgroup, a power of two: a layer's input has 256 values.
fn threads(caps: &Caps) -> u32 {
    128.min(caps.max_threads)
}

fn inputs_variant(caps: &Caps, tier: Tier) -> Variant {
    let constants = per_layer_inputs::Constants { threads: threads(caps) };
    Variant::new("inputs".into(), per_layer_inputs::TIERS, tier, &constants, Subgroup::Any)
}

fn gate_variant(caps: &Caps, tier: Tier) -> Variant {
    let constants = per_layer_gate::Constants { threads: threads(caps) };
    Variant::new("gate".into(), per_layer_gate::TIERS, tier, &constants, Subgroup::Any)
}

fn variants(caps: &Caps) -> Vec<Variant> {
    let tier = best_tier(caps);
    vec![inputs_variant(caps, tier), gate_variant(caps, tier)]
}
