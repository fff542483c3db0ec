//! The KV cache: pages from two pools, one for global layers and one for sliding ones, handed to sequences and taken back.
//!
//! A page's number holds for all layers of its kind. A sequence holds global pages for all of its positions, and sliding pages
//! only for those that the window of a coming position can still reach: what the window has left goes back to the pool
//! before new pages are taken. Everything goes back when a [`Sequence`] is dropped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpu::{AdapterInfo, AdapterKind, Arena, Buffer, Device, Lifetime, Memory};
use kernels::{KvLayer, KvScheme, KvShape, KvTable, matmul};
use weights::{
    blueprint::Room,
    config::{Config, LayerType},
};

use crate::{Error, Result};

/// How much a runner is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sequences at a time.
    pub sequences: u32,
    /// Positions of a sequence.
    pub context: u32,
    /// Rows of one step when a prompt is read.
    pub chunk: u32,
    /// Positions of a page, a power of two.
    pub page: u32,
    /// How keys and values are stored.
    pub kv: KvScheme,
    /// Pages of global layers for all sequences together: at least what one sequence of the whole context needs. With none said there
    /// are enough for all of them.
    pub pages: Option<u32>,
}

impl Limits {
    /// Sequences of `context` positions, read in chunks that suit the device and the model.
    pub fn new(adapter: &AdapterInfo, config: &Config, sequences: u32, context: u32) -> Self {
        let limits = |chunk: u32| {
            // No step has more rows than a sequence has positions.
            let chunk = chunk.min(context.max(1).next_power_of_two());
            Self { sequences, context, chunk, page: PAGE, kv: KvScheme::F16, pages: None }
        };
        // A step of Mesa's CPU driver takes seconds: small ones let progress be shown and Ctrl-C be heard.
        if adapter.kind == AdapterKind::Cpu {
            return limits(64);
        }
        if !matmul::policy::suits(&adapter.caps) {
            return limits(512);
        }
        // Matrix units are the busier the more rows there are; but each takes scratch memory, and a place of
        // every sequence in every sliding layer.
        let sliding = config.layer_types.iter().filter(|kind| **kind == LayerType::Sliding).count() as u64;
        let kv = sliding * 2 * u64::from(config.kv_rows()) * 2 * u64::from(sequences);
        let row = row_bytes(config) + kv;
        let memory =
            adapter.heaps.iter().filter(|heap| heap.device_local).map(|heap| heap.size).max().unwrap_or(0);
        limits(
            [2048, 1024]
                .into_iter()
                .find(|rows| u64::from(*rows) * row <= memory / CHUNK_SHARE)
                .unwrap_or(512),
        )
    }

    /// The same for a model whose logits are reproducible: the sums of its products lie in parts, which take memory for every row.
    pub fn reproducible(self) -> Self {
        Self { chunk: self.chunk.min(512), ..self }
    }

    pub(crate) fn check(&self, config: &Config) -> Result<()> {
        let wrong = |text: String| Err(Error::Limits(text));
        if self.context == 0 || self.context > config.max_positions {
            return wrong(format!(
                "a context of {} positions: this model has 1 to {}",
                self.context, config.max_positions
            ));
        }
        if self.sequences == 0 || self.chunk == 0 || !self.page.is_power_of_two() {
            return wrong(format!("{self:?}: there must be sequences, a chunk, and pages of a power of two"));
        }
        if self.pages.is_some_and(|pages| pages < self.global_pages()) {
            return wrong(format!(
                "{} pages for all sequences: one of {} positions alone needs {}; take more pages or a shorter context",
                self.all_global_pages(),
                self.context,
                self.global_pages()
            ));
        }
        self.kv.takes(config.head_dim, self.page).or_else(wrong)
    }

