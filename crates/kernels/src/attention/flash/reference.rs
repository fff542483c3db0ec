//! The rounding that the kernel applies to its inputs; the rest is
//! [`attention`](crate::attention::paged::reference::attention).

use half::f16;

/// A query as the matrix units get it: times log₂ e, so that weights are powers of two, rounded to f16. Here
/// divided again.
pub fn query(q: &[f32]) -> Vec<f32> {
    let rounded = |q: &f32| f16::from_f32(q * std::f32::consts::LOG2_E).to_f64() / std::f64::consts::LOG2_E;
    q.iter().map(|q| rounded(q) as f32).collect()
}

/// Keys or values as the matrix units get them: for int8, the product with the scale, rounded to f16. f16 is
/// unchanged.
pub fn lines(stored: &[f64]) -> Vec<f64> {
    stored.iter().map(|value| f16::from_f64(*value).to_f64()).collect()
}
