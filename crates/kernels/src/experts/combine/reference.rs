//! CPU reference in f64.

/// One row: `dense` and `experts` are their partial sums, one after the other, `weights` those of the experts.
pub fn combine(
    dense: &[f32],
    experts: &[f32],
    weights: &[f32],
    [dense_norm, experts_norm]: [&[f32]; 2],
    epsilon: f64,
) -> Vec<f64> {
    let n = dense_norm.len();
    let ones = vec![1.0; dense.len() / n];
    let dense = normed(dense, &ones, dense_norm, epsilon);
    let experts = normed(experts, weights, experts_norm, epsilon);
    dense.iter().zip(experts).map(|(dense, experts)| dense + experts).collect()
}

fn normed(partials: &[f32], weights: &[f32], norm: &[f32], epsilon: f64) -> Vec<f64> {
    let n = norm.len();
    let mut sum = vec![0.0; n];
    for (partial, weight) in partials.chunks(n).zip(weights) {
        sum.iter_mut().zip(partial).for_each(|(sum, value)| *sum += f64::from(*value) * f64::from(*weight));
    }
    let mean = sum.iter().map(|value| value * value).sum::<f64>() / n as f64;
    let inverse = (mean + epsilon).sqrt().recip();
    sum.iter().zip(norm).map(|(value, weight)| value * inverse * f64::from(*weight)).collect()
}
