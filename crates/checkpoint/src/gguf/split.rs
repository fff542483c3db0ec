//! Models split into several GGUF files, named `NAME-00001-of-00003.gguf` as llama-gguf-split does.
//!
//! Every part is a GGUF file of its own and says which of how many it is; the first has the model's metadata.

use std::path::{Path, PathBuf};

use super::metadata::Metadata;
use super::tensors::{MAX_TENSORS, check_names};
use super::{Gguf, MAX_HEADER, open_file};
use crate::error::{Error, Result};

/// Digits of a part's number in its file name.
const DIGITS: usize = 5;

/// Missing parts that an error names.
const NAMED: usize = 4;

/// What one part says of its place in the whole.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Which part, from 0.
    number: u32,
    /// Of how many.
    count: u32,
    /// Tensors of all parts together.
    tensors: u64,
}

impl Place {
    /// The place of the part at `path`; none when the file is a whole model.
    pub fn of(path: &Path, metadata: &Metadata) -> Result<Option<Place>> {
        // Tools that merge parts leave the key behind, as 0.
        let count = metadata.optional("split.count", Metadata::u32)?.unwrap_or(0);
        if count <= 1 {
            return match Name::of(path) {
                Some(name) if name.count > 1 => {
                    let reason = format!(
                        "its name says part {} of {}, but its metadata has no split.count: if it is a whole model, \
                         rename it",
                        name.number, name.count
                    );
                    Err(Error::invalid(path, reason))
                }
                _ => Ok(None),
            };
        }
        let number = metadata.u32("split.no")?;
        if number >= count {
            let reason =
                format!("metadata key 'split.no': {number} is not one of {count} parts counted from 0");
            return Err(Error::invalid(path, reason));
        }
        let tensors = metadata.u64("split.tensors.count")?;
        if tensors > MAX_TENSORS {
            let reason = format!(
                "metadata key 'split.tensors.count': {tensors} tensors, where {MAX_TENSORS} is the most"
            );
            return Err(Error::invalid(path, reason));
        }
        Ok(Some(Place { number, count, tensors }))
    }
}

/// A part's file name, taken apart.
struct Name<'a> {
    base: &'a str,
    /// From 1.
    number: u32,
    count: u32,
}

impl Name<'_> {
    fn of(path: &Path) -> Option<Name<'_>> {
        let number = |digits: &str| {
            let plain = digits.len() == DIGITS && digits.bytes().all(|digit| digit.is_ascii_digit());
            plain.then(|| digits.parse().ok()).flatten()
        };
        let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (base, part) = rest.rsplit_once('-')?;
        Some(Name { base, number: number(part)?, count: number(count)? })
    }
}

/// Opens every part of the model that the file at `path` is a part of, and makes one of them.
pub(super) fn open_all(path: &Path, place: &Place) -> Result<Gguf> {
    let paths = part_paths(path, place)?;
    let mut whole: Option<Gguf> = None;
    let mut limit = MAX_HEADER;
    for (index, path) in paths.iter().enumerate() {
        // All headers share one limit, or many parts would add up to more memory than one file may take.
        let (part, header) = open_file(path, index, limit)?;
        limit -= header;
        check_place(path, &part.metadata, index, place)?;
        match &mut whole {
            None => whole = Some(part),
            Some(whole) => whole.source.tensors.extend(part.source.tensors),
        }
        let found = whole.as_ref().map_or(0, |whole| whole.source.tensors.len() as u64);
        let last = index + 1 == paths.len();
        if found > place.tensors || (last && found != place.tensors) {
            let reason = format!(
                "metadata key 'split.tensors.count' says {} tensors, but parts 1 to {} have {found}: they are not of \
                 one model, get all parts again",
                place.tensors,
                index + 1
            );
            return Err(Error::invalid(path, reason));
        }
    }
    let mut whole = whole.ok_or_else(|| Error::invalid(path, "a split model of no parts"))?;
    check_names(&whole.source.tensors, |tensor| &paths[tensor.data.file])?;
    whole.source.files = paths;
    Ok(whole)
}

/// The paths of all parts, which exist.
fn part_paths(path: &Path, place: &Place) -> Result<Vec<PathBuf>> {
    let Place { number, count, .. } = *place;
    let wanted = format!("-{:0DIGITS$}-of-{count:0DIGITS$}.gguf", number + 1);
    let name = match Name::of(path) {
        Some(name) if name.number == number + 1 && name.count == count => name,
        _ => {
            let reason = format!(
                "its metadata says part {} of {count}, so its name must end in '{wanted}' for the others to be found: \
                 rename it",
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
        .take(NAMED)
        .map(|path| path.display().to_string())
        .collect();
    if !missing.is_empty() {
        let more = if missing.len() == NAMED { " and perhaps more" } else { "" };
        let reason = format!(
            "of the {count} parts of this model, these are not next to it: {}{more}: get them too",
            missing.join(", ")
        );
        return Err(Error::invalid(path, reason));
    }
    Ok((1..=count).map(part).collect())
}

/// Proves that the part at `path` is part `index` of the model that `place` is of.
fn check_place(path: &Path, metadata: &Metadata, index: usize, place: &Place) -> Result<()> {
    let found = Place::of(path, metadata)?;
    let belongs = found.as_ref().is_some_and(|found| {
        found.number as usize == index && found.count == place.count && found.tensors == place.tensors
    });
    if belongs {
        return Ok(());
    }
    let says = found.map_or("a whole model".to_string(), |found| {
        format!("part {} of {} with {} tensors in all", found.number + 1, found.count, found.tensors)
    });
    let reason = format!(
        "its metadata says {says}, where part {} of {} with {} tensors in all is wanted: the parts are not of one \
         model, get all again",
        index + 1,
        place.count,
        place.tensors
    );
    Err(Error::invalid(path, reason))
}
