//! `/metrics` in Prometheus' text format, version 0.0.4.

mod page;
mod vllm;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use engine::Status;

use crate::generator::Gauge;
use crate::models::EngineState;
use crate::traces::Counts;
use page::Page;

/// Content type of the text format.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Counters of the HTTP layer. All other metrics come from the engine's [`Status`].
#[derive(Default)]
pub(crate) struct Metrics {
    /// HTTP requests by outcome.
    outcomes: Mutex<BTreeMap<&'static str, u64>>,
    tool_calls: AtomicU64,
}

impl Metrics {
    /// Counts a finished HTTP request.
    pub(crate) fn count_request(&self, outcome: &'static str) {
        let mut outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        *outcomes.entry(outcome).or_default() += 1;
    }

    /// Counts the tool calls of a completion.
    pub(crate) fn count_tool_calls(&self, count: u64) {
        self.tool_calls.fetch_add(count, Ordering::Relaxed);
    }

    /// All metrics as text.
    pub(crate) fn render(
        &self,
        status: &Status,
        ready: bool,
        gauges: &[Gauge],
        traces: Option<&Counts>,
    ) -> String {
        let mut page = Page::new("indrik_");
        page.gauge("ready", "1 if requests are accepted, else 0", u64::from(ready));
        self.render_scheduler(&mut page, status);
        self.render_kv_cache(&mut page, status);
        self.render_requests(&mut page, status);
        if let Some(Counts { exported, dropped, .. }) = traces {
            let [exported, dropped] = [exported, dropped].map(|count| count.load(Ordering::Relaxed));
            page.counter("trace_spans_exported_total", "Spans that the collector accepted", exported);
            page.counter(
                "trace_spans_dropped_total",
                "Spans that were not sent: queue full, or no answer",
                dropped,
            );
        }
        let mut described = "";
        for Gauge { name, help, label, value } in gauges {
            if described != *name {
                let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
                page.describe(name, help, kind);
                described = name;
            }
            let label = label.as_ref().map(|(key, value)| format!("{{{key}={value:?}}}"));
            page.sample(name, &label.unwrap_or_default(), value);
        }
        page.text
    }

    /// The metrics of these engines by the names of vLLM, for what knows only those.
    pub(crate) fn render_as_vllm(engines: &[EngineState]) -> String {
        vllm::render(engines)
    }

    /// Batch and throughput.
    fn render_scheduler(&self, page: &mut Page, status: &Status) {
        let running = status.prefilling + status.decoding;
        page.gauge("requests_running", "Requests in the batch, prefilling or decoding", running as u64);
        page.gauge("requests_prefilling", "Running requests that are prefilling", status.prefilling as u64);
        page.gauge("requests_decoding", "Running requests that are decoding", status.decoding as u64);
        page.gauge(
            "requests_waiting",
            "Requests in the queue, including preempted ones",
            status.waiting as u64,
        );
        page.counter(
            "prompt_tokens_total",
            "Prefilled tokens, excluding prefix cache hits; recomputed tokens count again",
            status.prompt_tokens,
        );
        page.counter("generation_tokens_total", "Generated tokens", status.generation_tokens);
        page.counter("steps_total", "Model steps (forward passes)", status.steps);
        page.counter(
            "step_rows_total",
            "Rows of all steps: prefill tokens, decode rows and drafts",
            status.rows,
        );
        page.counter("verify_steps_total", "Decode steps that verified drafts", status.verify_steps);
        page.describe(
            "draft_tokens_total",
            "Drafted tokens by source: text, prediction, grammar or model",
            "counter",
        );
        for (source, counts) in status.drafts.by_source() {
            page.sample("draft_tokens_total", &format!("{{source=\"{source}\"}}"), &counts.drafted);
        }
        page.describe(
            "accepted_tokens_total",
            "Accepted drafts by source: tokens without a step of their own",
            "counter",
        );
        for (source, counts) in status.drafts.by_source() {
            page.sample("accepted_tokens_total", &format!("{{source=\"{source}\"}}"), &counts.accepted);
        }
        page.gauge("last_step_rows", "Rows of the last step (its batch size)", status.last_step_rows);
        page.counter(
            "decode_memory_read_bytes_total",
            "Bytes of weights and KV cache that decode steps read; with experts, steps of one sequence only",
            status.memory_traffic.bytes,
        );
        page.counter(
            "decode_seconds_total",
            "Total time of the decode steps whose bytes are counted",
            status.memory_traffic.time.as_secs_f64(),
        );
        if status.energy.generation_tokens > 0 {
            let energy = status.energy;
            page.counter("step_energy_joules_total", "Energy of steps, where it is measured", energy.joules);
            page.counter(
                "step_energy_tokens_total",
                "Tokens generated by the steps of step_energy_joules_total",
                energy.generation_tokens,
            );
        }
        page.counter(
            "preemptions_total",
            "Preemptions: KV cache or memory exhausted, or device lost",
            status.preemptions,
        );
        page.counter("device_lost_total", "Number of times the GPU was lost", status.devices_lost);
    }

    fn render_kv_cache(&self, page: &mut Page, status: &Status) {
        let total = status.pages.total;
        let used = total.saturating_sub(status.pages.free);
        page.gauge("kv_cache_pages", "Total KV cache pages", total);
        page.gauge("kv_cache_pages_used", "KV cache pages held by sequences", used);
        page.gauge(
            "kv_cache_pages_cached",
            "KV cache pages kept by the prefix cache; evicted when sequences need them",
            status.pages.cached,
        );
        let ratio = f64::from(used) / f64::from(total.max(1));
        page.gauge("kv_cache_usage_ratio", "Fraction of KV cache pages held by sequences, 0 to 1", ratio);
        page.counter(
            "prefix_cache_queries_total",
            "Prefix cache lookups, one per admission",
            status.sequences_started,
        );
        page.counter(
            "prefix_cache_hits_total",
            "Prefix cache lookups that found at least one page",
            status.prefix_cache_hits,
        );
        page.counter(
            "prompt_tokens_cached_total",
            "Prompt tokens found in the prefix cache instead of being prefilled",
            status.cached_tokens,
        );
    }

    /// Outcomes and latencies.
    fn render_requests(&self, page: &mut Page, status: &Status) {
        let outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        page.describe(
            "http_requests_total",
            "HTTP requests to /v1 by outcome: success, client_disconnected, or the error code",
            "counter",
        );
        for (outcome, count) in &*outcomes {
            page.sample("http_requests_total", &format!("{{outcome=\"{outcome}\"}}"), count);
        }
        page.describe(
            "engine_requests_total",
            "Engine requests by outcome; an HTTP request makes one per choice",
            "counter",
        );
        for (outcome, count) in [
            ("finished", status.finished),
            ("failed", status.failed),
            ("cancelled", status.cancelled),
            ("rejected", status.rejected),
        ] {
            page.sample("engine_requests_total", &format!("{{outcome=\"{outcome}\"}}"), &count);
        }
        let tool_calls = self.tool_calls.load(Ordering::Relaxed);
        page.counter("tool_calls_total", "Tool calls in completions", tool_calls);
        page.histogram(
            "time_to_first_token_seconds",
            "Time to first token (TTFT), measured from submission to the engine",
            &status.time_to_first_token,
        );
        page.histogram(
            "inter_token_latency_seconds",
            "Inter-token latency (ITL); the tokens of a decode run share its time",
            &status.inter_token_latency,
        );
        page.histogram(
            "request_latency_seconds",
            "Time to the last token, measured from submission to the engine",
            &status.request_latency,
        );
    }
}
