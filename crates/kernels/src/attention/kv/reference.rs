//! CPU reference of the cache layout: encoding of lines into words, and back.

use half::f16;
use tensor::{KV_INT8_GROUP as INT8_GROUP, KvScheme};

use super::KvShape;

/// The largest scale of a group: the largest f16.
const MAX_SCALE: f32 = 65_504.0;

/// The int8 scale of a group, and its values in units of that scale.
pub fn int8(group: &[f64]) -> (f16, Vec<i8>) {
    // NaN counts as larger than any number.
    let larger = |max: f32, size: f32| if size > max || size.is_nan() { size } else { max };
    let largest = group.iter().map(|value| (*value as f32).abs()).fold(0.0, larger);
    let scale =
        f16::from_f32(if largest.is_nan() { largest } else { (largest * (1.0 / 127.0)).min(MAX_SCALE) });
    if scale.is_nan() || scale == f16::ZERO {
        return (scale, vec![0; group.len()]);
    }
    let unit = |value: &f64| (*value as f32 / scale.to_f32()).round_ties_even().clamp(-127.0, 127.0) as i8;
    (scale, group.iter().map(unit).collect())
}

/// Rounds the values of a line as storing them does.
pub fn round(line: &mut [f64], scheme: KvScheme) {
    match scheme {
        KvScheme::F32 => line.iter_mut().for_each(|value| *value = f64::from(*value as f32)),
        KvScheme::F16 => line.iter_mut().for_each(|value| *value = f16::from_f32(*value as f32).to_f64()),
        KvScheme::Int8 => {
            for group in line.chunks_mut(INT8_GROUP as usize) {
                let (scale, units) = int8(group);
                group
                    .iter_mut()
                    .zip(units)
                    .for_each(|(value, unit)| *value = f64::from(unit) * scale.to_f64());
            }
        }
    }
}

/// Allowed error of stored values against the exact ones; in int8 it is the same for a whole group.
pub fn rounding(line: &[f64], scheme: KvScheme) -> Vec<f64> {
    match scheme {
        KvScheme::F32 => vec![0.0; line.len()],
        // Subnormal f16 values all have the same spacing.
        KvScheme::F16 => line.iter().map(|value| (value.abs() / 2048.0).max(0.5_f64.powi(25))).collect(),
        KvScheme::Int8 => line
            .chunks(INT8_GROUP as usize)
            .flat_map(|group| {
                let scale = int8(group).0.to_f64();
                let largest = group.iter().fold(0.0_f64, |max, value| max.max(value.abs()));
                // The scale itself was rounded: the largest value may not be exactly 127 steps. Devices
                // divide with an error in the last bits, which may decide a tie.
                vec![0.5002 * scale + (largest - 127.0 * scale).abs(); group.len()]
            })
            .collect(),
    }
}

/// Allowed error of stored values against [`round`]: zero, except for int8 ties. A device may round those the
/// other way, because its division has an error in the last bits.
pub fn tie_tolerance(line: &[f64], scheme: KvScheme) -> Vec<f64> {
    if scheme != KvScheme::Int8 {
        return vec![0.0; line.len()];
    }
    let group_tolerance = |group: &[f64]| -> Vec<f64> {
        let scale = int8(group).0.to_f64();
        let tie = |value: &f64| ((value / scale).abs().fract() - 0.5).abs() < 1e-4;
        group.iter().map(|value| if tie(value) { scale } else { 0.0 }).collect()
    };
    line.chunks(INT8_GROUP as usize).flat_map(group_tolerance).collect()
}

/// The words of a whole cache, from the values of all elements in index order.
pub fn words(values: &[f64], shape: &KvShape) -> Vec<u32> {
    let bits = |value: f64| u32::from(f16::from_f64(value).to_bits());
    match shape.scheme {
        KvScheme::F32 => values.iter().map(|value| (*value as f32).to_bits()).collect(),
        KvScheme::F16 => values.chunks(2).map(|pair| bits(pair[0]) | bits(pair[1]) << 16).collect(),
        KvScheme::Int8 => {
            let mut words = vec![0_u32; (shape.bytes() / 4) as usize];
            for (number, group) in (0..).zip(values.chunks(INT8_GROUP as usize)) {
                let first = number * u64::from(INT8_GROUP);
                let (scale, units) = int8(group);
                let (word, shift) = int8_scale_at(shape, first);
                words[word] |= u32::from(scale.to_bits()) << shift;
                for (element, unit) in (first..).zip(units) {
                    let (word, shift) = int8_at(shape, element);
                    words[word] |= u32::from(unit as u8) << shift;
                }
            }
            words
        }
    }
}

