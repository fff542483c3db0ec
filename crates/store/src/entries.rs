//! What lies in the store's folder, whoever put it there.
//!
//! Models that were pulled have a record beside them. Others can be put there by hand, and are models of the store like
//! any: a GGUF file (of a split one all parts), a file that `indrik quantize` wrote, or a Hugging Face folder. Their names
//! are those of the files without the ending, in either case of letters. Everything else in the folder is listed with what is wrong with
//! it: what takes space must not be invisible.

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
    folder::{ModelRecord, Store, canonical, file_stem},
    time,
};

/// Endings of files that hold a model, the one that wins first.
const MODEL_FILES: [&str; 2] = ["gguf", "safetensors"];

/// Endings of what belongs to a pull.
pub(crate) const PULL_FILES: [&str; 4] = ["json", "json.new", "lock", "part"];

/// Something in the store's folder.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreEntry {
    /// What commands call it.
    pub name: String,
    /// The file or folder; of a split model the first part.
    pub path: PathBuf,
    /// What it is.
    pub kind: EntryKind,
    /// Bytes of all its files; links have none.
    pub bytes: u64,
    /// When it came, RFC 3339 in UTC: by its record, else when its file was last changed.
    pub date: String,
    /// What is known of it from its pull.
    pub record: Option<ModelRecord>,
    /// All that is its own in the folder.
    pub(crate) files: Vec<PathBuf>,
}

/// What something in the store's folder is.
#[derive(Clone, Debug, PartialEq)]
pub enum EntryKind {
    /// A model, by its name and ending; whether its content is one is for others to say.
    Model,
    /// What a pull has left that is not done: it can go on, or be removed.
    Incomplete,
    /// No model, and why not.
    Unrecognized(&'static str),
}

impl Store {
    /// Everything in the folder, by name; hidden files are left out.
    pub fn entries(&self) -> Result<Vec<StoreEntry>> {
        let names = self.file_names()?;
        let mut entries = Vec::new();
        let mut owned = HashSet::new();
        for extension in MODEL_FILES {
            for file in names.iter().filter(|file| self.is_model_file(file, extension)) {
                let stem = &file[..file.len() - extension.len() - 1];
                let (name, parts) = match Part::of(stem) {
                    Some(Part { number: 1, .. }) if extension == "gguf" => parts(stem, &names),
                    Some(_) if extension == "gguf" => continue,
                    _ => (called(stem), vec![file.clone()]),
                };
                let pull = PULL_FILES.map(|ending| format!("{stem}.{ending}"));
                let pull = pull.into_iter().filter(|name| extension == "gguf" && names.contains(name));
                owned.extend(parts.iter().cloned().chain(pull));
                entries.push(self.entry(name, &parts));
            }
        }
        for folder in names.iter().filter(|name| self.folder().join(name).join("config.json").is_file()) {
            owned.insert(folder.clone());
            entries.push(self.entry(folder.clone(), std::slice::from_ref(folder)));
        }
        let mut taken = HashSet::new();
        for entry in &mut entries {
            if !taken.insert(entry.name.clone()) {
                entry.kind = EntryKind::Unrecognized("another model here has this name: rename one of them");
            }
        }
        entries
            .extend(names.iter().filter(|name| !owned.contains(*name)).filter_map(|name| self.other(name)));
        // Of one name, the one that the name means stays first.
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Names in the folder, in order. One that is no UTF-8 cannot be typed as a model's name either; it is shown as far as it can be.
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

    fn is_model_file(&self, name: &str, extension: &str) -> bool {
        let path = self.folder().join(name);
        // A name that was not UTF-8 is no longer the file's.
        let there = path.symlink_metadata().is_ok();
        there && path.extension() == Some(OsStr::new(extension)) && !path.is_dir()
    }

    fn entry(&self, name: String, files: &[String]) -> StoreEntry {
        let path = self.folder().join(&files[0]);
        let record = self.record_of(&name);
        let date = record.as_ref().map_or_else(|| time::of_file(&path), |record| record.date.clone());
        let files: Vec<PathBuf> = files.iter().map(|file| self.folder().join(file)).collect();
        let bytes = files.iter().map(|file| size(file)).sum();
        StoreEntry { name, path, kind: EntryKind::Model, bytes, date, record, files }
    }

    /// What is not a model: left by a pull, or put there by someone.
    fn other(&self, file: &str) -> Option<StoreEntry> {
        let entry = self.entry(file.to_string(), &[file.to_string()]);
        let of_pull = PULL_FILES.iter().find_map(|ending| {
            let stem = file.strip_suffix(ending)?.strip_suffix('.')?;
            let name = called(stem);
            (file_stem(&name)? == stem).then_some((*ending, name))
        });
        let foreign =
            |why| Some(StoreEntry { kind: EntryKind::Unrecognized(why), record: None, ..entry.clone() });
        match of_pull {
            Some(("part", name)) => Some(StoreEntry { name, kind: EntryKind::Incomplete, ..entry }),
            // Nothing but what keeps two pulls apart.
            Some(("lock", _)) if entry.bytes == 0 => None,
            Some(("json", name)) if self.record_of(&name).is_some() => {
                // Beside an unfinished pull there is one entry for both.
                let part = self.path(&name, "part").is_some_and(|part| part.exists());
                (!part).then_some(StoreEntry { name, kind: EntryKind::Incomplete, record: None, ..entry })
            }
            _ if Part::of(file.strip_suffix(".gguf").unwrap_or("")).is_some() => {
                foreign("a part of a split model whose first part is not here")
            }
            _ if entry.path.symlink_metadata().is_err() => foreign("its name is not UTF-8: rename it"),
            _ if entry.path.is_dir() && entry.path.is_symlink() => {
                foreign("a link to a folder without config.json: not a model")
            }
            _ if entry.path.is_dir() => foreign("a folder without config.json: not a model"),
            _ => foreign("not a model: neither .gguf nor a file that `indrik quantize` wrote"),
        }
    }
}

/// The one of the entries that a name means. What is listed under it goes before what it stands for elsewhere, or else a
/// command would take another model than the one that its user sees. So, in this order: the name as it is; in another
/// case of letters; as an alias of the catalogue; as a file's name without its ending. Where several have it in the same
/// way it means none of them.
pub(crate) fn meant(mut entries: Vec<StoreEntry>, name: &str) -> Option<StoreEntry> {
    let alias = canonical(name);
    if let Some(at) = entries.iter().position(|entry| entry.name == name) {
        return Some(entries.swap_remove(at));
    }
    let in_another_case = |entry: &StoreEntry| entry.name.eq_ignore_ascii_case(name);
    let by_alias = |entry: &StoreEntry| entry.name == alias;
    let by_file =
        |entry: &StoreEntry| !entry.path.is_dir() && entry.path.file_stem() == Some(OsStr::new(name));
    let ways: [&dyn Fn(&StoreEntry) -> bool; 3] = [&in_another_case, &by_alias, &by_file];
    let way = ways.into_iter().find(|way| entries.iter().any(way))?;
    entries.retain(|entry| way(entry));
    if entries.len() == 1 { entries.pop() } else { None }
}

/// The name of a model by its file's, without the ending.
fn called(stem: &str) -> String {
    let name = stem.replacen('@', ":", 1);
    if file_stem(&name).is_some_and(|file| file == stem) { name } else { stem.to_string() }
}

/// The place of a file in a split model: `NAME-00001-of-00003`.
struct Part<'a> {
    name: &'a str,
    number: u32,
    count: &'a str,
}

impl<'a> Part<'a> {
    fn of(stem: &'a str) -> Option<Self> {
        const DIGITS: usize = 5;
        let number = |text: &str| {
            (text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_digit()))
                .then(|| text.parse().ok())?
        };
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (name, at) = rest.rsplit_once('-')?;
        number(count)?;
        Some(Part { name, number: number(at)?, count }).filter(|part| !part.name.is_empty())
    }
}

