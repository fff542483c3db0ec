//! Self-test cases: the kernel against its reference.

use gpu::{Caps, Device, Result, Tier};
use tensor::{Layout, QUAD, Scheme};

use super::{
    Gemv, MAX_COLUMNS, Norm, Source, Sublayer, equal, policy,
    policy::{Prologue, Shape},
};
use crate::{
    Activations, Epilogue, HALF_GROUP, Matrix, Target, Vectors,
    case::{Case, Comparison, Output, Random, TIMEOUT, arena},
    matmul::common::{
        expert_trial::{ExpertTrial, ExpertTrialOperands, SummedTrial, SummedTrialOperands},
        reference::{self, Value},
        trial::{self, Trial},
    },
    norm::reference as norm_reference,
    vectors::VectorData,
};

/// Rows and K: one group; one strip and one quad; a row more and a group more; odd counts; the 270M's and
/// 1B's K; more quads than slices.
const SHAPES: [(usize, usize); 7] =
    [(1, 32), (16, 128), (17, 160), (45, 96), (33, 640), (50, 1152), (19, 5376)];
/// With float weights K need not be whole groups: less than a tile; a tile and a bit; a quad and one; the
/// 270M's.
const FLOAT_SHAPES: [(usize, usize); 4] = [(1, 3), (17, 40), (33, 129), (19, 640)];
/// Cases for the schemes that int8 activations do not support: enough to cover their own code.
const FEWER_SHAPES: [(usize, usize); 3] = [(1, 32), (17, 160), (33, 640)];
/// Pairs of strips, and column counts that other cases also have: compiling takes longer than running here.
const GATED: [(usize, usize, usize, Epilogue); 3] =
    [(32, 32, 1, Epilogue::Geglu), (96, 160, 3, Epilogue::Geglu), (64, 640, 3, Epilogue::Swiglu)];
/// int16 activations, rows, K and columns: a row and a group more than a strip and a quad; several quads;
/// odd counts; one strip and one quad.
const INT16_SHAPES: [(usize, usize, usize); 4] = [(17, 160, 1), (33, 640, 2), (45, 96, 5), (16, 128, 8)];
/// Pairs of strips: one; three, six and nine, to cover the scales of both halves, of several groups and of a
/// second quad.
const INT16_GATED: [(usize, usize, usize, Epilogue); 4] = [
    (32, 32, 1, Epilogue::Geglu),
    (96, 160, 2, Epilogue::Swiglu),
    (192, 96, 5, Epilogue::Geglu),
    (288, 160, 8, Epilogue::Geglu),
];

pub(super) fn cases(caps: &Caps) -> Vec<Case> {
    let mut list = Vec::new();
    for tier in [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier)) {
        for scheme in Scheme::ALL {
            let kinds = [Activations::Int8, Activations::F32].into_iter();
            for activations in kinds.filter(|kind| policy::schemes(*kind).contains(&scheme)) {
                let shapes = match scheme {
                    Scheme::Int8 | Scheme::Int4 => &SHAPES[..],
                    Scheme::Int8Min | Scheme::Int4Min => &FEWER_SHAPES[..],
                    Scheme::F16 | Scheme::Bf16 | Scheme::F32 => &FLOAT_SHAPES[..],
                };
                for (i, (rows, k)) in shapes.iter().copied().enumerate() {
                    // Covers every column count at T1, without the product of all counts and all shapes:
                    // compiling takes longer than running.
                    let more =
                        if tier == Tier::T0 { [3, MAX_COLUMNS][i % 2] } else { 2 + i % (MAX_COLUMNS - 1) };
                    for columns in [1, more] {
                        let weights = Layout { scheme, rows, k };
                        list.push(case(tier, Trial { activations, ..Trial::plain(weights, columns) }));
                    }
                }
                for (rows, k, columns, epilogue) in GATED {
                    let trial = Trial::plain(Layout { scheme, rows, k }, columns);
                    list.push(case(tier, Trial { activations, epilogue, ..trial }));
                }
                for columns in [1, 3] {
                    let trial = Trial::plain(Layout { scheme, rows: 37, k: 64 }, columns);
                    list.push(case(tier, Trial { activations, before: 5, after: 11, ..trial }));
                }
            }
            if policy::schemes(Activations::Int16).contains(&scheme) {
                list.extend(int16_cases(tier, scheme));
                list.extend(shared_x_cases(caps, tier, scheme));
            }
            if tier >= Tier::T1 && policy::schemes(Activations::Int16).contains(&scheme) {
                list.push(summed_case(scheme));
            }
            for activations in [Activations::F32, Activations::Int16] {
                if policy::schemes(activations).contains(&scheme) {
                    list.extend(
                        ExpertTrial::list(scheme, activations, 3).map(|trial| expert_case(tier, trial)),
                    );
                }
            }
        }
    }
    list.extend(equal::cases(caps));
    list
}

