//! A loaded model.

use std::{
    sync::{
        Arc, OnceLock, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use engine::{Capacity, Engine, GpuBackend, Runners};
use model::{Runner, TuningReport, language::Language};

use crate::{
    Chat, Error, GenerateOptions, Generation, ImageReader, LoadProgress, LoadReport, ModelFiles, Options,
    Prompt, Result,
    backend::{HeapProbe, SharedBackend},
    load::{self, PROGRESS_INTERVAL, SetOnDrop},
};

/// Interval between programs that are recorded ahead of their use while requests run.
const BUSY_INTERVAL: Duration = Duration::from_secs(1);

/// How long the engine must have been idle before work that takes about a second: the next request is then less likely to
/// wait for it.
const IDLE_TIME: Duration = Duration::from_secs(3);

/// Interval at which recording ahead looks whether the engine is idle.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A model in device memory, ready to run. Cheap to clone; clones share weights, KV cache and engine.
///
/// The memory is freed when the last clone is dropped. That stops the engine first: requests in flight fail
/// with [`engine::RequestError::Stopped`].
#[derive(Clone)]
pub struct Model(Arc<Inner>);

struct Inner {
    files: ModelFiles,
    options: Options,
    report: LoadReport,
    backend: SharedBackend,
    engine: RwLock<Option<Engine>>,
    language: OnceLock<Arc<Language>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Waits for the engine's thread: it must not use the device while the process exits.
        if let Some(engine) = self.engine.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            engine.stop();
        }
    }
}

impl Model {
    /// Opens a checkpoint by path or by its name in the local store, and loads it.
    pub fn open(path_or_name: &str, options: Options) -> Result<Self> {
        ModelFiles::open(path_or_name)?.load(options)
    }

    pub(crate) fn new(files: ModelFiles, options: Options, report: LoadReport, backend: GpuBackend) -> Self {
        Self(Arc::new(Inner {
            files,
            options,
            report,
            backend: SharedBackend::new(backend),
            engine: RwLock::new(None),
            language: OnceLock::new(),
        }))
    }

    /// The checkpoint that was loaded.
    pub fn files(&self) -> &ModelFiles {
        &self.0.files
    }

    /// The options it was loaded with.
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// Device, load time, tuning and memory plan.
    pub fn load_report(&self) -> &LoadReport {
        &self.0.report
    }

    /// Number of sequences, context length and KV cache size that the model was loaded for.
    pub fn capacity(&self) -> Capacity {
        engine::Backend::capacity(&self.0.backend)
    }

    /// The tokenizer, the chat template and the stop tokens. Fails if the checkpoint has no tokenizer.
    pub fn language(&self) -> Result<Arc<Language>> {
        if let Some(language) = self.0.language.get() {
            return Ok(language.clone());
        }
        let language = Arc::new(self.files().language()?);
        Ok(self.0.language.get_or_init(|| language).clone())
    }

    /// Reads images for prompts. Fails if the model takes none.
    pub fn image_reader(&self) -> Result<ImageReader> {
        ImageReader::new(&*self.language()?)
    }

    /// The continuous-batching engine over this model, started by the first call.
    ///
    /// Requests from all clones run in the same batch. If the device is lost, the engine reopens it, loads
    /// the model again and recomputes the requests in flight.
    pub fn engine(&self) -> Result<Engine> {
        self.metered_engine(None)
    }

    /// The engine, with a power meter. The meter is ignored if the engine runs already.
    pub fn metered_engine(&self, power: Option<engine::PowerMeter>) -> Result<Engine> {
        if let Some(engine) = &*self.0.engine.read().unwrap_or_else(PoisonError::into_inner) {
            return Ok(engine.clone());
        }
        let mut slot = self.0.engine.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(engine) = &*slot {
            return Ok(engine.clone());
        }
        let speculate = self.with_runner(|runner| Ok(runner.verifies()))?;
        let queue_capacity = self.0.options.queue_capacity;
        let options = engine::Options { queue_capacity, speculate, ..engine::Options::default() };
        let engine = Engine::start_metered(self.0.backend.clone(), options, power)?;
        Ok(slot.insert(engine).clone())
    }

    /// Stops the engine and waits for its thread. Requests in flight fail with
    /// [`engine::RequestError::Stopped`], and later ones are rejected.
    pub fn stop(&self) {
        let engine = self.0.engine.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(engine) = engine {
            engine.stop();
        }
    }

    /// Starts a completion of a text or of token ids. Blocks only to record GPU programs that do not exist
    /// yet.
    pub fn generate(&self, prompt: impl Into<Prompt>, options: GenerateOptions) -> Result<Generation> {
        Generation::start(self, prompt.into(), options)
    }

    /// A new conversation, with the sampling parameters that the model's authors recommend and a random seed.
    pub fn chat(&self) -> Result<Chat> {
        Chat::new(self)
    }

