//! CPU reference in f64, output row by output row.

use super::Shape;
use crate::matmul::common::reference::Value;

/// Error of a sum in f32, as a fraction of the sum of the absolute terms.
const SUM_ERROR: f64 = 1e-6;
/// Error of the normed value, as a fraction of it.
const NORM_ERROR: f64 = 5e-6;

/// The pooled and normed rows of all images in `x`, rows at a stride of `x_stride`, with the allowed errors.
pub fn pool(shape: &Shape, x: &[f32], x_stride: usize, weight: &[f32]) -> Vec<Value> {
    let Shape { columns, rows, side, n, epsilon, .. } = *shape;
    let images = x.len().div_ceil(x_stride) / (columns * rows);
    let area = (side * side) as f64;
    let mut y = Vec::with_capacity(images * shape.rows_per_image() * n);
    for image in 0..images {
        for (first_y, first_x) in
            (0..rows).step_by(side).flat_map(|y| (0..columns).step_by(side).map(move |x| (y, x)))
        {
            let mut means = vec![Value { value: 0.0, allowed: 0.0 }; n];
            for (dy, dx) in (0..side).flat_map(|dy| (0..side).map(move |dx| (dy, dx))) {
                let row = (image * rows + first_y + dy) * columns + first_x + dx;
                for (mean, x) in means.iter_mut().zip(&x[row * x_stride..]) {
                    mean.value += f64::from(*x) / area;
                    mean.allowed += SUM_ERROR * f64::from(x.abs()) / area;
                }
            }
            let mean_square = means.iter().map(|mean| mean.value.powi(2)).sum::<f64>() / n as f64;
            let scale = 1.0 / (mean_square + f64::from(epsilon)).sqrt();
            y.extend(means.iter().zip(weight).map(|(mean, weight)| {
                let weight = scale * f64::from(*weight);
                let value = mean.value * weight;
                Value { value, allowed: mean.allowed * weight.abs() + NORM_ERROR * value.abs() }
            }));
        }
    }
    y
}
