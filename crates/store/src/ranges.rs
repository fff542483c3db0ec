//! Downloading a large file over several connections, one range each.
//!
//! The file has its full size from the start, and a journal next to it records how much of each range is
//! there, so that any interruption costs a few seconds of data at most. The journal is written after the data that
//! it describes.
//!
//! Where the checksum of the file is known, it decides in the end whether the content is right. Otherwise
//! every range is requested under the condition that the file has not changed (`If-Range`). The ETag of
//! content with a known checksum is ignored: a hub may move it from one storage to another, which changes the
//! ETag, and a resumed download must not start over for that.

use std::{
    collections::VecDeque,
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read, Write},
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError, Sender},
    },
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::{
    client::network_error,
    download::{
        DownloadEvent, IoContext, MAX_ATTEMPTS, Request, Session, discard, file_len, journal_path,
        parse_range,
    },
    error::{Error, Result},
    hub::Location,
    url::without_secrets,
};

/// Interval of progress reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);
/// Interval at which the journal is written.
const JOURNAL_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of ranges: bounds the journal.
const MAX_RANGES: u64 = 1 << 16;
/// How often a download starts over because the file changed.
const MAX_CHANGES: u32 = 2;

/// A file to download in ranges.
pub struct RangedRequest<'a> {
    /// Its address at the hub, which redirects to storage.
    pub url: &'a str,
    /// Its commit, if it is a file of a repository.
    pub commit: Option<&'a str>,
    /// The destination.
    pub path: &'a Path,
    /// Size in bytes.
    pub size: u64,
    /// Identifies the content: a journal of other content is discarded.
    pub identity: &'a str,
    /// Whether the checksum of the content is known.
    pub has_checksum: bool,
}

/// Progress on disk.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct Journal {
    identity: String,
    size: u64,
    range_bytes: u64,
    etag: Option<String>,
    /// Bytes at the start of each range that are complete.
    done: Vec<u64>,
}

impl Journal {
    fn new(request: &RangedRequest, range_bytes: u64) -> Self {
        let range_bytes = range_bytes.max(1).max(request.size.div_ceil(MAX_RANGES));
        let count = request.size.div_ceil(range_bytes);
        Self {
            identity: request.identity.to_string(),
            size: request.size,
            range_bytes,
            etag: None,
            done: vec![0; count as usize],
        }
    }

    /// The journal of an earlier attempt, if it belongs to this content and the file is still there.
    fn load(request: &RangedRequest) -> Option<Self> {
        let text = fs::read(journal_path(request.path)).ok()?;
        let journal: Journal = serde_json::from_slice(&text).ok()?;
        let expected = Journal::new(request, journal.range_bytes);
        let consistent = journal.identity == expected.identity
            && journal.size == expected.size
            && journal.range_bytes == expected.range_bytes
            && journal.done.len() == expected.done.len()
            && (0..).zip(&journal.done).all(|(index, done)| *done <= journal.range_len(index))
            && file_len(request.path) == request.size;
        consistent.then_some(journal)
    }

    fn range_len(&self, index: u64) -> u64 {
        (self.size - index * self.range_bytes).min(self.range_bytes)
    }

    fn total(&self) -> u64 {
        self.done.iter().sum()
    }
}

/// Bytes of an interrupted download that are on disk.
pub fn downloaded(path: &Path) -> u64 {
    let journal =
        fs::read(journal_path(path)).ok().and_then(|text| serde_json::from_slice::<Journal>(&text).ok());
    journal.map_or_else(|| file_len(path), |journal| journal.total().min(file_len(path)))
}

/// Why a range was not received.
enum Failure {
    /// The server ignores ranges.
    NoRanges,
    /// The file has changed since the first range.
    Changed,
    /// The signed address of this generation has expired.
    Expired(Error, u32),
    /// Everything else.
    Other(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Other(error)
    }
}

/// Where the file is. A signed address expires, so that the hub is asked again now and then.
#[derive(Default)]
struct Located {
    location: Option<Location>,
    /// How often the hub was asked.
    generation: u32,
    /// Bytes of the file that were complete when the hub was asked last.
    progress: u64,
    /// Consecutive addresses that delivered nothing.
    fruitless: u32,
}

