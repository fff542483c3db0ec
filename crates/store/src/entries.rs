//! Listing the store's folder.
//!
//! Pulled models have a record next to them. Users can also put models there by hand: a GGUF file (or all
//! parts of a split one), a file written by `indrik quantize`, or a Hugging Face folder. Such a model is
//! named like its file without the extension, ignoring case. Everything else in the folder is listed with the
//! reason why it is not a model, so that the listing accounts for all disk space.

use std::{
    collections::HashSet,
    ffi::OsStr,
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use crate::{
    download::IoContext,
    error::Result,
    folder::{ModelRecord, Store, file_stem},
    time,
};

/// Extensions of model files, in order of precedence.
const MODEL_EXTENSIONS: [&str; 2] = ["gguf", "safetensors"];

/// Extensions of the files that a pull creates.
pub(crate) const PULL_EXTENSIONS: [&str; 5] = ["json", "json.new", "lock", "part", IMAGE_ENCODER];

/// Extension of a model's image encoder. Not `gguf`, since it is not a model by itself.
pub(crate) const IMAGE_ENCODER: &str = "mmproj";

/// An entry of the store's folder.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreEntry {
    /// The name that commands use.
    pub name: String,
    /// The file or folder; for a split model, the first part.
    pub path: PathBuf,
    /// Kind of the entry.
    pub kind: EntryKind,
    /// Total size of its files in bytes; symbolic links count 0.
    pub bytes: u64,
    /// Date of the pull, or else the modification time of the file: RFC 3339, UTC.
    pub date: String,
    /// The record that its pull wrote.
    pub record: Option<ModelRecord>,
    /// All files and folders that belong to it.
    pub(crate) files: Vec<PathBuf>,
}

