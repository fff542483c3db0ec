//! CPU reference in f64, value by value.

use super::ClipRange;
use crate::{
    Epilogue,
    matmul::common::reference::{Value, gated_value},
};

/// `torch.clamp`: NaN stays NaN, and the high end wins.
pub fn clamp(x: f64, range: ClipRange) -> f64 {
    if x.is_nan() { x } else { x.max(range.low.into()).min(range.high.into()) }
}

/// clamp(x), which is exact.
pub fn clip(x: f32, range: ClipRange) -> Value {
    Value { value: clamp(x.into(), range), allowed: 0.0 }
}

/// clamp(gelu(clamp(gate)) · clamp(up)), with the allowed error. Clamping increases no error.
pub fn clip_gated(gate: f32, up: f32, ranges: [ClipRange; 3]) -> Value {
    let [gate_range, up_range, product_range] = ranges;
    let product = gated_value(Epilogue::Geglu, clip(gate, gate_range), clip(up, up_range));
    Value { value: clamp(product.value, product_range), ..product }
}
