//! Hugging Face folders: `config.json` and safetensors, in a single file or in shards listed by an index.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use crate::architecture::Architecture;
use crate::error::{Error, Result};
use crate::layerwise;
use crate::safetensors::{self, Dtype, Entry, File, MAX_HEADER, TextMap, brief, no_text};
use crate::slot::{Slot, Tower};
use crate::source::{Format, Source, Tensor};

pub(crate) const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Maximum bytes of `config.json`. Real ones have a few kilobytes; parsed JSON takes up to 16 times its text.
const MAX_CONFIG: u64 = 1 << 20;
/// Maximum bytes of an index: enough for 40 000 tensors.
const MAX_INDEX: u64 = 4 << 20;
/// Maximum number of shards: the largest published models have fewer than 200.
const MAX_SHARDS: usize = 1024;
/// Maximum number of names listed in a message.
const MAX_LISTED: usize = 5;

/// A Hugging Face folder.
#[derive(Clone, Debug)]
pub struct Folder {
    /// Path of the folder.
    pub path: PathBuf,
    /// The tensors.
    pub source: Source,
    /// `config.json` as parsed JSON; see [`Config::from_hf`](crate::config::Config::from_hf).
    pub config: Value,
    /// Whether `generation_config.json` exists.
    pub has_generation_config: bool,
    /// Whether `tokenizer.json` exists.
    pub has_tokenizer: bool,
    /// Names of tensors left out of the source: of an unsupported type, and not needed by the language model.
    pub skipped: Vec<String>,
}

impl Folder {
    /// Path of `config.json`.
    pub fn config_path(&self) -> PathBuf {
        self.path.join(CONFIG)
    }

    /// Completes a source that was read from the folder's files. `config.json` is read last: for a folder
    /// without a model, the error about missing weights is more helpful.
    pub(crate) fn from_source(path: &Path, source: Source, skipped: Vec<String>) -> Result<Self> {
        let config_path = path.join(CONFIG);
        if !config_path.exists() {
            return Err(Error::invalid(
                path,
                "has no config.json: download it from the same place as the weights",
            ));
        }
        let config = read_config(&config_path)?;
        Ok(Folder {
            path: path.to_path_buf(),
            source,
            config,
            has_generation_config: path.join("generation_config.json").is_file(),
            has_tokenizer: path.join("tokenizer.json").is_file(),
            skipped,
        })
    }
}

/// Opens the Hugging Face folder at `path`. Reads headers only.
pub fn open(path: &Path) -> Result<Folder> {
    if !std::fs::metadata(path).map_err(|error| Error::io(path, error))?.is_dir() {
        return Err(Error::invalid(path, "is not a folder"));
    }
    // A broken link counts as existing: the error of opening it names the file.
    let exists = |name: &str| path.join(name).symlink_metadata().is_ok();
    // If both exist, transformers reads the single file as well.
    let files = if exists(SINGLE) {
        vec![safetensors::open(&path.join(SINGLE))?]
    } else if exists(INDEX) {
        open_shards(path)?
    } else {
        return Err(no_weights(path));
    };
    let mut tensors = Vec::new();
    let mut skipped = Vec::new();
    for (number, file) in files.iter().enumerate() {
        for entry in &file.header.entries {
            match plain_tensor(file, number, entry)? {
                Some(tensor) => tensors.push(tensor),
                None => skipped.push(entry.name.clone()),
            }
        }
    }
    let files = files.into_iter().map(|file| file.path).collect();
    let folder = Folder::from_source(path, Source { format: Format::HuggingFace, files, tensors }, skipped)?;
    if let Some(scheme) = folder.config.get("quantization_config").filter(|scheme| !scheme.is_null()) {
        let method = scheme.get("quant_method").and_then(Value::as_str).unwrap_or("unknown");
        return Err(Error::Unsupported {
            path: folder.config_path(),
            what: format!(
                "the quantisation '{}'",
                method.chars().take(64).collect::<String>().escape_debug()
            ),
            fix: "use the model in bf16, f16 or f32, or a GGUF file of it".to_string(),
        });
    }
    Ok(folder)
}

