//! The store's folder: file names of models and their records.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The folder of local models.
#[derive(Clone, Debug, PartialEq)]
pub struct Store {
    folder: PathBuf,
}

/// Metadata of a pulled model, in a JSON file next to the model file.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct ModelRecord {
    /// The model's name.
    pub name: String,
    /// A short description.
    pub title: String,
    /// The source of the file.
    pub source: String,
    /// SHA-256 of the file.
    pub sha256: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Name of the licence.
    pub licence: String,
    /// Address of the licence text.
    pub licence_url: String,
    /// Date of the pull: RFC 3339, UTC.
    pub date: String,
    /// What was requested, such as `hf.co/OWNER/REPO:Q8_0`; the model is found by this as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// The quantisation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quant: Option<String>,
    /// The commit of the hub's repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The files in the store, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileRecord>,
}

/// One of several files of a pulled model.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct FileRecord {
    /// Path relative to the store's folder.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256.
    pub sha256: String,
}

impl Store {
    /// A store in a folder, which need not exist yet.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The user's store: `INDRIK_MODELS_DIR`, or `indrik/models` in the user's data folder.
    pub fn open_default() -> Result<Self> {
        default_folder(|name| std::env::var_os(name)).map(Self::new).ok_or(Error::NoStoreFolder)
    }

    /// The store's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The record of exactly this name, whether or not its model exists.
    pub(crate) fn read_record(&self, name: &str) -> Option<ModelRecord> {
        let text = fs::read_to_string(self.path(name, "json")?).ok()?;
        serde_json::from_str(&text).ok().filter(|record: &ModelRecord| record.name == name)
    }

    /// Path of a model's file, which may not exist.
    pub(crate) fn model_path(&self, name: &str) -> Option<PathBuf> {
        self.path(name, "gguf")
    }

    /// Path of a model's file or folder by extension; `None` for invalid names.
    pub(crate) fn path(&self, name: &str, extension: &str) -> Option<PathBuf> {
        Some(self.folder.join(format!("{}.{extension}", file_stem(name)?)))
    }

    /// Writes a record atomically.
    pub(crate) fn write_record(&self, record: &ModelRecord) -> Result<()> {
        let path = self.path(&record.name, "json").ok_or_else(|| Error::invalid_name(&record.name))?;
        let temporary = path.with_extension("json.new");
        let mut text = serde_json::to_vec_pretty(record).expect("text and numbers always serialise");
        text.push(b'\n');
        let mut file = File::create(&temporary).map_err(|error| Error::io(&temporary, error))?;
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(|error| Error::io(&temporary, error))?;
        fs::rename(&temporary, &path).map_err(|error| Error::io(&path, error))
    }
}

/// The file stem of a model name; `None` if the name is invalid. `:` becomes `@`, which names cannot contain,
/// so that different names have different files. Anything that could leave the folder or hide a file is
/// rejected.
pub(crate) fn file_stem(name: &str) -> Option<String> {
    const MAX_LEN: usize = 100;
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.:".contains(&byte);
    let is_valid = !name.is_empty()
        && name.len() <= MAX_LEN
        && name.bytes().all(plain)
        && name.bytes().filter(|byte| *byte == b':').count() <= 1
        && name.split(':').all(|part| !part.is_empty() && !part.starts_with('.') && !part.ends_with('.'));
    is_valid.then(|| name.replace(':', "@"))
}

fn default_folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    data_folder("INDRIK_MODELS_DIR", "models", variable)
}

/// The folder that the variable `setting` names, or `indrik/NAME` in the user's data folder.
pub(crate) fn data_folder(
    setting: &str,
    name: &str,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Option<PathBuf> {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable(setting).or_else(|| {
        // The XDG specification requires relative paths to be ignored.
        let data = variable("XDG_DATA_HOME").filter(|path| path.is_absolute());
        let data = data.or_else(|| Some(variable("HOME")?.join(".local/share")))?;
        Some(data.join("indrik").join(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_map_to_distinct_files_within_the_folder() {
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
    fn the_default_folder_follows_the_environment() {
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
}
