//! What the kernel rounds before it computes; what it computes then is [`attention`](crate::attention::paged::reference::attention).

use half::f16;

/// A query as matrix units meet it: times log₂ e, so that weights are powers of two, and f16. Here divided again.
pub fn query(q: &[f32]) -> Vec<f32> {
    let rounded = |q: &f32| f16::from_f32(q * std::f32::consts::LOG2_E).to_f64() / std::f64::consts::LOG2_E;
    q.iter().map(|q| rounded(q) as f32).collect()
}

/// A key or a value as matrix units meet it: of int8 its product with the scale, rounded to f16. f16 stays as it is.
pub fn line(stored: &[f64]) -> Vec<f64> {
    stored.iter().map(|value| f16::from_f64(*value).to_f64()).collect()
}
