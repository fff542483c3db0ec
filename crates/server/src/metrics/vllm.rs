//! vLLM's names of metrics, which endpoint pickers, autoscalers and dashboards know. One sample per loaded model.

use std::fmt::Display;

use engine::{Histogram, Status};

use super::page::Page;
use crate::models::EngineState;

/// A gauge or a counter: name, HELP text, kind, value.
type Metric = (&'static str, &'static str, &'static str, fn(&Status) -> f64);

const METRICS: [Metric; 8] = [
    ("num_requests_running", "Requests in the batch", "gauge", |status| {
        (status.prefilling + status.decoding) as f64
    }),
    ("num_requests_waiting", "Requests in the queue", "gauge", |status| status.waiting as f64),
    ("kv_cache_usage_perc", "Fraction of KV cache blocks in use, 0 to 1", "gauge", kv_cache_usage),
    (
        "gpu_cache_usage_perc",
        "Fraction of KV cache blocks in use, 0 to 1; earlier name of kv_cache_usage_perc",
        "gauge",
        kv_cache_usage,
    ),
    // Tokens, as vLLM counts them; not admissions as in the metrics of this server.
    ("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache", "counter", |status| {
        (status.prompt_tokens + status.cached_tokens) as f64
    }),
    ("prefix_cache_hits_total", "Prompt tokens found in the prefix cache", "counter", |status| {
        status.cached_tokens as f64
    }),
    ("prompt_tokens_total", "Prompt tokens, those found in the prefix cache included", "counter", |status| {
        (status.prompt_tokens + status.cached_tokens) as f64
    }),
    ("generation_tokens_total", "Generated tokens", "counter", |status| status.generation_tokens as f64),
];

/// A histogram: name, HELP text, value.
type Latency = (&'static str, &'static str, fn(&Status) -> &Histogram);

const HISTOGRAMS: [Latency; 3] = [
    ("time_to_first_token_seconds", "Time to first token", |status| &status.time_to_first_token),
    ("time_per_output_token_seconds", "Inter-token latency", |status| &status.inter_token_latency),
    ("e2e_request_latency_seconds", "End-to-end request latency", |status| &status.request_latency),
];

fn kv_cache_usage(status: &Status) -> f64 {
    let total = status.pages.total;
    f64::from(total.saturating_sub(status.pages.free)) / f64::from(total.max(1))
}

/// Appends nothing if no model is loaded.
pub(super) fn render(engines: &[EngineState]) -> String {
    let mut page = Page::new("vllm:");
    if engines.is_empty() {
        return page.text;
    }
    for (name, help, kind, read) in METRICS {
        page.describe(name, help, kind);
        for engine in engines {
            page.sample(name, &format!("{{{}}}", label("model_name", &engine.id)), &read(&engine.status));
        }
    }
    for (name, help, read) in HISTOGRAMS {
        page.describe(name, help, "histogram");
        for engine in engines {
            page.histogram_samples(name, &label("model_name", &engine.id), read(&engine.status));
        }
    }
    page.describe("cache_config_info", "Size of the KV cache", "gauge");
    for engine in engines {
        let Some(capacity) = engine.capacity else { continue };
        let labels = [
            label("model_name", &engine.id),
            label("block_size", capacity.page_size),
            label("num_gpu_blocks", capacity.pages),
        ];
        page.sample("cache_config_info", &format!("{{{}}}", labels.join(",")), &1);
    }
    page.text
}

fn label(name: &str, value: impl Display) -> String {
    let value = value.to_string().replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{name}=\"{value}\"")
}
