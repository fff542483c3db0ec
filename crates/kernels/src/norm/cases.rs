//! Where the kernel is compared with its reference.

use gpu::{Caps, Device, Result, Tier};

use super::{
    Form, Norm, Operands,
    policy::{self, Plan},
    reference,
};
use crate::{
    Activations, GROUP, HALF_GROUP, QUAD, Vectors,
    quantize_rows::cases::compare_int16,
    selftest::{Case, Comparison, Output, Random, TIMEOUT, arena},
    vectors::VectorData,
};

/// Gemma's.
const EPSILON: f32 = 1e-6;

pub(super) fn cases(caps: &Caps) -> Vec<Case> {
    let mut list = Vec::new();
    for tier in [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier)) {
        for (post_norm, residual) in [(false, false), (false, true), (true, true), (true, false)] {
            let mut push = |output, gather, sizes: &[(usize, usize)]| {
                for (rows, n) in sizes.iter().copied() {
                    let form = Form { post_norm, residual, output, gather };
                    let fewest = policy::holding(caps, n, form, tier, 1);
                    let held = policy::held(caps, n, form, tier).filter(|plan| Some(*plan) != fewest);
                    let plans = [fewest, held, Some(policy::walked(caps, n, form, tier))];
                    list.extend(plans.into_iter().flatten().map(|plan| case(plan, form, rows, n)));
                }
            };
            if post_norm != residual {
                // Not Gemma's: enough that every branch is met.
                push(Activations::F32, false, &[(2, 259), (5, 1152)]);
                push(Activations::Int8, false, &[(3, 160)]);
                push(Activations::Int16, false, &[(3, 144)]);
                continue;
            }
            // One value, fewer than a subgroup, odd, more than the workgroup, some models' lengths, a thread with one of its
            // two fours.
            let sizes = [(1, 1), (3, 7), (2, 259), (2, 640), (5, 1152), (1, 2560), (1, 5376), (1, 4112)];
            push(Activations::F32, false, &sizes);
            push(Activations::F32, true, &[(3, 259), (3, 640)]);
            // One group, a padded quad, models' lengths.
            push(Activations::Int8, false, &[(1, 32), (3, 160), (1, 5376)]);
            push(Activations::Int16, false, &[(1, 16), (3, 144), (2, 1152), (1, 5376), (1, 4112)]);
            push(Activations::Int16, true, &[(3, 640)]);
        }
    }
    list
}

fn case(plan: Plan, form: Form, rows: usize, n: usize) -> Case {
    let name = format!(
        "{rows} × {n}{}{}, to {}{}{}",
        if form.post_norm { ", post-norm" } else { "" },
        if form.residual { ", residual" } else { "" },
        form.output,
        if form.gather { ", gathered" } else { "" },
        plan.per_thread.map_or(String::new(), |fours| format!(", {fours} held")),
    );
    Case::new(name, plan.tier, move |device| run(device, plan, form, rows, n))
}

