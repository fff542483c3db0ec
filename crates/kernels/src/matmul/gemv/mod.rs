//! y = W · x for 1 to 8 columns: the kernel that dominates decode time.

pub(super) mod cases;
mod equal;
pub mod policy;
#[cfg(test)]
mod tests;

use gpu::{Address, Device, Error, Pipeline, Recorder, Result, Subgroup, Tier, View};
use tensor::Layout;

use crate::{
    Activations, Epilogue, Kernel, Matrix, OutputFormat, Target, Vectors,
    experts::ExpertColumns,
    matmul::{common::check_experts, gemm::lanes},
    shaders::gemv::{Constants, Push, TIERS},
    variant::Variant,
    vectors::VectorData,
};
use policy::{Plan, Prologue, Shape};

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "gemv",
    about: "matrix–vector product, all weight schemes",
    variants: policy::variants,
    cases: cases::cases,
};

/// Maximum columns of x per call.
pub const MAX_COLUMNS: usize = 8;

/// The kernel for one shape.
pub struct Gemv {
    shape: Shape,
    plan: Plan,
    experts: Option<ExpertColumns>,
    /// Pairs whose products are added up, where they are.
    summed: Option<usize>,
    pipeline: Pipeline,
}

/// The source of x.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// Activations in memory.
    Vectors(&'a Vectors),
    /// The norm of rows of the residual stream.
    Norm(&'a Norm),
    /// The same as [`gemv_norm`](super::gemv_norm) has written it.
    Normed {
        /// The rows, without their factors.
        x: &'a Vectors,
        /// One f32 per row.
        factors: &'a View,
    },
}

/// A norm that the product computes in its prologue, after adding a sublayer's output to the residual stream
/// if there is one. All f32; rows follow each other.
#[derive(Clone)]
pub struct Norm {
    /// Number of rows: columns of x.
    pub rows: usize,
    /// The sublayer output to add to the stream.
    pub sublayer: Option<Sublayer>,
    /// The stream before the addition.
    pub residual: View,
    /// The norm's weight.
    pub weight: View,
    /// Added to the mean square.
    pub epsilon: f32,
}

/// A sublayer's output, to be added to the residual stream.
#[derive(Clone)]
pub struct Sublayer {
    /// Consecutive split-K partial sums per row; the prologue specifies their number.
    pub output: View,
    /// Weight of the norm of their sum, if it has one.
    pub weight: Option<View>,
    /// One f32: the factor of the stream after the addition, if it has one.
    pub residual_scale: Option<View>,
    /// Destination of the stream after the addition, if this product writes it: not the source, which other
    /// workgroups still read.
    pub stream: Option<View>,
}

impl Gemv {
    /// Selects the policy's variant for this device; the result of a [`crate::matmul::tuning::Tuning`] goes
    /// into [`Gemv::with_plan`].
    pub fn new(device: &Device, shape: Shape) -> Result<Self> {
        Self::with_plan(device, shape, policy::plan(device.caps(), &shape))
    }

    /// The same with a given plan.
    pub fn with_plan(device: &Device, shape: Shape, plan: Plan) -> Result<Self> {
        Self::create(device, shape, plan, None, None)
    }

    /// For a product over experts, a column at a time: `shape` is that of one expert and one column.
    pub fn for_experts(device: &Device, shape: Shape, plan: Plan, experts: ExpertColumns) -> Result<Self> {
        if shape.columns != 1 || shape.prologue != Prologue::None || shape.splits != 1 || plan.lanes.is_some()
        {
            let reason = format!(
                "{shape:?} with {plan:?}; products over experts take a column at a time, without prologue and split-K"
            );
            return Err(Error::InvalidUse { what: "gemv".into(), reason });
        }
        Self::create(device, shape, plan, Some(experts), None)
    }

    /// For a product over `count` experts whose columns are added up with weights, `per_token` at a time, with a plan from
    /// [`policy::summed_experts_plan`]: `shape` is that of one expert and one column.
    pub fn for_summed_experts(
        device: &Device,
        shape: Shape,
        plan: Plan,
        count: usize,
        per_token: usize,
    ) -> Result<Self> {
        let possible = shape == Shape::plain(shape.weights, 1, Activations::Int16) && per_token > 0;
        if !possible || !plan.x_in_shared || plan.tier < Tier::T1 {
            let reason = format!(
                "{per_token} of {shape:?} with {plan:?}; sums over experts take a column of int16 at a time, in shared memory"
            );
            return Err(Error::InvalidUse { what: "gemv".into(), reason });
        }
        Self::create(device, shape, plan, Some(ExpertColumns { count, per_x: 1 }), Some(per_token))
    }

    fn create(
        device: &Device,
        shape: Shape,
        plan: Plan,
        experts: Option<ExpertColumns>,
        summed: Option<usize>,
    ) -> Result<Self> {
        if shape.columns == 0 || shape.columns > MAX_COLUMNS {
            let reason = format!("{} columns; 1 to {MAX_COLUMNS} are supported", shape.columns);
            return Err(Error::InvalidUse { what: "gemv".into(), reason });
        }
        let (activations, scheme) = (shape.activations, shape.weights.scheme);
        let schemes = policy::schemes(activations);
        if !schemes.contains(&scheme) {
            let possible = schemes.iter().map(|scheme| scheme.to_string()).collect::<Vec<_>>().join(", ");
            let reason = format!(
                "{activations} activations support only {possible} weights, not {scheme}; use f32 activations"
            );
            return Err(Error::InvalidUse { what: "gemv".into(), reason });
        }
        if shape.output == Activations::Int8
            || (shape.output == Activations::Int16 && shape.epilogue == Epilogue::None)
        {
            let reason = format!(
                "{} output with epilogue {}; gated products write f32 or int16, others f32",
                shape.output, shape.epilogue
            );
            return Err(Error::InvalidUse { what: "gemv".into(), reason });
        }
        if plan.lanes.is_some() && !policy::supports_lanes(&shape) {
            let reason = "the one-row-per-lane shader only supports f32".into();
            return Err(Error::InvalidUse { what: "gemv".into(), reason });
        }
        let few_columns = shape.columns <= policy::MAX_SHARED_X_COLUMNS && activations == Activations::Int16;
        let no_partials =
            shape.splits == 0 || matches!(shape.prologue, Prologue::AddAndNorm { partials: 0, .. });
        let needs_shared_x = shape.prologue.norms();
        let quads = shape.weights.quads() as u32;
        let splits_possible =
            activations == Activations::Int16 && plan.tier >= Tier::T1 && plan.lanes.is_none();
        if !no_partials
            && shape.splits > 1
            && (shape.prologue != Prologue::None || (shape.splits - 1) * shape.quads_per_split() >= quads)
        {
            let reason = format!(
                "{} splits of {quads} quads with {:?}: no split may be empty, and a prologue needs all of x",
                shape.splits, shape.prologue
            );
            return Err(Error::InvalidUse { what: "gemv".into(), reason });
        }
        if no_partials
            || needs_shared_x && !(few_columns && plan.x_in_shared && plan.tier >= Tier::T1)
            || plan.x_in_shared && !few_columns
            || shape.prologue == Prologue::Factors && activations != Activations::Int16
            || shape.splits > 1 && (shape.epilogue != Epilogue::None || !splits_possible)
        {
            let reason = format!(
                "{:?} and {} splits with {} columns of {activations} activations and epilogue {}; a norm and x in shared memory \
                 need up to {} columns of int16 at tier T1, factors int16, and split-K int16 at T1 without an epilogue",
                shape.prologue,
                shape.splits,
                shape.columns,
                shape.epilogue,
                policy::MAX_SHARED_X_COLUMNS
            );
            return Err(Error::InvalidUse { what: "gemv".into(), reason });
        }
        shape.epilogue.check("gemv", &shape.weights)?;
        let pipeline = variant(&shape, plan, experts, summed).pipeline(device)?;
        Ok(Self { shape, plan, experts, summed, pipeline })
    }

    /// The variant's pipeline.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// Records y = W · x.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        w: &Matrix,
        x: Source<'_>,
        target: &Target,
    ) -> Result<()> {
        let Shape { weights, columns, activations, epilogue, output, splits, .. } = self.shape;
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        if w.layout() != weights {
            return wrong(format!(
                "the weights are {:?}, but the kernel was created for {weights:?}",
                w.layout()
            ));
        }
        if self.experts.is_some() {
            return wrong("the kernel was created for a product over experts".into());
        }
        let same = match x {
            Source::Vectors(x) => {
                self.shape.prologue == Prologue::None
                    && (x.k, x.columns, x.kind()) == (weights.k, columns, activations)
            }
            Source::Normed { x, factors } => {
                self.shape.prologue == Prologue::Factors
                    && (x.k, x.columns, x.kind()) == (weights.k, columns, activations)
                    && factors.len() >= columns as u64 * 4
                    && factors.address().is_multiple_of(16)
            }
            Source::Norm(norm) => norm.rows == columns && norm.matches(self.shape.prologue, weights.k),
        };
        if !same {
            return wrong("the shape or format of x is not the one that the kernel was created for".into());
        }
        target.check(name, output, epilogue.outputs(weights.rows), columns * splits as usize)?;
        if let (Some(tile), Source::Vectors(x)) = (self.plan.lanes, x) {
            let operands = lanes::Operands { w, x, target, active: None, epilogue };
            return lanes::record(recorder, name, &self.pipeline, tile, self.plan.groups, &operands);
        }
        let (mut values, mut x_scales) = (Address::NONE, Address::NONE);
        let [mut residual, mut sublayer, mut post_weight, mut weight] = [const { Address::NONE }; 4];
        let (mut stream, mut factor) = (None, Address::NONE);
        let mut epsilon = 0.0;
        match x {
            Source::Vectors(x) => (values, x_scales) = addresses(x),
            Source::Normed { x, factors } => {
                (values, x_scales) = addresses(x);
                weight = factors.clone().into();
            }
            Source::Norm(norm) => {
                (residual, weight) = (norm.residual.clone().into(), norm.weight.clone().into());
                epsilon = norm.epsilon;
                if let Some(Sublayer { output, weight, residual_scale, stream: to }) = &norm.sublayer {
                    sublayer = output.clone().into();
                    post_weight = weight.clone().map_or(Address::NONE, Address::from);
                    factor = residual_scale.clone().map_or(Address::NONE, Address::from);
                    stream = to.clone();
                }
            }
        }
        for block in w.blocks() {
            let (y, y_first) = target.for_block(name, block, epilogue, columns * splits as usize)?;
            let push = Push {
                values: (&block.values).into(),
                scales: block.scales.as_ref().map_or(Address::NONE, Address::from),
                x: values.clone(),
                x_scales: x_scales.clone(),
                y: y.into(),
                y_scales: match &target.format {
                    OutputFormat::Int16(scales) => scales.clone().into(),
                    OutputFormat::F32 | OutputFormat::F16 => Address::NONE,
                },
                residual: residual.clone(),
                sublayer: sublayer.clone(),
                post_weight: post_weight.clone(),
                weight: weight.clone(),
                // The workgroups of the first block write it for all.
                writes_stream: u32::from(stream.is_some()),
                stream: stream.take().map_or(Address::NONE, Address::from),
                rows: block.layout.rows as u32,
                k: weights.k as u32,
                y_first,
                y_stride: target.stride as u32 * splits,
                y_low: if splits > 1 { target.stride as u32 } else { (target.y.len() / 8) as u32 },
                epsilon,
                x_columns: columns as u32,
                // Products over experts have no prologue.
                experts: factor.clone(),
            };
            recorder.dispatch(name, &self.pipeline, [self.groups(&block.layout), 1, 1], &push)?;
        }
        Ok(())
    }

    /// Records the products of pairs with their experts: one u32 per pair, an expert or
    /// [`NO_EXPERT`](crate::experts::NO_EXPERT). Pair p is column p of the target.
    pub fn record_experts(
        &self,
        recorder: &mut Recorder,
        name: &str,
        w: &Matrix,
        x: &Vectors,
        target: &Target,
        selected: &View,
    ) -> Result<()> {
        let Shape { weights, activations, epilogue, output, .. } = self.shape;
        let wrong = |reason: &str| Err(Error::InvalidUse { what: name.to_string(), reason: reason.into() });
        let (Some(experts), None) = (self.experts, self.summed) else {
            return wrong("the kernel was not created for a product over experts with a column per pair");
        };
        let (block, pairs) = check_experts(name, experts, &weights, w, x)?;
        if x.kind() != activations || selected.len() < pairs as u64 * 4 {
            return wrong(
                "x has another format than the kernel was created for, or the list of experts is too short",
            );
        }
        target.check(name, output, epilogue.outputs(weights.rows), pairs)?;
        let (values, x_scales) = addresses(x);
        let push = Push {
            values: (&block.values).into(),
            scales: block.scales.as_ref().map_or(Address::NONE, Address::from),
            x: values,
            x_scales,
            y: target.y.clone().into(),
            y_scales: match &target.format {
                OutputFormat::Int16(scales) => scales.clone().into(),
                OutputFormat::F32 | OutputFormat::F16 => Address::NONE,
            },
            residual: Address::NONE,
            sublayer: Address::NONE,
            post_weight: Address::NONE,
            weight: Address::NONE,
            writes_stream: 0,
            stream: Address::NONE,
            rows: weights.rows as u32,
            k: weights.k as u32,
            y_first: target.first as u32,
            y_stride: target.stride as u32,
            y_low: (target.y.len() / 8) as u32,
            epsilon: 0.0,
            x_columns: x.columns as u32,
            experts: selected.clone().into(),
        };
        recorder.dispatch(name, &self.pipeline, [self.groups(&weights), pairs as u32, 1], &push)
    }

    /// Records the weighted sums of the products of pairs with their experts: one u32 and one f32 per pair, an expert, or
    /// [`NO_EXPERT`](crate::experts::NO_EXPERT) for all of an inactive row, and its weight. Row r, whose pairs follow each
    /// other, is column r of the target.
    #[allow(clippy::too_many_arguments)]
    pub fn record_summed_experts(
        &self,
        recorder: &mut Recorder,
        name: &str,
        w: &Matrix,
        x: &Vectors,
        target: &Target,
        selected: &View,
        weights: &View,
    ) -> Result<()> {
        let layout = self.shape.weights;
        let wrong = |reason: &str| Err(Error::InvalidUse { what: name.to_string(), reason: reason.into() });
        let (Some(experts), Some(per_token)) = (self.experts, self.summed) else {
            return wrong("the kernel was not created for sums over experts");
        };
        let (block, pairs) = check_experts(name, experts, &layout, w, x)?;
        let words = pairs as u64 * 4;
        if x.kind() != Activations::Int16
            || !pairs.is_multiple_of(per_token)
            || selected.len() < words
            || weights.len() < words
            || !weights.address().is_multiple_of(16)
        {
            return wrong(
                "x is not int16 or has columns of a part of a row, or the experts or their weights are too short",
            );
        }
        let rows = pairs / per_token;
        target.check(name, Activations::F32, layout.rows, rows)?;
        let (values, x_scales) = addresses(x);
        let push = Push {
            values: (&block.values).into(),
            scales: block.scales.as_ref().map_or(Address::NONE, Address::from),
            x: values,
            x_scales,
            y: target.y.clone().into(),
            y_scales: Address::NONE,
            residual: Address::NONE,
            sublayer: Address::NONE,
            post_weight: Address::NONE,
            weight: weights.clone().into(),
            writes_stream: 0,
            stream: Address::NONE,
            rows: layout.rows as u32,
            k: layout.k as u32,
            y_first: target.first as u32,
            y_stride: target.stride as u32,
            y_low: 0,
            epsilon: 0.0,
            x_columns: x.columns as u32,
            experts: selected.clone().into(),
        };
        recorder.dispatch(name, &self.pipeline, [self.groups(&layout), rows as u32, 1], &push)
    }

    /// Workgroups for a matrix, or a block of one.
    fn groups(&self, layout: &Layout) -> u32 {
        let panels = layout.strips().div_ceil(self.plan.strips as usize) as u32;
        self.plan.groups.min(panels.div_ceil(self.plan.teams) * self.shape.splits)
    }
}

