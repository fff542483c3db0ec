//! Self-test cases: the kernel against its reference.

use std::ops::Range;

use gpu::{Caps, Device, Result, Tier};

use super::{Operands, RowMean, reference};
use crate::{
    Activations,
    case::{Case, Comparison, Random, TIMEOUT, arena},
    vectors::compare::{compare, poisoned},
};

pub(super) fn cases(_: &Caps) -> Vec<Case> {
    // One vec4, and ranges that overlap; single rows, which are copied; idle threads and lengths around the number of sums; a model's length,
    // in several workgroups.
    let cases: [(usize, Vec<Range<usize>>); 4] = [
        (4, vec![0..1, 0..2]),
        (64, vec![0..1, 4..5, 2..3]),
        (140, vec![0..2, 2..6, 6..11, 11..19]),
        (768, vec![0..3, 3..130]),
    ];
    let case = |output, (n, ranges): (usize, Vec<Range<usize>>)| {
        let name = format!("{} ranges of rows of {n}, to {output}", ranges.len());
        Case::new(name, Tier::T0, move |device| run(device, output, n, &ranges))
    };
    [Activations::F32, Activations::F16]
        .into_iter()
        .flat_map(|output| cases.clone().map(|of| case(output, of)))
        .collect()
}

fn run(device: &Device, output: Activations, n: usize, ranges: &[Range<usize>]) -> Result<Comparison> {
    let rows = ranges.iter().map(|range| range.end).max().unwrap_or(0);
    let mut random = Random::new((rows * n) as u64);
    let x: Vec<f32> = (0..rows * n).map(|_| random.signed() * 3.0).collect();
    let want = reference::row_means(&x, n, ranges);

    let mut arena = arena(device);
    // Padding of the input rows must not be read.
    let x_stride = n + 12;
    let padded = x.chunks(n).flat_map(|row| row.iter().copied().chain(vec![f32::NAN; x_stride - n]));
    let input = arena.buffer_from("x", &padded.collect::<Vec<_>>())?;
    // One range more than is active: its column must stay unchanged.
    let words = ranges.iter().flat_map(|range| [range.start as u32, range.end as u32]);
    let words = arena.buffer_from("ranges", &words.chain([0, 1]).collect::<Vec<_>>())?;
    let active = arena.buffer_from("active", &[ranges.len() as u32])?;
    let y = poisoned(&mut arena, output, n, ranges.len() + 1)?;
    let kernel = RowMean::new(device, output, n)?;
    let mut recorder = device.recorder()?;
    let operands = Operands { x: input.view(), x_stride, ranges: words.view(), active: active.view(), y: &y };
    kernel.record(&mut recorder, "row mean", &operands)?;
    recorder.seal()?.run(TIMEOUT)?;
    let mut comparison = Comparison::default();
    compare(&mut comparison, &want, y)?;
    Ok(comparison)
}
