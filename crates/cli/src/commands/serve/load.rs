//! Loads the model and starts its engine; reloads after a lost device.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use indrik::{Control, LoadHooks, LoadProgress, Model, ModelFiles};
use server::EngineSlot;

use super::{controls::Controls, hardware::Hardware, notify, settings::Settings, summary};
use crate::{loading, logging::announce, output};

/// Inputs of the loading thread.
pub struct Loader<'a> {
    pub files: ModelFiles,
    pub options: indrik::Options,
    pub settings: &'a Settings,
    pub hardware: Hardware,
    pub url: String,
    pub id: String,
    pub started: Instant,
    pub json: bool,
}

/// The loading thread; it returns the model, whose engine is running.
pub type Loading = JoinHandle<anyhow::Result<Model>>;

impl Loader<'_> {
    /// Starts the loading thread. If loading fails, it stops the server.
    pub fn start(self, controls: &Controls) -> std::io::Result<Loading> {
        let Loader { files, options, settings, hardware, url, id, started, json } = self;
        let mut lines = summary::settings_lines(settings);
        if settings.webui {
            lines.insert(0, format!("web UI   {url}/ in a browser: chat and dashboard"));
        }
        let (slot, control, handle) = (controls.slot.clone(), controls.load.clone(), controls.server.clone());
        let reload = controls.reload.clone();
        let work = move || {
            let startup = Startup { slot: &slot, hardware, lines, url, id, started, json };
            let loaded = load(&files, options, [&control, &reload], startup);
            if loaded.is_err() {
                handle.stop();
            }
            loaded
        };
        std::thread::Builder::new().name("load".into()).spawn(work)
    }
}

/// Where loading reports its progress and result: the slot for the engine, and the startup summary.
struct Startup<'a> {
    slot: &'a EngineSlot,
    hardware: Hardware,
    lines: Vec<String>,
    url: String,
    id: String,
    started: Instant,
    json: bool,
}

fn load(
    files: &ModelFiles,
    options: indrik::Options,
    [control, reload_control]: [&Arc<Control>; 2],
    startup: Startup<'_>,
) -> anyhow::Result<Model> {
    let terminal = loading::Terminal::default();
    let hooks = LoadHooks {
        progress: &|stage| {
            startup.slot.set_stage(&loading::describe(stage));
            terminal.show(stage);
        },
        control: control.clone(),
        reload_control: reload_control.clone(),
    };
    let report = hooks.progress;
    let model = files.load_with(indrik::Options { serving: true, ..options }, hooks)?;
    startup.slot.set_stage("programs are being recorded for this GPU");
    model.prepare_first_requests(report)?;
    drop(terminal);
    startup.hardware.set_loaded(&model);
    let model_lines = summary::model_lines(&model);
    let report = summary::ReadyReport::new(&model, &startup.id, &startup.url);
    let engine = model.metered_engine(startup.hardware.power_meter())?;
    if control.cancel.load(Ordering::Relaxed) {
        return Err(model::Error::Cancelled.into());
    }
    let exited_unexpectedly = engine.watch_exit();
    std::thread::Builder::new().name("watch".into()).spawn(move || {
        if exited_unexpectedly() {
            // A server without an engine is useless; a service manager can restart the process.
            tracing::error!("the engine thread ended unexpectedly: this is a bug; please report it");
            std::thread::sleep(FLUSH_DELAY);
            std::process::exit(1);
        }
    })?;
    startup.slot.fill(engine);
    notify::ready();
    for line in model_lines.iter().chain(&startup.lines) {
        announce(format_args!("{line}"));
    }
    let seconds = startup.started.elapsed().as_secs_f64();
    announce(format_args!("{} is ready at {}/v1 after {seconds:.1} s.", startup.id, startup.url));
    if startup.json {
        output::print(&(serde_json::to_string(&report.ready_after(seconds))? + "\n"))?;
    }
    prepare_ahead(&model, &startup, &control.cancel);
    Ok(model)
}

/// What can follow readiness. Programs that are not recorded ahead are recorded when they are needed.
fn prepare_ahead(model: &Model, startup: &Startup<'_>, cancel: &AtomicBool) {
    let report = |stage: LoadProgress<'_>| match stage {
        LoadProgress::Tuned { .. } | LoadProgress::TuningFailed { .. } => {
            announce(format_args!("{}", loading::describe(stage)));
        }
        _ => {}
    };
    match model.prepare_ahead(&report, cancel) {
        Ok(()) => tracing::debug!(seconds = startup.started.elapsed().as_secs_f64(), "all programs recorded"),
        Err(error) => tracing::warn!(%error, "not all programs were recorded ahead of their use"),
    }
    if let Err(error) = startup.hardware.measure_bandwidth(model, cancel) {
        tracing::warn!(%error, "memory bandwidth could not be measured");
    }
}

/// Time for open streams to send their final error event before the process exits.
const FLUSH_DELAY: Duration = Duration::from_secs(1);
