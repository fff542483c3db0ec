//! Self-test cases: the kernel against its reference.

use std::ops::Range;

use gpu::{Caps, Device, Result, Tier};
use tensor::QUAD;

use super::{QuantizeRows, policy};
use crate::{
    Activations, HALF_GROUP, Vectors,
    case::{Case, Comparison, Random, TIMEOUT, arena},
    matmul::common::reference::Value,
    vectors::{
        VectorData,
        compare::{compare_from, poisoned},
    },
};

pub(super) fn cases(caps: &Caps) -> Vec<Case> {
    let mut list = Vec::new();
    for tier in [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier)) {
        let mut push = |output, sizes: &[(usize, usize, Range<usize>)]| {
            for (rows, k, active) in sizes.iter().cloned() {
                let name = format!("{rows} × {k} to {output}, {active:?} active");
                list.push(Case::new(name, tier, move |device| {
                    run(device, tier, output, rows, k, active.clone())
                }));
            }
        };
        // One half group, padded quads, the heads of the 270M and of the 27B, no active row, active rows
        // after inactive ones.
        push(
            Activations::Int16,
            &[
                (1, 16, 0..1),
                (3, 144, 0..2),
                (2, 1024, 0..2),
                (3, 4096, 0..2),
                (2, 2064, 0..0),
                (4, 144, 1..3),
            ],
        );
        push(
            Activations::F16,
            &[
                (1, 4, 0..1),
                (3, 140, 0..2),
                (2, 1024, 0..2),
                (3, 4096, 0..2),
                (2, 2064, 0..0),
                (4, 140, 1..3),
            ],
        );
    }
    list
}

fn run(
    device: &Device,
    tier: Tier,
    output: Activations,
    rows: usize,
    k: usize,
    active: Range<usize>,
) -> Result<Comparison> {
    let mut random = Random::new((rows * k) as u64);
    let padded = k.next_multiple_of(QUAD);
    // Half groups of all magnitudes, some zero, some beyond the range of f16; the content of the padding must
    // not matter.
    let sizes = [1.0, 1e-20, 0.0, 1e20, 30.0, 1e-5, 3e6];
    let mut x: Vec<f32> = (0..rows * padded)
        .map(|i| if i % padded < k { random.signed() * sizes[i / HALF_GROUP % sizes.len()] } else { 1e6 })
        .collect();
    // NaN stays NaN, and infinity exceeds f16.
    if k > HALF_GROUP {
        x[k - 2] = f32::NAN;
        if output == Activations::F16 {
            (x[k - 5], x[k - 6]) = (f32::INFINITY, f32::NEG_INFINITY);
        }
    }
    let x = x;

    let mut arena = arena(device);
    let count = arena.buffer_from("active", &[active.start as u32, active.end as u32])?;
    let floats = arena.buffer_from("x", &x)?;
    let x_columns = Vectors { k, columns: rows, data: VectorData::F32(floats) };
    let y = poisoned(&mut arena, output, k, rows)?;
    let mut recorder = device.recorder()?;
    let kernel = QuantizeRows::with_plan(device, output, k, policy::at_tier(device.caps(), output, tier))?;
    kernel.record(&mut recorder, "quantize_rows", &x_columns, &y, &count.view())?;
    recorder.seal()?.run(TIMEOUT)?;

    let mut comparison = Comparison::default();
    let active_values = active.clone().flat_map(|row| &x[row * padded..row * padded + k]);
    let want: Vec<Value> =
        active_values.map(|value| Value { value: f64::from(*value), allowed: 0.0 }).collect();
    compare_from(&mut comparison, active.start, &want, y)?;
    Ok(comparison)
}
