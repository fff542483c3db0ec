//! Hugging Face folders: `config.json` and safetensors, in one file or in shards that an index lists.

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

const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The largest `config.json` that is read; real ones have some kilobytes. Parsed JSON takes up to 16 times its text.
const MAX_CONFIG: u64 = 1 << 20;
/// The largest index that is read: room for 40 000 tensors.
const MAX_INDEX: u64 = 4 << 20;
/// The most shards: the largest published models have under 200.
const MAX_SHARDS: usize = 1024;
/// Names listed in one message.
const SHOWN: usize = 5;

/// A model's folder, described.
#[derive(Clone, Debug)]
pub struct Folder {
    /// Where it is.
    pub path: PathBuf,
    /// Its tensors.
    pub source: Source,
    /// `config.json` as it is; see [`Config::from_hf`](crate::config::Config::from_hf).
    pub config: Value,
    /// Whether `generation_config.json` is there.
    pub has_generation_config: bool,
    /// Whether `tokenizer.json` is there.
    pub has_tokenizer: bool,
    /// Tensors that are left out of the source: of a type that is not read, and of no use to the language model.
    pub skipped: Vec<String>,
}

impl Folder {
    /// Where `config.json` is.
    pub fn config_path(&self) -> PathBuf {
        self.path.join(CONFIG)
    }

