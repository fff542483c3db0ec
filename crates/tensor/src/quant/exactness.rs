//! The GPU scheme of each encoding, and its rounding error.

use serde::Serialize;

use crate::{encoding::Encoding, layout::Scheme};

impl Encoding {
    /// The scheme in which the GPU stores a matrix of this encoding.
    pub fn scheme(self) -> Scheme {
        scheme_for(self).0
    }
}

/// The rounding error of an encoding's values in its GPU scheme.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Exactness {
    /// None: the same values, bit for bit.
    Exact,
    /// With an error of at most [`Exactness::bound`].
    Within {
        /// Bound relative to the largest |value| of the group.
        relative: f32,
        /// Absolute part of the bound: below 2⁻¹⁴ an f16 has steps of 2⁻²⁴, however small the scale.
        absolute: f32,
    },
}

impl Exactness {
    /// Maximum error of a value in a group whose largest |value| is `largest`.
    pub fn bound(self, largest: f32) -> f32 {
        match self {
            Exactness::Exact => 0.0,
            Exactness::Within { relative, absolute } => relative * largest + absolute,
        }
    }
}

/// Half the distance between neighbouring f16, relative to their size: the error of rounding a scale to f16.
const F16_ROUNDING: f32 = 1.0 / 2048.0;
/// The absolute error below 2⁻¹⁴, where neighbouring f16 differ by 2⁻²⁴.
pub(super) const F16_FLOOR: f32 = 1.0 / 33_554_432.0;

/// Error of Q4_K and Q5_K relative to the largest |value| L of a group of 32. The minimum is stored as the
/// value of the lowest code in use, |m| ≤ L, and rounds by at most 2⁻¹¹·L. The scale rounds by 2⁻¹¹ of
/// itself, and scale times code spans the group's values, at most 2·L. Below f16's normal range nothing is
/// lost: every sub-scale is a multiple of 2⁻²⁴ there.
pub const K_QUANT_ERROR: f32 = 3.0 * F16_ROUNDING;

/// Error of 8-bit rounding with an f16 scale (Q6_K, and [`quantize()`](super::quantize()) to int8) relative
/// to the largest |value| L of a group: half a step of L/127, which rounding to f16 makes at most 2⁻¹¹
/// larger.
pub const INT8_ERROR: f32 = 1.0 / 253.0;

/// The GPU scheme of an encoding, and its rounding error.
///
/// - Q5_K becomes `int8+min`, which keeps its codes and only rounds scale and minimum to f16
///   ([`K_QUANT_ERROR`], 0.15%). Plain `int8` would round every value again, by up to 0.39%, to save 6% of
///   the bytes.
/// - Q6_K becomes `int8`: it has one scale per 16 values, so the codes of a group of 32 cannot be kept, and
///   no minimum.
/// - Of the layerwise encodings, `int8_symmetric` and `int4_grouped` keep their codes and only round the
///   scale to f16. `int8_asymmetric` keeps its codes less the zero point; the minimum is used for groups
///   whose distance from the zero point exceeds 8 bits.
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
        // The absolute parts: the largest |q| times the rounding error of a subnormal scale, plus that of a
        // minimum.
        Encoding::Int8Symmetric => (Scheme::Int8, within(F16_ROUNDING, 128.0 * F16_FLOOR)),
        Encoding::Int4Grouped => (Scheme::Int4, within(F16_ROUNDING, 8.0 * F16_FLOOR)),
        Encoding::Int8Asymmetric => (Scheme::Int8Min, within(K_QUANT_ERROR, 129.0 * F16_FLOOR)),
    }
}
