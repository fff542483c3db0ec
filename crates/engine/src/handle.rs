//! The handle through which requests are submitted.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crate::{
    Backend, Capacity, EventStream, Options, PowerMeter, RecentStats, Request, Status, SubmitError,
    inbox::Shared, schedule::Scheduler,
};

/// Replaces drain timeouts that [`Instant`] cannot represent.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Reports the end of the engine thread, also when it panics.
struct ThreadGuard(Arc<Shared>);

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        self.0.thread_ended();
    }
}

/// Stops the engine when the last handle is dropped.
struct StopOnDrop(Arc<Shared>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.close(Instant::now());
    }
}

/// A handle to the engine, cheap to clone. The engine stops when the last handle is dropped.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<StopOnDrop>,
}

impl Engine {
    /// Starts the engine thread, which owns the backend.
    pub fn start<B: Backend>(backend: B, options: Options) -> std::io::Result<Self> {
        Self::start_metered(backend, options, None)
    }

    /// Starts the engine thread with a power meter, which measures the energy of requests.
    pub fn start_metered<B: Backend>(
        backend: B,
        options: Options,
        power: Option<PowerMeter>,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::new(backend.capacity(), options));
        let scheduler = Scheduler::new(backend, shared.clone(), power);
        let guard = ThreadGuard(shared.clone());
        thread::Builder::new().name("engine".into()).spawn(move || {
            let _guard = guard;
            scheduler.run();
        })?;
        Ok(Self { inner: Arc::new(StopOnDrop(shared)) })
    }

    /// Capacity of the backend.
    pub fn capacity(&self) -> Capacity {
        self.shared().capacity
    }

    /// Queues a request, or rejects it. Never blocks on the GPU.
    pub fn submit(&self, request: Request) -> Result<EventStream, SubmitError> {
        self.shared().submit(request)
    }

    /// The error that [`submit`](Self::submit) would return now for any request: for callers with work to do
    /// before they can submit, such as receiving a body. Counts as a rejection in [`Status::rejected`].
    pub fn would_reject(&self) -> Option<SubmitError> {
        self.shared().would_reject()
    }

    /// Current state and counters.
    pub fn status(&self) -> Status {
        self.shared().status()
    }

    /// Token rates and latencies of the last seconds.
    pub fn recent(&self) -> RecentStats {
        self.shared().recent()
    }

    /// Whether the device still executes work, tested after the current step. Detects a device that was lost
    /// while idle and starts its recovery.
    pub async fn probe(&self) -> bool {
        self.shared().probe().await.is_ok()
    }

    /// Rejects new requests, lets submitted ones finish, and ends the engine. Requests that are unfinished
    /// after `timeout` fail with [`RequestError::Stopped`](crate::RequestError::Stopped). Blocks until the
    /// engine thread has dropped its backend: at most the timeout plus one step.
    pub fn drain(&self, timeout: Duration) {
        let now = Instant::now();
        self.shared().close(now.checked_add(timeout).unwrap_or(now + YEAR));
        self.shared().wait_for_exit();
    }

    /// A function that blocks until the engine thread has ended and returns whether it ended unexpectedly:
    /// before the engine was drained, stopped or dropped, which is a bug. It does not keep the engine alive.
    pub fn watch_exit(&self) -> impl FnOnce() -> bool + Send + use<> {
        let shared = self.inner.0.clone();
        move || !shared.wait_for_exit()
    }

    /// Ends the engine after the current step. All requests fail with
    /// [`RequestError::Stopped`](crate::RequestError::Stopped).
    pub fn stop(&self) {
        self.drain(Duration::ZERO);
    }

    fn shared(&self) -> &Shared {
        &self.inner.0
    }
}