/// The state that the connections share.
struct Transfer<'a> {
    session: &'a Session<'a>,
    request: &'a RangedRequest<'a>,
    file: File,
    range_bytes: u64,
    done: Vec<AtomicU64>,
    /// Ranges that no connection has taken yet.
    queue: Mutex<VecDeque<usize>>,
    located: Mutex<Located>,
    etag: Mutex<Option<String>>,
    /// Ends all connections.
    stop: AtomicBool,
}

impl Session<'_> {
    /// Downloads a file: in ranges if it is large, else over one connection.
    pub fn download_ranged(
        &self,
        request: &RangedRequest,
        report: &mut dyn FnMut(DownloadEvent),
    ) -> Result<()> {
        let sequential =
            Request { url: request.url, headers: &[], path: request.path, size: Some(request.size) };
        let resumed = Journal::load(request);
        if resumed.is_none() && journal_path(request.path).exists() {
            discard(request.path)?;
        }
        if resumed.is_none()
            && (self.settings.connections < 2 || request.size < 2 * self.settings.range_bytes)
        {
            return self.download(&sequential, report);
        }
        if resumed.is_none() {
            // Whatever is there is not ours to write into; it may even be a link to a file elsewhere.
            discard(request.path)?;
        }
        let mut journal = resumed.unwrap_or_else(|| Journal::new(request, self.settings.range_bytes));
        for _ in 0..=MAX_CHANGES {
            match self.transfer(request, &journal, report) {
                // The journal stays until the file is verified: without it, the next attempt would start over.
                Ok(()) => return Ok(()),
                Err(Failure::Other(error) | Failure::Expired(error, _)) => return Err(error),
                Err(Failure::NoRanges) => {
                    discard(request.path)?;
                    report(DownloadEvent::OneConnection);
                    return self.download(&sequential, report);
                }
                Err(Failure::Changed) => {
                    discard(request.path)?;
                    journal = Journal::new(request, self.settings.range_bytes);
                }
            }
        }
        let reason = "the file keeps changing while it is downloaded".to_string();
        Err(Error::Hub { url: without_secrets(request.url), reason })
    }

    /// Downloads the missing ranges. The journal on disk is up to date afterwards, whatever the result.
    fn transfer(
        &self,
        request: &RangedRequest,
        journal: &Journal,
        report: &mut dyn FnMut(DownloadEvent),
    ) -> Result<(), Failure> {
        let path = request.path;
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path).with_path(path)?;
        let missing = |index: &usize| journal.done[*index] < journal.range_len(*index as u64);
        let transfer = Transfer {
            session: self,
            request,
            file,
            range_bytes: journal.range_bytes,
            done: journal.done.iter().map(|done| AtomicU64::new(*done)).collect(),
            queue: Mutex::new((0..journal.done.len()).filter(missing).collect()),
            located: Mutex::default(),
            etag: Mutex::new(journal.etag.clone()),
            stop: AtomicBool::new(false),
        };
        // In this order: a file of full length without a journal would look complete.
        transfer.save()?;
        transfer.file.set_len(request.size).with_path(path)?;
        report(DownloadEvent::Progress(journal.total()));
        let (events, received) = mpsc::channel::<(Error, Duration)>();
        let connections = self.settings.connections.min(lock(&transfer.queue).len());
        let mut save_error = None;
        let result = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..connections)
                .map(|_| {
                    let events = events.clone();
                    scope.spawn(|| transfer.work(events))
                })
                .collect();
            drop(events);
            let mut saved = Instant::now();
            loop {
                match received.recv_timeout(REPORT_INTERVAL) {
                    Ok((error, delay)) => report(DownloadEvent::Retry(&error, delay)),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                report(DownloadEvent::Progress(transfer.total()));
                if saved.elapsed() >= JOURNAL_INTERVAL {
                    // A failure, such as a full disk, is returned below, when all connections have ended.
                    if let Err(error) = transfer.save() {
                        save_error.get_or_insert(error);
                        transfer.stop.store(true, Ordering::Relaxed);
                    }
                    saved = Instant::now();
                }
            }
            let results = workers.into_iter().map(|worker| match worker.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            // All are waited for. Of several failures, the first that is not a consequence of another counts.
            results.collect::<Vec<_>>().into_iter().find(Result::is_err).unwrap_or(Ok(()))
        });
        transfer.save()?;
        report(DownloadEvent::Progress(transfer.total()));
        self.check_cancelled()?;
        result?;
        match save_error {
            Some(error) => Err(error.into()),
            // Never without an error above; the file already has its full length, so nothing else would notice.
            None if transfer.total() != request.size => {
                Err(network_error(request.url, &"the download is incomplete").into())
            }
            None => Ok(()),
        }
    }
}

