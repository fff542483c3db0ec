//! CPU references in f64.

/// Root mean square of a row, epsilon included.
fn rms(row: &[f32], epsilon: f64) -> f64 {
    let squares: f64 = row.iter().map(|value| f64::from(*value).powi(2)).sum();
    (squares / row.len() as f64 + epsilon).sqrt()
}

/// A layer's input of one row.
pub fn input(embedding: &[f32], projected: &[f32], token: &[f32], weight: &[f32], epsilon: f64) -> Vec<f64> {
    let factor = rms(embedding, epsilon) / (embedding.len() as f64).sqrt();
    let p: Vec<f64> = projected.iter().map(|p| f64::from(*p) * factor).collect();
    let mean = p.iter().map(|p| p * p).sum::<f64>() / p.len() as f64;
    let inverse = (mean + epsilon).sqrt().recip();
    let values = p.iter().zip(weight).zip(token);
    values.map(|((p, w), t)| (p * inverse * f64::from(*w) + f64::from(*t)) / 2_f64.sqrt()).collect()
}

/// A layer's gated input of one row.
pub fn gate(residual: &[f32], gate: &[f32], inputs: &[f32], epsilon: f64) -> Vec<f64> {
    let rms = rms(residual, epsilon);
    let gelu =
        |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
    gate.iter().zip(inputs).map(|(gate, input)| gelu(f64::from(*gate) * rms) * f64::from(*input)).collect()
}
