//! The same in f64, by the references of what it joins.

use super::Shape;
use crate::attention::{paged, rope};

/// Queries, key and value of a row before they are stored, each head after head.
pub fn heads(shape: &Shape, row: &rope::reference::Row<'_>) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    rope::reference::rope(&shape.rope(), row)
}

/// What a row's query heads find: `line(kv head, position)` is a key and a value as they are stored, the row's own included. With
/// it, for each head, how large the terms of a score were at most.
pub fn attend(
    shape: &Shape,
    q: &[f64],
    position: u32,
    line: impl Fn(u32, u32) -> (Vec<f64>, Vec<f64>),
) -> Vec<(Vec<f64>, f64)> {
    let q: Vec<f32> = q.iter().map(|value| *value as f32).collect();
    let heads = (0..).zip(q.chunks(shape.head_dim as usize));
    heads
        .map(|(head, q)| {
            let kv_head = head / (shape.heads / shape.kv_heads);
            let seen = paged::reference::range(position, shape.window);
            let (keys, values): (Vec<_>, Vec<_>) = seen.map(|at| line(kv_head, at)).unzip();
            paged::reference::attention(q, &keys, &values)
        })
        .collect()
}
