//! The limits of a runner, and the memory that follows from them.

use std::collections::BTreeSet;

use checkpoint::{Attention, Config, FeedForward};
use gpu::{AdapterInfo, AdapterKind};
use kernels::matmul::{coopmat, gemv};
use tensor::KvScheme;
use weights::blueprint::Reservation;

use crate::{
    Error, Result,
    bucket::buckets,
    pages::{PageConfig, sliding_pages},
    state::MAX_SAMPLED,
};

/// Rows of a step that reports the log probabilities of a prompt's tokens. Up to here a step takes about as long as
/// one of a single row; the logits of each row take a megabyte with Gemma's vocabulary.
const SCORED_ROWS: u32 = 32;

/// Rows that the sampler has memory for, if steps are that large; more only for more sequences.
const SAMPLED_ROWS: u32 = 128;

/// The limits a runner is created for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of concurrent sequences (batch size).
    pub max_sequences: u32,
    /// Maximum tokens per sequence, prompt and completion together.
    pub context_length: u32,
    /// Maximum prefill tokens per step.
    pub prefill_chunk: u32,
    /// Tokens per KV page, a power of two.
    pub page_size: u32,
    /// How keys and values are stored.
    pub kv_scheme: KvScheme,
    /// Pages of full-attention layers, for all sequences together: at least those of one sequence of the full
    /// context length. `None` allocates enough for every sequence.
    pub max_pages: Option<u32>,
    /// Whether KV pages are kept after use and shared by later prompts that start with the same tokens.
    pub prefix_cache: bool,
    /// Maximum tokens of an image, which are prefilled in one step; 0 for text only.
    pub image_tokens: u32,
}

impl Limits {
    /// Limits for `max_sequences` sequences of `context_length` tokens, with the prefill chunk that suits the
    /// device and the model.
    pub fn new(adapter: &AdapterInfo, config: &Config, max_sequences: u32, context_length: u32) -> Self {
        let all_tokens = context_length.saturating_mul(max_sequences);
        let with_chunk = |prefill_chunk: u32| Self {
            max_sequences,
            context_length,
            // A step cannot prefill more tokens than all sequences together can hold.
            prefill_chunk: prefill_chunk
                .min(all_tokens.max(1).checked_next_power_of_two().unwrap_or(u32::MAX)),
            page_size: DEFAULT_PAGE_SIZE,
            kv_scheme: KvScheme::F16,
            max_pages: None,
            prefix_cache: true,
            image_tokens: 0,
        };
        // A large step takes seconds on Mesa's CPU driver: small ones report progress and respond to Ctrl-C.
        if adapter.kind == AdapterKind::Cpu {
            return with_chunk(64);
        }
        if !coopmat::policy::is_supported(&adapter.caps) {
            return with_chunk(512);
        }
        // More rows use cooperative matrices better, but every row takes scratch memory. Sliding-window layers also keep
        // KV entries for a chunk beyond the window, for every sequence, unless the context is shorter.
        let own = sliding_layers(config).filter(|attention| attention.shares_kv_with.is_none());
        let sliding_kv_rows: u64 = own.map(|attention| u64::from(attention.kv_rows())).sum();
        let kv = sliding_kv_rows * 2 * 2 * u64::from(max_sequences);
        let window = window(config);
        let beyond_window = |rows: u32| rows.min(context_length.saturating_sub(window));
        let bytes = |rows: u32| u64::from(rows) * row_bytes(config) + u64::from(beyond_window(rows)) * kv;
        with_chunk(
            [2048, 1024]
                .into_iter()
                .find(|rows| bytes(*rows) <= adapter.local_memory() / CHUNK_SHARE)
                .unwrap_or(512),
        )
    }

    /// The same limits for a model whose images have up to this many tokens: an image is prefilled in one step, beside the
    /// decode rows of other sequences.
    pub fn with_images(self, image_tokens: u32) -> Self {
        Self { prefill_chunk: self.prefill_chunk.max(image_tokens), image_tokens, ..self }
    }

    /// The same limits for a model with batch-invariant logits: its products keep split-K partial sums, which
    /// take memory per row.
    pub fn reproducible(self) -> Self {
        Self { prefill_chunk: self.prefill_chunk.min(512), ..self }
    }