/// The values of x, and their scales.
fn addresses(x: &Vectors) -> (Address, Address) {
    match &x.data {
        VectorData::F32(floats) | VectorData::F16(floats) => (floats.into(), Address::NONE),
        VectorData::Int8 { values, scales } | VectorData::Int16 { values, scales } => {
            (values.into(), scales.into())
        }
    }
}

impl Norm {
    /// Whether this is what a prologue computes, for rows of `k` values.
    pub(super) fn matches(&self, prologue: Prologue, k: usize) -> bool {
        let (row, rows) = (k as u64 * 4, self.rows as u64);
        let aligned = |view: &View| view.address().is_multiple_of(16);
        let is_row = |view: &View| view.len() >= row && aligned(view);
        let is_rows = |view: &View| view.len() >= row * rows && aligned(view);
        is_rows(&self.residual)
            && is_row(&self.weight)
            && match (&self.sublayer, prologue) {
                (None, Prologue::Norm) => true,
                (Some(sublayer), Prologue::AddAndNorm { partials, post_norm, scaled }) => {
                    let has_partials = sublayer.output.len() >= row * rows * u64::from(partials)
                        && aligned(&sublayer.output);
                    let weight = &sublayer.weight;
                    let has_weight = weight.is_some() == post_norm && weight.as_ref().is_none_or(is_row);
                    let scale = &sublayer.residual_scale;
                    let has_scale =
                        scale.is_some() == scaled && scale.as_ref().is_none_or(|scale| scale.len() >= 4);
                    has_partials && has_weight && has_scale && sublayer.stream.as_ref().is_none_or(is_rows)
                }
                _ => false,
            }
    }
}

