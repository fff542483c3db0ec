//! Y = W · X for many columns, in plain arithmetic or by packed dot products: prefill and large batches on
//! devices without cooperative matrices.

mod cases;
pub mod lanes;
pub mod packed;
pub mod policy;
mod shape;
#[cfg(test)]
mod tests;

use gpu::{Address, Caps, Device, Error, Pipeline, Recorder, Result, Subgroup, View};

use crate::{
    Activations, Kernel, Matrix, MatrixBlock, Target, Vectors,
    experts::{ExpertColumns, Groups},
    matmul::common::{ExpertProduct, check_experts},
    shaders::gemm::{Constants, Push, TIERS},
    variant::Variant,
    vectors::VectorData,
};
use policy::{Method, Plan, Shape};

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "gemm",
    about: "matrix–matrix product without cooperative matrices",
    variants: policy::variants,
    cases: cases::cases,
};

/// Rows and columns per workgroup of the shader `gemm`.
const TILE_ROWS: usize = 64;
const TILE_COLUMNS: usize = 32;

/// The kernel for one shape.
pub struct Gemm {
    shape: Shape,
    plan: Plan,
    experts: Option<ExpertColumns>,
    pipeline: Pipeline,
}

impl Gemm {
    /// Selects the variant for this device and compiles it.
    pub fn new(device: &Device, shape: Shape) -> Result<Self> {
        Self::with_plan(device, shape, policy::plan(device.caps(), &shape))
    }

    /// The same with a given plan.
    pub fn with_plan(device: &Device, shape: Shape, plan: Plan) -> Result<Self> {
        Self::create(device, shape, plan, None)
    }

    /// For a product over experts, with columns in groups of [`Plan::columns`]: `shape` is that of one expert, with about
    /// as many columns as an expert has.
    pub fn for_experts(device: &Device, shape: Shape, plan: Plan, experts: ExpertColumns) -> Result<Self> {
        Self::create(device, shape, plan, Some(experts))
    }

    fn create(device: &Device, shape: Shape, plan: Plan, experts: Option<ExpertColumns>) -> Result<Self> {
        let wrong = |reason: String| Err(Error::InvalidUse { what: "gemm".into(), reason });
        let Shape { weights, activations, epilogue, output, .. } = shape;
        if !policy::supports(&shape) {
            return wrong(format!(
                "{activations} activations with {} weights and epilogue {epilogue} to {output}; supported are f32 activations with any \
                 weights to f32, and int16 ones with integers to f32, or with an epilogue to int16",
                weights.scheme
            ));
        }
        let packed = matches!(plan.method, Method::Packed(_));
        if packed != (activations == Activations::Int16) || packed && !packed::is_supported(device.caps()) {
            return wrong(format!(
                "{activations} activations by {:?}; int16 ones, and no others, are multiplied by packed dot products, at tier T1 with \
                 subgroups of 8 or more",
                plan.method
            ));
        }
        epilogue.check("gemm", &weights)?;
        Ok(Self {
            shape,
            plan,
            experts,
            pipeline: variant(device.caps(), &shape, &plan, experts).pipeline(device)?,
        })
    }