    /// What the plan of memory must make room for, for a model with these dimensions; `outputs` is the most rows whose logits
    /// are wanted in one step.
    pub fn room(&self, config: &Config, outputs: u32) -> Room {
        let window = config.sliding_window.unwrap_or(config.max_positions);
        let rows = u64::from(self.rows());
        // Buckets are powers of two: all of them together are twice the largest. Logits are there twice where they are read back,
        // and the sampler takes as much again.
        let logits = 3 * u64::from(outputs.next_power_of_two()) * u64::from(config.vocab) * 4;
        let parts = 2 * rows.min(128) * parts_bytes(config);
        // Fewer pages than all sequences could fill are as if the sequences were shorter.
        let pages = self.pages.map(|_| u64::from(self.all_global_pages()) * u64::from(self.page));
        let share = pages.map(|positions| positions.div_ceil(u64::from(self.sequences.max(1))));
        Room {
            context: share.unwrap_or(u64::from(self.context)),
            batch: u64::from(self.sequences),
            kv: self.kv,
            sliding_positions: u64::from(self.sliding_pages(window)) * u64::from(self.page),
            scratch: 2 * rows * row_bytes(config) + parts + logits + FIXED_SCRATCH,
        }
    }

    /// Rows of the largest step, a power of two: a chunk, a row of every sequence, or half a chunk beside a row of every other
    /// sequence. A whole chunk beside them would double the memory of a step, for as many rows as there are sequences.
    pub(crate) fn rows(&self) -> u32 {
        let beside = match self.sequences {
            1 => 0,
            sequences => (sequences - 1).saturating_add(self.chunk.div_ceil(2)),
        };
        self.chunk.max(self.sequences).max(beside).next_power_of_two()
    }

    /// Pages that hold a sequence's positions.
    fn global_pages(&self) -> u32 {
        self.context.div_ceil(self.page)
    }

    /// Pages of global layers, for all sequences.
    fn all_global_pages(&self) -> u32 {
        let all = self.global_pages().saturating_mul(self.sequences);
        self.pages.map_or(all, |pages| pages.min(all))
    }

    /// Pages of a sequence in sliding layers: a window, the chunk behind it, and both ends cut at any place.
    fn sliding_pages(&self, window: u32) -> u32 {
        let positions = u64::from(window) + u64::from(self.chunk);
        let pages = positions.div_ceil(u64::from(self.page)) + 1;
        self.global_pages().min(u32::try_from(pages).unwrap_or(u32::MAX))
    }
}

/// Activations of a row: the residual stream, two normed copies and a sublayer's output; queries, keys and values, queries again,
/// attention's output; gate, up and their product.
fn row_bytes(config: &Config) -> u64 {
    let row = 4 * u64::from(config.hidden)
        + 3 * u64::from(config.query_rows())
        + 2 * u64::from(config.kv_rows())
        + 3 * u64::from(config.intermediate);
    row * 4
}

/// What a row of a few takes besides, where products leave up to eight sums of QKV and of a sublayer's output.
fn parts_bytes(config: &Config) -> u64 {
    7 * 4 * u64::from(config.query_rows() + 2 * config.kv_rows() + config.hidden)
}

/// The part of a device's memory that a long chunk may take.
const CHUNK_SHARE: u64 = 32;

/// State of a step, page tables, splits of attention and of products.
const FIXED_SCRATCH: u64 = 96 << 20;

/// Positions of a page when nobody says otherwise: few look-ups, little left over at the end of a sequence.
pub const PAGE: u32 = 64;

/// Which pool a page is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Global = 0,
    Sliding = 1,
}

impl From<LayerType> for Kind {
    fn from(layer: LayerType) -> Self {
        match layer {
            LayerType::Global => Kind::Global,
            LayerType::Sliding => Kind::Sliding,
        }
    }
}

/// Free slots and pages.
#[derive(Debug)]
struct Pools {
    slots: Vec<u32>,
    pages: [Vec<u32>; 2],
}

fn locked(pools: &Mutex<Pools>) -> MutexGuard<'_, Pools> {
    // A list of free numbers is whole after every push and pop.
    pools.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One sequence's share of the cache.
