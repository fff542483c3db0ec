//! `/metrics`: numbers in Prometheus' text form (version 0.0.4).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::seam::Status;

/// The media type of the text form.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper ends of buckets in seconds: from a small model on a large GPU to a long prompt on a small one.
const TIMES: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0];

/// What the server itself counts; the rest comes from [`Status`].
#[derive(Default)]
pub(crate) struct Metrics(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    outcomes: BTreeMap<&'static str, u64>,
    total: Histogram,
    first: Histogram,
    between: Histogram,
}

#[derive(Default)]
struct Histogram {
    /// How many were within each bucket and no smaller one.
    buckets: [u64; TIMES.len()],
    count: u64,
    sum: f64,
}

impl Histogram {
    fn add(&mut self, time: Duration) {
        let time = time.as_secs_f64();
        if let Some(bucket) = TIMES.iter().position(|end| time <= *end) {
            self.buckets[bucket] += 1;
        }
        self.count += 1;
        self.sum += time;
    }
}

impl Metrics {
    /// A request has ended: how, after what time, when its first token came, and the mean time between its tokens.
    pub(crate) fn count(
        &self,
        outcome: &'static str,
        total: Duration,
        first: Option<Duration>,
        between: Option<Duration>,
    ) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.outcomes.entry(outcome).or_default() += 1;
        counts.total.add(total);
        first.into_iter().for_each(|first| counts.first.add(first));
        between.into_iter().for_each(|between| counts.between.add(between));
    }

    /// All of it as text.
    pub(crate) fn text(&self, status: &Status, ready: bool) -> String {
        let mut page = Page(String::new());
        page.gauge("ready", "1 where requests are answered", u64::from(ready));
        page.gauge("queued_requests", "Requests that wait", status.queued as u64);
        page.gauge("reading_requests", "Requests whose prompts are read", status.reading as u64);
        page.gauge("writing_requests", "Requests whose answers are written", status.writing as u64);
        page.gauge("kv_pages", "Pages of the KV cache", status.pages.total.into());
        page.gauge(
            "kv_pages_taken",
            "Pages of the KV cache that are taken",
            status.pages.total.saturating_sub(status.pages.free).into(),
        );
        page.counter("prompt_tokens_read_total", "Tokens of prompts that were read", status.read);
        page.counter("prompt_tokens_cached_total", "Tokens of prompts that needed no reading", status.cached);
        page.counter("tokens_written_total", "Tokens of answers", status.written);
        page.counter("steps_total", "Steps of the model", status.steps);
        page.counter("set_back_total", "Requests set back to read again what they had read", status.set_back);
        page.counter("device_losses_total", "How often the GPU was lost", status.lost);
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        page.head("requests_total", "Requests to /v1 by how they ended", "counter");
        for (outcome, count) in &counts.outcomes {
            page.line("requests_total", &format!("{{outcome=\"{outcome}\"}}"), count);
        }
        page.histogram("request_seconds", "From arrival to the last token", &counts.total);
        page.histogram("first_token_seconds", "From arrival to the first token", &counts.first);
        page.histogram("token_seconds", "Mean time between the tokens of a request", &counts.between);
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

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, help, "histogram");
        let bucket = format!("{name}_bucket");
        let mut within = 0;
        for (end, count) in TIMES.iter().zip(histogram.buckets) {
            within += count;
            self.line(&bucket, &format!("{{le=\"{end}\"}}"), &within);
        }
        self.line(&bucket, "{le=\"+Inf\"}", &histogram.count);
        self.line(&format!("{name}_sum"), "", &histogram.sum);
        self.line(&format!("{name}_count"), "", &histogram.count);
    }
}
