//! Filling heaps, and cutting what goes into them from blocks.

use super::{ALIGNMENT, Block, Demand, HeapUse, Kind, Memory, Part, Piece, Placement, Spill, kv_bytes};

/// A placement in the making.
pub(super) struct Filling<'a> {
    memory: &'a Memory,
    pub placement: Placement,
    /// Heaps in the order they are filled.
    order: Vec<Slot>,
    /// What is left of [`Memory::available`].
    available: u64,
    /// Bytes that found no place.
    pub missing: u64,
    spill: Spill,
}

/// A heap that is being filled.
struct Slot {
    heap: usize,
    /// Bytes left.
    room: u64,
    /// A part continues elsewhere for want of room here. From then on only whole ones are taken: no other is divided
    /// for the few bytes that are left.
    full: bool,
}

impl<'a> Filling<'a> {
    pub fn of(memory: &'a Memory, demand: &Demand) -> Self {
        let heaps: Vec<HeapUse> = memory
            .heaps
            .iter()
            .map(|heap| HeapUse {
                heap: *heap,
                usable: memory.margin.usable(heap),
                weights: 0,
                kv: 0,
                scratch: 0,
                blocks: 0,
            })
            .collect();
        let mut order: Vec<Slot> = (0..heaps.len())
            .filter(|heap| memory.heaps[*heap].device_local || memory.heaps[*heap].host_visible)
            .map(|heap| Slot { heap, room: heaps[heap].usable / ALIGNMENT * ALIGNMENT, full: false })
            .collect();
        // Device-local first, and the largest of each kind; the driver's order decides among equals.
        order.sort_by_key(|slot| (!memory.heaps[slot.heap].device_local, u64::MAX - slot.room));
        let mut filling = Self {
            memory,
            placement: Placement { blocks: Vec::new(), pieces: Vec::new(), heaps, spill: None },
            order,
            available: memory.available.unwrap_or(u64::MAX) / ALIGNMENT * ALIGNMENT,
            missing: 0,
            spill: Spill { bytes: 0, reads: 0 },
        };
        let kv = kv_bytes(&demand.kv, demand.context, demand.batch);
        filling.put(Part::Scratch, demand.scratch, demand.scratch, ALIGNMENT);
        filling.put(Part::Kv, kv, kv, demand.kv.position_bytes());
        let mut weights: Vec<usize> = (0..demand.weights.len()).collect();
        if !memory.unified {
            // Most read per byte first: a/b > c/d without division. Equals stay in the order given.
            let product = |a: usize, b: usize| {
                u128::from(demand.weights[a].reads) * u128::from(demand.weights[b].bytes)
            };
            weights.sort_by(|a, b| product(*b, *a).cmp(&product(*a, *b)));
        }
        for index in weights {
            let item = &demand.weights[index];
            filling.put(Part::Weight(index), item.bytes, item.reads, item.strip);
        }
        filling.placement.spill = (filling.spill.bytes > 0).then_some(filling.spill);
        filling
    }

    /// Places one part, in one heap or several; what finds no place is counted.
    fn put(&mut self, part: Part, bytes: u64, reads: u64, strip: u64) {
        let strip = if strip == 0 { bytes } else { strip };
        if strip.min(bytes) > self.memory.largest_block() {
            self.missing = self.missing.saturating_add(bytes);
            return;
        }
        let whole = bytes.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX);
        let fits = |this: &Self, slot: usize| this.room(slot) >= whole;
        let slots = match (0..self.order.len()).find(|slot| self.memory.unified && fits(self, *slot)) {
            Some(slot) => slot..slot + 1,
            None => 0..self.order.len(),
        };
        let mut start = 0;
        for slot in slots {
            let left = bytes - start;
            let room = self.room(slot);
            let take = match left <= room {
                true => left,
                false if self.order[slot].full => 0,
                false => room / strip * strip,
            };
            if take == 0 {
                continue;
            }
            let heap = self.order[slot].heap;
            self.cut(part, heap, start, take, strip);
            let taken = take.next_multiple_of(ALIGNMENT);
            self.order[slot].room -= taken;
            self.order[slot].full |= take < left;
            if self.capped(heap) {
                self.available -= taken;
            }
            if !self.memory.unified && !self.memory.heaps[heap].device_local {
                self.spill.bytes += take;
                self.spill.reads += (u128::from(reads) * u128::from(take) / u128::from(bytes)) as u64;
            }
            start += take;
        }
        self.missing = self.missing.saturating_add(bytes - start);
    }

    /// Bytes that are left to plan with.
    pub fn room_in_all(&self) -> u64 {
        let sum = |capped| -> u64 {
            self.order.iter().filter(|slot| self.capped(slot.heap) == capped).map(|slot| slot.room).sum()
        };
        sum(false) + sum(true).min(self.available)
    }

    /// Whether the memory that is really free limits a heap.
    fn capped(&self, heap: usize) -> bool {
        self.memory.unified || !self.memory.heaps[heap].device_local
    }

    fn room(&self, slot: usize) -> u64 {
        let Slot { heap, room, .. } = self.order[slot];
        if self.capped(heap) { room.min(self.available) } else { room }
    }

    /// Cuts bytes that fit a heap from its blocks: from the last one if it has room for all, else from new ones.
    fn cut(&mut self, part: Part, heap: usize, mut start: u64, mut bytes: u64, strip: u64) {
        let limit = self.memory.largest_block();
        let kind = part.kind();
        while bytes > 0 {
            let take = if bytes <= limit { bytes } else { limit / strip * strip };
            let blocks = &mut self.placement.blocks;
            let open = blocks.iter().rposition(|block| block.heap == heap && block.kind == kind);
            let block = match open.filter(|open| bytes == take && blocks[*open].bytes + take <= limit) {
                Some(open) => open,
                None => {
                    blocks.push(Block { heap, bytes: 0, kind });
                    self.placement.heaps[heap].blocks += 1;
                    blocks.len() - 1
                }
            };
            let offset = blocks[block].bytes;
            let size = take.next_multiple_of(ALIGNMENT);
            blocks[block].bytes += size;
            let uses = &mut self.placement.heaps[heap];
            match kind {
                Kind::Weights => uses.weights += size,
                Kind::Kv => uses.kv += size,
                Kind::Scratch => uses.scratch += size,
            }
            self.placement.pieces.push(Piece { part, start, bytes: take, block, offset });
            start += take;
            bytes -= take;
        }
    }
}