    pub(crate) fn check(&self, config: &Config) -> Result<()> {
        let wrong = |text: String| Err(Error::Limits(text));
        if self.context_length == 0 || self.context_length > config.max_positions {
            return wrong(format!(
                "a context length of {} tokens: this model supports 1 to {}",
                self.context_length, config.max_positions
            ));
        }
        if self.max_sequences == 0 || self.prefill_chunk == 0 || !self.page_size.is_power_of_two() {
            return wrong(format!(
                "{self:?}: max_sequences and prefill_chunk must be at least 1, page_size a power of two"
            ));
        }
        if self.max_pages.is_some_and(|pages| pages < self.pages_per_sequence()) {
            return wrong(format!(
                "{} KV pages for all sequences: one sequence of {} tokens needs {}; raise the KV cache capacity \
                 or lower the context length",
                self.total_pages(),
                self.context_length,
                self.pages_per_sequence()
            ));
        }
        let check = |attention: Attention| self.kv_scheme.check(attention.head_dim, self.page_size);
        config.attentions().try_for_each(check).or_else(wrong)
    }

    /// The memory to reserve beside the weights of a model with this config; `output_rows` is the maximum
    /// number of rows per step whose logits are computed, those of verify steps apart if there are no more than on GPUs.
    pub fn reservation(&self, config: &Config, output_rows: u32) -> Reservation {
        let window = window(config);
        let rows = u64::from(self.max_rows());
        // Verify steps compute logits of every row.
        let output_rows = output_rows.max(self.prefill_chunk.min(gemv::MAX_COLUMNS as u32));
        let sum_of_buckets = |max_rows: u64| buckets(max_rows as usize).sum::<usize>() as u64;
        // Every bucket has its own logits. The largest has them twice more where logits are read back, or
        // where samplers take as much scratch memory.
        let logits = sum_of_buckets(output_rows.into()) + 2 * u64::from(output_rows.next_power_of_two());
        let scored = self.scored_rows().saturating_sub(output_rows.next_power_of_two());
        let logits = (logits + u64::from(scored)) * u64::from(config.vocab) * 4;
        // Token counts of every sequence, for penalties.
        let counts = u64::from(self.max_sequences) * u64::from(config.vocab) * 4;
        let partials = sum_of_buckets(rows.min(128)) * partial_sum_bytes(config);
        // With fewer pages than all sequences could fill, each has its share of them.
        let positions = u64::from(self.total_pages()) * u64::from(self.page_size);
        Reservation {
            context_length: positions.div_ceil(u64::from(self.max_sequences.max(1))),
            max_sequences: u64::from(self.max_sequences),
            kv_scheme: self.kv_scheme,
            sliding_tokens: u64::from(self.sliding_pages(window)) * u64::from(self.page_size),
            scratch_bytes: sum_of_buckets(rows) * row_bytes(config)
                + partials
                + logits
                + counts
                + FIXED_SCRATCH,
        }
    }

    /// Rows of the largest step, a power of two: a prefill chunk, a decode row per sequence, or half a chunk or
    /// an image beside a decode row of every other sequence. A full chunk beside them would double a step's memory
    /// for no more additional rows than there are sequences.
    pub(crate) fn max_rows(&self) -> u32 {
        let mixed = match self.max_sequences {
            1 => 0,
            sequences => {
                let prefill = self.prefill_chunk.div_ceil(2).max(self.image_tokens);
                (sequences - 1).saturating_add(prefill)
            }
        };
        self.prefill_chunk.max(self.max_sequences).max(mixed).next_power_of_two()
    }

    /// Maximum rows of a step that reports the log probabilities of a prompt's tokens: more than usual where as many
    /// sequences are sampled anyway.
    pub(crate) fn scored_rows(&self) -> u32 {
        SCORED_ROWS.max(self.max_sequences).min(MAX_SAMPLED).min(self.prefill_chunk)
    }

    /// Rows that a step can sample.
    pub(crate) fn sampled_rows(&self) -> u32 {
        let rows = SAMPLED_ROWS.max(self.max_sequences.next_power_of_two());
        rows.min(MAX_SAMPLED).min(self.max_rows())
    }

    /// Pages of one sequence of the full context length.
    pub(crate) fn pages_per_sequence(&self) -> u32 {
        self.context_length.div_ceil(self.page_size)
    }

    /// Pages of full-attention layers, for all sequences.
    pub(crate) fn total_pages(&self) -> u32 {
        let all = self.pages_per_sequence().saturating_mul(self.max_sequences);
        self.max_pages.map_or(all, |pages| pages.min(all))
    }

    /// Pages per sequence in sliding-window layers.
    fn sliding_pages(&self, window: u32) -> u32 {
        sliding_pages(self.context_length, self.page_size, window, self.prefill_chunk)
    }

