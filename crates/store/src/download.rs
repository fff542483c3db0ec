//! Resumable downloads over HTTP. Received bytes stay on disk, and the next attempt, in this run or a later
//! one, requests only the rest.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use crate::{
    client::{Client, Headers, network_error},
    error::{Error, Result},
    settings::Settings,
    url::without_secrets,
};

/// Maximum consecutive attempts without progress.
pub const MAX_ATTEMPTS: u32 = 4;

/// State shared by all downloads of a pull.
pub struct Session<'a> {
    /// The HTTP client.
    pub client: &'a Client,
    /// Timeouts and retry delays.
    pub settings: &'a Settings,
    /// Set from another thread to cancel.
    pub cancel: &'a AtomicBool,
}

/// Progress of a download.
pub enum DownloadEvent<'a> {
    /// Bytes on disk.
    Progress(u64),
    /// An attempt failed; the next one follows after the delay.
    Retry(&'a Error, Duration),
    /// The server does not support ranges, so the download starts over with one connection.
    OneConnection,
}

/// A file to download.
pub struct Request<'a> {
    /// Its address.
    pub url: &'a str,
    /// Extra request headers.
    pub headers: Headers<'a>,
    /// The destination. Existing content is taken as the start of the file.
    pub path: &'a Path,
    /// Size in bytes, if known.
    pub size: Option<u64>,
}

