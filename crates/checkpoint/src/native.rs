//! Native files, as `indrik quantize` writes them: safetensors whose matrices are tiles and scale planes in
//! the layout of the GPU, so that loading only copies.
//!
//! The metadata has `indrik.version`, `indrik.config` (the [`Config`] as JSON) and `indrik.matrices` (rows, K
//! and scheme of each matrix, which the byte entries do not contain). A matrix `NAME` has its tiles in the
//! entry `NAME` and its scale plane in `NAME.scales`, both of type U8. Vectors are F32; norms are stored
//! ready to multiply, with Gemma's `1 + w` applied. The entry `indrik.tokenizer` holds the tokenizer of the
//! source model, if it had one.

mod header;

pub use header::{HeaderEntry, header};

use std::{collections::BTreeMap, fs::File, os::unix::fs::FileExt, path::Path};

use serde::{Deserialize, Serialize};
use tensor::{Encoding, Layout, Scheme};

use crate::{
    config::Config,
    error::{Error, Result},
    safetensors::{self, Dtype, Entry},
    source::{Format, Source, Tensor},
    tokenizer::TokenizerData,
};

/// Version of the layout, raised when older files can no longer be loaded by copying.
pub const VERSION: &str = "2";

const VERSION_KEY: &str = "indrik.version";
const CONFIG_KEY: &str = "indrik.config";
const MATRICES_KEY: &str = "indrik.matrices";

/// The entry with the tokenizer: a [`TokenizerData`] as JSON.
const TOKENIZER: &str = "indrik.tokenizer";

/// Maximum size of a tokenizer in bytes: Gemma's tokenizer.json has 33 MB.
const MAX_TOKENIZER: u64 = 128 << 20;

/// Shape and scheme of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct MatrixShape {
    rows: u64,
    k: u64,
    scheme: Scheme,
}

/// Name of the entry with a matrix's scale plane.
fn scales_name(matrix: &str) -> String {
    format!("{matrix}.scales")
}

/// Opens a native file.
pub fn open(path: &Path) -> Result<(Source, Config)> {
    let file = safetensors::open(path)?;
    let metadata = |key: &str| file.header.metadata.get(key).map(String::as_str);
    let version = metadata(VERSION_KEY).ok_or_else(|| Error::Unsupported {
        path: path.to_path_buf(),
        what: "a single safetensors file".into(),
        fix: "pass its folder, which must contain config.json, or a file written by `indrik quantize`".into(),
    })?;
    if version != VERSION {
        return Err(Error::Unsupported {
            path: path.to_path_buf(),
            what: format!("version {:?} of the native format", version.chars().take(16).collect::<String>()),
            fix: format!("quantize the model again: this release reads version {VERSION}"),
        });
    }
    let config: Config = parse(path, CONFIG_KEY, metadata(CONFIG_KEY))?;
    if !config.is_plausible() {
        return Err(Error::invalid(
            path,
            format!("{CONFIG_KEY} holds values that no model has: quantize the model again"),
        ));
    }
    let shapes: BTreeMap<String, MatrixShape> = parse(path, MATRICES_KEY, metadata(MATRICES_KEY))?;
    let entries: BTreeMap<&str, &Entry> =
        file.header.entries.iter().map(|entry| (entry.name.as_str(), entry)).collect();
    let mut tensors = Vec::new();
    for entry in &file.header.entries {
        let is_scales = entry.name.strip_suffix(".scales").is_some_and(|matrix| shapes.contains_key(matrix));
        if is_scales || entry.name == TOKENIZER {
            continue;
        }
        tensors.push(match shapes.get(&entry.name) {
            Some(shape) => {
                matrix(&file, entry, shape, entries.get(scales_name(&entry.name).as_str()).copied())?
            }
            None => vector(&file, entry)?,
        });
    }
    if let Some(missing) = shapes.keys().find(|name| !entries.contains_key(name.as_str())) {
        return Err(Error::tensor(path, missing, "is listed but missing: quantize the model again"));
    }
    Ok((Source { format: Format::Native, files: vec![path.to_path_buf()], tensors }, config))
}

/// The tokenizer of a native file.
pub(crate) fn tokenizer(path: &Path) -> Result<Option<TokenizerData>> {
    let file = safetensors::open(path)?;
    let Some(entry) = file.header.entries.iter().find(|entry| entry.name == TOKENIZER) else {
        return Ok(None);
    };
    let span = file.span(0, entry);
    if span.len > MAX_TOKENIZER {
        return Err(Error::tensor(
            path,
            TOKENIZER,
            format!("has {} bytes, but the limit is {MAX_TOKENIZER}", span.len),
        ));
    }
    let mut bytes = vec![0; span.len as usize];
    let read = File::open(path).and_then(|file| file.read_exact_at(&mut bytes, span.offset));
    read.map_err(|error| Error::io(path, error))?;
    let data = serde_json::from_slice(&bytes);
    data.map(Some).map_err(|error| Error::tensor(path, TOKENIZER, format!("cannot be read: {error}")))
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path, key: &str, text: Option<&str>) -> Result<T> {
    let text = text.ok_or_else(|| Error::invalid(path, format!("has no {key}: quantize the model again")))?;
    serde_json::from_str(text).map_err(|error| Error::invalid(path, format!("{key} cannot be read: {error}")))
}

fn matrix(
    file: &safetensors::File,
    entry: &Entry,
    shape: &MatrixShape,
    scales: Option<&Entry>,
) -> Result<Tensor> {
    let wrong = |reason: String| Error::tensor(&file.path, &entry.name, reason);
    let size = |value: u64| usize::try_from(value).ok();
    let layout = size(shape.rows).zip(size(shape.k)).and_then(|(rows, k)| Layout::new(shape.scheme, rows, k));
    let layout =
        layout.ok_or_else(|| wrong(format!("{} × {} is not a valid matrix", shape.rows, shape.k)))?;
    for (what, entry, expected) in
        [("values", Some(entry), layout.value_bytes()), ("scales", scales, layout.scale_bytes())]
    {
        let found = entry.map_or(0, |entry| entry.end - entry.begin);
        let bytes = entry.is_none_or(|entry| entry.dtype == Dtype::U8 && expected > 0);
        if found != expected as u64 || !bytes {
            return Err(wrong(format!("has {found} bytes of {what}, but its shape needs {expected}")));
        }
    }
    Ok(Tensor {
        name: entry.name.clone(),
        shape: vec![shape.rows, shape.k],
        encoding: Encoding::Tiled(shape.scheme),
        data: file.span(0, entry),
        scales: scales.map(|scales| file.span(0, scales)),
    })
}

fn vector(file: &safetensors::File, entry: &Entry) -> Result<Tensor> {
    if entry.dtype != Dtype::F32 || entry.shape.len() != 1 {
        return Err(Error::tensor(&file.path, &entry.name, "is neither a listed matrix nor an F32 vector"));
    }
    Ok(Tensor {
        name: entry.name.clone(),
        shape: entry.shape.clone(),
        encoding: Encoding::F32,
        data: file.span(0, entry),
        scales: None,
    })
}