    /// The logits after each token of a prompt: one row of `vocab_size` values per token.
    ///
    /// Needs a free sequence. Load with [`Options::all_logits`], so that the memory plan includes the logits.
    pub fn logits(&self, ids: &[u32]) -> Result<Vec<Vec<f32>>> {
        let mut rows = Vec::with_capacity(ids.len());
        self.with_runner(|runner| {
            let mut sequence = runner.start()?;
            runner.logits(&mut sequence, ids, |row| {
                rows.push(row.to_vec());
                Ok(())
            })
        })?;
        Ok(rows)
    }

    /// Reads the heaps of the GPU, for as long as the model is loaded.
    pub fn heap_probe(&self) -> HeapProbe {
        self.0.backend.heap_probe().clone()
    }

    /// Runs `work` on the runner between two engine steps, for scoring and for measurements.
    ///
    /// Do not keep the runner's `Arc<model::Model>`, its device or its adapter: they could then not be freed after the
    /// device is lost.
    pub fn with_runner<T>(&self, work: impl FnOnce(&mut Runner) -> model::Result<T>) -> Result<T> {
        self.with_runners(|runners| work(&mut runners.target))
    }

    fn with_runners<T>(&self, work: impl FnOnce(&mut Runners) -> model::Result<T>) -> Result<T> {
        let mut backend = self.0.backend.exclusive();
        let runners = backend.runners().map_err(|_| Error::Request(engine::RequestError::DeviceLost))?;
        Ok(work(runners)?)
    }

