//! y = W · x for 1 to 8 columns: the kernel that decoding spends its time in.

mod cases;
pub mod policy;
pub mod reference;
#[cfg(test)]
mod tests;

use gpu::{Address, Device, Error, Pipeline, Recorder, Result, View};

use crate::{
    Kernel, Layout, Matrix, Vectors,
    shaders::gemv::{Constants, Push, TIERS},
    variant::Variant,
    vectors::VectorData,
};
use policy::{Plan, Shape};

/// For the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "gemv",
    about: "matrix–vector product, int8 and int4 weights",
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
        if !policy::SCHEMES.contains(&shape.weights.scheme) {
            let reason = format!("{} weights; it multiplies int8 and int4", shape.weights.scheme);
            return Err(Error::InvalidUse { what: "gemv".into(), reason });
        }
        Ok(Self { shape, plan, pipeline: variant(&shape, plan).pipeline(device)? })
    }

    /// Records y = W · x. Column c of y starts at element c · rows.
    pub fn record(&self, recorder: &mut Recorder, name: &str, w: &Matrix, x: &Vectors, y: &View) -> Result<()> {
        let shape = &self.shape;
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        if w.layout() != shape.weights {
            return wrong(format!("weights of {:?} for a kernel made for {:?}", w.layout(), shape.weights));
        }
        if (x.k, x.columns, x.is_int8()) != (shape.weights.k, shape.columns, shape.int8_activations) {
            return wrong("x has another shape or type than the kernel was made for".into());
        }
        let rows = shape.weights.rows;
        if y.len() < (rows * shape.columns * 4) as u64 {
            return wrong(format!("y has {} bytes for {rows} rows and {} columns", y.len(), shape.columns));
        }
        let (values, scales) = match &x.data {
            VectorData::F32(values) => (values, Address::NONE),
            VectorData::Int8 { values, scales } => (values, scales.into()),
        };
        for part in w.parts() {
            // With one column a part's share of y is a run of its own: parts then need no barrier between them.
            let (y, y_first) = if shape.columns == 1 {
                let first = part.first_row as u64 * 4;
                (y.slice(first..first + part.layout.rows as u64 * 4)?, 0)
            } else {
                (y.clone(), part.first_row as u32)
            };
            let push = Push {
                values: (&part.values).into(),
                scales: part.scales.as_ref().map_or(Address::NONE, Address::from),
                x: values.into(),
                x_scales: scales.clone(),
                y: y.into(),
                rows: part.layout.rows as u32,
                k: shape.weights.k as u32,
                y_first,
                y_stride: rows as u32,
            };
            let groups = self.plan.groups.min(part.layout.strips() as u32);
            recorder.dispatch(name, &self.pipeline, [groups, 1, 1], &push)?;
        }
        Ok(())
    }
}

fn variant(shape: &Shape, plan: Plan) -> Variant {
    let Shape { weights: Layout { scheme, .. }, columns, int8_activations } = *shape;
    let constants = Constants {
        threads: plan.threads,
        columns: columns as u32,
        bits: scheme.bits(),
        int8_activations,
        in_flight: plan.in_flight,
    };
    let label = format!(
        "{scheme} × {}, {columns} col, {} threads, {} in flight",
        if int8_activations { "int8" } else { "f32" },
        plan.threads,
        plan.in_flight,
    );
    Variant::new(label, TIERS, plan.tier, &constants, plan.subgroup)
}
