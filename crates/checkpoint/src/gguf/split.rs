//! Models split into several GGUF files, named `NAME-00001-of-00003.gguf` as llama-gguf-split does.
//!
//! Every part is a complete GGUF file with its number and the number of parts; the first holds the model's
//! metadata.

use std::path::{Path, PathBuf};

use super::metadata::Metadata;
use super::tensors::{MAX_TENSORS, check_names};
use super::{Gguf, MAX_HEADER, open_file};
use crate::error::{Error, Result};

/// Digits of the part number in a file name.
const DIGITS: usize = 5;

/// Maximum number of missing parts listed in an error.
const MAX_LISTED: usize = 4;

/// The split metadata of one part.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SplitInfo {
    /// Number of this part, from 0.
    number: u32,
    /// Number of parts.
    count: u32,
    /// Total number of tensors in all parts.
    tensors: u64,
}

impl SplitInfo {
    /// `None` if the file at `path` is a complete model.
    pub fn from_metadata(path: &Path, metadata: &Metadata) -> Result<Option<SplitInfo>> {
        // Tools that merge parts keep the key with the value 0.
        let count = metadata.optional("split.count", Metadata::u32)?.unwrap_or(0);
        if count <= 1 {
            return match PartName::parse(path) {
                Some(name) if name.count > 1 => {
                    let reason = format!(
                        "named part {} of {}, but its metadata has no split.count: if it is a complete model, rename it",
                        name.number, name.count
                    );
                    Err(Error::invalid(path, reason))
                }
                _ => Ok(None),
            };
        }
        let number = metadata.u32("split.no")?;
        if number >= count {
            let reason = format!("metadata key 'split.no': {number} is out of range for {count} parts");
            return Err(Error::invalid(path, reason));
        }
        let tensors = metadata.u64("split.tensors.count")?;
        if tensors > MAX_TENSORS {
            let reason = format!(
                "metadata key 'split.tensors.count': {tensors} tensors, but the limit is {MAX_TENSORS}"
            );
            return Err(Error::invalid(path, reason));
        }
        Ok(Some(SplitInfo { number, count, tensors }))
    }
}

/// The components of a part's file name.
pub(super) struct PartName<'a> {
    pub base: &'a str,
    /// From 1.
    number: u32,
    count: u32,
}

impl PartName<'_> {
    pub fn parse(path: &Path) -> Option<PartName<'_>> {
        let number = |digits: &str| {
            let plain = digits.len() == DIGITS && digits.bytes().all(|digit| digit.is_ascii_digit());
            plain.then(|| digits.parse().ok()).flatten()
        };
        let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (base, part) = rest.rsplit_once('-')?;
        Some(PartName { base, number: number(part)?, count: number(count)? })
    }
}

/// Opens all parts of the model that the file at `path` belongs to, and merges them.
pub(super) fn open_all(path: &Path, split: &SplitInfo) -> Result<Gguf> {
    let paths = part_paths(path, split)?;
    let mut merged: Option<Gguf> = None;
    let mut limit = MAX_HEADER;
    for (index, path) in paths.iter().enumerate() {
        // All headers share one limit: many parts may not take more memory than one file.
        let (part, header) = open_file(path, index, limit)?;
        limit -= header;
        check_part(path, &part.metadata, index, split)?;
        match &mut merged {
            None => merged = Some(part),
            Some(merged) => merged.source.tensors.extend(part.source.tensors),
        }
        let found = merged.as_ref().map_or(0, |merged| merged.source.tensors.len() as u64);
        let last = index + 1 == paths.len();
        if found > split.tensors || (last && found != split.tensors) {
            let reason = format!(
                "metadata key 'split.tensors.count' is {}, but parts 1 to {} have {found} tensors: they do not belong \
                 to one model, download all parts again",
                split.tensors,
                index + 1
            );
            return Err(Error::invalid(path, reason));
        }
    }
    let mut merged = merged.ok_or_else(|| Error::invalid(path, "split model without parts"))?;
    check_names(&merged.source.tensors, |tensor| &paths[tensor.data.file])?;
    merged.source.files = paths;
    Ok(merged)
}

/// The paths of all parts; an error if one does not exist.
fn part_paths(path: &Path, split: &SplitInfo) -> Result<Vec<PathBuf>> {
    let SplitInfo { number, count, .. } = *split;
    let suffix = format!("-{:0DIGITS$}-of-{count:0DIGITS$}.gguf", number + 1);
    let name = match PartName::parse(path) {
        Some(name) if name.number == number + 1 && name.count == count => name,
        _ => {
            let reason = format!(
                "is part {} of {count} by its metadata, so its name must end in '{suffix}' for the other parts to be \
                 found: rename it",
                number + 1
            );
            return Err(Error::invalid(path, reason));
        }
    };
    let part =
        |part: u32| path.with_file_name(format!("{}-{part:0DIGITS$}-of-{count:0DIGITS$}.gguf", name.base));
    let missing: Vec<String> = (1..=count)
        .map(part)
        .filter(|path| !path.exists())
        .take(MAX_LISTED)
        .map(|path| path.display().to_string())
        .collect();
    if !missing.is_empty() {
        let more = if missing.len() == MAX_LISTED { " and possibly more" } else { "" };
        let reason = format!(
            "missing parts of {count}: {}{more}; download them to the same folder",
            missing.join(", ")
        );
        return Err(Error::invalid(path, reason));
    }
    Ok((1..=count).map(part).collect())
}

/// Checks that the file at `path` is part `index` of the model described by `split`.
fn check_part(path: &Path, metadata: &Metadata, index: usize, split: &SplitInfo) -> Result<()> {
    let found = SplitInfo::from_metadata(path, metadata)?;
    let belongs = found.as_ref().is_some_and(|found| {
        found.number as usize == index && found.count == split.count && found.tensors == split.tensors
    });
    if belongs {
        return Ok(());
    }
    let found = found.map_or("a complete model".to_string(), |found| {
        format!("part {} of {} with {} tensors in total", found.number + 1, found.count, found.tensors)
    });
    let reason = format!(
        "is {found} by its metadata, expected part {} of {} with {} tensors in total: the parts do not belong to one \
         model, download all again",
        index + 1,
        split.count,
        split.tensors
    );
    Err(Error::invalid(path, reason))
}
