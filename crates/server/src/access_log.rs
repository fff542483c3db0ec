//! The access log: one line per request with its id, token counts, latencies and outcome. Never its content.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::http::{HeaderMap, HeaderName};
use engine::Usage;
use tracing::Span;

use crate::metrics::Metrics;
use crate::random;
use crate::traces::{self, ParentContext, SpanId, TraceId, Traces};

/// Header that carries the request id, in requests and in responses.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Maximum length of a request id from a client.
const MAX_ID_LENGTH: usize = 128;

/// Maximum length of the path in an exported span: the client chooses it.
const MAX_SPAN_PATH: usize = 256;

/// Outcome of a request that ended without another one: its client disconnected.
const DISCONNECTED: &str = "client_disconnected";

/// The log entry of a request. Logged and counted when the last reference is dropped, however the request ended.
pub(crate) struct LogEntry {
    /// Request id: in the log, in the response's `id` and its `x-request-id` header.
    pub(crate) id: String,
    /// Arrival of the request.
    pub(crate) started: Instant,
    /// Tracing span that adds the request id to every event, including those of the engine.
    pub(crate) span: Span,
    method: String,
    path: String,
    metrics: Arc<Metrics>,
    trace: Option<Trace>,
    state: Mutex<State>,
}

/// The span that is exported when the request ends.
struct Trace {
    traces: Arc<Traces>,
    id: TraceId,
    parent: Option<SpanId>,
    started: SystemTime,
}

#[derive(Default)]
struct State {
    model: String,
    usage: Usage,
    first_token: Option<Instant>,
    load_time: Duration,
    outcome: Option<&'static str>,
}

impl LogEntry {
    pub(crate) fn new(
        method: String,
        path: String,
        headers: &HeaderMap,
        metrics: Arc<Metrics>,
        traces: Option<Arc<Traces>>,
    ) -> LogEntry {
        let id = client_id(headers).unwrap_or_else(random::id);
        // At level `error`, so that no log filter drops the id from an event that it lets through.
        let span = tracing::error_span!("request", request_id = id, trace_id = tracing::field::Empty);
        let parent = ParentContext::of(headers);
        // A trace that its caller does not record would have a hole where it started.
        let traces = traces.filter(|_| parent.is_none_or(|parent| parent.is_sampled));
        let trace = traces.map(|traces| Trace {
            traces,
            id: parent.map_or_else(TraceId::random, |parent| parent.trace),
            parent: parent.map(|parent| parent.span),
            started: SystemTime::now(),
        });
        if let Some(id) = parent.map(|parent| parent.trace).or(trace.as_ref().map(|trace| trace.id)) {
            span.record("trace_id", tracing::field::display(id));
        }
        LogEntry { id, started: Instant::now(), span, method, path, metrics, trace, state: Mutex::default() }
    }

    fn update(&self, update: impl FnOnce(&mut State)) {
        update(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn set_model(&self, model: &str) {
        self.update(|state| state.model = model.to_owned());
    }

    /// Sets the time that the request waited for its model.
    pub(crate) fn set_load_time(&self, time: Duration) {
        self.update(|state| state.load_time = time);
    }

    /// Time that the request waited for its model.
    pub(crate) fn load_time(&self) -> Duration {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).load_time
    }

    pub(crate) fn add_prompt_tokens(&self, tokens: u32) {
        self.update(|state| state.usage.prompt_tokens += tokens);
    }

    pub(crate) fn add_cached_tokens(&self, tokens: u32) {
        self.update(|state| state.usage.cached_tokens += tokens);
    }

    /// Counts a generated token.
    pub(crate) fn add_token(&self) {
        let now = Instant::now();
        self.update(|state| {
            state.first_token.get_or_insert(now);
            state.usage.completion_tokens += 1;
        });
    }

    /// Counts the tool calls of a choice.
    pub(crate) fn add_tool_calls(&self, count: u64) {
        self.metrics.count_tool_calls(count);
    }

    /// Sets the outcome: `success` or an error code. The first one is kept.
    pub(crate) fn set_outcome(&self, outcome: &'static str) {
        self.update(|state| {
            state.outcome.get_or_insert(outcome);
        });
    }
}

impl Drop for LogEntry {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let outcome = state.outcome.unwrap_or(DISCONNECTED);
        let total = self.started.elapsed();
        let first_token = state.first_token.map(|at| at - self.started);
        self.span.in_scope(|| {
            tracing::info!(
                method = self.method,
                path = self.path,
                model = state.model,
                prompt_tokens = state.usage.prompt_tokens,
                cached_tokens = state.usage.cached_tokens,
                completion_tokens = state.usage.completion_tokens,
                ttft_ms = first_token.map(milliseconds),
                total_ms = milliseconds(total),
                outcome,
                "request finished"
            );
        });
        if let Some(Trace { traces, id, parent, started }) = self.trace.take() {
            traces.push(traces::Span {
                trace: id,
                id: SpanId::random(),
                parent,
                method: std::mem::take(&mut self.method),
                path: self.path.chars().take(MAX_SPAN_PATH).collect(),
                request_id: std::mem::take(&mut self.id),
                model: std::mem::take(&mut state.model),
                outcome,
                usage: state.usage,
                started,
                duration: total,
                time_to_first_token: first_token,
            });
        }
        // Last, so that what is counted is logged, too.
        self.metrics.count_request(outcome);
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The request id sent by the client, if it is short and safe in logs and headers.
fn client_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let safe = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    ((1..=MAX_ID_LENGTH).contains(&id.len()) && id.bytes().all(safe)).then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_short_plain_client_ids_are_accepted() {
        let id = |value: &[u8]| {
            let headers = HeaderMap::from_iter([(REQUEST_ID, HeaderValue::from_bytes(value).unwrap())]);
            client_id(&headers)
        };
        for valid in ["a", "3f2b-4c_5.d", &"x".repeat(128)] {
            assert_eq!(id(valid.as_bytes()).as_deref(), Some(valid));
        }
        for invalid in [&b""[..], b"a b", b"a\"b", b"a{b}", b"\xff", "x".repeat(129).as_bytes()] {
            assert_eq!(id(invalid), None);
        }
        assert_eq!(client_id(&HeaderMap::new()), None);
    }
}
