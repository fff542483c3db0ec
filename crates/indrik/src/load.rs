//! Loads an opened checkpoint into device memory.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use checkpoint::Vision;
use engine::{GpuBackend, Runners};
use gpu::{AdapterInfo, Device, Tier};
use kernels::matmul::tuning::{BUDGET, Turn};
use model::{
    EncoderLimits, EncoderLoadOptions, Fingerprint, KvScheme, Limits, LoadOptions, PrefixDisk, Runner,
    TuneMode, TuningReport, VerifySteps, pages::PageEventQueue,
};
use weights::{
    blueprint::Blueprint,
    plan::{self, Memory},
    stream,
    stream::Control,
    vision::VisionBlueprint,
};

use crate::{
    DeviceSelector, Error, Model, ModelFiles, NpuMode, NpuSettings, Result,
    draft::DraftDemand,
    files,
    memory::{device_memory, npu_memory},
};

/// Interval of reports while weights are read and while pipelines are compiled.
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);

/// Delays between attempts to reopen a lost device: a driver takes a moment to reset a GPU.
const RELOAD_DELAYS: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(5)];

/// Default step timeout. Mesa's CPU driver can take minutes per step on a busy machine; no GPU takes this
/// long.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(300);

/// How a model is loaded and run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Device, by index or part of its name; the fastest one if `None`.
    pub device: Option<String>,
    /// Maximum number of concurrent sequences (batch size).
    pub max_sequences: u32,
    /// Context length per sequence in tokens; [`ModelFiles::default_context_length`] if `None`.
    pub context_length: Option<u32>,
    /// Total KV cache capacity in tokens; enough for `max_sequences` full contexts if `None`.
    pub kv_cache_tokens: Option<u32>,
    /// Keep the KV pages of finished sequences for later prompts that start with the same tokens.
    pub prefix_cache: bool,
    /// Store those pages on disk too, for later prompts after a restart or when the model was unloaded.
    pub prefix_disk: Option<PrefixDisk>,
    /// Receives the changes of the prefix cache.
    pub page_events: Option<PageEventQueue>,
    /// Prefill chunk size in tokens; chosen for the device if `None`.
    pub prefill_chunk: Option<u32>,
    /// Storage format of keys and values; f16 if `None`, or f32 with `all_logits`.
    pub kv_scheme: Option<KvScheme>,
    /// Batch-invariant (bitwise reproducible) logits; slower at batch 1.
    pub reproducible: bool,
    /// Speculative decoding.
    pub speculate: Speculate,
    /// Draft model for speculative decoding, by path or by its name in the local store, with the vocabulary of this model.
    pub draft: Option<String>,
    /// Load the image encoder, if the model has one.
    pub images: bool,
    /// Plan memory for the logits of every prompt token, as [`Model::logits`] computes them.
    pub all_logits: bool,
    /// Time after which a step is considered hung and the device lost.
    pub step_timeout: Duration,
    /// Maximum number of requests waiting for a free sequence.
    pub queue_capacity: usize,
    /// Be ready for requests early, as a server: the pipelines of [`Model::prepare_first_requests`] are compiled while
    /// the weights are read, and [`Model::prepare_ahead`] does the autotuning.
    pub serving: bool,
    /// Whether AMD's NPU computes matrix products of the image encoder and of attention; off by default.
    pub npu: NpuSettings,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            device: None,
            max_sequences: 1,
            context_length: None,
            kv_cache_tokens: None,
            prefix_cache: true,
            prefix_disk: None,
            page_events: None,
            prefill_chunk: None,
            kv_scheme: None,
            reproducible: false,
            speculate: Speculate::default(),
            draft: None,
            images: true,
            all_logits: false,
            step_timeout: STEP_TIMEOUT,
            queue_capacity: engine::Options::default().queue_capacity,
            serving: false,
            npu: NpuSettings::off(),
        }
    }
}

