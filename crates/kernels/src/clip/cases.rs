//! Self-test cases: the kernels against their reference.

use gpu::{Caps, Device, Result, Tier};

use super::{Clip, ClipGated, ClipRange, GatedOperands, Operands, reference};
use crate::{
    Activations, OutputFormat, Target,
    case::{Case, Comparison, Output, Random, TIMEOUT, arena},
    matmul::common::reference::Value,
    vectors::compare::{compare, poisoned},
};

/// Rows, length, stride and active rows: one vec4; idle threads; none active; padded rows with an inactive one; several
/// workgroups per row.
const SIZES: [[usize; 4]; 5] =
    [[1, 4, 4, 1], [3, 260, 260, 3], [2, 64, 64, 0], [3, 2304, 2560, 2], [2, 9000, 9000, 2]];

/// Ranges of gate, up and product: as in a file; without limits; with a limit on one side each, or none.
const GATED_RANGES: [[ClipRange; 3]; 3] = [
    [
        ClipRange { low: -8.5, high: 8.375 },
        ClipRange { low: -2.25, high: 3.0 },
        ClipRange { low: -4.0, high: 10.0 },
    ],
    [ClipRange::NONE; 3],
    [
        ClipRange { high: 1.5, ..ClipRange::NONE },
        ClipRange { low: -0.5, ..ClipRange::NONE },
        ClipRange { low: 0.25, high: 0.25 },
    ],
];

pub(super) fn cases(_: &Caps) -> Vec<Case> {
    let mut list = Vec::new();
    for size in SIZES {
        let [rows, n, stride, active] = size;
        let size_name = format!("{rows} × {n} at {stride}, {active} active");
        for output in [Activations::F32, Activations::F16] {
            let run = move |device: &Device| plain(device, output, size);
            list.push(Case::new(format!("{size_name}, to {output}"), Tier::T0, run));
            for (number, ranges) in GATED_RANGES.into_iter().enumerate() {
                let name = format!("{size_name}, GeGLU with ranges {number}, to {output}");
                let run = move |device: &Device| gated(device, output, ranges, size);
                list.push(Case::new(name, Tier::T0, run));
            }
        }
        for first in [0, 8] {
            let name = format!("{size_name}, in place from {first}");
            let run = move |device: &Device| in_place(device, first, size);
            list.push(Case::new(name, Tier::T0, run));
        }
    }
    list
}

/// A range of each kind in turn: two limits, none, one, a single value, and no value at all.
fn ranges(n: usize, random: &mut Random) -> Vec<ClipRange> {
    let range = |i: usize| {
        let [a, b] = [random.signed(), random.signed() + 1.0];
        match i % 6 {
            0 => ClipRange { low: a - 1.0, high: b },
            1 => ClipRange::NONE,
            2 => ClipRange { high: b, ..ClipRange::NONE },
            3 => ClipRange { low: a, ..ClipRange::NONE },
            4 => ClipRange { low: a, high: a },
            _ => ClipRange { low: 1.0, high: -1.0 },
        }
    };
    (0..n).map(range).collect()
}

/// As [`Operands::ranges`].
fn pairs(ranges: &[ClipRange]) -> Vec<[f32; 2]> {
    ranges.iter().map(|range| [range.low, range.high]).collect()
}

/// Input rows of `length` values at `stride`: on either side of the ranges, out of the range of f16, and a NaN. The
/// padding is NaN.
fn input(rows: usize, length: usize, stride: usize, random: &mut Random) -> Vec<f32> {
    let scales = [1e-4, 1.0, 3.0, 10.0, 1e4];
    let mut x: Vec<f32> = (0..rows * stride).map(|i| random.signed() * scales[i % scales.len()]).collect();
    x.chunks_mut(stride).for_each(|row| row[length..].fill(f32::NAN));
    (x[0], x[length / 2]) = (4e6, f32::NAN);
    x
}

