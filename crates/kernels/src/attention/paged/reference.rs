//! CPU reference in f64: one query head at a time, all scores at once.

/// Positions that a row at `position` attends to, up to `last`: its own position, or the last of its image.
pub fn range(position: u32, last: u32, window: u32) -> std::ops::RangeInclusive<u32> {
    let first = if window == 0 { 0 } else { (position + 1).saturating_sub(window) };
    first..=last
}

/// softmax(q · kᵀ) · v over keys and values as stored. Also returns the magnitude of the scores, which bounds
/// their rounding errors: the largest sum of absolute terms of a score.
pub fn attention(q: &[f32], keys: &[impl AsRef<[f64]>], values: &[impl AsRef<[f64]>]) -> (Vec<f64>, f64) {
    let q: Vec<f64> = q.iter().map(|q| f64::from(*q)).collect();
    let (scores, magnitudes): (Vec<f64>, Vec<f64>) = keys.iter().map(|key| score(&q, key.as_ref())).unzip();
    let magnitude = magnitudes.into_iter().fold(0.0, f64::max);
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut o = vec![0.0; q.len()];
    for (weight, value) in weights.iter().zip(values) {
        o.iter_mut().zip(value.as_ref()).for_each(|(o, value)| *o += weight * value);
    }
    o.iter_mut().for_each(|o| *o /= sum);
    (o, magnitude)
}

/// The sum of q · k and of its absolute terms, in several parts each: a single sum would wait for every addition.
fn score(q: &[f64], key: &[f64]) -> (f64, f64) {
    const PARTS: usize = 8;
    let (mut sums, mut magnitudes) = ([0.0; PARTS], [0.0; PARTS]);
    for (q, key) in q.chunks(PARTS).zip(key.chunks(PARTS)) {
        for (part, (q, k)) in q.iter().zip(key).enumerate() {
            sums[part] += q * k;
            magnitudes[part] += (q * k).abs();
        }
    }
    (sums.iter().sum(), magnitudes.iter().sum())
}
