//! Finding a model in the store by name, alias or file name.

use std::{ffi::OsStr, path::PathBuf};

use crate::{
    entries::{EntryKind, StoreEntry},
    error::{Error, Result},
    folder::{ModelRecord, Store},
    request::ModelRequest,
};

impl Store {
    /// The file or folder of a model in the store, by name or alias.
    pub fn resolve(&self, name: &str) -> Option<PathBuf> {
        // Fast path: a file of exactly this name needs no listing of the folder.
        let exact = self.model_path(name).filter(|path| path.is_file());
        exact.or_else(|| Some(self.model(name)?.path))
    }

    /// [`Store::resolve`], or an error that explains how to get the model.
    pub fn find(&self, name: &str) -> Result<PathBuf> {
        self.resolve(name).ok_or_else(|| match ModelRequest::parse(name, "") {
            Ok(request) => Error::NotPulled { argument: name.to_string(), name: request.to_string() },
            Err(error) => {
                let nearest =
                    if let Error::UnknownModel { nearest, .. } = error { nearest } else { Vec::new() };
                Error::NotFound { argument: name.to_string(), present: self.model_names(), nearest }
            }
        })
    }

    /// The record of a model in the store, by name or alias.
    pub fn record(&self, name: &str) -> Option<ModelRecord> {
        self.model(name)?.record
    }

    fn model(&self, name: &str) -> Option<StoreEntry> {
        let mut models = self.entries().ok()?;
        models.retain(|entry| entry.kind == EntryKind::Model);
        find_entry(models, name)
    }

    fn model_names(&self) -> Vec<String> {
        let entries = self.entries().unwrap_or_default().into_iter();
        entries.filter(|entry| entry.kind == EntryKind::Model).map(|entry| entry.name).collect()
    }
}

/// The entry that a name refers to. Listed names take precedence over catalogue aliases, so that a command
/// uses the model that `indrik models` shows under that name. The order: exact name; name in another case;
/// another spelling of a catalogue name; the request that it was pulled with; file name without extension. An
/// ambiguous match is no match.
pub(crate) fn find_entry(mut entries: Vec<StoreEntry>, name: &str) -> Option<StoreEntry> {
    let request = ModelRequest::parse(name, "").ok();
    let alias = request.as_ref().map(ModelRequest::store_name);
    if let Some(index) = entries.iter().position(|entry| entry.name == name) {
        return Some(entries.swap_remove(index));
    }
    let ignoring_case = |entry: &StoreEntry| entry.name.eq_ignore_ascii_case(name);
    let by_alias = |entry: &StoreEntry| {
        matches!(request, Some(ModelRequest::Catalogue { .. })) && Some(&entry.name) == alias.as_ref()
    };
    let by_request = |entry: &StoreEntry| {
        let pulled = entry.record.as_ref().and_then(|record| record.request.as_ref());
        pulled.is_some_and(|pulled| {
            request.as_ref().is_some_and(|request| pulled.eq_ignore_ascii_case(&request.to_string()))
        })
    };
    let by_file =
        |entry: &StoreEntry| !entry.path.is_dir() && entry.path.file_stem() == Some(OsStr::new(name));
    let rules: [&dyn Fn(&StoreEntry) -> bool; 4] = [&ignoring_case, &by_alias, &by_request, &by_file];
    let rule = rules.into_iter().find(|rule| entries.iter().any(rule))?;
    entries.retain(|entry| rule(entry));
    if entries.len() == 1 { entries.pop() } else { None }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn models_are_found_by_name_and_alias_with_their_records() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path());
        assert_eq!(store.resolve("gemma3:270m"), None);
        let error = store.find("gemma3").unwrap_err().to_string();
        assert!(
            error.contains("'gemma3' is not a file") && error.contains("`indrik pull gemma3:270m`"),
            "{error}"
        );
        let error = store.find("gemma9").unwrap_err().to_string();
        assert!(error.contains("'gemma9' is not a file") && error.contains("`indrik search`"), "{error}");
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
            request: None,
            quant: None,
            commit: None,
            files: Vec::new(),
        };
        store.write_record(&record).unwrap();
        assert_eq!(store.record("gemma3"), Some(record.clone()));
        assert_eq!(entry("gemma3:270m").unwrap().record, Some(record.clone()));
        // A copy of a record under another name, or a record without a model file, is not a model.
        fs::copy(folder.path().join("gemma3@270m.json"), folder.path().join("other.json")).unwrap();
        store.write_record(&ModelRecord { name: "gone:1b".into(), ..record }).unwrap();
        assert_eq!(entry("gone:1b").unwrap().kind, EntryKind::Incomplete);
        assert!(matches!(entry("other.json").unwrap().kind, EntryKind::Unrecognized(_)));
        assert_eq!((store.resolve("gone:1b"), store.resolve("other")), (None, None));
        assert_eq!(store.record("gone:1b"), None);
    }

    #[test]
    fn listed_names_take_precedence_over_aliases() {
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
            request: None,
            quant: None,
            commit: None,
            files: Vec::new(),
        };
        store.write_record(&record).unwrap();
        for name in ["smollm2", "smollm2-135m", "smollm2:135m", "SMOLLM2-135M", "smollm2@135m"] {
            assert_eq!(store.resolve(name).as_ref(), Some(&pulled), "{name}");
            assert_eq!(store.record(name).as_ref(), Some(&record), "{name}");
        }
        // A file named like an alias shadows the alias, in any case.
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
        // An incomplete download has a name but cannot be opened.
        fs::rename(&own, folder.path().join("smollm2-135m.part")).unwrap();
        assert_eq!(store.resolve("smollm2-135m"), Some(pulled));
        let error = store.find("other").unwrap_err().to_string();
        assert!(error.ends_with("; in the store: smollm2:135m"), "{error}");
    }
}
