//! Buffers of a text encoder for batches up to a number of rows.

use checkpoint::{AttentionSpan, EmbeddingConfig, Pooling, TextLayers};
use gpu::{Arena, Buffer, Device, Lifetime, Memory, View};
use kernels::{Activations, KvLayer, KvShape, KvTable, VectorData, Vectors, attention::paged};
use tensor::KvScheme;
use weights::embedding::{EmbeddingMatrix, EmbeddingWeights};

use super::{MAX_TEXTS, TextLimits, programs::coopmat_shape, programs::takes_activations};
use crate::{DEFAULT_PAGE_SIZE, Error, Result, loaded::MatrixUnits, state::CLEAR_TIMEOUT};

/// Activations and inputs of an encoder.
pub(super) struct Scratch {
    /// Maximum rows.
    pub rows: usize,
    /// Maximum texts.
    pub texts: usize,
    /// u32 per row.
    pub tokens: Buffer,
    /// The residual stream.
    pub residual: Buffer,
    pub normed: Vectors,
    /// Queries, keys and values; after attention the output of the up projection, or of gate and up where they are not one
    /// matrix.
    pub wide: Buffer,
    /// The output of a block, before it is added to the residual stream.
    pub block: Buffer,
    /// The input of the down projection.
    pub activated: Vectors,
    pub attention: AttentionScratch,
    /// The rows after all layers, f32; `None` if they are the residual stream.
    pub encoded: Option<Vectors>,
    /// First and end row of what each text's vector is the mean of.
    pub pooled_rows: Buffer,
    /// One vector per text, f32; after each dense layer another.
    pub pooled: Vec<Vectors>,
    /// The last of them, for the host.
    pub vectors: Buffer,
    /// Four words: 0, rows in use, texts in use, and unused.
    counts: Buffer,
    /// The end row of each text.
    pub text_ends: Buffer,
    /// Split-K partial sums, and counters: initially zero.
    pub split_k: Option<Buffer>,
}

/// Buffers of attention.
pub(super) struct AttentionScratch {
    pub q: Buffer,
    /// Attention's output, as the output projection takes it.
    pub attended: Vectors,
    /// The same in f32, where attention cannot write it otherwise.
    pub attended_floats: Option<Vectors>,
    pub kv: KvLayer,
    pub table: KvTable,
    table_buffer: Buffer,
    /// Position of each row in its text, number of its text, and the last position that it sees: with full attention, and
    /// in a sliding window.
    pub positions: Buffer,
    pub slots: Buffer,
    pub last_visible: Buffer,
    pub last_in_window: Buffer,
}

/// The dimensions that all layers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dimensions {
    pub hidden: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub intermediate: u32,
    /// Whether the feed-forward block has a gate.
    pub gated: bool,
}

impl Dimensions {
    pub fn of(config: &EmbeddingConfig) -> Self {
        match &config.layers {
            TextLayers::Bert(bert) => Self {
                hidden: bert.hidden,
                heads: bert.heads,
                kv_heads: bert.heads,
                head_dim: bert.head_dim(),
                intermediate: bert.intermediate,
                gated: false,
            },
            TextLayers::Decoder { config, .. } => Self {
                hidden: config.hidden,
                heads: config.heads,
                kv_heads: config.kv_heads,
                head_dim: config.head_dim,
                intermediate: config.intermediate,
                gated: true,
            },
        }
    }

    /// Values of attention's output.
    pub fn width(&self) -> u32 {
        self.heads * self.head_dim
    }

