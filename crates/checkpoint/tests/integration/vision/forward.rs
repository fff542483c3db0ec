//! A forward pass of an image encoder in f64, from nothing but its config and its tensors by role: it gives what
//! transformers does only if every tensor is where it belongs.

use checkpoint::{Role, Vision};

/// Rows of values.
pub type Matrix = Vec<Vec<f64>>;

/// The output of the encoder after its last norm, and its soft tokens, from the patches of an image.
pub fn encode(vision: &Vision, patches: &Matrix) -> (Matrix, Matrix) {
    let config = &vision.config;
    let eps = f64::from(config.layer_norm_eps);
    let outside = |role| vector(vision, None, role);
    let positions = matrix(vision, None, Role::PositionEmbed);
    let mut h = linear(patches, &matrix(vision, None, Role::PatchEmbed), &outside(Role::PatchEmbedBias));
    add(&mut h, &positions);
    for layer in (0..config.layers).map(Some) {
        let product = |x: &Matrix, weight, bias| {
            linear(x, &matrix(vision, layer, weight), &vector(vision, layer, bias))
        };
        let norm = |x: &Matrix, weight, bias| {
            layer_norm(x, eps, &vector(vision, layer, weight), &vector(vision, layer, bias))
        };
        let normed = norm(&h, Role::AttentionNorm, Role::AttentionNormBias);
        let q = product(&normed, Role::Query, Role::QueryBias);
        let k = product(&normed, Role::Key, Role::KeyBias);
        let v = product(&normed, Role::Value, Role::ValueBias);
        let attended = attention(&q, &k, &v, config.head_dim() as usize);
        add(&mut h, &product(&attended, Role::Output, Role::OutputBias));
        let normed = norm(&h, Role::FeedForwardNorm, Role::FeedForwardNormBias);
        let mut inner = product(&normed, Role::Up, Role::UpBias);
        inner.iter_mut().flatten().for_each(|x| *x = gelu(*x));
        add(&mut h, &product(&inner, Role::Down, Role::DownBias));
    }
    let encoded = layer_norm(&h, eps, &outside(Role::FinalNorm), &outside(Role::FinalNormBias));

    let [side, pooled] = [config.soft_tokens_per_side, config.pooled_patches()].map(|size| size as usize);
    let plus = if vision.soft_norm_needs_plus_one() { 1.0 } else { 0.0 };
    let norm_weight: Vec<f64> = outside(Role::SoftTokenNorm).iter().map(|weight| weight + plus).collect();
    let projection = matrix(vision, None, Role::Projection);
    let soft_token = |index: usize| {
        let (top, left) = (index / side * pooled, index % side * pooled);
        let mut mean = vec![0.0; config.hidden as usize];
        for (y, x) in (0..pooled * pooled).map(|patch| (top + patch / pooled, left + patch % pooled)) {
            let patch = &encoded[y * side * pooled + x];
            mean.iter_mut().zip(patch).for_each(|(sum, value)| *sum += value / (pooled * pooled) as f64);
        }
        let square = mean.iter().map(|x| x * x).sum::<f64>() / mean.len() as f64;
        let factor = 1.0 / (square + f64::from(config.soft_norm_eps)).sqrt();
        let normed = mean.iter().zip(&norm_weight).map(|(x, weight)| x * factor * weight);
        let mut token = vec![0.0; config.text_hidden as usize];
        for (x, row) in normed.zip(&projection) {
            token.iter_mut().zip(row).for_each(|(sum, weight)| *sum += x * weight);
        }
        token
    };
    let soft_tokens = (0..side * side).map(soft_token).collect();
    (encoded, soft_tokens)
}

fn vector(vision: &Vision, layer: Option<u32>, role: Role) -> Vec<f64> {
    let values = vision.source.read_vector(vision.tensor(layer, role).unwrap()).unwrap();
    values.into_iter().map(f64::from).collect()
}

fn matrix(vision: &Vision, layer: Option<u32>, role: Role) -> Matrix {
    let width = vision.tensor(layer, role).unwrap().shape[1] as usize;
    vector(vision, layer, role).chunks(width).map(<[f64]>::to_vec).collect()
}

fn linear(x: &Matrix, weight: &Matrix, bias: &[f64]) -> Matrix {
    let product = |row: &Vec<f64>| {
        let outputs = weight.iter().zip(bias);
        outputs.map(|(weight, bias)| bias + dot(weight, row)).collect()
    };
    x.iter().map(product).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(h: &mut Matrix, other: &Matrix) {
    h.iter_mut().flatten().zip(other.iter().flatten()).for_each(|(h, other)| *h += other);
}

fn layer_norm(x: &Matrix, eps: f64, weight: &[f64], bias: &[f64]) -> Matrix {
    let norm = |row: &Vec<f64>| {
        let mean = row.iter().sum::<f64>() / row.len() as f64;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / row.len() as f64;
        let factor = 1.0 / (variance + eps).sqrt();
        row.iter().zip(weight.iter().zip(bias)).map(|(x, (w, b))| (x - mean) * factor * w + b).collect()
    };
    x.iter().map(norm).collect()
}

fn attention(q: &Matrix, k: &Matrix, v: &Matrix, head_dim: usize) -> Matrix {
    let scale = 1.0 / (head_dim as f64).sqrt();
    let attend = |query: &Vec<f64>| {
        let head = |head: usize| {
            let of = head * head_dim..(head + 1) * head_dim;
            let scores: Vec<f64> =
                k.iter().map(|key| dot(&query[of.clone()], &key[of.clone()]) * scale).collect();
            let largest = scores.iter().copied().fold(f64::MIN, f64::max);
            let powers: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let total: f64 = powers.iter().sum();
            let mut sum = vec![0.0; head_dim];
            for (power, value) in powers.iter().zip(v) {
                sum.iter_mut().zip(&value[of.clone()]).for_each(|(sum, v)| *sum += power / total * v);
            }
            sum
        };
        (0..query.len() / head_dim).flat_map(head).collect()
    };
    q.iter().map(attend).collect()
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}
