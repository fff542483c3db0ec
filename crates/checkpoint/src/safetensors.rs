//! The header of a safetensors file, read and held against the format's rules. No tensor data is touched.
//!
//! A file is eight bytes of header length, the header (a JSON object of tensors) and the data that its offsets point
//! into. The JSON goes straight into typed entries, so that what a header can cost is bounded by [`MAX_HEADER`] and
//! [`MAX_ENTRIES`] whatever is written in it. It is read by hand rather than through the `safetensors` crate, whose
//! parser takes the last of two tensors of one name, has no word for a type it does not know, and reports most faults
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

/// Bytes before the header: its length.
const PREFIX: u64 = 8;

/// The longest header that is read, and the most that all headers of one model may have together. The reference reader
/// stops at 100 MB a file; this is room for 30 000 tensors, and a hostile header of this size stays within 64 MiB of
/// memory and a tenth of a second.
pub const MAX_HEADER: u64 = 4 << 20;

/// The most tensors, and the most metadata entries, in one file.
pub const MAX_ENTRIES: usize = 1 << 15;

/// A safetensors file whose header is sound.
#[derive(Clone, Debug)]
pub struct File {
    /// Where it is.
    pub path: PathBuf,
    /// The first byte of its data.
    pub data_start: u64,
    /// What its header says.
    pub header: Header,
}

impl File {
    /// Where an entry's bytes are, when this file is number `file` of a source.
    pub fn span(&self, file: usize, entry: &Entry) -> Span {
        Span { file, offset: self.data_start + entry.begin, len: entry.end - entry.begin }
    }
}

/// A sound header.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Header {
    /// `__metadata__`: free text by key.
    pub metadata: BTreeMap<String, String>,
    /// The tensors, in the order of their data.
    pub entries: Vec<Entry>,
}

/// One tensor of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// The type of its values.
    pub dtype: Dtype,
    /// Outermost dimension first.
    pub shape: Vec<u64>,
    /// First byte, counted from the start of the data.
    pub begin: u64,
    /// The byte after its last.
    pub end: u64,
}

impl Entry {
    /// The number of values. A sound header has none that leaves 64 bits.
    pub fn values(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// The type of a tensor's values.
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
    /// Any other, by its name in the file: it can be listed and skipped, not read.
    Other(String),
}

impl Dtype {
    fn parse(name: &str) -> Self {
        let known = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::I8, Dtype::U8];
        known.into_iter().find(|dtype| dtype.name() == name).unwrap_or_else(|| Dtype::Other(name.to_string()))
    }

    /// Its name in files.
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

    /// Bytes of a value; none for a type that is not known.
    pub fn bytes(&self) -> Option<u64> {
        match self {
            Dtype::F32 => Some(4),
            Dtype::F16 | Dtype::Bf16 => Some(2),
            Dtype::I8 | Dtype::U8 => Some(1),
            Dtype::Other(_) => None,
        }
    }

