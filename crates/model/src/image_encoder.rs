//! The image encoder: from patches to soft tokens of the language model, as recorded programs.
//!
//! A SigLIP encoder is a transformer over the patches of an image: LayerNorm with bias instead of RMSNorm, no RoPE, and
//! attention without a mask. It runs on the kernels of the language model: patches are the rows of a prefill, an image
//! is a sequence whose rows all see each other, and its keys and values are in pages of their own.
//!
//! There is one program per layer, recorded once. An encoding can pause between layers, so that other sequences decode in
//! between. Soft tokens stay in a pool until the memory is needed for other images.

mod pool;
mod programs;
mod scratch;

use std::time::{Duration, Instant};

use checkpoint::VisionConfig;
use gpu::{Arena, Buffer, Device, Lifetime, Memory, Program, TimestampMode, Timing};
use kernels::{Activations, Matrix};
use weights::vision::{VisionMatrix, VisionWeights};

use crate::{Error, Image, Result, loaded::MatrixUnits, state::TIMEOUT};

pub(crate) use pool::SoftTokenPool;
use scratch::Scratch;

/// An image encoder with its weights, buffers and programs, and the soft tokens of the last images.
pub struct ImageEncoder {
    device: Device,
    config: VisionConfig,
    units: MatrixUnits,
    scratch: Scratch,
    /// One per layer; the first begins with the patches, the last ends with soft tokens.
    programs: Vec<Program>,
    /// Patches on their way to the GPU.
    staging: Buffer,
    pool: SoftTokenPool,
    encoding: Option<Encoding>,
    /// Measured time of a layer of one image.
    layer_time: Option<Duration>,
    timeout: Duration,
    // Last, so that they outlive the programs.
    weights: VisionWeights,
}

/// Images that are being encoded.
struct Encoding {
    images: Vec<Image>,
    /// Layers that have run.
    layers: usize,
}

/// Sizes of an encoder's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// Images that are encoded together.
    pub max_images: u32,
    /// Images whose soft tokens are kept.
    pub pool_images: u32,
}

/// Images whose soft tokens are kept, at least.
const MIN_POOL_IMAGES: u32 = 8;

/// Buffers of images that are encoded together may take this fraction of a device's memory: 1/64.
const MEMORY_SHARE: u64 = 64;

impl ImageLimits {
    /// Limits for a device with this much local memory, and steps of this many prefill tokens: their images must be in
    /// the pool at once.
    pub fn new(config: &VisionConfig, device_memory: u64, prefill_chunk: u32) -> Self {
        let fits = |images: &u32| scratch::bytes(config, *images) <= device_memory / MEMORY_SHARE;
        Self {
            max_images: [4, 2].into_iter().find(fits).unwrap_or(1),
            pool_images: (prefill_chunk / config.soft_tokens()).max(MIN_POOL_IMAGES),
        }
    }

    /// Bytes of all buffers, at most.
    pub fn scratch_bytes(&self, config: &VisionConfig) -> u64 {
        scratch::bytes(config, self.max_images) + pool::bytes(config, self.pool_images)
    }
}

/// The format of an encoder's activations: f16 if the device's matrix units take all of its matrices.
fn activations(
    device: &Device,
    config: &VisionConfig,
    weights: &VisionWeights,
    units: MatrixUnits,
) -> Activations {
    let lengths = [config.hidden, config.intermediate, config.patch_values()];
    let aligned = lengths.into_iter().all(|length| length.is_multiple_of(4));
    let planned = |matrix: &Matrix| {
        units
            .coopmat_plan(device.caps(), &programs::coopmat_shape(matrix, config.patches() as usize))
            .is_some()
    };
    match aligned && weights.matrices.iter().all(|(_, matrix)| planned(matrix)) {
        true => Activations::F16,
        false => Activations::F32,
    }
}