/// The constants PROLOGUE and SUBLAYER_PARTIALS of the shaders.
pub(super) fn prologue_constants(prologue: Prologue) -> (u32, u32) {
    match prologue {
        Prologue::None => (0, 1),
        Prologue::Norm => (1, 1),
        Prologue::AddAndNorm { partials, post_norm: true, .. } => (2, partials),
        Prologue::AddAndNorm { partials, post_norm: false, .. } => (3, partials),
        Prologue::Factors => (4, 1),
    }
}

/// Whether 32 consecutive threads share a subgroup.
pub(super) fn has_wide_subgroups(subgroup: Subgroup) -> bool {
    matches!(subgroup, Subgroup::Exactly(size) if size >= 32)
}

fn variant(shape: &Shape, plan: Plan, experts: Option<ExpertColumns>, summed: Option<usize>) -> Variant {
    let Shape { weights: Layout { scheme, .. }, columns, activations, prologue, epilogue, output, splits } =
        *shape;
    if let Some(tile) = plan.lanes {
        return lanes::variant(scheme, epilogue, tile, false, None);
    }
    let (prologue, sublayer_partials) = prologue_constants(prologue);
    let shared_x_quads =
        if plan.x_in_shared { shape.quads_per_split() * summed.unwrap_or(1) as u32 } else { 0 };
    let constants = Constants {
        threads: plan.threads,
        columns: columns as u32,
        scheme: scheme as u32,
        activations: activations as u32,
        in_flight: plan.in_flight,
        epilogue: epilogue as u32,
        int16_output: output == Activations::Int16,
        strips: plan.strips,
        shared_x_quads,
        prologue,
        splits,
        sublayer_partials,
        teams: plan.teams,
        wide_subgroups: has_wide_subgroups(plan.subgroup),
        residual_scaled: matches!(shape.prologue, Prologue::AddAndNorm { scaled: true, .. }),
        pairs_per_x: experts.filter(|_| summed.is_none()).map_or(0, |experts| experts.per_x as u32),
        pairs_per_y: summed.unwrap_or(0) as u32,
        split_quads: if splits > 1 { shape.quads_per_split() } else { 0 },
    };
    let mut label = format!("{scheme} × {activations}, {columns} col");
    match shape.prologue {
        Prologue::None => (),
        Prologue::Norm => label += ", prologue norm",
        Prologue::Factors => label += ", with factors",
        Prologue::AddAndNorm { partials, post_norm, scaled } => {
            let (norm, scale) =
                (if post_norm { "norm + " } else { "" }, if scaled { " + scale" } else { "" });
            label += &format!(", prologue {norm}add {partials}{scale} + norm");
        }
    }
    if shared_x_quads > 0 {
        label += &format!(", {shared_x_quads} quads of x in shared memory");
    }
    if splits > 1 {
        label += &format!(", {splits} splits");
    }
    if epilogue != Epilogue::None {
        label += &format!(", {epilogue}");
    }
    if output == Activations::Int16 {
        label += ", to int16";
    }
    if let Some(per_token) = summed {
        label += &format!(", sums of {per_token} experts");
    } else if let Some(experts) = experts {
        label += &format!(", experts, {} per x", experts.per_x);
    }
    if plan.tier >= Tier::T2 {
        label += ", on cooperative matrices";
    }
    label += &format!(", {} threads", plan.threads);
    if (plan.teams, plan.strips) != (1, epilogue.strips() as u32) {
        label += &format!(", {} teams × {} strips", plan.teams, plan.strips);
    }
    if plan.in_flight > 1 {
        label += &format!(", {} in flight", plan.in_flight);
    }
    Variant::new(label, TIERS, plan.tier, &constants, plan.subgroup)
}
