//! A checkpoint whose files have been opened and checked, before any weight is read.

use std::{
    path::Path,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use checkpoint::{Checkpoint, Vision, config::Config};
use model::{Sampling, language::Language};

use crate::{
    Error, Model, Result,
    load::{self, LoadHooks, Options},
    sampling::recommended_sampling,
};

/// Default context length in tokens, unless the model's maximum is smaller.
const DEFAULT_CONTEXT_LENGTH: u32 = 8192;

/// An opened checkpoint: its configuration, tokenizer and chat template. Cheap to clone.
///
/// Opening one reads headers and metadata only, so a wrong path, an unsupported architecture or a prompt that
/// is too long is reported before the device is touched.
#[derive(Clone)]
pub struct ModelFiles {
    checkpoint: Arc<Checkpoint>,
    /// Tokens of an image, at most, if that is not the model's default.
    image_tokens: Option<u32>,
}

impl ModelFiles {
    /// Opens a GGUF file, a Hugging Face folder, a file written by `indrik quantize`, or a model in the local
    /// store by name.
    pub fn open(path_or_name: &str) -> Result<Self> {
        let path = store::resolve_model(path_or_name)?;
        Ok(Self { checkpoint: Arc::new(Checkpoint::open(&path)?), image_tokens: None })
    }

    /// The same model with another maximum of tokens per image: more show more detail and take longer. An error if the
    /// model takes no images, or not as many tokens.
    pub fn with_image_tokens(mut self, tokens: u32) -> Result<Self> {
        let Some(vision) = self.vision() else {
            let reason = self.language()?.images.err().unwrap_or_default();
            return Err(Error::ImagesUnsupported { reason });
        };
        vision.config.with_max_soft_tokens(tokens).map_err(|reason| Error::ImageTokens { reason })?;
        self.image_tokens = Some(tokens);
        Ok(self)
    }

    /// The checkpoint.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The model's configuration.
    pub fn config(&self) -> &Config {
        &self.checkpoint.config
    }

    /// Where the checkpoint is.
    pub fn path(&self) -> &Path {
        &self.checkpoint.path
    }

    /// The tokenizer, the chat template and the stop tokens. Parsed again on each call.
    pub fn language(&self) -> Result<Language> {
        let mut language = Language::from_checkpoint(&self.checkpoint)?;
        if let Some(tokens) = self.image_tokens {
            language.images = language.images.map(|processor| processor.with_max_soft_tokens(tokens));
        }
        Ok(language)
    }

    /// The image encoder; `None` if the model has none, or its file cannot be used, which [`Language::images`] explains.
    pub fn vision(&self) -> Option<Vision> {
        match self.checkpoint.vision() {
            Ok(vision) => {
                let mut vision = vision?;
                if let Some(tokens) = self.image_tokens
                    && let Ok(config) = vision.config.clone().with_max_soft_tokens(tokens)
                {
                    vision.config = config;
                }
                Some(vision)
            }
            Err(error) => {
                tracing::warn!("images are not supported: {error}");
                None
            }
        }
    }

    /// The sampling parameters that the model's authors recommend for conversations. The seed is 0.
    pub fn recommended_sampling(&self) -> Sampling {
        recommended_sampling(self.config().architecture)
    }

    /// The context length if none is configured: 8192 tokens, or the model's maximum if that is less.
    pub fn default_context_length(&self) -> u32 {
        self.config().max_positions.min(DEFAULT_CONTEXT_LENGTH)
    }

    /// Checks that the model supports a context of this many tokens.
    pub fn check_context_length(&self, tokens: usize) -> Result<u32> {
        let max_context_length = self.config().max_positions;
        match u32::try_from(tokens) {
            Ok(length) if length <= max_context_length => Ok(length),
            _ => Err(model::Error::ContextLengthExceeded {
                tokens: tokens as u64,
                context_length: max_context_length,
                max_context_length,
            }
            .into()),
        }
    }

    /// Loads the weights into device memory. Fails before any weight is read if they do not fit.
    pub fn load(&self, options: Options) -> Result<Model> {
        self.load_with(options, LoadHooks::default())
    }

    /// Loads with progress reports and cancellation.
    pub fn load_with(&self, options: Options, hooks: LoadHooks<'_>) -> Result<Model> {
        load::load_model(self.clone(), options, hooks)
    }

    /// Bytes of device memory that the model takes once it is loaded with these options.
    pub fn memory_bytes(&self, options: &Options, device: &gpu::AdapterInfo) -> Result<u64> {
        load::memory_bytes(self, options, device)
    }

    /// The model's description for the HTTP server. `id` is its name in requests; the file name if `None`.
    pub fn served_as(&self, id: Option<String>) -> Result<server::Model> {
        let language = self.language()?;
        let (id, aliases, created) = served_names(self.path(), id);
        Ok(server::Model {
            id,
            aliases,
            created,
            tokenizer: language.tokenizer,
            vocab_size: self.config().vocab,
            stop_token_ids: language.stop_token_ids,
            chat_template: language.template,
            images: language.images,
            sampling: self.recommended_sampling(),
        })
    }

    /// The error for a checkpoint without a chat template.
    pub(crate) fn no_chat_template(&self) -> Error {
        Error::NoChatTemplate { path: self.path().to_owned() }
    }
}

/// Id, aliases and creation time of a model for the HTTP server. `id` is its name in requests; the file name if `None`.
pub(crate) fn served_names(path: &Path, id: Option<String>) -> (String, Vec<String>, u64) {
    // Only files have an extension: a folder's name may contain a dot.
    let name = if path.is_file() { path.file_stem() } else { path.file_name() };
    let name = name.map(|name| name.to_string_lossy().into_owned());
    let modified = std::fs::metadata(path).and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let aliases = name.iter().filter(|name| id.as_ref().is_some_and(|id| id != *name)).cloned().collect();
    let created = modified.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    (id.or(name).unwrap_or_else(|| "model".to_owned()), aliases, created)
}