impl Transfer<'_> {
    fn total(&self) -> u64 {
        self.done.iter().map(|done| done.load(Ordering::Relaxed)).sum()
    }

    fn save(&self) -> Result<()> {
        let journal = Journal {
            identity: self.request.identity.to_string(),
            size: self.request.size,
            range_bytes: self.range_bytes,
            etag: lock(&self.etag).clone(),
            done: self.done.iter().map(|done| done.load(Ordering::Relaxed)).collect(),
        };
        // The data first: after a power failure the journal must not claim bytes that were never written.
        self.file.sync_data().with_path(self.request.path)?;
        let path = journal_path(self.request.path);
        let temporary = path.with_extension("new");
        let text = serde_json::to_vec(&journal).expect("numbers and text always serialise");
        let mut file = File::create(&temporary).with_path(&temporary)?;
        file.write_all(&text).and_then(|()| file.sync_all()).with_path(&temporary)?;
        fs::rename(&temporary, &path).with_path(&path)
    }

    /// One connection: takes ranges until none is left.
    fn work(&self, events: Sender<(Error, Duration)>) -> Result<(), Failure> {
        loop {
            let Some(index) = lock(&self.queue).pop_front() else { return Ok(()) };
            let result = self.fetch_with_retries(index, &events);
            if result.is_err() {
                self.stop.store(true, Ordering::Relaxed);
                return result;
            }
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
    }

    fn fetch_with_retries(&self, index: usize, events: &Sender<(Error, Duration)>) -> Result<(), Failure> {
        let done = || self.done[index].load(Ordering::Relaxed);
        let (mut failures, mut max_progress) = (0, done());
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let failure = match self.fetch(index) {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            // Cancelling shuts the connections down, which shows as a network error here.
            self.session.check_cancelled()?;
            if done() > max_progress {
                (failures, max_progress) = (0, done());
            }
            match failure {
                Failure::Expired(error, generation) => self.forget_location(error, generation)?,
                Failure::Other(error) => {
                    failures += 1;
                    let Some(delay) = self.session.retry_delay(&error, failures) else {
                        return Err(Failure::Other(error));
                    };
                    // The receiver lives until all connections have ended.
                    let _ = events.send((error, delay));
                    self.session.sleep(delay)?;
                }
                // One odd answer, of a proxy for instance, must not cost what is already there.
                Failure::NoRanges if self.total() > 0 && failures + 1 < MAX_ATTEMPTS => {
                    failures += 1;
                    self.session.sleep(self.session.settings.retry_delay)?;
                }
                other => return Err(other),
            }
        }
    }

    /// The file's address and its generation. One connection asks the hub, the others wait for the answer.
    fn location(&self) -> Result<(Location, u32)> {
        let mut located = lock(&self.located);
        if let Some(known) = &located.location {
            return Ok((known.clone(), located.generation));
        }
        let found = self.session.locate(self.request.url, Some(self.request.size), self.request.commit)?;
        located.location = Some(found.clone());
        located.generation += 1;
        located.progress = self.total();
        Ok((found, located.generation))
    }

    /// Forgets an expired address, unless another connection has renewed it in the meantime. Fails if one
    /// address after another delivers nothing.
    fn forget_location(&self, error: Error, generation: u32) -> Result<()> {
        let mut located = lock(&self.located);
        if located.generation == generation && located.location.take().is_some() {
            located.fruitless = if self.total() > located.progress { 0 } else { located.fruitless + 1 };
            if located.fruitless >= MAX_ATTEMPTS {
                return Err(error);
            }
        }
        Ok(())
    }

    fn fetch(&self, index: usize) -> Result<(), Failure> {
        let size = self.request.size;
        let range_start = index as u64 * self.range_bytes;
        let end = size.min(range_start + self.range_bytes);
        let start = range_start + self.done[index].load(Ordering::Relaxed);
        if start == end {
            return Ok(());
        }
        let (location, generation) = self.location()?;
        let mut headers = vec![
            ("Range", format!("bytes={start}-{}", end - 1)),
            ("Accept-Encoding", "identity".to_string()),
        ];
        let known_tag = lock(&self.etag).clone();
        headers.extend(known_tag.clone().map(|tag| ("If-Range", tag)));
        let mut reply = match self.session.client.get(&location.url, &headers, &[416]) {
            Err(error @ Error::Status { status: 400 | 401 | 403 | 410, .. }) if location.is_signed => {
                return Err(Failure::Expired(error, generation));
            }
            reply => reply?,
        };
        let url = self.request.url;
        if reply.is_web_page() {
            let reason = "the server sent a web page instead of the file, perhaps a login page";
            return Err(Error::Hub { url: without_secrets(url), reason: reason.to_string() }.into());
        }
        let tag = reply.header("etag").filter(|tag| tag.starts_with('"') && !self.request.has_checksum);
        let tag = tag.map(str::to_string);
        if known_tag.is_some() && tag.is_some() && tag != known_tag {
            return Err(Failure::Changed);
        }
        match reply.status() {
            206 => {}
            416 => return Err(Failure::Changed),
            _ => return Err(Failure::NoRanges),
        }
        let range = reply.header("content-range").and_then(parse_range);
        match range {
            Some((first, total)) if first == start => {
                if let Some(found) = total.filter(|total| *total != size) {
                    return Err(Error::Size { url: without_secrets(url), expected: size, found }.into());
                }
            }
            _ => return Err(network_error(url, &"the server sent a different range than requested").into()),
        }
        // The first connections start without a known tag; of two versions, only one may be kept.
        if let Some(tag) = tag
            && *lock(&self.etag).get_or_insert_with(|| tag.clone()) != tag
        {
            return Err(Failure::Changed);
        }
        self.receive(index, reply.response.body_mut().as_reader(), start, end)
    }

    fn receive(&self, index: usize, mut body: impl Read, mut at: u64, end: u64) -> Result<(), Failure> {
        let (url, path) = (self.request.url, self.request.path);
        let mut buffer = vec![0; 1 << 18];
        while at < end {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.session.check_cancelled()?;
            // No more than the range: a server may send more than it was asked for.
            let room = buffer.len().min((end - at) as usize);
            let count = match body.read(&mut buffer[..room]) {
                Ok(0) => {
                    let reason = format!("the connection ended {} bytes before the end of a range", end - at);
                    return Err(network_error(url, &reason).into());
                }
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(network_error(url, &error).into()),
            };
            self.file.write_all_at(&buffer[..count], at).with_path(path)?;
            at += count as u64;
            self.done[index].fetch_add(count as u64, Ordering::Relaxed);
        }
        // Reading the end of the body lets the connection be used for the next range.
        let _ = body.read(&mut buffer[..1]);
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(path: &Path) -> RangedRequest<'_> {
        RangedRequest {
            url: "http://hub/x",
            commit: None,
            path,
            size: 25,
            identity: "a",
            has_checksum: false,
        }
    }

    #[test]
    fn only_a_consistent_journal_is_resumed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.part");
        fs::write(&path, [0; 25]).unwrap();
        let store = |text: &str| fs::write(journal_path(&path), text).unwrap();
        let valid = r#"{"identity":"a","size":25,"range_bytes":10,"etag":"\"v\"","done":[10,3,5]}"#;
        store(valid);
        let journal = Journal::load(&request(&path)).unwrap();
        assert_eq!((journal.total(), journal.range_len(2)), (18, 5));
        assert_eq!(downloaded(&path), 18);
        for (from, to) in [
            ("\"a\"", "\"b\""),
            ("\"size\":25", "\"size\":24"),
            ("[10,3,5]", "[10,3]"),
            ("[10,3,5]", "[10,3,6]"),
            ("[10,3,5]", "[10,-3,5]"),
            ("\"range_bytes\":10", "\"range_bytes\":0"),
            (",\"done\"", "\"done\""),
        ] {
            store(&valid.replace(from, to));
            assert_eq!(Journal::load(&request(&path)), None, "{to}");
        }
        store(valid);
        fs::write(&path, [0; 24]).unwrap();
        assert_eq!(Journal::load(&request(&path)), None, "the file is shorter");
    }

    #[test]
    fn the_number_of_ranges_is_bounded() {
        let journal = Journal::new(&RangedRequest { size: 1 << 40, ..request(Path::new("x")) }, 1);
        assert!(journal.done.len() as u64 <= MAX_RANGES);
        assert_eq!(
            (0..journal.done.len() as u64).map(|index| journal.range_len(index)).sum::<u64>(),
            1 << 40
        );
    }
}