fn expert_case(tier: Tier, trial: ExpertTrial) -> Case {
    Case::new(trial.name(), tier, move |device| {
        let ExpertTrial { weights, activations, epilogue, output, experts, .. } = trial;
        let shape = Shape { epilogue, output, ..Shape::plain(weights, 1, activations) };
        // The shader for CPU drivers is gemm's, which has cases of its own.
        let plan = policy::at_tier(device.caps(), &shape, tier);
        let plan = if plan.lanes.is_some() { policy::at_tier(device.caps(), &shape, Tier::T0) } else { plan };
        let kernel = Gemv::for_experts(device, shape, plan, experts)?;
        trial.run(device, 1, |recorder, operands| {
            let ExpertTrialOperands { w, x, target, selected, .. } = operands;
            kernel.record_experts(recorder, "gemv", w, x, target, selected)
        })
    })
}

fn summed_case(scheme: Scheme) -> Case {
    let trial =
        SummedTrial { weights: Layout { scheme, rows: 48, k: 160 }, experts: 5, per_token: 3, rows: 3 };
    Case::new(trial.name(), Tier::T1, move |device| {
        let SummedTrial { weights, experts, per_token, .. } = trial;
        let shape = Shape::plain(weights, 1, Activations::Int16);
        let plan = policy::summed_experts_plan(device.caps(), &shape, per_token, trial.rows).expect("a plan");
        run_summed(device, trial, Gemv::for_summed_experts(device, shape, plan, experts, per_token)?)
    })
}

/// Runs sums over experts.
pub(super) fn run_summed(device: &Device, trial: SummedTrial, kernel: Gemv) -> Result<Comparison> {
    trial.run(device, |recorder, operands| {
        let SummedTrialOperands { w, x, target, selected, weights } = operands;
        kernel.record_summed_experts(recorder, "gemv", w, x, target, selected, weights)
    })
}

fn int16_cases(tier: Tier, scheme: Scheme) -> Vec<Case> {
    let plain = |rows, k, columns| {
        let trial = Trial::plain(Layout { scheme, rows, k }, columns);
        Trial { activations: Activations::Int16, ..trial }
    };
    // Models use int16 from T1 on; a few cases check it at T0.
    let (shapes, gated) = match tier {
        Tier::T0 => (&INT16_SHAPES[..2], &INT16_GATED[..2]),
        _ => (&INT16_SHAPES[..], &INT16_GATED[..]),
    };
    let mut list: Vec<Case> =
        shapes.iter().map(|(rows, k, columns)| case(tier, plain(*rows, *k, *columns))).collect();
    for (rows, k, columns, epilogue) in gated.iter().copied() {
        for output in [Activations::F32, Activations::Int16] {
            list.push(case(tier, Trial { epilogue, output, ..plain(rows, k, columns) }));
        }
    }
    let in_wider_output = Trial { before: 48, after: 16, epilogue: Epilogue::Geglu, ..plain(96, 64, 5) };
    list.push(case(tier, Trial { output: Activations::Int16, ..in_wider_output }));
    // A product of f32 activations can write int16 too.
    let from_f32 = Trial { activations: Activations::F32, ..plain(96, 64, 5) };
    list.push(case(tier, Trial { epilogue: Epilogue::Geglu, output: Activations::Int16, ..from_f32 }));
    list
}

fn case(tier: Tier, trial: Trial) -> Case {
    Case::new(trial.name(), tier, move |device| {
        run(device, trial, policy::at_tier(device.caps(), &shape(&trial), tier), device.caps())
    })
}

pub(super) fn shape(trial: &Trial) -> Shape {
    let Trial { weights, columns, activations, epilogue, output, .. } = *trial;
    Shape { epilogue, output, ..Shape::plain(weights, columns, activations) }
}

/// Runs one trial with one plan, with weights divided into blocks as `caps` requires.
pub(super) fn run(device: &Device, trial: Trial, plan: policy::Plan, caps: &Caps) -> Result<Comparison> {
    let kernel = Gemv::with_plan(device, shape(&trial), plan)?;
    trial.run(device, caps, |recorder, w, x, target, _| {
        kernel.record(recorder, "gemv", w, Source::Vectors(x), target)
    })
}

