//! Filling heaps with blocks, and cutting extents from them.

use super::{
    demand::Demand,
    memory::{ALIGNMENT, Memory},
    placement::{Block, BlockKind, Content, Extent, HeapUsage, Placement, Spill},
};

/// A placement under construction.
pub(super) struct Filling<'a> {
    memory: &'a Memory,
    pub placement: Placement,
    /// Heaps in the order in which they are filled.
    heaps: Vec<OpenHeap>,
    /// The rest of [`Memory::available`].
    available: u64,
    /// Bytes that did not fit.
    pub missing: u64,
    spill: Spill,
}

/// A heap that is being filled.
struct OpenHeap {
    index: usize,
    /// Bytes left.
    free: u64,
    /// Some content continues elsewhere because this heap was full. From then on it only takes content that
    /// fits undivided: no further tensor is divided for the few bytes that are left.
    full: bool,
}

impl<'a> Filling<'a> {
    pub fn new(memory: &'a Memory, demand: &Demand) -> Self {
        let usages: Vec<HeapUsage> = memory
            .heaps
            .iter()
            .map(|heap| HeapUsage {
                heap: *heap,
                usable: memory.margin.usable(heap),
                weights: 0,
                kv: 0,
                scratch: 0,
                blocks: 0,
            })
            .collect();
        let mut heaps: Vec<OpenHeap> = (0..usages.len())
            .filter(|index| memory.heaps[*index].device_local || memory.heaps[*index].host_visible)
            .map(|index| OpenHeap { index, free: usages[index].usable / ALIGNMENT * ALIGNMENT, full: false })
            .collect();
        // Device-local heaps first, larger ones before smaller ones; ties keep the driver's order.
        heaps.sort_by_key(|heap| (!memory.heaps[heap.index].device_local, u64::MAX - heap.free));
        let mut filling = Self {
            memory,
            placement: Placement { blocks: Vec::new(), extents: Vec::new(), heaps: usages, spill: None },
            heaps,
            available: memory.available.unwrap_or(u64::MAX) / ALIGNMENT * ALIGNMENT,
            missing: 0,
            spill: Spill { bytes: 0, bytes_per_token: 0 },
        };
        let (scratch, kv) = (demand.scratch_bytes, demand.kv_bytes());
        filling.put(Content::Scratch, scratch, scratch, ALIGNMENT);
        filling.put(Content::Kv, kv, kv, demand.kv_split_unit());
        let mut weights: Vec<usize> = (0..demand.weights.len()).collect();
        if !memory.unified {
            // Highest share read per token first: a/b > c/d without division. Ties keep the given order.
            let product = |a: usize, b: usize| {
                u128::from(demand.weights[a].bytes_per_token) * u128::from(demand.weights[b].bytes)
            };
            weights.sort_by(|a, b| product(*b, *a).cmp(&product(*a, *b)));
        }
        for index in weights {
            let weight = &demand.weights[index];
            let content = Content::Weight(index);
            if weight.in_host_memory {
                filling.put_in_host_memory(content, weight.bytes, weight.split_unit);
            } else {
                filling.put(content, weight.bytes, weight.bytes_per_token, weight.split_unit);
            }
        }
        filling.placement.spill = (filling.spill.bytes > 0).then_some(filling.spill);
        filling
    }

