//! GGUF files, versions 2 and 3: the header is read, tensor data is not touched.
//!
//! A file is `GGUF`, a version, the number of tensors and of metadata keys, the keys with typed values, one entry a
//! tensor (name, dimensions, type, offset), padding, then the tensors' bytes. All lengths and counts come from the
//! file, and the file may be damaged or hostile. So every field goes through one bounded reader, which lets nothing be
//! allocated that the rest of the header could not hold, and every tensor is proved to lie inside the file, aligned
//! and apart from the others, before a caller sees it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

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

/// The most bytes a model's headers may have. Gemma's, with 262,144 tokens, is 6 MiB, and vocabularies that list their
/// merges too stay under 20; the limit keeps a hostile file from taking more than 64 MiB or 100 ms.
const MAX_HEADER: u64 = 32 << 20;

/// The most metadata keys. Real files have fewer than 100.
const MAX_KEYS: u64 = 1 << 14;

/// The smallest metadata entry: length of its key, type and one byte of value.
const MIN_KEY_BYTES: u64 = 8 + 4 + 1;

/// Where tensor data is aligned when `general.alignment` does not say otherwise.
const DEFAULT_ALIGNMENT: u64 = 32;

/// The GGUF specification wants alignments that are multiples of 8.
const MIN_ALIGNMENT: u64 = 8;

/// A GGUF model: one file or all parts of a split one.
#[derive(Clone, Debug)]
pub struct Gguf {
    /// Its tensors and where they are.
    pub source: Source,
    /// Its metadata; for a split model, that of the first part.
    pub metadata: Metadata,
    /// The format's version: 2 or 3.
    pub version: u32,
    /// What tensor offsets are multiples of; for a split model, in the first part.
    pub alignment: u64,
}

/// Reads the header of the GGUF file at `path`. When that is one part of a split model, all parts are found next to
/// it, checked against each other and read.
pub fn open(path: &Path) -> Result<Gguf> {
    let (gguf, _) = open_file(path, 0, MAX_HEADER)?;
    match split::Place::of(path, &gguf.metadata)? {
        None => Ok(gguf),
        Some(place) => {
            // Its metadata can be as large as a header may be: it goes before the parts come.
            drop(gguf);
            split::open_all(path, &place)
        }
    }
}

/// Reads one file's header from `bytes`, the first of `len`. `path` is what errors call it. A part of a split model is
/// read as the file that it is.
pub fn parse(path: &Path, bytes: impl Read, len: u64) -> Result<Gguf> {
    parse_file(path, bytes, len, 0, MAX_HEADER).map(|(gguf, _)| gguf)
}

/// [`parse_file`] on the file at `path`.
fn open_file(path: &Path, index: usize, limit: u64) -> Result<(Gguf, u64)> {
    // Asked before opening, for opening a pipe waits for its other end.
    let found = std::fs::metadata(path).map_err(|source| Error::io(path, source))?;
    if !found.is_file() {
        return Err(Error::invalid(path, "not a regular file: name the .gguf file itself"));
    }
    let file = File::open(path).map_err(|source| Error::io(path, source))?;
    parse_file(path, file, found.len(), index, limit)
}

/// Reads one file's header, of no more than `limit` bytes; its tensors point into file `index`. Returns the header's
/// length too.
fn parse_file(path: &Path, bytes: impl Read, len: u64, index: usize, limit: u64) -> Result<(Gguf, u64)> {
    let mut header = Header::new(path, bytes, len, limit);
    let version = read_version(&mut header)?;
    let tensor_count = header.u64(Subject::Field("tensor count"))?;
    let key_count = header.u64(Subject::Field("metadata key count"))?;
    let keys =
        header.room("metadata keys", key_count, MIN_KEY_BYTES, MAX_KEYS, Subject::Field("metadata"))?;
    // Before the metadata too, which can be long: a wrong count is found at once.
    tensors::count(&header, tensor_count)?;

    let metadata = Metadata::read(&mut header, keys)?;
    let alignment = read_alignment(path, &metadata)?;
    let mut tensors = tensors::read(&mut header, tensor_count, index)?;

    // Fits 64 bits: the header is at most `limit` bytes long, the alignment less than 2^32.
    let data = header.at().next_multiple_of(alignment);
    tensors::place(path, &mut tensors, data, alignment, len)?;
    tensors::check_names(&tensors, |_| path)?;
    let source = Source { format: Format::Gguf, files: vec![path.to_path_buf()], tensors };
    Ok((Gguf { source, metadata, version, alignment }, header.at()))
}

/// Reads the magic and the version; says what the file is instead when it is a familiar other thing.
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
                "a Git LFS pointer, not the file itself: run `git lfs pull` or download it",
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
        // The magic is the same four bytes in both orders; the version, a small number, is what tells them apart.
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
            "metadata key 'general.alignment': {alignment} is not a power of two of {MIN_ALIGNMENT} or more: {DAMAGED}"
        );
        return Err(Error::invalid(path, reason));
    }
    Ok(alignment)
}
