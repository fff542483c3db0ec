//! Who makes the tokens: an engine, or the place that one will be put in.

use std::sync::{Mutex, OnceLock, PoisonError};

use engine::{Engine, EventStream, Request, Status, SubmitError};
use futures_util::future::{BoxFuture, FutureExt};

/// Makes tokens. One for the whole server.
pub trait Generator: Send + Sync + 'static {
    /// Takes a request, or says at once why not. Never waits.
    fn submit(&self, request: Request) -> Result<EventStream, SubmitError>;

    /// Why no request would be taken now, whatever it were: a full queue is told before a body is read. Cheap.
    fn refuses(&self) -> Option<SubmitError>;

    /// How things stand.
    fn status(&self) -> Status;

    /// More numbers for `/metrics`, of what the server knows nothing of.
    fn gauges(&self) -> Vec<Gauge>;

    /// Why it cannot answer now; nothing where it can. Asked for every request: cheap.
    fn unready(&self) -> Option<String>;

    /// How many positions a sequence may have: a prompt and all but the last token of its answer.
    fn context(&self) -> u32;

    /// Whether the GPU does something that it is asked for. Takes as long as the GPU does, if need be for ever.
    fn probe(&self) -> BoxFuture<'_, bool>;
}

/// A number that goes up and down.
#[derive(Clone, Debug, PartialEq)]
pub struct Gauge {
    /// Its name, without the prefix that all have. Those of one name stand together.
    pub name: &'static str,
    /// What it is.
    pub help: &'static str,
    /// What tells it from others of its name: a key and a value.
    pub label: Option<(&'static str, String)>,
    /// How much.
    pub value: f64,
}

impl Generator for Engine {
    fn submit(&self, request: Request) -> Result<EventStream, SubmitError> {
        Engine::submit(self, request)
    }

    fn refuses(&self) -> Option<SubmitError> {
        Engine::would_reject(self)
    }

    fn gauges(&self) -> Vec<Gauge> {
        vec![]
    }

    fn status(&self) -> Status {
        Engine::status(self)
    }

    fn unready(&self) -> Option<String> {
        let status = Engine::status(self);
        match status {
            _ if status.draining => Some("it is about to stop".to_owned()),
            // What was taken is finished when it is back; what comes meanwhile is better sent elsewhere.
            _ if status.device_lost => Some("the GPU was lost and is being put back".to_owned()),
            _ => None,
        }
    }

    fn context(&self) -> u32 {
        self.capacity().context_length
    }

    fn probe(&self) -> BoxFuture<'_, bool> {
        Engine::probe(self).boxed()
    }
}

/// A place for an engine whose model is being loaded: the server can be asked how things stand from the start.
pub struct Place {
    engine: OnceLock<Engine>,
    doing: Mutex<String>,
    context: u32,
    gauges: Box<ReadGauges>,
}

/// Reads numbers, told how things stand.
type ReadGauges = dyn Fn(&Status) -> Vec<Gauge> + Send + Sync;

impl Place {
    /// For an engine of this context, which is not there yet; `doing` says what is done about that.
    pub fn new(context: u32, doing: &str) -> Place {
        let doing = Mutex::new(doing.to_owned());
        Place { engine: OnceLock::new(), doing, context, gauges: Box::new(|_| vec![]) }
    }

    /// The same with more numbers for `/metrics`, asked for each time and told how things stand.
    pub fn with_gauges(self, gauges: impl Fn(&Status) -> Vec<Gauge> + Send + Sync + 'static) -> Place {
        Place { gauges: Box::new(gauges), ..self }
    }

    /// What is being done now.
    pub fn say(&self, doing: &str) {
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = doing.to_owned();
    }

    /// Here it is. Only the first one counts.
    pub fn fill(&self, engine: Engine) {
        self.engine.get_or_init(|| engine);
    }
}

impl Generator for Place {
    fn submit(&self, request: Request) -> Result<EventStream, SubmitError> {
        // Nobody asks before it is ready; between the two, the only reason not to be is the end.
        self.engine.get().map_or(Err(SubmitError::Draining), |engine| engine.submit(request))
    }

    fn refuses(&self) -> Option<SubmitError> {
        self.engine.get().and_then(Engine::would_reject)
    }

    fn gauges(&self) -> Vec<Gauge> {
        (self.gauges)(&self.status())
    }

    fn status(&self) -> Status {
        self.engine.get().map_or_else(Status::default, Engine::status)
    }

    fn unready(&self) -> Option<String> {
        match self.engine.get() {
            Some(engine) => Generator::unready(engine),
            None => Some(self.doing.lock().unwrap_or_else(PoisonError::into_inner).clone()),
        }
    }

    fn context(&self) -> u32 {
        self.context
    }

    fn probe(&self) -> BoxFuture<'_, bool> {
        match self.engine.get() {
            Some(engine) => Generator::probe(engine),
            None => async { false }.boxed(),
        }
    }
}
