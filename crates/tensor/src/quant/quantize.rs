//! Quantising floats, and measuring the error.

use half::f16;

use super::{error::QuantError, groups::Groups};
use crate::layout::{GROUP, Scheme};

/// Quantises floats to `int8` or `int4`. Rows must be multiples of [`GROUP`].
///
/// - `int8`: the scale is the largest |value| over 127, rounded to f16. Every value becomes the nearest
///   multiple of the rounded scale, with an error of at most [`INT8_ERROR`](super::INT8_ERROR) of the largest
///   value.
/// - `int4`: with only 16 levels, the best scale is usually not the one that just reaches the largest value:
///   clipping that value a little makes the other 31 finer. So several scales are tried, with the sign that
///   puts the largest value on the side with 8 levels. Each is followed by the least-squares scale for its
///   integers. The scale with the smallest squared error is kept.
///
/// A value that is not finite, or so large that its scale overflows f16, is an error with the value's index.
pub fn quantize(values: &[f32], scheme: Scheme) -> Result<Groups, QuantError> {
    let levels = match scheme {
        Scheme::Int8 => 127.0,
        Scheme::Int4 => 7.0,
        _ => return Err(QuantError::Scheme { scheme }),
    };
    let (chunks, remainder) = values.as_chunks::<GROUP>();
    if !remainder.is_empty() {
        return Err(QuantError::Ungrouped { values: values.len() });
    }
    let limit = f16::MAX.to_f32() * levels;
    // False for NaN.
    let is_representable = |value: &f32| value.abs() <= limit;
    if let Some(index) = values.iter().position(|value| !is_representable(value)) {
        return Err(QuantError::Value { index, value: values[index], scheme });
    }
    let mut groups = Groups::with_capacity(scheme, values.len());
    for group in chunks {
        let (scale, q) = if scheme == Scheme::Int8 { int8_group(group) } else { int4_group(group) };
        groups.push(scale, f16::ZERO, q);
    }
    Ok(groups)
}

/// 8-bit scale and integers of 32 finite values.
pub(super) fn int8_group(values: &[f32; GROUP]) -> (f16, [i8; GROUP]) {
    let largest = peak(values).abs();
    let mut scale = f16::from_f32(largest / 127.0);
    // Below f16's normal range the scale may round down so far that the largest value would be clipped.
    if largest > 127.5 * scale.to_f32() {
        scale = f16::from_bits(scale.to_bits() + 1);
    }
    (scale, round(values, scale.to_f32(), -127.0, 127.0).map(|q| q as i8))
}

/// The scales that are tried: the largest value is this many quarter steps from zero. On normally distributed
/// values the relative error is 0.0808, the same as for a search over 140 scales from 5 to 12 steps. Placing
/// the largest value at −8 only gives 0.0859, at 7 only 0.0968. Both are among the candidates, so no group is
/// worse than with either.
const INT4_QUARTERS: std::ops::RangeInclusive<u8> = 26..=36;

/// 4-bit scale and integers of 32 finite values.
fn int4_group(values: &[f32; GROUP]) -> (f16, [i8; GROUP]) {
    let peak = peak(values);
    let mut best = (f32::INFINITY, f16::ZERO, [0.0; GROUP]);
    let mut try_scale = |scale: f32| {
        // A scale below the smallest f16 becomes the smallest: zero would lose the group.
        let scale = match f16::from_f32(scale) {
            zero if zero.to_bits() & 0x7fff == 0 => f16::from_bits(zero.to_bits() | 1),
            scale => scale,
        };
        let q = round(values, scale.to_f32(), -8.0, 7.0);
        let error = squared_error(values, scale.to_f32(), &q);
        if error < best.0 {
            best = (error, scale, q);
        }
        q
    };
    if peak != 0.0 {
        for quarters in INT4_QUARTERS {
            let q = try_scale(-peak / (f32::from(quarters) / 4.0));
            if let Some(scale) = least_squares(values, &q) {
                try_scale(scale);
            }
        }
    }
    (best.1, best.2.map(|q| q as i8))
}

/// The value furthest from zero, with its sign.
fn peak(values: &[f32; GROUP]) -> f32 {
    values.iter().fold(0.0, |peak: f32, value| if value.abs() > peak.abs() { *value } else { peak })
}

