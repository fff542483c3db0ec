//! The image encoder: from patches to soft tokens of the language model, as recorded programs.
//!
//! An encoder is a transformer over the patches of an image, with attention without a mask. SigLIP (Gemma 3) has LayerNorms
//! with biases and no RoPE; that of Gemma 4 is like its language model, with RoPE in two dimensions. They run on the kernels
//! of the language model: patches are the rows of a prefill, an image is a sequence whose rows all see each other, and its
//! keys and values are in pages of their own. Images that are encoded together may have different shapes. Gemma 4 12B has
//! no layers: norms and two products.
//!
//! There is one program per layer, recorded once, and another where several images take other tiles. An encoding can pause
//! between layers, so that other sequences decode in between. Soft tokens stay in a cache until the memory is needed for
//! other images.

mod programs;
mod scratch;
mod soft_token_cache;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use checkpoint::{EncoderKind, MIN_SOFT_TOKENS, VisionConfig};
use gpu::{Arena, Buffer, Device, Lifetime, Memory, Program, Recorder, TimestampMode, Timing};
use images::ByteTable;
use kernels::{Activations, Matrix, matmul::quantize_rows::QuantizeRows, patch_values::PatchValues};
use npu::settings::Settings;
use weights::vision::{VisionMatrix, VisionWeights};

use crate::{
    Error, Image, Result,
    loaded::MatrixUnits,
    npu_operation::Interruption,
    offload::{self, CutPrograms, Offload, RowCounts},
    state::TIMEOUT,
};

use scratch::Scratch;
pub(crate) use soft_token_cache::SoftTokenCache;

/// An image encoder with its weights, buffers and programs, and the soft tokens of recently used images.
pub struct ImageEncoder {
    device: Device,
    config: VisionConfig,
    units: MatrixUnits,
    scratch: Scratch,
    programs: Programs,
    /// The same for the NPU.
    cut: Option<CutPrograms>,
    /// `None` unless it may use the NPU.
    offload: Option<Offload>,
    /// Patches on their way to the GPU.
    staging: Buffer,
    /// The images whose patches are there, in order.
    staged: Vec<Image>,
    /// Makes vectors of their bytes.
    patch_values: PatchValues,
    soft_tokens: SoftTokenCache,
    batch: Option<EncoderBatch>,
    /// Measured time of a layer per patch, in seconds.
    patch_time: Option<f64>,
    timeout: Duration,
    // Last, so that they outlive the programs.
    weights: VisionWeights,
}

/// One program per layer, or a single one; the first begins with the patches, the last ends with soft tokens.
struct Programs {
    /// With the tiles that suit the patches of one image, or of several small ones.
    one_image: Vec<Program>,
    /// With those that suit full buffers; `None` where they are the same.
    several_images: Option<Vec<Program>>,
}

/// The bytes of each image, if all have bytes of the same meaning, and rows of whole words.
fn common_bytes(images: &[Image]) -> Option<(Vec<&[u8]>, &ByteTable)> {
    let all: Vec<_> = images.iter().map(|image| image.patches().bytes()).collect::<Option<_>>()?;
    let (_, table) = *all.first()?;
    let whole = images.iter().all(|image| image.patches().values_per_patch().is_multiple_of(4));
    let same = all.iter().all(|(_, other)| Arc::ptr_eq(other, table) || other == &table);
    (whole && same).then(|| (all.iter().map(|(bytes, _)| *bytes).collect(), &**table))
}

/// Images that are being encoded.
struct EncoderBatch {
    images: Vec<Image>,
    /// Layers that have run.
    layers_done: usize,
}

/// Sizes of an encoder's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderLimits {
    /// Images that are encoded together.
    pub max_images: u32,
    /// Images whose soft tokens are kept.
    pub cached_images: u32,
}

/// Patches are written to staging memory in as many chunks, a thread each, since one thread does not saturate the memory. No
/// chunk has patches of two images, so there may be more.
const COPY_CHUNKS: usize = 4;

/// Bytes of a chunk, unless the rest of an image is shorter: less is not worth a thread.
const MIN_COPY_BYTES: usize = 1 << 20;

/// Images whose soft tokens are kept, at least.
const MIN_CACHED_IMAGES: u32 = 8;

/// Buffers of images that are encoded together may take this fraction of a device's memory: those of eight images of Gemma
/// 3, 3.2 GB, on an H200.
const MEMORY_DIVISOR: u64 = 44;