#[derive(Debug)]
pub struct Sequence {
    slot: u32,
    len: u32,
    /// By kind: pages held, and the number (position / page) of the first of them.
    pages: [(u32, Vec<u32>); 2],
    pools: Arc<Mutex<Pools>>,
    /// Whether its slot's token counts are those of its own tokens.
    pub(crate) counted: bool,
}

impl Sequence {
    /// Positions whose keys and values are in the cache.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether nothing is in the cache yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its number among the sequences under way.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Pages it holds in global and in sliding layers.
    pub fn pages(&self) -> (usize, usize) {
        (self.pages[0].1.len(), self.pages[1].1.len())
    }

    /// Notes that `rows` more positions were written.
    pub(crate) fn advance(&mut self, rows: u32) {
        self.len += rows;
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        let mut pools = locked(&self.pools);
        pools.slots.push(self.slot);
        for (kind, (_, pages)) in self.pages.iter_mut().enumerate() {
            pools.pages[kind].append(pages);
        }
    }
}

/// Keys and values of all layers, and who holds which of them.
pub struct KvCache {
    limits: Limits,
    window: u32,
    most_positions: u32,
    layers: Vec<KvLayer>,
    tables: [Buffer; 2],
    pools: Arc<Mutex<Pools>>,
}

impl KvCache {
    /// Takes memory for everything that `limits` allow.
    pub fn new(device: &Device, config: &Config, limits: Limits) -> Result<Self> {
        limits.check(config)?;
        let window = config.sliding_window.unwrap_or(config.max_positions);
        let pages = [limits.all_global_pages(), limits.sliding_pages(window) * limits.sequences];
        let mut arena = Arena::new(device, Lifetime::Kv, Memory::Device);
        let mut layers = Vec::new();
        for (number, layer) in config.layer_types.iter().enumerate() {
            let shape = KvShape {
                kv_heads: config.kv_heads,
                head_dim: config.head_dim,
                page: limits.page,
                pages: pages[Kind::from(*layer) as usize],
                scheme: limits.kv,
            };
            layers.push(KvLayer::allocate(&mut arena, &format!("KV cache of layer {number}"), shape)?);
        }
        let mut shared = Arena::new(device, Lifetime::Kv, Memory::Shared).with_block_size(1 << 20);
        let table = vec![0_u32; (limits.sequences * limits.global_pages()) as usize];
        let tables = [shared.buffer_from("page table", &table)?, shared.buffer_from("page table", &table)?];
        // The lowest numbers are taken first.
        let free = |count: u32| (0..count).rev().collect::<Vec<u32>>();
        let pools = Pools { slots: free(limits.sequences), pages: pages.map(free) };
        Ok(Self {
            limits,
            window,
            most_positions: config.max_positions,
            layers,
            tables,
            pools: Arc::new(Mutex::new(pools)),
        })
    }

    /// A new sequence, without positions.
    pub fn start(&self) -> Result<Sequence> {
        let slot = locked(&self.pools).slots.pop();
        let slot = slot.ok_or(Error::NoSequence { sequences: self.limits.sequences })?;
        let pages = [(0, vec![]), (0, vec![])];
        Ok(Sequence { slot, len: 0, pages, pools: self.pools.clone(), counted: false })
    }

