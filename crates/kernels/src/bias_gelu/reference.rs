//! CPU reference in f64, value by value.

use super::Gelu;
use crate::{
    Epilogue,
    matmul::common::reference::{Value, gated_value},
};

/// gelu(x + bias), with the allowed error.
pub fn bias_gelu(gelu: Gelu, x: f32, bias: f32) -> Value {
    let (x, bias) = (f64::from(x), f64::from(bias));
    // The sum is rounded to f32.
    let sum = Value { value: x + bias, allowed: (x + bias).abs() * 2.0_f64.powi(-24) };
    match gelu {
        Gelu::Tanh => gated_value(Epilogue::Geglu, sum, Value { value: 1.0, allowed: 0.0 }),
        Gelu::Erf => {
            let magnitude = sum.value.abs();
            let half_erfc = 0.5 * erfc(magnitude / std::f64::consts::SQRT_2);
            let value = sum.value * if sum.value < 0.0 { half_erfc } else { 1.0 - half_erfc };
            // The slope is at most 1.13; the formula of the kernel is exact to 1.5e-7, and rounds a few times.
            Value { value, allowed: 1.13 * sum.allowed + magnitude.min(13.0) * 4e-7 + value.abs() * 4e-7 }
        }
    }
}

/// 1 − erf(z) for z ≥ 0: the series of erf where it converges fast, a continued fraction elsewhere.
fn erfc(z: f64) -> f64 {
    const HALF_SQRT_PI: f64 = 0.886_226_925_452_758;
    if z < 2.5 {
        let mut term = z;
        let mut sum = z;
        for n in 1..80 {
            term *= -z * z / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return 1.0 - sum / HALF_SQRT_PI;
    }
    let fraction = (1..60).rev().fold(z, |rest, n| z + f64::from(n) / 2.0 / rest);
    (-z * z).exp() / (2.0 * HALF_SQRT_PI * fraction)
}
