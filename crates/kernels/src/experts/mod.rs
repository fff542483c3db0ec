//! Mixtures of experts: selecting experts for rows, and grouping the products of rows by expert.
//!
//! A step's rows times its experts per token are *pairs*, numbered row by row. The products of experts have one column
//! of output per pair: [`router`] selects the expert of each, and the products ([`crate::matmul`]) read it. Kernels that
//! multiply several columns at once take columns of one expert at a time, as [`group`] sorts them. Everything happens on
//! the GPU: which experts a step takes is never known to the host.

pub mod combine;
pub mod group;
pub mod router;

use gpu::View;

/// Stands for the expert of a row that is not active, and for the pair of an unused column.
pub const NO_EXPERT: u32 = u32::MAX;

/// Maximum experts to select per row; experts.glsl has the same constant.
pub const MAX_EXPERTS_PER_TOKEN: usize = 16;

/// The columns of a product over experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct ExpertColumns {
    /// Experts: the matrix holds as many of the same shape, one after the other.
    pub count: usize,
    /// Pairs per column of x: all of a row's, or 1 where every pair has a column of its own.
    pub per_x: usize,
}

/// Experts whose pipelines are listed, of Qwen 3 30B-A3B and Gemma 4 26B-A4B: rows, K, pairs per column of x, and whether
/// they combine gate and up.
pub(crate) const LISTED_EXPERTS: [(usize, usize, usize, bool); 4] =
    [(1536, 2048, 8, true), (2048, 768, 1, false), (1408, 2816, 8, true), (2816, 704, 1, false)];

/// Pairs sorted by expert, in groups of a fixed width. Groups of one column are the pairs themselves, in their order.
#[derive(Clone, Debug)]
pub struct Groups {
    /// u32 per group: its expert, or [`NO_EXPERT`] for an unused group.
    pub experts: View,
    /// u32 per column of each group: its pair, or [`NO_EXPERT`]; the first column of a used group has one.
    pub pairs: View,
    /// Columns per group.
    pub width: usize,
    /// Number of groups, used or not.
    pub count: usize,
}

impl Groups {
    /// The most groups that `pairs` pairs need: every expert may have one that is not full.
    pub fn max_count(pairs: usize, experts: usize, width: usize) -> usize {
        pairs / width + experts.min(pairs)
    }
}
