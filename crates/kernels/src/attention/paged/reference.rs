//! CPU reference in f64: one query head at a time, all scores at once.

/// Positions that a row at `position` attends to.
pub fn range(position: u32, window: u32) -> std::ops::RangeInclusive<u32> {
    let first = if window == 0 { 0 } else { (position + 1).saturating_sub(window) };
    first..=position
}

/// softmax(q · kᵀ) · v over keys and values as stored. Also returns the magnitude of the scores, which bounds
/// their rounding errors: the largest sum of absolute terms of a score.
pub fn attention(q: &[f32], keys: &[Vec<f64>], values: &[Vec<f64>]) -> (Vec<f64>, f64) {
    let terms = |key: &[f64]| q.iter().zip(key).map(|(q, k)| f64::from(*q) * k).collect::<Vec<f64>>();
    let scores: Vec<f64> = keys.iter().map(|key| terms(key).iter().sum()).collect();
    let magnitude = keys.iter().map(|key| terms(key).iter().map(|term| term.abs()).sum()).fold(0.0, f64::max);
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let o = (0..q.len())
        .map(|d| weights.iter().zip(values).map(|(weight, value)| weight * value[d]).sum::<f64>() / sum)
        .collect();
    (o, magnitude)
}
