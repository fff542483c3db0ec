//! Buffers of an image encoder, for as many images as are encoded together.

use checkpoint::VisionConfig;
use gpu::{Arena, Buffer, Device, Lifetime, Memory, View};
use kernels::{Activations, KvLayer, KvShape, KvTable, VectorData, Vectors, attention::paged};
use tensor::KvScheme;
use weights::vision::VisionWeights;

use super::programs::coopmat_shape;
use crate::{DEFAULT_PAGE_SIZE, Result, loaded::MatrixUnits, state::CLEAR_TIMEOUT};

/// Activations and inputs of an encoder.
pub(super) struct Scratch {
    /// Maximum images.
    pub images: usize,
    /// Patches of all images: rows of the encoder.
    pub rows: usize,
    /// Patches as they are uploaded, f32.
    pub patches: Vectors,
    /// The same as products take them, where that is not f32.
    pub packed_patches: Option<Vectors>,
    /// The residual stream.
    pub residual: Buffer,
    pub normed: Vectors,
    /// Queries, keys and values, and after attention the output of the up projection.
    pub wide: Buffer,
    pub q: Buffer,
    /// Attention's output, as the output projection takes it.
    pub attended: Vectors,
    /// The same in f32, where attention cannot write it otherwise.
    pub attended_floats: Option<Vectors>,
    /// The output of attention or of a feed-forward block, before it is added to the residual stream.
    pub block: Buffer,
    /// The input of the down projection.
    pub activated: Vectors,
    /// The encoder's output, f32.
    pub encoded: Vectors,
    pub pooled: Vectors,
    /// Soft tokens, f32.
    pub soft: Buffer,
    pub kv: KvLayer,
    pub table: KvTable,
    /// Position of each row in its image, number of its image, and last position of its image.
    pub positions: Buffer,
    pub slots: Buffer,
    pub last_visible: Buffer,
    /// The end row of each image.
    pub chunk_ends: Buffer,
    /// Four words: 0, rows in use, soft tokens in use, and unused.
    counts: Buffer,
    /// Split-K partial sums, and counters: initially zero.
    pub split_k: Option<Buffer>,
}

/// Bytes of all buffers, at most.
pub(super) fn bytes(config: &VisionConfig, images: u32) -> u64 {
    let [hidden, wide, patch] =
        [config.hidden, config.intermediate.max(3 * config.hidden), config.patch_values()].map(u64::from);
    // Residual stream, normed rows, queries, keys, values, attention's output twice, a block's output, the encoder's
    // output; wide rows and their activations; patches in f32, packed, and in staging memory.
    let row = 9 * hidden + 2 * wide + 3 * patch.next_multiple_of(128);
    let soft = u64::from(config.soft_tokens()) * (u64::from(config.text_hidden) + hidden);
    u64::from(images) * (row * u64::from(config.patches()) + soft) * 4 + FIXED
}

/// Split-K partial sums, and the numbers of rows.
const FIXED: u64 = 32 << 20;

