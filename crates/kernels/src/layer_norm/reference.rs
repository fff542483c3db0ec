//! CPU reference in f64, row by row.

use crate::matmul::common::reference::Value;

/// Input rows and weights of one call.
pub struct Inputs<'a> {
    /// The input and its bias, where there are any.
    pub x: Option<(&'a [f32], &'a [f32])>,
    /// The residual stream, rows of `n` values.
    pub residual: &'a [f32],
    /// Weight of the norm.
    pub weight: &'a [f32],
    /// Bias of the norm.
    pub bias: &'a [f32],
    /// Added to the variance.
    pub epsilon: f32,
}

/// Error of a sum in f32 and of the mean, as a fraction of the largest term.
const SUM_ERROR: f64 = 1e-6;
/// Error of the normed value, as a fraction of it.
const NORM_ERROR: f64 = 5e-6;

/// The normed rows, and the residual stream after the add, with the allowed errors.
pub fn layer_norm(inputs: &Inputs<'_>) -> (Vec<Value>, Vec<Value>) {
    let n = inputs.weight.len();
    let mut y = Vec::with_capacity(inputs.residual.len());
    let mut after = Vec::with_capacity(inputs.residual.len());
    for (row, residual) in inputs.residual.chunks(n).enumerate() {
        let terms = residual.iter().enumerate().map(|(i, residual)| {
            let residual = f64::from(*residual);
            let [x, bias] =
                inputs.x.map_or([0.0; 2], |(x, bias)| [f64::from(x[row * n + i]), f64::from(bias[i])]);
            let magnitude = residual.abs() + x.abs() + bias.abs();
            Value { value: residual + x + bias, allowed: SUM_ERROR * magnitude }
        });
        let values: Vec<Value> = terms.collect();
        let mean = values.iter().map(|value| value.value).sum::<f64>() / n as f64;
        let variance = values.iter().map(|value| (value.value - mean).powi(2)).sum::<f64>() / n as f64;
        let scale = 1.0 / (variance + f64::from(inputs.epsilon)).sqrt();
        let error = values.iter().fold(0.0_f64, |max, value| max.max(value.allowed));
        y.extend(values.iter().zip(inputs.weight.iter().zip(inputs.bias)).map(|(value, (weight, bias))| {
            let (weight, bias) = (f64::from(*weight) * scale, f64::from(*bias));
            let normed = (value.value - mean) * weight;
            let allowed = error * weight.abs() + NORM_ERROR * (normed.abs() + bias.abs());
            Value { value: normed + bias, allowed }
        }));
        after.extend(values);
    }
    (y, after)
}