fn plain(device: &Device, output: Activations, [rows, n, stride, active]: [usize; 4]) -> Result<Comparison> {
    let mut random = Random::new((rows * n) as u64);
    let (ranges, mut x) = (ranges(n, &mut random), input(rows, n, stride, &mut random));
    // Out of the range of f16 in a column without limits.
    x[1] = -4e6;
    let x = x;
    let mut arena = arena(device);
    let y = poisoned(&mut arena, output, n, rows)?;
    let operands = Operands {
        x: arena.buffer_from("x", &x)?.view(),
        x_stride: stride,
        ranges: arena.buffer_from("ranges", &pairs(&ranges))?.view(),
        target: &Target::vectors(&y)?,
        active: arena.buffer_from("active", &[active as u32])?.view(),
    };
    let mut recorder = device.recorder()?;
    Clip::new(device, output, n)?.record(&mut recorder, "clip", rows, &operands)?;
    recorder.seal()?.run(TIMEOUT)?;

    let mut comparison = Comparison::default();
    let rows = x.chunks(stride).take(active);
    let want: Vec<Value> =
        rows.flat_map(|row| row.iter().zip(&ranges).map(|(x, range)| reference::clip(*x, *range))).collect();
    compare(&mut comparison, &want, y)?;
    Ok(comparison)
}

/// The columns from `first` on are clipped where they are; everything else stays unchanged.
fn in_place(device: &Device, first: usize, [rows, n, stride, active]: [usize; 4]) -> Result<Comparison> {
    let stride = stride + first;
    let mut random = Random::new((rows * n) as u64);
    let (ranges, mut x) = (ranges(n, &mut random), input(rows, first + n, stride, &mut random));
    // Columns without limits keep what is infinite.
    x[first + 1] = f32::INFINITY;
    let x = x;
    let mut arena = arena(device);
    let mut output = Output::new(&mut arena, x.len())?;
    output.buffer.write(0, bytemuck::cast_slice(&x))?;
    let bytes = x.len() as u64 * 4;
    let target = Target { y: output.buffer.slice(0..bytes)?, format: OutputFormat::F32, first, stride };
    let operands = Operands {
        x: output.buffer.slice(first as u64 * 4..bytes)?,
        x_stride: stride,
        ranges: arena.buffer_from("ranges", &pairs(&ranges))?.view(),
        target: &target,
        active: arena.buffer_from("active", &[active as u32])?.view(),
    };
    let mut recorder = device.recorder()?;
    Clip::new(device, Activations::F32, n)?.record(&mut recorder, "clip", rows, &operands)?;
    recorder.seal()?.run(TIMEOUT)?;

    let mut comparison = Comparison::default();
    let got = output.read_f32(&mut comparison)?;
    for (row, (got, x)) in got.chunks(stride).zip(x.chunks(stride)).enumerate() {
        for (column, (got, x)) in got.iter().zip(x).enumerate() {
            let range = column.checked_sub(first).and_then(|column| ranges.get(column));
            let want = match range.filter(|_| row < active) {
                Some(range) => reference::clip(*x, *range).value as f32,
                None => *x,
            };
            let at = || format!("value {column} of row {row}");
            if want.is_nan() {
                comparison.equal(|| format!("whether {} is NaN", at()), &got.is_nan(), &true);
            } else {
                comparison.equal(at, got, &want);
            }
        }
    }
    Ok(comparison)
}

fn gated(
    device: &Device,
    output: Activations,
    ranges: [ClipRange; 3],
    [rows, n, stride, active]: [usize; 4],
) -> Result<Comparison> {
    let mut random = Random::new((rows * n) as u64);
    let stride = n + stride;
    let mut x = input(rows, 2 * n, stride, &mut random);
    // A NaN of the gate, beside that of up. Ups are small, as the shader's sigmoid ends at e⁻⁸⁰ and not at 0.
    x[n - 1] = f32::NAN;
    x.chunks_mut(stride).for_each(|row| row[n..].iter_mut().for_each(|up| *up *= 5e-4));
    let x = x;
    let mut arena = arena(device);
    let y = poisoned(&mut arena, output, n, rows)?;
    let [gate, up, product] = ranges;
    let operands = GatedOperands {
        x: arena.buffer_from("x", &x)?.view(),
        x_stride: stride,
        gate,
        up,
        product,
        active: arena.buffer_from("active", &[active as u32])?.view(),
        y: &y,
    };
    let mut recorder = device.recorder()?;
    ClipGated::new(device, output, n)?.record(&mut recorder, "clip", &operands)?;
    recorder.seal()?.run(TIMEOUT)?;

    let mut comparison = Comparison::default();
    let rows = x.chunks(stride).take(active);
    let want: Vec<Value> = rows
        .flat_map(|row| {
            let (gate, up) = row[..2 * n].split_at(n);
            gate.iter().zip(up).map(|(gate, up)| reference::clip_gated(*gate, *up, ranges))
        })
        .collect();
    compare(&mut comparison, &want, y)?;
    Ok(comparison)
}
