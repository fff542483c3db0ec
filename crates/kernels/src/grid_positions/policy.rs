//! Threads per row, as for the embedding lookup. Pure; tested without a GPU.

use gpu::Caps;

use super::variant;
pub use crate::embed::policy::{groups, threads};
use crate::variant::Variant;

/// One pipeline for every model.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    vec![variant(threads(caps))]
}
