//! A model that is loaded, with everything that its requests share.

use std::any::Any;
use std::io;
use std::sync::Arc;

use text::{ThinkingFormat, ToolSupport};
use tokio::sync::Semaphore;

use crate::config::{Config, Model};
use crate::embedder::{Embedder, EmbeddingModel};
use crate::generator::Generator;
use crate::grammars::GrammarCache;
use crate::models::{LoadedKind, LoadedModel};

/// A model that is loaded.
#[derive(Clone)]
pub(crate) enum Served {
    Language(Arc<ServedModel>),
    Embedder(Arc<ServedEmbedder>),
}

/// A model that generates text.
pub(crate) struct ServedModel {
    pub(crate) model: Model,
    pub(crate) tool_support: ToolSupport,
    /// How the model delimits its thinking, if its template supports it.
    pub(crate) thinking_format: Option<ThinkingFormat>,
    pub(crate) generator: Arc<dyn Generator>,
    pub(crate) grammars: GrammarCache,
    /// Dropped after the generator.
    #[allow(dead_code, reason = "held while the model is loaded")]
    resources: Option<Box<dyn Any + Send + Sync>>,
}

/// A model that embeds texts.
pub(crate) struct ServedEmbedder {
    pub(crate) model: EmbeddingModel,
    pub(crate) embedder: Arc<dyn Embedder>,
    /// One permit: requests take turns.
    pub(crate) turn: Arc<Semaphore>,
    #[allow(dead_code, reason = "held while the model is loaded")]
    resources: Option<Box<dyn Any + Send + Sync>>,
}

impl Served {
    pub(crate) fn new(loaded: LoadedModel, config: &Config) -> io::Result<Served> {
        let LoadedModel { kind, resources } = loaded;
        let (model, generator) = match kind {
            LoadedKind::Language(model, generator) => (*model, generator),
            LoadedKind::Embedder(model, embedder) => {
                let turn = Arc::new(Semaphore::new(1));
                return Ok(Served::Embedder(Arc::new(ServedEmbedder { model, embedder, turn, resources })));
            }
        };
        let template = model.chat_template.as_ref();
        let tool_support =
            template.map_or(ToolSupport::None, |template| template.tool_support(&model.tokenizer));
        let thinking_format = template.and_then(|template| template.thinking_format(&model.tokenizer));
        let grammars = GrammarCache::start(&model, config)?;
        let served = ServedModel { tool_support, thinking_format, grammars, model, generator, resources };
        Ok(Served::Language(Arc::new(served)))
    }

    pub(crate) fn id(&self) -> &str {
        match self {
            Served::Language(served) => &served.model.id,
            Served::Embedder(served) => &served.model.id,
        }
    }

    /// The engine, if the model generates text.
    pub(crate) fn generator(&self) -> Option<&Arc<dyn Generator>> {
        match self {
            Served::Language(served) => Some(&served.generator),
            Served::Embedder(_) => None,
        }
    }
}
