//! y = W · x for 1 to 8 columns: the kernel that decoding spends its time in.

mod cases;
pub mod policy;
#[cfg(test)]
mod tests;

use gpu::{Address, Device, Error, Pipeline, Recorder, Result};

use crate::{
    Activations, Epilogue, Kernel, Layout, Matrix, Target, Vectors,
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
    /// Takes the policy's variant for this device; what a [`crate::tuning::Tuning`] found goes into [`Gemv::with_plan`].
    pub fn new(device: &Device, shape: Shape) -> Result<Self> {
        Self::with_plan(device, shape, policy::plan(device.caps(), &shape))
    }

    /// The same with a plan given.
    pub fn with_plan(device: &Device, shape: Shape, plan: Plan) -> Result<Self> {
        if shape.columns == 0 || shape.columns > MAX_COLUMNS {
            let reason = format!("{} columns; 1 to {MAX_COLUMNS} are possible", shape.columns);
            return Err(Error::InvalidUse { what: "gemv".into(), reason });
        }
        let (activations, scheme) = (shape.activations, shape.weights.scheme);
        let schemes = policy::schemes(activations);
        if !schemes.contains(&scheme) {
            let possible = schemes.iter().map(|scheme| scheme.to_string()).collect::<Vec<_>>().join(", ");
            let reason = format!(
                "{activations} activations with {scheme} weights; they multiply {possible} alone, give f32 activations"
            );
            return Err(Error::InvalidUse { what: "gemv".into(), reason });
        }
        if shape.output == Activations::Int8
            || (shape.output == Activations::Int16 && shape.epilogue == Epilogue::None)
        {
            let reason = format!(
                "{} output with epilogue {}; gated products are written as f32 or int16, others as f32",
                shape.output, shape.epilogue
            );
            return Err(Error::InvalidUse { what: "gemv".into(), reason });
        }
        if plan.lanes.is_some() && !policy::lanes_suit(&shape) {
            let reason = "a row a lane reads and writes f32 alone".into();
            return Err(Error::InvalidUse { what: "gemv".into(), reason });
        }
        shape.epilogue.check("gemv", &shape.weights)?;
        Ok(Self { shape, plan, pipeline: variant(&shape, plan).pipeline(device)? })
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
        x: &Vectors,
        target: &Target,
    ) -> Result<()> {
        let Shape { weights, columns, activations, epilogue, output } = self.shape;
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        if w.layout() != weights {
            return wrong(format!("weights of {:?} for a kernel made for {weights:?}", w.layout()));
        }
        if (x.k, x.columns, x.kind()) != (weights.k, columns, activations) {
            return wrong("x has another shape or type than the kernel was made for".into());
        }
        target.check(name, output, epilogue.outputs(weights.rows), columns)?;
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
                y_scales: target.scales.clone().map_or(Address::NONE, Address::from),
                rows: part.layout.rows as u32,
                k: weights.k as u32,
                y_first,
                y_stride: target.stride as u32,
                y_low: (target.y.len() / 8) as u32,
            };
            let units = part.layout.strips().div_ceil(epilogue.strips()) as u32;
            recorder.dispatch(name, &self.pipeline, [self.plan.groups.min(units), 1, 1], &push)?;
        }
        Ok(())
    }
}

fn variant(shape: &Shape, plan: Plan) -> Variant {
    let Shape { weights: Layout { scheme, .. }, columns, activations, epilogue, output } = *shape;
    if let Some(tile) = plan.lanes {
        return lanes::variant(scheme, epilogue, tile, false);
    }
    let constants = Constants {
        threads: plan.threads,
        columns: columns as u32,
        scheme: scheme as u32,
        activations: activations as u32,
        in_flight: plan.in_flight,
        epilogue: epilogue as u32,
        int16_output: output == Activations::Int16,
    };
    let label = format!(
        "{scheme} × {activations}, {columns} col, {}{}{} threads, {} in flight",
        if epilogue == Epilogue::None { String::new() } else { format!("{epilogue}, ") },
        if output == Activations::Int16 { "to int16, " } else { "" },
        plan.threads,
        plan.in_flight,
    );
    Variant::new(label, TIERS, plan.tier, &constants, plan.subgroup)
}
