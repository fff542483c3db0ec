//! CPU reference in f64, head by head, with computed angles instead of tables.

use super::shape::{KeysAndValues, Rotation, Shape};

/// Inputs of one row.
pub struct Row<'a> {
    /// Query heads, key heads, value heads, as far as the shape has them.
    pub qkv: &'a [f32],
    /// One value per element of `qkv`.
    pub bias: Option<&'a [f32]>,
    /// Weights of the norms of queries and of keys.
    pub weights: Option<(&'a [f32], &'a [f32])>,
    /// Added to the mean square.
    pub epsilon: f32,
    /// Scale of the queries.
    pub scale: f32,
    /// Position of the token.
    pub position: u32,
    /// The angle of each pair of values: position · inverse frequency; for a grid those of x, then those of y.
    pub angles: Vec<f64>,
    /// Factor of cosines and sines, as in [`Tables::scaled`](super::Tables::scaled).
    pub rotation_scale: f64,
}

/// Queries, keys and values of a row, head by head; no keys and values where they are shared.
pub fn rope(shape: &Shape, row: &Row<'_>) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let d = shape.head_dim as usize;
    let (heads, kv_heads) = (shape.heads as usize, shape.kv_heads as usize);
    let mut values: Vec<f64> = row.qkv.iter().map(|value| f64::from(*value)).collect();
    if let Some(bias) = row.bias {
        values.iter_mut().zip(bias).for_each(|(value, bias)| *value += f64::from(*bias));
    }
    let mut v = match shape.keys_and_values {
        KeysAndValues::Projected => values.split_off((heads + kv_heads) * d),
        KeysAndValues::ValuesFromKeys => values[heads * d..].to_vec(),
        KeysAndValues::Shared => vec![],
    };
    if shape.value_norm {
        v.chunks_mut(d).for_each(|values| norm(values, None, row.epsilon));
    }
    for (head, values) in values.chunks_mut(d).enumerate() {
        if let Some((q, k)) = row.weights {
            norm(values, Some(if head < heads { q } else { k }), row.epsilon);
        }
        rotate(values, shape.rotation, row);
    }
    let k = values.split_off(heads * d);
    let temperature = shape.temperature.map_or(1.0, |temperature| {
        let periods = row.position / temperature.original;
        1.0 + f64::from(temperature.beta) * f64::from(1 + periods).ln()
    });
    let q = values.into_iter().map(|value| value * f64::from(row.scale) * temperature).collect();
    (q, k, v)
}

fn norm(values: &mut [f64], weight: Option<&[f32]>, epsilon: f32) {
    let mean_square = values.iter().map(|value| value * value).sum::<f64>() / values.len() as f64;
    let scale = 1.0 / (mean_square + f64::from(epsilon)).sqrt();
    values.iter_mut().for_each(|value| *value *= scale);
    if let Some(weight) = weight {
        values.iter_mut().zip(weight).for_each(|(value, weight)| *value *= f64::from(*weight));
    }
}

fn rotate(values: &mut [f64], rotation: Rotation, row: &Row<'_>) {
    let (half, quarter) = (values.len() / 2, values.len() / 4);
    for (i, angle) in row.angles.iter().enumerate() {
        let (a, b) = match rotation {
            Rotation::Halves => (i, i + half),
            Rotation::Interleaved => (2 * i, 2 * i + 1),
            Rotation::Grid if i < quarter => (i, i + quarter),
            Rotation::Grid => (i + quarter, i + half),
        };
        let (sin, cos) = angle.sin_cos();
        let (sin, cos) = (sin * row.rotation_scale, cos * row.rotation_scale);
        (values[a], values[b]) = (values[a] * cos - values[b] * sin, values[b] * cos + values[a] * sin);
    }
}
