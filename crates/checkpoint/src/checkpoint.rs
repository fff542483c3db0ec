//! A model on disk in any supported format, opened and validated. No tensor data is read, except for RoPE
//! divisors, which are part of the config.

use std::path::{Path, PathBuf};

use tensor::Encoding;

use crate::{
    complete::{self, Inventory},
    config::{Config, MetaValue, RopeScaling},
    embedding,
    error::{Error, Result},
    folder, gguf, layerwise, native,
    slot::{Role, Slot},
    source::{Format, Source, Tensor},
    tokenizer::{self, TokenizerData},
};

/// A model on disk: its files, its config and its tensors.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The file or folder that was opened.
    pub path: PathBuf,
    /// Every tensor as the headers describe it.
    pub source: Source,
    /// The model's dimensions and constants.
    pub config: Config,
    /// The tensors by layer and role: complete, with the right shapes.
    pub inventory: Inventory,
}

impl Checkpoint {
    /// Opens a GGUF file, a native file, a Hugging Face folder or a layerwise-quantised folder. An embedding model is an
    /// error of its own: see [`EmbeddingCheckpoint`](crate::EmbeddingCheckpoint).
    pub fn open(path: &Path) -> Result<Self> {
        let is_native = path.extension().is_some_and(|extension| extension == "safetensors");
        let (source, config) = match () {
            () if path.is_dir() => open_folder(path)?,
            () if is_native => native::open(path)?,
            () => open_gguf(path)?,
        };
        Self::from_source(path, source, config)
    }

    /// A model whose headers have been read.
    pub(crate) fn from_source(path: &Path, source: Source, config: Config) -> Result<Self> {
        let inventory = complete::check(&config, &source)
            .map_err(|incomplete| Error::Incomplete { path: path.to_path_buf(), incomplete })?;
        let mut checkpoint = Self { path: path.to_path_buf(), source, config, inventory };
        checkpoint.round_embedding_factor()?;
        checkpoint.read_rope_divisors()?;
        Ok(checkpoint)
    }

    /// Transformers rounds the embedding factor to the dtype of the embeddings (25.25 instead of 25.298 for
    /// the 270M in bf16), and models were trained with that; llama.cpp keeps f32. Each format follows its own
    /// reference.
    fn round_embedding_factor(&mut self) -> Result<()> {
        if !matches!(self.source.format, Format::HuggingFace | Format::Layerwise) {
            return Ok(());
        }
        let factor = self.config.embedding_factor;
        self.config.embedding_factor = match self.tensor(None, Role::Embed)?.encoding {
            Encoding::F32 => factor,
            Encoding::F16 => half::f16::from_f32(factor).to_f32(),
            // Layerwise-quantised folders were made from bf16.
            _ => half::bf16::from_f32(factor).to_f32(),
        };
        Ok(())
    }

    /// GGUF files store Llama 3's RoPE scaling as a tensor.
    fn read_rope_divisors(&mut self) -> Result<()> {
        let Some(tensor) = self.inventory.take(None, Role::RopeFreqs) else { return Ok(()) };
        let wrong = |reason| Error::tensor(&self.source.files[tensor.data.file], &tensor.name, reason);
        if self.config.rope_scaling != RopeScaling::None {
            return Err(wrong("RoPE scaling both in this tensor and in the metadata is not supported"));
        }
        let divisors = self.read_vector(&tensor)?;
        if divisors.iter().any(|divisor| *divisor <= 0.0) {
            return Err(wrong("RoPE divisors must be positive"));
        }
        self.config.rope_scaling = RopeScaling::Each { divisors };
        Ok(())
    }

    /// Whether one must be added to stored norm weights, as in Gemma's Hugging Face files. GGUF and native
    /// files store the sum.
    pub fn norms_need_plus_one(&self) -> bool {
        let hf = matches!(self.source.format, Format::HuggingFace | Format::Layerwise);
        hf && self.config.architecture.family().norms_plus_one
    }
}

impl Checkpoint {
    /// The tokenizer, if the checkpoint has one.
    pub fn tokenizer_data(&self) -> Result<Option<TokenizerData>> {
        match self.source.format {
            Format::Gguf => tokenizer::from_gguf(&self.path),
            Format::Native => native::tokenizer(&self.path),
            Format::HuggingFace | Format::Layerwise => tokenizer::from_folder(&self.path),
        }
    }

    /// A tensor of the text tower; an error if the family has no such tensor.
    pub fn tensor(&self, layer: Option<u32>, role: Role) -> Result<&Tensor> {
        self.slot(Slot::text(layer, role))
    }

    /// The tensor of a slot; an error if the family has no such tensor.
    pub fn slot(&self, slot: Slot) -> Result<&Tensor> {
        self.inventory.slot(slot).ok_or_else(|| {
            let layer = slot.layer.map_or(String::new(), |layer| format!(" in layer {layer}"));
            let expert = slot.expert.map_or(String::new(), |expert| format!(", expert {expert}"));
            Error::invalid(&self.path, format!("has no {:?} tensor{layer}{expert}", slot.role))
        })
    }

    /// Reads and decodes all values of a tensor. Meant for small tensors.
    pub fn read_vector(&self, tensor: &Tensor) -> Result<Vec<f32>> {
        self.source.read_vector(tensor)
    }
}

fn open_gguf(path: &Path) -> Result<(Source, Config)> {
    let gguf = gguf::open(path)?;
    embedding::reject_gguf(path, &gguf.metadata)?;
    let mut config = Config::from_gguf(path, &|key| gguf.metadata.get(key).map(MetaValue::from))?;
    config.detect_values(&gguf.source);
    Ok((gguf.source, config))
}

fn open_folder(path: &Path) -> Result<(Source, Config)> {
    embedding::reject_folder(path)?;
    let folder = if layerwise::detect(path)? { layerwise::open(path)? } else { folder::open(path)? };
    let config = Config::from_hf(&folder.config_path(), &folder.config)?;
    Ok((folder.source, config))
}
