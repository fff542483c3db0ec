//! CPU reference in f64, composed of the references of the separate kernels.

use super::shape::Shape;
use crate::attention::{paged, rope};

/// Queries, key and value of a row before they are stored, head by head.
pub fn heads(shape: &Shape, row: &rope::reference::Row<'_>) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    rope::reference::rope(&shape.rope(), row)
}

/// The outputs of a row's query heads: `line(kv_head, position)` returns a key and a value as stored, the
/// row's own included. Also returns, per head, the magnitude of its scores as
/// [`attention`](paged::reference::attention) does.
pub fn attend(
    shape: &Shape,
    q: &[f64],
    position: u32,
    line: impl Fn(u32, u32) -> (Vec<f64>, Vec<f64>),
) -> Vec<(Vec<f64>, f64)> {
    let q: Vec<f32> = q.iter().map(|value| *value as f32).collect();
    let group = (shape.heads / shape.kv_heads * shape.head_dim) as usize;
    let groups = (0..).zip(q.chunks(group));
    groups
        .flat_map(|(kv_head, group)| {
            let seen = paged::reference::range(position, position, shape.window);
            let (keys, values): (Vec<_>, Vec<_>) = seen.map(|at| line(kv_head, at)).unzip();
            let heads = group.chunks(shape.head_dim as usize);
            heads.map(|q| paged::reference::attention(q, &keys, &values)).collect::<Vec<_>>()
        })
        .collect()
}
