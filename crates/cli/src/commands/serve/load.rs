//! Loads models and starts their engines, at startup and when requests name them.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use gpu::{AdapterInfo, format_bytes};
use indrik::{Control, DeviceSelector, LoadHooks, LoadProgress, Model};
use server::{LoadControl, LoadedModel, ModelDescription, ModelLoader, OpenModel};

use super::{
    hardware::Hardware,
    offer::{EmbeddingModel, Location, Offer, OfferedModel},
    summary::{self, ReadyReport},
};
use crate::{loading, logging::announce};

/// Loads the models that a server offers. Clones share everything.
#[derive(Clone)]
pub struct Loader {
    pub offer: Arc<Offer>,
    pub hardware: Hardware,
    /// Cancels reloads after a lost device.
    pub reload: Arc<Control>,
    /// Bytes for all models together.
    pub memory_budget: u64,
    /// Whether the budget was given, so that a model may not exceed it even alone.
    is_strict: bool,
    device: AdapterInfo,
    /// Of the first model.
    pub report: Arc<Mutex<Option<ReadyReport>>>,
}

impl Loader {
    pub fn new(offer: Offer) -> anyhow::Result<Loader> {
        let selector =
            DeviceSelector { name: offer.settings().device.as_deref(), ..DeviceSelector::default() };
        let (_instance, adapter) = selector.adapter()?;
        let given = offer.settings().memory_budget.map(|size| size.0 as u64);
        let memory_budget = given.unwrap_or_else(|| indrik::device_memory(&adapter.info).usable());
        Ok(Loader {
            hardware: Hardware::new(offer.prefix_disk.clone(), offer.npu.report().clone()),
            offer: Arc::new(offer),
            reload: Arc::default(),
            memory_budget,
            is_strict: given.is_some(),
            device: adapter.info,
            report: Arc::default(),
        })
    }

    /// Sets the report, unless another model came first.
    fn set_report(&self, report: impl FnOnce() -> ReadyReport) {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(report);
    }

    fn start_embedder(&self, model: EmbeddingModel, progress: &LoadControl) -> anyhow::Result<LoadedModel> {
        let terminal = loading::Terminal::default();
        let control = Control::default();
        let report = |stage: LoadProgress<'_>| report_load(stage, progress, &terminal, &control);
        let loaded = model.files.load_with(model.options, &control, &report)?;
        drop(terminal);
        announce(format_args!("model    {} in {:.1} s", model.files.path().display(), loaded.load_seconds()));
        self.set_report(|| ReadyReport::embedder(&loaded, &model.served.id));
        Ok(LoadedModel::embedder(model.served, Arc::new(loaded)))
    }

    fn open_offered(&self, location: &Location) -> anyhow::Result<Opened> {
        let model = self.offer.open(location)?;
        let bytes = match &model {
            OfferedModel::Language(model) => model.files.memory_bytes(&model.options, &self.device)?,
            OfferedModel::Embedder(model) => model.files.memory_bytes(&model.options)?,
        };
        // A model that is larger than the memory of the GPU may still be placed in that of the host.
        let memory = if self.is_strict { bytes } else { bytes.min(self.memory_budget) };
        Ok(Opened { loader: self.clone(), description: model.description(), model, memory })
    }
}

impl ModelLoader for Loader {
    fn list(&self) -> Vec<ModelDescription> {
        self.offer.list()
    }

    fn open(&self, name: &str) -> Result<Option<Box<dyn OpenModel>>, String> {
        let Some(location) = self.offer.find(name) else { return Ok(None) };
        match self.open_offered(&location) {
            Ok(opened) => Ok(Some(Box::new(opened))),
            Err(error) => Err(format!("{error:#}")),
        }
    }
}

/// A model whose files are open.
struct Opened {
    loader: Loader,
    description: ModelDescription,
    model: OfferedModel,
    memory: u64,
}

impl OpenModel for Opened {
    fn description(&self) -> &ModelDescription {
        &self.description
    }

    fn memory(&self) -> u64 {
        self.memory
    }

    fn load(self: Box<Self>, progress: &LoadControl) -> Result<LoadedModel, String> {
        self.start(progress).map_err(|error| format!("{error:#}"))
    }
}