    /// Records the GPU programs of a server's first request, whatever its length, both greedy and with the recommended
    /// sampling. Saves the pipeline cache. [`Model::prepare_ahead`] records the others that a server keeps reusing.
    pub fn prepare_first_requests(
        &self,
        progress: &(dyn Fn(LoadProgress<'_>) + Sync),
    ) -> Result<Preparation> {
        let samplings = load::served_samplings(self.files());
        self.prepare_with(progress, |runners| {
            if let Some(draft) = &mut runners.draft {
                draft.runner_mut().prepare_first_requests(&samplings)?;
            }
            runners.target.prepare_first_requests(&samplings)
        })
    }

    /// Records the other programs that a server keeps reusing, decode steps of every batch size and prompts beside
    /// them, while requests run. Pipelines are compiled beside the steps; recording a program takes some
    /// milliseconds (30 with a 27B) between two steps, once a second unless the engine is idle. With
    /// [`Options::serving`], then tunes whenever the engine is idle, and records the programs that tuning has changed.
    /// Returns when all is done or `cancel` is set. Saves the pipeline cache.
    pub fn prepare_ahead(
        &self,
        progress: &(dyn Fn(LoadProgress<'_>) + Sync),
        cancel: &AtomicBool,
    ) -> Result<()> {
        let engine = self.engine()?;
        let recorded = self.record_ahead(&engine, cancel);
        // Programs that are still missing are from now on recorded when they are needed.
        self.with_runners(|runners| {
            runners.all_mut().for_each(Runner::stop_substituting);
            Ok(())
        })?;
        recorded?;
        if self.0.options.serving {
            for index in 0..self.with_runners(|runners| Ok(runners.all_mut().count()))? {
                if let Err(error) = self.tune_ahead(&engine, index, progress, cancel) {
                    tracing::warn!("matrix products were not tuned: {error}");
                }
            }
            // Those that tuning has changed, or all if the device was lost meanwhile.
            self.record_ahead(&engine, cancel)?;
        }
        self.with_runner(|runner| {
            runner.model().device.save_cache();
            Ok(())
        })
    }

    /// Runs `work` on the runner once the engine has been idle for some seconds. `None` if `cancel` was set before.
    pub fn when_idle<T>(
        &self,
        cancel: &AtomicBool,
        work: impl FnOnce(&mut Runner) -> model::Result<T>,
    ) -> Result<Option<T>> {
        let engine = self.engine()?;
        let mut idle_since = Instant::now();
        while idle_since.elapsed() < IDLE_TIME {
            if !wait_until_idle(&engine, cancel) {
                return Ok(None);
            }
            std::thread::sleep(POLL_INTERVAL);
            if is_busy(&engine.status()) {
                idle_since = Instant::now();
            }
        }
        self.with_runner(work).map(Some)
    }

    /// Tunes whenever the engine is idle: the model of one of its runners.
    fn tune_ahead(
        &self,
        engine: &Engine,
        index: usize,
        progress: &(dyn Fn(LoadProgress<'_>) + Sync),
        cancel: &AtomicBool,
    ) -> Result<TuningReport> {
        // Given up soon after the device is lost: no turn comes, and compiling fails.
        let model = |runners: &mut Runners| runners.all_mut().nth(index).map(|runner| runner.model().clone());
        let Some(tuned) = self.with_runners(|runners| Ok(model(runners)))? else {
            return Ok(TuningReport::default());
        };
        load::tune_in_turns(&tuned, progress, &mut |work| {
            if !wait_until_idle(engine, cancel) {
                return Ok(false);
            }
            let mut backend = self.0.backend.exclusive();
            // The device may have been reopened, with another model.
            let current = backend.runners().ok().and_then(model);
            let is_current = current.is_some_and(|current| Arc::ptr_eq(&current, &tuned));
            if is_current { work().map(|()| true) } else { Ok(false) }
        })
    }

    /// Records the programs that a server keeps reusing, beside its steps.
    fn record_ahead(&self, engine: &Engine, cancel: &AtomicBool) -> Result<()> {
        let samplings = load::served_samplings(self.files());
        let mut recorded_at = Instant::now();
        while !cancel.load(Ordering::Relaxed) {
            let status = engine.status();
            if status.device_lost || is_busy(&status) && recorded_at.elapsed() < BUSY_INTERVAL {
                std::thread::sleep(POLL_INTERVAL);
                continue;
            }
            recorded_at = Instant::now();
            match self.record_one_ahead(&samplings) {
                Ok(true) => {}
                Ok(false) => break,
                // The engine reopens it, with no programs.
                Err(Error::Request(engine::RequestError::DeviceLost)) => std::thread::sleep(POLL_INTERVAL),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Records one program ahead of its use. Returns whether one was missing.
    fn record_one_ahead(&self, samplings: &[model::Sampling]) -> Result<bool> {
        let recorded = self.with_runners(|runners| {
            for (index, runner) in runners.all_mut().enumerate() {
                if let Some(pipelines) = runner.record_ahead(samplings)? {
                    return Ok(Some((index, runner.model().device.clone(), pipelines)));
                }
            }
            Ok(None)
        })?;
        let Some((index, device, pipelines)) = recorded else { return Ok(false) };
        device.compile_in_background(&pipelines).map_err(model::Error::from)?;
        self.with_runners(|runners| runners.all_mut().nth(index).map_or(Ok(()), Runner::seal_ahead))?;
        Ok(true)
    }

    /// Records the GPU programs for a prompt of `prompt_tokens` tokens and its completion. Programs for prompts
    /// of other lengths are recorded when they are needed. Saves the pipeline cache.
    pub fn prepare(
        &self,
        prompt_tokens: usize,
        sampling: &model::Sampling,
        progress: &(dyn Fn(LoadProgress<'_>) + Sync),
    ) -> Result<Preparation> {
        self.prepare_with(progress, |runners| {
            if let Some(draft) = &mut runners.draft {
                draft.runner_mut().prepare(prompt_tokens, sampling)?;
            }
            runners.target.prepare(prompt_tokens, sampling)
        })
    }

    fn prepare_with(
        &self,
        progress: &(dyn Fn(LoadProgress<'_>) + Sync),
        work: impl FnOnce(&mut Runners) -> model::Result<()>,
    ) -> Result<Preparation> {
        self.with_runners(|runners| {
            let device = runners.target.model().device.clone();
            let (before, setup_before) = (device.counters(), runners.target.setup_time());
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let reporter = scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        let pending = device.pipelines_pending();
                        if pending > 0 {
                            let done = device.counters().pipelines - before.pipelines;
                            progress(LoadProgress::Compiling { done, total: done + pending });
                        }
                        std::thread::park_timeout(PROGRESS_INTERVAL);
                    }
                });
                let finished = {
                    let _done = SetOnDrop(&done);
                    work(runners)
                };
                reporter.thread().unpark();
                finished
            })?;
            // Saved now rather than at exit, which a killed process never reaches.
            device.save_cache();
            let after = device.counters();
            let loaded = after.pipelines_from_cache - before.pipelines_from_cache;
            let compiled = after.pipelines - before.pipelines - loaded;
            Ok(Preparation { compiled, time: runners.target.setup_time() - setup_before })
        })
    }
}

fn is_busy(status: &engine::Status) -> bool {
    status.waiting + status.prefilling + status.decoding > 0
}

/// Returns false, instead of waiting on, once `cancel` is set or the device is lost.
fn wait_until_idle(engine: &Engine, cancel: &AtomicBool) -> bool {
    loop {
        let status = engine.status();
        match () {
            () if status.device_lost || cancel.load(Ordering::Relaxed) => return false,
            () if is_busy(&status) => std::thread::sleep(POLL_INTERVAL),
            () => return true,
        }
    }
}

/// What preparing programs took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preparation {
    /// Pipelines that the driver compiled, because the pipeline cache did not have them.
    pub compiled: u64,
    /// Time for pipelines and for recording.
    pub time: model::SetupTime,
}
