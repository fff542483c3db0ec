//! Self-test cases: the kernel against its reference.

use gpu::{Caps, Device, Result};

use super::{
    Operands, Pool, Shape,
    policy::{self, Plan},
    reference,
};
use crate::{
    Activations,
    case::{Case, Comparison, Random, TIMEOUT, arena},
    row,
    vectors::compare::{compare, poisoned},
};

/// Columns, rows, side, length, stride and images: one row; a grid that is not square, with a padded stride;
/// several images; the encoder's length, with a side that is no power of two and with its own.
const SIZES: [[usize; 6]; 5] = [
    [1, 1, 1, 4, 4, 1],
    [6, 4, 2, 64, 128, 1],
    [4, 8, 4, 140, 140, 3],
    [6, 3, 3, 1152, 1152, 1],
    [8, 4, 4, 1152, 1152, 2],
];

pub(super) fn cases(caps: &Caps) -> Vec<Case> {
    let mut list = Vec::new();
    for tier in row::tiers(caps) {
        for output in [Activations::F32, Activations::F16] {
            for [columns, rows, side, n, x_stride, images] in SIZES {
                let shape = Shape { columns, rows, side, n, epsilon: 1e-6, output };
                let plan = policy::at_tier(caps, n, tier);
                list.extend(plan.map(|plan| case(plan, shape, x_stride, images)));
            }
        }
    }
    list
}

fn case(plan: Plan, shape: Shape, x_stride: usize, images: usize) -> Case {
    let Shape { columns, rows, side, n, output, .. } = shape;
    let name = format!("{images} × {columns} × {rows} by {side} × {side}, {n} to {output}");
    Case::new(name, plan.tier, move |device| run(device, plan, shape, x_stride, images))
}

fn run(device: &Device, plan: Plan, shape: Shape, x_stride: usize, images: usize) -> Result<Comparison> {
    let Shape { columns, rows, n, output, .. } = shape;
    let mut random = Random::new((columns * rows * n * images) as u64);
    let mut floats =
        |count: usize, scale: f32| (0..count).map(|_| random.signed() * scale).collect::<Vec<f32>>();
    let mut x = floats(columns * rows * images * x_stride, 10.0);
    let mut weight = floats(n, 2.0);
    // Means so small that epsilon matters: otherwise the norm would hide a wrong factor.
    let half = x.len() / 2;
    x[half..].iter_mut().for_each(|x| *x *= 1e-4);
    // NaN in the padding must not matter.
    x.chunks_mut(x_stride).for_each(|row| row[n..].fill(f32::NAN));
    // A NaN, which affects its own output row alone, and a value out of the range of f16.
    let out_rows = shape.rows_per_image() * images;
    if out_rows > 2 {
        x[n - 1] = f32::NAN;
        weight[0] = 3e8;
    }
    let (x, weight) = (x, weight);
    let mut want = reference::pool(&shape, &x, x_stride, &weight);
    // The last row is inactive where there are several: it must stay unchanged.
    let active = out_rows - usize::from(out_rows > 1);
    want.truncate(active * n);

    let mut arena = arena(device);
    let x = arena.buffer_from("x", &x)?;
    let weight = arena.buffer_from("weight", &weight)?;
    let active = arena.buffer_from("active", &[active as u32])?;
    let y = poisoned(&mut arena, output, n, out_rows)?;
    let kernel = Pool::with_plan(device, shape, plan)?;
    let mut recorder = device.recorder()?;
    let operands = Operands { x: x.view(), x_stride, weight: weight.view(), active: active.view(), y: &y };
    kernel.record(&mut recorder, "pool", &operands)?;
    recorder.seal()?.run(TIMEOUT)?;

    let mut comparison = Comparison::default();
    compare(&mut comparison, &want, y)?;
    Ok(comparison)
}
