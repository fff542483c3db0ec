//! The contents of a model's files: the tensors, their encodings and the locations of their bytes.

use std::path::PathBuf;

use serde::Serialize;
use tensor::Encoding;

/// The files of a model and the tensors in their headers.
#[derive(Clone, Debug)]
pub struct Source {
    /// The format.
    pub format: Format,
    /// The files; tensors refer to them by index.
    pub files: Vec<PathBuf>,
    /// All tensors, in file order.
    pub tensors: Vec<Tensor>,
}

/// A format of model files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// A GGUF file, or all parts of a split one.
    Gguf,
    /// A Hugging Face folder: config.json and safetensors.
    HuggingFace,
    /// A layerwise-quantised folder of the system that Indrik replaces.
    Layerwise,
    /// A native file, written by `indrik quantize`.
    Native,
}

/// A tensor as described by a header.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tensor {
    /// Name in the file.
    pub name: String,
    /// Outermost dimension first: rows, then K. (GGUF lists dimensions in reverse.)
    pub shape: Vec<u64>,
    /// How the values are stored.
    pub encoding: Encoding,
    /// Where the values are.
    pub data: Span,
    /// Where the scales are, for encodings with a separate scale tensor.
    pub scales: Option<Span>,
}

impl Tensor {
    /// Bytes in the files, scales included.
    pub fn file_bytes(&self) -> u64 {
        self.data.len + self.scales.map_or(0, |scales| scales.len)
    }

    /// Number of values; `None` on overflow of 64 bits.
    pub fn values(&self) -> Option<u64> {
        self.shape.iter().try_fold(1_u64, |product, dimension| product.checked_mul(*dimension))
    }
}

/// A byte range in one of a source's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Span {
    /// Index into [`Source::files`].
    pub file: usize,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}
