//! Embedding models: encoders that turn a text into a vector.
//!
//! | models | layers | pooling |
//! |---|---|---|
//! | BERT (all-MiniLM, BGE, E5, GTE, …) | [`Bert`], attention in both directions | mean, or the first token |
//! | EmbeddingGemma | those of Gemma 3, attention in both directions | mean, then two dense layers |
//! | Qwen3-Embedding | those of Qwen 3, causal attention | the last token |
//!
//! | format | what tells an embedding model |
//! |---|---|
//! | Hugging Face folder | `model_type` `bert`, or the `modules.json` of sentence-transformers with a pooling module |
//! | GGUF file | the architecture `bert` or `gemma-embedding`, or a `pooling_type` |
//!
//! [`EmbeddingCheckpoint`] is what [`Checkpoint`] is for a language model: the config, and every tensor with the right
//! shape. Each rejects what the other opens, with an error of its own.
//!
//! ```no_run
//! use checkpoint::EmbeddingCheckpoint;
//!
//! let checkpoint = EmbeddingCheckpoint::open("all-MiniLM-L6-v2".as_ref())?;
//! println!("{} values, {} tokens", checkpoint.config.dimensions(), checkpoint.config.max_tokens);
//! # Ok::<(), checkpoint::Error>(())
//! ```

mod bert;
mod config;
mod gguf;
mod modules;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    architecture::Architecture,
    checkpoint::Checkpoint,
    config::{Config, MAX_SIZE},
    error::{Error, Result},
    folder,
    gguf::open as open_gguf_file,
    layerwise,
    slot::{Role, Slot},
    source::{Format, Source, Tensor},
    tokenizer::{self, TokenizerData},
};

pub use bert::Bert;
pub use config::{EmbeddingConfig, Pooling, Prompts, TextLayers};

/// What a model does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKind {
    /// Generates text: see [`Checkpoint`].
    Generative,
    /// Turns text into vectors: see [`EmbeddingCheckpoint`].
    Embedding,
}

impl ModelKind {
    /// What the model at `path` does. Reads headers only; anything that is not an embedding model counts as
    /// generative: the loader of those explains what is wrong with it.
    pub fn of(path: &Path) -> Result<Self> {
        let embeds = match () {
            () if path.is_dir() => is_embedding_folder(path)?,
            () if path.extension().is_some_and(|extension| extension == "safetensors") => false,
            () => gguf::is_embedding(&open_gguf_file(path)?.metadata),
        };
        Ok(if embeds { ModelKind::Embedding } else { ModelKind::Generative })
    }
}

/// Whether the metadata of a GGUF file is that of an embedding model.
pub fn is_embedding_gguf(metadata: &crate::gguf::Metadata) -> bool {
    gguf::is_embedding(metadata)
}

/// An embedding model on disk: complete, with the right shapes. No tensor data is read.
#[derive(Clone, Debug)]
pub struct EmbeddingCheckpoint {
    /// The file or folder.
    pub path: PathBuf,
    /// Dimensions and constants.
    pub config: EmbeddingConfig,
    /// Instructions that texts may start with.
    pub prompts: Prompts,
    /// Every tensor as the headers describe it.
    pub source: Source,
    tensors: BTreeMap<Slot, Tensor>,
}

impl EmbeddingCheckpoint {
    /// Opens a Hugging Face folder or a GGUF file.
    pub fn open(path: &Path) -> Result<Self> {
        let is_native = path.extension().is_some_and(|extension| extension == "safetensors");
        match () {
            () if path.is_dir() && !is_embedding_folder(path)? => Err(not_embedding(path)),
            () if path.is_dir() => modules::open(path),
            () if is_native => Err(not_embedding(path)),
            () => gguf::open(path),
        }
    }

    /// A model on the layers of a decoder. `pooled` are its dense layers after pooling.
    fn decoder(opened: Opened, config: Config, pooled: Vec<Tensor>) -> Result<Self> {
        let Opened { path, source, heading, prompts } = opened;
        // Others have biases or experts, which text encoders do not compute.
        if !matches!(config.architecture, Architecture::Gemma3 | Architecture::Qwen3) {
            return Err(Error::Unsupported {
                path,
                what: format!("an embedding model with the layers of {}", config.architecture.family().title),
                fix: "use BERT, EmbeddingGemma or Qwen3-Embedding".to_string(),
            });
        }
        // A head would not be used.
        let config = Config { tie_embeddings: true, ..config };
        let Checkpoint { source, config, mut inventory, .. } =
            Checkpoint::from_source(&path, source, config)?;
        inventory.take(None, Role::Head);
        let mut tensors: BTreeMap<Slot, Tensor> =
            inventory.iter().map(|(slot, tensor)| (slot, tensor.clone())).collect();
        let dense = add_dense(&path, &mut tensors, config.hidden, pooled)?;
        let max_tokens = heading.max_tokens.unwrap_or(u32::MAX).min(config.max_positions);
        let (pooling, normalize) = (heading.pooling, heading.normalize);
        let layers = TextLayers::Decoder { config: Box::new(config), bidirectional: heading.bidirectional };
        let config = EmbeddingConfig { layers, pooling, dense, normalize, max_tokens };
        Ok(Self { path, config, prompts, source, tensors })
    }

