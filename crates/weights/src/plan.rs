//! Where everything goes, decided before a byte is read: weights, KV cache and scratch onto the device's memory heaps.
//!
//! Pure arithmetic on what the driver reports and what the model's headers say; no device is touched.
//!
//! - Scratch and KV come first, then weights; device-local memory first, each heap up to its free budget less a
//!   [`Margin`], then memory of the host that the GPU can read.
//! - On **unified memory** (integrated GPUs, the CPU driver) every heap is the same memory, so only capacity counts.
//!   RADV calls two thirds of the carve-out plus GTT device-local and one third host: both must be filled to use all
//!   of it. A tensor goes whole into the first heap with room, and is divided only where none has.
//! - On a **card** a byte in host memory crosses the bus whenever it is read. So weights go in by how much of them a
//!   token reads, the least read spill, and the tensor at the border is divided.
//!
//! Within a heap, pieces are cut from blocks of one kind each, none larger than the driver allows. A tensor continues
//! in another block, or another heap, only at a multiple of its strip.

mod advice;
mod fill;
mod table;

use serde::Serialize;

pub use advice::{Advice, LEAST_CONTEXT, Shortfall};
use fill::Filling;

use tensor::Scheme;

/// Every piece starts at a multiple of this, as the buffers of a GPU arena do.
pub const ALIGNMENT: u64 = 256;

/// A memory heap as the driver reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HeapInfo {
    /// Bytes in all.
    pub size: u64,
    /// Bytes this process may use in all, where the driver tells.
    pub budget: Option<u64>,
    /// Bytes this process uses already.
    pub used: u64,
    /// On the GPU's side.
    pub device_local: bool,
    /// The CPU can map it.
    pub host_visible: bool,
}

impl HeapInfo {
    /// Bytes that can still be allocated.
    pub fn free(&self) -> u64 {
        self.budget.unwrap_or(self.size).min(self.size).saturating_sub(self.used)
    }
}

/// What is left free of each heap, for the driver's own needs, pipelines, staging and other programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Margin {
    /// One part in so many of the heap's size, …
    pub part: u64,
    /// … but no less than this, …
    pub least: u64,
    /// … and no more.
    pub most: u64,
}

impl Default for Margin {
    /// 1/32, from 256 MiB (so that a card's 256 MiB window for the CPU stays out of use) to 1 GiB.
    fn default() -> Self {
        Self { part: 32, least: 256 << 20, most: 1 << 30 }
    }
}

impl Margin {
    /// Bytes of a heap that may be planned with.
    pub fn usable(&self, heap: &HeapInfo) -> u64 {
        heap.free().saturating_sub((heap.size / self.part).clamp(self.least, self.most))
    }
}

/// An AMD integrated GPU's share of system memory, which a kernel parameter can raise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gtt {
    /// Bytes the GPU can have of system memory now (sysfs `mem_info_gtt_total`).
    pub size: u64,
    /// System memory in all (`MemTotal`; a carve-out is not part of it).
    pub system: u64,
}

/// The memory of one device.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Heaps in the driver's order.
    pub heaps: Vec<HeapInfo>,
    /// All heaps are the same memory.
    pub unified: bool,
    /// The driver's limit for one allocation.
    pub max_allocation: u64,
    /// Bytes of system memory that are really free, where known (`MemAvailable`; on unified memory with the free part
    /// of the carve-out): heaps are promises of the driver's. Caps all heaps where memory is unified, else those of
    /// the host.
    pub available: Option<u64>,
    /// What is left free.
    pub margin: Margin,
    /// Given only on an AMD integrated GPU: makes the advice to raise it possible.
    pub gtt: Option<Gtt>,
}

impl Memory {
    /// The largest block that is a multiple of [`ALIGNMENT`] and within the driver's limit.
    fn largest_block(&self) -> u64 {
        self.max_allocation / ALIGNMENT * ALIGNMENT
    }
}

/// A tensor to place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its name, for people.
    pub name: String,
    /// Bytes on the GPU.
    pub bytes: u64,
    /// Bytes of it that one token reads.
    pub reads: u64,
    /// It may continue in another block at multiples of this; 0: it must stay whole.
    pub strip: u64,
}

impl Item {
    /// Bytes that must stay together.
    fn undivided(&self) -> u64 {
        if self.strip == 0 { self.bytes } else { self.strip.min(self.bytes) }
    }
}

/// The numbers of a model that decide the size of its KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Layers that see the whole context.
    pub global_layers: u64,
    /// Layers that see the last `window` positions.
    pub sliding_layers: u64,
    /// Positions a sliding layer keeps.
    pub window: u64,
    /// Key-value heads of a layer.
    pub kv_heads: u64,
    /// Bytes of the key, or the value, of one head at one position: head size × 2 in f16.
    pub head_bytes: u64,
}

