//! CPU reference in f64, value by value.

use crate::{
    Epilogue,
    matmul::common::reference::{Value, gated_value},
};

/// gelu(x + bias), with the allowed error.
pub fn bias_gelu(x: f32, bias: f32) -> Value {
    let (x, bias) = (f64::from(x), f64::from(bias));
    // The sum is rounded to f32.
    let sum = Value { value: x + bias, allowed: (x + bias).abs() * 2.0_f64.powi(-24) };
    gated_value(Epilogue::Geglu, sum, Value { value: 1.0, allowed: 0.0 })
}
