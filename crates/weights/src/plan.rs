//! Memory planning: which heap holds the weights, the KV cache and scratch buffers, decided before a byte is
//! read.
//!
//! [`plan`] is pure arithmetic on the memory that the driver reports ([`Memory`]) and the memory that the
//! model needs ([`Demand`]); it uses no device. It returns a [`Placement`], or the [`Shortfall`] with changes that would make the
//! model fit.
//!
//! - Scratch and KV cache are placed first, then weights. Device-local heaps are filled first, each up to its
//!   free budget less a [`Margin`], then host memory that the GPU can read.
//! - On **unified memory** (integrated GPUs, the CPU driver) every heap is the same memory, so only capacity
//!   counts. RADV reports two thirds of carve-out plus GTT as device-local and one third as host: both must
//!   be filled to use all of it. A tensor goes undivided into the first heap with room, and is divided only
//!   if no heap has room.
//! - On a **discrete GPU** every read of host memory crosses the bus. Weights are placed by the
//!   fraction of them that is read per token, highest first. The least-read ones spill to the host, and the
//!   tensor at the border is divided.
//!
//! Within a heap, extents are cut from blocks of one content each, none larger than the driver allows. A
//! tensor continues in another block, or in another heap, only at a multiple of its split unit.

mod advice;
mod demand;
mod display;
mod fill;
mod memory;
mod placement;

pub use advice::{Advice, MIN_CONTEXT, Shortfall};
pub use demand::{Demand, KvLayerDemand, WeightDemand, kv_bytes};
pub use memory::{ALIGNMENT, Gtt, HeapInfo, Margin, Memory};
pub use placement::{Block, BlockKind, Content, Extent, HeapUsage, Placement, Spill};

use fill::Filling;

/// Why there is no placement.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// There is not enough memory.
    #[error(transparent)]
    Shortfall(#[from] Shortfall),
    /// A tensor's split unit is larger than one allocation may be: no amount of memory helps.
    #[error(
        "'{name}' can only be divided at multiples of {split_unit} bytes, but the driver's largest allocation is {limit} bytes"
    )]
    SplitUnit {
        /// The tensor.
        name: String,
        /// Bytes that must stay contiguous.
        split_unit: u64,
        /// The driver's limit for one allocation, in bytes.
        limit: u64,
    },
}

/// Places everything, or reports how much memory is missing and which changes would make it fit.
pub fn plan(memory: &Memory, demand: &Demand) -> Result<Placement, PlanError> {
    let limit = memory.max_block();
    if let Some(weight) = demand.weights.iter().find(|weight| weight.min_extent() > limit) {
        let (name, split_unit) = (weight.name.clone(), weight.min_extent());
        return Err(PlanError::SplitUnit { name, split_unit, limit });
    }
    let filling = Filling::new(memory, demand);
    match filling.missing {
        0 => Ok(filling.placement),
        missing => Err(advice::shortfall(memory, demand, missing).into()),
    }
}