    /// Values of a row of the QKV product.
    pub fn qkv(&self) -> u32 {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Values of a row of [`Scratch::wide`].
    fn wide(&self) -> u32 {
        self.qkv().max(if self.gated { 2 } else { 1 } * self.intermediate)
    }
}

/// Texts of a batch, at most.
fn max_texts(rows: usize) -> usize {
    rows.min(MAX_TEXTS)
}

/// Pages that the longest text takes.
fn pages_per_text(limits: &TextLimits, rows: usize) -> u32 {
    limits.max_tokens.min(rows as u32).div_ceil(DEFAULT_PAGE_SIZE)
}

/// Pages that a batch takes, at most: all that its rows fill, and one per text that is partly filled.
fn pages(rows: usize) -> u32 {
    rows as u32 / DEFAULT_PAGE_SIZE + max_texts(rows) as u32
}

/// Bytes of all buffers of a bucket, at most.
pub(super) fn bytes(config: &EmbeddingConfig, limits: &TextLimits, rows: usize) -> u64 {
    let dimensions = Dimensions::of(config);
    let [hidden, wide, width, activated] =
        [dimensions.hidden, dimensions.wide(), dimensions.width(), dimensions.intermediate]
            .map(|values| u64::from(values.next_multiple_of(128)));
    // Residual stream, normed rows, a block's output, the encoder's output; queries, attention's output twice.
    let row = 4 * hidden + 3 * width + wide + activated + 8;
    let positions = u64::from(pages(rows)) * u64::from(DEFAULT_PAGE_SIZE);
    let kv = 2 * positions * u64::from(dimensions.kv_heads * dimensions.head_dim);
    let vectors: u64 =
        config.dense.iter().chain([&config.hidden(), &config.dimensions()]).map(|n| u64::from(*n)).sum();
    let texts = max_texts(rows) as u64 * (vectors + u64::from(pages_per_text(limits, rows)) + 8);
    (row * rows as u64 + kv + texts) * 4 + FIXED
}

/// Split-K partial sums, and the padding of buffers.
const FIXED: u64 = 16 << 20;

impl Scratch {
    pub fn new(
        device: &Device,
        config: &EmbeddingConfig,
        weights: &EmbeddingWeights,
        units: MatrixUnits,
        activations: Activations,
        limits: &TextLimits,
        rows: usize,
    ) -> Result<Self> {
        let dimensions = Dimensions::of(config);
        let texts = max_texts(rows);
        let mut arena = Arena::new(device, Lifetime::Scratch, Memory::Device).with_block_size(4 << 20);
        let mut shared = Arena::new(device, Lifetime::Scratch, Memory::Shared).with_block_size(1 << 18);
        let mut readback = Arena::new(device, Lifetime::Staging, Memory::Readback).with_block_size(1 << 16);
        let floats = |values: u32| u64::from(values) * rows as u64 * 4;
        let hidden = dimensions.hidden as usize;
        let words = rows as u64 * 4;
        let widths = [config.hidden()].into_iter().chain(config.dense.iter().copied());
        let pooled = widths.map(|width| Ok(Vectors::f32(&mut arena, "pooled rows", width as usize, texts)?));
        let pooled = pooled.collect::<Result<Vec<_>>>()?;
        let bytes = float_buffer(&pooled[pooled.len() - 1]).len();
        let scratch = Self {
            rows,
            texts,
            tokens: shared.buffer("tokens", words)?,
            residual: arena.buffer("residual stream", floats(dimensions.hidden))?,
            normed: Vectors::new(&mut arena, "normed rows", activations, hidden, rows)?,
            wide: arena.buffer("wide rows", floats(dimensions.wide()))?,
            block: arena.buffer("a block's output", floats(dimensions.hidden))?,
            activated: {
                let width = dimensions.intermediate as usize;
                Vectors::new(&mut arena, "activated rows", activations, width, rows)?
            },
            attention: AttentionScratch::new(
                device,
                [&mut arena, &mut shared],
                config,
                units,
                activations,
                [pages_per_text(limits, rows), pages(rows)],
                [rows, texts],
            )?,
            encoded: match config.layers {
                TextLayers::Bert(_) => None,
                TextLayers::Decoder { .. } => Some(Vectors::f32(&mut arena, "encoded rows", hidden, rows)?),
            },
            pooled_rows: shared.buffer("pooled ranges", texts as u64 * 8)?,
            pooled,
            vectors: readback.buffer("vectors", bytes)?,
            counts: shared.buffer_from("active rows", &[0_u32; 4])?,
            text_ends: shared.buffer("text ends", texts as u64 * 4)?,
            split_k: match split_k_bytes(device, config, weights, units, activations, rows) {
                0 => None,
                bytes => Some(arena.buffer("split-K partial sums", bytes)?),
            },
        };
        scratch.clear(device)?;
        Ok(scratch)
    }

