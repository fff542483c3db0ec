//! CPU reference in f64.

/// log Σ exp(logits) − the target's logit.
pub fn nll(logits: &[f32], target: u32) -> f64 {
    let largest = logits.iter().fold(f64::NEG_INFINITY, |largest, logit| largest.max(f64::from(*logit)));
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - largest).exp()).sum();
    largest - f64::from(logits[target as usize]) + sum.ln()
}