/// Each value divided by `scale`, rounded to the nearest integer in `low..=high`, ties to even.
fn round(values: &[f32; GROUP], scale: f32, low: f32, high: f32) -> [f32; GROUP] {
    // Adding 1.5·2²³ rounds away all bits below one. Unlike round(), this is not a library call on CPUs whose
    // baseline has no rounding instruction.
    const MAGIC: f32 = 12_582_912.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let mut q = [0.0; GROUP];
    for (q, value) in q.iter_mut().zip(values) {
        *q = ((value * inverse).clamp(low, high) + MAGIC) - MAGIC;
    }
    q
}

fn squared_error(values: &[f32; GROUP], scale: f32, q: &[f32; GROUP]) -> f32 {
    sum(|k| (values[k] - scale * q[k]).powi(2))
}

/// The scale that minimises the squared error for the integers `q`; `None` if all are zero.
fn least_squares(values: &[f32; GROUP], q: &[f32; GROUP]) -> Option<f32> {
    let square = sum(|k| q[k] * q[k]);
    (square > 0.0).then(|| sum(|k| values[k] * q[k]) / square)
}

/// Sum over a group with eight accumulators, so that additions do not depend on each other.
fn sum(term: impl Fn(usize) -> f32) -> f32 {
    let mut sums = [0.0; 8];
    for k in 0..GROUP {
        sums[k % 8] += term(k);
    }
    sums.iter().sum()
}

/// Error against a reference, accumulated over any number of slices.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rmse {
    error: f64,
    reference: f64,
}

impl Rmse {
    /// Adds a slice of reference values and their quantised counterparts.
    pub fn add(&mut self, reference: &[f32], values: &[f32]) {
        assert_eq!(reference.len(), values.len(), "slices must have equal lengths");
        for (reference, value) in reference.iter().zip(values) {
            let (reference, value) = (f64::from(*reference), f64::from(*value));
            self.error += (value - reference).powi(2);
            self.reference += reference.powi(2);
        }
    }

    /// Adds the sums of another accumulator.
    pub fn merge(&mut self, other: &Rmse) {
        self.error += other.error;
        self.reference += other.reference;
    }

    /// RMS of the error divided by the RMS of the reference: 0 is exact, 1 is as bad as all zeros.
    pub fn relative(&self) -> f64 {
        if self.error == 0.0 { 0.0 } else { (self.error / self.reference).sqrt() }
    }
}

