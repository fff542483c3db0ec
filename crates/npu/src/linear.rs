//! Products of floats on an int8 overlay: y = x · Wᵀ, where each value is rounded to 16 bits.
//!
//! Each row of x and each row of W has a scale: its largest magnitude becomes 32,639. A rounded value is 256 · high +
//! low with two signed bytes, so that one product of int8 has all four products of the halves:
//!
//! ```text
//!               W high   W low             high · high × 65,536
//!   x high   │ hh      │ hl      │         + (high · low + low · high) × 256
//!   x low    │ lh      │ ll      │         + low · low
//! ```
//!
//! Their sums are exact. So a value of y differs from the exact product of the floats by at most K · max|x| · max|w| /
//! 32,639 in its row of x and its row of W, and 0.5% of that for rounding to f32 ([`ERROR`]). Values do not depend on
//! the backend that computes the int8 product.

use crate::matmul::{Computed, Declined, Matmul, Operand, Stored};

/// The largest rounded magnitude: 127 · 256 + 127.
const LARGEST: f32 = 32_639.0;

/// The largest error of a value, as a fraction of K · max|x| · max|w| in its rows: half a step in each factor, up to
/// 2^-10 of a step in each for rounding its quotient to f32, and 2^-24 of the value for rounding the result. That is
/// 1.0039 steps; scales and squares of errors are below 1e-4.
///
/// It does not hold for a row whose largest magnitude is below 3.9e-34 but not zero, which has the smallest normal
/// number as its scale, nor for results outside of f32's normal range.
pub const ERROR: f64 = 1.005 / LARGEST as f64;

/// Maximum rows of x per command. Their halves are two blocks of rows on sixteen cores. In one command, the sums of all
/// patches of an image would take hundreds of megabytes.
const ROWS: usize = 256;

/// Weights that the NPU keeps.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    stored: Stored,
    k: usize,
    /// Scale of each row.
    scales: Vec<f32>,
}

impl Weights {
    /// Values of a row of x.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Values of a row of y.
    pub fn rows(&self) -> usize {
        self.scales.len()
    }

    /// Bytes that the NPU keeps.
    pub fn bytes(&self) -> usize {
        self.stored.bytes
    }
}

/// Products of floats on the NPU, until it is given up.
pub struct Linear {
    matmul: Matmul,
}

impl Linear {
    /// With an int8 overlay.
    pub fn new(matmul: Matmul) -> Self {
        Self { matmul }
    }

    /// Where products are computed, and why.
    pub fn matmul(&self) -> &Matmul {
        &self.matmul
    }

    /// The same, to compare times or to give the NPU up.
    pub fn matmul_mut(&mut self) -> &mut Matmul {
        &mut self.matmul
    }

    /// Bytes that [`Self::store`] takes for this many rows of `k` values.
    pub fn stored_bytes(&self, k: usize, rows: usize) -> Computed<usize> {
        Ok(self.matmul.stored_bytes(k, 2 * rows)?)
    }

    /// Stores weights, rows of `k` values.
    pub fn store(&mut self, k: usize, weights: &[f32]) -> Computed<Weights> {
        let (bytes, scales) = packed_weights(k, weights)?;
        let stored = self.matmul.store(k, 2 * scales.len(), &bytes)?;
        Ok(Weights { stored, k, scales })
    }

    /// y = x · Wᵀ for rows of x.
    pub fn multiply(&mut self, x: &[f32], weights: &Weights) -> Computed<Vec<f32>> {
        let Weights { stored, k, scales } = weights;
        self.product(*k, x, Operand::Stored(*stored), scales)
    }

    /// The same for weights that are used once, rows of `k` values.
    pub fn multiply_once(&mut self, k: usize, x: &[f32], weights: &[f32]) -> Computed<Vec<f32>> {
        let (bytes, scales) = packed_weights(k, weights)?;
        self.product(k, x, Operand::Values(&bytes), &scales)
    }

    fn product(
        &mut self,
        k: usize,
        x: &[f32],
        weights: Operand<'_, i8>,
        weight_scales: &[f32],
    ) -> Computed<Vec<f32>> {
        let mut y = Vec::with_capacity(rows_of(k, x)? * weight_scales.len());
        for x in x.chunks(ROWS * k) {
            self.product_of_rows(k, x, weights, weight_scales, &mut y)?;
        }
        Ok(y)
    }

    /// Appends the products of rows of x, in one command.
    fn product_of_rows(
        &mut self,
        k: usize,
        x: &[f32],
        weights: Operand<'_, i8>,
        weight_scales: &[f32],
        y: &mut Vec<f32>,
    ) -> Computed<()> {
        let (rows, n) = (x.len() / k, weight_scales.len());
        let mut bytes = vec![0i8; 2 * x.len()];
        let (high, low) = bytes.split_at_mut(x.len());
        let halves = high.chunks_exact_mut(k).zip(low.chunks_exact_mut(k));
        let scales: Vec<f32> =
            x.chunks_exact(k).zip(halves).map(|(x, (high, low))| round(x, high, low)).collect();
        let c = self.matmul.multiply((2 * rows, k, 2 * n), &bytes, weights)?;
        let (high, low) = c.split_at(rows * 2 * n);
        for ((high, low), scale) in high.chunks_exact(2 * n).zip(low.chunks_exact(2 * n)).zip(scales) {
            let ((hh, hl), (lh, ll)) = (high.split_at(n), low.split_at(n));
            for (column, weight_scale) in weight_scales.iter().enumerate() {
                let [hh, hl, lh, ll] = [hh, hl, lh, ll].map(|sums| i64::from(sums[column]));
                let sum = (hh << 16) + ((hl + lh) << 8) + ll;
                y.push((sum as f64 * f64::from(scale) * f64::from(*weight_scale)) as f32);
            }
        }
        Ok(())
    }
}