    fn clear(&self, device: &Device) -> Result<()> {
        let mut recorder = device.recorder()?;
        let attention = [&self.attention.attended].into_iter().chain(&self.attention.attended_floats);
        let vectors = [&self.normed, &self.activated].into_iter().chain(&self.encoded).chain(&self.pooled);
        for vectors in vectors.chain(attention) {
            vectors.record_clear(&mut recorder, "clear")?;
        }
        if let Some(split_k) = &self.split_k {
            recorder.fill("clear", split_k, 0)?;
        }
        Ok(recorder.seal()?.run(CLEAR_TIMEOUT)?)
    }

    /// Sets the texts to encode, which must fit.
    pub fn write_texts(&mut self, config: &EmbeddingConfig, texts: &[&[u32]]) -> Result<()> {
        let rows: usize = texts.iter().map(|text| text.len()).sum();
        if rows > self.rows || texts.len() > self.texts {
            return Err(Error::Limits(format!(
                "a batch of {} texts with {rows} tokens: it may have {} with {}",
                texts.len(),
                self.texts,
                self.rows
            )));
        }
        let tokens: Vec<u32> = texts.concat();
        self.tokens.write(0, bytemuck::cast_slice(&tokens))?;
        let lengths: Vec<u32> = texts.iter().map(|text| text.len() as u32).collect();
        let mut end = 0;
        let ends: Vec<u32> = lengths
            .iter()
            .map(|length| {
                end += length;
                end
            })
            .collect();
        let ranges = ends.iter().zip(&lengths).map(|(end, length)| match config.pooling {
            Pooling::Mean => [end - length, *end],
            Pooling::Cls => [end - length, end - length + 1],
            Pooling::Last => [end - 1, *end],
        });
        self.pooled_rows.write(0, bytemuck::cast_slice(&ranges.collect::<Vec<[u32; 2]>>()))?;
        self.text_ends.write(0, bytemuck::cast_slice(&ends))?;
        self.counts.write(0, bytemuck::cast_slice(&[0, rows as u32, texts.len() as u32]))?;
        self.attention.write_texts(config, &lengths)
    }

    /// The vectors of the first texts.
    pub fn read_vectors(&self, texts: usize, dimensions: usize) -> Result<Vec<Vec<f32>>> {
        let values: Vec<f32> = self.vectors.read_vec()?;
        let stride = self.pooled[self.pooled.len() - 1].stride();
        Ok(values.chunks(stride).take(texts).map(|row| row[..dimensions].to_vec()).collect())
    }

    /// Two words: the range of the rows in use.
    pub fn active_range(&self) -> View {
        self.word_range(0..8)
    }

    /// One word: rows in use.
    pub fn active(&self) -> View {
        self.word_range(4..8)
    }

    /// One word: texts in use.
    pub fn active_texts(&self) -> View {
        self.word_range(8..12)
    }

    fn word_range(&self, bytes: std::ops::Range<u64>) -> View {
        self.counts.slice(bytes).expect("there are four words")
    }
}

impl AttentionScratch {
    fn new(
        device: &Device,
        [arena, shared]: [&mut Arena; 2],
        config: &EmbeddingConfig,
        units: MatrixUnits,
        activations: Activations,
        [pages_per_text, pages]: [u32; 2],
        [rows, texts]: [usize; 2],
    ) -> Result<Self> {
        let dimensions = Dimensions::of(config);
        let scheme = if activations == Activations::F16 { KvScheme::F16 } else { KvScheme::F32 };
        let shape = KvShape {
            kv_heads: dimensions.kv_heads,
            head_dim: dimensions.head_dim,
            page_size: DEFAULT_PAGE_SIZE,
            pages,
            scheme,
        };
        let spans = [AttentionSpan::Full, AttentionSpan::Sliding { window: 1 }];
        let flash = |span| units.flash_plan(device.caps(), &attention_shape(config, span, scheme)).is_some();
        let writes_f16 = activations == Activations::F16 && spans.into_iter().all(flash);
        let width = dimensions.width() as usize;
        let words = rows as u64 * 4;
        let table_buffer = shared.buffer_from("page table", &vec![0_u32; texts * pages_per_text as usize])?;
        Ok(Self {
            q: arena.buffer("queries", width as u64 * words)?,
            attended: Vectors::new(arena, "attention's output", activations, width, rows)?,
            attended_floats: match activations {
                Activations::F16 if !writes_f16 => {
                    Some(Vectors::f32(arena, "attention's output", width, rows)?)
                }
                _ => None,
            },
            kv: KvLayer::allocate(arena, "keys and values of texts", shape)?,
            table: KvTable { view: table_buffer.view(), stride: pages_per_text },
            table_buffer,
            positions: shared.buffer("positions", words)?,
            slots: shared.buffer("slots", words)?,
            last_visible: shared.buffer("last positions", words)?,
            last_in_window: shared.buffer("last positions in windows", words)?,
        })
    }