    /// A folder with this source, which was read from its files. `config.json` is read last: that a folder holds no
    /// model at all is the better message.
    pub(crate) fn around(path: &Path, source: Source, skipped: Vec<String>) -> Result<Self> {
        let at = path.join(CONFIG);
        if !at.exists() {
            return Err(Error::invalid(
                path,
                "has no config.json: fetch it from where the weights came from",
            ));
        }
        let text = read_text(&at, MAX_CONFIG)?;
        let config = serde_json::from_str(&text)
            .map_err(|error| Error::invalid(&at, format!("is wrong: {}", brief(error))))?;
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

/// Describes the Hugging Face folder at `path`. Reads headers only.
pub fn open(path: &Path) -> Result<Folder> {
    if !std::fs::metadata(path).map_err(|error| Error::io(path, error))?.is_dir() {
        return Err(Error::invalid(path, "is not a folder"));
    }
    // A link to nothing counts as there, and is complained about by name.
    let there = |name: &str| path.join(name).symlink_metadata().is_ok();
    // Where both are there, transformers takes the single file too.
    let files = if there(SINGLE) {
        vec![safetensors::open(&path.join(SINGLE))?]
    } else if there(INDEX) {
        open_shards(path)?
    } else {
        return Err(nothing_to_read(path));
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
    let folder = Folder::around(path, Source { format: Format::HuggingFace, files, tensors }, skipped)?;
    if let Some(scheme) = folder.config.get("quantization_config").filter(|scheme| !scheme.is_null()) {
        let method = scheme.get("quant_method").and_then(Value::as_str).unwrap_or("unknown");
        return Err(Error::Unsupported {
            path: folder.config_path(),
            what: format!(
                "the quantisation '{}'",
                method.chars().take(64).collect::<String>().escape_debug()
            ),
            fix: "use the model in bf16, f16 or f32, or a GGUF of it".to_string(),
        });
    }
    Ok(folder)
}

/// A tensor whose type says all about its values; none for one that can be left out.
pub(crate) fn plain_tensor(file: &File, number: usize, entry: &Entry) -> Result<Option<Tensor>> {
    let Some(encoding) = entry.dtype.encoding() else {
        return if is_text(&entry.name) { Err(unreadable(&file.path, entry)) } else { Ok(None) };
    };
    let (name, shape) = (entry.name.clone(), entry.shape.clone());
    Ok(Some(Tensor { name, shape, encoding, data: file.span(number, entry), scales: None }))
}

/// Whether a language model needs the tensor of this name.
fn is_text(name: &str) -> bool {
    let slots = Architecture::ALL.iter().filter_map(|architecture| Slot::parse(*architecture, name));
    slots.into_iter().any(|slot| slot.tower == Tower::Text)
}

fn unreadable(path: &Path, entry: &Entry) -> Error {
    let known = "F32, F16 and BF16 are read";
    let reason = match &entry.dtype {
        Dtype::Other(name) => format!("values of type '{}' are not supported: {known}", name.escape_debug()),
        bytes => format!("{bytes} values with nothing that says how they were quantised: {known}"),
    };
    Error::tensor(path, &entry.name, reason)
}

/// The shards of an index, which has to agree with what is in them.
fn open_shards(path: &Path) -> Result<Vec<File>> {
    let at = path.join(INDEX);
    let text = read_text(&at, MAX_INDEX)?;
    let mut json = serde_json::Deserializer::from_str(&text);
    let parsed = IndexSeed.deserialize(&mut json).and_then(|index| {
        json.end()?;
        Ok(index)
    });
    let mut index = parsed.map_err(|error| Error::invalid(&at, format!("is wrong: {}", brief(error))))?;
    let shards: BTreeSet<String> = index.values().cloned().collect();
    if shards.len() > MAX_SHARDS {
        return Err(Error::invalid(&at, format!("lists {} shards, more than {MAX_SHARDS}", shards.len())));
    }
    for shard in &shards {
        check_shard_name(&at, shard)?;
    }
    let missing = shards.iter().filter(|shard| !path.join(shard).exists());
    if let Some(list) = listed(missing.map(String::as_str)) {
        return Err(Error::invalid(&at, format!("lists files that are not there: {list}; fetch them")));
    }
    check_distinct(path, &at, &shards)?;
    let mut files = Vec::new();
    let mut unlisted = Vec::new();
    let mut room = MAX_HEADER;
    for shard in &shards {
        let file = safetensors::open_within(&path.join(shard), &mut room)?;
        for entry in &file.header.entries {
            match index.remove(&entry.name) {
                Some(listed) if listed == *shard => {}
                Some(listed) => {
                    let reason = format!("is in this file, but {INDEX} says '{listed}'");
                    return Err(Error::tensor(&file.path, &entry.name, reason));
                }
                None => unlisted.push(format!("{} in {shard}", entry.name)),
            }
        }
        files.push(file);
    }
    let absent: Vec<String> = index.into_iter().map(|(name, shard)| format!("{name} in {shard}")).collect();
    if let Some(list) = listed(absent.iter().map(String::as_str)) {
        return Err(Error::invalid(&at, format!("lists tensors that are not in its files: {list}")));
    }
    if let Some(list) = listed(unlisted.iter().map(String::as_str)) {
        return Err(Error::invalid(&at, format!("does not list tensors that are in its files: {list}")));
    }
    Ok(files)
}

/// A shard is a file of the same folder: nothing outside it is opened, whatever an index says.
fn check_shard_name(at: &Path, shard: &str) -> Result<()> {
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
    Err(Error::invalid(at, format!("{reason}: '{}'", shown.escape_debug())))
}

/// Two names of one file would be one file's tensors twice.
fn check_distinct(path: &Path, at: &Path, shards: &BTreeSet<String>) -> Result<()> {
    let mut seen: BTreeMap<PathBuf, &str> = BTreeMap::new();
    for shard in shards {
        let file = path.join(shard);
        let real = std::fs::canonicalize(&file).map_err(|error| Error::io(&file, error))?;
        if let Some(other) = seen.insert(real, shard) {
            return Err(Error::invalid(at, format!("lists '{other}' and '{shard}', which are one file")));
        }
    }
    Ok(())
}

/// Says what is in a folder that holds no model of this kind.
fn nothing_to_read(path: &Path) -> Error {
    // The names are for a message only: a folder of a million files needs no full listing.
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
        return unsupported("a folder of GGUF files", "name the file instead of the folder");
    }
    if names.iter().any(|name| layerwise::Part::parse(name).is_some()) {
        return unsupported(
            "a folder quantised layer by layer, opened as a Hugging Face one",
            "open it as what it is",
        );
    }
    if has(".bin") || has(".pt") || has(".pth") {
        return unsupported("a model saved with pickle", "save it as safetensors (save_pretrained does)");
    }
    Error::invalid(path, format!("has neither {SINGLE} nor {INDEX}: is the download complete?"))
}

/// The first few of a list and how many there are; none when there are none.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> Option<String> {
    let names: Vec<&str> = names.collect();
    let first = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => None,
        count if count > SHOWN => Some(format!("{first} and {} more", count - SHOWN)),
        _ => Some(first),
    }
}

/// A text file of at most `limit` bytes.
fn read_text(path: &Path, limit: u64) -> Result<String> {
    let io = |error| Error::io(path, error);
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(Error::invalid(path, "is not a regular file"));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path).map_err(io)?.take(limit + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > limit {
        return Err(Error::invalid(path, format!("is larger than the {limit} bytes that are read")));
    }
    String::from_utf8(bytes).map_err(|error| {
        Error::invalid(path, format!("is not UTF-8 from byte {} on", error.utf8_error().valid_up_to()))
    })
}

/// The file of each tensor, out of `{"metadata": …, "weight_map": {tensor: file}}`. `metadata.total_size` is not held
/// against anything: published indexes have it wrong.
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
                return Err(A::Error::custom("weight_map is there twice"));
            }
        }
        weights.ok_or_else(|| A::Error::missing_field("weight_map"))
    }
}