impl EncoderLimits {
    /// Limits for a device with this much local memory, and steps of this many prefill tokens: their images must be in
    /// the cache at once.
    pub fn new(config: &VisionConfig, device_memory: u64, prefill_chunk: u32) -> Self {
        let fits = |images: &u32| scratch::bytes(config, *images) <= device_memory / MEMORY_DIVISOR;
        // More than four made one image of Gemma 4 26B slower on an H200, whose kernels have a workgroup per row, used or not:
        // 27.0 → 35.2 ms.
        let most = if matches!(config.encoder, EncoderKind::Siglip { .. }) { 8 } else { 4 };
        Self {
            max_images: [8, 4, 2].into_iter().filter(|images| *images <= most).find(fits).unwrap_or(1),
            cached_images: (prefill_chunk / config.max_soft_tokens()).max(MIN_CACHED_IMAGES),
        }
    }

    /// Bytes of all buffers, at most.
    pub fn scratch_bytes(&self, config: &VisionConfig) -> u64 {
        scratch::bytes(config, self.max_images) + soft_token_cache::bytes(config, self.cached_images)
    }
}

/// The format of an encoder's activations: f16 if the device's matrix units take all of its matrices.
fn activations(
    device: &Device,
    config: &VisionConfig,
    weights: &VisionWeights,
    units: MatrixUnits,
) -> Activations {
    let intermediate = config.transformer().map_or(0, |transformer| transformer.intermediate);
    let lengths = [config.hidden, intermediate, config.patch_values()];
    let aligned = lengths.into_iter().all(|length| length.is_multiple_of(4));
    let planned = |(id, matrix): &(VisionMatrix, Matrix)| {
        let columns = match id {
            VisionMatrix::Projection => config.max_soft_tokens(),
            _ => config.max_patches(),
        };
        let shape = programs::coopmat_shape(weights, *id, matrix, columns as usize);
        units.coopmat_plan(device.caps(), &shape).is_some()
    };
    match aligned && weights.matrices.iter().all(planned) {
        true => Activations::F16,
        false => Activations::F32,
    }
}

impl Programs {
    /// Those for this many patches.
    fn for_rows(&self, rows: usize, config: &VisionConfig) -> &[Program] {
        match &self.several_images {
            Some(programs) if rows > config.max_patches() as usize => programs,
            _ => &self.one_image,
        }
    }
}

impl ImageEncoder {
    /// Allocates the buffers and records the programs. The weights may be filled later.
    pub(crate) fn new(
        device: &Device,
        config: VisionConfig,
        weights: VisionWeights,
        units: MatrixUnits,
        limits: EncoderLimits,
    ) -> Result<Self> {
        if config.max_soft_tokens() < MIN_SOFT_TOKENS {
            // A single prefill row runs as a decode row, which has no soft tokens.
            let tokens = config.max_soft_tokens();
            return Err(Error::Limits(format!(
                "an image encoder with at most {tokens} tokens per image: it needs at least {MIN_SOFT_TOKENS}"
            )));
        }
        let images = limits.max_images.max(1) as usize;
        let activations = activations(device, &config, &weights, units);
        let scratch = Scratch::new(device, &config, &weights, units, activations, images)?;
        let record = |images| {
            let (config, weights, scratch) = (&config, &weights, &scratch);
            let recording =
                programs::Recording { device, config, weights, scratch, units, images, cuts: None };
            let recorders =
                (0..recording.count()).map(|number| recording.program(number, device.recorder()?));
            recorders.collect::<Result<Vec<_>>>()
        };
        let plans_differ = activations == Activations::F16
            && programs::plans_differ(units, device.caps(), &config, &weights, images);
        let one = record(1)?;
        let several = plans_differ.then(|| record(images)).transpose()?;
        let patch_values = PatchValues::new(device, scratch.patch_format())?;
        let mut pipelines: Vec<_> =
            one.iter().chain(several.iter().flatten()).flat_map(Recorder::pipelines).collect();
        pipelines.push(patch_values.pipeline().clone());
        device.compile(&pipelines)?;
        let seal = |recorders: Vec<Recorder>| {
            recorders.into_iter().map(|recorder| Ok(recorder.seal()?)).collect::<Result<Vec<_>>>()
        };
        let programs = Programs { one_image: seal(one)?, several_images: several.map(seal).transpose()? };
        let mut upload = Arena::new(device, Lifetime::Staging, Memory::Upload);
        let staging = upload.buffer_from("patches", &vec![0_u8; scratch.upload_bytes() as usize])?;
        let soft_tokens = SoftTokenCache::new(device, &config, limits.cached_images)?;
        Ok(Self {
            device: device.clone(),
            config,
            units,
            scratch,
            programs,
            cut: None,
            offload: None,
            staging,
            staged: vec![],
            patch_values,
            soft_tokens,
            batch: None,
            patch_time: None,
            timeout: TIMEOUT,
            weights,
        })
    }