/// Products with a prologue or split-K, whose x is in shared memory: rows, K, prologue, epilogue, splits.
/// A row and a group more than a strip and a quad; the 270M's; gate and up; several quads per split, the
/// last one shorter.
const SHARED_X_SHAPES: [(usize, usize, Prologue, Epilogue, u32); 10] = [
    (17, 160, Prologue::Norm, Epilogue::None, 1),
    (50, 640, Prologue::AddAndNorm { partials: 1, post_norm: true, scaled: false }, Epilogue::None, 1),
    (96, 640, Prologue::AddAndNorm { partials: 3, post_norm: true, scaled: false }, Epilogue::Geglu, 1),
    (64, 1152, Prologue::AddAndNorm { partials: 2, post_norm: true, scaled: false }, Epilogue::Swiglu, 1),
    (50, 576, Prologue::AddAndNorm { partials: 1, post_norm: false, scaled: false }, Epilogue::None, 1),
    (96, 1536, Prologue::AddAndNorm { partials: 2, post_norm: false, scaled: false }, Epilogue::Swiglu, 1),
    (50, 640, Prologue::AddAndNorm { partials: 1, post_norm: true, scaled: true }, Epilogue::None, 1),
    (96, 1152, Prologue::AddAndNorm { partials: 2, post_norm: false, scaled: true }, Epilogue::Geglu, 1),
    (33, 1152, Prologue::None, Epilogue::None, 2),
    (40, 640, Prologue::None, Epilogue::None, 3),
];

/// A factor that is no power of two.
const RESIDUAL_SCALE: f32 = 0.37;

fn shared_x_cases(caps: &Caps, tier: Tier, scheme: Scheme) -> Vec<Case> {
    let mut list = Vec::new();
    for (rows, k, prologue, epilogue, splits) in SHARED_X_SHAPES {
        for columns in 1..=policy::MAX_SHARED_X_COLUMNS {
            if tier < Tier::T1 || !policy::has_prologue(caps, k, columns) {
                continue;
            }
            let plain = Shape::plain(Layout { scheme, rows, k }, columns, Activations::Int16);
            let shape = Shape { prologue, epilogue, splits, ..plain };
            let mut name = format!("{rows} × {k} {scheme}, {columns} columns, {prologue:?}");
            if splits > 1 {
                name += &format!(", {splits} splits");
            }
            list.push(Case::new(name, tier, move |device| {
                run_with_shared_x(device, shape, policy::at_tier(device.caps(), &shape, tier), device.caps())
            }));
        }
    }
    list
}

/// Runs one product with a prologue or splits, f32 output.
pub(super) fn run_with_shared_x(
    device: &Device,
    shape: Shape,
    plan: policy::Plan,
    caps: &Caps,
) -> Result<Comparison> {
    let (Layout { rows, k, .. }, columns, splits) = (shape.weights, shape.columns, shape.splits as usize);
    let kernel = Gemv::with_plan(device, shape, plan)?;
    let mut random = Random::new((rows * 31 + k * 7) as u64);
    let mut arena = arena(device);
    let mut w = Matrix::allocate(&mut arena, "weights", shape.weights, caps)?;
    let weights = trial::fill(&mut w, &mut random)?;
    let n = shape.epilogue.outputs(rows);
    let output = Output::new(&mut arena, n * splits * columns)?;
    let target = Target::contiguous(output.buffer.slice(0..(n * splits * columns * 4) as u64)?, n);
    let mut recorder = device.recorder()?;
    let mut comparison = Comparison::default();
    let columns_of_x = match shape.prologue {
        Prologue::None | Prologue::Factors => {
            let residual = values(&mut random, k * columns, 3.0, 0.0);
            let (vectors, x) = vectors_of(&mut arena, &residual, columns)?;
            kernel.record(&mut recorder, "gemv", &w, Source::Vectors(&vectors), &target)?;
            recorder.seal()?.run(TIMEOUT)?;
            x.chunks(k).map(|x| NormedColumn { x: x.to_vec(), rounding_errors: vec![0.0; k] }).collect()
        }
        prologue => {
            let inputs = PrologueInputs::new(&mut random, prologue, k, columns);
            let stream = Output::new(&mut arena, k * columns)?;
            let norm = inputs.norm(&mut arena, stream.buffer.slice(0..(k * columns) as u64 * 4)?)?;
            kernel.record(&mut recorder, "gemv", &w, Source::Norm(&norm), &target)?;
            recorder.seal()?.run(TIMEOUT)?;
            inputs.check_stream(&stream, &mut comparison)?;
            (0..columns).map(|column| inputs.normed(column)).collect::<Vec<_>>()
        }
    };
    let got = output.read_f32(&mut comparison)?;
    for (column, normed) in columns_of_x.iter().enumerate() {
        for (i, want) in normed.product(&weights, shape.epilogue).iter().enumerate() {
            let at = |split: usize| (column * splits + split) * n + i;
            let sum: f64 = (0..splits).map(|split| f64::from(got[at(split)])).sum();
            comparison.close(|| format!("column {column}, row {i}"), sum, want.value, want.allowed);
        }
    }
    Ok(comparison)
}

