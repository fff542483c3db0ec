//! The KV cache: the memory of the pages of all layers, in one pool for full-attention layers and one for
//! sliding-window layers, and the page tables. [`crate::pages`] allocates the pages.

mod disk;

use std::ops::Range;

use checkpoint::{Attention, AttentionSpan, Config};
use gpu::{Arena, Buffer, Device, Lifetime, Memory};
use kernels::{KvLayer, KvShape, KvTable};

use crate::{
    Error, Limits, Result,
    limits::window,
    pages::{EventSource, PageAllocator, PageCopy, PageEventQueue, PageKind, PageLayout, Sequence},
    state::TIMEOUT,
};

pub use disk::WriteBehind;

impl From<AttentionSpan> for PageKind {
    fn from(span: AttentionSpan) -> Self {
        match span {
            AttentionSpan::Full => PageKind::Full,
            AttentionSpan::Sliding { .. } => PageKind::Sliding,
        }
    }
}

/// Keys and values of all layers, and the allocator of their pages.
pub struct KvCache {
    device: Device,
    limits: Limits,
    max_context_length: u32,
    /// Of the layers that have keys and values of their own.
    layers: Vec<KvLayer>,
    /// The kind of each of `layers`.
    kinds: Vec<PageKind>,
    /// By layer of the model: the index of its keys and values in `layers`.
    buffers: Vec<usize>,
    tables: [Buffer; 2],
    allocator: PageAllocator,
    /// Pages of earlier texts on disk.
    disk: Option<disk::DiskTier>,
    /// As long as it is there, changes of the prefix cache go to a queue.
    events: Option<EventSource>,
}

impl KvCache {
    /// Allocates memory for everything that `limits` allow.
    pub fn new(device: &Device, config: &Config, limits: Limits) -> Result<Self> {
        limits.check(config)?;
        let page_config = limits.page_config(window(config));
        let pages = [page_config.full_pages, page_config.sliding_pages * page_config.max_sequences];
        let mut arena = Arena::new(device, Lifetime::Kv, Memory::Device);
        let (mut layers, mut kinds) = (Vec::new(), Vec::new());
        let mut buffers = Vec::new();
        for (number, attention) in config.attentions().enumerate() {
            let Attention { kv_heads, head_dim, span, shares_kv_with, .. } = attention;
            if let Some(source) = shares_kv_with {
                buffers.push(buffers[source as usize]);
                continue;
            }
            let shape = KvShape {
                kv_heads,
                head_dim,
                page_size: limits.page_size,
                pages: pages[PageKind::from(span) as usize],
                scheme: limits.kv_scheme,
            };
            buffers.push(layers.len());
            kinds.push(PageKind::from(span));
            layers.push(KvLayer::allocate(&mut arena, &format!("KV cache of layer {number}"), shape)?);
        }
        let mut shared = Arena::new(device, Lifetime::Kv, Memory::Shared).with_block_size(1 << 20);
        let table = vec![0_u32; (limits.max_sequences * limits.pages_per_sequence()) as usize];
        let tables = [shared.buffer_from("page table", &table)?, shared.buffer_from("page table", &table)?];
        let allocator = PageAllocator::new(page_config);
        let max_context_length = config.max_positions;
        Ok(Self {
            device: device.clone(),
            limits,
            max_context_length,
            layers,
            kinds,
            buffers,
            tables,
            allocator,
            disk: None,
            events: None,
        })
    }

    /// Puts the changes of the prefix cache into a queue from now on, all that it holds first.
    pub fn send_events(&mut self, queue: PageEventQueue) {
        let has = |kind| self.kinds.contains(&kind);
        let layout = PageLayout {
            page_size: self.limits.page_size,
            has_full: has(PageKind::Full),
            sliding_window: has(PageKind::Sliding).then_some(self.allocator.config().window),
        };
        self.events = Some(self.allocator.send_events(queue, layout));
    }

    /// Starts an empty sequence that takes no part in the prefix cache.
    pub fn start(&self) -> Result<Sequence> {
        self.allocator.start().ok_or(self.no_free_slot())
    }

    /// Starts a sequence for these tokens, with as many of them as the prefix cache holds: at most all but
    /// the last. Later sequences share what this one computes.
    pub fn start_with(&self, tokens: &[u32]) -> Result<Sequence> {
        let copy = |copies: &[PageCopy]| self.copy_pages(copies);
        self.allocator.start_with(tokens, copy)?.ok_or(self.no_free_slot())
    }

    /// Copies pages in all of their layers, in one submission.
    fn copy_pages(&self, copies: &[PageCopy]) -> Result<()> {
        let mut recorder = self.device.recorder()?;
        for (layer, kind) in self.layers.iter().zip(&self.kinds) {
            for PageCopy { from, to, .. } in copies.iter().filter(|copy| copy.kind == *kind) {
                for buffer in [&layer.k, &layer.v] {
                    let view = |page: u32| buffer.slice(layer.shape.page_range(page));
                    recorder.copy("KV page", view(*from)?, view(*to)?)?;
                }
            }
        }
        Ok(recorder.seal()?.run(TIMEOUT)?)
    }

    fn no_free_slot(&self) -> Error {
        Error::NoFreeSlot { max_sequences: self.limits.max_sequences }
    }

    /// Full-attention pages that a sequence for these tokens would share with running sequences.
    pub fn shared_pages(&self, tokens: &[u32]) -> u32 {
        self.allocator.shared_pages(tokens)
    }

