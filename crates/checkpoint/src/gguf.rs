//! GGUF files, versions 2 and 3. Only headers are read, no tensor data.
//!
//! A file consists of `GGUF`, a version, the number of tensors and of metadata keys, the keys with typed
//! values, one entry per tensor (name, dimensions, type, offset), padding, and the tensor data. All lengths
//! and counts come from the file, which may be damaged or malicious. Every field is therefore read through
//! one bounded reader, which allocates no more than the rest of the header could hold, and every tensor is
//! checked to be inside the file, aligned and not overlapping another before a caller sees it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::config::MetaValue;
use crate::error::{Error, Result};
use crate::source::{Format, Source};

mod header;
mod metadata;
mod split;
mod tensors;
mod value;

use header::{DAMAGED, Header, Subject};
pub use metadata::Metadata;
pub use value::{Array, Strings, Value};

/// Maximum bytes of all headers of a model. Gemma's has 6 MiB for 262,144 tokens, and vocabularies with
/// merges stay under 20 MiB. The limit keeps a malicious file from taking more than 64 MiB of memory;
/// rejecting it takes linear time, below 100 ms in an optimised build.
const MAX_HEADER: u64 = 32 << 20;

/// Maximum number of metadata keys. Real files have fewer than 100.
const MAX_KEYS: u64 = 1 << 14;

/// Minimum bytes of a metadata entry: length of the key, type and one byte of value.
const MIN_KEY_BYTES: u64 = 8 + 4 + 1;

/// Alignment of tensor data if `general.alignment` is absent, in bytes.
const DEFAULT_ALIGNMENT: u64 = 32;

/// The GGUF specification requires alignments to be multiples of 8.
const MIN_ALIGNMENT: u64 = 8;

/// A GGUF model: a single file, or all parts of a split model.
#[derive(Clone, Debug)]
pub struct Gguf {
    /// The tensors and where they are.
    pub source: Source,
    /// The metadata; of the first part if the model is split.
    pub metadata: Metadata,
    /// Version of the format: 2 or 3.
    pub version: u32,
    /// Alignment of tensor offsets in bytes; of the first part if the model is split.
    pub alignment: u64,
}

/// Reads the header of the GGUF file at `path`. If it is one part of a split model, all parts are located
/// beside it, checked against each other and read.
pub fn open(path: &Path) -> Result<Gguf> {
    let (gguf, _) = open_file(path, 0, MAX_HEADER)?;
    match split::SplitInfo::from_metadata(path, &gguf.metadata)? {
        None => Ok(gguf),
        Some(split) => {
            // Its metadata may be as large as the header limit: freed before the parts are read.
            drop(gguf);
            split::open_all(path, &split)
        }
    }
}

/// Reads the header of one file of `len` bytes from `bytes`. `path` is used in errors only. A part of a split
/// model is read as a standalone file.
pub fn parse(path: &Path, bytes: impl Read, len: u64) -> Result<Gguf> {
    parse_file(path, bytes, len, 0, MAX_HEADER).map(|(gguf, _)| gguf)
}

/// The metadata at the start of a file, up to its vocabulary: a few kilobytes that suffice for
/// [`Config::from_gguf`](crate::Config::from_gguf), read before the rest of a file is at hand.
#[derive(Clone, Debug)]
pub struct Preview {
    /// The keys before the vocabulary.
    pub metadata: Metadata,
    /// Size of the vocabulary; `None` if the file has none.
    pub tokens: Option<u64>,
}

impl Preview {
    /// A value of the metadata, in the form that configs are read from.
    pub fn get(&self, key: &str) -> Option<MetaValue<'_>> {
        match self.tokens {
            Some(count) if key == VOCABULARY => Some(MetaValue::Array(count)),
            _ => self.metadata.get(key).map(MetaValue::from),
        }
    }
}

/// The key of the vocabulary, the first long value in files of llama.cpp's converter.
const VOCABULARY: &str = "tokenizer.ggml.tokens";

