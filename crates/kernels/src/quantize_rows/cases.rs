//! Where the kernel is compared with its reference.

use gpu::{Caps, Device, Result, Tier};

use super::{QuantizeRows, policy, reference};
use crate::{
    HALF_GROUP, QUAD, Vectors, int16_scale_at,
    selftest::{Case, Comparison, Output, POISON, Random, TIMEOUT, arena},
    vectors::VectorData,
};

pub(super) fn cases(caps: &Caps) -> Vec<Case> {
    let mut list = Vec::new();
    for tier in [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier)) {
        // One half group, padded quads, the heads of the 270M and of the 27B, no row in use.
        for (rows, k, active) in [(1, 16, 1), (3, 144, 2), (2, 1024, 2), (3, 4096, 2), (2, 2064, 0)] {
            let name = format!("{rows} × {k}, {active} active");
            list.push(Case::new(name, tier, move |device| run(device, tier, rows, k, active)));
        }
    }
    list
}

fn run(device: &Device, tier: Tier, rows: usize, k: usize, active: usize) -> Result<Comparison> {
    let mut random = Random::new((rows * k) as u64);
    let padded = k.next_multiple_of(QUAD);
    // Half groups of all sizes, some of them zero; what stands in the padding must not matter.
    let sizes = [1.0, 1e-20, 0.0, 1e20, 30.0];
    let x: Vec<f32> = (0..rows * padded)
        .map(|i| if i % padded < k { random.signed() * sizes[i / HALF_GROUP % sizes.len()] } else { 1e6 })
        .collect();

    let mut arena = arena(device);
    let count = arena.buffer_from("active", &[active as u32])?;
    let floats = arena.buffer_from("x", &x)?;
    let values = Output::new(&mut arena, 2 * rows * padded / 4)?;
    let scales = Output::new(&mut arena, rows * padded / HALF_GROUP)?;
    let x_columns = Vectors { k, columns: rows, data: VectorData::F32(floats) };
    let data = VectorData::Int16 { values: values.buffer, scales: scales.buffer };
    let y = Vectors { k, columns: rows, data };
    let mut recorder = device.recorder()?;
    let kernel = QuantizeRows::with_plan(device, k, policy::at_tier(device.caps(), tier))?;
    kernel.record(&mut recorder, "quantize_rows", &x_columns, &y, &count.view())?;
    recorder.seal()?.run(TIMEOUT)?;

    let mut comparison = Comparison::default();
    let rows_in_use = (0..active).flat_map(|row| &x[row * padded..row * padded + k]);
    let want: Vec<f64> = rows_in_use.map(|value| f64::from(*value)).collect();
    compare_int16(&mut comparison, &want, y, 0.0)?;
    Ok(comparison)
}

/// Compares int16 columns, made as [`Output`]s, with the values of the rows in use. Each may be off by half a step and by
/// `relative` of itself; the scales of the padding must be zero, and all else as it was.
pub(crate) fn compare_int16(comparison: &mut Comparison, want: &[f64], got: Vectors, relative: f64) -> Result<()> {
    let (k, padded, columns) = (got.k, got.stride(), got.columns);
    let VectorData::Int16 { values, scales } = got.data else { unreachable!("made as int16") };
    let words = Output::of(values, 2 * columns * padded / 4).read(comparison)?;
    let scales = Output::of(scales, columns * padded / HALF_GROUP).read(comparison)?;
    let (high, low) = words.split_at(columns * padded / 4);
    let active = want.len() / k;
    for row in 0..columns {
        let (high, low) = (&high[row * padded / 4..][..padded / 4], &low[row * padded / 4..][..padded / 4]);
        let scales = &scales[row * padded / HALF_GROUP..][..padded / HALF_GROUP];
        let used = if row < active { k } else { 0 };
        for plane in [high, low] {
            let untouched = plane[used / 4..].iter().all(|word| *word == POISON);
            comparison.equal(|| format!("bytes of row {row} that are not in use, untouched"), &untouched, &true);
        }
        if row >= active {
            let untouched = scales.iter().all(|word| *word == POISON);
            comparison.equal(|| format!("scales of row {row}, untouched"), &untouched, &true);
            continue;
        }
        for first in (0..padded).step_by(HALF_GROUP) {
            let scale = f64::from(f32::from_bits(scales[int16_scale_at(first)]));
            if first >= k {
                comparison.equal(|| format!("padding scale of row {row}, {first}"), &scale, &0.0);
                continue;
            }
            let want = &want[row * k + first..][..HALF_GROUP];
            let largest = want.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
            let step = largest / reference::LARGEST;
            comparison.close(|| format!("scale of row {row}, {first}"), scale, step, 1e-5 * step);
            let (high, low): (&[i8], &[i8]) = (bytemuck::cast_slice(high), bytemuck::cast_slice(low));
            for (i, want) in want.iter().enumerate() {
                let got = reference::value(scale, high[first + i], low[first + i]);
                // A little more than half a step, for values that lie between two.
                let allowed = 0.51 * step + relative * want.abs();
                comparison.close(|| format!("row {row}, {}", first + i), got, *want, allowed);
            }
        }
    }
    Ok(())
}
