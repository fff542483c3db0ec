//! Safetensors headers, read and validated. No tensor data is read.
//!
//! A file consists of eight bytes of header length, the header (a JSON object of tensors) and the data that
//! its offsets refer to. The JSON is parsed directly into typed entries, so that [`MAX_HEADER`] and
//! [`MAX_ENTRIES`] bound the cost of any header. The `safetensors` crate is not used: its parser accepts
//! duplicate tensor names (the last one wins), cannot represent unknown types, and reports most errors
//! without the tensor's name.

mod json;

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::de::DeserializeSeed;

use tensor::Encoding;

use crate::{
    error::{Error, Result},
    source::Span,
};

use json::HeaderSeed;
pub(crate) use json::{TextMap, brief, no_text};

/// Bytes before the header, which hold its length.
const PREFIX: u64 = 8;

/// Maximum bytes of a header, and of all headers of a model together. The reference implementation allows 100
/// MB per file; this is enough for 30 000 tensors. A malicious header of this size takes at most 64 MiB of
/// memory and linear time, below 100 ms in an optimised build.
pub const MAX_HEADER: u64 = 4 << 20;

/// Maximum number of tensors, and of metadata entries, per file.
pub const MAX_ENTRIES: usize = 1 << 15;

/// A safetensors file with a valid header.
#[derive(Clone, Debug)]
pub struct File {
    /// Path of the file.
    pub path: PathBuf,
    /// Offset of the data in the file.
    pub data_start: u64,
    /// The header.
    pub header: Header,
}

impl File {
    /// The location of an entry's bytes, where `file` is the index of this file in its source.
    pub fn span(&self, file: usize, entry: &Entry) -> Span {
        Span { file, offset: self.data_start + entry.begin, len: entry.end - entry.begin }
    }
}

/// A valid header.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Header {
    /// `__metadata__`: strings by key.
    pub metadata: BTreeMap<String, String>,
    /// The tensors, in data order.
    pub entries: Vec<Entry>,
}

/// One tensor of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name.
    pub name: String,
    /// Type of the values.
    pub dtype: Dtype,
    /// Outermost dimension first.
    pub shape: Vec<u64>,
    /// Offset of the first byte in the data.
    pub begin: u64,
    /// Offset past the last byte in the data.
    pub end: u64,
}

impl Entry {
    /// Number of values. Cannot overflow in a valid header.
    pub fn values(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// Type of a tensor's values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// bfloat16.
    Bf16,
    /// Signed bytes.
    I8,
    /// Unsigned bytes.
    U8,
    /// Any other type, by its name in the file: can be listed and skipped, but not read.
    Other(String),
}

impl Dtype {
    fn parse(name: &str) -> Self {
        let known = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::I8, Dtype::U8];
        known.into_iter().find(|dtype| dtype.name() == name).unwrap_or_else(|| Dtype::Other(name.to_string()))
    }

    /// Name in files.
    pub fn name(&self) -> &str {
        match self {
            Dtype::F32 => "F32",
            Dtype::F16 => "F16",
            Dtype::Bf16 => "BF16",
            Dtype::I8 => "I8",
            Dtype::U8 => "U8",
            Dtype::Other(name) => name,
        }
    }

    /// Bytes per value; `None` for an unknown type.
    pub fn bytes(&self) -> Option<u64> {
        match self {
            Dtype::F32 => Some(4),
            Dtype::F16 | Dtype::Bf16 => Some(2),
            Dtype::I8 | Dtype::U8 => Some(1),
            Dtype::Other(_) => None,
        }
    }

