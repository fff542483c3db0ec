//! CPU reference in f64, value by value.

/// `factor` times row `token` of `embeddings`; none if there is no such row.
pub fn embed(embeddings: &[Vec<f32>], token: u32, factor: f32) -> Option<Vec<f64>> {
    let row = embeddings.get(token as usize)?;
    Some(row.iter().map(|value| f64::from(*value) * f64::from(factor)).collect())
}
