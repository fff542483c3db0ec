//! CPU reference in f64, value by value.

use super::Shape;

/// Queries, keys and values of a row, head by head, before keys and values are rounded to the cache's scheme.
pub fn split_qkv(shape: &Shape, qkv: &[f32], bias: &[f32], scale: f32) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let sums = qkv.iter().zip(bias).map(|(value, bias)| f64::from(*value) + f64::from(*bias));
    let mut q: Vec<f64> = sums.collect();
    let mut k = q.split_off((shape.heads * shape.head_dim) as usize);
    let v = k.split_off((shape.kv_heads * shape.head_dim) as usize);
    q.iter_mut().for_each(|value| *value *= f64::from(scale));
    (q, k, v)
}