/// Speculative decoding: whether tokens are drafted, and verified several at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculate {
    /// Where it is expected to be faster and the tokens are bit for bit those without drafts. That is the case with
    /// [`Options::reproducible`], on CPU drivers, and on GPUs while a single sequence decodes: verify steps then have the
    /// kernels of a step of one row. Models with experts, and GPUs without packed dot products, have no such kernels: there
    /// drafts come only from a draft model, and then like [`Speculate::Fastest`].
    #[default]
    Auto,
    /// Never.
    Off,
    /// Where it is expected to be faster, with the fastest kernels for each number of rows. A GPU's kernels for one row and
    /// for several round differently, so a token may differ from the one without drafts where two are nearly equally
    /// probable.
    Fastest,
}

/// Progress of a load.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum LoadProgress<'a> {
    /// Weights are being read into device memory. Reported every 50 ms.
    Weights {
        /// Bytes read so far.
        bytes: u64,
        /// Bytes to read.
        total_bytes: u64,
        /// Average rate so far.
        bytes_per_second: f64,
    },
    /// Matrix products that this device has not run before are being timed. Happens once per device and
    /// model.
    Tuning {
        /// Number of products to time.
        products: usize,
    },
    /// Tuning is done.
    Tuned {
        /// Number of products that were timed.
        products: usize,
        /// The result.
        tuned: &'a TuningReport,
    },
    /// Pipelines are being compiled, or loaded from the pipeline cache. Reported every 50 ms.
    Compiling {
        /// Pipelines done.
        done: u64,
        /// Pipelines to compile.
        total: u64,
    },
    /// Tuning failed; the model runs with the default kernels.
    TuningFailed {
        /// Why.
        error: &'a gpu::Error,
    },
}

/// Progress reports and cancellation of a load.
#[derive(Clone)]
pub struct LoadHooks<'a> {
    /// Called from the loading thread and from a second thread.
    pub progress: &'a (dyn Fn(LoadProgress<'_>) + Sync),
    /// Cancels the load when its flag is set.
    pub control: Arc<Control>,
    /// Cancels reloading after the device was lost.
    pub reload_control: Arc<Control>,
}

impl Default for LoadHooks<'_> {
    fn default() -> Self {
        Self { progress: &|_| (), control: Arc::default(), reload_control: Arc::default() }
    }
}

/// Results of a load.
#[derive(Clone, Debug)]
pub struct LoadReport {
    /// The device.
    pub device: AdapterInfo,
    /// Kernel tier in use.
    pub tier: Option<Tier>,
    /// Load time: from opening the device until all weights are in its memory.
    pub seconds: f64,
    /// Result of autotuning; empty if [`Model::prepare_ahead`] does it.
    pub tuned: TuningReport,
    /// The memory plan, per heap.
    pub heaps: Vec<plan::HeapUsage>,
    /// Storage format of the KV cache.
    pub kv_scheme: KvScheme,
}

/// Loads the model and hands its runner to a backend that can reload it.
pub(crate) fn load_model(files: ModelFiles, options: Options, hooks: LoadHooks<'_>) -> Result<Model> {
    let draft = open_draft(&files, &options)?;
    let (runners, report) = load(&files, draft.as_ref(), &options, &hooks.control, hooks.progress)?;
    let reload = {
        let (files, options, control) = (files.clone(), options.clone(), hooks.reload_control.clone());
        move || reload(&files, draft.as_ref(), &options, &control)
    };
    Ok(Model::new(files, options, report, GpuBackend::with_runners(runners, reload)))
}

/// The draft model, if there is one to load.
fn open_draft(files: &ModelFiles, options: &Options) -> Result<Option<ModelFiles>> {
    let draft = options.draft.as_deref().filter(|_| options.speculate != Speculate::Off);
    if options.draft.is_some() && draft.is_none() {
        tracing::warn!("the draft model is not loaded, since speculative decoding is off");
    }
    draft.map(|draft| files.open_draft(draft)).transpose()
}