/// Number of rows of `k` values: at least one, and whole ones.
fn rows_of(k: usize, values: &[f32]) -> Computed<usize> {
    if k == 0 || values.is_empty() || !values.len().is_multiple_of(k) {
        return Err(Declined::Refused(format!("{} values are no rows of {k}", values.len())));
    }
    Ok(values.len() / k)
}

/// Weights by columns: of each row the high halves, then of each the low ones; and the scales of the rows.
fn packed_weights(k: usize, weights: &[f32]) -> Computed<(Vec<i8>, Vec<f32>)> {
    let n = rows_of(k, weights)?;
    let mut bytes = vec![0i8; 2 * weights.len()];
    let (mut high, mut low) = (vec![0i8; k], vec![0i8; k]);
    let mut scales = Vec::with_capacity(n);
    for (row, weights) in weights.chunks_exact(k).enumerate() {
        scales.push(round(weights, &mut high, &mut low));
        for ((column, high), low) in bytes.chunks_exact_mut(2 * n).zip(&high).zip(&low) {
            (column[row], column[n + row]) = (*high, *low);
        }
    }
    Ok((bytes, scales))
}

/// Rounds a row to high and low halves, and returns its scale: NaN if a value is NaN or infinite, so that its products
/// are NaN too.
fn round(row: &[f32], high: &mut [i8], low: &mut [i8]) -> f32 {
    let largest = row.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    if !row.iter().all(|value| value.is_finite()) {
        high.fill(0);
        low.fill(0);
        return f32::NAN;
    }
    // A row of zeros, or of values so small that their scale would be zero.
    let scale = (largest / LARGEST).max(f32::MIN_POSITIVE);
    for ((value, high), low) in row.iter().zip(high).zip(low) {
        let rounded = (value / scale).round().clamp(-LARGEST, LARGEST) as i32;
        *low = rounded as i8;
        *high = ((rounded - i32::from(*low)) >> 8) as i8;
    }
    scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_make_the_rounded_value() {
        let row: Vec<f32> = (-32_639..=32_639).map(|value| value as f32).collect();
        let (mut high, mut low) = (vec![0; row.len()], vec![0; row.len()]);
        assert_eq!(round(&row, &mut high, &mut low), 1.0);
        for ((value, high), low) in row.iter().zip(high).zip(low) {
            assert_eq!(256.0 * f32::from(high) + f32::from(low), *value);
        }
    }

    /// Products on the array model.
    fn linear() -> Linear {
        let size = crate::gemm::Int8::new(1, 1).expect("a size");
        let open = |overlay: &_, image: &[u8]| -> crate::Result<Box<dyn crate::matmul::Backend>> {
            Ok(Box::new(crate::matmul::OnModel::new(overlay, image)?))
        };
        let settings = crate::settings::Settings::new(crate::matmul::Mode::Force, size, open);
        let (linear, _operation) = settings.start("a test");
        linear
    }

    #[test]
    fn the_largest_errors_are_within_the_stated_one() {
        let mut linear = linear();
        // One large value, and many whose quotients by the scale are just above a half, which all rounds up.
        for (large, other, k) in [(1.0938595f32, 1.0936416f32, 4096), (1.016_509, 1.0164623, 8192)] {
            let mut row = vec![other; k];
            row[0] = large;
            let y = linear.multiply_once(k, &row, &row).expect("a product")[0];
            let exact: f64 = row.iter().map(|value| f64::from(*value).powi(2)).sum();
            let largest = k as f64 * f64::from(large).powi(2);
            let error = (f64::from(y) - exact).abs() / largest;
            assert!((1.0025 / f64::from(LARGEST)..=ERROR).contains(&error), "{error} of {ERROR}");
        }
    }

    #[test]
    fn all_halves_count_and_rows_keep_their_order() {
        let mut linear = linear();
        // With scales of 1, products are exact: 100 is a low half alone, 300 is 256 + 44.
        let weights = [0.0, LARGEST, 100.0, 0.0, -LARGEST, 300.0];
        let x: Vec<f32> = (0..ROWS + 2).flat_map(|row| [LARGEST, 0.0, row as f32]).collect();
        let y = linear.multiply_once(3, &x, &weights).expect("a product");
        let right: Vec<f32> =
            (0..ROWS + 2).flat_map(|row| [100.0 * row as f32, 300.0 * row as f32]).collect();
        assert_eq!(y, right);
    }

    #[test]
    fn rows_without_a_scale() {
        let (mut high, mut low) = ([1; 2], [1; 2]);
        for row in [[0.0, -0.0], [f32::MIN_POSITIVE / 8.0, 0.0]] {
            assert!(round(&row, &mut high, &mut low) > 0.0);
            assert_eq!((high, low), ([0; 2], [0; 2]));
        }
        for row in [[1.0, f32::NAN], [f32::INFINITY, 1.0]] {
            assert!(round(&row, &mut high, &mut low).is_nan());
        }
        assert!(rows_of(0, &[1.0]).is_err() && rows_of(2, &[1.0; 3]).is_err() && rows_of(2, &[]).is_err());
        assert!(packed_weights(3, &[1.0]).is_err());
    }
}
