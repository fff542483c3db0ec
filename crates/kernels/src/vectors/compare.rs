//! Shared by the self-test cases of kernels that write activations: columns poisoned before a run, and their
//! comparison with a reference afterwards.

use gpu::{Arena, Result};
use half::f16;
use tensor::{GROUP, QUAD};

use super::{Activations, F16_UNIT, VectorData, Vectors, f16_at, int16_scale_at};
use crate::{
    HALF_GROUP,
    case::{Comparison, Output, POISON},
    matmul::{common::reference::Value, quantize_rows::reference as int16},
};

/// Columns whose values and scales are poisoned [`Output`]s.
pub(crate) fn poisoned(arena: &mut Arena, kind: Activations, k: usize, columns: usize) -> Result<Vectors> {
    let padded = k.next_multiple_of(QUAD) * columns;
    let mut words = |count: usize| Output::new(arena, count).map(|output| output.buffer);
    let data = match kind {
        Activations::F32 => VectorData::F32(words(padded)?),
        Activations::F16 => VectorData::F16(words(padded / 2)?),
        Activations::Int8 => VectorData::Int8 { values: words(padded / 4)?, scales: words(padded / GROUP)? },
        Activations::Int16 => {
            VectorData::Int16 { values: words(padded / 2)?, scales: words(padded / HALF_GROUP)? }
        }
    };
    Ok(Vectors { k, columns, data })
}

/// Compares [`poisoned`] columns, once written, with the expected values of the active columns, which come
/// first. Each may be off by its allowance and by the rounding of its format; NaN must stay NaN. The scales
/// of the padding must be zero, and everything else untouched.
pub(crate) fn compare(comparison: &mut Comparison, want: &[Value], got: Vectors) -> Result<()> {
    compare_from(comparison, 0, want, got)
}

/// The same where the active columns start at `first`; those before it are inactive too.
pub(crate) fn compare_from(
    comparison: &mut Comparison,
    first: usize,
    want: &[Value],
    got: Vectors,
) -> Result<()> {
    let (k, columns, padded) = (got.k, got.columns, got.stride() * got.columns);
    let active = first..first + want.len() / k;
    let want =
        |column: usize| if active.contains(&column) { &want[(column - first) * k..][..k] } else { &[] };
    // The words of one column.
    let words_of = |words: &'_ [u32], column: usize| {
        let per_column = words.len() / columns;
        words[column * per_column..][..per_column].to_vec()
    };
    match got.data {
        VectorData::F32(values) => {
            let words = Output::from_buffer(values, padded).read(comparison)?;
            for column in 0..columns {
                compare_f32(comparison, column, want(column), &words_of(&words, column));
            }
        }
        VectorData::F16(values) => {
            let words = Output::from_buffer(values, padded / 2).read(comparison)?;
            for column in 0..columns {
                compare_f16(comparison, column, want(column), &words_of(&words, column));
            }
        }
        VectorData::Int8 { values, scales } => {
            let words = Output::from_buffer(values, padded / 4).read(comparison)?;
            let scales = Output::from_buffer(scales, padded / GROUP).read(comparison)?;
            for column in 0..columns {
                let (words, scales) = (words_of(&words, column), words_of(&scales, column));
                untouched(comparison, "bytes", column, &words[want(column).len() / 4..]);
                let bytes: &[i8] = bytemuck::cast_slice(&words);
                compare_groups(
                    comparison,
                    column,
                    want(column),
                    &scales,
                    &Groups {
                        length: GROUP,
                        max_integer: 127.0,
                        scale_at: |k| k / GROUP,
                        value: |scale, k| scale * f64::from(bytes[k]),
                    },
                );
            }
        }
        VectorData::Int16 { values, scales } => {
            let words = Output::from_buffer(values, padded / 2).read(comparison)?;
            let scales = Output::from_buffer(scales, padded / HALF_GROUP).read(comparison)?;
            let (high, low) = words.split_at(padded / 4);
            for column in 0..columns {
                let (high, low, scales) =
                    (words_of(high, column), words_of(low, column), words_of(&scales, column));
                for plane in [&high, &low] {
                    untouched(comparison, "bytes", column, &plane[want(column).len() / 4..]);
                }
                let (high, low): (&[i8], &[i8]) = (bytemuck::cast_slice(&high), bytemuck::cast_slice(&low));
                compare_groups(
                    comparison,
                    column,
                    want(column),
                    &scales,
                    &Groups {
                        length: HALF_GROUP,
                        max_integer: int16::LARGEST,
                        scale_at: int16_scale_at,
                        value: |scale, k| int16::value(scale, high[k], low[k]),
                    },
                );
            }
        }
    }
    Ok(())
}

