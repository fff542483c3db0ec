//! Models that earlier pulls left in the store, complete or interrupted.

use std::{fs, sync::atomic::AtomicBool};

use serde::{Deserialize, Serialize};

use crate::{
    download::file_len,
    entries::IMAGE_ENCODER,
    error::Result,
    fetch::top_level,
    folder::{FileRecord, ModelRecord, Store, file_stem},
    hub::is_commit,
    pull::Pulled,
    pull_folder::is_module_file,
    request::{ModelRequest, Repository},
    sha256,
    task::PullEvent,
    variants::without_part_number,
};

impl ModelRecord {
    /// The files of the model. Paths that do not belong to it, which no pull writes, are left out.
    pub(crate) fn file_records(&self, store: &Store) -> Vec<FileRecord> {
        if self.files.is_empty() {
            let path =
                store.model_path(&self.name).and_then(|path| Some(path.file_name()?.to_str()?.to_string()));
            let (bytes, sha256) = (self.bytes, self.sha256.clone());
            return path.into_iter().map(|path| FileRecord { path, bytes, sha256: sha256.clone() }).collect();
        }
        let Some(stem) = file_stem(&self.name) else { return Vec::new() };
        let is_own = |file: &&FileRecord| {
            let rest = file.path.strip_prefix(&stem);
            rest.is_some_and(|rest| match rest.strip_prefix('/') {
                Some(name) => {
                    let is_plain = !name.is_empty() && !name.contains('/') && !name.starts_with('.');
                    is_plain || is_module_file(name)
                }
                None => {
                    let part = rest.strip_suffix(".gguf").map(without_part_number);
                    rest == format!(".{IMAGE_ENCODER}") || part == Some("")
                }
            })
        };
        self.files.iter().filter(is_own).cloned().collect()
    }
}

/// File in the folder of partial downloads that says what they are.
pub(crate) const PIN: &str = "pull.json";

/// What an interrupted pull was downloading.
#[derive(Deserialize, Serialize)]
pub(crate) struct Pin {
    pub request: String,
    /// Repository and commit; empty for an address.
    pub repository: String,
    pub commit: String,
    /// The model's first file in the repository. Empty for an address, and in folders of version 0.2.0.
    #[serde(default)]
    pub file: String,
}

impl Store {
    pub(crate) fn pin(&self, name: &str) -> Option<Pin> {
        let text = fs::read(self.path(name, "part")?.join(PIN)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// What `indrik pull` must be given to resume an interrupted pull of this model.
    pub fn resume_arguments(&self, name: &str) -> String {
        let Some(pin) = self.pin(name) else { return name.to_string() };
        let default = ModelRequest::parse(&pin.request, "").map(|request| request.store_name());
        match default {
            Ok(default) if default == name => pin.request,
            _ => format!("{} --name {name}", pin.request),
        }
    }

    /// The commit of an interrupted pull of this model from this repository.
    pub fn interrupted_commit(&self, name: &str, repository: &Repository) -> Option<String> {
        let pin = self.pin(name)?;
        (is_commit(&pin.commit) && pin.repository == repository.to_string()).then_some(pin.commit)
    }

    /// The first file of the variant that an interrupted pull of the same request had chosen.
    pub fn interrupted_file(&self, name: &str, request: &ModelRequest) -> Option<String> {
        let pin = self.pin(name)?;
        (pin.request == request.to_string() && !pin.file.is_empty()).then_some(pin.file)
    }

    /// A pulled model whose files are all there; with `verify`, their checksums are compared as well. `None`
    /// if the model must be pulled (again).
    pub fn pulled(
        &self,
        name: &str,
        verify: bool,
        cancel: &AtomicBool,
        report: &mut dyn FnMut(PullEvent),
    ) -> Result<Option<Pulled>> {
        let Some(record) = self.read_record(name) else { return Ok(None) };
        let files = record.file_records(self);
        for file in &files {
            let path = self.folder().join(&file.path);
            if !path.exists() {
                return Ok(None);
            }
            let mut intact = file_len(&path) == file.bytes;
            if intact && verify {
                report(PullEvent::Verifying);
                intact = sha256::hash_file(&path, cancel)? == file.sha256;
            }
            if !intact {
                report(PullEvent::Damaged { path });
                return Ok(None);
            }
        }
        let Some(first) = files.first() else { return Ok(None) };
        let path = self.folder().join(top_level(&first.path));
        Ok(Some(Pulled { path, record, already_present: true }))
    }
}