/// A tensor whose dtype fully determines its encoding; `None` if it can be left out.
pub(crate) fn plain_tensor(file: &File, number: usize, entry: &Entry) -> Result<Option<Tensor>> {
    let Some(encoding) = entry.dtype.encoding() else {
        return if is_text(&entry.name) { Err(unsupported_dtype(&file.path, entry)) } else { Ok(None) };
    };
    let (name, shape) = (entry.name.clone(), entry.shape.clone());
    Ok(Some(Tensor { name, shape, encoding, data: file.span(number, entry), scales: None }))
}

/// Whether this is the name of a language model's tensor.
fn is_text(name: &str) -> bool {
    let slots = Architecture::ALL.iter().filter_map(|architecture| Slot::parse(*architecture, name));
    slots.into_iter().any(|slot| slot.tower == Tower::Text)
}

fn unsupported_dtype(path: &Path, entry: &Entry) -> Error {
    let known = "use F32, F16 or BF16";
    let reason = match &entry.dtype {
        Dtype::Other(name) => format!("values of type '{}' are not supported: {known}", name.escape_debug()),
        bytes => format!("{bytes} values without a quantisation scheme: {known}"),
    };
    Error::tensor(path, &entry.name, reason)
}

/// Opens the shards of an index, and checks that both list the same tensors.
fn open_shards(path: &Path) -> Result<Vec<File>> {
    let index_path = path.join(INDEX);
    let text = read_text(&index_path, MAX_INDEX)?;
    let mut json = serde_json::Deserializer::from_str(&text);
    let parsed = IndexSeed.deserialize(&mut json).and_then(|index| {
        json.end()?;
        Ok(index)
    });
    let mut index =
        parsed.map_err(|error| Error::invalid(&index_path, format!("is invalid: {}", brief(error))))?;
    let shards: BTreeSet<String> = index.values().cloned().collect();
    if shards.len() > MAX_SHARDS {
        return Err(Error::invalid(
            &index_path,
            format!("lists {} shards, but the limit is {MAX_SHARDS}", shards.len()),
        ));
    }
    for shard in &shards {
        check_shard_name(&index_path, shard)?;
    }
    let missing = shards.iter().filter(|shard| !path.join(shard).exists());
    if let Some(list) = listed(missing.map(String::as_str)) {
        return Err(Error::invalid(&index_path, format!("lists missing files: {list}; download them")));
    }
    check_distinct(path, &index_path, &shards)?;
    let mut files = Vec::new();
    let mut unlisted = Vec::new();
    let mut header_budget = MAX_HEADER;
    for shard in &shards {
        let file = safetensors::open_within(&path.join(shard), &mut header_budget)?;
        for entry in &file.header.entries {
            match index.remove(&entry.name) {
                Some(listed) if listed == *shard => {}
                Some(listed) => {
                    let reason = format!("is in this file, but {INDEX} lists it in '{listed}'");
                    return Err(Error::tensor(&file.path, &entry.name, reason));
                }
                None => unlisted.push(format!("{} in {shard}", entry.name)),
            }
        }
        files.push(file);
    }
    let absent: Vec<String> = index.into_iter().map(|(name, shard)| format!("{name} in {shard}")).collect();
    if let Some(list) = listed(absent.iter().map(String::as_str)) {
        return Err(Error::invalid(&index_path, format!("lists tensors that are not in its files: {list}")));
    }
    if let Some(list) = listed(unlisted.iter().map(String::as_str)) {
        return Err(Error::invalid(
            &index_path,
            format!("does not list tensors that are in its files: {list}"),
        ));
    }
    Ok(files)
}

/// Shards must be in the same folder: an index must not name files elsewhere.
fn check_shard_name(index_path: &Path, shard: &str) -> Result<()> {
    let reason = if shard == INDEX {
        "lists itself as a shard"
    } else if shard.contains(['/', '\\']) || shard.contains("..") {
        "lists a shard that is not a plain file name"
    } else if !shard.ends_with(".safetensors") {
        "lists a shard that is not a .safetensors file"
    } else {
        return Ok(());
    };
    let shown: String = shard.chars().take(64).collect();
    Err(Error::invalid(index_path, format!("{reason}: '{}'", shown.escape_debug())))
}

