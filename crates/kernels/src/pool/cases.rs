//! Self-test cases: the kernel against its reference.

use gpu::{Caps, Device, Result};

use super::{
    Operands, Pool, Shape, Standardise,
    policy::{self, GEMMA3, GEMMA4_LARGE, GEMMA4_SMALL, Plan},
    reference, squares,
};
use crate::{
    Activations,
    case::{Case, Comparison, Random, TIMEOUT, arena},
    row,
    vectors::compare::{compare, poisoned},
};

/// Columns and rows of each image's grid, side, length and stride.
struct Size(&'static [(usize, usize)], usize, usize, usize);

/// One row; a grid that is not square, with a padded stride; several images of the same size; the length of encoders,
/// with their sides and images of different sizes.
const SIZES: [Size; 5] = [
    Size(&[(1, 1)], 1, 4, 4),
    Size(&[(6, 4)], 2, 64, 128),
    Size(&[(4, 8), (4, 8), (4, 8)], 4, 140, 140),
    Size(&[(6, 3), (3, 3), (3, 9)], 3, 1152, 1152),
    Size(&[(8, 4), (4, 12)], 4, 1152, 1152),
];

pub(super) fn cases(caps: &Caps) -> Vec<Case> {
    let everything = Shape { weight: true, ..GEMMA4_LARGE };
    let mut list = Vec::new();
    for tier in row::tiers(caps) {
        for output in [Activations::F32, Activations::F16] {
            for Size(images, side, n, x_stride) in SIZES {
                for shape in [GEMMA3, GEMMA4_SMALL, GEMMA4_LARGE, everything] {
                    let shape = Shape { side, n, output, ..shape };
                    let plan = policy::at_tier(caps, n, tier);
                    list.extend(plan.map(|plan| case(plan, shape, x_stride, images)));
                }
            }
        }
    }
    list
}

fn case(plan: Plan, shape: Shape, x_stride: usize, images: &'static [(usize, usize)]) -> Case {
    let Shape { side, n, factor, standardise, weight, output, .. } = shape;
    let grids: Vec<String> = images.iter().map(|(columns, rows)| format!("{columns} × {rows}")).collect();
    let name = format!(
        "{} by {side} × {side}, {n}, factor {factor}{}{} to {output}",
        grids.join(" and "),
        if standardise { ", standardise" } else { "" },
        if weight { ", weight" } else { "" },
    );
    Case::new(name, plan.tier, move |device| run(device, plan, shape, x_stride, images))
}

fn run(
    device: &Device,
    plan: Plan,
    shape: Shape,
    x_stride: usize,
    images: &[(usize, usize)],
) -> Result<Comparison> {
    let Shape { side, n, output, .. } = shape;
    // An unused input row precedes each image.
    let mut input_rows = 0;
    let mut all_squares = Vec::new();
    for (columns, rows) in images {
        all_squares.extend(squares(input_rows + 1, *columns, *rows, side)?);
        input_rows += 1 + columns * rows;
    }
    let mut random = Random::new((input_rows * n) as u64);
    let mut floats =
        |count: usize, scale: f32| (0..count).map(|_| random.signed() * scale).collect::<Vec<f32>>();
    let mut x = floats(input_rows * x_stride, 10.0);
    let (bias, scale, mut weight) = (floats(n, 1e-3), floats(n, 2.0), floats(n, 2.0));
    // Means so small that epsilon matters: otherwise the norm would hide a wrong factor.
    let half = x.len() / 2;
    x[half..].iter_mut().for_each(|x| *x *= 1e-4);
    // NaN in unused rows and in the padding must not matter.
    x[..x_stride].fill(f32::NAN);
    x.chunks_mut(x_stride).for_each(|row| row[n..].fill(f32::NAN));
    let out_rows = all_squares.len();
    // A NaN, which affects its own output row alone, and a value out of the range of f16.
    if out_rows > 2 {
        x[x_stride + n - 1] = f32::NAN;
        weight[0] = 3e8;
    }
    // Squares past the end of the input, with all their lines and with the last ones.
    if out_rows > 4 {
        all_squares[1] = [input_rows as u32, 1];
        all_squares[2][1] = input_rows as u32;
    }
    let (x, weight, all_squares) = (x, weight, all_squares);
    let mut want = reference::pool(
        &shape,
        &reference::Inputs {
            x: &x,
            x_stride,
            squares: &all_squares,
            standardise: shape.standardise.then_some((&bias, &scale)),
            weight: shape.weight.then_some(&weight),
        },
    );
    // The last row is inactive where there are several: it must stay unchanged.
    let active = out_rows - usize::from(out_rows > 1);
    want.truncate(active * n);

    let mut arena = arena(device);
    let x = arena.buffer_from("x", &x)?;
    let squares = arena.buffer_from("squares", &all_squares)?;
    let (bias, scale) = (arena.buffer_from("bias", &bias)?, arena.buffer_from("scale", &scale)?);
    let weight = arena.buffer_from("weight", &weight)?;
    let active = arena.buffer_from("active", &[active as u32])?;
    let y = poisoned(&mut arena, output, n, out_rows)?;
    let kernel = Pool::with_plan(device, shape, plan)?;
    let mut recorder = device.recorder()?;
    let operands = Operands {
        x: x.view(),
        x_stride,
        squares: squares.view(),
        standardise: shape.standardise.then(|| Standardise { bias: bias.view(), scale: scale.view() }),
        weight: shape.weight.then(|| weight.view()),
        active: active.view(),
        y: &y,
    };
    kernel.record(&mut recorder, "pool", &operands)?;
    recorder.seal()?.run(TIMEOUT)?;

    let mut comparison = Comparison::default();
    compare(&mut comparison, &want, y)?;
    Ok(comparison)
}