impl Session<'_> {
    /// Fails if the pull was cancelled.
    pub fn check_cancelled(&self) -> Result<()> {
        if self.cancel.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Repeats an operation until it succeeds or fails permanently. `progress` measures progress: whenever it
    /// has grown, the count of failures restarts.
    pub fn retry<T>(
        &self,
        report: &mut dyn FnMut(DownloadEvent),
        mut attempt: impl FnMut(&mut dyn FnMut(DownloadEvent)) -> Result<T>,
        progress: impl Fn() -> u64,
    ) -> Result<T> {
        let (mut failures, mut max_progress) = (0, progress());
        loop {
            self.check_cancelled()?;
            let error = match attempt(report) {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            // Cancelling shuts the connection down, which shows as a network error here.
            self.check_cancelled()?;
            if progress() > max_progress {
                (failures, max_progress) = (0, progress());
            }
            failures += 1;
            let Some(delay) = self.retry_delay(&error, failures) else { return Err(error) };
            report(DownloadEvent::Retry(&error, delay));
            self.sleep(delay)?;
        }
    }

    /// The delay before the next attempt, after this many consecutive failures; `None` to give up. It doubles
    /// with each failure, and is at least what the server asks for.
    pub fn retry_delay(&self, error: &Error, failures: u32) -> Option<Duration> {
        let asked = match error {
            Error::Status { retry_after, .. } => retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        };
        let give_up =
            failures >= MAX_ATTEMPTS || !error.is_transient() || asked > self.settings.max_retry_after;
        let backoff = self.settings.retry_delay * 2_u32.pow(failures.saturating_sub(1).min(8));
        (!give_up).then(|| backoff.max(asked))
    }

    /// Downloads a file.
    pub fn download(&self, request: &Request, report: &mut dyn FnMut(DownloadEvent)) -> Result<()> {
        self.retry(report, |report| self.attempt(request, report), || file_len(request.path))
    }

    fn attempt(&self, request: &Request, report: &mut dyn FnMut(DownloadEvent)) -> Result<()> {
        let Request { url, path, size, .. } = *request;
        let mut have = file_len(path);
        if size.is_some_and(|size| have > size) {
            discard(path)?;
            have = 0;
        }
        if have > 0 && size == Some(have) {
            report(DownloadEvent::Progress(have));
            return Ok(());
        }
        let mut headers = request.headers.to_vec();
        if have > 0 {
            headers.push(("Range", format!("bytes={have}-")));
            // If-Range: without it, the rest of a newer file could be appended to the start of an older one.
            if let Ok(tag) = fs::read_to_string(tag_path(path)) {
                headers.push(("If-Range", tag));
            }
        }
        headers.push(("Accept-Encoding", "identity".to_string()));
        let mut reply = self.client.get(url, &headers, &[416])?;
        let mut total = size;
        if reply.is_web_page() {
            let reason = "the server sent a web page instead of the file, perhaps a login page";
            return Err(Error::Hub { url: without_secrets(url), reason: reason.to_string() });
        }
        match reply.status() {
            206 => {
                let range = reply.header("content-range").and_then(parse_range);
                let Some((_, reported)) = range.filter(|(first, _)| *first == have) else {
                    discard(path)?;
                    return Err(network_error(url, &"the server sent a different range than requested"));
                };
                total = reported.or(total);
            }
            416 => {
                // The requested range is empty: the download is complete, or the start of another file.
                let reported = reply
                    .header("content-range")
                    .and_then(|range| range.strip_prefix("bytes */")?.trim().parse().ok());
                if have > 0 && size.is_none() && reported == Some(have) {
                    return Ok(());
                }
                discard(path)?;
                return Err(network_error(url, &"the server cannot resume the download"));
            }
            _ => {
                // The server does not support ranges, or its file has changed: it sends everything.
                have = 0;
                total = reply.response.body().content_length().or(total);
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
        match reply.header("etag").filter(|tag| tag.starts_with('"')) {
            Some(tag) => fs::write(tag_path(path), tag).with_path(path)?,
            None => remove_if_exists(&tag_path(path))?,
        }
        self.receive(request, reply.response.body_mut().as_reader(), &mut file, have, total, report)
    }

    fn receive(
        &self,
        request: &Request,
        mut body: impl Read,
        file: &mut File,
        mut have: u64,
        total: Option<u64>,
        report: &mut dyn FnMut(DownloadEvent),
    ) -> Result<()> {
        let Request { url, path, .. } = *request;
        let mut buffer = vec![0; 1 << 18];
        loop {
            self.check_cancelled()?;
            let count = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(network_error(url, &error)),
            };
            have += count as u64;
            if total.is_some_and(|total| have > total) {
                discard(path)?;
                return Err(network_error(url, &"the server sent more bytes than the file has"));
            }
            file.write_all(&buffer[..count]).with_path(path)?;
            report(DownloadEvent::Progress(have));
        }
        match total.filter(|total| have < *total) {
            Some(total) => {
                Err(network_error(url, &format!("the connection ended after {have} of {total} bytes")))
            }
            None => Ok(()),
        }
    }

    /// Sleeps, unless the user cancels.
    pub fn sleep(&self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        loop {
            self.check_cancelled()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }
}

/// Length of a file in bytes; 0 if it does not exist.
pub fn file_len(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// Deletes a download, its ETag file and its journal.
pub fn discard(path: &Path) -> Result<()> {
    remove_if_exists(path)?;
    remove_if_exists(&tag_path(path))?;
    remove_if_exists(&journal_path(path))
}

/// Deletes a file if it exists.
pub fn remove_if_exists(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(path, error)),
        _ => Ok(()),
    }
}

/// Adds the path to an I/O error.
pub trait IoContext<T> {
    /// Adds the path to an I/O error.
    fn with_path(self, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for std::io::Result<T> {
    fn with_path(self, path: &Path) -> Result<T> {
        self.map_err(|error| Error::io(path, error))
    }
}

fn tag_path(path: &Path) -> PathBuf {
    with_suffix(path, ".etag")
}

/// Path of the journal of a download in ranges.
pub fn journal_path(path: &Path) -> PathBuf {
    with_suffix(path, ".ranges")
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Start and total size of a `Content-Range` such as `bytes 5-9/10`.
pub fn parse_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let first = range.split_once('-')?.0.trim().parse().ok()?;
    let total = if total.trim() == "*" { None } else { Some(total.trim().parse().ok()?) };
    Some((first, total))
}
