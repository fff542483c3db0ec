//! The source of tokens.

use engine::{Capacity, Engine, EventStream, RecentStats, Request, Status, SubmitError};
use futures_util::future::{BoxFuture, FutureExt};

/// Generates tokens for the server.
pub trait Generator: Send + Sync + 'static {
    /// Submits a request. Returns at once.
    fn submit(&self, request: Request) -> Result<EventStream, SubmitError>;

    /// The error that any submission would get now, such as a full queue. Cheap: checked before a body is received.
    fn would_reject(&self) -> Option<SubmitError>;

    /// Counters and gauges of the engine.
    fn status(&self) -> Status;

    /// Token rates and latencies of the last seconds.
    fn recent(&self) -> RecentStats;

    /// Limits of the engine, if it has any.
    fn capacity(&self) -> Option<Capacity>;

    /// Reason that requests are not accepted now; `None` if they are. Cheap: checked for every request.
    fn not_ready(&self) -> Option<String>;

    /// Context length in tokens. The last token of a completion does not count: it is never an input.
    fn context_length(&self) -> u32;

    /// Runs a small piece of work on the GPU and returns whether it succeeded. Never resolves if the GPU hangs.
    fn probe(&self) -> BoxFuture<'_, bool>;
}

/// A gauge for `/metrics`.
#[derive(Clone, Debug, PartialEq)]
pub struct Gauge {
    /// Name without the prefix `indrik_`. Gauges with the same name must be adjacent.
    pub name: &'static str,
    /// HELP text, without a final full stop.
    pub help: &'static str,
    /// Label name and value.
    pub label: Option<(&'static str, String)>,
    /// Current value.
    pub value: f64,
}

impl Generator for Engine {
    fn submit(&self, request: Request) -> Result<EventStream, SubmitError> {
        Engine::submit(self, request)
    }

    fn would_reject(&self) -> Option<SubmitError> {
        Engine::would_reject(self)
    }

    fn status(&self) -> Status {
        Engine::status(self)
    }

    fn recent(&self) -> RecentStats {
        Engine::recent(self)
    }

    fn capacity(&self) -> Option<Capacity> {
        Some(Engine::capacity(self))
    }

    fn not_ready(&self) -> Option<String> {
        let status = Engine::status(self);
        match status {
            _ if status.draining => Some("it is shutting down".to_owned()),
            // Accepted requests resume once the device is back; new ones are better sent to another server.
            _ if status.device_lost => Some("the GPU was lost and is being reopened".to_owned()),
            _ => None,
        }
    }

    fn context_length(&self) -> u32 {
        self.capacity().context_length
    }

    fn probe(&self) -> BoxFuture<'_, bool> {
        Engine::probe(self).boxed()
    }
}
