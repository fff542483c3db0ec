//! The layerwise encodings: one byte per value, scales in a separate tensor.

use half::f16;

use super::{blocks, error::QuantError, exactness::scheme_for, groups::Groups};
use crate::{encoding::Encoding, layout::GROUP};

/// Values that share one scale in `int4_grouped`, counted over the row-major tensor across row boundaries.
pub const LAYERWISE_GROUP: usize = 128;

/// Decodes to f32: q·scale, or (q − zero point)·scale for `int8_asymmetric`.
pub fn dequantize_layerwise(
    encoding: Encoding,
    bytes: &[u8],
    scales: &[f32],
    out: &mut [f32],
) -> Result<(), QuantError> {
    blocks::check_length(encoding, bytes.len(), out.len())?;
    check_count(encoding, bytes.len(), scales)?;
    for (index, (byte, out)) in bytes.iter().zip(out).enumerate() {
        *out = match encoding {
            Encoding::Int8Symmetric => f32::from(*byte as i8) * scales[0],
            Encoding::Int4Grouped => f32::from(*byte as i8) * scales[index / LAYERWISE_GROUP],
            _ => (f32::from(*byte) - scales[1]) * scales[0],
        };
    }
    Ok(())
}

/// Which elements of a tensor's separate scales are needed for `rows` rows of `k` values starting at
/// `first_row`; `None` for encodings that have no separate scales.
pub fn layerwise_scales(
    encoding: Encoding,
    k: usize,
    first_row: usize,
    rows: usize,
) -> Option<std::ops::Range<usize>> {
    match encoding {
        Encoding::Int8Symmetric => Some(0..1),
        Encoding::Int8Asymmetric => Some(0..2),
        Encoding::Int4Grouped => {
            Some(first_row * k / LAYERWISE_GROUP..((first_row + rows) * k).div_ceil(LAYERWISE_GROUP))
        }
        _ => None,
    }
}

/// Converts a tensor to the scheme of [`scheme_for`], within the error stated there. Rows must be multiples
/// of [`GROUP`].
pub fn transcode_layerwise(encoding: Encoding, bytes: &[u8], scales: &[f32]) -> Result<Groups, QuantError> {
    check_count(encoding, bytes.len(), scales)?;
    if !bytes.len().is_multiple_of(GROUP) {
        return Err(QuantError::Ungrouped { values: bytes.len() });
    }
    check_finite(encoding, scales)?;
    let mut groups = Groups::with_capacity(scheme_for(encoding).0, bytes.len());
    for (group, bytes) in bytes.chunks_exact(GROUP).enumerate() {
        // 128 is a multiple of 32, so a group never spans two scales.
        let block = group * GROUP / LAYERWISE_GROUP;
        let scale = match encoding {
            Encoding::Int4Grouped => to_f16(scales[block], 8.0, block)?,
            _ => to_f16(scales[0], 128.0, 0)?,
        };
        match encoding {
            Encoding::Int8Symmetric => groups.push(scale, f16::ZERO, bytes.iter().map(|byte| *byte as i8)),
            Encoding::Int4Grouped => {
                if let Some(at) = bytes.iter().position(|byte| !(-8..8).contains(&(*byte as i8))) {
                    return Err(QuantError::Code { index: group * GROUP + at, value: bytes[at] as i8 });
                }
                groups.push(scale, f16::ZERO, bytes.iter().map(|byte| *byte as i8));
            }
            _ => {
                let base = base(bytes, scales[1]);
                let min = to_f16((base as f32 - scales[1]) * scales[0], 1.0, 0)?;
                groups.push(scale, min, bytes.iter().map(|byte| (i32::from(*byte) - base) as i8));
            }
        }
    }
    Ok(groups)
}

/// The code that becomes zero: the zero point, or the nearest code for which every code of the group fits 8
/// bits.
fn base(codes: &[u8], zero_point: f32) -> i32 {
    let (low, high) = codes.iter().fold((255, 0), |(low, high), code| (*code.min(&low), *code.max(&high)));
    (zero_point.round() as i32).clamp(i32::from(high) - 127, i32::from(low) + 128)
}

/// Rounds a scale to f16. If it overflows, the error states the largest value: `scale` times `codes`.
fn to_f16(scale: f32, codes: f32, block: usize) -> Result<f16, QuantError> {
    let rounded = f16::from_f32(scale);
    rounded.is_finite().then_some(rounded).ok_or(QuantError::TooLarge { block, value: scale.abs() * codes })
}

fn check_finite(encoding: Encoding, scales: &[f32]) -> Result<(), QuantError> {
    let Some(at) = scales.iter().position(|scale| !scale.is_finite()) else { return Ok(()) };
    let (what, block) = match encoding {
        Encoding::Int8Asymmetric if at == 1 => ("zero point", 0),
        _ => ("scale", at),
    };
    Err(QuantError::NotFinite { what, block, value: scales[at] })
}