/// Kind of an entry of the store's folder.
#[derive(Clone, Debug, PartialEq)]
pub enum EntryKind {
    /// A model, judging by name and extension; its content is not checked.
    Model,
    /// An interrupted pull, which can be resumed or removed.
    Incomplete,
    /// Not a model, with the reason.
    Unrecognized(&'static str),
}

impl Store {
    /// All entries of the folder, sorted by name, without hidden files.
    pub fn entries(&self) -> Result<Vec<StoreEntry>> {
        let names = self.file_names()?;
        let mut entries = Vec::new();
        let mut owned = HashSet::new();
        for extension in MODEL_EXTENSIONS {
            for file in names.iter().filter(|file| self.is_model_file(file, extension)) {
                let stem = &file[..file.len() - extension.len() - 1];
                let (name, mut parts) = match SplitName::parse(stem) {
                    Some(SplitName { number: 1, .. }) if extension == "gguf" => split_parts(stem, &names),
                    Some(_) if extension == "gguf" => continue,
                    _ => (model_name(stem), vec![file.clone()]),
                };
                if extension == "gguf" {
                    let base = SplitName::parse(stem).map_or(stem, |part| part.name);
                    let encoder = format!("{base}.{IMAGE_ENCODER}");
                    parts.extend(names.contains(&encoder).then_some(encoder));
                    owned.extend(self.pull_files(&name, stem, &names));
                }
                owned.extend(parts.iter().cloned());
                entries.push(self.entry(name, &parts));
            }
        }
        for folder in names.iter().filter(|name| self.is_model_folder(name)) {
            let name = model_name(folder);
            owned.insert(folder.clone());
            if self.read_record(&name).is_some() {
                owned.extend(self.pull_files(&name, folder, &names));
            }
            entries.push(self.entry(name, std::slice::from_ref(folder)));
        }
        let mut taken = HashSet::new();
        for entry in &mut entries {
            if !taken.insert(entry.name.clone()) {
                entry.kind =
                    EntryKind::Unrecognized("another model in the store has this name: rename one of them");
            }
        }
        entries
            .extend(names.iter().filter(|name| !owned.contains(*name)).filter_map(|name| self.other(name)));
        // A stable sort: of several entries with one name, the model stays first.
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Sorted names in the folder. Names that are not UTF-8 are converted lossily; they cannot be model names
    /// anyway.
    fn file_names(&self) -> Result<Vec<String>> {
        let entries = match fs::read_dir(self.folder()) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(crate::Error::io(self.folder(), error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry.with_path(self.folder())?.file_name().to_string_lossy().into_owned();
            if !name.starts_with('.') {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// A folder with a config. That of an interrupted pull is not a model.
    fn is_model_folder(&self, name: &str) -> bool {
        self.folder().join(name).join("config.json").is_file()
    }

    /// Files that a pull keeps next to a model: named like the model's file, or like the model itself if that
    /// has several files and a record.
    fn pull_files(&self, name: &str, stem: &str, names: &[String]) -> Vec<String> {
        let own = self.read_record(name).and_then(|record| file_stem(&record.name));
        let stems = [Some(stem.to_string()), own];
        let files = stems
            .iter()
            .flatten()
            .flat_map(|stem| PULL_EXTENSIONS.iter().map(move |extension| format!("{stem}.{extension}")));
        files.filter(|file| names.contains(file)).collect()
    }

    fn is_model_file(&self, name: &str, extension: &str) -> bool {
        let path = self.folder().join(name);
        // Excludes lossily converted names, for which no file exists.
        let exists = path.symlink_metadata().is_ok();
        exists && path.extension() == Some(OsStr::new(extension)) && !path.is_dir()
    }

    fn entry(&self, name: String, files: &[String]) -> StoreEntry {
        let path = self.folder().join(&files[0]);
        let record = self.read_record(&name);
        let date = record.as_ref().map_or_else(|| time::modified(&path), |record| record.date.clone());
        let files: Vec<PathBuf> = files.iter().map(|file| self.folder().join(file)).collect();
        let bytes = files.iter().map(|file| size(file)).sum();
        StoreEntry { name, path, kind: EntryKind::Model, bytes, date, record, files }
    }

    /// The entry of a file that is not part of a model: an interrupted pull, or unrecognised.
    fn other(&self, file: &str) -> Option<StoreEntry> {
        let entry = self.entry(file.to_string(), &[file.to_string()]);
        let pull_file = PULL_EXTENSIONS.iter().find_map(|extension| {
            let stem = file.strip_suffix(extension)?.strip_suffix('.')?;
            let name = model_name(stem);
            (file_stem(&name)? == stem).then_some((*extension, name))
        });
        let unrecognized = |reason| {
            Some(StoreEntry { kind: EntryKind::Unrecognized(reason), record: None, ..entry.clone() })
        };
        match pull_file {
            Some(("part", name)) => Some(StoreEntry { name, kind: EntryKind::Incomplete, ..entry }),
            // An empty lock file needs no entry.
            Some(("lock", _)) if entry.bytes == 0 => None,
            Some(("json", name)) if self.read_record(&name).is_some() => {
                // The entry of a partial download covers its record.
                let part = self.path(&name, "part").is_some_and(|part| part.exists());
                (!part).then_some(StoreEntry { name, kind: EntryKind::Incomplete, record: None, ..entry })
            }
            _ if SplitName::parse(file.strip_suffix(".gguf").unwrap_or("")).is_some() => {
                unrecognized("part of a split model whose first part is missing")
            }
            _ if entry.path.symlink_metadata().is_err() => unrecognized("its name is not UTF-8: rename it"),
            _ if entry.path.is_dir() && entry.path.is_symlink() => {
                unrecognized("a link to a folder without config.json: not a model")
            }
            _ if entry.path.is_dir() => unrecognized("a folder without config.json: not a model"),
            _ => unrecognized("not a model: neither a .gguf file nor a file written by `indrik quantize`"),
        }
    }
}

/// The model name of a file stem.
fn model_name(stem: &str) -> String {
    let name = stem.replacen('@', ":", 1);
    if file_stem(&name).is_some_and(|file| file == stem) { name } else { stem.to_string() }
}

/// The file stem of a part of a split model: `NAME-00001-of-00003`.
struct SplitName<'a> {
    name: &'a str,
    number: u32,
    count: &'a str,
}

impl<'a> SplitName<'a> {
    fn parse(stem: &'a str) -> Option<Self> {
        const DIGITS: usize = 5;
        let number = |text: &str| {
            (text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_digit()))
                .then(|| text.parse().ok())?
        };
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (name, index) = rest.rsplit_once('-')?;
        number(count)?;
        Some(SplitName { name, number: number(index)?, count }).filter(|part| !part.name.is_empty())
    }
}

/// The name of a split model, from the stem of its first part, and all of its parts in the folder.
fn split_parts(first: &str, names: &[String]) -> (String, Vec<String>) {
    let Some(first) = SplitName::parse(first) else {
        return (model_name(first), vec![format!("{first}.gguf")]);
    };
    let belongs = |file: &&String| {
        let part = file.strip_suffix(".gguf").and_then(SplitName::parse);
        part.is_some_and(|part| part.name == first.name && part.count == first.count)
    };
    // `names` is sorted, so the first part comes first.
    (model_name(first.name), names.iter().filter(belongs).cloned().collect())
}

/// Size of a file, or of all files in a folder. Symbolic links are not followed: their targets take space
/// elsewhere and may form cycles.
fn size(path: &Path) -> u64 {
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => {
            fs::read_dir(path).into_iter().flatten().flatten().map(|entry| size(&entry.path())).sum()
        }
        Ok(found) if found.is_file() => found.len(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    fn listed(store: &Store) -> Vec<(String, EntryKind, u64)> {
        store.entries().unwrap().into_iter().map(|entry| (entry.name, entry.kind, entry.bytes)).collect()
    }

    #[test]
    fn every_file_is_listed_as_a_model_or_with_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path());
        let write = |name: &str, bytes: usize| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, vec![0; bytes]).unwrap();
        };
        assert_eq!(listed(&Store::new(folder.path().join("none"))), []);
        write("smollm2@135m.gguf", 10);
        write("smollm2@135m.lock", 0);
        write("Some-Model-Q4_K_M.gguf", 11);
        write("own.safetensors", 12);
        write("hf/config.json", 2);
        write("hf/deep/model.safetensors", 30);
        write("split-00001-of-00003.gguf", 1);
        write("split-00002-of-00003.gguf", 2);
        write("split-00003-of-00003.gguf", 4);
        write("split-00001-of-00002.gguf", 8);
        write("lost-00002-of-00002.gguf", 7);
        write("notes.txt", 5);
        write("empty/x", 1);
        write("gemma3@270m.part/hub", 100);
        write("gemma3@270m.lock", 0);
        write(".hidden", 1);
        write("hf.gguf", 3);
        fs::write(folder.path().join(OsStr::from_bytes(b"\xff.gguf")), "x").unwrap();
        std::os::unix::fs::symlink("nowhere", folder.path().join("broken.gguf")).unwrap();
        let reason = |name: &str| {
            let entries = store.entries().unwrap();
            entries
                .into_iter()
                .find_map(|entry| match entry.kind {
                    EntryKind::Unrecognized(reason) if entry.path.file_name().unwrap() == name => {
                        Some(reason)
                    }
                    _ => None,
                })
                .unwrap_or_else(|| panic!("{name} is recognised"))
        };
        let models: Vec<(String, EntryKind, u64)> = listed(&store)
            .into_iter()
            .filter(|entry| !matches!(entry.1, EntryKind::Unrecognized(_)))
            .collect();
        let model = |name: &str, bytes| (name.to_string(), EntryKind::Model, bytes);
        assert_eq!(
            models,
            [
                model("Some-Model-Q4_K_M", 11),
                model("broken", 0),
                ("gemma3:270m".to_string(), EntryKind::Incomplete, 100),
                model("hf", 3),
                model("own", 12),
                model("smollm2:135m", 10),
                model("split", 8),
            ]
        );
        assert!(reason("hf").contains("another model in the store has this name"));
        assert!(reason("split-00001-of-00003.gguf").contains("another model"));
        assert!(reason("lost-00002-of-00002.gguf").contains("first part"));
        assert!(reason("notes.txt").contains("not a model"));
        assert!(reason("empty").contains("config.json"));
        assert!(reason("\u{fffd}.gguf").contains("UTF-8"));
        assert_eq!(store.entries().unwrap().len(), 13);

        // Exactly the listed models are found by name.
        assert_eq!(store.resolve("some-model-q4_k_m"), Some(folder.path().join("Some-Model-Q4_K_M.gguf")));
        assert_eq!(store.resolve("smollm2"), Some(folder.path().join("smollm2@135m.gguf")));
        assert_eq!(store.resolve("hf"), Some(folder.path().join("hf.gguf")));
        for none in ["notes.txt", "notes", "lost", "empty", "gemma3", "", ".", "..", "hf/deep", ".hidden"] {
            assert_eq!(store.resolve(none), None, "{none:?}");
        }
        // With names that differ only in case, only the exact one matches.
        write("OWN.gguf", 1);
        write("Own.gguf", 1);
        assert_eq!(store.resolve("own"), Some(folder.path().join("own.safetensors")));
        assert_eq!(store.resolve("oWn"), None);
        // File stems also work, unless they are names of models.
        assert_eq!(
            store.resolve("split-00001-of-00002"),
            Some(folder.path().join("split-00001-of-00002.gguf"))
        );
        assert_eq!(store.resolve("smollm2@135m.gguf"), None);
    }
}
