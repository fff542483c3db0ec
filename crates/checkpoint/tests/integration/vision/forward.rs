//! A forward pass of an image encoder in f64, from nothing but its config and its tensors by role: it gives what
//! transformers does only if every tensor is where it belongs.

#[path = "forward/gemma4.rs"]
mod gemma4;

use checkpoint::{EncoderKind, Role, Transformer, Vision};

/// Rows of values.
pub type Matrix = Vec<Vec<f64>>;

/// The output of the encoder before pooling, and its soft tokens, from the patches of an image with this many columns.
pub fn encode(vision: &Vision, patches: &Matrix, columns: usize) -> (Matrix, Matrix) {
    let config = &vision.config;
    let encoded = match &config.encoder {
        EncoderKind::Siglip { transformer, .. } => siglip(vision, transformer, patches),
        EncoderKind::Gemma4 { rope_theta, transformer, .. } => {
            gemma4::encode(vision, *rope_theta, transformer, patches, columns)
        }
        EncoderKind::Gemma4Unified { layer_norm_eps, .. } => {
            gemma4::unified(vision, *layer_norm_eps, patches, columns)
        }
    };
    let mut tokens = pool(&encoded, columns, config.pooled_patches as usize);
    if let EncoderKind::Gemma4 { standardized, .. } = config.encoder {
        gemma4::scale(vision, standardized, &mut tokens);
    }
    let eps = f64::from(config.soft_norm_eps);
    let projection = matrix(vision, None, Role::Projection);
    let soft_tokens = match config.projection_is_transposed() {
        true => {
            let plus = if vision.soft_norm_needs_plus_one() { 1.0 } else { 0.0 };
            let weight = vector(vision, None, Role::SoftTokenNorm);
            let weight: Vec<f64> = weight.iter().map(|weight| weight + plus).collect();
            linear(&rms_norm(&tokens, eps, Some(&weight)), &transpose(&projection), None)
        }
        false => linear(&rms_norm(&tokens, eps, None), &projection, None),
    };
    (encoded, soft_tokens)
}

fn siglip(vision: &Vision, transformer: &Transformer, patches: &Matrix) -> Matrix {
    let eps = f64::from(transformer.norm_eps);
    let outside = |role| vector(vision, None, role);
    let embed = matrix(vision, None, Role::PatchEmbed);
    let mut h = linear(patches, &embed, Some(&outside(Role::PatchEmbedBias)));
    add(&mut h, &matrix(vision, None, Role::PositionEmbed));
    for layer in (0..transformer.layers).map(Some) {
        let product = |x: &Matrix, weight, bias| {
            linear(x, &matrix(vision, layer, weight), Some(&vector(vision, layer, bias)))
        };
        let norm = |x: &Matrix, weight, bias| {
            layer_norm(x, eps, &vector(vision, layer, weight), &vector(vision, layer, bias))
        };
        let normed = norm(&h, Role::AttentionNorm, Role::AttentionNormBias);
        let q = product(&normed, Role::Query, Role::QueryBias);
        let k = product(&normed, Role::Key, Role::KeyBias);
        let v = product(&normed, Role::Value, Role::ValueBias);
        let head_dim = transformer.head_dim as usize;
        let attended = attention(&q, &k, &v, head_dim, 1.0 / (head_dim as f64).sqrt());
        add(&mut h, &product(&attended, Role::Output, Role::OutputBias));
        let normed = norm(&h, Role::FeedForwardNorm, Role::FeedForwardNormBias);
        let mut inner = product(&normed, Role::Up, Role::UpBias);
        inner.iter_mut().flatten().for_each(|x| *x = gelu(*x));
        add(&mut h, &product(&inner, Role::Down, Role::DownBias));
    }
    layer_norm(&h, eps, &outside(Role::FinalNorm), &outside(Role::FinalNormBias))
}

/// The mean over squares of patches.
fn pool(patches: &Matrix, columns: usize, pooled: usize) -> Matrix {
    let tokens = (columns / pooled, patches.len() / columns / pooled);
    let mean = |index: usize| {
        let (left, top) = (index % tokens.0 * pooled, index / tokens.0 * pooled);
        let mut mean = vec![0.0; patches[0].len()];
        for (x, y) in (0..pooled * pooled).map(|patch| (left + patch % pooled, top + patch / pooled)) {
            let patch = &patches[y * columns + x];
            mean.iter_mut().zip(patch).for_each(|(sum, value)| *sum += value / (pooled * pooled) as f64);
        }
        mean
    };
    (0..tokens.0 * tokens.1).map(mean).collect()
}

fn vector(vision: &Vision, layer: Option<u32>, role: Role) -> Vec<f64> {
    let values = vision.source.read_vector(vision.tensor(layer, role).unwrap()).unwrap();
    values.into_iter().map(f64::from).collect()
}

fn matrix(vision: &Vision, layer: Option<u32>, role: Role) -> Matrix {
    let width = vision.tensor(layer, role).unwrap().shape[1] as usize;
    vector(vision, layer, role).chunks(width).map(<[f64]>::to_vec).collect()
}

fn transpose(matrix: &Matrix) -> Matrix {
    (0..matrix[0].len()).map(|column| matrix.iter().map(|row| row[column]).collect()).collect()
}

fn linear(x: &Matrix, weight: &Matrix, bias: Option<&[f64]>) -> Matrix {
    let product = |row: &Vec<f64>| {
        let outputs = weight.iter().enumerate();
        outputs.map(|(index, weight)| bias.map_or(0.0, |bias| bias[index]) + dot(weight, row)).collect()
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

/// Without a weight, a factor of 1.
fn rms_norm(x: &Matrix, eps: f64, weight: Option<&[f64]>) -> Matrix {
    let norm = |row: &Vec<f64>| {
        let factor = 1.0 / (dot(row, row) / row.len() as f64 + eps).sqrt();
        row.iter().enumerate().map(|(i, x)| x * factor * weight.map_or(1.0, |weight| weight[i])).collect()
    };
    x.iter().map(norm).collect()
}

fn attention(q: &Matrix, k: &Matrix, v: &Matrix, head_dim: usize, scale: f64) -> Matrix {
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
