//! Selects the experts of each row, and their weights.

mod cases;
pub mod policy;
pub mod reference;
#[cfg(test)]
mod tests;

use gpu::{Address, Device, Error, Pipeline, Recorder, Result, Tier, View};

use super::MAX_EXPERTS_PER_TOKEN;
use crate::{
    Activations, HALF_GROUP, Kernel, VectorData, Vectors,
    shaders::router::{Constants, Push, TIERS},
    variant::Variant,
};
use policy::Plan;

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "router",
    about: "expert routing: norm, scores, softmax, top k",
    variants: policy::variants,
    cases: cases::cases,
};

/// Dimensions and options of the routing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Values per row, a multiple of 4.
    pub k: usize,
    /// Experts to select from.
    pub experts: usize,
    /// Experts to select per row.
    pub per_token: usize,
    /// Whether the weights of a row's experts add up to 1; otherwise those of all experts do.
    pub renormalize: bool,
    /// Whether the weights are multiplied by a factor per expert (Gemma 4).
    pub scaled: bool,
    /// Added to the mean square of a row.
    pub epsilon: f32,
    /// A block to add to x first.
    pub add: Option<AddShape>,
}

/// A block's output that is added to the residual stream before experts are selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddShape {
    /// Split-K partial sums of the block, at least 1.
    pub partials: u32,
    /// Storage format of the sum's norm: f32, int16 or f16.
    pub output: Activations,
}

/// Maximum experts to select from.
pub const MAX_EXPERTS: usize = 512;

/// The buffers of one call.
pub struct Operands<'a> {
    /// f32, `[row][k]`, before the norm.
    pub x: View,
    /// f32, `[expert][k]`, each multiplied by the norm's weight.
    pub w: View,
    /// f32 per expert: the factors of the selected experts' weights, if the shape has them.
    pub scales: Option<View>,
    /// One u32: the number of active rows. The experts of the others are [`super::NO_EXPERT`].
    pub active: View,
    /// Scratch memory: [`Router::scratch_bytes`], initially zero.
    pub scratch: View,
    /// u32, `[row][per_token]`, written: the experts, by decreasing weight.
    pub selected: View,
    /// f32, `[row][per_token]`, written: their weights.
    pub weights: View,
    /// The block to add to x, if the shape has one.
    pub add: Option<Add<'a>>,
}

/// The buffers of an addition before the selection.
pub struct Add<'a> {
    /// f32, `[row][partial sum][k]`: the block to add to x.
    pub block: View,
    /// f32, `[row][k]`, written: the sum. Not x, which other workgroups still read.
    pub stream: View,
    /// f32 per value: the weight of the sum's norm.
    pub weight: View,
    /// The norm of the sum, written, a column per row.
    pub y: &'a Vectors,
}

/// The kernel for one shape.
pub struct Router {
    shape: Shape,
    plan: Plan,
    pipeline: Pipeline,
}

impl Router {
    /// Selects the variant for steps of `rows` rows and compiles it.
    pub fn new(device: &Device, shape: Shape, rows: usize) -> Result<Self> {
        Self::with_plan(device, shape, policy::plan(device.caps(), rows))
    }

    /// The same with a given plan.
    pub fn with_plan(device: &Device, shape: Shape, plan: Plan) -> Result<Self> {
        let Shape { k, experts, per_token, .. } = shape;
        if !k.is_multiple_of(4)
            || experts > MAX_EXPERTS
            || !(1..=experts.min(MAX_EXPERTS_PER_TOKEN)).contains(&per_token)
        {
            let reason = format!(
                "{per_token} of {experts} experts for rows of {k} values: at most {MAX_EXPERTS_PER_TOKEN} of {MAX_EXPERTS} \
                 experts, and rows of a multiple of 4 values, are supported"
            );
            return Err(Error::InvalidUse { what: "router".into(), reason });
        }
        if let Some(AddShape { partials, output }) = shape.add {
            let multiple = if output == Activations::Int16 { HALF_GROUP } else { 4 };
            if plan.tier < Tier::T1
                || partials == 0
                || output == Activations::Int8
                || !k.is_multiple_of(multiple)
            {
                let reason = format!(
                    "adding {partials} partial sums of {k} values, to {output}, at {}; it needs tier T1, and f32, f16 or int16",
                    plan.tier
                );
                return Err(Error::InvalidUse { what: "router".into(), reason });
            }
        }
        let pipeline = variant(plan, &shape).pipeline(device)?;
        Ok(Self { shape, plan, pipeline })
    }

    /// Scratch memory for this many rows: a counter per tile of rows, and the scores.
    pub fn scratch_bytes(&self, rows: usize) -> u64 {
        self.counter_bytes(rows) + (rows * self.shape.experts * 4) as u64
    }

    fn counter_bytes(&self, rows: usize) -> u64 {
        (rows.div_ceil(self.plan.rows as usize) as u64 * 4).next_multiple_of(16)
    }