impl Opened {
    fn start(self, progress: &LoadControl) -> anyhow::Result<LoadedModel> {
        let Opened { loader, model, description, .. } = self;
        let model = match model {
            OfferedModel::Language(model) => *model,
            OfferedModel::Embedder(model) => return loader.start_embedder(model, progress),
        };
        let terminal = loading::Terminal::default();
        let control = Arc::<Control>::default();
        let report = |stage: LoadProgress<'_>| report_load(stage, progress, &terminal, &control);
        let hooks =
            LoadHooks { progress: &report, control: control.clone(), reload_control: loader.reload.clone() };
        let loaded = model.files.load_with(model.options, hooks)?;
        progress.set_stage("programs are being recorded for this GPU");
        loaded.prepare_first_requests(&report)?;
        drop(terminal);
        if progress.is_cancelled() {
            return Err(model::Error::Cancelled.into());
        }
        loader.hardware.set_loaded(&loaded);
        summary::model_lines(&loaded).iter().for_each(|line| announce(format_args!("{line}")));
        let engine = loaded.metered_engine(loader.hardware.power_meter())?;
        watch(&engine)?;
        loader.set_report(|| ReadyReport::new(&loaded, &description.id));
        let resources = Background::start(loaded, loader.hardware.clone())?;
        Ok(LoadedModel::new(model.served, Arc::new(engine)).keeping(resources))
    }
}

/// Shows the progress of a load, and cancels it if it should end.
fn report_load(
    stage: LoadProgress<'_>,
    progress: &LoadControl,
    terminal: &loading::Terminal,
    control: &Control,
) {
    progress.set_stage(loading::describe(stage));
    terminal.show(stage);
    if progress.is_cancelled() {
        control.cancel.store(true, Ordering::Relaxed);
    }
}

/// Ends the process if an engine's thread ends before it was stopped.
fn watch(engine: &engine::Engine) -> std::io::Result<()> {
    let exited_unexpectedly = engine.watch_exit();
    let work = move || {
        if exited_unexpectedly() {
            // A server without an engine is useless; a service manager can restart the process.
            tracing::error!("the engine thread ended unexpectedly: this is a bug; please report it");
            std::thread::sleep(FLUSH_DELAY);
            std::process::exit(1);
        }
    };
    std::thread::Builder::new().name("watch".into()).spawn(work).map(drop)
}

/// A loaded model, and the thread that prepares what can follow readiness. Dropping it frees the model.
struct Background {
    model: Option<Model>,
    cancel: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    fn start(model: Model, hardware: Hardware) -> std::io::Result<Background> {
        let cancel = Arc::<AtomicBool>::default();
        let (prepared, cancelled) = (model.clone(), cancel.clone());
        let work = move || prepare_ahead(&prepared, &hardware, &cancelled);
        let thread = std::thread::Builder::new().name("prepare".into()).spawn(work)?;
        Ok(Background { model: Some(model), cancel, thread: Some(thread) })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
        // A panic was reported by its hook.
        self.thread.take().map(JoinHandle::join);
        if let Some(model) = self.model.take() {
            model.stop();
        }
    }
}

/// What can follow readiness. Programs that are not recorded ahead are recorded when they are needed.
fn prepare_ahead(model: &Model, hardware: &Hardware, cancel: &AtomicBool) {
    let report = |stage: LoadProgress<'_>| match stage {
        LoadProgress::Tuned { .. } | LoadProgress::TuningFailed { .. } => {
            announce(format_args!("{}", loading::describe(stage)));
        }
        _ => {}
    };
    if let Err(error) = model.prepare_ahead(&report, cancel) {
        tracing::warn!(%error, "not all programs were recorded ahead of their use");
    }
    if let Err(error) = hardware.measure_bandwidth(model, cancel) {
        tracing::warn!(%error, "memory bandwidth could not be measured");
    }
}

/// Time for open streams to send their final error event before the process exits.
const FLUSH_DELAY: Duration = Duration::from_secs(1);

/// A line about the models that are loaded on demand; `None` if there is only the one that is loaded.
pub fn on_demand_line(loader: &Loader) -> Option<String> {
    let memory = format_bytes(loader.memory_budget);
    match loader.offer.whole_store {
        true => {
            Some(format!("models   requests may name all models of the store; memory for them: {memory}"))
        }
        false => match loader.offer.list().len() {
            0 | 1 => None,
            count => Some(format!("models   requests may name {count} models; memory for them: {memory}")),
        },
    }
}
