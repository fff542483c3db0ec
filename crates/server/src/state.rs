//! State shared by all handlers.

use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use text::{ThinkingFormat, ToolSupport};
use tokio::sync::{Semaphore, watch};

use crate::auth::ApiKeys;
use crate::body::BodyLimits;
use crate::config::{Config, Model};
use crate::error::Error;
use crate::generator::Generator;
use crate::grammars::GrammarCache;
use crate::host::HostCheck;
use crate::images::ImageLoader;
use crate::metrics::Metrics;
use crate::openai::responses::ResponseStore;
use crate::phase::Phase;
use crate::stats::MAX_STREAMS;

/// State shared by all handlers.
pub(crate) struct AppState {
    pub(crate) config: Config,
    pub(crate) keys: ApiKeys,
    pub(crate) hosts: HostCheck,
    pub(crate) bodies: BodyLimits,
    pub(crate) model: Model,
    pub(crate) tool_support: ToolSupport,
    /// How the model delimits its thinking, if its template supports it.
    pub(crate) thinking_format: Option<ThinkingFormat>,
    pub(crate) generator: Arc<dyn Generator>,
    pub(crate) grammars: GrammarCache,
    pub(crate) images: ImageLoader,
    pub(crate) responses: ResponseStore,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) phase: watch::Receiver<Phase>,
    /// Streams of statistics that may still be opened.
    pub(crate) stats_streams: Arc<Semaphore>,
    /// Held while statistics are read.
    pub(crate) stats_reader: Arc<Semaphore>,
    pub(crate) started: Instant,
    /// `/openapi.json`. Constant while the server runs.
    pub(crate) openapi: Value,
}

impl AppState {
    pub(crate) fn new(
        config: Config,
        model: Model,
        generator: Arc<dyn Generator>,
        phase: watch::Receiver<Phase>,
    ) -> std::io::Result<AppState> {
        let tool_support = match &model.chat_template {
            Some(template) => template.tool_support(&model.tokenizer),
            None => ToolSupport::None,
        };
        let template = model.chat_template.as_ref();
        let thinking_format = template.and_then(|template| template.thinking_format(&model.tokenizer));
        Ok(AppState {
            keys: ApiKeys::new(&config.api_keys),
            hosts: HostCheck::new(config.allowed_hosts.as_deref()),
            bodies: BodyLimits::new(&config),
            tool_support,
            thinking_format,
            grammars: GrammarCache::start(&model, &config)?,
            images: ImageLoader::new(&config),
            responses: ResponseStore::new(&config),
            metrics: Arc::default(),
            openapi: crate::openapi::document(&model, &config),
            config,
            model,
            generator,
            phase,
            stats_streams: Arc::new(Semaphore::new(MAX_STREAMS)),
            stats_reader: Arc::new(Semaphore::new(1)),
            started: Instant::now(),
        })
    }

    /// Returns an error if the server is shutting down.
    pub(crate) fn check_phase(&self) -> Result<(), Error> {
        match *self.phase.borrow() {
            Phase::Running => Ok(()),
            Phase::Draining | Phase::Stopped => Err(Error::shutting_down()),
        }
    }

    /// Returns an error unless the server accepts requests.
    pub(crate) fn check_ready(&self) -> Result<(), Error> {
        self.check_phase()?;
        self.generator.not_ready().map_or(Ok(()), |reason| Err(Error::NotReady(reason)))
    }
}
