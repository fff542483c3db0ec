//! Quantised numbers: how files store them, how the GPU stores them, and the way from one to the other.
//!
//! Everything here is plain arithmetic on the CPU, written to be read. It is what the GPU's kernels are tested
//! against, so it follows ggml operation by operation: [`dequantize`] gives the very bits that the `gguf` package
//! gives.
//!
//! A file's [`Encoding`] becomes one of the GPU's [`Scheme`]s. [`scheme_for`] says which and what it costs,
//! [`transcode()`] and [`transcode_layerwise`] do it, and refuse scales that no weight can have ([`check_scales`]).
//! [`quantize()`] makes `int8` and `int4` from floats.
//!
//! No product of a scale and an integer here needs more than the 24 bits of an f32: 11 of an f16 and 8 of an integer,
//! or 17 of a K-quant's sub-scale and 5. So it does not matter whether a compiler or a GPU fuses the multiplication
//! with the addition of the minimum: both give the same bits.

mod blocks;
mod error;
mod layerwise;
mod quantize;
mod transcode;

use half::f16;
use serde::Serialize;

pub use blocks::dequantize;
pub use error::QuantError;
pub use layerwise::{LAYERWISE_GROUP, dequantize_layerwise, transcode_layerwise};
pub use quantize::{Rmse, quantize, relative_rmse};
pub use transcode::{check_scales, transcode};

use crate::Encoding;
pub use crate::{GROUP, Scheme};

/// What becomes of a value on its way from an encoding to a scheme.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Exactness {
    /// It comes out bit for bit.
    Exact,
    /// It moves by no more than [`Exactness::bound`].
    Within {
        /// Part of the bound that grows with the largest |value| of its group.
        relative: f32,
        /// The rest: below 2⁻¹⁴ an f16 has steps of 2⁻²⁴, however small the scale.
        absolute: f32,
    },
}

impl Exactness {
    /// By how much a value can move in a group whose largest |value| is `largest`.
    pub fn bound(self, largest: f32) -> f32 {
        match self {
            Exactness::Exact => 0.0,
            Exactness::Within { relative, absolute } => relative * largest + absolute,
        }
    }
}

/// Half the distance between neighbouring f16, relative to their size: what rounding a scale to f16 can cost.
const F16_ROUNDING: f32 = 1.0 / 2048.0;
/// The same below 2⁻¹⁴, where f16 are 2⁻²⁴ apart.
const F16_FLOOR: f32 = 1.0 / 33_554_432.0;

/// Error of Q4_K and Q5_K, relative to the largest |value| L of a group of 32. The minimum is stored as the value of
/// the lowest code in use, |m| ≤ L, and rounds by 2⁻¹¹·L. The scale rounds by 2⁻¹¹ of itself, and scale times code
/// spans the group's values, at most 2·L. Nothing is lost below f16's normal range: there every sub-scale is a
/// multiple of 2⁻²⁴.
pub const K_QUANT_ERROR: f32 = 3.0 * F16_ROUNDING;

/// Error of 8-bit rounding with an f16 scale (Q6_K, and [`quantize()`] to int8), relative to the largest |value| L of a
/// group: half a step of L/127, which its rounding to f16 makes at most 2⁻¹¹ larger.
pub const INT8_ERROR: f32 = 1.0 / 253.0;

/// The scheme an encoding is stored in on the GPU, and what its values lose on the way.
///
/// - Q5_K goes to `int8+min`, which keeps its codes and costs only the rounding of scale and minimum to f16
///   ([`K_QUANT_ERROR`], 0.15%). Plain `int8` would round every value anew, by up to 0.39%, to save 6% of the bytes.
/// - Q6_K goes to `int8`: it has a scale per 16 values, so that the codes of a group cannot be kept, and no minimum.
/// - Layer by layer, `int8_symmetric` and `int4_grouped` keep their codes and lose the rounding of the scale to f16.
///   `int8_asymmetric` keeps its codes less the zero point; the minimum serves groups further from it than 8 bits
///   reach.
pub fn scheme_for(encoding: Encoding) -> (Scheme, Exactness) {
    let within = |relative, absolute| Exactness::Within { relative, absolute };
    match encoding {
        Encoding::Tiled(scheme) => (scheme, Exactness::Exact),
        Encoding::F32 => (Scheme::F32, Exactness::Exact),
        Encoding::F16 => (Scheme::F16, Exactness::Exact),
        Encoding::Bf16 => (Scheme::Bf16, Exactness::Exact),
        Encoding::Q8_0 | Encoding::Q5_0 => (Scheme::Int8, Exactness::Exact),
        Encoding::Q4_0 => (Scheme::Int4, Exactness::Exact),
        Encoding::Q4_1 => (Scheme::Int4Min, Exactness::Exact),
        Encoding::Q5_1 => (Scheme::Int8Min, Exactness::Exact),
        Encoding::Q4K => (Scheme::Int4Min, within(K_QUANT_ERROR, 0.0)),
        Encoding::Q5K => (Scheme::Int8Min, within(K_QUANT_ERROR, 0.0)),
        Encoding::Q6K => (Scheme::Int8, within(INT8_ERROR, F16_FLOOR)),
        // The absolute parts: the largest |q| times the rounding of a subnormal scale, and that of a minimum.
        Encoding::Int8Symmetric => (Scheme::Int8, within(F16_ROUNDING, 128.0 * F16_FLOOR)),
        Encoding::Int4Grouped => (Scheme::Int4, within(F16_ROUNDING, 8.0 * F16_FLOOR)),
        Encoding::Int8Asymmetric => (Scheme::Int8Min, within(K_QUANT_ERROR, 129.0 * F16_FLOOR)),
    }
}

/// A tensor in one of the integer schemes, row-major, before it is laid out in tiles.
#[derive(Clone, Debug, PartialEq)]
pub struct Groups {
    /// Which scheme.
    pub scheme: Scheme,
    /// The stored integers; −8…7 in the schemes of 4 bits.
    pub q: Vec<i8>,
    /// One scale per [`GROUP`] of `q`.
    pub scales: Vec<f16>,
    /// One minimum per [`GROUP`] of `q`, in the schemes that have one.
    pub mins: Option<Vec<f16>>,
}

impl Groups {
    fn with_capacity(scheme: Scheme, values: usize) -> Self {
        let groups = values / GROUP;
        Self {
            scheme,
            q: Vec::with_capacity(values),
            scales: Vec::with_capacity(groups),
            mins: scheme.has_min().then(|| Vec::with_capacity(groups)),
        }
    }

    fn push(&mut self, scale: f16, min: f16, q: impl IntoIterator<Item = i8>) {
        self.scales.push(scale);
        if let Some(mins) = &mut self.mins {
            mins.push(min);
        }
        self.q.extend(q);
        debug_assert_eq!(self.q.len(), self.scales.len() * GROUP, "whole groups");
    }

    /// The values, computed as the GPU does: in f32, scale times integer, then plus the minimum.
    pub fn dequantize(&self) -> Vec<f32> {
        let mut values = Vec::with_capacity(self.q.len());
        for (group, q) in self.q.chunks(GROUP).enumerate() {
            let d = self.scales[group].to_f32();
            let products = q.iter().map(|q| d * factor(self.scheme, *q));
            match &self.mins {
                Some(mins) => values.extend(products.map(|product| product + mins[group].to_f32())),
                None => values.extend(products),
            }
        }
        values
    }
}

/// The number that the scale is multiplied by.
fn factor(scheme: Scheme, q: i8) -> f32 {
    match scheme {
        Scheme::Int4Min => f32::from(q) + 8.0,
        _ => f32::from(q),
    }
}