fn untouched(comparison: &mut Comparison, what: &str, column: usize, words: &[u32]) {
    let same = words.iter().all(|word| *word == POISON);
    comparison.equal(|| format!("whether the unused {what} of column {column} are untouched"), &same, &true);
}

fn compare_f32(comparison: &mut Comparison, column: usize, want: &[Value], words: &[u32]) {
    untouched(comparison, "values", column, &words[want.len()..]);
    for (k, (want, word)) in want.iter().zip(words).enumerate() {
        let got = f64::from(f32::from_bits(*word));
        comparison.close_or_nan(|| format!("value {k} of column {column}"), got, want.value, want.allowed);
    }
}

fn compare_f16(comparison: &mut Comparison, column: usize, want: &[Value], words: &[u32]) {
    untouched(comparison, "values", column, &words[want.len() / 2..]);
    let halves: &[u16] = bytemuck::cast_slice(words);
    let (unit, max_value) = (f64::from(F16_UNIT), f64::from(F16_UNIT) * f16::MAX.to_f64());
    for (k, want) in want.iter().enumerate() {
        let got = f16::from_bits(halves[f16_at(k)]).to_f64() * unit;
        let value = want.value.clamp(-max_value, max_value);
        // A whole step, also for subnormals: devices may round to nearest or towards zero.
        let step = (value.abs() * f16::EPSILON.to_f64()).max(unit * f16::MIN_POSITIVE_SUBNORMAL.to_f64());
        comparison.close_or_nan(|| format!("value {k} of column {column}"), got, value, step + want.allowed);
    }
}

/// How integers share scales.
struct Groups<Value: Fn(f64, usize) -> f64> {
    /// Values per group.
    length: usize,
    /// The largest integer.
    max_integer: f64,
    /// Index of the scale of a value within a column.
    scale_at: fn(usize) -> usize,
    /// The dequantised value.
    value: Value,
}

fn compare_groups(
    comparison: &mut Comparison,
    column: usize,
    want: &[Value],
    scales: &[u32],
    groups: &Groups<impl Fn(f64, usize) -> f64>,
) {
    if want.is_empty() {
        return untouched(comparison, "scales", column, scales);
    }
    for first in (0..scales.len() * groups.length).step_by(groups.length) {
        let scale = f64::from(f32::from_bits(scales[(groups.scale_at)(first)]));
        let at = || format!("scale of value {first}, column {column}");
        let Some(want) = want.get(first..first + groups.length) else {
            comparison.equal(at, &scale, &0.0);
            continue;
        };
        // A NaN value makes the scale NaN, and with it the whole group.
        if want.iter().any(|want| want.value.is_nan()) {
            comparison.close_or_nan(at, scale, f64::NAN, 0.0);
            continue;
        }
        let step = want.iter().fold(0.0_f64, |max, want| max.max(want.value.abs())) / groups.max_integer;
        comparison.close(at, scale, step, 1e-5 * step);
        for (k, want) in (first..).zip(want) {
            // Slightly more than half a step, for ties.
            let allowed = 0.51 * step + want.allowed;
            let at = || format!("value {k} of column {column}");
            comparison.close(at, (groups.value)(scale, k), want.value, allowed);
        }
    }
}