/// Bytes that keys and values of `batch` sequences of `context` positions take. Saturates: absurd numbers do not fit.
pub fn kv_bytes(shape: &KvShape, context: u64, batch: u64) -> u64 {
    let positions = shape
        .global_layers
        .saturating_mul(context)
        .saturating_add(shape.sliding_layers.saturating_mul(shape.window.min(context)));
    shape.position_bytes().saturating_mul(positions).saturating_mul(batch)
}

impl KvShape {
    /// Key and value of one position in one layer.
    fn position_bytes(&self) -> u64 {
        2_u64.saturating_mul(self.kv_heads).saturating_mul(self.head_bytes)
    }
}

/// Everything that needs memory.
#[derive(Clone, Debug)]
pub struct Demand {
    /// The weights.
    pub weights: Vec<Item>,
    /// What the KV cache looks like.
    pub kv: KvShape,
    /// Positions of one sequence.
    pub context: u64,
    /// Sequences at a time.
    pub batch: u64,
    /// Bytes for activations and the like.
    pub scratch: u64,
    /// The same weights in smaller schemes, to say whether those would fit.
    pub smaller: Vec<(Scheme, Vec<Item>)>,
}

/// What a block or a piece belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The weight with this index in [`Demand::weights`].
    Weight(usize),
    /// The KV cache.
    Kv,
    /// Scratch.
    Scratch,
}

/// One allocation, of one kind of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Block {
    /// Index into [`Memory::heaps`].
    pub heap: usize,
    /// Bytes, a multiple of [`ALIGNMENT`].
    pub bytes: u64,
    /// What it holds.
    pub kind: Kind,
}

/// Content with one lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// As long as the model.
    Weights,
    /// As long as the engine's cache.
    Kv,
    /// As long as the programs that use it.
    Scratch,
}

impl Part {
    /// Which kind of block it is cut from.
    pub fn kind(self) -> Kind {
        match self {
            Part::Weight(_) => Kind::Weights,
            Part::Kv => Kind::Kv,
            Part::Scratch => Kind::Scratch,
        }
    }
}

/// A run of bytes of a part, and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Piece {
    /// What it belongs to.
    pub part: Part,
    /// Its first byte, counted within that.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
    /// Index into [`Placement::blocks`].
    pub block: usize,
    /// Where it begins in the block.
    pub offset: u64,
}

/// What a plan takes of one heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HeapUse {
    /// The heap.
    pub heap: HeapInfo,
    /// Bytes that could be planned with: free, less the margin.
    pub usable: u64,
    /// Bytes of blocks with weights.
    pub weights: u64,
    /// Bytes of blocks with KV.
    pub kv: u64,
    /// Bytes of blocks with scratch.
    pub scratch: u64,
    /// Number of blocks.
    pub blocks: usize,
}

impl HeapUse {
    /// Bytes of all blocks.
    pub fn planned(&self) -> u64 {
        self.weights + self.kv + self.scratch
    }
}

/// What lies in host memory on a card, and is read across the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Spill {
    /// Bytes of weights, KV and scratch there.
    pub bytes: u64,
    /// Bytes of them that one token reads.
    pub reads: u64,
}

/// Where everything goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// What to allocate, in order.
    pub blocks: Vec<Block>,
    /// What to cut from the blocks, in the order of placement; those of a part are in the order of its bytes.
    pub pieces: Vec<Piece>,
    /// Totals, in the driver's order of heaps.
    pub heaps: Vec<HeapUse>,
    /// On a card: what did not fit its own memory. Worth a warning.
    pub spill: Option<Spill>,
}

impl Placement {
    /// Where a part lies, in the order of its bytes.
    pub fn pieces(&self, part: Part) -> impl Iterator<Item = &Piece> {
        self.pieces.iter().filter(move |piece| piece.part == part)
    }
}

/// Why there is no placement.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// There is not enough memory.
    #[error(transparent)]
    Shortfall(#[from] Shortfall),
    /// A tensor's strip is larger than one allocation may be: no amount of memory helps.
    #[error(
        "'{name}' can only be divided every {strip} bytes, and the driver allocates {limit} at most at once"
    )]
    Strip {
        /// The tensor.
        name: String,
        /// Bytes that must stay together.
        strip: u64,
        /// The driver's limit.
        limit: u64,
    },
}

/// Places everything, or says by how much it does not fit and what would make it fit.
pub fn plan(memory: &Memory, demand: &Demand) -> Result<Placement, PlanError> {
    let limit = memory.largest_block();
    if let Some(item) = demand.weights.iter().find(|item| item.undivided() > limit) {
        return Err(PlanError::Strip { name: item.name.clone(), strip: item.undivided(), limit });
    }
    let filling = Filling::of(memory, demand);
    match filling.missing {
        0 => Ok(filling.placement),
        missing => Err(advice::shortfall(memory, demand, missing).into()),
    }
}