    /// The encoding of values of this type; `None` if they need a quantisation scheme or the type is unknown.
    pub fn encoding(&self) -> Option<Encoding> {
        match self {
            Dtype::F32 => Some(Encoding::F32),
            Dtype::F16 => Some(Encoding::F16),
            Dtype::Bf16 => Some(Encoding::Bf16),
            Dtype::I8 | Dtype::U8 | Dtype::Other(_) => None,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reads and validates the header of the file at `path`.
pub fn open(path: &Path) -> Result<File> {
    let mut budget = MAX_HEADER;
    open_within(path, &mut budget)
}

/// The same for one of several files: `budget` is the rest of [`MAX_HEADER`], for this file and the
/// following ones.
pub(crate) fn open_within(path: &Path, budget: &mut u64) -> Result<File> {
    let io = |error| Error::io(path, error);
    let metadata = std::fs::metadata(path).map_err(io)?;
    if !metadata.is_file() {
        // Opening a pipe would block until its other end is opened.
        return Err(Error::invalid(path, "is not a regular file"));
    }
    let len = metadata.len();
    if len < PREFIX {
        return Err(Error::invalid(
            path,
            format!("has {len} bytes, too few for a header: download the file again"),
        ));
    }
    let mut file = std::fs::File::open(path).map_err(io)?;
    let mut prefix = [0_u8; PREFIX as usize];
    file.read_exact(&mut prefix).map_err(io)?;
    if &prefix == b"version " {
        return Err(Error::invalid(path, "is a Git LFS pointer, not the file itself: run `git lfs pull`"));
    }
    let header_len = u64::from_le_bytes(prefix);
    if header_len > *budget {
        let claim = format!("claims a header of {header_len} bytes, but the limit is {budget}");
        return Err(Error::invalid(path, format!("{claim}: the file is damaged or not safetensors")));
    }
    *budget -= header_len;
    if header_len > len - PREFIX {
        let claim = format!("claims a header of {header_len} bytes, but only {} bytes follow", len - PREFIX);
        return Err(Error::invalid(path, format!("{claim}: the file is truncated, download it again")));
    }
    let mut header = vec![0; header_len as usize];
    file.read_exact(&mut header).map_err(io)?;
    let data_start = PREFIX + header_len;
    let header = parse_header(path, &header, len - data_start)?;
    Ok(File { path: path.to_path_buf(), data_start, header })
}

/// Parses and validates a header that is followed by `data_len` bytes of data. `path` is used in errors only.
pub fn parse_header(path: &Path, header: &[u8], data_len: u64) -> Result<Header> {
    let text = std::str::from_utf8(header).map_err(|error| {
        Error::invalid(path, format!("the header is not valid UTF-8 at byte {}", error.valid_up_to()))
    })?;
    if !text.starts_with('{') {
        return Err(Error::invalid(
            path,
            "the header does not start with '{': this is not a safetensors file",
        ));
    }
    let mut current = None;
    let mut json = serde_json::Deserializer::from_str(text);
    let parsed = HeaderSeed { current: &mut current }.deserialize(&mut json).and_then(|header| {
        json.end()?;
        Ok(header)
    });
    let mut header = parsed.map_err(|error| match current {
        Some(tensor) => Error::tensor(path, &tensor, format!("invalid description: {}", brief(error))),
        None => Error::invalid(path, format!("invalid header: {}", brief(error))),
    })?;
    check_names(path, &header.entries)?;
    header.entries.sort_by_key(|entry| (entry.begin, entry.end));
    check_layout(path, &header.entries, data_len)?;
    Ok(header)
}

fn check_names(path: &Path, entries: &[Entry]) -> Result<()> {
    let mut names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::tensor(path, pair[0], "duplicate name in the header")),
        None => Ok(()),
    }
}

/// The format requires that tensors, sorted by offset, are contiguous: the first starts at 0, each one starts
/// where the previous one ends, and the last one ends with the file.
fn check_layout(path: &Path, entries: &[Entry], data_len: u64) -> Result<()> {
    let mut end = 0;
    let mut previous: Option<&Entry> = None;
    for entry in entries {
        let fail = |reason: String| Err(Error::tensor(path, &entry.name, reason));
        let (begin, stop) = (entry.begin, entry.end);
        if stop < begin {
            return fail(format!("data ends at byte {stop}, before it begins at byte {begin}"));
        }
        if stop > data_len {
            let reason = format!("data ends at byte {stop} of {data_len}");
            return fail(format!("{reason}: the file is truncated or damaged, download it again"));
        }
        if begin < end {
            let other = previous.map_or("", |entry| &entry.name);
            return fail(format!(
                "data begins at byte {begin}, inside tensor '{other}', which ends at byte {end}"
            ));
        }
        if begin > end {
            return fail(format!("data begins at byte {begin}, but the previous tensor ends at byte {end}"));
        }
        check_size(path, entry)?;
        end = stop;
        previous = Some(entry);
    }
    if end < data_len {
        let reason = format!("{} bytes after byte {end} of the data belong to no tensor", data_len - end);
        return Err(Error::invalid(path, reason));
    }
    Ok(())
}

fn check_size(path: &Path, entry: &Entry) -> Result<()> {
    let shape = &entry.shape;
    let fail = |reason: String| Err(Error::tensor(path, &entry.name, reason));
    let values = shape.iter().try_fold(1_u64, |product, dimension| product.checked_mul(*dimension));
    let Some(values) = values else {
        return fail(format!("the number of values of shape {shape:?} overflows 64 bits"));
    };
    let Some(width) = entry.dtype.bytes() else { return Ok(()) };
    let found = entry.end - entry.begin;
    match values.checked_mul(width) {
        None => fail(format!("the size of {shape:?} of {} overflows 64 bits", entry.dtype)),
        Some(bytes) if bytes != found => {
            fail(format!("{shape:?} of {} needs {bytes} bytes, but the data has {found}", entry.dtype))
        }
        Some(_) => Ok(()),
    }
}
