//! One line a request: who it was, what it took, how it ended. Never what was said.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use engine::Usage;

use crate::metrics::Metrics;

/// What is known of a request. It is written and counted when its last part is dropped, however that came about.
pub(crate) struct Record {
    /// Its name in the log, the answer and the header `x-request-id`.
    pub(crate) id: String,
    /// When it came.
    pub(crate) started: Instant,
    method: String,
    path: String,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    model: String,
    usage: Usage,
    first: Option<Instant>,
    tokens: u32,
    outcome: Option<&'static str>,
}

/// Where nobody says how a request has ended, its client has gone.
const GONE: &str = "client_disconnected";

impl Record {
    pub(crate) fn new(method: String, path: String, metrics: Arc<Metrics>) -> Record {
        Record { id: name(), started: Instant::now(), method, path, metrics, state: Mutex::default() }
    }

    fn with(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Which model is asked.
    pub(crate) fn model(&self, model: &str) {
        self.with(|state| state.model = model.to_owned());
    }

    /// A prompt of so many tokens was taken.
    pub(crate) fn prompt(&self, tokens: u32) {
        self.with(|state| state.usage.prompt_tokens += tokens);
    }

    /// So many tokens of it needed no reading.
    pub(crate) fn cached(&self, tokens: u32) {
        self.with(|state| state.usage.cached_tokens += tokens);
    }

    /// A token came.
    pub(crate) fn token(&self) {
        let now = Instant::now();
        self.with(|state| {
            state.first.get_or_insert(now);
            state.tokens += 1;
        });
    }

    /// An answer has called so many tools.
    pub(crate) fn calls(&self, count: u64) {
        self.metrics.count_tool_calls(count);
    }

    /// How it ended, in a word. The first one stays.
    pub(crate) fn outcome(&self, outcome: &'static str) {
        self.with(|state| {
            state.outcome.get_or_insert(outcome);
        });
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let outcome = state.outcome.unwrap_or(GONE);
        let total = self.started.elapsed();
        let first = state.first.map(|first| first - self.started);
        self.metrics.count_request(outcome);
        tracing::info!(
            id = self.id,
            method = self.method,
            path = self.path,
            model = state.model,
            prompt_tokens = state.usage.prompt_tokens,
            cached_tokens = state.usage.cached_tokens,
            answer_tokens = state.tokens,
            first_token_ms = first.map(milliseconds),
            total_ms = milliseconds(total),
            outcome,
            "request"
        );
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A name that nobody can foresee.
pub(crate) fn name() -> String {
    format!("{:016x}{:08x}", random(), random() as u32)
}

/// A number that nobody can foresee, as good as the keys of the standard library's hash maps.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(())
}
