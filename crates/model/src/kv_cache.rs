//! The KV cache: memory for the pages of all layers, in two pools, one for global layers and one for sliding ones, and the tables that
//! say which page holds a position. Who holds which page is in [`crate::pages`].

use checkpoint::{Config, config::LayerType};
use gpu::{Arena, Buffer, Device, Lifetime, Memory};
use kernels::{KvLayer, KvShape, KvTable};

use crate::{
    Error, Limits, Result,
    limits::window,
    pages::{Kind, Pages, Sequence},
};

impl From<LayerType> for Kind {
    fn from(layer: LayerType) -> Self {
        match layer {
            LayerType::Global => Kind::Global,
            LayerType::Sliding => Kind::Sliding,
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
    books: Pages,
}

impl KvCache {
    /// Takes memory for everything that `limits` allow.
    pub fn new(device: &Device, config: &Config, limits: Limits) -> Result<Self> {
        limits.check(config)?;
        let window = window(config);
        let shape = limits.shape(window);
        let pages = [shape.pages, shape.sliding * shape.sequences];
        let mut arena = Arena::new(device, Lifetime::Kv, Memory::Device);
        let mut layers = Vec::new();
        for (number, layer) in config.layer_types.iter().enumerate() {
            let shape = KvShape {
                kv_heads: config.kv_heads,
                head_dim: config.head_dim,
                page_size: limits.page,
                pages: pages[Kind::from(*layer) as usize],
                scheme: limits.kv,
            };
            layers.push(KvLayer::allocate(&mut arena, &format!("KV cache of layer {number}"), shape)?);
        }
        let mut shared = Arena::new(device, Lifetime::Kv, Memory::Shared).with_block_size(1 << 20);
        let table = vec![0_u32; (limits.sequences * limits.global_pages()) as usize];
        let tables = [shared.buffer_from("page table", &table)?, shared.buffer_from("page table", &table)?];
        let books = Pages::new(shape);
        Ok(Self { limits, window, most_positions: config.max_positions, layers, tables, books })
    }

    /// A new sequence, without positions, of which nothing is shared or kept.
    pub fn start(&self) -> Result<Sequence> {
        self.books.start().ok_or(Error::NoSequence { sequences: self.limits.sequences })
    }

    /// A new sequence for these tokens, which holds as many of them as the cache has: at most all but the last. What it
    /// reads and writes is kept for others.
    pub fn start_with(&self, tokens: &[u32]) -> Result<Sequence> {
        self.books.start_with(tokens).ok_or(Error::NoSequence { sequences: self.limits.sequences })
    }

    /// Global pages that a sequence for these tokens would share with others under way.
    pub fn shared_pages(&self, tokens: &[u32]) -> u32 {
        self.books.shared(tokens)
    }

    /// Makes room for `rows` more positions. Nothing changes on an error.
    pub fn extend(&mut self, sequence: &mut Sequence, rows: u32) -> Result<()> {
        if !self.books.has(sequence) {
            return Err(Error::Limits("the sequence was started by another runner: start one here".into()));
        }
        let wanted = u64::from(sequence.len()) + u64::from(rows);
        if wanted > u64::from(self.limits.context) {
            return Err(Error::ContextFull {
                wanted,
                context: self.limits.context,
                most: self.most_positions,
            });
        }
        if !self.books.extend(sequence, rows) {
            return Err(Error::NoPage { pages: self.pages() });
        }
        self.write_tables(sequence)
    }

    /// Notes that these tokens were written.
    pub(crate) fn advance(&self, sequence: &mut Sequence, tokens: &[u32]) {
        self.books.advance(sequence, tokens);
    }

    /// Forgets all positions from `len` on, where that is possible; see [`Pages::truncate`].
    pub fn truncate(&self, sequence: &mut Sequence, len: u32) -> bool {
        self.books.truncate(sequence, len)
    }

    /// Forgets all that is kept of sequences. Those under way go on, and nothing more of them is kept.
    pub fn forget(&self) {
        self.books.forget();
    }

    /// The entries of a sequence's tables that are not what it holds.
    fn write_tables(&mut self, sequence: &mut Sequence) -> Result<()> {
        let stride = self.limits.global_pages();
        let from = sequence.unwritten(self.limits.page);
        for (table, kind) in self.tables.iter_mut().zip([Kind::Global, Kind::Sliding]) {
            let (first, pages) = sequence.held(kind);
            let skipped = (from.saturating_sub(first) as usize).min(pages.len());
            let at = sequence.slot() * stride + first + skipped as u32;
            if skipped < pages.len() {
                table.write(u64::from(at) * 4, bytemuck::cast_slice(&pages[skipped..]))?;
            }
        }
        sequence.tables_written();
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

    /// Pages that no sequence holds, of global and of sliding layers.
    pub fn free_pages(&self) -> (usize, usize) {
        (self.books.free(Kind::Global), self.books.free(Kind::Sliding))
    }

    /// Of those, the ones that are kept until they are needed, for texts that begin with the same tokens.
    pub fn cached_pages(&self) -> (usize, usize) {
        (self.books.cached(Kind::Global), self.books.cached(Kind::Sliding))
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