    /// Whether an addition is that of the shape, for this many rows.
    fn is_addition(&self, add: Option<&Add<'_>>, x: &View, rows: usize) -> bool {
        match (add, self.shape.add) {
            (None, None) => true,
            (Some(Add { block, stream, weight, y }), Some(AddShape { partials, output })) => {
                let row = self.shape.k as u64 * 4;
                let is_long =
                    |view: &View, rows: u64| view.len() >= row * rows && view.address().is_multiple_of(16);
                is_long(block, rows as u64 * u64::from(partials))
                    && is_long(stream, rows as u64)
                    && is_long(weight, 1)
                    && stream.address() != x.address()
                    && (y.k, y.kind()) == (self.shape.k, output)
                    && y.columns >= rows
            }
            _ => false,
        }
    }

    /// Records the kernel for up to `rows` rows.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        rows: usize,
        operands: &Operands<'_>,
    ) -> Result<()> {
        let Operands { x, w, scales, active, scratch, selected, weights, add } = operands;
        let Shape { k, experts, per_token, epsilon, .. } = self.shape;
        let too_short = |view: &View, words: usize| view.len() < words as u64 * 4;
        let short = too_short(x, rows * k)
            || too_short(w, experts * k)
            || scales.as_ref().is_some_and(|scales| too_short(scales, experts))
            || too_short(active, 1)
            || too_short(selected, rows * per_token)
            || too_short(weights, rows * per_token)
            || scratch.len() < self.scratch_bytes(rows);
        if short || [x, w].iter().any(|view| !view.address().is_multiple_of(16)) {
            let reason = format!(
                "an operand is too short for {rows} rows, {per_token} of {experts} experts and {k} values, or x or w is not \
                 aligned to 16 bytes"
            );
            return Err(Error::InvalidUse { what: name.to_string(), reason });
        }
        if scales.is_some() != self.shape.scaled {
            let reason = "scales must be given if and only if the shape has them".into();
            return Err(Error::InvalidUse { what: name.to_string(), reason });
        }
        if !self.is_addition(add.as_ref(), x, rows) {
            let reason = "the addition is not the one that the kernel was created for, or one of its views is too short or not \
                          aligned to 16 bytes";
            return Err(Error::InvalidUse { what: name.to_string(), reason: reason.into() });
        }
        let view = |of: fn(&Add<'_>) -> View| add.as_ref().map_or(Address::NONE, |add| of(add).into());
        let (y, y_scales) = match add.as_ref().map(|add| &add.y.data) {
            None => (Address::NONE, Address::NONE),
            Some(VectorData::F32(values) | VectorData::F16(values)) => (values.into(), Address::NONE),
            Some(VectorData::Int8 { values, scales } | VectorData::Int16 { values, scales }) => {
                (values.into(), scales.into())
            }
        };
        let counters = self.counter_bytes(rows);
        let push = Push {
            x: x.clone().into(),
            w: w.clone().into(),
            active_rows: active.clone().into(),
            scores: scratch.slice(counters..self.scratch_bytes(rows))?.into(),
            counters: scratch.slice(0..counters)?.into(),
            selected: selected.clone().into(),
            weights: weights.clone().into(),
            k: k as u32,
            rows: rows as u32,
            experts: experts as u32,
            per_token: per_token as u32,
            epsilon,
            plane_words: add.as_ref().map_or(0, |add| add.y.stride() * add.y.columns / 4) as u32,
            scales: scales.clone().map_or(Address::NONE, Address::from),
            block: view(|add| add.block.clone()),
            stream: view(|add| add.stream.clone()),
            norm_weight: view(|add| add.weight.clone()),
            y,
            y_scales,
        };
        let groups =
            [(experts as u32).div_ceil(self.plan.expert_tile), (rows as u32).div_ceil(self.plan.rows), 1];
        recorder.dispatch(name, &self.pipeline, groups, &push)
    }
}

fn variant(plan: Plan, shape: &Shape) -> Variant {
    let Shape { experts, renormalize, scaled, add, .. } = *shape;
    let Plan { tier, threads, expert_tile, rows, threads_per_partial, subgroup } = plan;
    // Few different bounds, so that few pipelines serve all numbers of experts.
    let max_experts = experts.next_power_of_two().max(32) as u32;
    let constants = Constants {
        threads,
        expert_tile,
        rows,
        max_experts,
        renormalize,
        scaled,
        threads_per_partial,
        block_partials: add.map_or(0, |add| add.partials),
        output: add.map_or(Activations::F32, |add| add.output) as u32,
    };
    let mut label = format!(
        "{threads} threads, {expert_tile} experts × {rows} rows{}{}",
        if renormalize { ", renormalised" } else { "" },
        if scaled { ", scaled" } else { "" }
    );
    if let Some(AddShape { partials, output }) = add {
        label += &format!(", add {partials} + norm → {output}");
    }
    Variant::new(label, TIERS, tier, &constants, subgroup)
}