    /// Places some content in one heap or several, and counts the bytes that do not fit.
    fn put(&mut self, content: Content, bytes: u64, bytes_per_token: u64, split_unit: u64) {
        let split_unit = if split_unit == 0 { bytes } else { split_unit };
        if split_unit.min(bytes) > self.memory.max_block() {
            self.missing = self.missing.saturating_add(bytes);
            return;
        }
        let padded = bytes.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX);
        let fits = |this: &Self, heap: usize| this.free(heap) >= padded;
        let candidates = match (0..self.heaps.len()).find(|heap| self.memory.unified && fits(self, *heap)) {
            Some(heap) => heap..heap + 1,
            None => 0..self.heaps.len(),
        };
        let mut start = 0;
        for heap in candidates {
            let left = bytes - start;
            let free = self.free(heap);
            let take = match left <= free {
                true => left,
                false if self.heaps[heap].full => 0,
                false => free / split_unit * split_unit,
            };
            if take == 0 {
                continue;
            }
            let index = self.heaps[heap].index;
            self.cut(content, index, start, take, split_unit);
            let taken = take.next_multiple_of(ALIGNMENT);
            self.heaps[heap].free -= taken;
            self.heaps[heap].full |= take < left;
            if self.is_capped(index) {
                self.available -= taken;
            }
            if !self.memory.unified && !self.memory.heaps[index].device_local {
                self.spill.bytes += take;
                self.spill.bytes_per_token +=
                    (u128::from(bytes_per_token) * u128::from(take) / u128::from(bytes)) as u64;
            }
            start += take;
        }
        self.missing = self.missing.saturating_add(bytes - start);
    }

    /// Places some content in host memory if it fits there as a whole, else as any other content.
    fn put_in_host_memory(&mut self, content: Content, bytes: u64, split_unit: u64) {
        let padded = bytes.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX);
        let is_host = |heap: &OpenHeap| !self.memory.heaps[heap.index].device_local;
        let heap =
            (0..self.heaps.len()).find(|heap| is_host(&self.heaps[*heap]) && self.free(*heap) >= padded);
        let split_unit = if split_unit == 0 { bytes } else { split_unit };
        let Some(heap) =
            heap.filter(|_| !self.memory.unified && split_unit.min(bytes) <= self.memory.max_block())
        else {
            return self.put(content, bytes, 0, split_unit);
        };
        let index = self.heaps[heap].index;
        self.cut(content, index, 0, bytes, split_unit);
        self.heaps[heap].free -= padded;
        if self.is_capped(index) {
            self.available -= padded;
        }
    }

    /// Bytes that are left, in all heaps together.
    pub fn total_free(&self) -> u64 {
        let sum = |capped| -> u64 {
            self.heaps.iter().filter(|heap| self.is_capped(heap.index) == capped).map(|heap| heap.free).sum()
        };
        sum(false) + sum(true).min(self.available)
    }

    /// Whether [`Memory::available`] limits a heap.
    fn is_capped(&self, index: usize) -> bool {
        self.memory.unified || !self.memory.heaps[index].device_local
    }

    fn free(&self, heap: usize) -> u64 {
        let OpenHeap { index, free, .. } = self.heaps[heap];
        if self.is_capped(index) { free.min(self.available) } else { free }
    }

    /// Cuts bytes that fit a heap from its blocks: from the last block if it has room for all of them, else
    /// from new blocks.
    fn cut(&mut self, content: Content, heap: usize, mut start: u64, mut bytes: u64, split_unit: u64) {
        let limit = self.memory.max_block();
        let kind = content.block_kind();
        while bytes > 0 {
            let take = if bytes <= limit { bytes } else { limit / split_unit * split_unit };
            let blocks = &mut self.placement.blocks;
            let last = blocks.iter().rposition(|block| block.heap == heap && block.kind == kind);
            let block = match last.filter(|last| bytes == take && blocks[*last].bytes + take <= limit) {
                Some(last) => last,
                None => {
                    blocks.push(Block { heap, bytes: 0, kind });
                    self.placement.heaps[heap].blocks += 1;
                    blocks.len() - 1
                }
            };
            let offset = blocks[block].bytes;
            let size = take.next_multiple_of(ALIGNMENT);
            blocks[block].bytes += size;
            let usage = &mut self.placement.heaps[heap];
            match kind {
                BlockKind::Weights => usage.weights += size,
                BlockKind::Kv => usage.kv += size,
                BlockKind::Scratch => usage.scratch += size,
            }
            self.placement.extents.push(Extent { content, start, bytes: take, block, offset });
            start += take;
            bytes -= take;
        }
    }
}
