//! Self-test cases: the kernel against its reference.

use gpu::{Caps, Device, Result};
use half::f16;

use super::{
    Fusion, LayerNorm, Operands,
    policy::{self, Plan},
    reference,
};
use crate::{
    Activations, F16_UNIT,
    case::{Case, Comparison, Random, TIMEOUT, arena},
    f16_at, row,
    vectors::compare::{compare, poisoned},
};

/// SigLIP's epsilon.
const EPSILON: f32 = 1e-6;

pub(super) fn cases(caps: &Caps) -> Vec<Case> {
    let mut list = Vec::new();
    // One vec4; a test model's length; idle threads; the encoder's length.
    let sizes = [(1, 4), (3, 64), (3, 140), (4, 1152)];
    for tier in row::tiers(caps) {
        for output in [Activations::F32, Activations::F16] {
            let (floats, halves) = (Some(Activations::F32), Some(Activations::F16));
            for (add, normed_residual) in [
                (None, false),
                (floats, false),
                (floats, true),
                (None, true),
                (halves, false),
                (halves, true),
            ] {
                let plans = sizes
                    .iter()
                    .filter_map(|(rows, n)| policy::at_tier(caps, *n, tier).map(|plan| (*rows, *n, plan)));
                let fusion = Fusion { add, normed_residual, output };
                list.extend(plans.map(|(rows, n, plan)| case(plan, fusion, rows, n)));
            }
        }
    }
    list
}

fn case(plan: Plan, fusion: Fusion, rows: usize, n: usize) -> Case {
    let name = format!(
        "{rows} × {n}{}, to {}{}",
        match fusion.add {
            Some(add) => format!(", residual + {add}"),
            None => String::new(),
        },
        fusion.output,
        if fusion.normed_residual { " and to the residual" } else { "" }
    );
    Case::new(name, plan.tier, move |device| run(device, plan, fusion, rows, n))
}

fn run(device: &Device, plan: Plan, fusion: Fusion, rows: usize, n: usize) -> Result<Comparison> {
    let mut random = Random::new((rows * 10007 + n) as u64);
    let mut floats =
        |count: usize, scale: f32| (0..count).map(|_| random.signed() * scale).collect::<Vec<f32>>();
    // One row more than is active: it must stay unchanged.
    let (mut x, mut before) = (floats((rows + 1) * n, 1.0), floats((rows + 1) * n, 3.0));
    if fusion.add == Some(Activations::F16) {
        x.iter_mut().for_each(|value| *value = f16::from_f32(*value / F16_UNIT).to_f32() * F16_UNIT);
    }
    let (x_bias, mut weight, bias) = (floats(n, 1.0), floats(n, 2.0), floats(n, 2.0));
    // A row with a mean far larger than its deviation, and one with a NaN, which must not affect the others.
    if rows > 2 {
        before[n..2 * n].iter_mut().for_each(|value| *value += 1000.0);
        before[2 * n + 1] = f32::NAN;
    }
    // A deviation so small that epsilon matters.
    if rows > 3 {
        before[3 * n..4 * n].iter_mut().for_each(|value| *value *= 1e-3);
    }
    // A value out of the range of f16.
    if n > 128 {
        weight[5] = 3e8;
    }
    let (before, weight) = (before, weight);
    let (want, want_residual) = reference::layer_norm(&reference::Inputs {
        x: fusion.add.is_some().then_some((&x, &x_bias)),
        residual: &before[..rows * n],
        weight: &weight,
        bias: &bias,
        epsilon: EPSILON,
    });

    let mut arena = arena(device);
    // Padding of the input rows, where their number is odd: it must not be read.
    let x_stride = if rows % 2 == 1 { n + 12 } else { n };
    let padded = x.chunks(n).flat_map(|row| row.iter().copied().chain(vec![f32::NAN; x_stride - n]));
    let padded: Vec<f32> = padded.collect();
    let x = match fusion.add {
        Some(Activations::F16) => {
            let halves = (0..padded.len()).map(|i| f16::from_f32(padded[f16_at(i)] / F16_UNIT).to_bits());
            arena.buffer_from("x", &halves.collect::<Vec<_>>())?
        }
        _ => arena.buffer_from("x", &padded)?,
    };
    let x_bias = arena.buffer_from("x bias", &x_bias)?;
    let residual = arena.buffer_from("residual", &before)?;
    let weight = arena.buffer_from("weight", &weight)?;
    let bias = arena.buffer_from("bias", &bias)?;
    let active = arena.buffer_from("active", &[rows as u32])?;
    let y = poisoned(&mut arena, fusion.output, n, rows + 1)?;
    let kernel = LayerNorm::with_plan(device, fusion, n, EPSILON, plan)?;
    let mut recorder = device.recorder()?;
    let operands = Operands {
        x: fusion.add.is_some().then(|| x.view()),
        x_stride,
        x_bias: fusion.add.is_some().then(|| x_bias.view()),
        residual: residual.view(),
        weight: weight.view(),
        bias: bias.view(),
        active: active.view(),
        y: &y,
    };
    kernel.record(&mut recorder, "layer norm", &operands)?;
    recorder.seal()?.run(TIMEOUT)?;

    let mut comparison = Comparison::default();
    let residual: Vec<f32> = residual.read_vec()?;
    comparison.equal(|| "the inactive residual row".into(), &&residual[rows * n..], &&before[rows * n..]);
    let after = if fusion.normed_residual { &want } else { &want_residual };
    for (i, want) in after.iter().enumerate() {
        let at = || format!("residual of row {}, {}", i / n, i % n);
        let allowed = if fusion.add.is_some() || fusion.normed_residual { want.allowed } else { 0.0 };
        comparison.close_or_nan(at, f64::from(residual[i]), want.value, allowed);
    }
    compare(&mut comparison, &want, y)?;
    Ok(comparison)
}