/// Reads the metadata of a file of `len` bytes as far as its vocabulary. `path` is used in errors only.
pub fn preview(path: &Path, bytes: impl Read, len: u64) -> Result<Preview> {
    let mut header = Header::new(path, bytes, len, MAX_HEADER);
    read_version(&mut header)?;
    let tensor_count = header.u64(Subject::Field("tensor count"))?;
    tensors::count(&header, tensor_count)?;
    let keys = read_key_count(&mut header)?;
    let (metadata, tokens) = Metadata::read_until(&mut header, keys, VOCABULARY)?;
    Ok(Preview { metadata, tokens })
}

fn read_key_count<R: Read>(header: &mut Header<R>) -> Result<usize> {
    let count = header.u64(Subject::Field("metadata key count"))?;
    header.bounded_count("metadata keys", count, MIN_KEY_BYTES, MAX_KEYS, Subject::Field("metadata"))
}

/// The name that all parts of a split model have in common; `None` if the path is not that of a part.
pub(crate) fn split_base(path: &Path) -> Option<&str> {
    split::PartName::parse(path).map(|name| name.base)
}

/// [`parse_file`] on the file at `path`.
fn open_file(path: &Path, index: usize, limit: u64) -> Result<(Gguf, u64)> {
    // Checked before opening, because opening a pipe blocks until its other end is opened.
    let found = std::fs::metadata(path).map_err(|source| Error::io(path, source))?;
    if !found.is_file() {
        return Err(Error::invalid(path, "not a regular file: pass the .gguf file itself"));
    }
    let file = File::open(path).map_err(|source| Error::io(path, source))?;
    parse_file(path, file, found.len(), index, limit)
}

/// Reads one file's header of at most `limit` bytes. Its tensors refer to file `index`. Also returns the
/// header's length.
fn parse_file(path: &Path, bytes: impl Read, len: u64, index: usize, limit: u64) -> Result<(Gguf, u64)> {
    let mut header = Header::new(path, bytes, len, limit);
    let version = read_version(&mut header)?;
    let tensor_count = header.u64(Subject::Field("tensor count"))?;
    let keys = read_key_count(&mut header)?;
    // Also checked before the metadata, which can be long, to reject a wrong count early.
    tensors::count(&header, tensor_count)?;

    let metadata = Metadata::read(&mut header, keys)?;
    let alignment = read_alignment(path, &metadata)?;
    let mut tensors = tensors::read(&mut header, tensor_count, index)?;

    // Cannot overflow: the header has at most `limit` bytes, and the alignment is below 2^32.
    let data = header.at().next_multiple_of(alignment);
    tensors::resolve_offsets(path, &mut tensors, data, alignment, len)?;
    tensors::check_names(&tensors, |_| path)?;
    let source = Source { format: Format::Gguf, files: vec![path.to_path_buf()], tensors };
    Ok((Gguf { source, metadata, version, alignment }, header.at()))
}

/// Reads magic and version. The error names the actual format of common other files.
fn read_version<R: Read>(header: &mut Header<R>) -> Result<u32> {
    let path = header.path();
    let unsupported =
        |what: String, fix: &str| Error::Unsupported { path: path.to_path_buf(), what, fix: fix.into() };
    let big_endian = || {
        unsupported(
            "a big-endian GGUF file".into(),
            "get the little-endian one, or convert it with gguf-convert-endian",
        )
    };
    match &header.array::<4>(Subject::Field("magic"))? {
        b"GGUF" => {}
        b"FUGG" => return Err(big_endian()),
        b"vers" => {
            return Err(Error::invalid(
                path,
                "a Git LFS pointer, not the file itself: run `git lfs pull`, or download the file",
            ));
        }
        b"lmgg" | b"fmgg" | b"tjgg" => {
            return Err(unsupported(
                "a GGML file from before GGUF".into(),
                "convert the original model with llama.cpp",
            ));
        }
        other => {
            return Err(Error::invalid(
                path,
                format!("not a GGUF file: it starts with '{}'", other.escape_ascii()),
            ));
        }
    }
    match header.u32(Subject::Field("version"))? {
        version @ (2 | 3) => Ok(version),
        // The magic is the same in both byte orders; the version, a small number, reveals the order.
        version if version != 0 && version & 0xffff == 0 => Err(big_endian()),
        version => Err(unsupported(
            format!("GGUF version {version}"),
            "use version 2 or 3; current converters write 3",
        )),
    }
}

