//! The runner: advances sequences by writing a step's inputs, replaying its program and reading the sampled
//! tokens.

mod decode;
mod load;
mod mixed;
mod prefill;
mod prefix_disk;
mod profile;
mod verify;

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use checkpoint::Config;
use gpu::Pipeline;
use kernels::{matmul::gemv, sample::Features};

use crate::{
    Error, Image, ImageEncoder, Limits, Model, Result, Sampled, Sampling, SetupTime,
    attention_offload::AttentionOffload,
    bucket::{bucket, buckets},
    image::{image_blocks, is_image_token},
    kv_cache::KvCache,
    npu_operation::Interruption,
    pacer::{self, Estimator, Pacer, StepExtent},
    pages::{PageEventQueue, Sequence},
    programs::{Output, ProgramCache, ProgramKey, Sources},
    sampler::SamplerState,
    sampling::RowSampling,
    state::{Batch, HostArenas, Row, RowCounts, StepState, TIMEOUT},
    step,
};

pub use load::{EncoderLoadOptions, LoadOptions, VerifySteps};

/// Totals since a runner was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Steps, whether in a submission of their own or in a run.
    pub steps: u64,
    /// Bytes read back by the host.
    pub read_back: u64,
    /// Programs recorded.
    pub programs: u64,
}

/// Rows of the steps that measure a device's speed: the maximum that counts as few, and the next bucket.
const MEASURED_ROWS: [u32; 2] = [gemv::MAX_COLUMNS as u32, 2 * gemv::MAX_COLUMNS as u32];

/// Buckets of prefill chunks whose programs a first request may use, besides the largest: a chunk runs in the program of a
/// longer one until its own is recorded, which costs less than compiling for all lengths before the first request.
const FIRST_CHUNKS: [usize; 3] = [8, 64, 512];

/// Rows of logits at a time: 256 MiB with Gemma's vocabulary.
pub const MAX_OUTPUT_ROWS: u32 = 256;

/// The programs that a server uses all the time, by urgency.
#[derive(Default)]
struct ServingKeys {
    /// Those of a first request.
    first: Vec<ProgramKey>,
    others: Vec<ProgramKey>,
}

/// A model with the KV cache and the step state of its sequences.
pub struct Runner {
    model: Arc<Model>,
    cache: KvCache,
    state: StepState,
    sampler: SamplerState,
    programs: ProgramCache,
    encoder: Option<ImageEncoder>,
    /// `None` unless attention may run on the NPU.
    attention: Option<AttentionOffload>,
    /// Pipelines compiled before the first programs are recorded: kept until then.
    compiled_ahead: Vec<Pipeline>,
    /// Whether a prefill step may run in the program of a larger bucket because its own is not recorded yet.
    substitutes: bool,
    /// Whether the programs of verify steps are recorded ahead of their use.
    verifies: bool,
    /// Whether verify steps have the kernels of a single row.
    exact_verify: bool,
    pacer: Pacer,
    step_timeout: Duration,
    steps: u64,
    read_back: u64,
}

impl Runner {
    /// Allocates the KV cache and the state of a step.
    pub fn new(model: Arc<Model>, limits: Limits) -> Result<Self> {
        let cache = KvCache::new(&model.device, &model.config, limits)?;
        let mut arenas = HostArenas::new(&model.device);
        let state = StepState::new(&mut arenas, limits.max_rows(), model.attention_variants().len())?;
        let sampler = SamplerState::new(&model.device, &mut arenas, model.config.vocab, limits)?;
        let estimator = Estimator::new(&model.config, limits.kv_scheme, &model.matrix_sizes());
        Ok(Self {
            model,
            cache,
            state,
            sampler,
            programs: ProgramCache::default(),
            encoder: None,
            attention: None,
            compiled_ahead: vec![],
            substitutes: false,
            verifies: false,
            exact_verify: false,
            pacer: Pacer::new(estimator),
            step_timeout: TIMEOUT,
            steps: 0,
            read_back: 0,
        })
    }

    /// Submits every layer by itself, as on a device where a step takes very long: for tests, and to find the
    /// layer in which a GPU hangs.
    #[cfg(any(test, feature = "testing"))]
    pub fn layer_by_layer(mut self) -> Self {
        self.programs.clear();
        self.pacer.set_layer_by_layer();
        self
    }