pub(super) fn values(random: &mut Random, count: usize, scale: f32, middle: f32) -> Vec<f32> {
    (0..count).map(|_| scale * (middle + random.signed())).collect()
}

/// An exact column of x, and the allowed error of its int16 form.
struct NormedColumn {
    x: Vec<f64>,
    rounding_errors: Vec<f64>,
}

impl NormedColumn {
    fn product(&self, weights: &reference::Weights, epilogue: Epilogue) -> Vec<Value> {
        let sums = reference::product(weights, &self.x, Epilogue::None, 0.0);
        let from_rounding = weights
            .magnitudes
            .chunks(self.x.len())
            .map(|row| row.iter().zip(&self.rounding_errors).map(|(w, error)| w * error).sum::<f64>());
        let sums: Vec<Value> = sums
            .iter()
            .zip(from_rounding)
            .map(|(sum, more)| Value { allowed: sum.allowed + more, ..*sum })
            .collect();
        if epilogue == Epilogue::None {
            return sums;
        }
        let pairs = sums.chunks(2 * tensor::STRIP).map(|pair| pair.split_at(tensor::STRIP));
        pairs
            .flat_map(|(gate, up)| gate.iter().zip(up))
            .map(|(g, u)| reference::gated_value(epilogue, *g, *u))
            .collect()
    }
}

/// Random inputs of a prologue: rows of the residual stream and of a sublayer's partial sums.
#[derive(Clone)]
pub(in crate::matmul) struct PrologueInputs {
    k: usize,
    /// 0 where nothing is added.
    partials: usize,
    scaled: bool,
    residual: Vec<f32>,
    sublayer: Vec<f32>,
    weight: Vec<f32>,
    post_weight: Option<Vec<f32>>,
}

impl PrologueInputs {
    pub const EPSILON: f32 = 1e-6;

    pub fn new(random: &mut Random, prologue: Prologue, k: usize, columns: usize) -> Self {
        let (partials, post_norm, scaled) = match prologue {
            Prologue::AddAndNorm { partials, post_norm, scaled } => (partials as usize, post_norm, scaled),
            Prologue::None | Prologue::Norm | Prologue::Factors => (0, false, false),
        };
        let post_weight = values(random, k, 0.5, 1.0);
        Self {
            k,
            partials,
            scaled,
            residual: values(random, k * columns, 3.0, 0.0),
            sublayer: values(random, k * columns * partials, 40.0, 0.0),
            weight: values(random, k, 0.7, 1.0),
            post_weight: post_norm.then_some(post_weight),
        }
    }

    /// Some of the rows.
    pub fn rows(&self, rows: std::ops::Range<usize>) -> Self {
        let of = |values: &[f32], width: usize| values[rows.start * width..rows.end * width].to_vec();
        let (residual, sublayer) = (of(&self.residual, self.k), of(&self.sublayer, self.partials * self.k));
        Self { residual, sublayer, ..self.clone() }
    }

    /// What they are the inputs of.
    pub fn prologue(&self) -> Prologue {
        let (partials, post_norm, scaled) = (self.partials as u32, self.post_weight.is_some(), self.scaled);
        if partials == 0 { Prologue::Norm } else { Prologue::AddAndNorm { partials, post_norm, scaled } }
    }

    pub fn norm(&self, arena: &mut gpu::Arena, stream: gpu::View) -> Result<Norm> {
        let mut buffer = |name, values: &[f32]| Ok(arena.buffer_from(name, values)?.view());
        let post_weight =
            self.post_weight.as_ref().map(|weight| buffer("post weight", weight)).transpose()?;
        let scale = self.scaled.then(|| buffer("residual scale", &[RESIDUAL_SCALE])).transpose()?;
        let sublayer = match self.partials {
            0 => None,
            _ => Some(Sublayer {
                output: buffer("sublayer", &self.sublayer)?,
                weight: post_weight,
                residual_scale: scale,
                stream: Some(stream),
            }),
        };
        Ok(Norm {
            rows: self.residual.len() / self.k,
            sublayer,
            residual: buffer("residual", &self.residual)?,
            weight: buffer("weight", &self.weight)?,
            epsilon: Self::EPSILON,
        })
    }