    /// The encoding that says everything about values of this type; none when they need a scheme or are not known.
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

/// Reads and checks the header of the file at `path`.
pub fn open(path: &Path) -> Result<File> {
    let mut room = MAX_HEADER;
    open_within(path, &mut room)
}

/// The same for one of a model's files: `room` is what is left of [`MAX_HEADER`] for it and those after it.
pub(crate) fn open_within(path: &Path, room: &mut u64) -> Result<File> {
    let io = |error| Error::io(path, error);
    let about = std::fs::metadata(path).map_err(io)?;
    if !about.is_file() {
        // Opening a pipe would wait for its other end.
        return Err(Error::invalid(path, "is not a regular file"));
    }
    let len = about.len();
    if len < PREFIX {
        return Err(Error::invalid(
            path,
            format!("has {len} bytes, too few for a header: fetch the file again"),
        ));
    }
    let mut file = std::fs::File::open(path).map_err(io)?;
    let mut prefix = [0_u8; PREFIX as usize];
    file.read_exact(&mut prefix).map_err(io)?;
    if &prefix == b"version " {
        return Err(Error::invalid(
            path,
            "is a Git LFS pointer, not the file it stands for: run `git lfs pull`",
        ));
    }
    let header_len = u64::from_le_bytes(prefix);
    if header_len > *room {
        let claim = format!("claims a header of {header_len} bytes, where at most {room} are read");
        return Err(Error::invalid(path, format!("{claim}: the file is damaged or not safetensors")));
    }
    *room -= header_len;
    if header_len > len - PREFIX {
        let claim = format!("claims a header of {header_len} bytes, but only {} follow", len - PREFIX);
        return Err(Error::invalid(path, format!("{claim}: the file is cut short, fetch it again")));
    }
    let mut header = vec![0; header_len as usize];
    file.read_exact(&mut header).map_err(io)?;
    let data_start = PREFIX + header_len;
    let header = parse_header(path, &header, len - data_start)?;
    Ok(File { path: path.to_path_buf(), data_start, header })
}

/// Parses and checks a header that `data_len` bytes of data follow. `path` is for messages only; nothing is read.
pub fn parse_header(path: &Path, header: &[u8], data_len: u64) -> Result<Header> {
    let text = std::str::from_utf8(header).map_err(|error| {
        Error::invalid(path, format!("the header is not UTF-8 from its byte {} on", error.valid_up_to()))
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
        Some(tensor) => Error::tensor(path, &tensor, format!("its description is wrong: {}", brief(error))),
        None => Error::invalid(path, format!("the header is wrong: {}", brief(error))),
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
        Some(pair) => Err(Error::tensor(path, pair[0], "the header names it twice")),
        None => Ok(()),
    }
}

/// The format's rule: sorted by offset, each tensor starts where the one before it ends, the first at 0, and the last
/// ends with the file.
fn check_layout(path: &Path, entries: &[Entry], data_len: u64) -> Result<()> {
    let mut end = 0;
    let mut previous: Option<&Entry> = None;
    for entry in entries {
        let fail = |reason: String| Err(Error::tensor(path, &entry.name, reason));
        let (begin, stop) = (entry.begin, entry.end);
        if stop < begin {
            return fail(format!("its data would end at byte {stop}, before it begins at {begin}"));
        }
        if stop > data_len {
            let there = format!("its data ends at byte {stop} of {data_len}");
            return fail(format!("{there}: the file is cut short or damaged, fetch it again"));
        }
        if begin < end {
            let other = previous.map_or("", |entry| &entry.name);
            return fail(format!(
                "its data begins at byte {begin}, inside that of '{other}', which ends at {end}"
            ));
        }
        if begin > end {
            return fail(format!("its data begins at byte {begin}, but what is before it ends at {end}"));
        }
        check_size(path, entry)?;
        end = stop;
        previous = Some(entry);
    }
    if end < data_len {
        let reason = format!("{} bytes after byte {end} of its data belong to no tensor", data_len - end);
        return Err(Error::invalid(path, reason));
    }
    Ok(())
}

fn check_size(path: &Path, entry: &Entry) -> Result<()> {
    let shape = &entry.shape;
    let fail = |reason: String| Err(Error::tensor(path, &entry.name, reason));
    let values = shape.iter().try_fold(1_u64, |product, dimension| product.checked_mul(*dimension));
    let Some(values) = values else {
        return fail(format!("a shape of {shape:?} has more values than 64 bits can count"));
    };
    let Some(width) = entry.dtype.bytes() else { return Ok(()) };
    let found = entry.end - entry.begin;
    match values.checked_mul(width) {
        None => fail(format!("{shape:?} of {} has more bytes than 64 bits can count", entry.dtype)),
        Some(bytes) if bytes != found => {
            fail(format!("{shape:?} of {} takes {bytes} bytes, its data has {found}", entry.dtype))
        }
        Some(_) => Ok(()),
    }
}