/// The name of a split model by its first part's, and all of its parts that are here.
fn parts(first: &str, names: &[String]) -> (String, Vec<String>) {
    let Some(first) = Part::of(first) else { return (called(first), vec![format!("{first}.gguf")]) };
    let belongs = |file: &&String| {
        let part = file.strip_suffix(".gguf").and_then(Part::of);
        part.is_some_and(|part| part.name == first.name && part.count == first.count)
    };
    // In order, so that the first comes first.
    (called(first.name), names.iter().filter(belongs).cloned().collect())
}

/// Bytes of a file, or of all files in a folder. Links are not followed: what they lead to takes its space elsewhere, and
/// they could lead in a circle.
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
    fn every_file_is_of_a_model_or_told_to_be_of_none() {
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
        let foreign = |name: &str| {
            let entries = store.entries().unwrap();
            entries
                .into_iter()
                .find_map(|entry| match entry.kind {
                    EntryKind::Unrecognized(why) if entry.path.file_name().unwrap() == name => Some(why),
                    _ => None,
                })
                .unwrap_or_else(|| panic!("{name} is not foreign"))
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
        assert!(foreign("hf").contains("another model here has this name"));
        assert!(foreign("split-00001-of-00003.gguf").contains("another model"));
        assert!(foreign("lost-00002-of-00002.gguf").contains("first part"));
        assert!(foreign("notes.txt").contains("not a model"));
        assert!(foreign("empty").contains("config.json"));
        assert!(foreign("\u{fffd}.gguf").contains("UTF-8"));
        assert_eq!(store.entries().unwrap().len(), 13);

        // What is listed as a model is found by its name, and nothing else is.
        assert_eq!(store.resolve("some-model-q4_k_m"), Some(folder.path().join("Some-Model-Q4_K_M.gguf")));
        assert_eq!(store.resolve("smollm2"), Some(folder.path().join("smollm2@135m.gguf")));
        assert_eq!(store.resolve("hf"), Some(folder.path().join("hf.gguf")));
        for none in ["notes.txt", "notes", "lost", "empty", "gemma3", "", ".", "..", "hf/deep", ".hidden"] {
            assert_eq!(store.resolve(none), None, "{none:?}");
        }
        // In two cases of letters, only the exact one.
        write("OWN.gguf", 1);
        write("Own.gguf", 1);
        assert_eq!(store.resolve("own"), Some(folder.path().join("own.safetensors")));
        assert_eq!(store.resolve("oWn"), None);
        // The names of files are understood too, where they are not those of models.
        assert_eq!(
            store.resolve("split-00001-of-00002"),
            Some(folder.path().join("split-00001-of-00002.gguf"))
        );
        assert_eq!(store.resolve("smollm2@135m.gguf"), None);
    }
}
