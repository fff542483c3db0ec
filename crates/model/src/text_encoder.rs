//! The text encoder: from the tokens of texts to one vector per text, as recorded programs.
//!
//! The texts of a batch are packed: their rows follow each other, and the attention of a row is limited to its own text.
//! They run on the kernels of the language model: a text is a prefill chunk at the start of its own sequence, and keys and
//! values of one layer at a time are in pages. What a row sees is a matter of the positions that are written for a batch:
//!
//! | attention | first position | last position |
//! |---|---|---|
//! | causal | 0 | its own |
//! | bidirectional | 0 | the last of its text |
//! | bidirectional, sliding window | half a window before | half a window after |
//!
//! With [`TextEncoder::use_npu`] the NPU computes products: `offload` describes how.
//!
//! There is one program per layer and bucket of rows; the first begins with the tokens, the last ends with pooling and the
//! dense layers after it. A bucket has its own buffers, so that a short query does not pay for a long batch.

mod batch;
mod programs;
mod scratch;

use std::time::{Duration, Instant};

use checkpoint::{EmbeddingCheckpoint, EmbeddingConfig, TextLayers};
use gpu::{Device, Memory, Program};
use kernels::{Activations, Epilogue, Matrix, matmul::coopmat};
use npu::settings::Settings;
use weights::{
    embedding::{EmbeddingBlueprint, EmbeddingMatrix, EmbeddingWeights},
    stream::{Control, Options, Stats},
};

use crate::{
    Error, Result,
    loaded::{MatrixUnits, RopeTables, rope_tables},
    npu_operation::Interruption,
    offload::{self, CutPrograms, Offload, RowCounts},
    state::TIMEOUT,
};

use batch::batches;
use programs::Recording;
use scratch::Scratch;

/// A text encoder with its weights, buffers and programs.
pub struct TextEncoder {
    device: Device,
    config: EmbeddingConfig,
    units: MatrixUnits,
    limits: TextLimits,
    activations: Activations,
    /// Smallest first.
    buckets: Vec<Bucket>,
    rope: Rope,
    /// Measured time of a layer per row, in seconds.
    row_time: Option<f64>,
    timeout: Duration,
    /// `None` unless it may use the NPU.
    offload: Option<Offload>,
    // Last, so that they outlive the programs.
    weights: EmbeddingWeights,
}

/// The RoPE tables of decoder layers, of full attention and of sliding windows.
#[derive(Default)]
pub(crate) struct Rope {
    full: Option<RopeTables>,
    sliding: Option<RopeTables>,
}

/// Programs and buffers for batches up to a number of rows.
struct Bucket {
    scratch: Scratch,
    /// One per layer; recorded when the bucket is used for the first time.
    programs: Vec<Program>,
    /// The same for the NPU.
    cut: Option<CutPrograms>,
}

/// Sizes of an encoder's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextLimits {
    /// Tokens of a text, at most.
    pub max_tokens: u32,
    /// Tokens of a batch, at least as many as those of a text.
    pub max_rows: u32,
}

/// Tokens of a batch: enough to use all of a large GPU, in buffers of a few hundred MB.
const MAX_ROWS: u32 = 2048;

/// Maximum tokens of a text, unless more are asked for.
const DEFAULT_MAX_TOKENS: u32 = 8192;

/// Texts of a batch, at most. Each takes at least one page.
const MAX_TEXTS: usize = 64;

/// Rows of the smallest bucket, and the factor from one to the next.
const MIN_BUCKET: usize = 64;
const BUCKET_STEP: usize = 8;

/// Tokens per text, and of the batch, that the NPU and the GPU are timed with.
const COMPARED_TOKENS: u32 = 128;
const COMPARED_ROWS: usize = 512;

/// Time of a submission: short enough for drivers that reset a GPU which does not answer.
const SUBMIT_TIME: Duration = Duration::from_millis(250);

impl TextLimits {
    /// Limits for texts of up to `max_tokens` tokens; if `None`, of as many as the model takes, but at most 8192.
    pub fn new(config: &EmbeddingConfig, max_tokens: Option<u32>) -> Result<Self> {
        let max = config.max_tokens;
        match max_tokens {
            Some(0) => Err(Error::Limits("texts of 0 tokens: at least 1 is needed".into())),
            Some(tokens) if tokens > max => {
                Err(Error::Limits(format!("texts of {tokens} tokens: the model takes at most {max}")))
            }
            tokens => {
                let max_tokens = tokens.unwrap_or(max.min(DEFAULT_MAX_TOKENS));
                Ok(Self { max_tokens, max_rows: max_tokens.max(MAX_ROWS) })
            }
        }
    }