    /// Records Y = W · X for the first `active` columns (one u32); the rest of the target is left unchanged.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        w: &Matrix,
        x: &Vectors,
        target: &Target,
        active: &View,
    ) -> Result<()> {
        let Shape { weights, columns, activations, epilogue, output } = self.shape;
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        if self.experts.is_some() {
            return wrong("the kernel was created for a product over experts".into());
        }
        if w.layout() != weights {
            return wrong(format!(
                "the weights are {:?}, but the kernel was created for {weights:?}",
                w.layout()
            ));
        }
        if (x.k, x.columns, x.kind()) != (weights.k, columns, activations) {
            return wrong(format!("x must be {activations}, {columns} columns of {}", weights.k));
        }
        if active.len() < 4 {
            return wrong("active must be one u32".into());
        }
        target.check(name, output, epilogue.outputs(weights.rows), columns)?;
        if let Method::Packed(tile) = self.plan.method {
            let operands = packed::Operands { shape: &self.shape, w, x, target, active };
            return packed::record(recorder, name, &self.pipeline, tile, self.plan.groups, &operands);
        }
        if let Method::Lanes(tile) = self.plan.method {
            let operands = lanes::Operands { w, x, target, active: Some(active), epilogue };
            return lanes::record(recorder, name, &self.pipeline, tile, self.plan.groups, &operands);
        }
        for block in w.blocks() {
            let (y, y_first) = target.for_block(name, block, epilogue, columns)?;
            let push = Push {
                active_rows: active.clone().into(),
                y: y.into(),
                y_first,
                ..push(block, block.layout.rows, x, target)
            };
            let tiles = block.layout.rows.div_ceil(TILE_ROWS) as u32;
            let groups = [tiles.min(self.plan.groups), columns.div_ceil(TILE_COLUMNS) as u32, 1];
            recorder.dispatch(name, &self.pipeline, groups, &push)?;
        }
        Ok(())
    }

    /// Records the products of pairs with their experts. Pair p is column p of the target.
    pub fn record_experts(
        &self,
        recorder: &mut Recorder,
        name: &str,
        w: &Matrix,
        x: &Vectors,
        target: &Target,
        groups: &Groups,
    ) -> Result<()> {
        let Shape { weights, activations, epilogue, output, .. } = self.shape;
        let wrong = |reason: &str| Err(Error::InvalidUse { what: name.to_string(), reason: reason.into() });
        let Some(experts) = self.experts else {
            return wrong("the kernel was not created for a product over experts");
        };
        let (block, pairs) = check_experts(name, experts, &weights, w, x)?;
        if x.kind() != activations || groups.width != self.plan.columns() {
            return wrong(
                "x has another format, or groups have another width, than the kernel was created for",
            );
        }
        target.check(name, output, epilogue.outputs(weights.rows), pairs)?;
        let product = ExpertProduct { block, rows: weights.rows, x, target, groups };
        match self.plan.method {
            Method::Packed(tile) => packed::record_experts(recorder, name, &self.pipeline, tile, &product),
            Method::Lanes(tile) => lanes::record_experts(recorder, name, &self.pipeline, tile, &product),
            Method::Tiles => {
                let push = Push {
                    group_experts: groups.experts.clone().into(),
                    group_pairs: groups.pairs.clone().into(),
                    ..push(block, weights.rows, x, target)
                };
                let tiles = weights.rows.div_ceil(TILE_ROWS) as u32;
                recorder.dispatch(name, &self.pipeline, [tiles, groups.count as u32, 1], &push)
            }
        }
    }
}

fn push(block: &MatrixBlock, rows: usize, x: &Vectors, target: &Target) -> Push {
    let VectorData::F32(values) = &x.data else { unreachable!("tiles only take f32") };
    Push {
        values: (&block.values).into(),
        scales: block.scales.as_ref().map_or(Address::NONE, Address::from),
        x: values.into(),
        active_rows: Address::NONE,
        y: target.y.clone().into(),
        rows: rows as u32,
        k: block.layout.k as u32,
        columns: x.columns as u32,
        y_first: target.first as u32,
        y_stride: target.stride as u32,
        group_experts: Address::NONE,
        group_pairs: Address::NONE,
    }
}

fn variant(caps: &Caps, shape: &Shape, plan: &Plan, experts: Option<ExpertColumns>) -> Variant {
    let (scheme, epilogue) = (shape.weights.scheme, shape.epilogue);
    match plan.method {
        // Groups of experts' columns say themselves which are used.
        Method::Lanes(tile) => lanes::variant(scheme, epilogue, tile, experts.is_none(), experts),
        Method::Packed(tile) => packed::variant(caps, shape, tile, experts),
        Method::Tiles => {
            let pairs_per_x = experts.map_or(0, |experts| experts.per_x as u32);
            let constants = Constants { scheme: scheme as u32, epilogue: epilogue as u32, pairs_per_x };
            let mut label = format!("{scheme}, {epilogue}, {TILE_ROWS} × {TILE_COLUMNS} per workgroup");
            if let Some(experts) = experts {
                label += &format!(", experts, {} per x", experts.per_x);
            }
            Variant::new(label, TIERS, plan.tier, &constants, Subgroup::Any)
        }
    }
}