impl Scratch {
    pub fn new(
        device: &Device,
        config: &VisionConfig,
        weights: &VisionWeights,
        units: MatrixUnits,
        activations: Activations,
        images: usize,
    ) -> Result<Self> {
        let patches = config.patches() as usize;
        let rows = images * patches;
        let mut arena = Arena::new(device, Lifetime::Scratch, Memory::Device).with_block_size(4 << 20);
        let floats = |count: u32, rows: usize| u64::from(count) * rows as u64 * 4;
        let pages = config.patches().div_ceil(DEFAULT_PAGE_SIZE);
        let shape = KvShape {
            kv_heads: config.heads,
            head_dim: config.head_dim(),
            page_size: DEFAULT_PAGE_SIZE,
            pages: pages * images as u32,
            scheme: if activations == Activations::F16 { KvScheme::F16 } else { KvScheme::F32 },
        };
        let attention = attention_shape(config, shape.scheme);
        let writes_f16 =
            activations == Activations::F16 && units.flash_plan(device.caps(), &attention).is_some();
        let hidden = config.hidden as usize;
        let split_k = match activations {
            Activations::F16 => {
                let bytes = weights.matrices.iter().filter_map(|(_, matrix)| {
                    let shape = coopmat_shape(matrix, rows);
                    Some(units.coopmat_plan(device.caps(), &shape)?.scratch_bytes(&shape))
                });
                match bytes.max().unwrap_or(0) {
                    0 => None,
                    bytes => Some(arena.buffer("split-K partial sums", bytes)?),
                }
            }
            _ => None,
        };
        let mut shared = Arena::new(device, Lifetime::Scratch, Memory::Shared).with_block_size(1 << 18);
        let numbers = |number: fn(usize, usize) -> usize| -> Vec<u32> {
            (0..rows).map(|row| number(row, patches) as u32).collect()
        };
        let table: Vec<u32> = (0..shape.pages).collect();
        let soft_tokens = images * config.soft_tokens() as usize;
        let packed = |arena: &mut Arena, what: &str, k: usize| match activations {
            Activations::F32 => Ok::<_, gpu::Error>(None),
            kind => Vectors::new(arena, what, kind, k, rows).map(Some),
        };
        let scratch = Self {
            images,
            rows,
            patches: Vectors::f32(&mut arena, "patches", config.patch_values() as usize, rows)?,
            packed_patches: packed(&mut arena, "patches", config.patch_values() as usize)?,
            residual: arena.buffer("residual stream", floats(config.hidden, rows))?,
            normed: Vectors::new(&mut arena, "normed rows", activations, hidden, rows)?,
            wide: arena.buffer("wide rows", floats(config.intermediate.max(3 * config.hidden), rows))?,
            q: arena.buffer("queries", floats(config.hidden, rows))?,
            attended: Vectors::new(&mut arena, "attention's output", activations, hidden, rows)?,
            attended_floats: match activations {
                Activations::F16 if !writes_f16 => {
                    Some(Vectors::f32(&mut arena, "attention's output", hidden, rows)?)
                }
                _ => None,
            },
            block: arena.buffer("a block's output", floats(config.hidden, rows))?,
            activated: Vectors::new(
                &mut arena,
                "activated rows",
                activations,
                config.intermediate as usize,
                rows,
            )?,
            encoded: Vectors::f32(&mut arena, "encoded rows", hidden, rows)?,
            pooled: Vectors::new(&mut arena, "pooled rows", activations, hidden, soft_tokens)?,
            soft: arena.buffer("soft tokens", floats(config.text_hidden, soft_tokens))?,
            kv: KvLayer::allocate(&mut arena, "keys and values of patches", shape)?,
            table: KvTable { view: shared.buffer_from("page table", &table)?.view(), stride: pages },
            positions: shared.buffer_from("positions", &numbers(|row, patches| row % patches))?,
            slots: shared.buffer_from("slots", &numbers(|row, patches| row / patches))?,
            last_visible: shared.buffer_from("last positions", &numbers(|_, patches| patches - 1))?,
            chunk_ends: shared.buffer_from("image ends", &vec![0_u32; images])?,
            counts: shared.buffer_from("active rows", &[0_u32; 4])?,
            split_k,
        };
        let mut recorder = device.recorder()?;
        let vectors =
            [&scratch.patches, &scratch.normed, &scratch.attended, &scratch.activated, &scratch.encoded];
        let vectors = vectors.into_iter().chain([&scratch.pooled]);
        for vectors in vectors.chain(&scratch.packed_patches).chain(&scratch.attended_floats) {
            vectors.record_clear(&mut recorder, "clear")?;
        }
        if let Some(split_k) = &scratch.split_k {
            recorder.fill("clear", split_k, 0)?;
        }
        recorder.seal()?.run(CLEAR_TIMEOUT)?;
        Ok(scratch)
    }

    /// Bytes of the patches of one image.
    pub fn patch_bytes(&self) -> u64 {
        (self.patches.stride() * self.rows / self.images) as u64 * 4
    }

    pub fn patch_floats(&self) -> &Buffer {
        floats(&self.patches)
    }

    #[cfg(any(test, feature = "testing"))]
    pub fn encoded_floats(&self) -> &Buffer {
        floats(&self.encoded)
    }

    /// Sets the number of images to encode.
    pub fn write_images(&mut self, images: usize) -> Result<()> {
        let patches = self.rows / self.images;
        let soft_tokens = self.pooled.columns / self.images;
        let ends: Vec<u32> = (1..=images).map(|image| (image * patches) as u32).collect();
        self.chunk_ends.write(0, bytemuck::cast_slice(&ends))?;
        let counts = [0, images * patches, images * soft_tokens].map(|count| count as u32);
        Ok(self.counts.write(0, bytemuck::cast_slice(&counts))?)
    }

    /// Two words: the range of the rows in use.
    pub fn active_range(&self) -> View {
        self.word_range(0..8)
    }

    /// One word: rows in use.
    pub fn active(&self) -> View {
        self.word_range(4..8)
    }

    /// One word: soft tokens in use.
    pub fn active_soft(&self) -> View {
        self.word_range(8..12)
    }

    fn word_range(&self, bytes: std::ops::Range<u64>) -> View {
        self.counts.slice(bytes).expect("there are four words")
    }
}

fn floats(vectors: &Vectors) -> &Buffer {
    match &vectors.data {
        VectorData::F32(floats) => floats,
        _ => unreachable!("these were allocated as f32"),
    }
}

/// Attention among the patches of an image.
pub(super) fn attention_shape(config: &VisionConfig, scheme: KvScheme) -> paged::policy::Shape {
    paged::policy::Shape {
        heads: config.heads,
        kv_heads: config.heads,
        head_dim: config.head_dim(),
        page_size: DEFAULT_PAGE_SIZE,
        scheme,
        window: 0,
        context_length: config.patches(),
    }
}
