//! Buffers of an image encoder, for as many images as are encoded together.

use checkpoint::{EncoderKind, Transformer, VisionConfig};
use gpu::{Arena, Buffer, Device, Lifetime, Memory, View};
use images::ByteTable;
use kernels::{
    Activations, KvLayer, KvShape, KvTable, VectorData, Vectors,
    attention::{paged, rope},
    matmul::coopmat::policy::Fragments,
    patch_values, pool,
};
use tensor::{KvScheme, STRIP};
use weights::vision::{VisionMatrix, VisionWeights};

use super::{
    Grid,
    programs::{coopmat_plan, coopmat_shape},
};
use crate::{DEFAULT_PAGE_SIZE, Result, loaded::MatrixUnits, state::CLEAR_TIMEOUT};

/// Activations and inputs of an encoder.
pub(super) struct Scratch {
    /// Maximum images.
    pub images: usize,
    /// Patches of all images, at most: rows of the encoder.
    pub rows: usize,
    /// Bytes of patches as they are uploaded, and the values of bytes.
    pub bytes: Buffer,
    byte_table: Buffer,
    /// Patches as they are uploaded otherwise, f32.
    upload: View,
    /// Values from one uploaded patch to the next.
    pub upload_stride: usize,
    /// The patches as vectors of f32, where products take another format.
    pub float_patches: Option<Vectors>,
    /// What the patch embedding multiplies.
    pub patches: Vectors,
    /// The residual stream.
    pub residual: Buffer,
    pub normed: Vectors,
    /// The same in f32, before they are clamped to the ranges of a clipped encoder.
    pub normed_floats: Option<Vectors>,
    /// Queries, keys and values; after attention the output of the up projection, or of gate and up. Patches, where they
    /// have a norm.
    pub wide: Buffer,
    /// The output of a block, before it is added to the residual stream.
    pub block: Buffer,
    /// The rows that become soft tokens, f32; `None` if they are the residual stream.
    pub encoded: Option<Vectors>,
    pub unified: Option<UnifiedScratch>,
    /// Per soft token the square of patches that it is the mean of: see [`pool::squares`].
    pub squares: Buffer,
    pub pooled: Vectors,
    /// Soft tokens, f32.
    pub soft: Buffer,
    /// The end row of each image.
    pub chunk_ends: Buffer,
    /// Four words: 0, rows in use, soft tokens in use, and unused.
    counts: Buffer,
    pub attention: Option<AttentionScratch>,
    pub grid: Option<GridScratch>,
    /// Split-K partial sums, and counters: initially zero.
    pub split_k: Option<Buffer>,
}

/// Buffers of an encoder with layers.
pub(super) struct AttentionScratch {
    pub q: Buffer,
    /// Attention's output, as the output projection takes it.
    pub attended: Vectors,
    /// The same in f32, where attention cannot write it otherwise or it is clamped first.
    pub attended_floats: Option<Vectors>,
    /// The input of the down projection.
    pub activated: Vectors,
    /// Rows of f16 activations that elsewhere are f32, or in pages.
    pub half_rows: Option<HalfRows>,
    pub kv: KvLayer,
    pub table: KvTable,
    /// Position of each row in its image, number of its image, and last position of its image.
    pub positions: Buffer,
    pub slots: Buffer,
    pub last_visible: Buffer,
}

/// Where products on cooperative matrices write rows of f16 activations, which attention and norms read.
pub(super) struct HalfRows {
    /// Queries, keys and values.
    pub qkv: Vectors,
    /// The output of a block, before it is added to the residual stream.
    pub block: Vectors,
}

/// Buffers where patches become soft tokens without layers.
pub(super) struct UnifiedScratch {
    /// Embedded patches, before their positions are added, f32.
    pub embedded: Vectors,
    /// A bias of zeros.
    pub zeros: Buffer,
}

/// Where the rows of an encoder with images of any shape are.
pub(super) struct GridScratch {
    /// Column and row of each patch in its image.
    pub coordinates: Buffer,
    /// Cosines and sines of each patch, if it has RoPE.
    pub angles: Option<GridAngles>,
}