    /// Allocates pages for `rows` more positions. On an error nothing changes.
    pub fn extend(&mut self, sequence: &mut Sequence, rows: u32) -> Result<()> {
        if !self.allocator.owns(sequence) {
            return Err(Error::Limits(
                "the sequence was started by another runner: start one with this runner".into(),
            ));
        }
        let tokens = u64::from(sequence.len()) + u64::from(rows);
        if tokens > u64::from(self.limits.context_length) {
            return Err(Error::ContextLengthExceeded {
                tokens,
                context_length: self.limits.context_length,
                max_context_length: self.max_context_length,
            });
        }
        if !self.allocator.extend(sequence, rows) {
            return Err(Error::NoFreePages { pages: self.pages() });
        }
        self.write_tables(sequence)
    }

    /// Appends tokens whose keys and values have been computed.
    pub(crate) fn advance(&self, sequence: &mut Sequence, tokens: &[u32]) {
        self.allocator.advance(sequence, tokens);
    }

    /// Shortens a sequence to `len` tokens, where that is possible; see [`PageAllocator::truncate`].
    pub fn truncate(&self, sequence: &mut Sequence, len: u32) -> bool {
        self.allocator.truncate(sequence, len)
    }

    /// Empties the prefix cache, on disk too. Running sequences continue; the cache keeps nothing more of them.
    pub fn clear_prefix_cache(&self) {
        self.evict_prefixes();
        self.clear_disk();
    }

    /// The same, but pages on disk stay.
    pub(crate) fn evict_prefixes(&self) {
        self.allocator.clear_prefix_cache();
    }

    /// Writes the stale entries of a sequence's page tables.
    fn write_tables(&mut self, sequence: &mut Sequence) -> Result<()> {
        let stride = self.limits.pages_per_sequence();
        let from = sequence.first_stale_entry(self.limits.page_size);
        for (table, kind) in self.tables.iter_mut().zip(PageKind::ALL) {
            let (first, pages) = sequence.held(kind);
            let skipped = (from.saturating_sub(first) as usize).min(pages.len());
            let entry = sequence.slot() * stride + first + skipped as u32;
            if skipped < pages.len() {
                table.write(u64::from(entry) * 4, bytemuck::cast_slice(&pages[skipped..]))?;
            }
        }
        sequence.tables_written();
        Ok(())
    }

    /// Keys and values of a layer.
    pub(crate) fn layer(&self, layer: usize) -> &KvLayer {
        &self.layers[self.buffers[layer]]
    }

    /// The page table of layers with this span.
    pub(crate) fn table(&self, span: AttentionSpan) -> KvTable {
        let table = &self.tables[PageKind::from(span) as usize];
        KvTable { view: table.view(), stride: self.limits.pages_per_sequence() }
    }

    /// The pages in a range of entries of a slot's page table.
    pub(crate) fn pages_of(&self, span: AttentionSpan, slot: u32, entries: Range<u32>) -> Result<Vec<u32>> {
        let table = &self.tables[PageKind::from(span) as usize];
        let mut pages = vec![0_u32; entries.len()];
        let first = slot * self.limits.pages_per_sequence() + entries.start;
        table.read(u64::from(first) * 4, bytemuck::cast_slice_mut(&mut pages))?;
        Ok(pages)
    }

    /// Copies of a layer's keys and values in these pages, one page after the other.
    pub(crate) fn read_pages(&self, layer: usize, pages: &[u32]) -> Result<(Vec<u8>, Vec<u8>)> {
        let layer = self.layer(layer);
        let bytes = layer.shape.bytes() / u64::from(layer.shape.pages);
        let mut arena = Arena::new(&self.device, Lifetime::Staging, Memory::Readback);
        let copies = [&layer.k, &layer.v]
            .map(|from| Ok::<_, Error>((from, arena.buffer("KV pages", bytes * pages.len() as u64)?)));
        let [keys, values] = copies;
        let (keys, values) = (keys?, values?);
        let mut recorder = self.device.recorder()?;
        for (from, to) in [&keys, &values] {
            for (number, page) in (0..).zip(pages) {
                let to = to.slice(number * bytes..(number + 1) * bytes)?;
                recorder.copy("KV page", from.slice(layer.shape.page_range(*page))?, to)?;
            }
        }
        recorder.seal()?.run(TIMEOUT)?;
        Ok((keys.1.read_vec()?, values.1.read_vec()?))
    }

    /// Pages that no sequence holds, of full-attention and of sliding-window layers.
    pub fn free_pages(&self) -> (usize, usize) {
        (self.allocator.free_pages(PageKind::Full), self.allocator.free_pages(PageKind::Sliding))
    }

    /// Of those, the pages that the prefix cache keeps until they are evicted.
    pub fn cached_pages(&self) -> (usize, usize) {
        (self.allocator.cached_pages(PageKind::Full), self.allocator.cached_pages(PageKind::Sliding))
    }

    /// All pages of full-attention layers.
    pub fn pages(&self) -> u32 {
        self.limits.total_pages()
    }

    /// The limits it was created for.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Bytes of keys and values that a step reads for a sequence whose last position is `position`.
    pub fn bytes_read(&self, config: &Config, position: u32) -> u64 {
        let bytes = |Attention { kv_heads, head_dim, span, .. }: Attention| {
            let visible = span.window().map_or(position + 1, |window| window.min(position + 1));
            2 * u64::from(kv_heads) * self.limits.kv_scheme.head_bytes(head_dim) * u64::from(visible)
        };
        config.attentions().map(bytes).sum()
    }
}