    /// Dimensions and constants.
    pub fn config(&self) -> &VisionConfig {
        &self.config
    }

    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Images that a step may contain.
    pub fn max_images_per_step(&self) -> u32 {
        self.soft_tokens.capacity() as u32
    }

    pub(crate) fn weights(&self) -> &VisionWeights {
        &self.weights
    }

    pub(crate) fn soft_tokens(&self) -> &SoftTokenCache {
        &self.soft_tokens
    }

    /// Encodes images whose soft tokens are not cached, for about as long as `budget`. Returns whether all are
    /// cached now; if not, the next call continues. More images than the cache holds are an error.
    pub(crate) fn encode(&mut self, images: &[Image], budget: Duration) -> Result<bool> {
        images.iter().try_for_each(|image| self.check(image))?;
        if images.len() > self.soft_tokens.capacity() {
            return Err(Error::Limits(format!(
                "{} images in a step: it takes at most {}",
                images.len(),
                self.soft_tokens.capacity()
            )));
        }
        self.soft_tokens.touch(images);
        let start = Instant::now();
        loop {
            if self.batch.is_none() {
                let missing = self.next_batch(images);
                if missing.is_empty() {
                    return Ok(true);
                }
                self.start(missing)?;
            }
            self.run_layers(images, budget.saturating_sub(start.elapsed()))?;
            if self.batch.is_some() && start.elapsed() >= budget {
                return Ok(false);
            }
        }
    }

    /// As many of these images as are encoded together, without those that are cached or being encoded.
    fn next_batch(&self, images: &[Image]) -> Vec<Image> {
        let mut next: Vec<Image> = vec![];
        for image in images {
            let encoding = self.batch.iter().flat_map(|batch| &batch.images);
            let is_known = encoding.chain(&next).any(|other| other.id() == image.id());
            if !is_known && !self.soft_tokens.contains(image) && next.len() < self.scratch.images {
                next.push(image.clone());
            }
        }
        next
    }

    fn check(&self, image: &Image) -> Result<()> {
        let (config, patches, grid) = (&self.config, image.patches(), Grid::of(image));
        let values = config.patch_values();
        let side = config.pooled_patches;
        let fits = match config.encoder {
            EncoderKind::Siglip { image_size, .. } => {
                [grid.columns, grid.rows] == [image_size / config.patch_size; 2]
            }
            EncoderKind::Gemma4 { .. } | EncoderKind::Gemma4Unified { .. } => {
                grid.columns.is_multiple_of(side) && grid.rows.is_multiple_of(side)
            }
        };
        // A single prefill row runs as a decode row, which has no soft tokens.
        let tokens = 2..=config.max_soft_tokens();
        let soft_tokens = grid.patches() / side.pow(2);
        if patches.values_per_patch() != values as usize
            || !fits
            || !tokens.contains(&soft_tokens)
            || image.soft_tokens() != soft_tokens
        {
            return Err(Error::Limits(format!(
                "an image of {} × {} patches of {} values and {} soft tokens: this model takes {} to {} soft tokens of \
                 {side} × {side} patches of {values} values",
                grid.columns,
                grid.rows,
                patches.values_per_patch(),
                image.soft_tokens(),
                tokens.start(),
                tokens.end()
            )));
        }
        Ok(())
    }

    /// Forgets all soft tokens, since they may be wrong.
    pub(crate) fn clear(&mut self) {
        self.batch = None;
        self.staged.clear();
        self.soft_tokens.clear();
    }

