//! CPU reference in f64, row by row.

/// Input rows and weights of one call.
pub struct Inputs<'a> {
    /// Rows of `n` values.
    pub x: &'a [f32],
    /// Weight of the norm before the add.
    pub post_weight: Option<&'a [f32]>,
    /// The residual stream.
    pub residual: Option<&'a [f32]>,
    /// Factor of the residual stream after the add.
    pub residual_scale: Option<f32>,
    /// Weight of the norm.
    pub weight: &'a [f32],
    /// Added to the mean square.
    pub epsilon: f32,
}

/// The normed rows, and the residual stream after the add.
pub fn norm(inputs: &Inputs<'_>) -> (Vec<f64>, Vec<f64>) {
    let n = inputs.weight.len();
    let mut y = Vec::with_capacity(inputs.x.len());
    let mut residual = Vec::with_capacity(inputs.x.len());
    for (row, x) in inputs.x.chunks(n).enumerate() {
        let mut values: Vec<f64> = x.iter().map(|value| f64::from(*value)).collect();
        if let Some(weight) = inputs.post_weight {
            values = rms_norm(&values, weight, inputs.epsilon);
        }
        if let Some(stream) = inputs.residual {
            for (value, before) in values.iter_mut().zip(&stream[row * n..]) {
                *value = (*value + f64::from(*before)) * f64::from(inputs.residual_scale.unwrap_or(1.0));
            }
        }
        y.extend(rms_norm(&values, inputs.weight, inputs.epsilon));
        residual.extend(values);
    }
    (y, residual)
}

fn rms_norm(values: &[f64], weight: &[f32], epsilon: f32) -> Vec<f64> {
    let mean_square = values.iter().map(|value| value * value).sum::<f64>() / values.len() as f64;
    let scale = 1.0 / (mean_square + f64::from(epsilon)).sqrt();
    values.iter().zip(weight).map(|(value, weight)| value * scale * f64::from(*weight)).collect()
}
