//! Self-test cases: the kernel against its reference.

use gpu::{Caps, Device, Result, Tier};

use super::{
    Fusion, Norm, Operands,
    policy::{self, Plan},
    reference,
};
use crate::{
    Activations,
    case::{Case, Comparison, Random, TIMEOUT, arena},
    matmul::common::reference::Value,
    vectors::compare::{compare, poisoned},
};

/// Gemma's epsilon.
const EPSILON: f32 = 1e-6;
/// A factor that is no power of two.
const RESIDUAL_SCALE: f32 = 0.37;

pub(super) fn cases(caps: &Caps) -> Vec<Case> {
    let mut list = Vec::new();
    for tier in [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier)) {
        for (post_norm, residual) in [(false, false), (false, true), (true, true), (true, false)] {
            let mut push_scaled = |scaled, output, gather, partials, sizes: &[(usize, usize)]| {
                for (rows, n) in sizes.iter().copied() {
                    let weighted = partials == 8;
                    let fusion = Fusion { post_norm, residual, scaled, output, gather, partials, weighted };
                    let min_plan = policy::in_registers_with(caps, n, fusion, tier, 1);
                    let in_registers =
                        policy::in_registers(caps, n, fusion, tier).filter(|plan| Some(*plan) != min_plan);
                    let plans = [min_plan, in_registers, Some(policy::looped(caps, n, fusion, tier))];
                    list.extend(plans.into_iter().flatten().map(|plan| case(plan, fusion, rows, n)));
                }
            };
            if residual {
                push_scaled(true, Activations::F32, false, 1, &[(2, 259)]);
                push_scaled(true, Activations::Int16, false, 1, &[(2, 640)]);
                push_scaled(true, Activations::F16, true, 2, &[(3, 640)]);
            }
            let mut push = |output, gather, partials, sizes: &[(usize, usize)]| {
                push_scaled(false, output, gather, partials, sizes);
            };
            if post_norm != residual {
                // Enough to cover every branch.
                push(Activations::F32, false, 1, &[(2, 259), (5, 1152)]);
                push(Activations::Int8, false, 1, &[(3, 160)]);
                push(Activations::Int16, false, 1, &[(3, 144)]);
                push(Activations::F16, false, 1, &[(3, 140)]);
                if residual {
                    // Llama's: its input may be partial sums, and its last rows are gathered.
                    push(Activations::F32, true, 1, &[(3, 576)]);
                    push(Activations::Int16, true, 1, &[(3, 576)]);
                    push(Activations::F16, true, 2, &[(3, 576)]);
                    // The outputs of eight experts.
                    for output in [Activations::F32, Activations::Int16, Activations::F16] {
                        push(output, false, 8, &[(3, 576)]);
                        push(output, true, 8, &[(3, 576)]);
                    }
                }
                continue;
            }
            // One value, fewer than a subgroup, odd, more than the workgroup, some models' lengths, a thread
            // with one of its two vec4s.
            let sizes = [(1, 1), (3, 7), (2, 259), (2, 640), (5, 1152), (1, 2560), (1, 5376), (1, 4112)];
            push(Activations::F32, false, 1, &sizes);
            push(Activations::F32, true, 1, &[(3, 259), (3, 640)]);
            // One group, a padded quad, models' lengths.
            push(Activations::Int8, false, 1, &[(1, 32), (3, 160), (1, 5376)]);
            push(Activations::Int16, false, 1, &[(1, 16), (3, 144), (2, 1152), (1, 5376), (1, 4112)]);
            push(Activations::Int16, true, 1, &[(3, 640)]);
            push(Activations::F16, false, 1, &[(1, 4), (3, 140), (2, 1152), (1, 5376), (1, 4112)]);
            push(Activations::F16, true, 1, &[(3, 640)]);
            // Split-K partial sums.
            push(Activations::F16, false, 3, &[(2, 1152), (1, 5376)]);
            push(Activations::F16, true, 2, &[(3, 640)]);
            push(Activations::F32, false, 2, &[(2, 259)]);
        }
    }
    list
}

fn case(plan: Plan, fusion: Fusion, rows: usize, n: usize) -> Case {
    let name = format!(
        "{rows} × {n}{}{}{}, to {}{}{}",
        match (fusion.partials, fusion.weighted) {
            (1, _) => String::new(),
            (partials, false) => format!(" of {partials} partials"),
            (partials, true) => format!(" of {partials} weighted partials"),
        },
        if fusion.post_norm { ", post-norm" } else { "" },
        match (fusion.residual, fusion.scaled) {
            (true, true) => ", scaled residual",
            (true, false) => ", residual",
            (false, _) => "",
        },
        fusion.output,
        if fusion.gather { ", gathered" } else { "" },
        plan.vec4s_per_thread.map_or(String::new(), |vec4s| format!(", {vec4s} vec4s per thread")),
    );
    Case::new(name, plan.tier, move |device| run(device, plan, fusion, rows, n))
}

