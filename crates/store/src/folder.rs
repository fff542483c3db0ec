//! The folder of models: which file belongs to which name, and the record beside each.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    catalogue,
    entries::{EntryKind, StoreEntry, meant},
    error::{Error, Result},
};

/// The folder of models on this machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Store {
    folder: PathBuf,
}

/// What is known of a file in the store; a JSON file beside it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct ModelRecord {
    /// The model's name.
    pub name: String,
    /// What it is, in a few words.
    pub title: String,
    /// Where the file came from.
    pub source: String,
    /// Its checksum when it came.
    pub sha256: String,
    /// Its size when it came.
    pub bytes: u64,
    /// What its terms are called.
    pub licence: String,
    /// Where its terms can be read.
    pub licence_url: String,
    /// When it came: RFC 3339, UTC.
    pub date: String,
}

impl Store {
    /// The store in a folder, which need not exist yet.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The user's store: `INDRIK_MODELS_DIR`, else `indrik/models` where the system keeps a user's data.
    pub fn open_default() -> Result<Self> {
        default_folder(|name| std::env::var_os(name)).map(Self::new).ok_or(Error::NoStoreFolder)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file or folder of a model that is here, by its name or an alias.
    pub fn resolve(&self, name: &str) -> Option<PathBuf> {
        // A file of this very name is found without a look at the rest of the folder.
        let named = self.model_path(name).filter(|path| path.is_file());
        named.or_else(|| Some(self.model(name)?.path))
    }

    /// The same, or an error that says how to get the model.
    pub fn find(&self, name: &str) -> Result<PathBuf> {
        self.resolve(name).ok_or_else(|| match catalogue::find(name) {
            Some(model) => Error::NotPulled { argument: name.to_string(), name: model.name },
            None => Error::NotFound { argument: name.to_string(), here: self.model_names() },
        })
    }

    /// The record of a model that is here, by its name or an alias.
    pub fn record(&self, name: &str) -> Option<ModelRecord> {
        self.model(name)?.record
    }

    /// The record of this very name, whether or not its model is here.
    pub(crate) fn record_of(&self, name: &str) -> Option<ModelRecord> {
        let text = fs::read_to_string(self.path(name, "json")?).ok()?;
        serde_json::from_str(&text).ok().filter(|record: &ModelRecord| record.name == name)
    }

    fn model(&self, name: &str) -> Option<StoreEntry> {
        let mut models = self.entries().ok()?;
        models.retain(|entry| entry.kind == EntryKind::Model);
        meant(models, name)
    }

    fn model_names(&self) -> Vec<String> {
        let entries = self.entries().unwrap_or_default().into_iter();
        entries.filter(|entry| entry.kind == EntryKind::Model).map(|entry| entry.name).collect()
    }

    /// Where the file of a model is or would be.
    pub(crate) fn model_path(&self, name: &str) -> Option<PathBuf> {
        self.path(name, "gguf")
    }

    /// A file or folder of a model by its ending.
    pub(crate) fn path(&self, name: &str, extension: &str) -> Option<PathBuf> {
        Some(self.folder.join(format!("{}.{extension}", file_stem(name)?)))
    }

    /// Writes a record, whole or not at all.
    pub(crate) fn write_record(&self, record: &ModelRecord) -> Result<()> {
        let path =
            self.path(&record.name, "json").ok_or(Error::UnknownModel { name: record.name.clone() })?;
        let half = path.with_extension("json.new");
        let mut text = serde_json::to_vec_pretty(record).expect("a record is plain text and numbers");
        text.push(b'\n');
        let mut file = File::create(&half).map_err(|error| Error::io(&half, error))?;
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(|error| Error::io(&half, error))?;
        fs::rename(&half, &path).map_err(|error| Error::io(&path, error))
    }
}

/// A name as a file's name, or nothing where it cannot be one. `:` becomes `@`, which no name contains, so that
/// different names have different files; whatever else could lead out of the folder or hide a file is refused.
pub(crate) fn file_stem(name: &str) -> Option<String> {
    const LONGEST: usize = 100;
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.:".contains(&byte);
    let sound = !name.is_empty()
        && name.len() <= LONGEST
        && name.bytes().all(plain)
        && name.bytes().filter(|byte| *byte == b':').count() <= 1
        && name.split(':').all(|piece| !piece.is_empty() && !piece.starts_with('.') && !piece.ends_with('.'));
    sound.then(|| name.replace(':', "@"))
}

/// The name of the catalogue that a name or alias means; one that is not of the catalogue stays as it is.
pub(crate) fn canonical(name: &str) -> String {
    catalogue::find(name).map_or_else(|| name.to_string(), |model| model.name.to_string())
}

fn default_folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let variable = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("INDRIK_MODELS_DIR").or_else(|| {
        // The specification of these folders has relative paths ignored.
        let data = variable("XDG_DATA_HOME").filter(|path| path.is_absolute());
        let data = data.or_else(|| Some(variable("HOME")?.join(".local/share")))?;
        Some(data.join("indrik/models"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_the_folder_and_apart() {
        assert_eq!(file_stem("gemma3:270m").as_deref(), Some("gemma3@270m"));
        assert_eq!(file_stem("qwen2.5-coder:1.5b").as_deref(), Some("qwen2.5-coder@1.5b"));
        assert_ne!(file_stem("a:b"), file_stem("a-b"));
        for hostile in [
            "",
            ":",
            "a:",
            ":a",
            "..",
            "../a",
            "a/../b",
            "/etc/passwd",
            "a\\b",
            ".hidden",
            "a:..",
            "a:b:c",
            "a\0b",
            "a b",
            "ä",
            "A",
            "a@b",
            "a.",
        ] {
            assert_eq!(file_stem(hostile), None, "{hostile:?}");
        }
        assert_eq!(file_stem(&"a".repeat(101)), None);
    }

    #[test]
    fn the_folder_follows_the_environment() {
        let folder = |set: &[(&str, &str)]| {
            default_folder(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
        };
        let home = ("HOME", "/home/a");
        assert_eq!(folder(&[home]), Some("/home/a/.local/share/indrik/models".into()));
        assert_eq!(folder(&[home, ("XDG_DATA_HOME", "/data")]), Some("/data/indrik/models".into()));
        assert_eq!(folder(&[home, ("XDG_DATA_HOME", "data")]), folder(&[home]));
        assert_eq!(folder(&[home, ("XDG_DATA_HOME", "/d"), ("INDRIK_MODELS_DIR", "/m")]), Some("/m".into()));
        assert_eq!(folder(&[home, ("INDRIK_MODELS_DIR", "")]), folder(&[home]));
        assert_eq!(folder(&[]), None);
    }

    #[test]
    fn models_are_found_by_name_alias_and_record() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path());
        assert_eq!(store.resolve("gemma3:270m"), None);
        let error = store.find("gemma3").unwrap_err().to_string();
        assert!(
            error.contains("'gemma3' is not a file") && error.contains("`indrik pull gemma3:270m`"),
            "{error}"
        );
        let error = store.find("gemma9").unwrap_err().to_string();
        assert!(
            error.contains("'gemma9' is not a file") && error.contains("known: gemma3:270m, "),
            "{error}"
        );
        let file = folder.path().join("gemma3@270m.gguf");
        fs::write(&file, "x").unwrap();
        assert_eq!(store.resolve("Gemma3:270M"), Some(file.clone()));
        assert_eq!(store.resolve("gemma-3-270m"), Some(file.clone()));
        assert_eq!(store.resolve("../gemma3@270m"), None);

        let entry = |name: &str| store.entries().unwrap().into_iter().find(|entry| entry.name == name);
        assert_eq!(entry("gemma3:270m").unwrap().record, None);
        let record = ModelRecord {
            name: "gemma3:270m".into(),
            title: "t".into(),
            source: "s".into(),
            sha256: "0".repeat(64),
            bytes: 1,
            licence: "l".into(),
            licence_url: "u".into(),
            date: crate::time::now(),
        };
        store.write_record(&record).unwrap();
        assert_eq!(store.record("gemma3"), Some(record.clone()));
        assert_eq!(entry("gemma3:270m").unwrap().record, Some(record.clone()));
        // A copy of the record under another name, and a record without its file, make no model.
        fs::copy(folder.path().join("gemma3@270m.json"), folder.path().join("other.json")).unwrap();
        store.write_record(&ModelRecord { name: "gone:1b".into(), ..record }).unwrap();
        assert_eq!(entry("gone:1b").unwrap().kind, EntryKind::Incomplete);
        assert!(matches!(entry("other.json").unwrap().kind, EntryKind::Unrecognized(_)));
        assert_eq!((store.resolve("gone:1b"), store.resolve("other")), (None, None));
        assert_eq!(store.record("gone:1b"), None);
    }

    #[test]
    fn a_name_that_is_listed_goes_before_an_alias() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path());
        let (pulled, own) =
            (folder.path().join("smollm2@135m.gguf"), folder.path().join("smollm2-135m.gguf"));
        fs::write(&pulled, "pulled").unwrap();
        let record = ModelRecord {
            name: "smollm2:135m".into(),
            title: "t".into(),
            source: "s".into(),
            sha256: "0".repeat(64),
            bytes: 6,
            licence: "l".into(),
            licence_url: "u".into(),
            date: crate::time::now(),
        };
        store.write_record(&record).unwrap();
        for name in ["smollm2", "smollm2-135m", "smollm2:135m", "SMOLLM2-135M", "smollm2@135m"] {
            assert_eq!(store.resolve(name).as_ref(), Some(&pulled), "{name}");
            assert_eq!(store.record(name).as_ref(), Some(&record), "{name}");
        }
        // A file that is called like the alias takes the alias away, in either case of letters.
        fs::write(&own, "by hand").unwrap();
        for name in ["smollm2-135m", "SmolLM2-135M"] {
            assert_eq!((store.resolve(name), store.record(name)), (Some(own.clone()), None), "{name}");
        }
        for name in ["smollm2", "smollm2:135m", "smollm2@135m"] {
            assert_eq!(
                (store.resolve(name), store.record(name)),
                (Some(pulled.clone()), Some(record.clone()))
            );
        }
        // What is unfinished has a name, but is nothing to open.
        fs::rename(&own, folder.path().join("smollm2-135m.part")).unwrap();
        assert_eq!(store.resolve("smollm2-135m"), Some(pulled));
        let error = store.find("other").unwrap_err().to_string();
        assert!(error.ends_with("; in the store: smollm2:135m"), "{error}");
    }
}