fn check_count(encoding: Encoding, values: usize, scales: &[f32]) -> Result<(), QuantError> {
    let expected = match encoding {
        Encoding::Int8Symmetric => 1,
        Encoding::Int4Grouped => values.div_ceil(LAYERWISE_GROUP),
        Encoding::Int8Asymmetric => 2,
        _ => return Err(QuantError::Scales { encoding, location: "inside its blocks" }),
    };
    (scales.len() == expected).then_some(()).ok_or(QuantError::ScaleCount {
        encoding,
        found: scales.len(),
        expected,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [Encoding; 3] = [Encoding::Int8Symmetric, Encoding::Int4Grouped, Encoding::Int8Asymmetric];

    fn assert_within_bound(encoding: Encoding, bytes: &[u8], scales: &[f32]) {
        let mut exact = vec![f32::NAN; bytes.len()];
        dequantize_layerwise(encoding, bytes, scales, &mut exact).unwrap();
        let groups = transcode_layerwise(encoding, bytes, scales).unwrap();
        let (scheme, exactness) = scheme_for(encoding);
        assert_eq!(groups.scheme, scheme);
        for (exact, values) in exact.chunks(GROUP).zip(groups.dequantize().chunks(GROUP)) {
            let largest = exact.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            for (exact, value) in exact.iter().zip(values) {
                let error = (f64::from(*exact) - f64::from(*value)).abs();
                let bound = f64::from(exactness.bound(largest));
                assert!(error <= bound, "{exact:e} became {value:e}, off by {error:e} > {bound:e}");
            }
        }
    }

    proptest! {
        #[test]
        fn transcoding_stays_within_the_stated_error(
            bytes in prop::collection::vec(any::<u8>(), 320),
            spread in 1_u8..=255,
            scale in prop_oneof![1e-4_f32..0.1, 1e-9_f32..1e-4, Just(0.0), -1.0_f32..1.0],
            zero_point in prop_oneof![(0_u8..=255).prop_map(f32::from), -300.0_f32..600.0],
        ) {
            // Groups with narrow and wide ranges of codes, around different centres.
            let bytes: Vec<u8> = bytes.iter().enumerate()
                .map(|(k, byte)| ((k / GROUP * 25) as u8).saturating_add(byte % spread)).collect();
            assert_within_bound(Encoding::Int8Symmetric, &bytes, &[scale]);
            assert_within_bound(Encoding::Int8Asymmetric, &bytes, &[scale, zero_point]);
            let small: Vec<u8> = bytes.iter().map(|byte| (byte % 15).wrapping_sub(7)).collect();
            assert_within_bound(Encoding::Int4Grouped, &small, &[scale, scale * 0.3, scale * 7.0]);
        }
    }

    #[test]
    fn encodings_decode_to_the_expected_values() {
        let bytes = [0, 1, 127, 128, 255];
        let values = |encoding, scales: &[f32]| {
            let mut out = [f32::NAN; 5];
            dequantize_layerwise(encoding, &bytes, scales, &mut out).unwrap();
            out
        };
        assert_eq!(values(Encoding::Int8Symmetric, &[0.5]), [0.0, 0.5, 63.5, -64.0, -0.5]);
        assert_eq!(values(Encoding::Int8Asymmetric, &[0.5, 100.0]), [-50.0, -49.5, 13.5, 14.0, 77.5]);
        // Values 127 and 128 of the flattened tensor have different scales.
        let mut out = [f32::NAN; 160];
        dequantize_layerwise(Encoding::Int4Grouped, &[0xfd; 160], &[1.0, 2.0], &mut out).unwrap();
        assert_eq!((out[127], out[128]), (-3.0, -6.0));
        let groups = transcode_layerwise(Encoding::Int4Grouped, &[0xfd; 160], &[1.0, 2.0]).unwrap();
        assert_eq!(groups.scales.iter().map(|s| s.to_f32()).collect::<Vec<_>>(), [1.0, 1.0, 1.0, 1.0, 2.0]);
    }

    #[test]
    fn minimum_is_zero_when_the_zero_point_fits_8_bits() {
        let bytes: [u8; 32] = std::array::from_fn(|k| 100 + k as u8);
        let groups = transcode_layerwise(Encoding::Int8Asymmetric, &bytes, &[0.25, 117.0]).unwrap();
        assert_eq!(groups.mins, Some(vec![f16::ZERO]));
        assert_eq!(groups.q[0], -17);
    }

    #[test]
    fn invalid_scales_are_rejected() {
        for encoding in ALL {
            let scales = |bad| match encoding {
                Encoding::Int8Symmetric => vec![bad],
                _ => vec![0.1, bad],
            };
            for bad in [f32::NAN, f32::INFINITY] {
                let error = transcode_layerwise(encoding, &[1; 256], &scales(bad)).unwrap_err();
                assert!(matches!(error, QuantError::NotFinite { .. }), "{error}");
            }
            let error = transcode_layerwise(encoding, &[1; 256], &scales(1e9)).unwrap_err();
            assert!(matches!(error, QuantError::TooLarge { .. }), "{error}");
            let error = transcode_layerwise(encoding, &[1; 256], &[0.1; 7]).unwrap_err();
            assert!(matches!(error, QuantError::ScaleCount { found: 7, .. }), "{error}");
            assert!(dequantize_layerwise(encoding, &[1; 256], &[0.1; 7], &mut [0.0; 256]).is_err());
        }
        let mut bytes = [7_u8; 128];
        bytes[99] = 8;
        assert_eq!(
            transcode_layerwise(Encoding::Int4Grouped, &bytes, &[0.1]),
            Err(QuantError::Code { index: 99, value: 8 })
        );
    }
}