    /// Rows of each bucket, smallest first.
    fn buckets(&self) -> Vec<usize> {
        let max = self.max_rows.max(self.max_tokens) as usize;
        let sizes = std::iter::successors(Some(MIN_BUCKET), |rows| Some(rows * BUCKET_STEP));
        sizes.take_while(|rows| *rows < max).chain([max]).collect()
    }

    /// Bytes of all buffers, at most.
    pub fn scratch_bytes(&self, config: &EmbeddingConfig) -> u64 {
        self.buckets().into_iter().map(|rows| scratch::bytes(config, self, rows)).sum()
    }
}

/// The format of activations: f16 if the device's matrix units take all matrices.
fn activations(
    device: &Device,
    config: &EmbeddingConfig,
    weights: &EmbeddingWeights,
    units: MatrixUnits,
) -> Activations {
    let planned = |(id, matrix): &(EmbeddingMatrix, Matrix)| {
        let shape = programs::coopmat_shape(config, weights, *id, matrix, MIN_BUCKET);
        units.coopmat_plan(device.caps(), &shape).is_some()
    };
    let mut multiplied = weights.matrices.iter().filter(|(id, _)| programs::takes_activations(*id));
    // Rows are loaded four values at a time.
    let aligned = |(_, matrix): &(EmbeddingMatrix, Matrix)| matrix.layout().k.is_multiple_of(4);
    match multiplied.all(|matrix| aligned(matrix) && planned(matrix)) {
        true => Activations::F16,
        false => Activations::F32,
    }
}

impl TextEncoder {
    /// Loads a checkpoint's weights and allocates the buffers.
    pub fn load(
        device: &Device,
        checkpoint: &EmbeddingCheckpoint,
        limits: TextLimits,
        memory: Memory,
        options: &Options,
        control: &Control,
    ) -> Result<(Self, Stats)> {
        let blueprint = EmbeddingBlueprint::new(checkpoint)?;
        let (weights, stats) = blueprint.load(device, memory, options, control)?;
        let units = MatrixUnits::Device(coopmat::fragments(device)?);
        Ok((Self::new(device, checkpoint.config.clone(), weights, units, limits)?, stats))
    }

    fn new(
        device: &Device,
        config: EmbeddingConfig,
        weights: EmbeddingWeights,
        units: MatrixUnits,
        limits: TextLimits,
    ) -> Result<Self> {
        let activations = activations(device, &config, &weights, units);
        let bucket = |rows| -> Result<Bucket> {
            let scratch = Scratch::new(device, &config, &weights, units, activations, &limits, rows)?;
            Ok(Bucket { scratch, programs: vec![], cut: None })
        };
        let buckets = limits.buckets().into_iter().map(bucket).collect::<Result<Vec<_>>>()?;
        let rope = Rope::new(device, &config)?;
        Ok(Self {
            device: device.clone(),
            config,
            units,
            limits,
            activations,
            buckets,
            rope,
            row_time: None,
            timeout: TIMEOUT,
            offload: None,
            weights,
        })
    }

    /// Dimensions and constants.
    pub fn config(&self) -> &EmbeddingConfig {
        &self.config
    }

    /// Sizes of its buffers.
    pub fn limits(&self) -> &TextLimits {
        &self.limits
    }

    /// Sets the time after which a submission counts as hung.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Records the programs of all buckets and compiles their pipelines, so that no text waits for that.
    pub fn prepare(&mut self) -> Result<()> {
        (0..self.buckets.len()).try_for_each(|bucket| self.record(bucket))
    }

