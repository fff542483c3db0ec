//! Startup summary: model, device, memory plan, limits and settings; as text for the log and as JSON for programs.

use gpu::format_bytes;
use serde::Serialize;

use super::settings::Settings;
use crate::loading::{Loaded, Opened, Space};

/// Lines on model, device, KV cache and memory.
pub fn model_lines(loaded: &Loaded, opened: &Opened, space: Space) -> Vec<String> {
    let info = loaded.info();
    let tier = loaded.device.caps().tier().map_or("no tier".to_owned(), |tier| format!("tier {tier:?}"));
    let cache = loaded.runner.cache();
    let (pages, page) = (cache.pages(), cache.limits().page_size);
    let mut lines = vec![
        format!("model    {} in {:.1} s", opened.checkpoint.path.display(), loaded.load_seconds),
        format!("device   {}, {}, {tier}", info.name, info.driver),
        format!(
            "batch    {} sequences, context length {}, KV cache {} tokens in {pages} pages of {page} ({:?})",
            space.sequences,
            space.context,
            u64::from(pages) * u64::from(page),
            cache.limits().kv_scheme
        ),
    ];
    for heap in loaded.heaps.iter().filter(|heap| heap.planned() > 0) {
        let memory = if heap.heap.device_local { "GPU memory" } else { "system memory" };
        lines.push(format!(
            "memory   {} of {} in {memory}: weights {}, KV cache {}, scratch {}",
            format_bytes(heap.planned()),
            format_bytes(heap.usable),
            format_bytes(heap.weights),
            format_bytes(heap.kv),
            format_bytes(heap.scratch)
        ));
    }
    lines
}

/// Lines on limits, settings that were given, and warnings.
pub fn settings_lines(settings: &Settings) -> Vec<String> {
    let mut lines = vec![format!(
        "limits   queue {} requests, {}; {} per request; {} per body; {} connections",
        settings.max_queue,
        settings.queue_timeout,
        settings.request_timeout,
        settings.max_body_size,
        settings.max_connections
    )];
    let set = settings.set.iter().map(|(name, value, source)| format!("{name} {value} ({source})"));
    let set: Vec<String> = set.collect();
    if !set.is_empty() {
        lines.push(format!("set      {}", set.join(", ")));
    }
    lines.extend(settings.deprecated.iter().map(|warning| format!("warning  {warning}")));
    if !settings.host.is_loopback() && settings.api_key.is_empty() && settings.api_key_file.is_none() {
        lines.push(format!(
            "warning  {} is reachable from other machines and no API key is required: see --api-key",
            settings.host
        ));
    }
    lines
}

/// The line that `--json` prints when the server is ready.
#[derive(Serialize)]
pub struct ReadyReport {
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

impl ReadyReport {
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

    /// Adds the time from process start to readiness.
    pub fn ready_after(self, ready_seconds: f64) -> Self {
        Self { ready_seconds, ..self }
    }
}