    /// A BERT encoder.
    fn bert(opened: Opened, bert: Bert, pooled: Vec<Tensor>) -> Result<Self> {
        let Opened { path, source, heading, prompts } = opened;
        let mut tensors = bert::check(&bert, &source)
            .map_err(|incomplete| Error::Incomplete { path: path.clone(), incomplete })?;
        let dense = add_dense(&path, &mut tensors, bert.hidden, pooled)?;
        let max_tokens = heading.max_tokens.unwrap_or(u32::MAX).min(bert.positions);
        let (pooling, normalize) = (heading.pooling, heading.normalize);
        let config =
            EmbeddingConfig { layers: TextLayers::Bert(bert), pooling, dense, normalize, max_tokens };
        Ok(Self { path, config, prompts, source, tensors })
    }

    /// A tensor; an error if the model has none of that role.
    pub fn tensor(&self, layer: Option<u32>, role: Role) -> Result<&Tensor> {
        self.slot(Slot::text(layer, role))
    }

    /// The tensor of a slot; an error if the model has none.
    pub fn slot(&self, slot: Slot) -> Result<&Tensor> {
        self.tensors.get(&slot).ok_or_else(|| {
            let layer = slot.layer.map_or(String::new(), |layer| format!(" in layer {layer}"));
            Error::invalid(&self.path, format!("has no {:?} tensor{layer}", slot.role))
        })
    }

    /// All tensors.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Slot, &Tensor)> {
        self.tensors.iter().map(|(slot, tensor)| (*slot, tensor))
    }

    /// Whether one must be added to stored norm weights, as in Gemma's Hugging Face files.
    pub fn norms_need_plus_one(&self) -> bool {
        match &self.config.layers {
            TextLayers::Bert(_) => false,
            TextLayers::Decoder { config, .. } => {
                self.source.format == Format::HuggingFace && config.architecture.family().norms_plus_one
            }
        }
    }

    /// The tokenizer, if the checkpoint has one.
    pub fn tokenizer_data(&self) -> Result<Option<TokenizerData>> {
        match self.source.format {
            Format::Gguf => tokenizer::from_gguf(&self.path),
            _ => tokenizer::from_folder(&self.path),
        }
    }
}

/// The files of an embedding model, before its tensors are checked.
struct Opened {
    path: PathBuf,
    source: Source,
    heading: Heading,
    prompts: Prompts,
}

/// What an embedding model has beside its layers.
struct Heading {
    pooling: Pooling,
    normalize: bool,
    bidirectional: bool,
    /// Maximum tokens per text, if it is not that of the layers.
    max_tokens: Option<u32>,
}

/// Adds the dense layers after pooling, and returns the number of outputs of each.
fn add_dense(
    path: &Path,
    tensors: &mut BTreeMap<Slot, Tensor>,
    hidden: u32,
    pooled: Vec<Tensor>,
) -> Result<Vec<u32>> {
    let mut inputs = u64::from(hidden);
    let mut outputs = Vec::new();
    for (index, tensor) in (0..).zip(pooled) {
        let rows = match tensor.shape[..] {
            [rows, columns] if columns == inputs && (1..=MAX_SIZE.into()).contains(&rows) => rows,
            _ => {
                let reason =
                    format!("has the shape {:?}, but {inputs} values come from before it", tensor.shape);
                return Err(Error::tensor(path, &tensor.name, reason));
            }
        };
        outputs.push(rows as u32);
        inputs = rows;
        tensors.insert(Slot::dense(index), tensor);
    }
    Ok(outputs)
}

fn is_embedding_folder(path: &Path) -> Result<bool> {
    if layerwise::detect(path).unwrap_or(false) {
        return Ok(false);
    }
    let config = path.join(folder::CONFIG);
    if config.is_file() {
        let json = folder::read_config(&config)?;
        if json.get("model_type").and_then(Value::as_str) == Some(bert::MODEL_TYPE) {
            return Ok(true);
        }
    }
    modules::have_pooling(path)
}

/// Rejects an embedding model where one that generates is needed.
pub(crate) fn reject_folder(path: &Path) -> Result<()> {
    // What else is wrong with a folder is for its reader to say.
    if is_embedding_folder(path).unwrap_or(false) { Err(embedding(path)) } else { Ok(()) }
}

/// The same for a GGUF file.
pub(crate) fn reject_gguf(path: &Path, metadata: &crate::gguf::Metadata) -> Result<()> {
    if gguf::is_embedding(metadata) { Err(embedding(path)) } else { Ok(()) }
}

fn embedding(path: &Path) -> Error {
    Error::IsEmbeddingModel { path: path.to_path_buf() }
}

fn not_embedding(path: &Path) -> Error {
    Error::IsGenerativeModel { path: path.to_path_buf() }
}
