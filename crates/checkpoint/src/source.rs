//! A model on disk, described: which tensors there are, how each is encoded, where its bytes are. No tensor data is read.

use std::path::PathBuf;

use serde::Serialize;
use tensor::Encoding;

/// A model's files with everything their headers say.
#[derive(Clone, Debug)]
pub struct Source {
    /// Which format.
    pub format: Format,
    /// The files that tensors point into, by index.
    pub files: Vec<PathBuf>,
    /// Every tensor, in the order of the files.
    pub tensors: Vec<Tensor>,
}

/// A format of model files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// One GGUF file, or several that were split.
    Gguf,
    /// A Hugging Face folder: config.json and safetensors.
    HuggingFace,
    /// A folder quantised layer by layer, by the system that Indrik replaces.
    Layerwise,
    /// Our own file, as `indrik quantize` writes it.
    Native,
}

/// One tensor as a header describes it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tensor {
    /// Its name in the file.
    pub name: String,
    /// Outermost dimension first: rows, then K. (GGUF lists them the other way round.)
    pub shape: Vec<u64>,
    /// How its values are stored.
    pub encoding: Encoding,
    /// Where they are.
    pub data: Span,
    /// Where its scales are, when they are a tensor of their own.
    pub scales: Option<Span>,
}

impl Tensor {
    /// Bytes in its files, scales included.
    pub fn file_bytes(&self) -> u64 {
        self.data.len + self.scales.map_or(0, |scales| scales.len)
    }

    /// The number of values; none when it does not fit 64 bits.
    pub fn values(&self) -> Option<u64> {
        self.shape.iter().try_fold(1_u64, |product, dimension| product.checked_mul(*dimension))
    }
}

/// A run of bytes in one of a source's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Span {
    /// Index into [`Source::files`].
    pub file: usize,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}
