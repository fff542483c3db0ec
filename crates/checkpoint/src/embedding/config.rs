//! The dimensions and constants of an embedding model.

use std::collections::BTreeMap;

use super::Bert;
use crate::{architecture::Architecture, config::Config};

/// All parameters of an embedding model other than the weights.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingConfig {
    /// The layers.
    pub layers: TextLayers,
    /// How the rows of a text become one.
    pub pooling: Pooling,
    /// Outputs of each dense layer after pooling, which has neither bias nor activation.
    pub dense: Vec<u32>,
    /// Whether vectors are scaled to a length of 1.
    pub normalize: bool,
    /// Maximum tokens per text, special tokens included.
    pub max_tokens: u32,
}

/// The layers of a text encoder.
#[derive(Clone, Debug, PartialEq)]
pub enum TextLayers {
    /// BERT's.
    Bert(Bert),
    /// Those of a language model.
    Decoder {
        /// Their dimensions. If attention is bidirectional, `sliding_window` counts both sides.
        config: Box<Config>,
        /// Whether tokens also see what is after them.
        bidirectional: bool,
    },
}

/// How the rows of a text become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean, special tokens included.
    Mean,
    /// The first row, that of `[CLS]`.
    Cls,
    /// The last row.
    Last,
}

/// Instructions that texts of a kind start with, such as `query` and `document`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompts {
    /// By name.
    pub by_name: BTreeMap<String, String>,
    /// The name of the one that is used unless another is chosen.
    pub default: Option<String>,
}

impl EmbeddingConfig {
    /// Width of the residual stream.
    pub fn hidden(&self) -> u32 {
        match &self.layers {
            TextLayers::Bert(bert) => bert.hidden,
            TextLayers::Decoder { config, .. } => config.hidden,
        }
    }

    /// Number of layers.
    pub fn layer_count(&self) -> u32 {
        match &self.layers {
            TextLayers::Bert(bert) => bert.layers,
            TextLayers::Decoder { config, .. } => config.layers,
        }
    }

    /// Number of tokens in the vocabulary.
    pub fn vocab(&self) -> u32 {
        match &self.layers {
            TextLayers::Bert(bert) => bert.vocab,
            TextLayers::Decoder { config, .. } => config.vocab,
        }
    }

    /// Whether tokens also see what is after them.
    pub fn is_bidirectional(&self) -> bool {
        !matches!(self.layers, TextLayers::Decoder { bidirectional: false, .. })
    }

    /// Values of a vector.
    pub fn dimensions(&self) -> u32 {
        self.dense.last().copied().unwrap_or(self.hidden())
    }

    /// Whether the dense layers of EmbeddingGemma are missing, as in early GGUF files.
    pub fn lacks_dense_layers(&self) -> bool {
        let is_gemma = |config: &Config| config.architecture == Architecture::Gemma3;
        matches!(&self.layers, TextLayers::Decoder { config, .. } if is_gemma(config))
            && self.dense.is_empty()
    }

    /// Name of the architecture.
    pub fn architecture(&self) -> &'static str {
        match &self.layers {
            TextLayers::Bert(_) => super::bert::MODEL_TYPE,
            TextLayers::Decoder { config, .. } => config.architecture.name(),
        }
    }
}
