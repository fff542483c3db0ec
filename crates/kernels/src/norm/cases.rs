//! Where the kernel is compared with its reference.

use gpu::{Caps, Device, Result, Tier};

use super::{Form, Norm, Operands, policy, reference};
use crate::{
    GROUP, QUAD, Vectors,
    selftest::{Case, Comparison, Output, Random, TIMEOUT, arena},
    vectors::VectorData,
};

/// Gemma's.
const EPSILON: f32 = 1e-6;

pub(super) fn cases(caps: &Caps) -> Vec<Case> {
    let mut list = Vec::new();
    for tier in [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier)) {
        for (post_norm, residual) in [(false, false), (false, true), (true, true), (true, false)] {
            // One value, fewer than a subgroup, odd, more than the workgroup, the 1B's and the 27B's length.
            for (rows, n) in [(1, 1), (3, 7), (2, 259), (5, 1152), (1, 5376)] {
                list.push(case(tier, Form { post_norm, residual, quantize: false, gather: false }, rows, n));
            }
            // One group, a padded quad, the 1B's length.
            for (rows, n) in [(1, 32), (3, 160), (2, 1152), (1, 5376)] {
                list.push(case(tier, Form { post_norm, residual, quantize: true, gather: false }, rows, n));
            }
            list.push(case(tier, Form { post_norm, residual, quantize: false, gather: true }, 3, 259));
        }
    }
    list
}

fn case(tier: Tier, form: Form, rows: usize, n: usize) -> Case {
    let name = format!(
        "{rows} × {n}{}{}{}{}",
        if form.post_norm { ", post-norm" } else { "" },
        if form.residual { ", residual" } else { "" },
        if form.quantize { ", to int8" } else { "" },
        if form.gather { ", gathered" } else { "" },
    );
    Case::new(name, tier, move |device| run(device, tier, form, rows, n))
}

fn run(device: &Device, tier: Tier, form: Form, rows: usize, n: usize) -> Result<Comparison> {
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
    let output = Output::new(&mut arena, if form.quantize { rows * padded / 4 } else { rows * padded })?;
    let scales = Output::new(&mut arena, rows * padded / GROUP)?;
    let plan = policy::at_tier(device.caps(), n, form, tier);
    let kernel = Norm::with_plan(device, form, n, EPSILON, plan)?;
    let data = if form.quantize {
        VectorData::Int8 { values: output.buffer, scales: scales.buffer }
    } else {
        VectorData::F32(output.buffer)
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
    match y.data {
        VectorData::F32(buffer) => {
            let got = Output::of(buffer, rows * padded).read_f32(&mut comparison)?;
            for (i, want) in want.iter().enumerate() {
                let row = if form.gather { rows - 1 - i / n } else { i / n };
                let at = || format!("row {row}, {}", i % n);
                comparison.close(at, f64::from(got[row * padded + i % n]), *want, 1e-5 * (want.abs() + 1.0));
            }
        }
        VectorData::Int8 { values, scales } | VectorData::Int16 { values, scales } => {
            let words = Output::of(values, rows * padded / 4).read(&mut comparison)?;
            let scales = Output::of(scales, rows * padded / GROUP).read_f32(&mut comparison)?;
            let bytes: &[i8] = bytemuck::cast_slice(&words);
            compare_int8(&mut comparison, &want, n, bytes, &scales);
        }
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
