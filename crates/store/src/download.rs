//! A file over HTTP, in as many attempts as it takes. What has come stays on disk, and the next attempt, of this run or
//! a later one, asks for the rest.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use crate::{
    client::{Client, Headers, header, network_error},
    error::{Error, Result},
    settings::Settings,
    url::without_secrets,
};

/// Attempts that fail in a row without bringing a byte more than was ever there.
const ATTEMPTS: u32 = 4;

/// What downloads have in common.
pub struct Session<'a> {
    /// Sends the requests.
    pub client: &'a Client,
    /// Patience and pauses.
    pub settings: &'a Settings,
    /// Set from outside to stop.
    pub cancel: &'a AtomicBool,
}

/// What happens during a download.
pub enum DownloadEvent<'a> {
    /// So many bytes are on disk.
    Progress(u64),
    /// An attempt failed, the next one is made after a pause.
    Retry(&'a Error, Duration),
}

/// A file to bring.
pub struct Request<'a> {
    /// Where it is.
    pub url: &'a str,
    /// Headers for the request.
    pub headers: Headers<'a>,
    /// Where it goes; bytes that are there already are its beginning.
    pub path: &'a Path,
    /// Its size, where it is known.
    pub size: Option<u64>,
}

impl Session<'_> {
    /// An error once the user wants no more.
    pub fn check(&self) -> Result<()> {
        if self.cancel.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Does something until it succeeds or fails for good.
    pub fn persist<T>(
        &self,
        step: &mut dyn FnMut(DownloadEvent),
        mut attempt: impl FnMut(&mut dyn FnMut(DownloadEvent)) -> Result<T>,
        // What grows while there is hope.
        hope: impl Fn() -> u64,
    ) -> Result<T> {
        let (mut failures, mut most) = (0, hope());
        loop {
            self.check()?;
            let error = match attempt(step) {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            // A connection that was shut down because of it fails in its own way.
            self.check()?;
            if hope() > most {
                (failures, most) = (0, hope());
            }
            failures += 1;
            if failures == ATTEMPTS || !error.is_transient() {
                return Err(error);
            }
            let pause = self.settings.retry_delay * 2u32.pow(failures - 1);
            step(DownloadEvent::Retry(&error, pause));
            self.sleep(pause)?;
        }
    }

    /// Brings a file.
    pub fn download(&self, request: &Request, step: &mut dyn FnMut(DownloadEvent)) -> Result<()> {
        self.persist(step, |step| self.attempt(request, step), || length(request.path))
    }

    fn attempt(&self, request: &Request, step: &mut dyn FnMut(DownloadEvent)) -> Result<()> {
        let Request { url, path, size, .. } = *request;
        let mut have = length(path);
        if size.is_some_and(|size| have > size) {
            forget(path)?;
            have = 0;
        }
        if have > 0 && size == Some(have) {
            step(DownloadEvent::Progress(have));
            return Ok(());
        }
        let mut headers = request.headers.to_vec();
        if have > 0 {
            headers.push(("Range", format!("bytes={have}-")));
            // Without it, the rest of another file could be put after the beginning of this one.
            if let Ok(tag) = fs::read_to_string(tag_path(path)) {
                headers.push(("If-Range", tag));
            }
        }
        let mut response = self.client.get(url, &headers, &[416])?;
        let mut total = size;
        match response.status().as_u16() {
            206 => {
                let range = header(&response, "content-range").and_then(parsed_range);
                let Some((_, whole)) = range.filter(|(first, _)| *first == have) else {
                    forget(path)?;
                    return Err(network_error(url, &"the server sent another range than was asked for"));
                };
                total = whole.or(total);
            }
            416 => {
                // Nothing lies beyond what is there: it may be complete, or not the beginning of this file.
                let whole = header(&response, "content-range")
                    .and_then(|range| range.strip_prefix("bytes */")?.trim().parse().ok());
                if have > 0 && size.is_none() && whole == Some(have) {
                    return Ok(());
                }
                forget(path)?;
                return Err(network_error(url, &"the server cannot go on where the last attempt ended"));
            }
            _ => {
                // The server does not know ranges, or its file has changed: everything comes anew.
                have = 0;
                total = response.body().content_length().or(total);
            }
        }
        if let (Some(expected), Some(found)) = (size, total)
            && expected != found
        {
            return Err(Error::Size { url: without_secrets(url), expected, found });
        }
        let mut file =
            OpenOptions::new().create(true).truncate(false).write(true).open(path).with_path(path)?;
        file.set_len(have).with_path(path)?;
        file.seek(SeekFrom::Start(have)).with_path(path)?;
        match header(&response, "etag").filter(|tag| tag.starts_with('"')) {
            Some(tag) => fs::write(tag_path(path), tag).with_path(path)?,
            None => remove(&tag_path(path))?,
        }
        self.receive(request, response.body_mut().as_reader(), &mut file, have, total, step)
    }

    fn receive(
        &self,
        request: &Request,
        mut body: impl Read,
        file: &mut File,
        mut have: u64,
        total: Option<u64>,
        step: &mut dyn FnMut(DownloadEvent),
    ) -> Result<()> {
        let Request { url, path, .. } = *request;
        let mut buffer = vec![0; 1 << 18];
        loop {
            self.check()?;
            let count = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(network_error(url, &error)),
            };
            have += count as u64;
            if total.is_some_and(|total| have > total) {
                forget(path)?;
                return Err(network_error(url, &"the server sent more than the file should have"));
            }
            file.write_all(&buffer[..count]).with_path(path)?;
            step(DownloadEvent::Progress(have));
        }
        match total.filter(|total| have < *total) {
            Some(total) => {
                Err(network_error(url, &format!("the connection ended after {have} of {total} bytes")))
            }
            None => Ok(()),
        }
    }

    fn sleep(&self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }
}

/// Bytes of a file; none where there is no file.
pub fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// Removes a download and what is noted of it.
pub fn forget(path: &Path) -> Result<()> {
    remove(path)?;
    remove(&tag_path(path))
}

/// Removes a file that may not be there.
pub fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(path, error)),
        _ => Ok(()),
    }
}

/// Says which file an error is about.
pub trait IoContext<T> {
    /// Says which file an error is about.
    fn with_path(self, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for std::io::Result<T> {
    fn with_path(self, path: &Path) -> Result<T> {
        self.map_err(|error| Error::io(path, error))
    }
}

fn tag_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".etag");
    name.into()
}

/// First byte and whole size of `bytes 5-9/10`.
fn parsed_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, whole) = text.strip_prefix("bytes ")?.split_once('/')?;
    let first = range.split_once('-')?.0.trim().parse().ok()?;
    let whole = if whole.trim() == "*" { None } else { Some(whole.trim().parse().ok()?) };
    Some((first, whole))
}
