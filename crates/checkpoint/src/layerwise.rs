//! Folders quantised layer by layer, as the system that Indrik replaces wrote them.
//!
//! Each file `<stem>_layer_<N>.safetensors` or `<stem>_shared.safetensors` holds tensors under their Hugging Face names.
//! A quantised one has its scheme in `__metadata__` under its own name, and its scales in a tensor `<name>_scale`:
//!
//! | scheme | values | scales (f32) |
//! |---|---|---|
//! | `int8_symmetric` | I8 | 1 |
//! | `int4_grouped` | I8, one value −7…7 a byte | 1 per 128 values of the flattened tensor |
//! | `int8_asymmetric` | U8 | 2: scale, zero point |
//!
//! A layer's tensors may lie in two files, where the original's shards split it, and vision layers lie in the files of
//! text layers of the same number; so what a tensor is comes from its name alone.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::{Error, Result};
use crate::folder::{Folder, plain_tensor};
use crate::safetensors::{self, Dtype, Entry, File, MAX_HEADER};
use crate::source::{Format, Source, Tensor};
use tensor::Encoding;

/// Values that share a scale in `int4_grouped`.
const GROUP: u64 = 128;
/// The most files: a 62-layer model in 12 shards has under 100.
const MAX_FILES: usize = 4096;
/// The end of a scale tensor's name.
const SCALE: &str = "_scale";

/// What a file of such a folder holds, by its name. Sorts by the original's shard, then shared before layers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Part {
    /// The name of the original's shard.
    stem: String,
    /// The layer; none for what layers share.
    layer: Option<u32>,
}

impl Part {
    /// None for a file that is none of these.
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
        (!stem.is_empty()).then(|| Part { stem: stem.to_string(), layer })
    }
}

/// Whether the folder at `path` has files named this way.
pub fn detect(path: &Path) -> Result<bool> {
    Ok(!parts(path)?.is_empty())
}

/// Describes the folder at `path`. Reads headers only.
pub fn open(path: &Path) -> Result<Folder> {
    let parts = parts(path)?;
    if parts.is_empty() {
        let reason = "has no file <stem>_layer_<N>.safetensors or <stem>_shared.safetensors";
        return Err(Error::invalid(path, reason));
    }
    let mut room = MAX_HEADER;
    let open = |name: &String| safetensors::open_within(&path.join(name), &mut room);
    let files: Vec<File> = parts.values().map(open).collect::<Result<_>>()?;
    let mut entries: BTreeMap<&str, (usize, &Entry)> = BTreeMap::new();
    for (number, file) in files.iter().enumerate() {
        for entry in &file.header.entries {
            if let Some((other, _)) = entries.insert(&entry.name, (number, entry)) {
                let reason = format!("is in {} too", files[other].path.display());
                return Err(Error::tensor(&file.path, &entry.name, reason));
            }
        }
    }
    let mut tensors = Vec::new();
    let mut skipped = Vec::new();
    for (number, file) in files.iter().enumerate() {
        for entry in &file.header.entries {
            let scheme = file.header.metadata.get(&entry.name);
            if let (None, Some(of)) = (scheme, entry.name.strip_suffix(SCALE)) {
                if !entries.contains_key(of) {
                    let reason = format!("these are the scales of '{of}', which no file holds");
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
    Folder::around(path, Source { format: Format::Layerwise, files, tensors }, skipped)
}

/// The files named this way, in order.
fn parts(path: &Path) -> Result<BTreeMap<Part, String>> {
    let io = |error| Error::io(path, error);
    let mut parts = BTreeMap::new();
    for entry in std::fs::read_dir(path).map_err(io)? {
        // A name that is not UTF-8 is none of these.
        let Ok(name) = entry.map_err(io)?.file_name().into_string() else { continue };
        let Some(part) = Part::parse(&name) else { continue };
        if let Some(other) = parts.insert(part, name.clone()) {
            return Err(Error::invalid(
                path,
                format!("has both {other} and {name}: which is the layer's file?"),
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
        "int4_grouped" => (Encoding::Int4Grouped, Dtype::I8, entry.values().div_ceil(GROUP)),
        "int8_asymmetric" => (Encoding::Int8Asymmetric, Dtype::U8, 2),
        other => {
            let shown: String = other.chars().take(64).collect();
            let known = "int8_symmetric, int4_grouped and int8_asymmetric are read";
            return fail(format!("the scheme '{}' is not supported: {known}", shown.escape_debug()));
        }
    };
    if entry.dtype != dtype {
        return fail(format!("{scheme} values should be {dtype}, not {}", entry.dtype));
    }
    let name = format!("{}{SCALE}", entry.name);
    let Some((at, scale)) = entries.get(name.as_str()).copied() else {
        return fail(format!("its scales '{name}' are missing"));
    };
    let fail = |reason: String| Err(Error::tensor(&files[at].path, &name, reason));
    if scale.dtype != Dtype::F32 {
        return fail(format!("scales should be F32, not {}", scale.dtype));
    }
    if scale.values() != scales {
        let found = scale.values();
        return fail(format!("{scheme} with a shape of {:?} has {scales} scales, not {found}", entry.shape));
    }
    Ok(Tensor {
        name: entry.name.clone(),
        shape: entry.shape.clone(),
        encoding,
        data: files[number].span(number, entry),
        scales: Some(files[at].span(at, scale)),
    })
}