    /// Writes the patches of images to staging memory.
    fn stage(&mut self, images: &[Image]) -> Result<()> {
        self.staged.clear();
        match common_bytes(images) {
            Some((parts, _)) => {
                let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
                let chunk = (bytes / COPY_CHUNKS).max(MIN_COPY_BYTES);
                let mut rest = self.staging.bytes_mut()?;
                std::thread::scope(|scope| {
                    for chunk in parts.into_iter().flat_map(|part| part.chunks(chunk)) {
                        let (to, others) = rest.split_at_mut(chunk.len());
                        rest = others;
                        scope.spawn(|| to.copy_from_slice(chunk));
                    }
                });
            }
            None => {
                let stride = self.scratch.upload_stride as u64 * 4;
                let patches = images.iter().map(Image::patches);
                let patches = patches.flat_map(|patches| (0..patches.len()).map(|row| patches.row(row)));
                for (row, patch) in (0..).zip(patches) {
                    let mut padded = patch.into_owned();
                    padded.resize(self.scratch.upload_stride, 0.0);
                    self.staging.write(row * stride, bytemuck::cast_slice(&padded))?;
                }
            }
        }
        self.staged = images.to_vec();
        Ok(())
    }

    /// Uploads the patches of images, and initialises the residual stream.
    fn start(&mut self, images: Vec<Image>) -> Result<()> {
        let grids: Vec<Grid> = images.iter().map(Grid::of).collect();
        self.scratch.write_images(&grids, self.config.pooled_patches)?;
        if !self.staged.iter().map(Image::id).eq(images.iter().map(Image::id)) {
            self.stage(&images)?;
        }
        let rows = grids.iter().map(|grid| grid.patches() as usize).sum();
        let mut recorder = self.device.recorder()?;
        match common_bytes(&images) {
            Some((parts, table)) => {
                let bytes = parts.iter().map(|part| part.len() as u64).sum();
                self.scratch.write_byte_table(table)?;
                recorder.copy(
                    "patches",
                    self.staging.slice(0..bytes)?,
                    self.scratch.bytes.slice(0..bytes)?,
                )?;
                let k = self.config.patch_values() as usize;
                let operands = self.scratch.patch_bytes(table.run)?;
                self.patch_values.record(&mut recorder, "patches", rows, k, &operands)?;
            }
            None => {
                let to = self.scratch.upload(rows)?;
                recorder.copy("patches", self.staging.slice(0..to.len())?, to)?;
                if let Scratch { patches, float_patches: Some(floats), .. } = &self.scratch {
                    let kernel = QuantizeRows::new(&self.device, patches.kind(), patches.k)?;
                    kernel.record(&mut recorder, "patches", floats, patches, &self.scratch.active_range())?;
                }
            }
        }
        programs::initialise_residual(
            &mut recorder,
            &self.config,
            &self.weights,
            &self.scratch,
            images.len(),
        )?;
        recorder.seal()?.run(self.timeout)?;
        self.staged.clear();
        self.batch = Some(EncoderBatch { images, layers_done: 0 });
        Ok(())
    }

    /// Runs as many layers as `budget` allows, at least one. `needed` are the images that the caller waits for.
    fn run_layers(&mut self, needed: &[Image], budget: Duration) -> Result<()> {
        if self.run_layers_on_npu(needed, budget)? {
            return Ok(());
        }
        let Some(batch) = &mut self.batch else { return Ok(()) };
        let rows = row_counts(&batch.images).all;
        let programs = self.programs.for_rows(rows, &self.config);
        let patches = rows as f64;
        let rest = programs.len() - batch.layers_done;
        let fit = match self.patch_time.map(|time| time * patches) {
            Some(layer) if layer > 0.0 => (budget.as_secs_f64() / layer) as usize,
            _ => 1,
        };
        let layers =
            batch.layers_done..batch.layers_done + fit.clamp(1, rest.min(gpu::MAX_PROGRAMS_PER_SUBMIT));
        let (all, programs) = (programs.len(), programs[layers.clone()].iter().collect::<Vec<_>>());
        let start = Instant::now();
        let run = self.device.submit(&programs);
        // While they run, the patches of the next images go to staging memory. If that fails, `start` tries again, and fails.
        let next = if self.staged.is_empty() { self.next_batch(needed) } else { vec![] };
        if !next.is_empty() {
            let _ = self.stage(&next);
        }
        let run = run.and_then(|ticket| self.device.wait(ticket, self.timeout));
        if let Err(error) = run {
            self.batch = None;
            return Err(error.into());
        }
        let Some(batch) = &mut self.batch else { return Ok(()) };
        // Unless copying took longer.
        if next.is_empty() {
            self.patch_time = Some(start.elapsed().as_secs_f64() / (layers.len() as f64 * patches));
        }
        batch.layers_done = layers.end;
        if batch.layers_done < all {
            return Ok(());
        }
        self.finish(needed)
    }