/// Opens the device, plans its memory, reads the weights, tunes, and makes runners.
fn load(
    files: &ModelFiles,
    draft: Option<&ModelFiles>,
    options: &Options,
    control: &Control,
    progress: &(dyn Fn(LoadProgress<'_>) + Sync),
) -> Result<(Runners, LoadReport)> {
    let start = Instant::now();
    let selector = DeviceSelector { name: options.device.as_deref(), ..DeviceSelector::default() };
    // The instance must outlive every use of the device in this function.
    let (_instance, device) = selector.open()?;
    let limits = limits(files, options, device.info())?;
    let vision = if options.images { files.vision() } else { None };
    let draft = draft.map(|draft| DraftDemand::new(draft, options, &limits, device.info())).transpose()?;
    // Before anything is loaded: what is available shrinks meanwhile.
    let memory = device_memory(device.info());
    let draft_bytes = draft.as_ref().map_or(0, |draft| draft.reserved_bytes(&memory));
    if let Some(draft) = &draft {
        let demand = |draft_bytes| {
            let source = LoadSource { files, vision: vision.as_ref(), draft_bytes };
            Ok::<_, Error>(LoadDemand::new(source, options, limits, device.info())?.demand)
        };
        draft.check_fits(&memory, &demand(0)?, &demand(draft_bytes)?)?;
    }
    let load = |vision| {
        let source = LoadSource { files, vision, draft_bytes };
        load_runner(&device, &memory, source, options, limits, control, progress)
    };
    let (runner, heaps) = match load(vision.as_ref()) {
        // A language model is worth more than none. Errors of its own occur again.
        Err(error) if vision.is_some() && !control.cancel.load(Ordering::Relaxed) => {
            let loaded = load(None)?;
            match error {
                Error::Memory(error) => {
                    tracing::warn!("images are off, since the image encoder does not fit: {error}");
                }
                error => tracing::warn!("images are off, since the image encoder cannot be used: {error}"),
            }
            loaded
        }
        loaded => loaded?,
    };
    let draft = draft.map(|draft| draft.load(&device, &memory, &heaps, options, control)).transpose()?;
    let seconds = start.elapsed().as_secs_f64();
    let tuned = match options.serving {
        true => TuningReport::default(),
        false => {
            if let Some(draft) = &draft {
                tune(draft.runner().model(), progress)?;
            }
            tune(runner.model(), progress)?
        }
    };
    let mut runner = with_prefix_disk(runner.with_step_timeout(options.step_timeout), files, options);
    let (name, ..) = files::served_names(files.path(), None);
    if options.npu.mode() != NpuMode::Off {
        use_npu(&mut runner, options, &name);
    }
    let runner = match &options.page_events {
        Some(queue) => runner.with_page_events(queue.clone()),
        None => runner,
    };
    let runners = Runners { target: runner, draft };
    let (info, tier) = (device.info().clone(), device.caps().tier());
    let report = LoadReport { device: info, tier, seconds, tuned, heaps, kv_scheme: limits.kv_scheme };
    Ok((runners, report))
}

/// Lets the NPU compute what the options name. A model is worth more than the NPU: without it, the GPU computes all.
fn use_npu(runner: &mut Runner, options: &Options, name: &str) {
    let settings = options.npu.clone().with_available_memory(npu_memory);
    if let Err(error) = runner.use_npu_for_images(&settings, name) {
        tracing::warn!("the image encoder does not use the NPU: {error}");
    }
    if options.npu.attention() {
        runner.use_npu_for_attention(&settings, name);
    }
}

/// The runner with the prefix cache on disk, if there is one.
fn with_prefix_disk(runner: Runner, files: &ModelFiles, options: &Options) -> Runner {
    let Some(disk) = &options.prefix_disk else { return runner };
    let (model, limits) = (runner.model(), runner.cache().limits());
    match Fingerprint::of_files(&files.checkpoint().source.files, model, &limits) {
        Ok(fingerprint) => runner.with_prefix_disk(disk.clone(), fingerprint),
        Err(error) => {
            tracing::warn!(
                "the prefix cache on disk is off for {}, whose files cannot be read: {error}",
                files.path().display()
            );
            runner
        }
    }
}

/// The runner's limits on this device.
fn limits(files: &ModelFiles, options: &Options, device: &AdapterInfo) -> Result<Limits> {
    let context = match options.context_length {
        Some(context) => files.check_context_length(context as usize)?,
        None => files.default_context_length(),
    };
    let mut limits = Limits::new(device, files.config(), options.max_sequences, context);
    limits.max_pages = options.kv_cache_tokens.map(|tokens| tokens.div_ceil(limits.page_size));
    limits = if options.reproducible { limits.reproducible() } else { limits };
    limits.prefill_chunk = options.prefill_chunk.unwrap_or(limits.prefill_chunk);
    limits.prefix_cache = options.prefix_cache;
    limits.kv_scheme = match (options.kv_scheme, options.all_logits) {
        (Some(kv), _) => kv,
        (None, false) => KvScheme::F16,
        (None, true) => KvScheme::F32,
    };
    Ok(limits)
}

/// The files that a model is loaded from.
#[derive(Clone, Copy)]
struct LoadSource<'a> {
    files: &'a ModelFiles,
    /// The image encoder, if it is to be loaded.
    vision: Option<&'a Vision>,
    /// Memory to leave for the draft model.
    draft_bytes: u64,
}

/// Bytes of device memory that a model takes.
pub(crate) fn memory_bytes(files: &ModelFiles, options: &Options, device: &AdapterInfo) -> Result<u64> {
    let vision = if options.images { files.vision() } else { None };
    let limits = limits(files, options, device)?;
    let draft = open_draft(files, options)?;
    let draft = draft.as_ref().map(|draft| DraftDemand::new(draft, options, &limits, device)).transpose()?;
    let draft_bytes = draft.map_or(0, |draft| draft.bytes());
    let source = LoadSource { files, vision: vision.as_ref(), draft_bytes };
    Ok(LoadDemand::new(source, options, limits, device)?.demand.total_bytes())
}

/// What a model needs.
struct LoadDemand {
    demand: plan::Demand,
    limits: Limits,
    /// Of the image encoder, if it is loaded.
    encoder_limits: Option<EncoderLimits>,
    /// Bytes to read.
    file_bytes: u64,
}

impl LoadDemand {
    fn new(
        source: LoadSource<'_>,
        options: &Options,
        limits: Limits,
        device: &AdapterInfo,
    ) -> Result<LoadDemand> {
        let LoadSource { files, vision, draft_bytes } = source;
        let limits = vision.map_or(limits, |vision| limits.with_images(vision.config.max_soft_tokens()));
        let output_rows = match options.all_logits {
            true => limits.prefill_chunk.min(model::MAX_OUTPUT_ROWS),
            false => options.max_sequences,
        };
        let verify_rows = match options.speculate {
            Speculate::Off => 0,
            _ => limits.prefill_chunk.min(model::max_verify_rows(&device.caps) as u32),
        };
        let output_rows = output_rows.max(verify_rows);
        let checkpoint = files.checkpoint();
        let blueprint = Blueprint::new(checkpoint)?;
        let mut demand =
            blueprint.demand(&checkpoint.config, &limits.reservation(&checkpoint.config, output_rows));
        // Reserved in the target's plan, so that its weights leave room.
        demand.scratch_bytes += draft_bytes;
        let mut file_bytes = blueprint.file_bytes();
        let encoder_limits = vision
            .map(|vision| EncoderLimits::new(&vision.config, device.local_memory(), limits.prefill_chunk));
        if let (Some(vision), Some(limits)) = (vision, encoder_limits) {
            let blueprint = VisionBlueprint::new(vision)?;
            demand.add_weight(blueprint.demand());
            demand.scratch_bytes += limits.scratch_bytes(&vision.config);
            file_bytes += blueprint.file_bytes();
        }
        Ok(LoadDemand { demand, limits, encoder_limits, file_bytes })
    }
}

/// Plans the placement of weights, KV cache and scratch memory, allocates it, and reads the weights.
fn load_runner(
    device: &Device,
    memory: &Memory,
    source: LoadSource<'_>,
    options: &Options,
    limits: Limits,
    control: &Control,
    progress: &(dyn Fn(LoadProgress<'_>) + Sync),
) -> Result<(Runner, Vec<plan::HeapUsage>)> {
    let LoadSource { files, vision, .. } = source;
    let checkpoint = files.checkpoint();
    let needed = LoadDemand::new(source, options, limits, device.info())?;
    let LoadDemand { demand, limits, encoder_limits, file_bytes: total_bytes } = needed;
    let placement = plan::plan(memory, &demand)?;
    let encoder = vision.zip(encoder_limits).map(|(vision, limits)| {
        // It was added last.
        let is_local = weights::load::is_device_local(&placement, demand.weights.len() - 1);
        let memory = if is_local { gpu::Memory::Device } else { gpu::Memory::Host };
        EncoderLoadOptions { vision, limits, memory }
    });
    let done = AtomicBool::new(false);
    let samplings = if options.serving { served_samplings(files).to_vec() } else { vec![] };
    let is_free = model::Model::row_invariance_is_free(device.caps());
    let row_invariant = options.speculate == Speculate::Auto && is_free;
    let load_options = LoadOptions {
        placement: &placement,
        limits,
        reproducible: options.reproducible,
        row_invariant,
        verify: match options.speculate {
            Speculate::Off => VerifySteps::None,
            Speculate::Fastest => VerifySteps::Fastest,
            // These have one order of summation anyway.
            Speculate::Auto if row_invariant || options.reproducible => VerifySteps::Fastest,
            Speculate::Auto if options.draft.is_some() => VerifySteps::ExactOrFastest,
            Speculate::Auto => VerifySteps::Exact,
        },
        samplings: &samplings,
        stream: stream::Options::default(),
        encoder,
    };
    let (start, before) = (Instant::now(), device.counters().pipelines);
    let loaded = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let bytes = control.done.load(Ordering::Relaxed);
                let bytes_per_second = bytes as f64 / start.elapsed().as_secs_f64();
                progress(match device.pipelines_pending() {
                    pending if pending > 0 && bytes >= total_bytes => {
                        let done = device.counters().pipelines - before;
                        LoadProgress::Compiling { done, total: done + pending }
                    }
                    _ => LoadProgress::Weights { bytes, total_bytes, bytes_per_second },
                });
                std::thread::sleep(PROGRESS_INTERVAL);
            }
        });
        let _done = SetOnDrop(&done);
        Runner::load(device, checkpoint, &load_options, control)
    });
    Ok((loaded?.0, placement.heaps))
}

