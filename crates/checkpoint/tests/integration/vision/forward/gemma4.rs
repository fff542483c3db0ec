//! The encoders of Gemma 4.

use checkpoint::{Role, Transformer, Vision};

use super::{Matrix, add, attention, gelu, layer_norm, linear, matrix, rms_norm, vector};

/// The encoder with layers: its output before pooling.
pub fn encode(
    vision: &Vision,
    rope_theta: f32,
    transformer: &Transformer,
    patches: &Matrix,
    columns: usize,
) -> Matrix {
    let Transformer { layers, head_dim, norm_eps, .. } = *transformer;
    let (eps, head_dim) = (f64::from(norm_eps), head_dim as usize);
    let mut h = linear(patches, &matrix(vision, None, Role::PatchEmbed), None);
    add_positions(vision, &mut h, columns);
    for layer in 0..layers {
        let weight = |role| vector(vision, Some(layer), role);
        let norm = |x: &Matrix, role| rms_norm(x, eps, Some(&weight(role)));
        let product = |x: &Matrix, role| clipped_linear(vision, layer, role, x);
        let heads = |x: &Matrix, weight: Option<&[f64]>| {
            let heads = x.iter().map(|row| {
                let heads: Matrix = row.chunks(head_dim).map(<[f64]>::to_vec).collect();
                rms_norm(&heads, eps, weight).concat()
            });
            heads.collect::<Matrix>()
        };
        let normed = norm(&h, Role::AttentionNorm);
        let mut q = heads(&product(&normed, Role::Query), Some(&weight(Role::QueryNorm)));
        let mut k = heads(&product(&normed, Role::Key), Some(&weight(Role::KeyNorm)));
        let v = heads(&product(&normed, Role::Value), None);
        for rows in [&mut q, &mut k] {
            rotate(rows, head_dim, f64::from(rope_theta), columns);
        }
        let attended = product(&attention(&q, &k, &v, head_dim, 1.0), Role::Output);
        add(&mut h, &norm(&attended, Role::PostAttentionNorm));
        let normed = norm(&h, Role::FeedForwardNorm);
        let mut inner = product(&normed, Role::Gate);
        let up = product(&normed, Role::Up);
        inner.iter_mut().flatten().zip(up.iter().flatten()).for_each(|(gate, up)| *gate = gelu(*gate) * up);
        add(&mut h, &norm(&product(&inner, Role::Down), Role::PostFeedForwardNorm));
    }
    h
}

/// The 12B's: patches before the RMSNorm of soft tokens.
pub fn unified(vision: &Vision, layer_norm_eps: f32, patches: &Matrix, columns: usize) -> Matrix {
    let norm = |x: &Matrix, weight, bias| {
        let [weight, bias] = [weight, bias].map(|role| vector(vision, None, role));
        layer_norm(x, f64::from(layer_norm_eps), &weight, &bias)
    };
    let normed = norm(patches, Role::PatchNorm, Role::PatchNormBias);
    let bias = vector(vision, None, Role::PatchEmbedBias);
    let h = linear(&normed, &matrix(vision, None, Role::PatchEmbed), Some(&bias));
    let mut h = norm(&h, Role::PatchEmbedNorm, Role::PatchEmbedNormBias);
    add_positions(vision, &mut h, columns);
    norm(&h, Role::PositionNorm, Role::PositionNormBias)
}

/// Pooled patches as the RMSNorm of soft tokens takes them.
pub fn scale(vision: &Vision, standardized: bool, tokens: &mut Matrix) {
    let root = f64::from(vision.config.hidden).sqrt();
    tokens.iter_mut().flatten().for_each(|x| *x *= root);
    if standardized {
        let (bias, scale) =
            (vector(vision, None, Role::StandardizeBias), vector(vision, None, Role::StandardizeScale));
        for row in tokens {
            row.iter_mut()
                .zip(bias.iter().zip(&scale))
                .for_each(|(x, (bias, scale))| *x = (*x - bias) * scale);
        }
    }
}

fn add_positions(vision: &Vision, h: &mut Matrix, columns: usize) {
    let hidden = vision.config.hidden as usize;
    let rows = h.len() / columns;
    let tables = vision.position_tables(columns.max(rows) as u32).unwrap();
    for (index, row) in h.iter_mut().enumerate() {
        for (table, position) in tables.iter().zip([index % columns, index / columns]) {
            let embedding = &table[position * hidden..][..hidden];
            row.iter_mut().zip(embedding).for_each(|(x, embedding)| *x += f64::from(*embedding));
        }
    }
}

fn clipped_linear(vision: &Vision, layer: u32, role: Role, x: &Matrix) -> Matrix {
    let weight = matrix(vision, Some(layer), role);
    let Some(ranges) = vision.clip_ranges(layer, role).unwrap() else { return linear(x, &weight, None) };
    let clip = |x: &Matrix, [min, max]: [f32; 2]| {
        let clip = |x: &f64| x.clamp(f64::from(min), f64::from(max));
        x.iter().map(|row| row.iter().map(clip).collect()).collect::<Matrix>()
    };
    clip(&linear(&clip(x, ranges.input), &weight, None), ranges.output)
}

/// RoPE: the first half of a head by the column, the second by the row.
fn rotate(rows: &mut Matrix, head_dim: usize, theta: f64, columns: usize) {
    let pairs = head_dim / 4;
    for (index, row) in rows.iter_mut().enumerate() {
        for half in row.chunks_mut(head_dim).flat_map(|head| {
            let (first, second) = head.split_at_mut(head_dim / 2);
            [(first, index % columns), (second, index / columns)]
        }) {
            let (values, position) = half;
            for pair in 0..pairs {
                let angle = position as f64 * theta.powf(-(pair as f64) / pairs as f64);
                let (a, b) = (values[pair], values[pair + pairs]);
                values[pair] = a * angle.cos() - b * angle.sin();
                values[pair + pairs] = b * angle.cos() + a * angle.sin();
            }
        }
    }
}
