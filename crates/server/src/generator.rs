//! The source of tokens: an engine, or a slot for one that is still loading.

use std::sync::{Mutex, OnceLock, PoisonError};

use engine::{Capacity, Engine, EventStream, RecentStats, Request, Status, SubmitError};
use futures_util::future::{BoxFuture, FutureExt};

use crate::stats::HardwareStats;

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

    /// Limits of the engine; `None` while it is loading.
    fn capacity(&self) -> Option<Capacity>;

    /// The device and the machine, for `/stats`. May block.
    fn hardware(&self) -> HardwareStats {
        HardwareStats::default()
    }

    /// Additional gauges for `/metrics`.
    fn gauges(&self) -> Vec<Gauge>;

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

    fn gauges(&self) -> Vec<Gauge> {
        vec![]
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

/// A slot for an engine whose model is still loading. It lets the server respond to `/health`, `/ready` and
/// `/metrics` from the start.
pub struct EngineSlot {
    engine: OnceLock<Engine>,
    /// Loading stage, shown by `/ready`.
    stage: Mutex<String>,
    context_length: u32,
    gauges: Box<ReadGauges>,
    hardware: Box<ReadHardware>,
}

/// Reads additional gauges.
type ReadGauges = dyn Fn(&Status) -> Vec<Gauge> + Send + Sync;

/// Reads the state of the device and the machine.
type ReadHardware = dyn Fn(&Status) -> HardwareStats + Send + Sync;

impl EngineSlot {
    /// An empty slot for an engine with this context length.
    pub fn new(context_length: u32, stage: &str) -> EngineSlot {
        let stage = Mutex::new(stage.to_owned());
        EngineSlot {
            engine: OnceLock::new(),
            stage,
            context_length,
            gauges: Box::new(|_| vec![]),
            hardware: Box::new(|_| HardwareStats::default()),
        }
    }

    /// Adds gauges to `/metrics`; they are read at every scrape.
    pub fn with_gauges(self, gauges: impl Fn(&Status) -> Vec<Gauge> + Send + Sync + 'static) -> EngineSlot {
        EngineSlot { gauges: Box::new(gauges), ..self }
    }

    /// Adds the device and the machine to `/stats`; they are read at every request.
    pub fn with_hardware(
        self,
        hardware: impl Fn(&Status) -> HardwareStats + Send + Sync + 'static,
    ) -> EngineSlot {
        EngineSlot { hardware: Box::new(hardware), ..self }
    }

    /// Sets the loading stage that `/ready` shows.
    pub fn set_stage(&self, stage: &str) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage.to_owned();
    }

    /// Fills the slot. Only the first call has an effect.
    pub fn fill(&self, engine: Engine) {
        self.engine.get_or_init(|| engine);
    }
}

impl Generator for EngineSlot {
    fn submit(&self, request: Request) -> Result<EventStream, SubmitError> {
        // The router checks readiness first, so an empty slot here means shutdown during loading.
        self.engine.get().map_or(Err(SubmitError::Draining), |engine| engine.submit(request))
    }

    fn would_reject(&self) -> Option<SubmitError> {
        self.engine.get().and_then(Engine::would_reject)
    }

    fn gauges(&self) -> Vec<Gauge> {
        (self.gauges)(&self.status())
    }

    fn status(&self) -> Status {
        self.engine.get().map_or_else(Status::default, Engine::status)
    }

    fn recent(&self) -> RecentStats {
        self.engine.get().map_or_else(RecentStats::default, Engine::recent)
    }

    fn capacity(&self) -> Option<Capacity> {
        self.engine.get().map(Engine::capacity)
    }

    fn hardware(&self) -> HardwareStats {
        (self.hardware)(&self.status())
    }

    fn not_ready(&self) -> Option<String> {
        match self.engine.get() {
            Some(engine) => Generator::not_ready(engine),
            None => Some(self.stage.lock().unwrap_or_else(PoisonError::into_inner).clone()),
        }
    }

    fn context_length(&self) -> u32 {
        self.context_length
    }

    fn probe(&self) -> BoxFuture<'_, bool> {
        match self.engine.get() {
            Some(engine) => Generator::probe(engine),
            None => async { false }.boxed(),
        }
    }
}
