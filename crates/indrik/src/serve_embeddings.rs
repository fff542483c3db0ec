//! Embedding models for the HTTP server.

use server::{EmbedError, EmbeddedText, Embedder, EmbeddingInput};
use text::EncodedText;

use crate::{EmbedOptions, EmbeddingFiles, EmbeddingModel, EmbeddingOptions, Error, Result, files};

impl EmbeddingFiles {
    /// The model's description for the HTTP server. `id` is its name in requests; the file name if `None`.
    pub fn served_as(
        &self,
        id: Option<String>,
        options: &EmbeddingOptions,
    ) -> Result<server::EmbeddingModel> {
        let (id, aliases, created) = files::served_names(self.path(), id);
        Ok(server::EmbeddingModel {
            id,
            aliases,
            created,
            dimensions: self.config().dimensions(),
            max_tokens: self.max_tokens(options)?,
            vocab_size: u32::try_from(self.tokenizer().vocab_size())
                .unwrap_or(u32::MAX)
                .min(self.config().vocab()),
        })
    }
}

impl Embedder for EmbeddingModel {
    fn embed(
        &self,
        inputs: &[EmbeddingInput],
        options: &server::EmbeddingOptions,
    ) -> std::result::Result<Vec<EmbeddedText>, EmbedError> {
        let options = EmbedOptions {
            dimensions: options.dimensions,
            truncate: options.truncate,
            prompt: options.prompt.clone(),
        };
        let encode = |(index, input): (usize, &EmbeddingInput)| {
            self.encode_input(input, &options).map_err(|error| embed_error(error, index))
        };
        let encoded = inputs.iter().enumerate().map(encode).collect::<std::result::Result<Vec<_>, _>>()?;
        let embedded = self.embed_encoded(&encoded, &options, &mut |_| true);
        let embedded = embedded.map_err(|error| embed_error(error, 0))?;
        let text = |text: crate::Embedding| EmbeddedText {
            vector: text.vector,
            tokens: text.tokens,
            truncated: text.truncated,
        };
        Ok(embedded.into_iter().map(text).collect())
    }
}

impl EmbeddingModel {
    fn encode_input(&self, input: &EmbeddingInput, options: &EmbedOptions) -> Result<EncodedText> {
        let tokens = match input {
            EmbeddingInput::Text(text) => return Ok(self.encode(&[text], options)?.remove(0)),
            EmbeddingInput::Tokens(tokens) => tokens,
        };
        let max_tokens = self.max_tokens();
        if tokens.len() > max_tokens as usize && !options.truncate {
            return Err(Error::TextTooLong { number: 1, tokens: tokens.len(), max_tokens });
        }
        let ids = tokens.iter().take(max_tokens as usize).copied().collect();
        Ok(EncodedText { ids, full_length: tokens.len() })
    }
}

/// The error for a client, about the text with this index.
fn embed_error(error: Error, index: usize) -> EmbedError {
    match error {
        Error::TextTooLong { tokens, max_tokens, .. } => EmbedError::Input(
            index,
            format!("has {tokens} tokens, but the model takes {max_tokens}: shorten it, or set 'truncate'"),
        ),
        Error::EmptyText { .. } => {
            EmbedError::Input(index, "has no tokens: the model needs at least one".to_owned())
        }
        Error::UnknownPrompt { name, known } => EmbedError::Prompt(match known.is_empty() {
            true => format!("is '{name}', but the model has no prompts: leave it out"),
            false => format!("is '{name}', but must be one of {}", known.join(", ")),
        }),
        Error::Gpu(gpu::Error::DeviceLost { .. })
        | Error::Model(model::Error::Gpu(gpu::Error::DeviceLost { .. })) => EmbedError::DeviceLost,
        error => EmbedError::Internal(error.to_string()),
    }
}
