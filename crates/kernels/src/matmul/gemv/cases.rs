//! Self-test cases: the kernel against its reference.

use gpu::{Caps, Device, Result, Tier};
use tensor::{Layout, QUAD, Scheme};

use super::{
    Gemv, MAX_COLUMNS, Norm, Source, Sublayer, policy,
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
        let plan = policy::summed_experts_plan(device.caps(), &shape, per_token).expect("a plan");
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
        if tier < Tier::T1 || !policy::has_prologue(caps, k) {
            continue;
        }
        let plain = Shape::plain(Layout { scheme, rows, k }, 1, Activations::Int16);
        let shape = Shape { prologue, epilogue, splits, ..plain };
        let mut name = format!("{rows} × {k} {scheme}, {prologue:?}");
        if splits > 1 {
            name += &format!(", {splits} splits");
        }
        list.push(Case::new(name, tier, move |device| {
            run_with_shared_x(device, shape, policy::at_tier(device.caps(), &shape, tier), device.caps())
        }));
    }
    list
}

/// Runs one product of one column with a prologue or splits, f32 output.
pub(super) fn run_with_shared_x(
    device: &Device,
    shape: Shape,
    plan: policy::Plan,
    caps: &Caps,
) -> Result<Comparison> {
    let Layout { rows, k, .. } = shape.weights;
    let kernel = Gemv::with_plan(device, shape, plan)?;
    let mut random = Random::new((rows * 31 + k * 7) as u64);
    let mut arena = arena(device);
    let mut w = Matrix::allocate(&mut arena, "weights", shape.weights, caps)?;
    let weights = trial::fill(&mut w, &mut random)?;
    let mut row = |scale: f32, middle: f32| -> Vec<f32> {
        (0..k).map(|_| scale * (middle + random.signed())).collect()
    };
    let (residual, weight, post_weight) = (row(3.0, 0.0), row(0.7, 1.0), row(0.5, 1.0));
    let partial_sums: Vec<Vec<f32>> = (0..3).map(|_| row(40.0, 0.0)).collect();
    let epsilon = 1e-6;

    let n = shape.epilogue.outputs(rows);
    let output = Output::new(&mut arena, n * shape.splits as usize)?;
    let stream = Output::new(&mut arena, k)?;
    let target = Target::contiguous(output.buffer.slice(0..(n * shape.splits as usize * 4) as u64)?, n);
    let mut recorder = device.recorder()?;
    let mut comparison = Comparison::default();
    // The exact x, and the allowed error of its int16 form: slightly more than half a quantisation
    // step.
    let (x, rounding_errors) = match shape.prologue {
        Prologue::None => {
            let (vectors, x) = vectors_of(&mut arena, &residual)?;
            kernel.record(&mut recorder, "gemv", &w, Source::Vectors(&vectors), &target)?;
            recorder.seal()?.run(TIMEOUT)?;
            (x, vec![0.0; k])
        }
        prologue => {
            let partials =
                if let Prologue::AddAndNorm { partials, .. } = prologue { partials as usize } else { 0 };
            let post_norm = matches!(prologue, Prologue::AddAndNorm { post_norm: true, .. });
            let scaled = matches!(prologue, Prologue::AddAndNorm { scaled: true, .. });
            let added: Vec<f32> = (0..k)
                .map(|i| partial_sums[..partials].iter().map(|partial_sum| partial_sum[i]).sum())
                .collect();
            let sublayer = match partials {
                0 => None,
                _ => Some(Sublayer {
                    output: arena.buffer_from("sublayer", &partial_sums[..partials].concat())?.view(),
                    weight: match post_norm {
                        true => Some(arena.buffer_from("post weight", &post_weight)?.view()),
                        false => None,
                    },
                    residual_scale: match scaled {
                        true => Some(arena.buffer_from("residual scale", &[RESIDUAL_SCALE])?.view()),
                        false => None,
                    },
                    stream: Some(stream.buffer.slice(0..k as u64 * 4)?),
                }),
            };
            let norm = Norm {
                sublayer,
                residual: arena.buffer_from("residual", &residual)?.view(),
                weight: arena.buffer_from("weight", &weight)?.view(),
                epsilon,
            };
            kernel.record(&mut recorder, "gemv", &w, Source::Norm(&norm), &target)?;
            recorder.seal()?.run(TIMEOUT)?;
            let inputs = norm_reference::Inputs {
                x: if partials == 0 { &residual } else { &added },
                post_weight: post_norm.then_some(&post_weight),
                residual: (partials > 0).then_some(&residual),
                residual_scale: scaled.then_some(RESIDUAL_SCALE),
                weight: &weight,
                epsilon,
            };
            let (x, added) = norm_reference::norm(&inputs);
            let got = stream.read_f32(&mut comparison)?;
            if partials > 0 {
                for (i, (got, want)) in got.iter().zip(&added).enumerate() {
                    comparison.close(
                        || format!("stream {i}"),
                        f64::from(*got),
                        *want,
                        1e-5 * (1.0 + want.abs()),
                    );
                }
            }
            let rounding_errors = x.chunks(HALF_GROUP).flat_map(|group| {
                let largest = group.iter().fold(0.0_f64, |largest, x| largest.max(x.abs()));
                vec![0.51 * largest / 32639.0 + 4e-6 * largest; group.len()]
            });
            let rounding_errors = rounding_errors.collect();
            (x, rounding_errors)
        }
    };
    let sums = reference::product(&weights, &x, Epilogue::None, 0.0);
    let from_rounding = weights
        .magnitudes
        .chunks(k)
        .map(|row| row.iter().zip(&rounding_errors).map(|(w, error)| w * error).sum::<f64>());
    let sums: Vec<Value> = sums
        .iter()
        .zip(from_rounding)
        .map(|(sum, more)| Value { allowed: sum.allowed + more, ..*sum })
        .collect();
    let want: Vec<Value> = match shape.epilogue {
        Epilogue::None => sums,
        epilogue => {
            let pairs = sums.chunks(2 * tensor::STRIP).map(|pair| pair.split_at(tensor::STRIP));
            pairs
                .flat_map(|(gate, up)| gate.iter().zip(up))
                .map(|(g, u)| reference::gated_value(epilogue, *g, *u))
                .collect()
        }
    };
    let got = output.read_f32(&mut comparison)?;
    for (i, want) in want.iter().enumerate() {
        let sum: f64 = (0..shape.splits as usize).map(|split| f64::from(got[split * n + i])).sum();
        comparison.close(|| format!("row {i}"), sum, want.value, want.allowed);
    }
    Ok(comparison)
}

/// One column as int16, and the values that it represents.
fn vectors_of(arena: &mut gpu::Arena, values: &[f32]) -> Result<(Vectors, Vec<f64>)> {
    let k = values.len();
    let plane = k.next_multiple_of(QUAD);
    let mut bytes = vec![0x55_i8; 2 * plane];
    let mut scales = vec![0.0_f32; plane / HALF_GROUP];
    let mut x = Vec::with_capacity(k);
    for (group, values) in values.chunks(HALF_GROUP).enumerate() {
        let scale = values.iter().fold(0.0_f32, |largest, x| largest.max(x.abs())) / 32639.0;
        scales[crate::int16_scale_at(group * HALF_GROUP)] = scale;
        for (i, value) in values.iter().enumerate() {
            let q = (value / scale).round() as i32;
            let low = q as i8;
            bytes[group * HALF_GROUP + i] = ((q - i32::from(low)) / 256) as i8;
            bytes[plane + group * HALF_GROUP + i] = low;
            x.push(f64::from(q) * f64::from(scale));
        }
    }
    let data = VectorData::Int16 {
        values: arena.buffer_from("x", &bytes)?,
        scales: arena.buffer_from("x scales", &scales)?,
    };
    Ok((Vectors { k, columns: 1, data }, x))
}