fn read_alignment(path: &Path, metadata: &Metadata) -> Result<u64> {
    let alignment =
        metadata.optional("general.alignment", Metadata::u32)?.map_or(DEFAULT_ALIGNMENT, u64::from);
    if !alignment.is_power_of_two() || alignment < MIN_ALIGNMENT {
        let reason = format!(
            "metadata key 'general.alignment': {alignment} is not a power of two of at least {MIN_ALIGNMENT}: {DAMAGED}"
        );
        return Err(Error::invalid(path, reason));
    }
    Ok(alignment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn text(value: &str) -> Vec<u8> {
        [&(value.len() as u64).to_le_bytes(), value.as_bytes()].concat()
    }

    fn number(key: &str, value: u32) -> Vec<u8> {
        [text(key), 4_u32.to_le_bytes().to_vec(), value.to_le_bytes().to_vec()].concat()
    }

    /// The start of a Qwen 3 file, cut off inside its vocabulary.
    fn start(architecture: &str) -> Vec<u8> {
        let mut keys =
            vec![[text("general.architecture"), 8_u32.to_le_bytes().to_vec(), text(architecture)].concat()];
        for (key, value) in [
            ("block_count", 36),
            ("embedding_length", 4096),
            ("attention.head_count", 32),
            ("attention.head_count_kv", 8),
            ("attention.key_length", 128),
            ("feed_forward_length", 12288),
            ("context_length", 40960),
        ] {
            keys.push(number(&format!("{architecture}.{key}"), value));
        }
        let epsilon = format!("{architecture}.attention.layer_norm_rms_epsilon");
        keys.push([text(&epsilon), 6_u32.to_le_bytes().to_vec(), 1e-6_f32.to_le_bytes().to_vec()].concat());
        let vocabulary = [9_u32.to_le_bytes(), 8_u32.to_le_bytes()].concat();
        keys.push([text(VOCABULARY), vocabulary, 151_936_u64.to_le_bytes().to_vec(), text("!")].concat());
        let count = keys.len() as u64 + 20;
        let counts = [399_u64.to_le_bytes(), count.to_le_bytes()].concat();
        [b"GGUF".to_vec(), 3_u32.to_le_bytes().to_vec(), counts, keys.concat()].concat()
    }

    #[test]
    fn a_preview_has_the_config_without_the_vocabulary() {
        let (path, bytes) = (Path::new("remote.gguf"), start("qwen3"));
        let found = preview(path, &bytes[..], 8 << 30).unwrap();
        assert_eq!(found.tokens, Some(151_936));
        let config = Config::from_gguf(path, &|key| found.get(key)).unwrap();
        assert_eq!((config.layers, config.kv_heads, config.vocab), (36, 8, 151_936));
        assert!(parse(path, &bytes[..], 8 << 30).is_err(), "the whole header is not there");

        let other = preview(path, &start("mamba")[..], 8 << 30).unwrap();
        let error = Config::from_gguf(path, &|key| other.get(key)).unwrap_err().to_string();
        assert!(error.contains("remote.gguf: the architecture 'mamba' is not supported"), "{error}");
        for cut in [0, 3, 10, 30, bytes.len() - 20] {
            assert!(preview(path, &bytes[..cut], 8 << 30).is_err(), "{cut} bytes");
        }
    }
}