/// The sampling parameters of a server's usual requests, the most usual last.
pub(crate) fn served_samplings(files: &ModelFiles) -> [model::Sampling; 2] {
    [model::Sampling::default(), files.recommended_sampling()]
}

/// Sets a flag when dropped, including during a panic, so that a thread watching the flag ends.
pub(crate) struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Times the matrix products of a model that this device has not run before.
pub fn tune(model: &model::Model, progress: &(dyn Fn(LoadProgress<'_>) + Sync)) -> Result<TuningReport> {
    tune_in_turns(model, progress, &mut |work| work().map(|()| true))
}

/// The same, with `turn` deciding when the GPU is free.
pub(crate) fn tune_in_turns(
    model: &model::Model,
    progress: &(dyn Fn(LoadProgress<'_>) + Sync),
    turn: &mut Turn<'_>,
) -> Result<TuningReport> {
    let mut products = 0;
    let on_start = |count| {
        products = count;
        progress(LoadProgress::Tuning { products });
    };
    let tuned = model.tune_in_turns(TuneMode::Auto, BUDGET, on_start, turn);
    match tuned {
        Err(model::Error::Gpu(error)) if !matches!(error, gpu::Error::DeviceLost { .. }) => {
            progress(LoadProgress::TuningFailed { error: &error });
            Ok(TuningReport::default())
        }
        Err(error) => Err(error.into()),
        Ok(tuned) => {
            if products > 0 {
                progress(LoadProgress::Tuned { products, tuned: &tuned });
            }
            Ok(tuned)
        }
    }
}

/// Loads the model again after its device was lost.
fn reload(
    files: &ModelFiles,
    draft: Option<&ModelFiles>,
    options: &Options,
    control: &Control,
) -> model::Result<Runners> {
    let mut delays = RELOAD_DELAYS.iter();
    loop {
        match (load(files, draft, options, control, &|_| ()), delays.next()) {
            (Ok((runners, _)), _) => return Ok(runners),
            _ if control.cancel.load(Ordering::Relaxed) => return Err(model::Error::Cancelled),
            (Err(error), Some(delay)) => {
                tracing::warn!("the device cannot be reopened yet: {error}; next attempt in {delay:?}");
                std::thread::sleep(*delay);
            }
            (Err(error), None) => return Err(Error::into_model_error(error)),
        }
    }
}