/// Rejects two names of the same file, whose tensors would appear twice.
fn check_distinct(path: &Path, index_path: &Path, shards: &BTreeSet<String>) -> Result<()> {
    let mut seen: BTreeMap<PathBuf, &str> = BTreeMap::new();
    for shard in shards {
        let file = path.join(shard);
        let real = std::fs::canonicalize(&file).map_err(|error| Error::io(&file, error))?;
        if let Some(other) = seen.insert(real, shard) {
            return Err(Error::invalid(
                index_path,
                format!("lists '{other}' and '{shard}', which are the same file"),
            ));
        }
    }
    Ok(())
}

/// The error for a folder without safetensors, which depends on the files that it does contain.
fn no_weights(path: &Path) -> Error {
    // Only for a message: a huge folder is not listed completely.
    let names: Vec<String> = match std::fs::read_dir(path) {
        Ok(entries) => {
            entries.flatten().take(4096).map(|e| e.file_name().to_string_lossy().into_owned()).collect()
        }
        Err(error) => return Error::io(path, error),
    };
    let has = |ending: &str| names.iter().any(|name| name.ends_with(ending));
    let unsupported = |what: &str, fix: &str| Error::Unsupported {
        path: path.to_path_buf(),
        what: what.to_string(),
        fix: fix.to_string(),
    };
    if has(".gguf") {
        return unsupported("a folder of GGUF files", "pass the file instead of the folder");
    }
    if names.iter().any(|name| layerwise::PartName::parse(name).is_some()) {
        return unsupported(
            "a layerwise-quantised folder opened as a Hugging Face folder",
            "open it with `layerwise::open`",
        );
    }
    if has(".bin") || has(".pt") || has(".pth") {
        return unsupported(
            "a model saved with pickle",
            "save it as safetensors, for example with save_pretrained",
        );
    }
    Error::invalid(path, format!("has neither {SINGLE} nor {INDEX}: is the download complete?"))
}

/// The first names and the number of the others; `None` for an empty list.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> Option<String> {
    let names: Vec<&str> = names.collect();
    let first = names.iter().take(MAX_LISTED).copied().collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => None,
        count if count > MAX_LISTED => Some(format!("{first} and {} more", count - MAX_LISTED)),
        _ => Some(first),
    }
}

/// Reads `config.json`, or another config of its folder.
pub(crate) fn read_config(path: &Path) -> Result<Value> {
    let text = read_text(path, MAX_CONFIG)?;
    serde_json::from_str(&text).map_err(|error| Error::invalid(path, format!("is invalid: {}", brief(error))))
}

/// Reads a text file of at most `limit` bytes.
fn read_text(path: &Path, limit: u64) -> Result<String> {
    let io = |error| Error::io(path, error);
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(Error::invalid(path, "is not a regular file"));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path).map_err(io)?.take(limit + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > limit {
        return Err(Error::invalid(path, format!("is larger than the limit of {limit} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        Error::invalid(path, format!("is not valid UTF-8 at byte {}", error.utf8_error().valid_up_to()))
    })
}

/// The file of each tensor, from `{"metadata": …, "weight_map": {tensor: file}}`. `metadata.total_size` is
/// ignored: published indexes get it wrong.
struct IndexSeed;

impl<'de> DeserializeSeed<'de> for IndexSeed {
    type Value = BTreeMap<String, String>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for IndexSeed {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with weight_map")
    }

    no_text!();

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut weights = None;
        while let Some(key) = map.next_key::<String>()? {
            if key != "weight_map" {
                map.next_value::<IgnoredAny>()?;
            } else if weights.replace(map.next_value_seed(TextMap { what: "weight_map" })?).is_some() {
                return Err(A::Error::custom("duplicate weight_map"));
            }
        }
        weights.ok_or_else(|| A::Error::missing_field("weight_map"))
    }
}
