//! The folder: its lock, reads and deletions, and the thread that writes.

use std::{
    collections::HashSet,
    fs::{self, DirBuilder, File},
    io::{self, ErrorKind},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, SystemTime},
};

use rustix::{fs::FlockOperation, io::Errno};

use super::{
    file::PageLabel,
    index::{Full, Index},
    key::{Fingerprint, PageId},
};

/// Name of the locked file.
const LOCK: &str = "lock";

/// Attempts to lock the folder: a server that is being replaced takes a moment to end.
const LOCK_ATTEMPTS: u32 = 20;
const LOCK_INTERVAL: Duration = Duration::from_millis(50);

/// End of temporary names.
const TEMPORARY: &str = "tmp";

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PrefixDiskError {
    /// It cannot be created, listed or written.
    #[error("cannot use {}: {reason}; make it writable, or choose another folder", path.display())]
    Folder {
        /// The folder or file.
        path: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// Another process has it open.
    #[error("{} is in use by another process: give each its own folder", path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
    },
}

/// Counters since the folder was opened, and its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixDiskStats {
    /// Prompt tokens whose keys and values were read from disk instead of being prefilled.
    pub restored_tokens: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Pages that could not be read or written, damaged ones included.
    pub errors: u64,
    /// Pages that were deleted for the limit.
    pub evictions: u64,
    /// Pages stored.
    pub pages: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Maximum of `bytes`.
    pub max_bytes: u64,
}

/// A page's keys and values, in memory that the host can read.
pub(crate) trait PageContent: Send {
    /// Whether it cannot be read because its device is lost.
    fn is_lost(&self) -> bool {
        false
    }

    /// Copies the bytes at `offset`. The error is a message for the log.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), String>;
}

/// A page to be written.
pub(crate) struct PageWrite {
    pub id: PageId,
    pub label: PageLabel,
    pub content: Box<dyn PageContent>,
    /// Time of use.
    pub used: u64,
}

/// Why a page was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadError {
    /// It was evicted meanwhile.
    Gone,
    /// It is damaged or cannot be read. It is no longer stored.
    Failed,
}

/// A folder of KV pages. Clones share it; it is unlocked when the last one is dropped, after the writes that wait.
#[derive(Clone)]
pub struct PrefixDisk(Arc<Handle>);

struct Handle {
    folder: Arc<Folder>,
    /// `None` while it is being dropped.
    writes: Option<mpsc::Sender<PageWrite>>,
    writer: Option<JoinHandle<()>>,
}

struct Folder {
    path: PathBuf,
    /// Locked for as long as the folder is open.
    _lock: File,
    state: Mutex<State>,
    written: Condvar,
    counters: Counters,
    /// Whether a write has failed, and a read: the log says so once.
    write_failed: AtomicBool,
    read_failed: AtomicBool,
}

struct State {
    index: Index,
    /// Pages that wait for the writer.
    waiting: HashSet<PageId>,
    /// Models whose pages were deleted while some of them waited: those are not stored.
    discarded: HashSet<PageId>,
    /// The last time of use.
    clock: u64,
}

#[derive(Default)]
struct Counters {
    restored_tokens: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    errors: AtomicU64,
    evictions: AtomicU64,
}

impl PrefixDisk {
    /// Opens a folder for at most `max_bytes` of pages, and creates it if necessary.
    pub fn open(path: &Path, max_bytes: u64) -> Result<Self, PrefixDiskError> {
        let folder = Arc::new(Folder::open(path, max_bytes)?);
        let (writes, received) = mpsc::channel::<PageWrite>();
        let work = {
            let folder = folder.clone();
            move || {
                for page in received {
                    let id = page.id;
                    // The panic has been reported. Nothing may wait for the page.
                    if catch_unwind(AssertUnwindSafe(|| folder.write(page))).is_err() {
                        folder.state().waiting.remove(&id);
                        folder.written.notify_all();
                    }
                }
            }
        };
        let writer = std::thread::Builder::new().name("prefix disk".into()).spawn(work);
        let writer = writer.map_err(|reason| PrefixDiskError::Folder { path: path.into(), reason })?;
        Ok(Self(Arc::new(Handle { folder, writes: Some(writes), writer: Some(writer) })))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0.folder.path
    }

    /// Counters and state.
    pub fn stats(&self) -> PrefixDiskStats {
        let Folder { counters, .. } = &*self.0.folder;
        let state = self.0.folder.state();
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PrefixDiskStats {
            restored_tokens: get(&counters.restored_tokens),
            read_bytes: get(&counters.read_bytes),
            written_bytes: get(&counters.written_bytes),
            errors: get(&counters.errors),
            evictions: get(&counters.evictions),
            pages: state.index.len() as u64,
            bytes: state.index.bytes(),
            max_bytes: state.index.max_bytes,
        }
    }

