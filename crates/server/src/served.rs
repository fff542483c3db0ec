//! A model that is loaded, with everything that its requests share.

use std::any::Any;
use std::io;
use std::sync::Arc;

use text::{ThinkingFormat, ToolSupport};

use crate::config::{Config, Model};
use crate::generator::Generator;
use crate::grammars::GrammarCache;
use crate::models::LoadedModel;

/// A model that is loaded.
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

impl ServedModel {
    pub(crate) fn new(loaded: LoadedModel, config: &Config) -> io::Result<ServedModel> {
        let LoadedModel { model, generator, resources } = loaded;
        let template = model.chat_template.as_ref();
        let tool_support =
            template.map_or(ToolSupport::None, |template| template.tool_support(&model.tokenizer));
        let thinking_format = template.and_then(|template| template.thinking_format(&model.tokenizer));
        let grammars = GrammarCache::start(&model, config)?;
        Ok(ServedModel { tool_support, thinking_format, grammars, model, generator, resources })
    }
}