    /// Encodes texts, given as tokens: one vector of [`EmbeddingConfig::dimensions`] values each, not normalised.
    ///
    /// `progress` is called with the number of encoded texts, at least once per submission; if it returns false, the
    /// encoding ends with [`Error::Cancelled`].
    pub fn encode(
        &mut self,
        texts: &[&[u32]],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>> {
        texts.iter().try_for_each(|text| self.check(text))?;
        let lengths: Vec<usize> = texts.iter().map(|text| text.len()).collect();
        let mut vectors = Vec::with_capacity(texts.len());
        for range in batches(&lengths, self.limits.max_rows as usize, MAX_TEXTS) {
            self.encode_batch(&texts[range.clone()], &mut |_| progress(range.start))?
                .into_iter()
                .for_each(|vector| vectors.push(vector));
        }
        match progress(texts.len()) {
            true => Ok(vectors),
            false => Err(Error::Cancelled),
        }
    }

    fn check(&self, text: &[u32]) -> Result<()> {
        let (vocab, max_tokens) = (self.config.vocab(), self.limits.max_tokens);
        if text.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if text.len() > max_tokens as usize {
            return Err(Error::Limits(format!(
                "a text of {} tokens: this encoder takes at most {max_tokens}",
                text.len()
            )));
        }
        match text.iter().find(|token| **token >= vocab) {
            Some(token) => Err(Error::UnknownToken { token: *token, vocab }),
            None => Ok(()),
        }
    }

    /// Encodes the texts of one batch. `proceed` is asked before each submission.
    fn encode_batch(
        &mut self,
        texts: &[&[u32]],
        proceed: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>> {
        let rows: usize = texts.iter().map(|text| text.len()).sum();
        let number = self.bucket_for(rows, texts.len());
        self.buckets[number].scratch.write_texts(&self.config, texts)?;
        let counts = RowCounts { all: rows, pooled: texts.len() };
        if !self.run_on_npu(number, counts, proceed)? {
            self.run_on_gpu(number, rows, proceed)?;
        }
        let bucket = &self.buckets[number];
        let vectors = bucket.scratch.read_vectors(texts.len(), self.config.dimensions() as usize)?;
        match vectors.iter().position(|vector| vector.iter().any(|value| !value.is_finite())) {
            Some(text) => Err(Error::NonFiniteVector { tokens: texts[text].len() }),
            None => Ok(vectors),
        }
    }

    /// Runs the layers for the rows that have been written.
    fn run_on_gpu(
        &mut self,
        number: usize,
        rows: usize,
        proceed: &mut dyn FnMut(usize) -> bool,
    ) -> Result<()> {
        self.record(number)?;
        let bucket = &self.buckets[number];
        let mut done = 0;
        while done < bucket.programs.len() {
            if !proceed(done) {
                return Err(Error::Cancelled);
            }
            let fit = match self.row_time.map(|time| time * rows as f64) {
                Some(layer) if layer > 0.0 => (SUBMIT_TIME.as_secs_f64() / layer) as usize,
                _ => 1,
            };
            let rest = bucket.programs.len() - done;
            let layers = done..done + fit.clamp(1, rest.min(gpu::MAX_PROGRAMS_PER_SUBMIT));
            let programs: Vec<&Program> = bucket.programs[layers.clone()].iter().collect();
            let start = Instant::now();
            let ticket = self.device.submit(&programs)?;
            self.device.wait(ticket, self.timeout)?;
            self.row_time = Some(start.elapsed().as_secs_f64() / (layers.len() * rows) as f64);
            done = layers.end;
        }
        Ok(())
    }

    /// The same with the NPU. False if the GPU has to run all layers: the NPU is not used, or the batch did not end there.
    fn run_on_npu(
        &mut self,
        number: usize,
        counts: RowCounts,
        proceed: &mut dyn FnMut(usize) -> bool,
    ) -> Result<bool> {
        let Some(mut offload) = self.offload.take_if(|offload| offload.is_used()) else { return Ok(false) };
        let run = self.run_cuts(&mut offload, number, counts, proceed);
        let outcome = match run {
            Ok(()) => Ok(true),
            Err(interruption) => offload.fall_back(interruption).map(|()| {
                self.buckets.iter_mut().for_each(|bucket| bucket.cut = None);
                false
            }),
        };
        self.offload = Some(offload);
        outcome
    }

    /// Runs the layers, cut where the NPU multiplies.
    fn run_cuts(
        &mut self,
        offload: &mut Offload,
        number: usize,
        counts: RowCounts,
        proceed: &mut dyn FnMut(usize) -> bool,
    ) -> Result<(), Interruption> {
        let recorded = match self.buckets[number].cut.take() {
            Some(cut) => cut,
            None => self.record_cuts(number, offload, self.config.layer_count())?,
        };
        let cut = self.buckets[number].cut.insert(recorded);
        for layer in 0..cut.layers() {
            if !proceed(layer) {
                return Err(Error::Cancelled.into());
            }
            cut.run(&self.device, offload, layer, counts, self.timeout)?;
        }
        Ok(())
    }

    /// Computes products on the NPU from now on, if the settings, its tests and its speed allow that. `model` is its name
    /// in reports.
    pub fn use_npu(&mut self, settings: &Settings, model: &str) -> Result<()> {
        let mut offload = Offload::start(settings, &format!("embeddings of {model}"));
        match self.prepare_npu(&mut offload) {
            Ok(()) => offload.log_decision(),
            Err(interruption) => offload.fall_back(interruption)?,
        }
        self.offload = Some(offload);
        Ok(())
    }

    /// Compares the speed where that decides, and stores the matrices.
    fn prepare_npu(&mut self, offload: &mut Offload) -> Result<(), Interruption> {
        if offload.needs_comparison() {
            // Those of other layers are stored only if the NPU is faster.
            offload.store(&self.device, self.offloaded(is_of_first_layer))?;
            if offload.is_used() {
                self.compare_with_npu(offload)?;
            }
        }
        if offload.is_used() {
            offload.store(&self.device, self.offloaded(|_| true))?;
        }
        Ok(())
    }

    /// All matrices, and whether the NPU may multiply them.
    fn offloaded(&self, wanted: fn(EmbeddingMatrix) -> bool) -> impl Iterator<Item = (bool, &Matrix)> {
        self.weights.matrices.iter().map(move |(id, matrix)| {
            let is_plain = programs::product_epilogue(&self.config, &self.weights, *id) == Epilogue::None;
            (programs::takes_activations(*id) && is_plain && wanted(*id), matrix)
        })
    }

    /// Runs the first layer for a batch with the NPU and without, and decides by the times.
    fn compare_with_npu(&mut self, offload: &mut Offload) -> Result<(), Interruption> {
        let length = COMPARED_TOKENS.min(self.limits.max_tokens) as usize;
        let text = vec![0; length];
        let count = (COMPARED_ROWS.min(self.limits.max_rows as usize) / length).clamp(1, MAX_TEXTS);
        let texts = vec![&text[..]; count];
        let counts = RowCounts { all: length * count, pooled: count };
        let number = self.bucket_for(counts.all, count);
        self.buckets[number].scratch.write_texts(&self.config, &texts)?;
        self.record(number)?;
        let mut cut = self.record_cuts(number, offload, 1)?;
        let npu = offload::shortest(|| cut.run(&self.device, offload, 0, counts, self.timeout))?;
        let program = &self.buckets[number].programs[0];
        let gpu = offload::shortest(|| program.run(self.timeout))?;
        offload.compare(&format!("the first layer, for a batch of {} tokens,", counts.all), npu, gpu);
        Ok(())
    }

    /// The smallest bucket for a batch.
    fn bucket_for(&self, rows: usize, texts: usize) -> usize {
        let fits = |bucket: &Bucket| bucket.scratch.rows >= rows && bucket.scratch.texts >= texts;
        self.buckets.iter().position(fits).unwrap_or(self.buckets.len() - 1)
    }

    /// Records the programs of a bucket, unless that has happened.
    fn record(&mut self, number: usize) -> Result<()> {
        let Self { device, config, units, activations, buckets, rope, weights, .. } = self;
        let Bucket { scratch, programs, .. } = &mut buckets[number];
        if !programs.is_empty() {
            return Ok(());
        }
        let (units, activations) = (*units, *activations);
        let recording = Recording { device, config, weights, scratch, rope, units, activations, cuts: None };
        let layers = 0..config.layer_count();
        let recorders = layers.map(|layer| recording.program(layer, device.recorder()?));
        let recorders = recorders.collect::<Result<Vec<_>>>()?;
        let pipelines: Vec<_> = recorders.iter().flat_map(|recorder| recorder.pipelines()).collect();
        device.compile(&pipelines)?;
        *programs = recorders.into_iter().map(|recorder| Ok(recorder.seal()?)).collect::<Result<Vec<_>>>()?;
        Ok(())
    }

    /// The programs of a bucket's first layers, cut where the NPU multiplies.
    fn record_cuts(&self, number: usize, offload: &Offload, layers: u32) -> Result<CutPrograms> {
        let Self { device, config, units, activations, buckets, rope, weights, .. } = self;
        let (scratch, units, activations) = (&buckets[number].scratch, *units, *activations);
        offload.cuts(device).programs(layers, |cuts, layer, recorder| {
            let cuts = Some(cuts);
            let recording = Recording { device, config, weights, scratch, rope, units, activations, cuts };
            recording.program(layer, recorder)
        })
    }

    /// The same encoder with the code path of cooperative matrices on a device that has none: slow; for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn with_emulated_matrix_units(self) -> Result<Self> {
        // The programs must not outlive the weights that they read.
        let Self { device, config, weights, limits, buckets, .. } = self;
        drop(buckets);
        Self::new(&device, config, weights, MatrixUnits::Emulated, limits)
    }

    /// The format of its activations; for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn activations(&self) -> Activations {
        self.activations
    }
}

impl Rope {
    fn new(device: &Device, config: &EmbeddingConfig) -> Result<Self> {
        let mut rope = Self::default();
        let TextLayers::Decoder { config, .. } = &config.layers else { return Ok(rope) };
        for attention in config.attentions() {
            let tables = if attention.span.is_sliding() { &mut rope.sliding } else { &mut rope.full };
            if tables.is_none() {
                *tables = Some(rope_tables(device, config, &attention)?);
            }
        }
        Ok(rope)
    }
}

/// Whether a matrix belongs to the first layer.
fn is_of_first_layer(id: EmbeddingMatrix) -> bool {
    use EmbeddingMatrix::{AttentionOutput, Down, GateUp, Qkv, Up};
    matches!(id, Qkv(0) | AttentionOutput(0) | Up(0) | GateUp(0) | Down(0))
}
