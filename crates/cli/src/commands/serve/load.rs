//! Loads the model and starts its engine; reloads after a lost device.

use std::{
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use engine::{Engine, GpuBackend};
use model::{Runner, Sampling};
use server::EngineSlot;
use weights::stream::Control;

use super::{controls::Controls, gauges::Roofline, notify, settings::Settings, summary};
use crate::{
    loading::{Loaded, Opened, Outputs, Space},
    logging::announce,
    output,
    sampling::recommended,
};

/// Delays between attempts to reopen a lost device: a driver needs a moment to reset a GPU.
const RELOAD_DELAYS: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(5)];

/// Inputs of the loading thread.
pub struct Loader<'a> {
    pub opened: Opened,
    pub space: Space,
    pub settings: &'a Settings,
    pub roofline: Roofline,
    pub url: String,
    pub id: String,
    pub started: Instant,
    pub json: bool,
}

/// The loading thread; it returns the engine.
pub type Loading = JoinHandle<anyhow::Result<Engine>>;

impl Loader<'_> {
    /// Starts the loading thread. If loading fails, it stops the server.
    pub fn start(self, controls: &Controls) -> std::io::Result<Loading> {
        let Loader { opened, space, settings, roofline, url, id, started, json } = self;
        let lines = summary::settings_lines(settings);
        let options = engine::Options { queue_capacity: settings.max_queue, ..engine::Options::default() };
        let step_timeout = settings.step_timeout.0;
        let (slot, control, handle) = (controls.slot.clone(), controls.load.clone(), controls.server.clone());
        let reload = controls.reload.clone();
        let work = move || {
            let startup = Startup { slot: &slot, roofline, lines, url, id, started, json };
            let loaded = load(opened, space, options, step_timeout, [&control, &reload], startup);
            if loaded.is_err() {
                handle.stop();
            }
            loaded
        };
        std::thread::Builder::new().name("load".into()).spawn(work)
    }
}

/// What loading reports to: the slot for the engine and the startup summary.
struct Startup<'a> {
    slot: &'a EngineSlot,
    roofline: Roofline,
    lines: Vec<String>,
    url: String,
    id: String,
    started: Instant,
    json: bool,
}

fn load(
    opened: Opened,
    space: Space,
    options: engine::Options,
    step_timeout: Duration,
    [control, reload_control]: [&Arc<Control>; 2],
    startup: Startup<'_>,
) -> anyhow::Result<Engine> {
    let set_stage = |stage: &str| startup.slot.set_stage(stage);
    let mut loaded = opened.load_for(space, Outputs::Sampled, control, &set_stage)?;
    startup.slot.set_stage("programs are being recorded for this GPU");
    let mut progress = output::Progress::new();
    progress.say("recording programs for this GPU");
    // Record for greedy sampling and for the sampling that the model's authors recommend.
    let usual = recommended(opened.checkpoint.config.architecture);
    loaded.runner.prepare_serving(&[Sampling::default(), usual])?;
    startup.slot.set_stage("memory bandwidth is being measured");
    startup.roofline.measure(&loaded.device);
    drop(progress);
    // Saved now, not at exit: a server that is killed has no exit.
    loaded.device.save_cache();
    let model_lines = summary::model_lines(&loaded, &opened, space);
    let report = summary::ReadyReport::new(&loaded, space, &startup.id, &startup.url);
    let Loaded { runner, .. } = loaded;
    let reload_control = reload_control.clone();
    let reload = move || -> model::Result<Runner> {
        let mut delays = RELOAD_DELAYS.iter();
        loop {
            match (opened.load_for(space, Outputs::Sampled, &reload_control, &|_| ()), delays.next()) {
                (Ok(loaded), _) => return Ok(loaded.runner.with_step_timeout(step_timeout)),
                _ if reload_control.cancel.load(Ordering::Relaxed) => return Err(model::Error::Cancelled),
                (Err(error), Some(delay)) => {
                    tracing::warn!("cannot reopen the device yet: {error:#}; next attempt in {delay:?}");
                    std::thread::sleep(*delay);
                }
                (Err(error), None) => return Err(as_model_error(error)),
            }
        }
    };
    let engine = Engine::start(GpuBackend::new(runner.with_step_timeout(step_timeout), reload), options)?;
    if control.cancel.load(Ordering::Relaxed) {
        return Err(model::Error::Cancelled.into());
    }
    let ended = engine.watch_exit();
    std::thread::Builder::new().name("watch".into()).spawn(move || {
        if ended() {
            // A server without an engine is useless; a service manager can restart the process.
            tracing::error!("the engine thread ended unexpectedly: this is a bug; please report it");
            std::thread::sleep(FLUSH_DELAY);
            std::process::exit(1);
        }
    })?;
    startup.slot.fill(engine.clone());
    notify::ready();
    for line in model_lines.into_iter().chain(startup.lines) {
        announce(format_args!("{line}"));
    }
    let seconds = startup.started.elapsed().as_secs_f64();
    announce(format_args!("{} is ready at {}/v1 after {seconds:.1} s.", startup.id, startup.url));
    if startup.json {
        output::print(&(serde_json::to_string(&report.ready_after(seconds))? + "\n"))?;
    }
    Ok(engine)
}

/// Time for open streams to send their final error event before the process exits.
const FLUSH_DELAY: Duration = Duration::from_secs(1);

/// Converts to the error type by which the engine tells device loss from other failures.
fn as_model_error(error: anyhow::Error) -> model::Error {
    match error.downcast::<model::Error>() {
        Ok(error) => error,
        Err(error) => match error.downcast::<gpu::Error>() {
            Ok(error) => error.into(),
            Err(error) => model::Error::Limits(format!("{error:#}")),
        },
    }
}