    /// Keeps the soft tokens of the batch, whose layers have all run.
    fn finish(&mut self, needed: &[Image]) -> Result<()> {
        let Some(batch) = self.batch.take() else { return Ok(()) };
        self.soft_tokens.insert(&batch.images, needed, &self.scratch.soft, self.timeout)
    }

    /// The same with the NPU. False if the GPU has to run the layers: the NPU is not used, or the batch did not end there and
    /// has been started again.
    fn run_layers_on_npu(&mut self, needed: &[Image], budget: Duration) -> Result<bool> {
        let start = Instant::now();
        let (Some(batch), Some(offload), Some(cut)) = (&mut self.batch, &mut self.offload, &mut self.cut)
        else {
            return Ok(false);
        };
        let counts = row_counts(&batch.images);
        while batch.layers_done < cut.layers() {
            let layer = cut.run(&self.device, offload, batch.layers_done, counts, self.timeout);
            if let Err(interruption) = layer {
                let images = std::mem::take(&mut batch.images);
                (self.batch, self.cut) = (None, None);
                offload.fall_back(interruption)?;
                return self.start(images).map(|()| false);
            }
            batch.layers_done += 1;
            if start.elapsed() >= budget {
                break;
            }
        }
        if batch.layers_done == cut.layers() {
            self.finish(needed)?;
        }
        Ok(true)
    }

    /// Computes products on the NPU from now on, if the settings, its tests and its speed allow that. `model` is its name
    /// in reports. The weights must have been filled.
    pub fn use_npu(&mut self, settings: &Settings, model: &str) -> Result<()> {
        let mut offload = Offload::start(settings, &format!("image encoder of {model}"));
        match self.prepare_npu(&mut offload) {
            Ok(()) => offload.log_decision(),
            Err(interruption) => offload.fall_back(interruption)?,
        }
        self.offload = Some(offload);
        Ok(())
    }

    /// Compares the speed where that decides, stores the matrices, and records the programs that are cut at them.
    fn prepare_npu(&mut self, offload: &mut Offload) -> Result<(), Interruption> {
        if offload.needs_comparison() {
            // Those of other layers are stored only if the NPU is faster.
            offload.store(&self.device, self.offloaded(is_of_first_program))?;
            if offload.is_used() {
                self.compare_with_npu(offload)?;
            }
        }
        if offload.is_used() {
            offload.store(&self.device, self.offloaded(|_| true))?;
        }
        // Storing may have failed, or the overlay may take none of the matrices.
        if offload.is_used() {
            self.cut = Some(self.record_cuts(offload, self.programs.one_image.len() as u32)?);
        }
        Ok(())
    }

    /// All matrices, and whether the NPU may multiply them.
    fn offloaded(&self, wanted: fn(VisionMatrix) -> bool) -> impl Iterator<Item = (bool, &Matrix)> {
        let is_plain = |id| !programs::has_gated_epilogue(&self.weights, id);
        self.weights.matrices.iter().map(move |(id, matrix)| (is_plain(*id) && wanted(*id), matrix))
    }

    /// The first programs, cut where the NPU multiplies.
    fn record_cuts(&self, offload: &Offload, count: u32) -> Result<CutPrograms> {
        let Self { device, config, units, scratch, weights, .. } = self;
        offload.cuts(device).programs(count, |cuts, number, recorder| {
            let cuts = Some(cuts);
            let (units, images) = (*units, 1);
            let recording = programs::Recording { device, config, weights, scratch, units, images, cuts };
            recording.program(number, recorder)
        })
    }

    /// Runs the first program for an image of the largest size with the NPU and without, and decides by the times.
    fn compare_with_npu(&mut self, offload: &mut Offload) -> Result<(), Interruption> {
        let grid = Grid::largest(&self.config);
        self.scratch.write_images(&[grid], self.config.pooled_patches)?;
        let (all, side) = (grid.patches() as usize, self.config.pooled_patches as usize);
        let counts = RowCounts { all, pooled: all / side.pow(2) };
        let mut cut = self.record_cuts(offload, 1)?;
        let npu = offload::shortest(|| cut.run(&self.device, offload, 0, counts, self.timeout))?;
        let program = &self.programs.one_image[0];
        let gpu = offload::shortest(|| program.run(self.timeout))?;
        offload.compare(&format!("the first layer, for an image of {all} patches,"), npu, gpu);
        Ok(())
    }

