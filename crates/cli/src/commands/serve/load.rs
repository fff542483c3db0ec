//! From weights on disk to an engine in its place, and again when the device was lost.

use std::{
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use engine::{Engine, GpuBackend};
use model::{Runner, Sampling};
use server::Place;
use weights::stream::Control;

use super::{Running, gauges::Roofline, notify, settings::Settings, shown};
use crate::{
    loading::{Loaded, Opened, Outputs, Space},
    output,
    sampling::recommended,
};

/// A driver that resets a GPU takes a moment: so long between attempts to open it again.
const RELOAD_PAUSES: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(5)];

/// What loading needs.
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

/// A model that is being loaded; at the end its engine, or why there is none.
pub type Loading = JoinHandle<anyhow::Result<Engine>>;

impl Loader<'_> {
    /// Begins to load. Should it fail, the server ends.
    pub fn start(self, running: &Running) -> std::io::Result<Loading> {
        let Loader { opened, space, settings, roofline, url, id, started, json } = self;
        let lines = shown::lines(settings);
        let options = engine::Options { queue_capacity: settings.queue, ..engine::Options::default() };
        let step_time = settings.step_time.0;
        let (place, control, handle) =
            (running.place.clone(), running.control.clone(), running.handle.clone());
        let again = running.again.clone();
        let work = move || {
            let ready = Ready { place: &place, roofline, lines, url, id, started, json };
            let loaded = load(opened, space, options, step_time, [&control, &again], ready);
            if loaded.is_err() {
                handle.stop();
            }
            loaded
        };
        std::thread::Builder::new().name("load".into()).spawn(work)
    }
}

/// What is said when all is there.
struct Ready<'a> {
    place: &'a Place,
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
    step_time: Duration,
    [control, again]: [&Arc<Control>; 2],
    ready: Ready<'_>,
) -> anyhow::Result<Engine> {
    let mut loaded = opened.load_for(space, Outputs::Sampled, control, &|doing| ready.place.say(doing))?;
    ready.place.say("programs are recorded for this GPU");
    let mut progress = output::Progress::new();
    progress.say("recording programs for this GPU");
    // Greedy answers, and those as the model's authors recommend.
    let usual = recommended(opened.checkpoint.config.architecture);
    loaded.runner.prepare_serving(&[Sampling::default(), usual])?;
    ready.place.say("the bandwidth of its memory is measured");
    ready.roofline.measure(&loaded.device);
    drop(progress);
    // Now and not at the end: a server that is killed has none.
    loaded.device.save_cache();
    let summary = shown::summary(&loaded, &opened, space);
    let heard = shown::Heard::new(&loaded, space, &ready.id, &ready.url);
    let Loaded { runner, .. } = loaded;
    let again = again.clone();
    let reload = move || -> model::Result<Runner> {
        let mut pauses = RELOAD_PAUSES.iter();
        loop {
            match (opened.load_for(space, Outputs::Sampled, &again, &|_| ()), pauses.next()) {
                (Ok(loaded), _) => return Ok(loaded.runner.with_step_time(step_time)),
                _ if again.cancel.load(Ordering::Relaxed) => return Err(model::Error::Cancelled),
                (Err(error), Some(pause)) => {
                    tracing::warn!("the device is not back yet: {error:#}; the next attempt is in {pause:?}");
                    std::thread::sleep(*pause);
                }
                (Err(error), None) => return Err(as_model(error)),
            }
        }
    };
    let engine = Engine::start(GpuBackend::new(runner.with_step_time(step_time), reload), options)?;
    if control.cancel.load(Ordering::Relaxed) {
        return Err(model::Error::Cancelled.into());
    }
    let ended = engine.watch_exit();
    std::thread::Builder::new().name("watch".into()).spawn(move || {
        if ended() {
            // A server without an engine is of no use, and whoever started it can start it again. Streams have a moment to say so.
            tracing::error!("the engine's thread has ended by itself: this is a bug; please report it");
            std::thread::sleep(LAST_WORDS);
            std::process::exit(1);
        }
    })?;
    ready.place.fill(engine.clone());
    notify::ready();
    for line in summary.into_iter().chain(ready.lines) {
        note!("{line}");
    }
    let seconds = ready.started.elapsed().as_secs_f64();
    note!("{} is ready at {}/v1 after {seconds:.1} s.", ready.id, ready.url);
    if ready.json {
        output::print(&(serde_json::to_string(&heard.after(seconds))? + "\n"))?;
    }
    Ok(engine)
}

/// What streams have to send their last events when the engine has ended by itself.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// An error in the words that the engine decides by.
fn as_model(error: anyhow::Error) -> model::Error {
    match error.downcast::<model::Error>() {
        Ok(error) => error,
        Err(error) => match error.downcast::<gpu::Error>() {
            Ok(error) => error.into(),
            Err(error) => model::Error::Limits(format!("{error:#}")),
        },
    }
}
