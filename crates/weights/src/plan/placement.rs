//! The result of planning: blocks to allocate, and which bytes go where in them.

use serde::Serialize;

use super::memory::HeapInfo;

/// The content of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// The weight with this index in [`Demand::weights`](super::Demand::weights).
    Weight(usize),
    /// The KV cache.
    Kv,
    /// Scratch buffers.
    Scratch,
}

impl Content {
    /// The kind of block that holds it.
    pub fn block_kind(self) -> BlockKind {
        match self {
            Content::Weight(_) => BlockKind::Weights,
            Content::Kv => BlockKind::Kv,
            Content::Scratch => BlockKind::Scratch,
        }
    }
}

/// Content with one lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockKind {
    /// Lives as long as the model.
    Weights,
    /// Lives as long as the KV cache.
    Kv,
    /// Lives as long as the programs that use it.
    Scratch,
}

/// One allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Block {
    /// Index into [`Memory::heaps`](super::Memory::heaps).
    pub heap: usize,
    /// Size in bytes, a multiple of [`ALIGNMENT`](super::ALIGNMENT).
    pub bytes: u64,
    /// Kind of its content.
    pub kind: BlockKind,
}

/// Contiguous bytes of some content, and where they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Extent {
    /// The content it belongs to.
    pub content: Content,
    /// Offset of its first byte within the content.
    pub start: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Index into [`Placement::blocks`].
    pub block: usize,
    /// Offset of its first byte within the block.
    pub offset: u64,
}

/// Use of one heap by a placement. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HeapUsage {
    /// The heap.
    pub heap: HeapInfo,
    /// Memory available to the plan: free, less the margin.
    pub usable: u64,
    /// Blocks of weights.
    pub weights: u64,
    /// Blocks of the KV cache.
    pub kv: u64,
    /// Blocks of scratch buffers.
    pub scratch: u64,
    /// Number of blocks.
    pub blocks: usize,
}

impl HeapUsage {
    /// Bytes of all blocks.
    pub fn planned(&self) -> u64 {
        self.weights + self.kv + self.scratch
    }
}

/// Content that a discrete GPU keeps in host memory and reads across the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Spill {
    /// Bytes of weights, KV cache and scratch in host memory.
    pub bytes: u64,
    /// Bytes of them that are read per token.
    pub bytes_per_token: u64,
}

/// The location of all content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// Allocations to make, in order.
    pub blocks: Vec<Block>,
    /// Extents to cut from the blocks, in placement order; the extents of one content are in the order of its
    /// bytes.
    pub extents: Vec<Extent>,
    /// Totals, in the driver's heap order.
    pub heaps: Vec<HeapUsage>,
    /// On a discrete GPU: content that did not fit into its own memory. Worth a warning.
    pub spill: Option<Spill>,
}

impl Placement {
    /// The extents of some content, in the order of its bytes.
    pub fn extents(&self, content: Content) -> impl Iterator<Item = &Extent> {
        self.extents.iter().filter(move |extent| extent.content == content)
    }
}