    /// The exact norm of a row, and the row of the stream before it.
    pub fn reference(&self, column: usize) -> (Vec<f64>, Vec<f64>) {
        let k = self.k;
        let residual = &self.residual[column * k..][..k];
        let partial_sums = &self.sublayer[column * self.partials * k..][..self.partials * k];
        let added: Vec<f32> = (0..k).map(|i| partial_sums.iter().skip(i).step_by(k).sum()).collect();
        let adds = self.partials > 0;
        norm_reference::norm(&norm_reference::Inputs {
            x: if adds { &added } else { residual },
            post_weight: self.post_weight.as_deref(),
            residual: adds.then_some(residual),
            residual_scale: self.scaled.then_some(RESIDUAL_SCALE),
            weight: &self.weight,
            epsilon: Self::EPSILON,
        })
    }

    /// The norm as int16: within slightly more than half a quantisation step.
    fn normed(&self, column: usize) -> NormedColumn {
        let (x, _) = self.reference(column);
        let rounding_errors = x.chunks(HALF_GROUP).flat_map(|group| {
            let largest = group.iter().fold(0.0_f64, |largest, x| largest.max(x.abs()));
            vec![0.51 * largest / 32639.0 + 4e-6 * largest; group.len()]
        });
        NormedColumn { rounding_errors: rounding_errors.collect(), x }
    }

    /// Compares the stream that the product wrote, if it adds to it.
    pub fn check_stream(&self, stream: &Output, comparison: &mut Comparison) -> Result<()> {
        if self.partials == 0 {
            return Ok(());
        }
        let got = stream.read_f32(comparison)?;
        for (column, row) in got.chunks(self.k).enumerate().take(self.residual.len() / self.k) {
            let (_, added) = self.reference(column);
            for (i, (got, want)) in row.iter().zip(&added).enumerate() {
                let allowed = 1e-5 * (1.0 + want.abs());
                comparison.close(
                    || format!("row {column} of the stream, {i}"),
                    f64::from(*got),
                    *want,
                    allowed,
                );
            }
        }
        Ok(())
    }
}

/// Columns in a format, f32 or int16.
pub(super) fn columns_of(
    arena: &mut gpu::Arena,
    activations: Activations,
    values: &[f32],
    columns: usize,
) -> Result<Vectors> {
    if activations == Activations::Int16 {
        return Ok(vectors_of(arena, values, columns)?.0);
    }
    let k = values.len() / columns;
    let padding = vec![0.0; k.next_multiple_of(QUAD) - k];
    let padded: Vec<f32> = values.chunks(k).flat_map(|column| [column, &padding].concat()).collect();
    Ok(Vectors { k, columns, data: VectorData::F32(arena.buffer_from("x", &padded)?) })
}

/// Columns as int16, and the values that they represent.
fn vectors_of(arena: &mut gpu::Arena, values: &[f32], columns: usize) -> Result<(Vectors, Vec<f64>)> {
    let k = values.len() / columns;
    let padded = k.next_multiple_of(QUAD);
    let plane = padded * columns;
    let mut bytes = vec![0x55_i8; 2 * plane];
    let mut scales = vec![0.0_f32; plane / HALF_GROUP];
    let mut x = Vec::with_capacity(values.len());
    for (column, values) in values.chunks(k).enumerate() {
        for (group, values) in values.chunks(HALF_GROUP).enumerate() {
            let first = column * padded + group * HALF_GROUP;
            let scale = values.iter().fold(0.0_f32, |largest, x| largest.max(x.abs())) / 32639.0;
            scales[crate::int16_scale_at(first)] = scale;
            for (i, value) in values.iter().enumerate() {
                let q = (value / scale).round() as i32;
                let low = q as i8;
                bytes[first + i] = ((q - i32::from(low)) / 256) as i8;
                bytes[plane + first + i] = low;
                x.push(f64::from(q) * f64::from(scale));
            }
        }
    }
    let data = VectorData::Int16 {
        values: arena.buffer_from("x", &bytes)?,
        scales: arena.buffer_from("x scales", &scales)?,
    };
    Ok((Vectors { k, columns, data }, x))
}
