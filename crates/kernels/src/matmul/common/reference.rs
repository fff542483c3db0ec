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

/// Several columns of y, see [`product`]: on all cores, since a GPU waits for them.
pub fn products(weights: &Weights, columns: &[Vec<f64>], epilogue: Epilogue, error: f64) -> Vec<Vec<Value>> {
    let multiplications = weights.values.len() * columns.len();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = (multiplications / MULTIPLICATIONS_PER_THREAD).clamp(1, cores);
    // Whole pairs of strips, which an epilogue needs.
    let rows = weights.values.len() / weights.k;
    let share = rows.div_ceil(threads).next_multiple_of(2 * STRIP).max(2 * STRIP);
    // A pair of strips with all columns at a time, while it is in the cache.
    let of = |values: &[f64], magnitudes: &[f64]| -> Vec<Vec<Value>> {
        let mut all = vec![vec![]; columns.len()];
        let pair = 2 * STRIP * weights.k;
        for (values, magnitudes) in values.chunks(pair).zip(magnitudes.chunks(pair)) {
            for (column, x) in all.iter_mut().zip(columns) {
                column.extend(of_rows(weights.k, values, magnitudes, x, epilogue, error));
            }
        }
        all
    };
    std::thread::scope(|scope| {
        let values = weights.values.chunks(share * weights.k);
        let mut shares = values.zip(weights.magnitudes.chunks(share * weights.k));
        let (values, magnitudes) = shares.next().unwrap_or_default();
        let others: Vec<_> =
            shares.map(|(values, magnitudes)| scope.spawn(move || of(values, magnitudes))).collect();
        let mut all = of(values, magnitudes);
        for other in others {
            let other = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            all.iter_mut().zip(other).for_each(|(column, other)| column.extend(other));
        }
        all
    })
}

/// Starting a thread costs about as much as 100,000 multiplications.
const MULTIPLICATIONS_PER_THREAD: usize = 1 << 20;

/// One column of y. Weights may have a relative error of `error`.
pub fn product(weights: &Weights, x: &[f64], epilogue: Epilogue, error: f64) -> Vec<Value> {
    of_rows(weights.k, &weights.values, &weights.magnitudes, x, epilogue, error)
}

/// A part of a column: that of some rows of weights.
fn of_rows(
    k: usize,
    values: &[f64],
    magnitudes: &[f64],
    x: &[f64],
    epilogue: Epilogue,
    error: f64,
) -> Vec<Value> {
    let rows = values.chunks(k).zip(magnitudes.chunks(k));
    let sums: Vec<Value> = rows
        .map(|(values, magnitudes)| {
            let [value, bound] = sums(values, magnitudes, x);
            Value { value, allowed: (SUM_ERROR + error) * bound }
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

/// The sums of w · x and of |w| · |x|, in several parts each: a single sum would wait for every addition.
fn sums(values: &[f64], magnitudes: &[f64], x: &[f64]) -> [f64; 2] {
    const PARTS: usize = 8;
    let mut parts = [[0.0; PARTS]; 2];
    let mut add = |values: &[f64], magnitudes: &[f64], x: &[f64]| {
        for (part, ((value, magnitude), x)) in values.iter().zip(magnitudes).zip(x).enumerate() {
            parts[0][part] += value * x;
            parts[1][part] += magnitude * x.abs();
        }
    };
    let (values, last_values) = values.as_chunks::<PARTS>();
    let (magnitudes, last_magnitudes) = magnitudes.as_chunks::<PARTS>();
    let (x, last_x) = x.as_chunks::<PARTS>();
    for ((values, magnitudes), x) in values.iter().zip(magnitudes).zip(x) {
        add(values, magnitudes, x);
    }
    add(last_values, last_magnitudes, last_x);
    parts.map(|parts| parts.iter().sum())
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
