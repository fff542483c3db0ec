//! State shared by all handlers.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{Semaphore, watch};

use crate::auth::ApiKeys;
use crate::body::BodyLimits;
use crate::config::Config;
use crate::error::Error;
use crate::host::HostCheck;
use crate::images::ImageLoader;
use crate::metrics::Metrics;
use crate::models::{Lease, Machine, ModelStore, Models, Pool, Pulls};
use crate::openai::responses::ResponseStore;
use crate::phase::Phase;
use crate::readiness::SharedProbe;
use crate::stats::MAX_STREAMS;
use crate::traces::Traces;

/// State shared by all handlers.
pub(crate) struct AppState {
    pub(crate) config: Config,
    pub(crate) keys: ApiKeys,
    pub(crate) hosts: HostCheck,
    pub(crate) bodies: BodyLimits,
    pub(crate) models: Pool,
    pub(crate) machine: Option<Arc<dyn Machine>>,
    /// `None` if clients may not change it.
    pub(crate) store: Option<Arc<dyn ModelStore>>,
    pub(crate) pulls: Pulls,
    pub(crate) images: ImageLoader,
    pub(crate) responses: ResponseStore,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) phase: watch::Receiver<Phase>,
    pub(crate) probe: SharedProbe,
    /// `None` if no collector was named.
    pub(crate) traces: Option<Arc<Traces>>,
    /// Streams of statistics that may still be opened.
    pub(crate) stats_streams: Arc<Semaphore>,
    /// Held while statistics are read.
    pub(crate) stats_reader: Arc<Semaphore>,
    pub(crate) started: Instant,
}

/// What a request is parsed with: the state of the server, and the model that it names.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) app: Arc<AppState>,
    pub(crate) served: Lease,
}

impl AppState {
    pub(crate) fn new(
        config: Config,
        models: Models,
        phase: watch::Receiver<Phase>,
    ) -> std::io::Result<AppState> {
        let traces = config.otlp_endpoint.as_deref().map(Traces::start);
        Ok(AppState {
            keys: ApiKeys::new(&config.api_keys),
            hosts: HostCheck::new(config.allowed_hosts.as_deref()),
            bodies: BodyLimits::new(&config),
            models: Pool::new(models.source, &config)?,
            machine: models.machine,
            store: models.store,
            pulls: Pulls::default(),
            images: ImageLoader::new(&config),
            responses: ResponseStore::new(&config),
            metrics: Arc::default(),
            config,
            phase,
            probe: SharedProbe::default(),
            traces: traces.transpose()?.map(Arc::new),
            stats_streams: Arc::new(Semaphore::new(MAX_STREAMS)),
            stats_reader: Arc::new(Semaphore::new(1)),
            started: Instant::now(),
        })
    }

    /// Returns an error if the server is shutting down.
    pub(crate) fn check_phase(&self) -> Result<(), Error> {
        match *self.phase.borrow() {
            Phase::Running => Ok(()),
            Phase::Lingering | Phase::Draining | Phase::Stopped => Err(Error::Stopping),
        }
    }

    /// Returns an error unless the server accepts requests.
    pub(crate) fn check_ready(&self) -> Result<(), Error> {
        self.check_phase()?;
        self.models.not_ready().map_or(Ok(()), |reason| Err(Error::NotReady(reason)))
    }
}