/// The value of an element.
pub fn value(words: &[u32], shape: &KvShape, element: u64) -> f64 {
    let half = |(word, shift): (usize, u32)| f16::from_bits((words[word] >> shift) as u16).to_f64();
    match shape.scheme {
        KvScheme::F32 => f64::from(f32::from_bits(words[element as usize])),
        KvScheme::F16 => half((element as usize / 2, element as u32 % 2 * 16)),
        KvScheme::Int8 => {
            let (word, shift) = int8_at(shape, element);
            f64::from((words[word] >> shift) as u8 as i8) * half(int8_scale_at(shape, element))
        }
    }
}

/// The words that an element depends on.
pub fn words_of(shape: &KvShape, element: u64) -> Vec<usize> {
    match shape.scheme {
        KvScheme::F32 => vec![element as usize],
        KvScheme::F16 => vec![element as usize / 2],
        KvScheme::Int8 => vec![int8_at(shape, element).0, int8_scale_at(shape, element).0],
    }
}

/// The word that contains an int8 element, and its bit offset.
fn int8_at(shape: &KvShape, element: u64) -> (usize, u32) {
    let (page, position, d) = int8_coordinates(shape, element);
    let byte = page * page_bytes(shape) + position * u64::from(shape.head_dim) + d;
    (byte as usize / 4, byte as u32 % 4 * 8)
}

/// The word that contains the scale of an int8 element, and its bit offset.
fn int8_scale_at(shape: &KvShape, element: u64) -> (usize, u32) {
    let (page, position, d) = int8_coordinates(shape, element);
    let head_dim = u64::from(shape.head_dim);
    let scales = shape.scheme.head_bytes(shape.head_dim) - head_dim;
    let values = u64::from(shape.page_size) * head_dim;
    let byte = page * page_bytes(shape) + values + position * scales + d / u64::from(INT8_GROUP) * 2;
    (byte as usize / 4, byte as u32 % 4 * 8)
}

/// An element's page of one KV head, its position there, and its index within the head.
fn int8_coordinates(shape: &KvShape, element: u64) -> (u64, u64, u64) {
    let (head_dim, page) = (u64::from(shape.head_dim), u64::from(shape.page_size));
    (element / head_dim / page, element / head_dim % page, element % head_dim)
}

fn page_bytes(shape: &KvShape) -> u64 {
    u64::from(shape.page_size) * shape.scheme.head_bytes(shape.head_dim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_multiples_of_their_rounded_scale() {
        let mut group = vec![0.0; 32];
        (group[3], group[4], group[5]) = (-12.7, 6.35, 0.049);
        let (scale, units) = int8(&group);
        assert_eq!(scale, f16::from_f32(0.1));
        assert_eq!(units[..7], [0, 0, 0, -127, 64, 0, 0], "6.35 is 63.51 of 0.09998");
        // Rounding is idempotent.
        round(&mut group, KvScheme::Int8);
        let once = group.clone();
        round(&mut group, KvScheme::Int8);
        assert_eq!(group, once);
    }

    #[test]
    fn zero_scales_give_zeros_and_nan_stays_nan() {
        assert_eq!(int8(&[0.0; 32]), (f16::ZERO, vec![0; 32]));
        assert_eq!(int8(&[1e-7; 32]), (f16::ZERO, vec![0; 32]));
        assert_eq!(int8(&[1e30; 32]).0, f16::MAX);
        let mut group = vec![1.0; 32];
        group[7] = f64::NAN;
        round(&mut group, KvScheme::Int8);
        assert!(group.iter().all(|value| value.is_nan()));
    }

    #[test]
    fn int8_scales_follow_the_values_of_a_page() {
        let shape = KvShape { kv_heads: 2, head_dim: 96, page_size: 4, pages: 3, scheme: KvScheme::Int8 };
        let mut values: Vec<f64> = (0..shape.elements()).map(|i| (i as f64 * 0.37).sin() * 3.0).collect();
        let words = words(&values, &shape);
        assert_eq!(words.len() as u64, 3 * 2 * 4 * (96 + 8) / 4);
        values.chunks_mut(96).for_each(|line| round(line, KvScheme::Int8));
        for (element, want) in (0..).zip(&values) {
            assert_eq!(value(&words, &shape, element), *want, "element {element}");
        }
        // Page 1 of head 1, position 2, value 33: three pages of a head before it.
        let element = shape.element(1, 1, 2, 33);
        let page = 3 * (4 * 24 + 4 * 2);
        assert_eq!(words_of(&shape, element), [page + 2 * 24 + 8, page + 4 * 24 + 2 * 2]);
    }
}
