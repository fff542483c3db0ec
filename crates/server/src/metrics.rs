//! `/metrics`: numbers in Prometheus' text form (version 0.0.4).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use engine::{Histogram, Status};

use crate::generator::Gauge;

/// The media type of the text form.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How requests ended, by a word for each, and what answers have called; the rest comes from the engine's [`Status`].
#[derive(Default)]
pub(crate) struct Metrics {
    outcomes: Mutex<BTreeMap<&'static str, u64>>,
    calls: AtomicU64,
}

impl Metrics {
    /// A request has ended.
    pub(crate) fn count(&self, outcome: &'static str) {
        let mut outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        *outcomes.entry(outcome).or_default() += 1;
    }

    /// An answer has called so many tools.
    pub(crate) fn called(&self, count: u64) {
        self.calls.fetch_add(count, Ordering::Relaxed);
    }

    /// All of it as text.
    pub(crate) fn text(&self, status: &Status, ready: bool, gauges: &[Gauge]) -> String {
        let mut page = Page(String::new());
        page.gauge("ready", "1 where requests are answered", u64::from(ready));
        page.gauge("queued_requests", "Requests that wait", status.waiting as u64);
        page.gauge("reading_requests", "Requests whose prompts are read", status.prefilling as u64);
        page.gauge("writing_requests", "Requests whose answers are written", status.decoding as u64);
        page.gauge("kv_pages", "Pages of the KV cache", status.pages.total.into());
        page.gauge(
            "kv_pages_taken",
            "Pages of the KV cache that are taken",
            status.pages.total.saturating_sub(status.pages.free).into(),
        );
        page.gauge(
            "kv_pages_cached",
            "Pages of the KV cache that are kept for texts that begin alike, and free for others",
            status.pages.cached.into(),
        );
        page.counter("prompt_tokens_read_total", "Tokens of prompts that were read", status.prompt_tokens);
        page.counter(
            "prompt_tokens_cached_total",
            "Tokens of prompts that needed no reading",
            status.cached_tokens,
        );
        page.counter("tokens_written_total", "Tokens of answers", status.generation_tokens);
        page.counter("steps_total", "Steps of the model", status.steps);
        page.counter(
            "rows_total",
            "Rows of all steps: tokens that were read, and one for each answer that was written",
            status.rows,
        );
        page.gauge("step_rows", "Rows of the last step", status.last_step_rows);
        page.counter(
            "prefix_lookups_total",
            "Prompts that were looked up among texts that were read before",
            status.sequences_started,
        );
        page.counter(
            "prefix_hits_total",
            "Of those, the ones whose beginning needed no reading",
            status.prefix_cache_hits,
        );
        page.counter(
            "decode_read_bytes_total",
            "Bytes of weights, keys and values that steps without a prompt had to read",
            status.memory_traffic.bytes,
        );
        page.head("decode_seconds_total", "The time of those steps", "counter");
        page.line("decode_seconds_total", "", &status.memory_traffic.time.as_secs_f64());
        page.counter(
            "set_back_total",
            "Requests set back to read again what they had read",
            status.preemptions,
        );
        page.counter("device_losses_total", "How often the GPU was lost", status.devices_lost);
        page.counter("tool_calls_total", "Calls of tools in answers", self.calls.load(Ordering::Relaxed));
        let outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        page.head("requests_total", "Requests to /v1 by how they ended", "counter");
        for (outcome, count) in &*outcomes {
            page.line("requests_total", &format!("{{outcome=\"{outcome}\"}}"), count);
        }
        page.head(
            "answers_total",
            "Answers by how the engine ended them; a request may ask for several",
            "counter",
        );
        for (end, count) in [
            ("finished", status.finished),
            ("failed", status.failed),
            ("cancelled", status.cancelled),
            ("refused", status.rejected),
        ] {
            page.line("answers_total", &format!("{{end=\"{end}\"}}"), &count);
        }
        page.times(
            "first_token_seconds",
            "From an answer being asked of the engine to its first token",
            &status.time_to_first_token,
        );
        page.times("token_seconds", "Between the tokens of an answer", &status.inter_token_latency);
        page.times(
            "answer_seconds",
            "From an answer being asked of the engine to its last token",
            &status.request_latency,
        );
        let mut described = "";
        for Gauge { name, help, label, value } in gauges {
            if described != *name {
                page.head(name, help, "gauge");
                described = name;
            }
            let label = label.as_ref().map(|(key, value)| format!("{{{key}={value:?}}}"));
            page.line(name, &label.unwrap_or_default(), value);
        }
        page.0
    }
}

/// Text that grows by metrics.
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        writeln!(self.0, "# HELP indrik_{name} {help}.\n# TYPE indrik_{name} {kind}").expect("text grows");
    }

    fn line(&mut self, name: &str, labels: &str, value: &dyn std::fmt::Display) {
        writeln!(self.0, "indrik_{name}{labels} {value}").expect("text grows");
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, help, "gauge");
        self.line(name, "", &value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, help, "counter");
        self.line(name, "", &value);
    }

    fn times(&mut self, name: &str, help: &str, times: &Histogram) {
        self.head(name, help, "histogram");
        let bucket = format!("{name}_bucket");
        for (bound, within) in times.at_most() {
            self.line(&bucket, &format!("{{le=\"{}\"}}", bound.as_secs_f64()), &within);
        }
        self.line(&bucket, "{le=\"+Inf\"}", &times.count());
        self.line(&format!("{name}_sum"), "", &times.sum().as_secs_f64());
        self.line(&format!("{name}_count"), "", &times.count());
    }
}
