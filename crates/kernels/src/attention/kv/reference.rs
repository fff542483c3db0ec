//! The cache in plain Rust: which words a line's values make, and which values they stand for.

use half::f16;

use super::{INT8_GROUP, KvScheme, KvShape};

/// The largest scale of a group: f16 has no larger number.
const MOST_SCALE: f32 = 65_504.0;

/// The scale that int8 stores for a group, and its values in units of it.
pub fn int8(group: &[f64]) -> (f16, Vec<i8>) {
    // What is not a number is larger than any.
    let larger = |most: f32, size: f32| if size > most || size.is_nan() { size } else { most };
    let reach = group.iter().map(|value| (*value as f32).abs()).fold(0.0, larger);
    let scale = f16::from_f32(if reach.is_nan() { reach } else { (reach * (1.0 / 127.0)).min(MOST_SCALE) });
    if scale.is_nan() || scale == f16::ZERO {
        return (scale, vec![0; group.len()]);
    }
    let unit = |value: &f64| (*value as f32 / scale.to_f32()).round_ties_even().clamp(-127.0, 127.0) as i8;
    (scale, group.iter().map(unit).collect())
}

/// What the values of a line are once they are stored.
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

/// How far from a line's values those that are stored may be; of a group in int8 it is the same for all.
pub fn rounding(line: &[f64], scheme: KvScheme) -> Vec<f64> {
    match scheme {
        KvScheme::F32 => vec![0.0; line.len()],
        // The smallest numbers of f16 are all as far apart.
        KvScheme::F16 => line.iter().map(|value| (value.abs() / 2048.0).max(0.5_f64.powi(25))).collect(),
        KvScheme::Int8 => line
            .chunks(INT8_GROUP as usize)
            .flat_map(|group| {
                let scale = int8(group).0.to_f64();
                let reach = group.iter().fold(0.0_f64, |most, value| most.max(value.abs()));
                // The scale was rounded itself: the largest value may not be quite 127 of it. Devices divide by it with an error
                // in the last bits, which may decide a tie.
                vec![0.5002 * scale + (reach - 127.0 * scale).abs(); group.len()]
            })
            .collect(),
    }
}

/// How far from what [`round`] says stored values may be: nothing, but for ties of int8, which a device may decide otherwise when
/// it divides with an error in the last bits.
pub fn slack(line: &[f64], scheme: KvScheme) -> Vec<f64> {
    if scheme != KvScheme::Int8 {
        return vec![0.0; line.len()];
    }
    let of_group = |group: &[f64]| -> Vec<f64> {
        let scale = int8(group).0.to_f64();
        let tie = |value: &f64| ((value / scale).abs().fract() - 0.5).abs() < 1e-4;
        group.iter().map(|value| if tie(value) { scale } else { 0.0 }).collect()
    };
    line.chunks(INT8_GROUP as usize).flat_map(of_group).collect()
}

/// The words of a whole cache, from the values of all elements in the order of their numbers.
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

/// What an element stands for.
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

/// The words that have a part in an element.
pub fn places(shape: &KvShape, element: u64) -> Vec<usize> {
    match shape.scheme {
        KvScheme::F32 => vec![element as usize],
        KvScheme::F16 => vec![element as usize / 2],
        KvScheme::Int8 => vec![int8_at(shape, element).0, int8_scale_at(shape, element).0],
    }
}

/// The word that has an element of int8, and at which bit.
fn int8_at(shape: &KvShape, element: u64) -> (usize, u32) {
    let (page, position, d) = int8_place(shape, element);
    let byte = page * page_bytes(shape) + position * u64::from(shape.head_dim) + d;
    (byte as usize / 4, byte as u32 % 4 * 8)
}

/// The word that has the scale of an element of int8, and at which bit.
fn int8_scale_at(shape: &KvShape, element: u64) -> (usize, u32) {
    let (page, position, d) = int8_place(shape, element);
    let head_dim = u64::from(shape.head_dim);
    let scales = shape.scheme.head_bytes(shape.head_dim) - head_dim;
    let values = u64::from(shape.page_size) * head_dim;
    let byte = page * page_bytes(shape) + values + position * scales + d / u64::from(INT8_GROUP) * 2;
    (byte as usize / 4, byte as u32 % 4 * 8)
}

/// An element's page of one kv head, its position there and its number among the head's values.
fn int8_place(shape: &KvShape, element: u64) -> (u64, u64, u64) {
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
    fn a_group_is_whole_numbers_of_its_rounded_scale() {
        let mut group = vec![0.0; 32];
        (group[3], group[4], group[5]) = (-12.7, 6.35, 0.049);
        let (scale, units) = int8(&group);
        assert_eq!(scale, f16::from_f32(0.1));
        assert_eq!(units[..7], [0, 0, 0, -127, 64, 0, 0], "6.35 is 63.51 of 0.09998");
        // Rounded once, it stays as it is.
        round(&mut group, KvScheme::Int8);
        let once = group.clone();
        round(&mut group, KvScheme::Int8);
        assert_eq!(group, once);
    }

    #[test]
    fn what_has_no_scale_is_zero_and_what_is_no_number_stays_none() {
        assert_eq!(int8(&[0.0; 32]), (f16::ZERO, vec![0; 32]));
        assert_eq!(int8(&[1e-7; 32]), (f16::ZERO, vec![0; 32]));
        assert_eq!(int8(&[1e30; 32]).0, f16::MAX);
        let mut group = vec![1.0; 32];
        group[7] = f64::NAN;
        round(&mut group, KvScheme::Int8);
        assert!(group.iter().all(|value| value.is_nan()));
    }

    #[test]
    fn int8_scales_lie_behind_the_values_of_a_page() {
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
        assert_eq!(places(&shape, element), [page + 2 * 24 + 8, page + 4 * 24 + 2 * 2]);
    }
}