pub(super) struct GridAngles {
    pub buffer: Buffer,
    /// Cosines and sines of each coordinate, a quarter of a head each: those of a patch are those of its column and row.
    of_coordinate: Vec<Vec<[f32; 2]>>,
}

/// Values of a row of [`Scratch::wide`].
fn wide_row(config: &VisionConfig) -> u32 {
    match config.encoder {
        EncoderKind::Siglip { transformer, .. } => transformer.intermediate.max(qkv_row(&transformer)),
        EncoderKind::Gemma4 { transformer, .. } => (2 * transformer.intermediate).max(qkv_row(&transformer)),
        EncoderKind::Gemma4Unified { .. } => config.patch_values(),
    }
}

fn qkv_row(transformer: &Transformer) -> u32 {
    3 * transformer.heads * transformer.head_dim
}

/// Bytes of all buffers, at most.
pub(super) fn bytes(config: &VisionConfig, images: u32) -> u64 {
    let [hidden, wide, patch] = [config.hidden, wide_row(config), config.patch_values()].map(u64::from);
    let (attention, activated) = config.transformer().map_or((0, 0), |transformer| {
        (u64::from(transformer.heads * transformer.head_dim), u64::from(transformer.intermediate))
    });
    // Residual stream, normed rows twice, a block's output, the encoder's output; queries, keys, values, attention's output
    // twice, angles; patches in f32, packed, as bytes, and in staging memory.
    let row = 5 * hidden + 6 * attention + wide + activated + 4 * patch.next_multiple_of(128) + 16;
    let soft = u64::from(config.max_soft_tokens()) * (u64::from(config.text_hidden) + hidden);
    u64::from(images) * (row * u64::from(config.max_patches()) + soft) * 4 + FIXED
}

/// Split-K partial sums, and the numbers of rows.
const FIXED: u64 = 64 << 20;

impl Scratch {
    pub fn new(
        device: &Device,
        config: &VisionConfig,
        weights: &VisionWeights,
        units: MatrixUnits,
        activations: Activations,
        images: usize,
    ) -> Result<Self> {
        let rows = images * config.max_patches() as usize;
        let soft_tokens = images * config.max_soft_tokens() as usize;
        let mut arena = Arena::new(device, Lifetime::Scratch, Memory::Device).with_block_size(4 << 20);
        let mut shared = Arena::new(device, Lifetime::Scratch, Memory::Shared).with_block_size(1 << 18);
        let floats = |count: u32, rows: usize| u64::from(count) * rows as u64 * 4;
        let (hidden, patch_values) = (config.hidden as usize, config.patch_values() as usize);
        let wide = arena.buffer("wide rows", floats(wide_row(config), rows))?;
        let unified = matches!(config.encoder, EncoderKind::Gemma4Unified { .. });
        let patches = Vectors::new(&mut arena, "patches", activations, patch_values, rows)?;
        let float_patches = match activations {
            Activations::F32 => None,
            _ if unified => None,
            _ => Some(Vectors::f32(&mut arena, "patches", patch_values, rows)?),
        };
        let (upload, upload_stride) = match (&float_patches, unified) {
            // Their norm makes vectors of them.
            (_, true) => (wide.view(), patch_values),
            (Some(vectors), false) => (float_buffer(vectors).view(), vectors.stride()),
            (None, false) => (float_buffer(&patches).view(), patches.stride()),
        };
        let clipped = !weights.clips.is_empty();
        let scratch = Self {
            images,
            rows,
            bytes: arena.buffer("bytes of patches", (patch_values * rows) as u64)?,
            byte_table: shared.buffer("values of bytes", patch_values::TABLE as u64 * 4)?,
            upload,
            upload_stride,
            float_patches,
            patches,
            residual: arena.buffer("residual stream", floats(config.hidden, rows))?,
            normed: Vectors::new(&mut arena, "normed rows", activations, hidden, rows)?,
            normed_floats: match clipped {
                true => Some(Vectors::f32(&mut arena, "normed rows", hidden, rows)?),
                false => None,
            },
            wide,
            block: arena.buffer("a block's output", floats(config.hidden, rows))?,
            encoded: match config.encoder {
                EncoderKind::Gemma4 { .. } => None,
                _ => Some(Vectors::f32(&mut arena, "encoded rows", hidden, rows)?),
            },
            unified: match unified {
                true => Some(UnifiedScratch {
                    embedded: Vectors::f32(&mut arena, "embedded patches", hidden, rows)?,
                    zeros: shared.buffer_from("zeros", &vec![0_f32; hidden])?,
                }),
                false => None,
            },
            squares: shared.buffer("squares", soft_tokens as u64 * 8)?,
            pooled: Vectors::new(&mut arena, "pooled rows", activations, hidden, soft_tokens)?,
            soft: arena.buffer("soft tokens", floats(config.text_hidden, soft_tokens))?,
            chunk_ends: shared.buffer("image ends", images as u64 * 4)?,
            counts: shared.buffer_from("active rows", &[0_u32; 4])?,
            attention: match config.transformer() {
                Some(transformer) => {
                    let new = AttentionScratch::new;
                    let sizes =
                        Sizes { images, rows, activations, clipped, qkv_in_strips: qkv_in_strips(weights) };
                    Some(new(device, &mut arena, &mut shared, config, transformer, units, &sizes)?)
                }
                None => None,
            },
            grid: match config.encoder {
                EncoderKind::Siglip { .. } => None,
                EncoderKind::Gemma4 { transformer, rope_theta, .. } => Some(GridScratch {
                    coordinates: shared.buffer("coordinates", rows as u64 * 8)?,
                    angles: Some(GridAngles {
                        buffer: shared.buffer("angles", floats(transformer.head_dim, rows))?,
                        of_coordinate: angles_of_coordinates(config, transformer.head_dim, rope_theta),
                    }),
                }),
                EncoderKind::Gemma4Unified { .. } => Some(GridScratch {
                    coordinates: shared.buffer("coordinates", rows as u64 * 8)?,
                    angles: None,
                }),
            },
            split_k: match split_k_bytes(device, weights, units, activations, [rows, soft_tokens], images) {
                0 => None,
                bytes => Some(arena.buffer("split-K partial sums", bytes)?),
            },
        };
        scratch.clear(device)?;
        Ok(scratch)
    }