    /// Encodes this many images of the largest size, whatever their patches are, and returns the time of each command.
    pub(crate) fn encode_timed(&mut self, images: usize, timestamps: TimestampMode) -> Result<Vec<Timing>> {
        let grids = vec![Grid::largest(&self.config); images.min(self.scratch.images)];
        self.scratch.write_images(&grids, self.config.pooled_patches)?;
        let Self { device, config, units, scratch, weights, .. } = self;
        let (units, images) = (*units, if grids.len() > 1 { scratch.images } else { 1 });
        let recording = programs::Recording { device, config, weights, scratch, units, images, cuts: None };
        let mut timings: Vec<Timing> = vec![];
        for number in 0..recording.count() {
            let program = recording.program(number, device.timed_recorder(timestamps)?)?.seal()?;
            program.run(self.timeout)?;
            let level = timings.last().map_or(0, |timing| timing.level + 1);
            let of_layer = program.timings()?.into_iter();
            timings.extend(of_layer.map(|timing| Timing { level: timing.level + level, ..timing }));
        }
        Ok(timings)
    }

    /// The same encoder with the code path of cooperative matrices on a device that has none: slow; for tests.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn with_emulated_matrix_units(self) -> Result<Self> {
        let limits = EncoderLimits {
            max_images: self.scratch.images as u32,
            cached_images: self.soft_tokens.capacity() as u32,
        };
        // The programs must not outlive the weights that they read.
        let Self { device, config, weights, programs, .. } = self;
        drop(programs);
        Self::new(&device, config, weights, MatrixUnits::Emulated, limits)
    }

    /// The format of its activations; for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn activations(&self) -> Activations {
        self.scratch.normed.kind()
    }

    /// The encoder's output and the soft tokens of the last batch, as rows of f32; for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn read_encoded(&self) -> Result<(Vec<f32>, Vec<f32>)> {
        let read = |from: &Buffer| -> Result<Vec<f32>> {
            let mut arena = Arena::new(&self.device, Lifetime::Staging, Memory::Readback);
            let to = arena.buffer("image", from.len())?;
            let mut recorder = self.device.recorder()?;
            recorder.copy("image", from, &to)?;
            recorder.seal()?.run(self.timeout)?;
            Ok(to.read_vec()?)
        };
        let hidden = self.config.hidden as usize;
        let (encoded, stride) = self.scratch.encoded(hidden);
        let encoded = read(encoded)?;
        let encoded = encoded.chunks(stride).flat_map(|row| row[..hidden].to_vec()).collect();
        Ok((encoded, read(&self.scratch.soft)?))
    }
}

/// The patches of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grid {
    columns: u32,
    rows: u32,
}

impl Grid {
    fn of(image: &Image) -> Self {
        Self { columns: image.patches().columns(), rows: image.patches().rows() }
    }

    /// The grid of the largest image: square where all are, otherwise a row of soft tokens.
    fn largest(config: &VisionConfig) -> Self {
        let side = config.pooled_patches;
        match config.encoder {
            EncoderKind::Siglip { image_size, .. } => {
                let patches = image_size / config.patch_size;
                Self { columns: patches, rows: patches }
            }
            EncoderKind::Gemma4 { .. } | EncoderKind::Gemma4Unified { .. } => {
                Self { columns: config.max_soft_tokens() * side, rows: side }
            }
        }
    }

    fn patches(&self) -> u32 {
        self.columns * self.rows
    }

    /// Column and row of each patch.
    fn coordinates(&self) -> impl Iterator<Item = [u32; 2]> + use<> {
        let Self { columns, rows } = *self;
        (0..rows).flat_map(move |y| (0..columns).map(move |x| [x, y]))
    }
}

/// The single matrix with this id.
fn single(weights: &VisionWeights, id: VisionMatrix) -> Result<&Matrix> {
    let missing = || gpu::Error::InvalidUse { what: id.to_string(), reason: "was not loaded".into() };
    Ok(weights.by_id(id).next().ok_or_else(missing)?)
}

/// The rows of images that are encoded together.
fn row_counts(images: &[Image]) -> RowCounts {
    let all = images.iter().map(|image| image.patches().len()).sum();
    RowCounts { all, pooled: images.iter().map(|image| image.soft_tokens() as usize).sum() }
}

/// Whether a matrix belongs to the first program.
fn is_of_first_program(id: VisionMatrix) -> bool {
    use VisionMatrix::{AttentionOutput, Down, GateUp, PatchEmbed, Qkv, Up};
    matches!(id, PatchEmbed | Qkv(0) | AttentionOutput(0) | Up(0) | GateUp(0) | Down(0))
}