    /// Sets the maximum seconds of a segment and the slowdown that is assumed until steps are measured: for
    /// tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn set_segments(&mut self, seconds: f64, slowdown: Option<f64>) {
        self.pacer.set_segments(seconds, slowdown);
    }

    /// Puts the changes of the prefix cache into a queue, for programs that route requests by what is cached.
    pub fn with_page_events(mut self, queue: PageEventQueue) -> Self {
        self.cache.send_events(queue);
        self
    }

    /// Sets the timeout of a step. A device that does not finish within it counts as lost.
    pub fn with_step_timeout(mut self, timeout: Duration) -> Self {
        self.step_timeout = timeout;
        if let Some(encoder) = &mut self.encoder {
            encoder.set_timeout(timeout);
        }
        self
    }

    /// Checks that the device still accepts and finishes work: runs an empty submission, with a step's
    /// timeout.
    pub fn probe(&self) -> Result<()> {
        Ok(self.model.device.recorder()?.seal()?.run(self.step_timeout)?)
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The KV cache.
    pub fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// Totals since the runner was created.
    pub fn counters(&self) -> Counters {
        Counters { steps: self.steps, read_back: self.read_back, programs: self.programs.recorded() }
    }

    /// Time spent on recording programs so far.
    pub fn setup_time(&self) -> SetupTime {
        self.programs.setup_time()
    }

    /// Maximum sequences of a step.
    pub fn max_sequences(&self) -> u32 {
        self.sampler.max_sequences()
    }

    /// Starts an empty sequence that takes no part in the prefix cache.
    pub fn start(&self) -> Result<Sequence> {
        self.cache.start()
    }

    /// Starts a sequence for these tokens, with as many of them as the prefix cache holds: at most all but
    /// the last. The rest is left to prefill. Later sequences share what this one computes.
    pub fn start_with(&self, tokens: &[u32]) -> Result<Sequence> {
        self.cache.start_with(tokens)
    }

    /// Shortens a sequence to `len` tokens, where that is possible; see
    /// [`crate::pages::PageAllocator::truncate`].
    pub fn truncate(&self, sequence: &mut Sequence, len: u32) -> bool {
        self.cache.truncate(sequence, len)
    }

    /// Checks that these tokens can be appended to this sequence: in the vocabulary, and within the context
    /// length.
    pub fn check(&self, sequence: &Sequence, tokens: &[u32]) -> Result<()> {
        check_tokens(&self.model.config, sequence.len(), tokens, self.cache.limits().context_length)
    }

    /// Records the programs for a prompt of this many tokens and the decoding after it, so that timing them
    /// does not include recording. Exception: a program that the first large step shows to have too many
    /// segments is recorded again.
    pub fn prepare(&mut self, tokens: usize, sampling: &Sampling) -> Result<()> {
        let chunk = self.pacer.chunk_rows(0, self.cache.limits().prefill_chunk as usize);
        let features = sampling.features(self.model.config.vocab);
        let counting = Features { counts: features.counts, ..Features::default() };
        let (full, last) = (tokens.saturating_sub(1) / chunk, (tokens.max(1) - 1) % chunk + 1);
        let mut keys = vec![
            self.program_key(RowCounts::new(0, last), Output::Sample { rows: 1 }, features),
            self.program_key(RowCounts::new(1, 0), Output::Sample { rows: 1 }, features),
        ];
        if full > 0 {
            keys.push(self.program_key(RowCounts::new(0, chunk), Output::None, counting));
        }
        self.prepare_programs(&keys)
    }

    /// Records the programs of a first request, whatever its length: prefill chunks alone with the last of these
    /// samplings, which should be the usual one, and decoding a single sequence. [`Runner::record_ahead`] records the
    /// others that a server uses all the time; until then, chunks of other lengths run in the programs of longer ones.
    pub fn prepare_first_requests(&mut self, samplings: &[Sampling]) -> Result<()> {
        let ServingKeys { first, others } = self.serving_keys(samplings);
        self.measure_slowdown(&[&first[..], &others[..]].concat())?;
        self.prepare_programs(&first)?;
        self.compiled_ahead.clear();
        self.substitutes = true;
        Ok(())
    }

    /// Compiles the pipelines that [`Runner::prepare_first_requests`] needs. Runs nothing, so that weights need not
    /// have been read.
    fn compile_first_requests(&mut self, samplings: &[Sampling], cancel: &AtomicBool) -> Result<()> {
        let keys = self.first_keys(samplings);
        let (programs, mut sources) = self.programs_and_sources();
        self.compiled_ahead = programs.compile(&mut sources, &keys, cancel)?;
        Ok(())
    }

    /// The programs of first requests, and those that measure this device's speed before them.
    fn first_keys(&self, samplings: &[Sampling]) -> Vec<ProgramKey> {
        let measured = self.measured_rows().map(|rows| RowCounts::new(0, rows as usize));
        let measured = measured.map(|counts| self.program_key(counts, Output::None, Features::default()));
        measured.into_iter().chain(self.serving_keys(samplings).first).collect()
    }

    /// Allocates the buffers of the programs of first requests. Clears them on the GPU, which is slow beside other work.
    fn allocate_first_requests(&mut self, samplings: &[Sampling]) -> Result<()> {
        let keys = self.first_keys(samplings);
        let (programs, mut sources) = self.programs_and_sources();
        keys.iter().try_for_each(|key| programs.allocate(&mut sources, *key))
    }

    /// Rows of the steps that measure this device's speed.
    fn measured_rows(&self) -> [u32; 2] {
        let limits = self.cache.limits();
        MEASURED_ROWS.map(|rows| rows.min(limits.prefill_chunk).min(limits.context_length))
    }

    /// Records the programs that a server uses all the time: decode batches of any size, verify steps of one sequence where
    /// drafts are verified, prefill chunks of any length, alone and beside one decode row, and the longest chunks beside more decode rows. All others are recorded when
    /// first used.
    pub fn prepare_serving(&mut self, samplings: &[Sampling]) -> Result<()> {
        self.prepare_first_requests(samplings)?;
        let others = self.serving_keys(samplings).others;
        self.prepare_programs(&others)?;
        self.substitutes = false;
        Ok(())
    }

    /// Records the next of these programs that is missing, between two steps. Returns the pipelines to compile, which
    /// takes longer and needs no runner, before [`Runner::seal_ahead`]; `None` if no program is missing.
    pub fn record_ahead(&mut self, samplings: &[Sampling]) -> Result<Option<Vec<Pipeline>>> {
        let ServingKeys { first, others } = self.serving_keys(samplings);
        let (programs, mut sources) = self.programs_and_sources();
        let recorded = programs.record_ahead(&mut sources, &[first, others].concat())?;
        self.substitutes &= recorded.is_some();
        Ok(recorded)
    }

    /// Records from now on what a step needs, instead of running it in the program of a longer chunk: no further programs
    /// will be recorded ahead.
    pub fn stop_substituting(&mut self) {
        self.substitutes = false;
    }

    /// Completes the program of [`Runner::record_ahead`].
    pub fn seal_ahead(&mut self) -> Result<()> {
        self.programs.seal_ahead(&self.pacer)
    }

    fn serving_keys(&self, samplings: &[Sampling]) -> ServingKeys {
        let limits = self.cache.limits();
        let (max_sequences, max_chunk) = (self.max_sequences() as usize, limits.prefill_chunk as usize);
        let mut keys = ServingKeys::default();
        let nothing = self.program_key(RowCounts::new(0, max_chunk), Output::None, Features::default());
        keys.first.push(nothing);
        for (index, sampling) in samplings.iter().enumerate() {
            let usual = index + 1 == samplings.len();
            let features = sampling.features(self.model.config.vocab);
            let key = |decode: usize, prefill: usize, outputs: usize| {
                self.program_key(RowCounts::new(decode, prefill), Output::Sample { rows: outputs }, features)
            };
            keys.first.push(key(1, 0, 1));
            let last = bucket(max_chunk);
            for rows in buckets(max_chunk) {
                let first = usual && (FIRST_CHUNKS.contains(&rows) || rows == last);
                let chunks = if first { &mut keys.first } else { &mut keys.others };
                chunks.push(key(0, rows, 1));
            }
            keys.others.extend(buckets(max_sequences).skip(1).map(|rows| key(rows, 0, rows)));
            if self.verifies {
                let exact = self.exact_verify;
                let verify = |rows: usize| match exact {
                    true => ProgramKey::exact_verify(rows, features),
                    false => key(0, rows, rows),
                };
                keys.others.extend(buckets(self.max_verify_rows()).skip(1).map(verify));
            }
            if limits.max_sequences > 1 {
                for rows in buckets(max_chunk).filter(|rows| *rows > 2) {
                    keys.others.extend([1, 2].map(|outputs| key(1, rows - 1, outputs)));
                }
            }
            // Many decode rows beside a chunk have kernels of their own. Some take half a second to compile.
            let decode_rows = buckets(max_sequences).map(|rows| rows.min(max_sequences - 1));
            for decode in decode_rows.filter(|rows| *rows > 1) {
                keys.others.push(key(decode, self.max_prefill_rows(decode), bucket(decode + 1)));
            }
        }
        keys
    }

    /// Runs a few rows for measurement only, where the device's speed matters before these programs are
    /// recorded: on a slow device large steps are cut into many segments.
    fn measure_slowdown(&mut self, keys: &[ProgramKey]) -> Result<()> {
        for rows in self.measured_rows() {
            let many = pacer::is_many(rows as usize);
            let mut similar = keys.iter().filter(|key| pacer::is_many(key.bucket) == many);
            if self.pacer.is_measured(rows as usize)
                || similar.all(|key| self.segment_count(*key) <= pacer::FEW_SEGMENTS)
            {
                continue;
            }
            // Once for the device to leave its idle clocks, and once to measure.
            for _ in 0..2 {
                let mut sequence = self.start()?;
                let rows = self.extend(&mut sequence, &vec![0; rows as usize])?;
                self.prefill_step(&rows, Output::None, &[], &[])?;
            }
        }
        Ok(())
    }

    /// Starts the token counts of a sequence at the first step with penalties, with its cached prefix if that
    /// is its first step; anything earlier is counted by [`Runner::reset_token_counts`].
    fn start_counting(&mut self, sequence: &mut Sequence, sampling: &Sampling) -> Result<()> {
        if sampling.features(self.model.config.vocab).counts && !sequence.counted {
            let first_step = sequence.len() as usize == sequence.cached_prefix().len();
            let prompt = if first_step { sequence.cached_prefix().to_vec() } else { vec![] };
            self.reset_token_counts(sequence, &prompt, &[])?;
        }
        Ok(())
    }

    /// Sets the token counts of a sequence, which penalties use, to those of a prompt and of the tokens
    /// generated after it: for a sequence that was truncated or prefilled again, or whose steps had no
    /// penalties so far.
    pub fn reset_token_counts(
        &mut self,
        sequence: &mut Sequence,
        prompt: &[u32],
        generated: &[u32],
    ) -> Result<()> {
        self.sampler.reset_counts(&mut self.state, sequence.slot(), prompt, generated)?;
        sequence.counted = true;
        Ok(())
    }

    /// Records the programs that are missing or stale.
    fn prepare_programs(&mut self, keys: &[ProgramKey]) -> Result<()> {
        let (programs, mut sources) = self.programs_and_sources();
        programs.prepare(&mut sources, keys)
    }

    pub(crate) fn programs(&self) -> &ProgramCache {
        &self.programs
    }

    fn programs_and_sources(&mut self) -> (&mut ProgramCache, Sources<'_>) {
        let Self { model, cache, state, sampler, programs, pacer, encoder, .. } = self;
        let soft_tokens = encoder.as_ref().map(ImageEncoder::soft_tokens);
        (programs, Sources { model, cache, state, sampler, pacer, soft_tokens })
    }

    fn segment_count(&self, key: ProgramKey) -> usize {
        self.programs.segment_count(&self.pacer, key, self.cache.limits().context_length)
    }

    /// One step: prepares its program, writes its inputs, runs it and records its time.
    fn step(
        &mut self,
        key: ProgramKey,
        counts: RowCounts,
        rows: &[Row],
        output_rows: &[u32],
        samplings: &[RowSampling<'_>],
    ) -> Result<()> {
        let key = if self.substitutes { self.programs.substitute(key) } else { key };
        self.prepare_programs(&[key])?;
        self.write_inputs(rows, counts, 1, key.output, output_rows, samplings)?;
        if self.attend_on_npu(key, rows)? {
            self.steps += 1;
            return Ok(());
        }
        let extent = StepExtent::new(rows, counts, key.output.rows());
        let elapsed = self.run(key, &extent, 1)?;
        self.record_steps(key, &extent, 1, elapsed);
        Ok(())
    }

    /// Runs a step whose inputs have been written with its attention on the NPU. False if that is not used, or the step did
    /// not end there: the GPU has to run all of it.
    fn attend_on_npu(&mut self, key: ProgramKey, rows: &[Row]) -> Result<bool> {
        let max_verify_rows = self.model.max_verify_rows();
        let takes = |attention: &&mut AttentionOffload| {
            key.batch == Batch::Prefill && attention.takes(rows, max_verify_rows)
        };
        let Self { model, cache, state, sampler, programs, pacer, encoder, attention, step_timeout, .. } =
            self;
        let Some(attention) = attention.as_mut().filter(takes) else { return Ok(false) };
        let mut run = || -> Result<(), Interruption> {
            if !attention.has(key) {
                let soft_tokens = encoder.as_ref().map(ImageEncoder::soft_tokens);
                let mut sources = Sources { model, cache, state, sampler, pacer, soft_tokens };
                let cuts = attention.cuts(&model.device, &model.config, key.bucket)?;
                let last = programs.record_cut(&mut sources, key, &cuts)?;
                let step = cuts.seal(last)?;
                attention.add(key, step);
            }
            attention.run(key, rows, cache, &model.device, *step_timeout)
        };
        match run() {
            Ok(()) => Ok(true),
            Err(interruption) => attention.fall_back(interruption).map(|()| false),
        }
    }

    fn run(&self, key: ProgramKey, extent: &StepExtent, steps: usize) -> Result<Duration> {
        self.programs.run(&self.model.device, &self.pacer, key, extent, steps, self.step_timeout)
    }

    fn record_steps(&mut self, key: ProgramKey, extent: &StepExtent, steps: usize, elapsed: Duration) {
        self.pacer.record_steps(key.bucket, extent, steps, elapsed);
        self.steps += steps as u64;
    }

    /// Writes everything that changes from step to step.
    fn write_inputs(
        &mut self,
        rows: &[Row],
        counts: RowCounts,
        steps: u32,
        output: Output,
        output_rows: &[u32],
        samplings: &[RowSampling<'_>],
    ) -> Result<()> {
        let last = rows[..counts.decode].iter().map(|row| row.position + steps - 1).max();
        let decode_bucket = counts.decode_bucket(self.model.few_prefill_rows());
        if let (true, Some(last)) = (self.model.attends_in_one_dispatch(decode_bucket), last) {
            let (model, limits) = (&self.model, self.cache.limits());
            for (variant, attention) in model.attention_variants().iter().enumerate() {
                let workgroups = step::attention_workgroups(model, limits, attention, decode_bucket, last);
                self.state.write_attention_workgroups(variant, workgroups)?;
            }
        }
        self.state.write_rows(rows, counts)?;
        self.state.write_output_rows(output_rows)?;
        self.sampler.write(samplings, output.samples())
    }

    /// The key of the program of a step of these rows.
    fn program_key(&self, counts: RowCounts, output: Output, features: Features) -> ProgramKey {
        ProgramKey::new(counts, self.model.few_prefill_rows(), output, features)
    }

    /// The program that a step needs.
    fn key(&self, counts: RowCounts, output: Output, samplings: &[RowSampling<'_>]) -> ProgramKey {
        let vocab = self.model.config.vocab;
        let features = samplings.iter().fold(Features::default(), |all, row| all | row.features(vocab));
        // A step that samples nothing still counts the tokens of a prompt.
        let features = match output {
            Output::Sample { .. } => features,
            _ => Features { counts: features.counts, ..Features::default() },
        };
        self.program_key(counts, output, features)
    }

    /// The tokens that a step of the last run sampled for its rows.
    fn read_sampled(&mut self, step: usize, rows: &[Row]) -> Result<Vec<Sampled>> {
        let sampled = self.read_rows(step, rows)?;
        match sampled.iter().position(Option::is_none) {
            Some(row) => Err(self.non_finite(&rows[row])),
            None => Ok(sampled.into_iter().flatten().collect()),
        }
    }

    /// The same, with `None` for rows whose logits are not finite.
    fn read_rows(&mut self, step: usize, rows: &[Row]) -> Result<Vec<Option<Sampled>>> {
        let (sampled, bytes) = self.sampler.read(step, rows.len())?;
        self.read_back += bytes;
        Ok(sampled)
    }

    /// The error of a row whose logits are not finite.
    fn non_finite(&mut self, row: &Row) -> Error {
        self.clear_caches();
        Error::NonFiniteLogits { position: row.position }
    }

    /// Forgets what earlier steps computed, after logits that are not finite: keys and values in the prefix cache may be
    /// wrong too, and so may soft tokens; it is unknown since when.
    fn clear_caches(&mut self) {
        self.cache.clear_prefix_cache();
        if let Some(encoder) = &mut self.encoder {
            encoder.clear();
        }
    }

    /// Allocates pages for tokens and returns their rows. Images must have been encoded.
    fn extend(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Result<Vec<Row>> {
        let first = sequence.len();
        let text = |(position, token): (u32, &u32)| Row::text(*token, position, sequence.slot());
        let mut rows: Vec<Row> = (first..).zip(tokens).map(text).collect();
        for block in image_blocks(tokens) {
            let encoder = self.encoder.as_ref().ok_or(Error::NoImageEncoder)?;
            let soft_tokens = encoder.soft_tokens().rows_of(&tokens[block.clone()])?;
            let last_visible = first + block.end as u32 - 1;
            for (row, token) in rows[block].iter_mut().zip(soft_tokens) {
                *row = Row { token, last_visible, ..*row };
            }
        }
        self.cache.extend(sequence, tokens.len() as u32)?;
        Ok(rows)
    }

    /// Encodes those of the images whose soft tokens are not cached, for about as long as `budget`. Returns whether all are
    /// cached; if not, the next call continues. Images must be cached when their chunk is prefilled.
    pub fn encode(&mut self, images: &[Image], budget: Duration) -> Result<bool> {
        match &mut self.encoder {
            _ if images.is_empty() => Ok(true),
            Some(encoder) => encoder.encode(images, budget),
            None => Err(Error::NoImageEncoder),
        }
    }

    /// The image encoder, where the model has one.
    pub fn encoder(&self) -> Option<&ImageEncoder> {
        self.encoder.as_ref()
    }

    pub(crate) fn encoder_mut(&mut self) -> Option<&mut ImageEncoder> {
        self.encoder.as_mut()
    }

    /// Adds an image encoder. Earlier programs are discarded: they know no soft tokens.
    pub(crate) fn with_encoder(mut self, encoder: ImageEncoder) -> Self {
        self.programs = ProgramCache::default();
        self.encoder = Some(encoder);
        self
    }

    /// Attention of prefill chunks runs on the NPU from now on, if its tests allow that and logits need not be
    /// reproducible. `model` is its name in reports.
    pub fn use_npu_for_attention(&mut self, settings: &npu::settings::Settings, model: &str) {
        let (scheme, reproducible) = (self.cache.limits().kv_scheme, self.model.is_reproducible());
        self.attention = Some(AttentionOffload::start(settings, model, scheme, reproducible));
    }

    /// The image encoder, if there is one, computes products on the NPU from now on, if the settings, its tests and its
    /// speed allow that. `model` is its name in reports. The weights must have been filled.
    pub fn use_npu_for_images(&mut self, settings: &npu::settings::Settings, model: &str) -> Result<()> {
        match &mut self.encoder {
            Some(encoder) => encoder.use_npu(settings, model),
            None => Ok(()),
        }
    }

    /// The same runner whose image encoder has emulated matrix units; for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn with_emulated_encoder(mut self) -> Result<Self> {
        let encoder = self.encoder.take().ok_or(Error::NoImageEncoder)?;
        Ok(self.with_encoder(encoder.with_emulated_matrix_units()?))
    }

    /// Checks that a row's token mask, if it has one, covers the vocabulary.
    fn check_mask(&self, mask: Option<&[u32]>) -> Result<()> {
        let words = self.model.config.vocab.div_ceil(32) as usize;
        match mask {
            Some(mask) if mask.len() != words => Err(Error::Limits(format!(
                "the token mask has {} words; this model's vocabulary takes {words}",
                mask.len()
            ))),
            _ => Ok(()),
        }
    }
}

/// Checks that tokens can follow `held` tokens: in the vocabulary or of an image, and within the context length.
pub fn check_tokens(config: &Config, held: u32, tokens: &[u32], context_length: u32) -> Result<()> {
    let vocab = config.vocab;
    if tokens.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    if let Some(token) = tokens.iter().find(|token| **token >= vocab && !is_image_token(**token)) {
        return Err(Error::UnknownToken { token: *token, vocab });
    }
    let total = u64::from(held) + tokens.len() as u64;
    if total > u64::from(context_length) {
        return Err(Error::ContextLengthExceeded {
            tokens: total,
            context_length,
            max_context_length: config.max_positions,
        });
    }
    Ok(())
}