    /// Makes room for `rows` more positions. Nothing changes on an error.
    pub fn extend(&mut self, sequence: &mut Sequence, rows: u32) -> Result<()> {
        if !Arc::ptr_eq(&sequence.pools, &self.pools) {
            return Err(Error::Limits("the sequence was started by another runner: start one here".into()));
        }
        let wanted = u64::from(sequence.len) + u64::from(rows);
        if wanted > u64::from(self.limits.context) {
            return Err(Error::ContextFull {
                wanted,
                context: self.limits.context,
                most: self.most_positions,
            });
        }
        let page = self.limits.page;
        // The first of the new positions sees `window` positions, itself counted.
        let first_seen = (sequence.len + 1).saturating_sub(self.window) / page;
        let end = wanted.div_ceil(u64::from(page)) as u32;
        {
            let mut pools = locked(&self.pools);
            let needed = [0, 1].map(|kind| {
                let (first, held) = &sequence.pages[kind];
                (end - first) as usize - held.len().min((end - first) as usize)
            });
            let left =
                (first_seen.saturating_sub(sequence.pages[1].0) as usize).min(sequence.pages[1].1.len());
            if needed[0] > pools.pages[0].len() || needed[1] > pools.pages[1].len() + left {
                return Err(Error::NoPage { pages: self.pages() });
            }
            pools.pages[1].extend(sequence.pages[1].1.drain(..left));
            sequence.pages[1].0 += left as u32;
            for (kind, count) in needed.into_iter().enumerate() {
                let keep = pools.pages[kind].len() - count;
                sequence.pages[kind].1.extend(pools.pages[kind].drain(keep..).rev());
            }
        }
        self.write_tables(sequence, sequence.len / page)
    }

    /// Forgets all positions from `len` on, where what a sliding window would need again is still there. Returns whether it
    /// is; if not, nothing has changed.
    pub fn truncate(&self, sequence: &mut Sequence, len: u32) -> bool {
        // A sequence without positions needs none of before.
        let first_seen =
            if len == 0 { u32::MAX } else { (len + 1).saturating_sub(self.window) / self.limits.page };
        if !Arc::ptr_eq(&sequence.pools, &self.pools)
            || len > sequence.len
            || (len < sequence.len && first_seen < sequence.pages[1].0)
        {
            return false;
        }
        let end = len.div_ceil(self.limits.page);
        let mut pools = locked(&self.pools);
        for (kind, (first, pages)) in sequence.pages.iter_mut().enumerate() {
            let keep = (end.saturating_sub(*first) as usize).min(pages.len());
            pools.pages[kind].extend(pages.drain(keep..));
            if len == 0 {
                *first = 0;
            }
        }
        sequence.counted &= len == sequence.len;
        sequence.len = len;
        true
    }

    /// The entries of a sequence's tables from page number `from` on.
    fn write_tables(&mut self, sequence: &Sequence, from: u32) -> Result<()> {
        let stride = self.limits.global_pages();
        for (table, (first, pages)) in self.tables.iter_mut().zip(&sequence.pages) {
            let skipped = (from.saturating_sub(*first) as usize).min(pages.len());
            let at = sequence.slot * stride + first + skipped as u32;
            if skipped < pages.len() {
                table.write(u64::from(at) * 4, bytemuck::cast_slice(&pages[skipped..]))?;
            }
        }
        Ok(())
    }

    /// Keys and values of a layer.
    pub(crate) fn layer(&self, layer: usize) -> &KvLayer {
        &self.layers[layer]
    }

    /// The table of a kind of layers.
    pub(crate) fn table(&self, kind: LayerType) -> KvTable {
        KvTable { view: self.tables[Kind::from(kind) as usize].view(), stride: self.limits.global_pages() }
    }

    /// Pages that nobody holds, of global and of sliding layers.
    pub fn free_pages(&self) -> (usize, usize) {
        let pools = locked(&self.pools);
        (pools.pages[0].len(), pools.pages[1].len())
    }

    /// Pages of global layers that there are.
    pub fn pages(&self) -> u32 {
        self.limits.all_global_pages()
    }

    /// What it was made for.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Bytes of keys and values that a step reads for a sequence whose last position is `position`.
    pub fn bytes_read(&self, config: &Config, position: u32) -> u64 {
        let line = 2 * u64::from(config.kv_heads) * self.limits.kv.head_bytes(config.head_dim);
        let seen = |layer: &LayerType| match layer {
            LayerType::Global => position + 1,
            LayerType::Sliding => (position + 1).min(self.window),
        };
        config.layer_types.iter().map(|layer| line * u64::from(seen(layer))).sum()
    }
}