/// [`Rmse::relative`] of one slice.
pub fn relative_rmse(reference: &[f32], values: &[f32]) -> f64 {
    let mut rmse = Rmse::default();
    rmse.add(reference, values);
    rmse.relative()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::exactness::{F16_FLOOR, INT8_ERROR};
    use super::*;

    /// Groups with the distribution of weights, from normal to heavy-tailed, and magnitudes from subnormal to
    /// large.
    fn any_group(exponents: std::ops::Range<i32>) -> impl Strategy<Value = [f32; GROUP]> {
        (prop::array::uniform32(-1.0_f32..1.0), 1_i32..6, exponents)
            .prop_map(|(values, power, exponent)| values.map(|v| v.powi(power) * 2.0_f32.powi(exponent)))
    }

    /// Normally distributed values from a fixed seed.
    fn normal(count: usize) -> Vec<f32> {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut uniform = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((state >> 40) + 1) as f32 / (1 << 24) as f32
        };
        let mut next = || (-2.0 * uniform().ln()).sqrt() * (std::f32::consts::TAU * uniform()).cos();
        (0..count).map(|_| next() * 0.02).collect()
    }

    /// Squared error of rounding to multiples of a scale that is not rounded to f16.
    fn plain_error(values: &[f32; GROUP], step: f32) -> f64 {
        let error = |v: &f32| (f64::from(*v) - f64::from((v / step).round().clamp(-8.0, 7.0) * step)).powi(2);
        values.iter().map(error).sum()
    }

    proptest! {
        #[test]
        fn int8_stays_within_the_stated_error(values in any_group(-30..12)) {
            let groups = quantize(&values, Scheme::Int8).unwrap();
            let bound = INT8_ERROR * peak(&values).abs() + F16_FLOOR;
            for (value, rounded) in values.iter().zip(groups.dequantize()) {
                prop_assert!((value - rounded).abs() <= bound, "{} became {}", value, rounded);
            }
        }

        #[test]
        fn int4_is_no_worse_than_either_extreme_scale(values in any_group(-4..12)) {
            let peak = peak(&values);
            let groups = quantize(&values, Scheme::Int4).unwrap();
            prop_assert!(groups.q.iter().all(|q| (-8..8).contains(q)));
            let error: f64 = values.iter().zip(groups.dequantize())
                .map(|(value, rounded)| (f64::from(*value) - f64::from(rounded)).powi(2)).sum();
            // The plain scales are not rounded to f16, which costs 2⁻¹¹ of a value, or 2⁻²⁵ per step.
            let power: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
            for step in [peak / 7.0, peak / -8.0] {
                let plain = plain_error(&values, step).sqrt() + power.sqrt() / 2048.0 + f64::from(F16_FLOOR) * 48.0;
                prop_assert!(error.sqrt() <= plain, "{} > {}", error.sqrt(), plain);
            }
        }

        #[test]
        fn int4_values_are_preserved_exactly(
            mut q in prop::array::uniform32(-8_i8..8), position in 0..GROUP, bits in 0x0400_u16..0x7000,
        ) {
            q[position] = -8;
            let values = q.map(|q| f32::from(q) * f16::from_bits(bits).to_f32());
            prop_assert_eq!(quantize(&values, Scheme::Int4).unwrap().dequantize(), values.to_vec());
        }

        #[test]
        fn int8_values_are_preserved_exactly(
            mut q in prop::array::uniform32(-127_i8..=127), position in 0..GROUP, bits in 0x0001_u16..0x7bff,
        ) {
            q[position] = -127;
            let scale = f16::from_bits(bits);
            let groups = quantize(&q.map(|q| f32::from(q) * scale.to_f32()), Scheme::Int8).unwrap();
            prop_assert_eq!((groups.scales[0], groups.q), (scale, q.to_vec()));
        }
    }

    #[test]
    fn error_on_normal_values_is_as_documented() {
        let values = normal(32 * 4096);
        let error = |scheme| relative_rmse(&values, &quantize(&values, scheme).unwrap().dequantize());
        // Without the least-squares refinement int4 would be at 0.0812.
        assert!((0.0804..0.0810).contains(&error(Scheme::Int4)), "{}", error(Scheme::Int4));
        assert!((0.0052..0.0055).contains(&error(Scheme::Int8)), "{}", error(Scheme::Int8));
    }

    #[test]
    fn zeros_and_tiny_values_quantise_without_loss() {
        for scheme in [Scheme::Int8, Scheme::Int4] {
            let mut values = [0.0; 2 * GROUP];
            assert_eq!(quantize(&values, scheme).unwrap().dequantize(), values);
            // Far below the smallest f16: must become zero. A few times the smallest f16: must not vanish.
            values[0] = 1e-30;
            values[GROUP] = -3.0 * 2.0 * F16_FLOOR;
            let mut expected = values;
            expected[0] = 0.0;
            assert_eq!(quantize(&values, scheme).unwrap().dequantize(), expected);
        }
    }

    #[test]
    fn unrepresentable_values_are_rejected_with_their_index() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e9] {
            for scheme in [Scheme::Int8, Scheme::Int4] {
                let mut values = normal(96);
                values[77] = bad;
                let error = quantize(&values, scheme).unwrap_err();
                assert!(matches!(error, QuantError::Value { index: 77, .. }), "{error}");
                assert!(error.to_string().contains("value 77 is"), "{error}");
            }
        }
        assert_eq!(quantize(&[0.0; 33], Scheme::Int8), Err(QuantError::Ungrouped { values: 33 }));
        assert_eq!(
            quantize(&[0.0; 32], Scheme::Int4Min),
            Err(QuantError::Scheme { scheme: Scheme::Int4Min })
        );
    }

    #[test]
    fn rmse_is_relative_and_accumulates() {
        assert_eq!(relative_rmse(&[3.0, 4.0], &[3.0, 4.0]), 0.0);
        assert_eq!(relative_rmse(&[3.0, 4.0], &[0.0, 0.0]), 1.0);
        assert_eq!(relative_rmse(&[0.0], &[1.0]), f64::INFINITY);
        let mut rmse = Rmse::default();
        rmse.add(&[3.0], &[3.0]);
        rmse.add(&[4.0], &[1.5]);
        assert_eq!(rmse.relative(), 0.5);
    }
}