    fn write_texts(&mut self, config: &EmbeddingConfig, lengths: &[u32]) -> Result<()> {
        let reach = reach_after(config);
        let (mut positions, mut slots, mut last, mut in_window) = (vec![], vec![], vec![], vec![]);
        let mut table = vec![0_u32; self.table_buffer.len() as usize / 4];
        let mut pages = 0..;
        for (slot, length) in (0_u32..).zip(lengths) {
            positions.extend(0..*length);
            slots.extend((0..*length).map(|_| slot));
            last.extend((0..*length).map(|position| match config.is_bidirectional() {
                true => length - 1,
                false => position,
            }));
            in_window.extend((0..*length).map(|position| position.saturating_add(reach).min(length - 1)));
            let first = (slot * self.table.stride) as usize;
            let used = length.div_ceil(DEFAULT_PAGE_SIZE) as usize;
            table[first..first + used].iter_mut().zip(&mut pages).for_each(|(entry, page)| *entry = page);
        }
        let inputs = [
            (&mut self.positions, positions),
            (&mut self.slots, slots),
            (&mut self.last_visible, last),
            (&mut self.last_in_window, in_window),
            (&mut self.table_buffer, table),
        ];
        for (buffer, words) in inputs {
            buffer.write(0, bytemuck::cast_slice(&words))?;
        }
        Ok(())
    }
}

/// Positions after its own that a row sees in a sliding window.
fn reach_after(config: &EmbeddingConfig) -> u32 {
    match &config.layers {
        TextLayers::Decoder { config, bidirectional: true } => {
            config.attentions().find_map(|attention| attention.span.window()).unwrap_or(0) / 2
        }
        _ => 0,
    }
}

/// Attention among the rows of a text.
pub(super) fn attention_shape(
    config: &EmbeddingConfig,
    span: AttentionSpan,
    scheme: KvScheme,
) -> paged::policy::Shape {
    let dimensions = Dimensions::of(config);
    let window = match span {
        AttentionSpan::Full => 0,
        // It counts both sides.
        AttentionSpan::Sliding { window } if config.is_bidirectional() => window / 2 + 1,
        AttentionSpan::Sliding { window } => window,
    };
    paged::policy::Shape {
        heads: dimensions.heads,
        kv_heads: dimensions.kv_heads,
        head_dim: dimensions.head_dim,
        page_size: DEFAULT_PAGE_SIZE,
        scheme,
        window,
        context_length: config.max_tokens,
    }
}

fn split_k_bytes(
    device: &Device,
    config: &EmbeddingConfig,
    weights: &EmbeddingWeights,
    units: MatrixUnits,
    activations: Activations,
    rows: usize,
) -> u64 {
    if activations != Activations::F16 {
        return 0;
    }
    let bytes = |(id, matrix): &(EmbeddingMatrix, _)| {
        let shape = coopmat_shape(config, weights, *id, matrix, rows);
        Some(units.coopmat_plan(device.caps(), &shape)?.scratch_bytes(&shape))
    };
    let multiplied = weights.matrices.iter().filter(|(id, _)| takes_activations(*id));
    multiplied.filter_map(bytes).max().unwrap_or(0)
}

pub(super) fn float_buffer(vectors: &Vectors) -> &Buffer {
    match &vectors.data {
        VectorData::F32(floats) => floats,
        _ => unreachable!("these were allocated as f32"),
    }
}
