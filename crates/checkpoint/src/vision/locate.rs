//! The mmproj file that belongs to a language model in a file of its own.

use std::path::{Path, PathBuf};

use super::Vision;
use crate::{
    config::Config,
    error::{Error, Result},
    gguf,
};

/// Extension of the image encoder of a model in the store.
const STORED: &str = "mmproj";

/// Maximum number of files looked at in a folder.
const MAX_FILES: usize = 1 << 16;

/// Opens the mmproj file beside the model at `path`, if there is one; `text` is the config of its language model.
pub(super) fn beside(path: &Path, text: &Config) -> Result<Option<Vision>> {
    let candidates = candidates(path)?;
    if let [one] = &candidates[..] {
        return Vision::open(one, text).map(Some);
    }
    if candidates.is_empty() {
        return Ok(None);
    }
    let (mut fitting, mut reasons) = (Vec::new(), Vec::new());
    for candidate in &candidates {
        match Vision::open(candidate, text) {
            Ok(vision) => fitting.push(vision),
            Err(error) => reasons.push(format!("\n  {error}")),
        }
    }
    if fitting.len() == 1 {
        return Ok(fitting.pop());
    }
    let own = own_name(path);
    let own = own.file_name().unwrap_or_default().display();
    let reason = match fitting.is_empty() {
        true => format!("none of the image encoders beside it can be used:{}", reasons.concat()),
        false => {
            let names = fitting.iter().filter_map(|vision| vision.path.file_name());
            let names: Vec<String> = names.map(|name| name.display().to_string()).collect();
            format!("several image encoders beside it fit: {}: rename one of them to {own}", names.join(", "))
        }
    };
    Err(Error::invalid(path, reason))
}

/// The model's own image encoder if it exists, or else all mmproj files of its folder.
fn candidates(path: &Path) -> Result<Vec<PathBuf>> {
    let own = own_name(path);
    if own.is_file() {
        return Ok(vec![own]);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = std::fs::read_dir(folder).map_err(|error| Error::io(folder, error))?;
    let is_candidate = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        name.contains("mmproj")
            && name.ends_with(".gguf")
            && file.file_name() != path.file_name()
            && file.is_file()
    };
    let mut found: Vec<PathBuf> =
        entries.take(MAX_FILES).flatten().map(|entry| entry.path()).filter(is_candidate).collect();
    found.sort();
    Ok(found)
}

/// `NAME.mmproj` for `NAME.gguf` and for `NAME-00001-of-00003.gguf`.
fn own_name(path: &Path) -> PathBuf {
    match gguf::split_base(path) {
        Some(base) => path.with_file_name(format!("{base}.{STORED}")),
        None => path.with_extension(STORED),
    }
}