fn run(device: &Device, plan: Plan, fusion: Fusion, rows: usize, n: usize) -> Result<Comparison> {
    let mut random = Random::new((rows * 10007 + n) as u64);
    let mut floats =
        |count: usize, scale: f32| (0..count).map(|_| random.signed() * scale).collect::<Vec<f32>>();
    // One row more than is active: it must stay unchanged.
    let (mut x, before) = (floats((rows + 1) * n, 30.0), floats((rows + 1) * n, 100.0));
    // Partial sums that add up to x without rounding: all are multiples of a power of two.
    let mut partials: Vec<Vec<f32>> = (1..fusion.partials).map(|_| floats(x.len(), 30.0)).collect();
    for value in partials.iter_mut().flatten().chain(&mut x) {
        *value = (*value * 1024.0).round() / 1024.0;
    }
    let first = x
        .iter()
        .enumerate()
        .map(|(i, x)| *x - partials.iter().map(|partial| partial[i]).sum::<f32>())
        .collect();
    let partials: Vec<Vec<f32>> = [first].into_iter().chain(partials).collect();
    let partials: Vec<f32> = (0..=rows)
        .flat_map(|row| partials.iter().flat_map(move |partial| &partial[row * n..][..n]))
        .copied()
        .collect();
    // Powers of two, so that dividing by them is exact.
    let partial_weights: Vec<f32> = (0..partials.len() / n).map(|i| [0.5, 2.0, 0.25][i % 3]).collect();
    let partials: Vec<f32> = match fusion.weighted {
        true => partials.iter().enumerate().map(|(i, value)| value / partial_weights[i / n]).collect(),
        false => partials,
    };
    let list: Vec<u32> = (0..rows as u32).rev().chain([0]).collect();
    let (mut weight, post_weight) = (floats(n, 2.0), floats(n, 2.0));
    // A weight that takes a value out of the range of f16, and a NaN: neither may affect other groups.
    if n > 128 {
        (weight[5], weight[n - 3]) = (3e8, f32::NAN);
    }
    let weight = weight;
    let (want, want_residual) = reference::norm(&reference::Inputs {
        x: &x[..rows * n],
        post_weight: fusion.post_norm.then_some(&post_weight),
        residual: fusion.residual.then_some(&before),
        residual_scale: fusion.scaled.then_some(RESIDUAL_SCALE),
        weight: &weight,
        epsilon: EPSILON,
    });

    let mut arena = arena(device);
    let x = arena.buffer_from("x", &partials)?;
    let partial_weights = arena.buffer_from("weights of partial sums", &partial_weights)?;
    let active = arena.buffer_from("active", &[rows as u32])?;
    let list = arena.buffer_from("rows", &list)?;
    let residual = arena.buffer_from("residual", &before)?;
    let residual_scale = arena.buffer_from("residual scale", &[RESIDUAL_SCALE])?;
    let weight = arena.buffer_from("weight", &weight)?;
    let post_weight = arena.buffer_from("post weight", &post_weight)?;
    let y = poisoned(&mut arena, fusion.output, n, rows + 1)?;
    let kernel = Norm::with_plan(device, fusion, n, EPSILON, plan)?;
    let mut recorder = device.recorder()?;
    let operands = Operands {
        x: x.view(),
        partial_weights: fusion.weighted.then(|| partial_weights.view()),
        post_weight: fusion.post_norm.then(|| post_weight.view()),
        residual: fusion.residual.then(|| residual.view()),
        residual_scale: fusion.scaled.then(|| residual_scale.view()),
        weight: weight.view(),
        active: active.view(),
        rows: fusion.gather.then(|| list.view()),
        y: &y,
    };
    kernel.record(&mut recorder, "norm", &operands)?;
    recorder.seal()?.run(TIMEOUT)?;

    let mut comparison = Comparison::default();
    if fusion.residual {
        let residual: Vec<f32> = residual.read_vec()?;
        comparison.equal(|| "the inactive residual row".into(), &&residual[rows * n..], &&before[rows * n..]);
        for (i, want) in want_residual.iter().enumerate() {
            let at = || format!("residual of row {}, {}", i / n, i % n);
            comparison.close(at, f64::from(residual[i]), *want, 1e-5 * (want.abs() + 1.0));
        }
    }
    // In the order of the output rows.
    let order = |row: usize| if fusion.gather { rows - 1 - row } else { row };
    let want = (0..rows).flat_map(|row| &want[order(row) * n..][..n]);
    let allowed = |want: f64| match fusion.output {
        Activations::F32 | Activations::F16 => 1e-5 * (want.abs() + 1.0),
        Activations::Int8 => 0.0,
        // Steps are so small that the rounding of the norm itself matters.
        Activations::Int16 => 2e-6 * want.abs(),
    };
    let want: Vec<Value> = want.map(|want| Value { value: *want, allowed: allowed(*want) }).collect();
    compare(&mut comparison, &want, y)?;
    Ok(comparison)
}