    fn clear(&self, device: &Device) -> Result<()> {
        let mut recorder = device.recorder()?;
        let attention = self.attention.iter().flat_map(|attention| {
            let vectors = [&attention.attended, &attention.activated].into_iter();
            let half_rows = attention.half_rows.iter().flat_map(|rows| [&rows.qkv, &rows.block]);
            vectors.chain(&attention.attended_floats).chain(half_rows)
        });
        let embedded = self.unified.iter().map(|unified| &unified.embedded);
        let vectors = [&self.patches, &self.normed, &self.pooled].into_iter().chain(embedded);
        let optional = [&self.float_patches, &self.normed_floats, &self.encoded].into_iter().flatten();
        for vectors in vectors.chain(optional).chain(attention) {
            vectors.record_clear(&mut recorder, "clear")?;
        }
        if let Some(split_k) = &self.split_k {
            recorder.fill("clear", split_k, 0)?;
        }
        Ok(recorder.seal()?.run(CLEAR_TIMEOUT)?)
    }

    /// Bytes of uploaded patches, at most.
    pub fn upload_bytes(&self) -> u64 {
        (self.upload_stride * self.rows) as u64 * 4
    }

    /// Sets the values of bytes.
    pub fn write_byte_table(&mut self, table: &ByteTable) -> Result<()> {
        Ok(self.byte_table.write(0, bytemuck::cast_slice(&table.values))?)
    }

    /// The format of the vectors that bytes become.
    pub fn patch_format(&self) -> Activations {
        if self.unified.is_some() { Activations::F32 } else { self.patches.kind() }
    }

    /// From uploaded bytes to what the first program starts with.
    pub fn patch_bytes(&self, run: usize) -> Result<patch_values::Operands> {
        let (y, y_stride) = match (&self.patches.data, &self.unified) {
            (_, Some(_)) => (self.upload.clone(), self.upload_stride),
            (VectorData::F16(values) | VectorData::F32(values), None) => {
                (values.view(), self.patches.stride())
            }
            _ => unreachable!("these were allocated as f32 or f16"),
        };
        Ok(patch_values::Operands {
            bytes: self.bytes.view(),
            table: self.byte_table.view(),
            run,
            y,
            y_stride,
        })
    }

