//! Antialiased resizing: two passes of a filter that widens with the scale, each rounded to 8 bits.
//!
//! The filter is Pillow's, in the 16-bit arithmetic of torchvision, which the image processors of the transformers
//! package use. Rounding and clamping between the passes is part of the result: bicubic weights overshoot at edges,
//! and the second pass reads what was clamped. Pillow itself has weights of 22 bits; in rare pixels the two differ by
//! 1, or by 2 for the bicubic filter.

use std::ops::Range;

use crate::picture::{Picture, Region};

/// A resampling filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// A triangle over two source pixels.
    Bilinear,
    /// A cubic with a = −0.5 over four source pixels.
    Bicubic,
}

impl Filter {
    /// Half the width of the filter, in source pixels at scale 1.
    fn radius(self) -> f64 {
        match self {
            Filter::Bilinear => 1.0,
            Filter::Bicubic => 2.0,
        }
    }

    fn weight(self, distance: f64) -> f64 {
        const A: f64 = -0.5;
        let d = distance.abs();
        match self {
            Filter::Bilinear => (1.0 - d).max(0.0),
            Filter::Bicubic if d < 1.0 => ((A + 2.0) * d - (A + 3.0)) * d * d + 1.0,
            Filter::Bicubic if d < 2.0 => ((A * d - 5.0 * A) * d + 8.0 * A) * d - 4.0 * A,
            Filter::Bicubic => 0.0,
        }
    }
}

/// Resizes a region of a picture. Pixels outside the region do not contribute. `width` and `height` are at least 1;
/// zero is taken as 1.
///
/// # Panics
/// If the region is empty or not inside the picture.
pub fn resize(picture: &Picture, region: Region, width: u32, height: u32, filter: Filter) -> Picture {
    let inside = |start: u32, length: u32, end: u32| {
        length > 0 && u64::from(start) + u64::from(length) <= u64::from(end)
    };
    assert!(
        inside(region.x, region.width, picture.width()) && inside(region.y, region.height, picture.height()),
        "{region:?} of {picture:?}"
    );
    let (width, height) = (width.max(1), height.max(1));
    let columns = Taps::new(region.width, width, filter);
    let rows = Taps::new(region.height, height, filter);
    let left = region.x as usize * 3;
    let source = |y: usize| &picture.row(region.y as usize + y)[left..left + region.width as usize * 3];

    let rgb = if horizontal_first(&region, width, height) {
        let between = columns.horizontal((0..region.height as usize).map(source));
        let stride = width as usize * 3;
        rows.vertical(stride, |y| &between[y * stride..][..stride])
    } else {
        let stride = region.width as usize * 3;
        let between = rows.vertical(stride, source);
        columns.horizontal(between.chunks_exact(stride))
    };
    Picture::new(width, height, rgb).expect("the size asked for")
}

/// How much larger than source and result the picture between the passes may be.
const MAX_GROWTH: u64 = 4;

/// Pillow resizes rows first. For a source of 1 × 50,000,000 pixels that would be a picture of 134 GB between the
/// passes, so the order changes for very high sources.
fn horizontal_first(region: &Region, width: u32, height: u32) -> bool {
    let area = |width: u32, height: u32| u64::from(width) * u64::from(height);
    let larger = area(region.width, region.height).max(area(width, height));
    area(width, region.height) <= larger.saturating_mul(MAX_GROWTH)
}

/// Weights of source pixels for each pixel of a row or column.
struct Taps {
    /// Per result: first source pixel, and where its weights are.
    spans: Vec<(usize, Range<usize>)>,
    /// Fixed-point numbers that fit into 16 bits.
    weights: Vec<i32>,
    /// Bits after the point.
    precision: u32,
}

/// Most bits after the point: sums of 255 times all weights still fit into 32 bits.
const MAX_PRECISION: u32 = 22;

impl Taps {
    fn new(from: u32, to: u32, filter: Filter) -> Self {
        let scale = f64::from(from) / f64::from(to);
        let stretch = scale.max(1.0);
        let radius = filter.radius() * stretch;
        let mut spans = Vec::with_capacity(to as usize);
        let mut weights: Vec<f64> = Vec::new();
        for index in 0..to {
            let centre = (f64::from(index) + 0.5) * scale;
            let first = (centre - radius + 0.5).max(0.0) as usize;
            let end = ((centre + radius + 0.5) as usize).min(from as usize);
            let start = weights.len();
            weights.extend((first..end).map(|at| filter.weight((at as f64 + 0.5 - centre) / stretch)));
            let total: f64 = weights[start..].iter().sum();
            weights[start..].iter_mut().for_each(|weight| *weight /= total);
            spans.push((first, start..weights.len()));
        }
        let largest = weights.iter().copied().fold(0.0, f64::max);
        let fixed = |weight: f64, precision: u32| (weight * f64::from(1 << precision)).round() as i32;
        let fits = |precision: &u32| fixed(largest, *precision) <= i32::from(i16::MAX);
        let precision = (1..=MAX_PRECISION).rev().find(fits).unwrap_or(1);
        let weights = weights.into_iter().map(|weight| fixed(weight, precision)).collect();
        Self { spans, weights, precision }
    }

