//! CPU reference in f64, value by value.

use crate::soft_tokens::SOFT_TOKEN;

/// `factor` times row `token` of `embeddings`, or row `soft_token` where it is a soft token; none if there is no such row.
pub fn embed(embeddings: &[Vec<f32>], token: u32, soft_token: Option<u32>, factor: f32) -> Option<Vec<f64>> {
    let token = if token & SOFT_TOKEN != 0 { soft_token? } else { token };
    let row = embeddings.get(token as usize)?;
    Some(row.iter().map(|value| f64::from(*value) * f64::from(factor)).collect())
}