    /// Waits until all pages passed to the writer are stored or given up.
    pub fn flush(&self) {
        let mut state = self.0.folder.state();
        while !state.waiting.is_empty() {
            state = self.0.folder.written.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Like [`PrefixDisk::flush`], for at most this long. Returns whether it is done.
    pub fn flush_within(&self, timeout: Duration) -> bool {
        let state = self.0.folder.state();
        let waited =
            self.0.folder.written.wait_timeout_while(state, timeout, |state| !state.waiting.is_empty());
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// A time of use, later than all before.
    pub(crate) fn now(&self) -> u64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut state = self.0.folder.state();
        state.clock = (state.clock + 1).max(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX - 1));
        state.clock
    }

    /// Whether a page is stored.
    pub(crate) fn contains(&self, id: &PageId) -> bool {
        self.0.folder.state().index.contains(id)
    }

    /// Whether a page is stored or waits to be; sets its time of use.
    pub(crate) fn touch(&self, id: &PageId, used: u64) -> bool {
        let mut state = self.0.folder.state();
        state.index.touch(id, used);
        state.index.contains(id) || state.waiting.contains(id)
    }

    /// Queues a page for the writer thread, and returns at once.
    pub(crate) fn write(&self, page: PageWrite) {
        let id = page.id;
        self.0.folder.state().waiting.insert(id);
        let sent = self.0.writes.as_ref().is_some_and(|writes| writes.send(page).is_ok());
        if !sent {
            // The writer has panicked; nothing more is stored.
            self.0.folder.state().waiting.remove(&id);
        }
    }

    /// Reads a page. Blocks.
    pub(crate) fn read(
        &self,
        id: &PageId,
        label: &PageLabel,
        used: u64,
        content: &mut Vec<u8>,
    ) -> Result<(), ReadError> {
        self.0.folder.read(id, label, used, content)
    }

    /// Counts tokens that were not prefilled.
    pub(crate) fn count_restored(&self, tokens: u64) {
        self.0.folder.counters.restored_tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    /// Deletes all pages of a model.
    pub(crate) fn clear(&self, fingerprint: Fingerprint) {
        let model = PageId::model_of(fingerprint);
        let mut state = self.0.folder.state();
        let waiting: Vec<PageId> = state.waiting.iter().copied().filter(|id| id.model == model).collect();
        state.discarded.extend(waiting);
        let stored: Vec<PageId> = state.index.ids().filter(|id| id.model == model).collect();
        for id in stored {
            self.0.folder.remove(&mut state, &id);
        }
    }
}

impl std::fmt::Debug for PrefixDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PrefixDisk({})", self.path().display())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Ends the writer when it has written what waits.
        self.writes = None;
        if let Some(writer) = self.writer.take() {
            // It has reported its panic, if it ended with one.
            let _ = writer.join();
        }
    }
}

