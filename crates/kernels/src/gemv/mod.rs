//! y = W · x for 1 to 8 columns: the kernel that decoding spends its time in.

mod cases;
pub mod policy;
#[cfg(test)]
mod tests;

use gpu::{Address, Device, Error, Pipeline, Recorder, Result};

use crate::{
    Epilogue, Kernel, Layout, Matrix, Target, Vectors,
    gemm::lanes,
    shaders::gemv::{Constants, Push, TIERS},
    variant::Variant,
    vectors::VectorData,
};
use policy::{Plan, Shape};

/// For the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "gemv",
    about: "matrix–vector product, all weight schemes",
    variants: policy::variants,
    cases: cases::cases,
};

/// Most columns of x that one call takes.
pub const MAX_COLUMNS: usize = 8;

/// The kernel for one shape.
pub struct Gemv {
    shape: Shape,
    plan: Plan,
    pipeline: Pipeline,
}

impl Gemv {
    /// Chooses the variant for this device and compiles it.
    pub fn new(device: &Device, shape: Shape) -> Result<Self> {
        Self::with_plan(device, shape, policy::plan(device.caps(), &shape))
    }

    /// The same with a plan given.
    pub fn with_plan(device: &Device, shape: Shape, plan: Plan) -> Result<Self> {
        if shape.columns == 0 || shape.columns > MAX_COLUMNS {
            let reason = format!("{} columns; 1 to {MAX_COLUMNS} are possible", shape.columns);
            return Err(Error::InvalidUse { what: "gemv".into(), reason });
        }
        if shape.int8_activations && !policy::INT8_SCHEMES.contains(&shape.weights.scheme) {
            let reason = format!(
                "int8 activations with {} weights; they multiply int8 and int4 weights alone, give f32 activations",
                shape.weights.scheme
            );
            return Err(Error::InvalidUse { what: "gemv".into(), reason });
        }
        shape.epilogue.check("gemv", &shape.weights)?;
        Ok(Self { shape, plan, pipeline: variant(&shape, plan).pipeline(device)? })
    }

    /// Records y = W · x.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        w: &Matrix,
        x: &Vectors,
        target: &Target,
    ) -> Result<()> {
        let Shape { weights, columns, int8_activations, epilogue } = self.shape;
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        if w.layout() != weights {
            return wrong(format!("weights of {:?} for a kernel made for {weights:?}", w.layout()));
        }
        if (x.k, x.columns, x.kind() == crate::Activations::Int8) != (weights.k, columns, int8_activations) {
            return wrong("x has another shape or type than the kernel was made for".into());
        }
        target.check(name, epilogue.outputs(weights.rows), columns)?;
        if let Some(tile) = self.plan.lanes {
            let operands = lanes::Operands { w, x, target, active: None, epilogue };
            return lanes::record(recorder, name, &self.pipeline, tile, self.plan.groups, &operands);
        }
        let (values, scales) = match &x.data {
            VectorData::F32(values) => (values, Address::NONE),
            VectorData::Int8 { values, scales } | VectorData::Int16 { values, scales } => (values, scales.into()),
        };
        for part in w.parts() {
            let (y, y_first) = target.of_part(name, part, epilogue, columns)?;
            let push = Push {
                values: (&part.values).into(),
                scales: part.scales.as_ref().map_or(Address::NONE, Address::from),
                x: values.into(),
                x_scales: scales.clone(),
                y: y.into(),
                rows: part.layout.rows as u32,
                k: weights.k as u32,
                y_first,
                y_stride: target.stride as u32,
            };
            let units = part.layout.strips().div_ceil(epilogue.strips()) as u32;
            recorder.dispatch(name, &self.pipeline, [self.plan.groups.min(units), 1, 1], &push)?;
        }
        Ok(())
    }
}

fn variant(shape: &Shape, plan: Plan) -> Variant {
    let Shape { weights: Layout { scheme, .. }, columns, int8_activations, epilogue } = *shape;
    if let Some(tile) = plan.lanes {
        return lanes::variant(scheme, epilogue, tile, false);
    }
    let constants = Constants {
        threads: plan.threads,
        columns: columns as u32,
        scheme: scheme as u32,
        int8_activations,
        in_flight: plan.in_flight,
        epilogue: epilogue as u32,
    };
    let label = format!(
        "{scheme} × {}, {columns} col, {}{} threads, {} in flight",
        if int8_activations { "int8" } else { "f32" },
        if epilogue == Epilogue::None { String::new() } else { format!("{epilogue}, ") },
        plan.threads,
        plan.in_flight,
    );
    Variant::new(label, TIERS, plan.tier, &constants, plan.subgroup)
}
