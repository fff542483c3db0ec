//! CPU reference in f64.

use super::Shape;

/// Scores of one row, before softmax.
pub fn scores(shape: &Shape, x: &[f32], w: &[f32]) -> Vec<f64> {
    let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / shape.k as f64;
    let factor = 1.0 / (mean + f64::from(shape.epsilon)).sqrt();
    let dot = |w: &[f32]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>();
    w.chunks(shape.k).map(|w| dot(w) * factor).collect()
}

/// The selected experts with their weights, by decreasing weight before `scales` per expert are applied.
pub fn select(shape: &Shape, scores: &[f64], scales: Option<&[f32]>) -> Vec<(u32, f64)> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    let largest = scores[order[0]];
    let exponential = |expert: usize| (scores[expert] - largest).exp();
    let selected = &order[..shape.per_token];
    let sum: f64 = match shape.renormalize {
        true => selected.iter().map(|expert| exponential(*expert)).sum(),
        false => (0..scores.len()).map(exponential).sum(),
    };
    let scale = |expert: usize| scales.map_or(1.0, |scales| f64::from(scales[expert]));
    selected.iter().map(|expert| (*expert as u32, exponential(*expert) / sum * scale(*expert))).collect()
}