impl Folder {
    fn open(path: &Path, max_bytes: u64) -> Result<Self, PrefixDiskError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |reason| PrefixDiskError::Folder { path, reason }
        };
        create_private_folder(path).map_err(failed(path))?;
        let file = path.join(LOCK);
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&file)
            .map_err(failed(&file))?;
        let mut attempts = LOCK_ATTEMPTS;
        loop {
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) if attempts > 1 => {
                    attempts -= 1;
                    std::thread::sleep(LOCK_INTERVAL);
                }
                Err(Errno::WOULDBLOCK) => return Err(PrefixDiskError::Locked { path: path.into() }),
                locked => break locked.map_err(io::Error::from).map_err(failed(&file))?,
            }
        }
        let index = scan(path, max_bytes).map_err(failed(path))?;
        // The system's clock may have been ahead: new pages would count as older than those stored then.
        let clock = index.last_used();
        let state = State { index, waiting: HashSet::new(), discarded: HashSet::new(), clock };
        let folder = Self {
            path: path.to_owned(),
            _lock: lock,
            state: Mutex::new(state),
            written: Condvar::new(),
            counters: Counters::default(),
            write_failed: AtomicBool::new(false),
            read_failed: AtomicBool::new(false),
        };
        // The limit may be lower than last time.
        let mut state = folder.state();
        while state.index.bytes() > max_bytes
            && let Some(id) = state.index.first()
        {
            folder.evict(&mut state, &id);
        }
        drop(state);
        Ok(folder)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No critical section leaves the index half updated.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a page, unless the folder is full of pages used since.
    fn write(&self, page: PageWrite) {
        let PageWrite { id, label, mut content, used } = page;
        let stored =
            self.make_room(label.file_bytes(), used).map(|()| self.store(&id, &label, &mut *content, used));
        match stored {
            // No error of the disk, which the log reports only once.
            Ok(Err(_)) if content.is_lost() => {}
            Ok(Ok(())) => {
                self.counters.written_bytes.fetch_add(label.file_bytes(), Ordering::Relaxed);
            }
            Ok(Err(error)) => self.write_failed(&error),
            Err(Full) => {}
        }
        let mut state = self.state();
        state.waiting.remove(&id);
        if state.discarded.remove(&id) {
            self.remove(&mut state, &id);
        }
        drop(state);
        self.written.notify_all();
    }

    fn write_failed(&self, error: &io::Error) {
        self.counters.errors.fetch_add(1, Ordering::Relaxed);
        if error.kind() == ErrorKind::StorageFull {
            // From now on, new pages take the place of old ones.
            let mut state = self.state();
            state.index.max_bytes = state.index.bytes();
        }
        if !self.write_failed.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the prefix cache on disk cannot be written, so not all prefixes are stored: {}: {error}; further \
                 errors are only counted, in indrik_prefix_disk_errors_total",
                self.path.display()
            );
        }
    }

    /// Deletes the pages used longest ago until a file of this size fits.
    fn make_room(&self, bytes: u64, used: u64) -> Result<(), Full> {
        let mut state = self.state();
        while let Some(victim) = state.index.next_victim(bytes, used)? {
            self.evict(&mut state, &victim);
        }
        Ok(())
    }

    fn store(
        &self,
        id: &PageId,
        label: &PageLabel,
        content: &mut dyn PageContent,
        used: u64,
    ) -> io::Result<()> {
        let path = self.path.join(id.path());
        let mut temporary = path.clone().into_os_string();
        temporary.push(".");
        temporary.push(TEMPORARY);
        let mut write = || {
            if let Some(folder) = path.parent() {
                create_private_folder(folder)?;
            }
            let mut file =
                File::options().create(true).truncate(true).write(true).mode(0o600).open(&temporary)?;
            label.write(content, &mut file)?;
            file.set_modified(time_of(used))?;
            fs::rename(&temporary, &path)
        };
        write().inspect_err(|_| {
            // It may not exist; if it cannot be deleted, it is when the folder is opened again.
            let _ = fs::remove_file(&temporary);
        })?;
        self.state().index.insert(*id, label.file_bytes(), used);
        Ok(())
    }

    fn read(
        &self,
        id: &PageId,
        label: &PageLabel,
        used: u64,
        content: &mut Vec<u8>,
    ) -> Result<(), ReadError> {
        let path = self.path.join(id.path());
        let mut read = || {
            let file = File::open(&path)?;
            label.read(&file, content)?;
            // Only the order of eviction after a restart depends on it.
            let _ = file.set_modified(time_of(used));
            Ok(())
        };
        let result: io::Result<()> = read();
        let mut state = self.state();
        let Err(error) = result else {
            state.index.touch(id, used);
            self.counters.read_bytes.fetch_add(label.file_bytes(), Ordering::Relaxed);
            return Ok(());
        };
        if error.kind() == ErrorKind::NotFound && !state.index.contains(id) {
            return Err(ReadError::Gone);
        }
        if error.kind() == ErrorKind::InvalidData {
            self.remove(&mut state, id);
        } else {
            // The file may be right, for example if too many are open; it is found again after a restart.
            state.index.remove(id);
        }
        drop(state);
        self.counters.errors.fetch_add(1, Ordering::Relaxed);
        if !self.read_failed.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a page of the prefix cache on disk cannot be used and is prefilled: {}: {error}; further \
                 errors are only counted, in indrik_prefix_disk_errors_total",
                path.display()
            );
        }
        Err(ReadError::Failed)
    }

    fn evict(&self, state: &mut State, id: &PageId) {
        self.remove(state, id);
        self.counters.evictions.fetch_add(1, Ordering::Relaxed);
    }

    fn remove(&self, state: &mut State, id: &PageId) {
        if state.index.remove(id) {
            // A file that cannot be deleted is found again when the folder is opened; it is never wrong.
            let _ = fs::remove_file(self.path.join(id.path()));
        }
    }
}

/// Lists the stored pages, and deletes temporary files.
fn scan(path: &Path, max_bytes: u64) -> io::Result<Index> {
    let mut index = Index::new(max_bytes);
    for model in fs::read_dir(path)? {
        let model = model?;
        let name = model.file_name();
        // A volume may have folders of its own, such as `lost+found`, which only root can read.
        let Some(model_name) = name.to_str().filter(|name| PageId::is_model(name)) else { continue };
        for file in fs::read_dir(model.path())? {
            let file = file?;
            let name = file.file_name();
            let (model, Some(name)) = (model_name, name.to_str()) else { continue };
            let page = name.strip_suffix(TEMPORARY).and_then(|name| name.strip_suffix('.'));
            match (PageId::from_path(model, name), page.and_then(|page| PageId::from_path(model, page))) {
                (Some(id), _) => {
                    let data = file.metadata()?;
                    let used = data.modified()?.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                    index.insert(id, data.len(), u64::try_from(used.as_nanos()).unwrap_or(u64::MAX - 1));
                }
                (None, Some(_)) => fs::remove_file(file.path())?,
                (None, None) => {}
            }
        }
    }
    Ok(index)
}

/// Creates a folder, unless there is one, that only its owner can enter: pages are what clients wrote.
fn create_private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn time_of(used: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(used)
}
