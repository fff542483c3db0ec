//! CPU reference in f64, output row by output row.

use super::Shape;
use crate::matmul::common::reference::Value;

/// Input rows and weights of one call.
pub struct Inputs<'a> {
    /// Input rows, at a stride of `x_stride` values.
    pub x: &'a [f32],
    /// Values from one input row to the next.
    pub x_stride: usize,
    /// Per output row: the first input row of its square, and the columns of its image's grid.
    pub squares: &'a [[u32; 2]],
    /// Bias and scale of the standardisation.
    pub standardise: Option<(&'a [f32], &'a [f32])>,
    /// Weight of the norm.
    pub weight: Option<&'a [f32]>,
}

/// Error of a sum in f32, as a fraction of the sum of the absolute terms.
const SUM_ERROR: f64 = 1e-6;
/// Error of the normed value, as a fraction of it.
const NORM_ERROR: f64 = 5e-6;

/// The pooled and normed rows of all squares, with the allowed errors; NaN where a square is not within `x`.
pub fn pool(shape: &Shape, inputs: &Inputs<'_>) -> Vec<Value> {
    let n = shape.n;
    let mut y = Vec::with_capacity(inputs.squares.len() * n);
    for square in inputs.squares {
        let mut values = means(shape, inputs, square.map(|number| number as usize));
        if let Some((bias, scale)) = inputs.standardise {
            for (value, (bias, scale)) in values.iter_mut().zip(bias.iter().zip(scale)) {
                let (bias, scale) = (f64::from(*bias), f64::from(*scale));
                let error = SUM_ERROR * (value.value.abs() + bias.abs());
                value.allowed = (value.allowed + error) * scale.abs();
                value.value = (value.value - bias) * scale;
            }
        }
        let mean_square = values.iter().map(|value| value.value.powi(2)).sum::<f64>() / n as f64;
        let scale = 1.0 / (mean_square + f64::from(shape.epsilon)).sqrt();
        y.extend(values.iter().enumerate().map(|(i, mean)| {
            let weight = scale * inputs.weight.map_or(1.0, |weight| f64::from(weight[i]));
            let value = mean.value * weight;
            Value { value, allowed: mean.allowed * weight.abs() + NORM_ERROR * value.abs() }
        }));
    }
    y
}

/// The mean of the input rows of a square, times the factor.
fn means(shape: &Shape, inputs: &Inputs<'_>, [first, columns]: [usize; 2]) -> Vec<Value> {
    let Shape { side, n, factor, .. } = *shape;
    let factor = f64::from(factor) / (side * side) as f64;
    let mut means = vec![Value { value: 0.0, allowed: 0.0 }; n];
    for (dy, dx) in (0..side).flat_map(|dy| (0..side).map(move |dx| (dy, dx))) {
        let start = (first + dy * columns + dx) * inputs.x_stride;
        let row = inputs.x.get(start..start + n);
        for (i, mean) in means.iter_mut().enumerate() {
            let x = row.map_or(f64::NAN, |row| f64::from(row[i]));
            mean.value += x * factor;
            mean.allowed += SUM_ERROR * x.abs() * factor;
        }
    }
    means
}