    /// The page allocator's configuration, for a model with this sliding window.
    pub(crate) fn page_config(&self, window: u32) -> PageConfig {
        PageConfig {
            max_sequences: self.max_sequences,
            page_size: self.page_size,
            window,
            full_pages: self.total_pages(),
            sliding_pages: self.sliding_pages(window),
            prefix_cache: self.prefix_cache,
        }
    }
}

/// The sliding window in tokens. A model without sliding-window layers keeps nothing for them beyond the
/// current token.
pub(crate) fn window(config: &Config) -> u32 {
    sliding_layers(config).find_map(|attention| attention.span.window()).unwrap_or(1)
}

/// The layers with sliding-window attention.
fn sliding_layers(config: &Config) -> impl Iterator<Item = Attention> {
    config.attentions().filter(|attention| attention.span.is_sliding())
}

/// Activations per row: the residual stream, two normed copies and a block's output; queries, keys and
/// values, queries again, attention's output; gate, up and their product; per-layer inputs.
fn row_bytes(config: &Config) -> u64 {
    let row = 4 * u64::from(config.hidden)
        + u64::from(config.max_query_rows())
        + u64::from(config.max_qkv_rows())
        + attended_values(config)
        + config
            .layer_specs()
            .map(|layer| feed_forward_values(config, layer.feed_forward))
            .max()
            .unwrap_or(0)
        + config.per_layer_width.map_or(0, |width| 3 * u64::from(width) * u64::from(config.layers + 1));
    row * 4
}

/// Attention's output, whose buffers differ by the number of query rows.
fn attended_values(config: &Config) -> u64 {
    let widths: BTreeSet<u32> = config.attentions().map(|attention| attention.query_rows()).collect();
    widths.into_iter().map(u64::from).sum()
}

/// Gate, up and their product; with experts, their products, outputs, scores and groups.
fn feed_forward_values(config: &Config, feed_forward: FeedForward) -> u64 {
    let dense = feed_forward.dense().map_or(0, |dense| 3 * u64::from(dense.intermediate));
    let experts = feed_forward.experts().map_or(0, |experts| {
        let pairs = u64::from(experts.per_token);
        pairs * u64::from(experts.intermediate + config.hidden + 16) + u64::from(experts.count)
    });
    // A normed copy for the experts, and the sum of both.
    let both = if dense > 0 && experts > 0 { 2 * u64::from(config.hidden) } else { 0 };
    dense + experts + both
}

/// Additional bytes per row of small batches, whose products leave up to eight partial sums of QKV and of a
/// block's output.
fn partial_sum_bytes(config: &Config) -> u64 {
    7 * 4 * u64::from(config.max_qkv_rows() + config.hidden)
}

/// A prefill chunk of more than 512 rows may take this fraction of a device's memory: 1/32.
const CHUNK_SHARE: u64 = 32;

/// Step state, page tables, KV splits of attention and split-K partial sums.
const FIXED_SCRATCH: u64 = 96 << 20;

/// Default tokens per page: few table look-ups, little unused space at the end of a sequence.
pub const DEFAULT_PAGE_SIZE: u32 = 64;

#[cfg(test)]
mod tests {
    use gpu::{Heap, known};

    use super::*;
    use crate::size::Size;

    #[test]
    fn long_prefill_chunks_cost_pages_only_beyond_the_window() {
        let config = Size::Gemma3Of27B.config().unwrap();
        let size = 140 << 30;
        let heap = Heap { index: 0, size, budget: None, used: None, device_local: true, host_visible: false };
        let device = AdapterInfo {
            index: 0,
            name: "NVIDIA H200".into(),
            kind: AdapterKind::Discrete,
            vendor_id: 0x10de,
            device_id: 0x2335,
            pci_address: None,
            driver: "NVIDIA".into(),
            driver_version: 1,
            pipeline_cache_uuid: [0; 16],
            unified_memory: false,
            compile_only: false,
            caps: known::h200(),
            heaps: vec![heap],
            memory_types: vec![],
        };
        let chunk =
            |sequences: u32, context: u32| Limits::new(&device, &config, sequences, context).prefill_chunk;
        // The window has 1,024 tokens: sequences up to that length keep all of them anyway.
        assert_eq!((chunk(64, 1024), chunk(1, 8192)), (2048, 2048));
        assert_eq!(chunk(64, 8192), 512, "28 GB of keys and values for the additional tokens of 1,024 rows");
        // A step prefills several prompts, but not more tokens than all sequences have.
        assert_eq!((chunk(1, 300), chunk(2, 300), chunk(64, 16)), (512, 1024, 1024));
    }
}
