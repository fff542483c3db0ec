//! The same in f64, weight by weight, from row-major data.

use half::f16;

use crate::GROUP;

/// Row-major weights as integers with a scale per group.
pub struct Weights<'a> {
    /// Columns.
    pub k: usize,
    /// Rows of `k` integers.
    pub values: &'a [i8],
    /// Rows of `k / 32` scales.
    pub scales: &'a [f16],
}

/// One column of y, and for each element the sum of the absolute products: what rounding errors are measured against.
pub fn gemv(weights: &Weights<'_>, x: &[f64]) -> Vec<(f64, f64)> {
    let rows = weights.values.chunks(weights.k).zip(weights.scales.chunks(weights.k / GROUP));
    rows.map(|(values, scales)| {
        let products = values.iter().zip(x).enumerate().map(|(k, (value, x))| {
            f64::from(*value) * f64::from(scales[k / GROUP].to_f32()) * x
        });
        products.fold((0.0, 0.0), |(sum, magnitude), product| (sum + product, magnitude + product.abs()))
    })
    .collect()
}
