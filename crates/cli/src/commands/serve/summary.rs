//! Startup summary: model, device, memory plan, limits and settings; as text for the log and as JSON for programs.

use gpu::format_bytes;
use indrik::{EmbeddingModel, Model};
use kvevents::Publisher;
use serde::Serialize;

use super::{settings::Settings, values::Size};

/// Lines about model, device, KV cache and memory.
pub fn model_lines(model: &Model) -> Vec<String> {
    let report = model.load_report();
    let device = &report.device;
    let tier = report.tier.map_or("no tier".to_owned(), |tier| format!("tier {tier:?}"));
    let capacity = model.capacity();
    let (pages, page) = (capacity.pages, capacity.page_size);
    let mut lines = vec![
        format!("model    {} in {:.1} s", model.files().path().display(), report.seconds),
        format!("device   {}, {}, {tier}", device.name, device.driver),
        format!(
            "batch    {} sequences, context length {}, KV cache {} tokens in {pages} pages of {page} ({:?})",
            model.options().max_sequences,
            capacity.context_length,
            u64::from(pages) * u64::from(page),
            report.kv_scheme
        ),
    ];
    for heap in report.heaps.iter().filter(|heap| heap.planned() > 0) {
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

/// Lines about limits, settings that were given, and warnings.
pub fn settings_lines(settings: &Settings, max_body_bytes: usize) -> Vec<String> {
    let mut lines = vec![format!(
        "limits   queue {} requests, {}; {} per request; {} per body; {} connections",
        settings.max_queue,
        settings.queue_timeout,
        settings.request_timeout,
        Size(max_body_bytes),
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
#[derive(Default, Serialize)]
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
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_events: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_events_replay: Option<String>,
}

impl ReadyReport {
    pub fn new(model: &Model, id: &str) -> Self {
        let (report, capacity) = (model.load_report(), model.capacity());
        Self {
            status: "ready",
            url: String::new(),
            model: id.to_owned(),
            device: report.device.name.clone(),
            driver: report.device.driver.clone(),
            context: capacity.context_length,
            sequences: model.options().max_sequences,
            pages: capacity.pages,
            load_seconds: report.seconds,
            ready_seconds: 0.0,
            kv_events: None,
            kv_events_replay: None,
        }
    }

    /// The report of an embedding model, which has neither sequences nor pages.
    pub fn embedder(model: &EmbeddingModel, id: &str) -> Self {
        Self {
            model: id.to_owned(),
            device: model.device().name.clone(),
            driver: model.device().driver.clone(),
            context: model.max_tokens(),
            load_seconds: model.load_seconds(),
            ..Self::default()
        }
    }

    /// The model.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Adds where KV events are published.
    pub fn with_kv_events(self, publisher: &Publisher) -> Self {
        let url = |address| format!("tcp://{address}");
        Self {
            kv_events: Some(url(publisher.events_address())),
            kv_events_replay: publisher.replay_address().map(url),
            ..self
        }
    }

    /// Adds where the server listens, and the time from process start to readiness.
    pub fn ready_at(self, url: &str, ready_seconds: f64) -> Self {
        Self { status: "ready", url: url.to_owned(), ready_seconds, ..self }
    }
}