    /// Where the first `patches` are uploaded to.
    pub fn upload(&self, patches: usize) -> Result<View> {
        Ok(self.upload.slice(0..(self.upload_stride * patches) as u64 * 4)?)
    }

    /// The rows that become soft tokens, after all layers, and the values from one to the next.
    #[cfg(any(test, feature = "testing"))]
    pub fn encoded(&self, hidden: usize) -> (&Buffer, usize) {
        match &self.encoded {
            Some(encoded) => (float_buffer(encoded), encoded.stride()),
            None => (&self.residual, hidden),
        }
    }

    /// Sets the images to encode.
    pub fn write_images(&mut self, grids: &[Grid], pooled_patches: u32) -> Result<()> {
        let mut ends: Vec<u32> = vec![];
        let mut squares: Vec<[u32; 2]> = vec![];
        for grid in grids {
            let first = ends.last().copied().unwrap_or(0);
            let [start, columns, rows, side] =
                [first, grid.columns, grid.rows, pooled_patches].map(|number| number as usize);
            squares.extend(pool::squares(start, columns, rows, side)?);
            ends.push(first + grid.patches());
        }
        self.chunk_ends.write(0, bytemuck::cast_slice(&ends))?;
        self.squares.write(0, bytemuck::cast_slice(&squares))?;
        let counts = [0, ends.last().copied().unwrap_or(0), squares.len() as u32];
        self.counts.write(0, bytemuck::cast_slice(&counts))?;
        if let Some(attention) = &mut self.attention {
            attention.write_images(grids)?;
        }
        if let Some(GridScratch { coordinates, angles }) = &mut self.grid {
            let all: Vec<[u32; 2]> = grids.iter().flat_map(Grid::coordinates).collect();
            coordinates.write(0, bytemuck::cast_slice(&all))?;
            if let Some(GridAngles { buffer, of_coordinate }) = angles {
                let of_patch = |at: &[u32; 2]| at.map(|coordinate| &of_coordinate[coordinate as usize][..]);
                let all: Vec<[f32; 2]> = all.iter().flat_map(of_patch).flatten().copied().collect();
                buffer.write(0, bytemuck::cast_slice(&all))?;
            }
        }
        Ok(())
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

/// What the sizes of [`AttentionScratch`] depend on.
struct Sizes {
    images: usize,
    rows: usize,
    activations: Activations,
    clipped: bool,
    qkv_in_strips: bool,
}

/// Whether products may write queries, keys and values side by side as f16: each starts with a whole strip.
fn qkv_in_strips(weights: &VisionWeights) -> bool {
    let mut qkv = weights.matrices.iter().filter(|(id, _)| matches!(id, VisionMatrix::Qkv(_)));
    qkv.all(|(_, matrix)| matrix.layout().rows.is_multiple_of(STRIP))
}

impl AttentionScratch {
    fn new(
        device: &Device,
        arena: &mut Arena,
        shared: &mut Arena,
        config: &VisionConfig,
        transformer: &Transformer,
        units: MatrixUnits,
        sizes: &Sizes,
    ) -> Result<Self> {
        let Sizes { images, rows, activations, clipped, qkv_in_strips } = *sizes;
        let pages = config.max_patches().div_ceil(DEFAULT_PAGE_SIZE);
        let from_rows = matches!(config.encoder, EncoderKind::Siglip { .. })
            && activations == Activations::F16
            && qkv_in_strips
            // Elsewhere an NPU may compute the products, which it returns as f32.
            && !matches!(units, MatrixUnits::Device(Fragments::Other))
            && units
                .flash_plan(device.caps(), &attention_shape(config, transformer, KvScheme::F16))
                .is_some();
        // Attention of rows needs neither queries in f32 nor pages.
        let paged_rows = if from_rows { 1 } else { rows };
        let pages = if from_rows { 1 } else { pages };
        let images_with_pages = if from_rows { 1 } else { images };
        let shape = KvShape {
            kv_heads: transformer.heads,
            head_dim: transformer.head_dim,
            page_size: DEFAULT_PAGE_SIZE,
            pages: pages * images_with_pages as u32,
            scheme: if activations == Activations::F16 { KvScheme::F16 } else { KvScheme::F32 },
        };
        let attention = attention_shape(config, transformer, shape.scheme);
        let writes_f16 =
            activations == Activations::F16 && units.flash_plan(device.caps(), &attention).is_some();
        let width = (transformer.heads * transformer.head_dim) as usize;
        let table: Vec<u32> = (0..shape.pages).collect();
        let words = rows as u64 * 4;
        Ok(Self {
            q: arena.buffer("queries", width as u64 * 4 * paged_rows as u64)?,
            attended: Vectors::new(arena, "attention's output", activations, width, rows)?,
            attended_floats: match activations {
                _ if clipped => Some(Vectors::f32(arena, "attention's output", width, rows)?),
                Activations::F16 if !writes_f16 => {
                    Some(Vectors::f32(arena, "attention's output", width, rows)?)
                }
                _ => None,
            },
            activated: Vectors::new(
                arena,
                "activated rows",
                activations,
                transformer.intermediate as usize,
                rows,
            )?,
            half_rows: match from_rows {
                true => Some(HalfRows {
                    qkv: Vectors::new(arena, "queries, keys and values", activations, 3 * width, rows)?,
                    block: Vectors::new(
                        arena,
                        "a block's output",
                        activations,
                        config.hidden as usize,
                        rows,
                    )?,
                }),
                false => None,
            },
            kv: KvLayer::allocate(arena, "keys and values of patches", shape)?,
            table: KvTable { view: shared.buffer_from("page table", &table)?.view(), stride: pages },
            positions: shared.buffer("positions", words)?,
            slots: shared.buffer("slots", words)?,
            last_visible: shared.buffer("last positions", words)?,
        })
    }

    fn write_images(&mut self, grids: &[Grid]) -> Result<()> {
        let (mut positions, mut slots, mut last_visible) = (vec![], vec![], vec![]);
        for (slot, grid) in (0_u32..).zip(grids) {
            let patches = grid.patches();
            positions.extend(0..patches);
            slots.extend((0..patches).map(|_| slot));
            last_visible.extend((0..patches).map(|_| patches - 1));
        }
        self.positions.write(0, bytemuck::cast_slice(&positions))?;
        self.slots.write(0, bytemuck::cast_slice(&slots))?;
        Ok(self.last_visible.write(0, bytemuck::cast_slice(&last_visible))?)
    }
}

fn split_k_bytes(
    device: &Device,
    weights: &VisionWeights,
    units: MatrixUnits,
    activations: Activations,
    [rows, soft_tokens]: [usize; 2],
    images: usize,
) -> u64 {
    if activations != Activations::F16 {
        return 0;
    }
    let bytes = |(id, matrix): &(VisionMatrix, _)| {
        let columns = if *id == VisionMatrix::Projection { soft_tokens } else { rows };
        let shape = coopmat_shape(weights, *id, matrix, columns);
        let plans =
            [columns / images, columns].map(|active| coopmat_plan(units, device.caps(), &shape, active));
        plans.into_iter().flatten().map(|plan| plan.scratch_bytes(&shape)).max()
    };
    weights.matrices.iter().filter_map(bytes).max().unwrap_or(0)
}

fn angles_of_coordinates(config: &VisionConfig, head_dim: u32, theta: f32) -> Vec<Vec<[f32; 2]>> {
    let angles = |x| rope::grid_angles(head_dim as usize, theta.into(), x, 0).take(head_dim as usize / 4);
    (0..config.max_patches_per_side()).map(|x| angles(x).collect()).collect()
}

fn float_buffer(vectors: &Vectors) -> &Buffer {
    match &vectors.data {
        VectorData::F32(floats) => floats,
        _ => unreachable!("these were allocated as f32"),
    }
}

/// Attention among the patches of an image.
pub(super) fn attention_shape(
    config: &VisionConfig,
    transformer: &Transformer,
    scheme: KvScheme,
) -> paged::policy::Shape {
    paged::policy::Shape {
        heads: transformer.heads,
        kv_heads: transformer.heads,
        head_dim: transformer.head_dim,
        page_size: DEFAULT_PAGE_SIZE,
        scheme,
        window: 0,
        context_length: config.max_patches(),
    }
}