    /// Half of the last digit, so that sums are rounded.
    fn half(&self) -> i32 {
        1 << (self.precision - 1)
    }

    /// Resizes each row.
    fn horizontal<'a>(&self, rows: impl ExactSizeIterator<Item = &'a [u8]>) -> Vec<u8> {
        let stride = self.spans.len() * 3;
        let mut result = vec![0; rows.len() * stride];
        for (row, result) in rows.zip(result.chunks_exact_mut(stride)) {
            let (pixels, _) = row.as_chunks::<3>();
            let (result, _) = result.as_chunks_mut::<3>();
            for (pixel, (first, span)) in result.iter_mut().zip(&self.spans) {
                let mut sums = [self.half(); 3];
                for (source, weight) in pixels[*first..].iter().zip(&self.weights[span.clone()]) {
                    for channel in 0..3 {
                        sums[channel] += i32::from(source[channel]) * weight;
                    }
                }
                *pixel = sums.map(|sum| to_byte(sum, self.precision));
            }
        }
        result
    }

    /// Resizes the columns of rows of `stride` bytes.
    fn vertical<'a>(&self, stride: usize, row: impl Fn(usize) -> &'a [u8]) -> Vec<u8> {
        let mut result = vec![0; self.spans.len() * stride];
        let mut sums = vec![0; stride];
        for (result, (first, span)) in result.chunks_exact_mut(stride).zip(&self.spans) {
            sums.fill(self.half());
            for (y, weight) in (*first..).zip(&self.weights[span.clone()]) {
                for (sum, value) in sums.iter_mut().zip(row(y)) {
                    *sum += i32::from(*value) * weight;
                }
            }
            for (result, sum) in result.iter_mut().zip(&sums) {
                *result = to_byte(*sum, self.precision);
            }
        }
        result
    }
}

// Per byte of a picture, and the release profile does not optimise across codegen units.
#[inline]
fn to_byte(sum: i32, precision: u32) -> u8 {
    (sum >> precision).clamp(0, 255) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gradient(width: u32, height: u32) -> Picture {
        let pixel =
            |i: u32| [(i % width * 255 / width) as u8, (i / width * 255 / height) as u8, (i % 251) as u8];
        Picture::new(width, height, (0..width * height).flat_map(pixel).collect()).expect("a gradient")
    }

    #[test]
    fn the_same_size_changes_nothing() {
        let picture = gradient(13, 7);
        for filter in [Filter::Bilinear, Filter::Bicubic] {
            assert!(resize(&picture, picture.region(), 13, 7, filter) == picture);
        }
    }

    #[test]
    fn one_colour_stays() {
        let picture = Picture::new(50, 3, [9, 200, 255].repeat(150)).expect("150 pixels");
        for filter in [Filter::Bilinear, Filter::Bicubic] {
            for (width, height) in [(1, 1), (7, 90), (200, 2)] {
                let resized = resize(&picture, picture.region(), width, height, filter);
                assert!(resized.rgb().chunks(3).all(|pixel| pixel == [9, 200, 255]), "{filter:?}");
            }
        }
    }

    #[test]
    fn a_region_is_resized_like_a_picture_of_its_own() {
        let picture = gradient(40, 30);
        let region = Region { x: 11, y: 5, width: 17, height: 20 };
        let rows = (5..25).flat_map(|y| picture.row(y)[33..84].to_vec()).collect();
        let alone = Picture::new(17, 20, rows).expect("the region");
        let expected = resize(&alone, alone.region(), 9, 31, Filter::Bicubic);
        assert!(resize(&picture, region, 9, 31, Filter::Bicubic) == expected);
    }

    #[test]
    fn the_picture_between_the_passes_stays_small() {
        let wide = Region { x: 0, y: 0, width: 50_000_000, height: 1 };
        let high = Region { x: 0, y: 0, width: 1, height: 50_000_000 };
        assert!(horizontal_first(&wide, 896, 896));
        assert!(!horizontal_first(&high, 896, 896));
        let usual = Region { x: 0, y: 0, width: 300, height: 1200 };
        assert!(horizontal_first(&usual, 896, 896));
        // Both orders agree up to rounding.
        let high = gradient(2, 4000);
        let low = resize(&high, high.region(), 64, 64, Filter::Bilinear);
        assert_eq!((low.rgb()[1], low.rgb()[64 * 64 * 3 - 2]), (2, 252));
    }
}