fn run(device: &Device, plan: Plan, form: Form, rows: usize, n: usize) -> Result<Comparison> {
    let mut random = Random::new((rows * 10007 + n) as u64);
    let mut floats = |count: usize, scale: f32| (0..count).map(|_| random.signed() * scale).collect::<Vec<f32>>();
    // One row more than is active: it must stay as it is, and the guard behind the output with it.
    let (x, before) = (floats((rows + 1) * n, 30.0), floats((rows + 1) * n, 100.0));
    let list: Vec<u32> = (0..rows as u32).rev().chain([0]).collect();
    let (weight, post_weight) = (floats(n, 2.0), floats(n, 2.0));
    let (want, want_residual) = reference::norm(&reference::Inputs {
        x: &x[..rows * n],
        post_weight: form.post_norm.then_some(&post_weight),
        residual: form.residual.then_some(&before),
        weight: &weight,
        epsilon: EPSILON,
    });

    let mut arena = arena(device);
    let x = arena.buffer_from("x", &x)?;
    let active = arena.buffer_from("active", &[rows as u32])?;
    let list = arena.buffer_from("rows", &list)?;
    let residual = arena.buffer_from("residual", &before)?;
    let weight = arena.buffer_from("weight", &weight)?;
    let post_weight = arena.buffer_from("post weight", &post_weight)?;
    let padded = n.next_multiple_of(QUAD);
    // The row that is not active has no room of its own: what is written to it meets the guard. Only of int16 it has, since
    // low bytes lie behind its high ones.
    let (words, scales) = match form.output {
        Activations::F32 => (rows * padded, 0),
        Activations::Int8 => (rows * padded / 4, rows * padded / GROUP),
        Activations::Int16 => (2 * (rows + 1) * padded / 4, (rows + 1) * padded / HALF_GROUP),
        Activations::F16 => (rows * padded / 2, 0),
    };
    let (output, scales) = (Output::new(&mut arena, words)?, Output::new(&mut arena, scales)?);
    let kernel = Norm::with_plan(device, form, n, EPSILON, plan)?;
    let data = match form.output {
        Activations::F32 => VectorData::F32(output.buffer),
        Activations::Int8 => VectorData::Int8 { values: output.buffer, scales: scales.buffer },
        Activations::Int16 => VectorData::Int16 { values: output.buffer, scales: scales.buffer },
        Activations::F16 => VectorData::F16(output.buffer),
    };
    let y = Vectors { k: n, columns: rows + 1, data };
    let mut recorder = device.recorder()?;
    let operands = Operands {
        x: x.view(),
        post_weight: form.post_norm.then(|| post_weight.view()),
        residual: form.residual.then(|| residual.view()),
        weight: weight.view(),
        active: active.view(),
        rows: form.gather.then(|| list.view()),
        y: &y,
    };
    kernel.record(&mut recorder, "norm", &operands)?;
    recorder.seal()?.run(TIMEOUT)?;

    let mut comparison = Comparison::default();
    if form.residual {
        let residual: Vec<f32> = residual.read_vec()?;
        comparison.equal(|| "the residual that is not active".into(), &&residual[rows * n..], &&before[rows * n..]);
        for (i, want) in want_residual.iter().enumerate() {
            let at = || format!("residual of row {}, {}", i / n, i % n);
            comparison.close(at, f64::from(residual[i]), *want, 1e-5 * (want.abs() + 1.0));
        }
    }
    // In the order of the output's rows.
    let order = |row: usize| if form.gather { rows - 1 - row } else { row };
    let want: Vec<f64> = (0..rows).flat_map(|row| want[order(row) * n..][..n].iter().copied()).collect();
    match y.data {
        VectorData::F32(buffer) => {
            let got = Output::of(buffer, rows * padded).read_f32(&mut comparison)?;
            for (i, want) in want.iter().enumerate() {
                let at = || format!("row {}, {}", i / n, i % n);
                comparison.close(at, f64::from(got[i / n * padded + i % n]), *want, 1e-5 * (want.abs() + 1.0));
            }
        }
        VectorData::Int8 { values, scales } => {
            let words = Output::of(values, rows * padded / 4).read(&mut comparison)?;
            let scales = Output::of(scales, rows * padded / GROUP).read_f32(&mut comparison)?;
            let bytes: &[i8] = bytemuck::cast_slice(&words);
            compare_int8(&mut comparison, &want, n, bytes, &scales);
        }
        // Steps are so small that the rounding of the norm itself shows.
        VectorData::Int16 { .. } => compare_int16(&mut comparison, &want, y, 2e-6)?,
        VectorData::F16(_) => unreachable!("norm writes no f16 yet"),
    }
    Ok(comparison)
}

fn compare_int8(comparison: &mut Comparison, want: &[f64], n: usize, bytes: &[i8], scales: &[f32]) {
    let padded = n.next_multiple_of(QUAD);
    for (i, want_group) in want.chunks(GROUP).enumerate() {
        let (row, group) = (i / (n / GROUP), i % (n / GROUP));
        let scale = f64::from(scales[row * padded / GROUP + group]);
        let want_scale = want_group.iter().fold(0.0_f64, |largest, value| largest.max(value.abs())) / 127.0;
        comparison.close(|| format!("scale of row {row}, group {group}"), scale, want_scale, 1e-5 * want_scale);
        for (j, want) in want_group.iter().enumerate() {
            let got = f64::from(bytes[row * padded + group * GROUP + j]) * scale;
            // Half a step, and a little for values that lie between two steps.
            let at = || format!("row {row}, {}", group * GROUP + j);
            comparison.close(at, got, *want, 0.51 * want_scale);
        }
    }
    for row in 0..want.len() / n {
        for group in n / GROUP..padded / GROUP {
            let at = || format!("padding scale of row {row}, group {group}");
            comparison.equal(at, &scales[row * padded / GROUP + group], &0.0);
        }
    }
}