impl ImageEncoder {
    /// Allocates the buffers and records the programs. The weights may be filled later.
    pub(crate) fn new(
        device: &Device,
        config: VisionConfig,
        weights: VisionWeights,
        units: MatrixUnits,
        limits: ImageLimits,
    ) -> Result<Self> {
        if config.soft_tokens() < 2 {
            // A single prefill row runs as a decode row, which has no soft tokens.
            return Err(Error::Limits("an image encoder with one soft token per image".into()));
        }
        let images = limits.max_images.max(1) as usize;
        let activations = activations(device, &config, &weights, units);
        let scratch = Scratch::new(device, &config, &weights, units, activations, images)?;
        let recording =
            programs::Recording { device, config: &config, weights: &weights, scratch: &scratch, units };
        let recorders = (0..config.layers).map(|layer| recording.layer(layer, device.recorder()?));
        let recorders = recorders.collect::<Result<Vec<_>>>()?;
        let pipelines: Vec<_> = recorders.iter().flat_map(|recorder| recorder.pipelines()).collect();
        device.compile(&pipelines)?;
        let programs =
            recorders.into_iter().map(|recorder| Ok(recorder.seal()?)).collect::<Result<Vec<_>>>()?;
        let mut upload = Arena::new(device, Lifetime::Staging, Memory::Upload);
        let patch_bytes = scratch.patch_bytes() * images as u64;
        let staging = upload.buffer_from("patches", &vec![0_u8; patch_bytes as usize])?;
        let pool = SoftTokenPool::new(device, &config, limits.pool_images)?;
        Ok(Self {
            device: device.clone(),
            config,
            units,
            scratch,
            programs,
            staging,
            pool,
            encoding: None,
            layer_time: None,
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
        self.pool.capacity() as u32
    }

    pub(crate) fn weights(&self) -> &VisionWeights {
        &self.weights
    }

    pub(crate) fn pool(&self) -> &SoftTokenPool {
        &self.pool
    }

    /// Encodes images whose soft tokens are not in the pool, for about as long as `budget`. Returns whether all are in the
    /// pool now; if not, the next call continues. More images than the pool holds are an error.
    pub(crate) fn encode(&mut self, images: &[Image], budget: Duration) -> Result<bool> {
        images.iter().try_for_each(|image| self.check(image))?;
        if images.len() > self.pool.capacity() {
            return Err(Error::Limits(format!(
                "{} images in a step: it takes at most {}",
                images.len(),
                self.pool.capacity()
            )));
        }
        self.pool.touch(images);
        let start = Instant::now();
        loop {
            if self.encoding.is_none() {
                let mut missing: Vec<Image> = vec![];
                for image in images {
                    let listed = missing.iter().any(|other| other.id() == image.id());
                    if !listed && !self.pool.contains(image) && missing.len() < self.scratch.images {
                        missing.push(image.clone());
                    }
                }
                if missing.is_empty() {
                    return Ok(true);
                }
                self.start(missing)?;
            }
            self.run_layers(budget.saturating_sub(start.elapsed()))?;
            if self.encoding.is_some() && start.elapsed() >= budget {
                return Ok(false);
            }
        }
    }

    fn check(&self, image: &Image) -> Result<()> {
        let patches = image.patches();
        let (count, values) = (self.config.patches() as usize, self.config.patch_values() as usize);
        if (patches.len(), patches.values_per_patch(), image.soft_tokens())
            != (count, values, self.config.soft_tokens())
        {
            return Err(Error::Limits(format!(
                "an image of {} patches of {} values: this model takes {count} of {values}",
                patches.len(),
                patches.values_per_patch()
            )));
        }
        Ok(())
    }

    /// Uploads the patches of images.
    fn start(&mut self, images: Vec<Image>) -> Result<()> {
        let (stride, bytes) = (self.scratch.patches.stride() as u64 * 4, self.scratch.patch_bytes());
        let patches =
            images.iter().flat_map(|image| (0..image.patches().len()).map(|row| image.patches().row(row)));
        // The padding of rows stays as it was allocated, zero.
        for (row, patch) in (0..).zip(patches) {
            self.staging.write(row * stride, bytemuck::cast_slice(patch))?;
        }
        self.scratch.write_images(images.len())?;
        let mut recorder = self.device.recorder()?;
        let end = bytes * images.len() as u64;
        let patches = self.scratch.patch_floats().slice(0..end)?;
        recorder.copy("patches", self.staging.slice(0..end)?, patches)?;
        recorder.seal()?.run(self.timeout)?;
        self.encoding = Some(Encoding { images, layers: 0 });
        Ok(())
    }

    /// Runs as many layers as `budget` allows, at least one.
    fn run_layers(&mut self, budget: Duration) -> Result<()> {
        let Some(encoding) = &mut self.encoding else { return Ok(()) };
        let count = encoding.images.len() as u32;
        let rest = self.programs.len() - encoding.layers;
        let fit = match self.layer_time.map(|time| (time * count).as_secs_f64()) {
            Some(layer) if layer > 0.0 => (budget.as_secs_f64() / layer) as usize,
            _ => 1,
        };
        let layers = encoding.layers..encoding.layers + fit.clamp(1, rest.min(gpu::MAX_PROGRAMS_PER_SUBMIT));
        let programs: Vec<&Program> = self.programs[layers.clone()].iter().collect();
        let start = Instant::now();
        let run = self.device.submit(&programs).and_then(|ticket| self.device.wait(ticket, self.timeout));
        if let Err(error) = run {
            self.encoding = None;
            return Err(error.into());
        }
        self.layer_time = Some(start.elapsed() / (layers.len() as u32 * count));
        encoding.layers = layers.end;
        if encoding.layers < self.programs.len() {
            return Ok(());
        }
        let images = std::mem::take(&mut encoding.images);
        self.encoding = None;
        self.pool.insert(&images, &self.scratch.soft, self.timeout)
    }

    /// Encodes this many images, whatever their patches are, and returns the time of each command.
    pub(crate) fn encode_timed(&mut self, images: usize, timestamps: TimestampMode) -> Result<Vec<Timing>> {
        self.scratch.write_images(images.min(self.scratch.images))?;
        let Self { device, config, units, scratch, weights, .. } = self;
        let recording = programs::Recording { device, config, weights, scratch, units: *units };
        let mut timings: Vec<Timing> = vec![];
        for layer in 0..config.layers {
            let program = recording.layer(layer, device.timed_recorder(timestamps)?)?.seal()?;
            program.run(self.timeout)?;
            let level = timings.last().map_or(0, |timing| timing.level + 1);
            let of_layer = program.timings()?.into_iter();
            timings.extend(of_layer.map(|timing| Timing { level: timing.level + level, ..timing }));
        }
        Ok(timings)
    }

    /// What the last encoded images are in the encoder and as soft tokens, for tests: rows of f32.
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
        let (stride, hidden) = (self.scratch.encoded.stride(), self.config.hidden as usize);
        let encoded = read(self.scratch.encoded_floats())?;
        let encoded = encoded.chunks(stride).flat_map(|row| row[..hidden].to_vec()).collect();
        Ok((encoded, read(&self.scratch.soft)?))
    }
}

/// The single matrix with this id.
fn single(weights: &VisionWeights, id: VisionMatrix) -> Result<&Matrix> {
    let missing = || gpu::Error::InvalidUse { what: id.to_string(), reason: "was not loaded".into() };
    Ok(weights.by_id(id).next().ok_or_else(missing)?)
}
