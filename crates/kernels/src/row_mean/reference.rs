//! CPU reference in f64, range by range.

use std::ops::Range;

use crate::matmul::common::reference::Value;

/// Error of a sum in f32, as a fraction of the sum of magnitudes.
const SUM_ERROR: f64 = 2e-6;

/// The means of ranges of rows of `n` values, one after the other, with the allowed errors.
pub fn row_means(x: &[f32], n: usize, ranges: &[Range<usize>]) -> Vec<Value> {
    let mean = |range: &Range<usize>, column: usize| {
        let values = range.clone().map(|row| f64::from(x[row * n + column]));
        let (sum, magnitude) =
            values.fold((0.0, 0.0), |(sum, magnitude), value| (sum + value, magnitude + value.abs()));
        let count = range.len() as f64;
        Value { value: sum / count, allowed: SUM_ERROR * magnitude / count }
    };
    ranges.iter().flat_map(|range| (0..n).map(move |column| mean(range, column))).collect()
}
