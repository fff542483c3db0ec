//! Y = W · X for many columns, by plain arithmetic: prefill and large batches on devices without matrix units.

mod cases;
pub mod lanes;
pub mod policy;
#[cfg(test)]
mod tests;

use gpu::{Address, Device, Error, Pipeline, Recorder, Result, Subgroup, View};

use crate::{
    Kernel, Matrix, STRIP, Target, Vectors,
    shaders::gemm::{Constants, Push, TIERS},
    variant::Variant,
    vectors::VectorData,
};
use policy::{Method, Plan, Shape};

/// For the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "gemm",
    about: "matrix–matrix product without matrix units",
    variants: policy::variants,
    cases: cases::cases,
};

/// Rows and columns that a workgroup of the shader `gemm` makes.
const TILE_ROWS: usize = 64;
const TILE_COLUMNS: usize = 32;

/// The kernel for one shape.
pub struct Gemm {
    shape: Shape,
    plan: Plan,
    pipeline: Pipeline,
}

impl Gemm {
    /// Chooses the variant for this device and compiles it.
    pub fn new(device: &Device, shape: Shape) -> Result<Self> {
        Self::with_plan(device, shape, policy::plan(device.caps(), &shape))
    }

    /// The same with a plan given.
    pub fn with_plan(device: &Device, shape: Shape, plan: Plan) -> Result<Self> {
        shape.epilogue.check("gemm", &shape.weights)?;
        Ok(Self { shape, plan, pipeline: variant(&shape, &plan).pipeline(device)? })
    }

    /// Records Y = W · X for the first `active` columns (one u32); the rest of the target stays as it is.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        w: &Matrix,
        x: &Vectors,
        target: &Target,
        active: &View,
    ) -> Result<()> {
        let Shape { weights, columns, epilogue } = self.shape;
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        if w.layout() != weights {
            return wrong(format!("weights of {:?} for a kernel made for {weights:?}", w.layout()));
        }
        let (VectorData::F32(values), true) = (&x.data, (x.k, x.columns) == (weights.k, columns)) else {
            return wrong(format!("x must be f32, {columns} columns of {}", weights.k));
        };
        if active.len() < 4 {
            return wrong("active is one u32".into());
        }
        target.check(name, crate::Activations::F32, epilogue.outputs(weights.rows), columns)?;
        if let Method::Lanes(tile) = self.plan.method {
            let operands = lanes::Operands { w, x, target, active: Some(active), epilogue };
            return lanes::record(recorder, name, &self.pipeline, tile, self.plan.groups, &operands);
        }
        for part in w.parts() {
            let (y, y_first) = target.of_part(name, part, epilogue, columns)?;
            let push = Push {
                values: (&part.values).into(),
                scales: part.scales.as_ref().map_or(Address::NONE, Address::from),
                x: values.into(),
                active_rows: active.clone().into(),
                y: y.into(),
                rows: part.layout.rows as u32,
                k: weights.k as u32,
                columns: columns as u32,
                y_first,
                y_stride: target.stride as u32,
            };
            let tiles = part.layout.strips().div_ceil(TILE_ROWS / STRIP) as u32;
            let groups = [tiles.min(self.plan.groups), columns.div_ceil(TILE_COLUMNS) as u32, 1];
            recorder.dispatch(name, &self.pipeline, groups, &push)?;
        }
        Ok(())
    }
}

fn variant(shape: &Shape, plan: &Plan) -> Variant {
    let (scheme, epilogue) = (shape.weights.scheme, shape.epilogue);
    match plan.method {
        Method::Lanes(tile) => lanes::variant(scheme, epilogue, tile, true),
        Method::Tiles => {
            let constants = Constants { scheme: scheme as u32, epilogue: epilogue as u32 };
            let label = format!("{scheme}, {epilogue}, {TILE_ROWS} × {TILE_COLUMNS} a group");
            Variant::new(label, TIERS, plan.tier, &constants, Subgroup::Any)
        }
    }
}
