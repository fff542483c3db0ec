//! CPU reference: a product in f64, weight by weight, from row-major data.

use tensor::STRIP;

use super::Epilogue;

/// A row-major matrix.
pub struct Weights {
    /// Columns.
    pub k: usize,
    /// Rows of `k` weights.
    pub values: Vec<f64>,
    /// Per weight, the sum of its absolute terms: |d · q| + |m| where groups have minima. Kernels sum the two
    /// separately, and round each.
    pub magnitudes: Vec<f64>,
}

/// One value of y, and the allowed error of an f32 computation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// The value.
    pub value: f64,
    /// The error that is allowed.
    pub allowed: f64,
}

/// Error of sums in f32, as a fraction of the sum of the absolute products.
const SUM_ERROR: f64 = 2e-6;
/// Error of the driver's exponential: Vulkan allows 3 + 2 · |x| ULP, and |x| stays below 80.
const EXP_ERROR: f64 = 2e-5;

/// One column of y. Weights may have a relative error of `error`.
pub fn product(weights: &Weights, x: &[f64], epilogue: Epilogue, error: f64) -> Vec<Value> {
    let rows = weights.values.chunks(weights.k).zip(weights.magnitudes.chunks(weights.k));
    let sums: Vec<Value> = rows
        .map(|(values, magnitudes)| Value {
            value: values.iter().zip(x).map(|(w, x)| w * x).sum(),
            allowed: (SUM_ERROR + error) * magnitudes.iter().zip(x).map(|(w, x)| w * x.abs()).sum::<f64>(),
        })
        .collect();
    if epilogue == Epilogue::None {
        return sums;
    }
    let pairs = sums.chunks(2 * STRIP).map(|pair| pair.split_at(STRIP));
    pairs
        .flat_map(|(gate, up)| gate.iter().zip(up))
        .map(|(gate, up)| gated_value(epilogue, *gate, *up))
        .collect()
}

/// gelu(gate) · up or silu(gate) · up, with propagated errors. The slope of both functions is at most 1.13.
pub fn gated_value(epilogue: Epilogue, gate: Value, up: Value) -> Value {
    let value = gated(epilogue, gate.value, up.value);
    let activation = gated(epilogue, gate.value, 1.0);
    let from_gate = 1.13 * gate.allowed * (up.value.abs() + up.allowed);
    // The exponential's error is relative to the activated gate, down to the smallest f32.
    let allowed = from_gate + activation.abs() * up.allowed + EXP_ERROR * value.abs() + 1e-30;
    Value { value, allowed }
}

/// gelu(gate) · up by tanh, or silu(gate) · up. ½ (1 + tanh z) is computed as 1 / (1 + e⁻²ᶻ), which keeps its
/// precision for small values.
pub fn gated(epilogue: Epilogue, gate: f64, up: f64) -> f64 {
    let z = match epilogue {
        Epilogue::None => return gate,
        Epilogue::Geglu => 2.0 * (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044715 * gate.powi(3)),
        Epilogue::Swiglu => gate,
    };
    gate / (1.0 + (-z).exp()) * up
}
