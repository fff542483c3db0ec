//! Layerwise-quantised folders, the format of the system that Indrik replaces.
//!
//! Each file `<stem>_layer_<N>.safetensors` or `<stem>_shared.safetensors` holds tensors under their Hugging
//! Face names. A quantised tensor has its scheme in `__metadata__` under its name, and its scales in a tensor
//! `<name>_scale`:
//!
//! | scheme | values | scales (f32) |
//! |---|---|---|
//! | `int8_symmetric` | I8 | 1 |
//! | `int4_grouped` | I8, one value (−7…7) per byte | 1 per 128 values of the flattened tensor |
//! | `int8_asymmetric` | U8 | 2: scale, zero point |
//!
//! The tensors of a layer may be in two files if the original shards divided it, and vision layers are in the
//! files of the text layers with the same number. A tensor is therefore identified by its name only.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::{Error, Result};
use crate::folder::{Folder, plain_tensor};
use crate::safetensors::{self, Dtype, Entry, File, MAX_HEADER};
use crate::source::{Format, Source, Tensor};
use tensor::{Encoding, quant};

/// Maximum number of files: a 62-layer model in 12 shards has fewer than 100.
const MAX_FILES: usize = 4096;
/// Suffix of the name of a scale tensor.
const SCALE_SUFFIX: &str = "_scale";

/// The components of a file name. Sorted by original shard, then shared tensors before layers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PartName {
    /// Name of the original shard.
    stem: String,
    /// The layer; `None` for tensors outside of layers.
    layer: Option<u32>,
}

impl PartName {
    /// `None` for any other file name.
    pub(crate) fn parse(file_name: &str) -> Option<Self> {
        let name = file_name.strip_suffix(".safetensors")?;
        let (stem, layer) = match name.strip_suffix("_shared") {
            Some(stem) => (stem, None),
            None => {
                let (stem, digits) = name.rsplit_once("_layer_")?;
                let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
                (stem, Some(digits.parse().ok().filter(|_| plain)?))
            }
        };
        (!stem.is_empty()).then(|| PartName { stem: stem.to_string(), layer })
    }
}

/// Whether the folder at `path` is layerwise-quantised, judged by its file names.
pub fn detect(path: &Path) -> Result<bool> {
    Ok(!parts(path)?.is_empty())
}

/// Opens the folder at `path`. Reads headers only.
pub fn open(path: &Path) -> Result<Folder> {
    let parts = parts(path)?;
    if parts.is_empty() {
        let reason = "has no file <stem>_layer_<N>.safetensors or <stem>_shared.safetensors";
        return Err(Error::invalid(path, reason));
    }
    let mut header_budget = MAX_HEADER;
    let open = |name: &String| safetensors::open_within(&path.join(name), &mut header_budget);
    let files: Vec<File> = parts.values().map(open).collect::<Result<_>>()?;
    let mut entries: BTreeMap<&str, (usize, &Entry)> = BTreeMap::new();
    for (number, file) in files.iter().enumerate() {
        for entry in &file.header.entries {
            if let Some((other, _)) = entries.insert(&entry.name, (number, entry)) {
                let reason = format!("is also in {}", files[other].path.display());
                return Err(Error::tensor(&file.path, &entry.name, reason));
            }
        }
    }
    let mut tensors = Vec::new();
    let mut skipped = Vec::new();
    for (number, file) in files.iter().enumerate() {
        for entry in &file.header.entries {
            let scheme = file.header.metadata.get(&entry.name);
            if let (None, Some(quantised_name)) = (scheme, entry.name.strip_suffix(SCALE_SUFFIX)) {
                if !entries.contains_key(quantised_name) {
                    let reason = format!("scales of '{quantised_name}', which is in no file");
                    return Err(Error::tensor(&file.path, &entry.name, reason));
                }
                continue;
            }
            let tensor = match scheme {
                Some(scheme) => Some(quantised(&files, number, entry, scheme, &entries)?),
                None => plain_tensor(file, number, entry)?,
            };
            match tensor {
                Some(tensor) => tensors.push(tensor),
                None => skipped.push(entry.name.clone()),
            }
        }
    }
    let files = files.into_iter().map(|file| file.path).collect();
    Folder::from_source(path, Source { format: Format::Layerwise, files, tensors }, skipped)
}

/// The folder's layer files, in order.
fn parts(path: &Path) -> Result<BTreeMap<PartName, String>> {
    let io = |error| Error::io(path, error);
    let mut parts = BTreeMap::new();
    for entry in std::fs::read_dir(path).map_err(io)? {
        // A name that is not UTF-8 cannot be that of a layer file.
        let Ok(name) = entry.map_err(io)?.file_name().into_string() else { continue };
        let Some(part) = PartName::parse(&name) else { continue };
        if let Some(other) = parts.insert(part, name.clone()) {
            return Err(Error::invalid(
                path,
                format!("has both {other} and {name} for the same layer: remove one"),
            ));
        }
        if parts.len() > MAX_FILES {
            return Err(Error::invalid(path, format!("has more than {MAX_FILES} layer files")));
        }
    }
    Ok(parts)
}

fn quantised(
    files: &[File],
    number: usize,
    entry: &Entry,
    scheme: &str,
    entries: &BTreeMap<&str, (usize, &Entry)>,
) -> Result<Tensor> {
    let path = &files[number].path;
    let fail = |reason: String| Err(Error::tensor(path, &entry.name, reason));
    let (encoding, dtype, scales) = match scheme {
        "int8_symmetric" => (Encoding::Int8Symmetric, Dtype::I8, 1),
        "int4_grouped" => {
            (Encoding::Int4Grouped, Dtype::I8, entry.values().div_ceil(quant::LAYERWISE_GROUP as u64))
        }
        "int8_asymmetric" => (Encoding::Int8Asymmetric, Dtype::U8, 2),
        other => {
            let shown: String = other.chars().take(64).collect();
            let known = "use int8_symmetric, int4_grouped or int8_asymmetric";
            return fail(format!("the scheme '{}' is not supported: {known}", shown.escape_debug()));
        }
    };
    if entry.dtype != dtype {
        return fail(format!("{scheme} values must be {dtype}, found {}", entry.dtype));
    }
    let name = format!("{}{SCALE_SUFFIX}", entry.name);
    let Some((at, scale)) = entries.get(name.as_str()).copied() else {
        return fail(format!("scales '{name}' are missing"));
    };
    let fail = |reason: String| Err(Error::tensor(&files[at].path, &name, reason));
    if scale.dtype != Dtype::F32 {
        return fail(format!("scales must be F32, found {}", scale.dtype));
    }
    if scale.values() != scales {
        let found = scale.values();
        return fail(format!("{scheme} with shape {:?} needs {scales} scales, found {found}", entry.shape));
    }
    Ok(Tensor {
        name: entry.name.clone(),
        shape: entry.shape.clone(),
        encoding,
        data: files[number].span(number, entry),
        scales: Some(files[at].span(at, scale)),
    })
}
