//! The contents of a model's files: the tensors, their encodings and the locations of their bytes.

use std::{fs::File, os::unix::fs::FileExt, path::PathBuf};

use serde::Serialize;
use tensor::{Encoding, quant};

use crate::error::{Error, Result};

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

impl Source {
    /// Reads and decodes all values of a tensor, which must be finite. Meant for small tensors.
    pub fn read_vector(&self, tensor: &Tensor) -> Result<Vec<f32>> {
        let values = self.decode(tensor)?;
        match values.iter().position(|value| !value.is_finite()) {
            Some(at) => {
                let path = &self.files[tensor.data.file];
                Err(Error::tensor(path, &tensor.name, format!("value {at} is not finite")))
            }
            None => Ok(values),
        }
    }

    /// The same without a check of the values.
    pub(crate) fn decode(&self, tensor: &Tensor) -> Result<Vec<f32>> {
        let path = &self.files[tensor.data.file];
        let bytes = self.read_span(tensor, tensor.data)?;
        let mut values = vec![0.0; tensor.values().unwrap_or(0) as usize];
        match tensor.scales {
            None => quant::dequantize(tensor.encoding, &bytes, &mut values),
            Some(span) => {
                let scales = self.read_span(tensor, span)?;
                let scales: Vec<f32> =
                    scales.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
                quant::dequantize_layerwise(tensor.encoding, &bytes, &scales, &mut values)
            }
        }
        .map_err(|error| Error::tensor(path, &tensor.name, error.to_string()))?;
        Ok(values)
    }

    fn read_span(&self, tensor: &Tensor, span: Span) -> Result<Vec<u8>> {
        let path = &self.files[span.file];
        let file = File::open(path).map_err(|error| Error::io(path, error))?;
        let mut bytes = vec![0; span.len as usize];
        file.read_exact_at(&mut bytes, span.offset).map_err(|source| Error::Read {
            path: path.clone(),
            tensor: tensor.name.clone(),
            offset: span.offset,
            source,
        })?;
        Ok(bytes)
    }
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
