//! What is said at the start: what runs where, in which limits, and what was set by whom.

use gpu::bytes;
use serde::Serialize;

use super::settings::Settings;
use crate::loading::{Loaded, Opened, Space};

/// Model, device and memory.
pub fn summary(loaded: &Loaded, opened: &Opened, space: Space) -> Vec<String> {
    let info = loaded.info();
    let tier = loaded.device.caps().tier().map_or("no tier".to_owned(), |tier| format!("tier {tier:?}"));
    let cache = loaded.runner.cache();
    let (pages, page) = (cache.pages(), cache.limits().page);
    let mut lines = vec![
        format!("model    {} in {:.1} s", opened.checkpoint.path.display(), loaded.load_seconds),
        format!("device   {}, {}, {tier}", info.name, info.driver),
        format!(
            "answers  {} at a time, {} positions each, {} together in {pages} pages of {page} ({:?})",
            space.sequences,
            space.context,
            u64::from(pages) * u64::from(page),
            cache.limits().kv
        ),
    ];
    for heap in loaded.heaps.iter().filter(|heap| heap.planned() > 0) {
        let place = if heap.heap.device_local { "the GPU's memory" } else { "the system's memory" };
        lines.push(format!(
            "memory   {} of {} in {place}: weights {}, keys and values {}, the rest {}",
            bytes(heap.planned()),
            bytes(heap.usable),
            bytes(heap.weights),
            bytes(heap.kv),
            bytes(heap.scratch)
        ));
    }
    lines
}

/// Limits, and what was set.
pub fn lines(settings: &Settings) -> Vec<String> {
    let mut lines = vec![format!(
        "limits   {} more answers wait, {} at most; {} a request; bodies of {}; {} connections",
        settings.queue, settings.queue_time, settings.request_time, settings.body_size, settings.connections
    )];
    let set = settings.set.iter().map(|(name, value, from)| format!("{name} {value} ({from})"));
    let set: Vec<String> = set.collect();
    if !set.is_empty() {
        lines.push(format!("set      {}", set.join(", ")));
    }
    if !settings.host.is_loopback() && settings.api_key.is_empty() && settings.api_key_file.is_none() {
        lines.push(format!(
            "warning  {} is reachable from other machines, and nobody is asked for a key: see --api-key",
            settings.host
        ));
    }
    lines
}

/// The same for programs.
#[derive(Serialize)]
pub struct Heard {
    status: &'static str,
    url: String,
    model: String,
    device: String,
    driver: String,
    context: u32,
    sequences: u32,
    pages: u32,
    load_seconds: f64,
    ready_seconds: f64,
}

impl Heard {
    pub fn new(loaded: &Loaded, space: Space, model: &str, url: &str) -> Self {
        Self {
            status: "ready",
            url: url.to_owned(),
            model: model.to_owned(),
            device: loaded.info().name.clone(),
            driver: loaded.info().driver.clone(),
            context: space.context,
            sequences: space.sequences,
            pages: loaded.runner.cache().pages(),
            load_seconds: loaded.load_seconds,
            ready_seconds: 0.0,
        }
    }

    /// With the time from the start to the first request that is answered.
    pub fn after(self, ready_seconds: f64) -> Self {
        Self { ready_seconds, ..self }
    }
}
