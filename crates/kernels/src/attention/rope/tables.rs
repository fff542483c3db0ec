//! Cosines and sines of every position, from two tables that the host computes in f64.
//!
//! Vulkan guarantees the precision of sines for small angles only, and little of it. Position p is 256 · a +
//! b: the kernel multiplies entry a of the coarse table by entry b of the fine one, as complex numbers, which
//! is exact to f32 rounding at any position.

/// Positions that the fine table covers; the shader has the same constant.
const FINE: usize = 256;

/// The two tables, each [entry][head_dim / 2] of a cosine and a sine.
#[derive(Clone, Debug, PartialEq)]
pub struct Tables {
    /// For positions 0, 256, 512, …
    pub coarse: Vec<f32>,
    /// For positions 0 to 255.
    pub fine: Vec<f32>,
}

impl Tables {
    /// The tables for positions 0 to `max_positions` − 1; an angle is position · inverse frequency.
    pub fn new(inverse_frequencies: &[f64], max_positions: usize) -> Self {
        Self::scaled(inverse_frequencies, max_positions, 1.0)
    }

    /// The same with all cosines and sines times `scale`: YaRN's attention factor.
    pub fn scaled(inverse_frequencies: &[f64], max_positions: usize, scale: f64) -> Self {
        let table = |entries: usize, step: usize, scale: f64| {
            (0..entries)
                .flat_map(|entry| {
                    inverse_frequencies.iter().map(move |frequency| (entry * step) as f64 * frequency)
                })
                .flat_map(|angle| [(scale * angle.cos()) as f32, (scale * angle.sin()) as f32])
                .collect()
        };
        // The kernel multiplies the tables: one of them has the factor.
        let coarse = table(max_positions.div_ceil(FINE).max(1), FINE, scale);
        Self { coarse, fine: table(FINE, 1, 1.0) }
    }
}

/// Cosines and sines of a row at (`x`, `y`) for [`Rotation::Grid`](super::Rotation::Grid): head_dim / 4 of x, then as
/// many of y. Angle i of either is the coordinate · theta^(−2i / (head_dim / 2)).
pub fn grid_angles(head_dim: usize, theta: f64, x: u32, y: u32) -> impl Iterator<Item = [f32; 2]> {
    let frequencies = inverse_frequencies(head_dim / 2, theta, 1.0);
    [x, y].into_iter().flat_map(move |coordinate| {
        let angles = frequencies.clone().into_iter().map(move |frequency| f64::from(coordinate) * frequency);
        angles.map(|angle| [angle.cos() as f32, angle.sin() as f32])
    })
}

/// theta^(−2i / head_dim) / `factor` for i < head_dim / 2; `factor` is that of linear RoPE scaling, 1 for
/// none.
pub fn inverse_frequencies(head_dim: usize, theta: f64, factor: f64) -> Vec<f64> {
    (0..head_dim / 2).map(|i| theta.powf(-2.0 * i as f64 / head_dim as f64) / factor).collect()
}
