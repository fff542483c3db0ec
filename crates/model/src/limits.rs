//! How much a runner is made for, and the memory that follows from it.

use checkpoint::{Config, config::LayerType};
use gpu::{AdapterInfo, AdapterKind};
use kernels::matmul::coopmat;
use tensor::KvScheme;
use weights::blueprint::Reservation;

use crate::{
    Error, Result,
    bucket::buckets,
    pages::{Shape, sliding_pages},
};

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
    /// Whether what a sequence has read and written is kept for texts that begin with the same tokens, while nobody needs its pages.
    pub prefix: bool,
}

impl Limits {
    /// Sequences of `context` positions, read in chunks that suit the device and the model.
    pub fn new(adapter: &AdapterInfo, config: &Config, sequences: u32, context: u32) -> Self {
        let limits = |chunk: u32| {
            // No step has more rows than a sequence has positions.
            let chunk = chunk.min(context.max(1).next_power_of_two());
            Self { sequences, context, chunk, page: PAGE, kv: KvScheme::F16, pages: None, prefix: true }
        };
        // A step of Mesa's CPU driver takes seconds: small ones let progress be shown and Ctrl-C be heard.
        if adapter.kind == AdapterKind::Cpu {
            return limits(64);
        }
        if !coopmat::policy::is_supported(&adapter.caps) {
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
    pub fn room(&self, config: &Config, outputs: u32) -> Reservation {
        let window = window(config);
        let rows = u64::from(self.rows());
        let of_buckets = |most: u64| buckets(most as usize).sum::<usize>() as u64;
        // Every bucket has its own; of the largest they are there twice where logits are read back, or samplers take twice as much again.
        let logits = of_buckets(outputs.into()) + 2 * u64::from(outputs.next_power_of_two());
        let logits = logits * u64::from(config.vocab) * 4;
        // Of every sequence, for penalties.
        let counts = u64::from(self.sequences) * u64::from(config.vocab) * 4;
        let parts = of_buckets(rows.min(128)) * parts_bytes(config);
        // With fewer pages than all sequences could fill each has its share of them.
        let positions = u64::from(self.all_global_pages()) * u64::from(self.page);
        Reservation {
            context_length: positions.div_ceil(u64::from(self.sequences.max(1))),
            max_sequences: u64::from(self.sequences),
            kv_scheme: self.kv,
            sliding_tokens: u64::from(self.sliding_pages(window)) * u64::from(self.page),
            scratch_bytes: of_buckets(rows) * row_bytes(config) + parts + logits + counts + FIXED_SCRATCH,
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
    pub(crate) fn global_pages(&self) -> u32 {
        self.context.div_ceil(self.page)
    }

    /// Pages of global layers, for all sequences.
    pub(crate) fn all_global_pages(&self) -> u32 {
        let all = self.global_pages().saturating_mul(self.sequences);
        self.pages.map_or(all, |pages| pages.min(all))
    }

    /// Pages of a sequence in sliding layers.
    fn sliding_pages(&self, window: u32) -> u32 {
        sliding_pages(self.context, self.page, window, self.chunk)
    }

    /// What there is of pages, for a model with this window.
    pub(crate) fn shape(&self, window: u32) -> Shape {
        Shape {
            sequences: self.sequences,
            page: self.page,
            window,
            pages: self.all_global_pages(),
            sliding: self.sliding_pages(window),
            prefix: self.prefix,
        }
    }
}

/// Positions that sliding layers see. Where there are none, nothing need be kept for them beyond the position itself.
pub(crate) fn window(config: &Config) -> u32 {
    config.sliding_window.unwrap_or(1)
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
