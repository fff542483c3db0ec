//! Reads the pages of a prefix ahead of their use, on threads of its own.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Instant,
};

use super::{PageId, PageLabel, PrefixDisk, ReadError};

/// Threads that read: one copies and checks a few GB/s.
const THREADS: usize = 4;

/// Pages that are read ahead, at most.
const MAX_AHEAD: usize = 8;

/// Reads pages in order. Dropping it ends the threads, after the pages that they are reading.
pub(crate) struct PageReader {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    pages: Vec<(PageId, PageLabel)>,
    disk: PrefixDisk,
    /// Time of use.
    used: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The next page to read.
    next: usize,
    /// The next page to be taken.
    taken: usize,
    done: BTreeMap<usize, Result<Vec<u8>, ReadError>>,
    /// Buffers to read into.
    free: Vec<Vec<u8>>,
    cancelled: bool,
}

impl PageReader {
    /// `None` if no thread can be started.
    pub fn start(disk: &PrefixDisk, pages: Vec<(PageId, PageLabel)>) -> Option<Self> {
        let count = THREADS.min(pages.len());
        let shared = Shared {
            pages,
            disk: disk.clone(),
            used: disk.now(),
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        let shared = Arc::new(shared);
        let start = |_| {
            let of_thread = shared.clone();
            let work = move || of_thread.read_all();
            std::thread::Builder::new().name("prefix read".into()).spawn(work).ok()
        };
        let threads: Vec<JoinHandle<()>> = (0..count).filter_map(start).collect();
        (!threads.is_empty() || count == 0).then_some(Self { shared, threads })
    }

    /// The next page in order, of which there must be one; `None` if it is not read by `deadline`, or now without one.
    pub fn take(&self, deadline: Option<Instant>) -> Option<Result<Vec<u8>, ReadError>> {
        let mut state = self.shared.state();
        loop {
            let index = state.taken;
            if let Some(page) = state.done.remove(&index) {
                state.taken += 1;
                drop(state);
                self.shared.changed.notify_all();
                return Some(page);
            }
            let left = deadline?.checked_duration_since(Instant::now())?;
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns a buffer of [`PageReader::take`] to be read into again.
    pub fn recycle(&self, buffer: Vec<u8>) {
        self.shared.state().free.push(buffer);
    }
}

impl Drop for PageReader {
    fn drop(&mut self) {
        self.shared.state().cancelled = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // It has reported its panic, if it ended with one.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_all(&self) {
        while let Some((index, mut buffer)) = self.next() {
            let (id, label) = &self.pages[index];
            let read = || self.disk.read(id, label, self.used, &mut buffer);
            // The panic has been reported. Nothing may wait for the page.
            let read = catch_unwind(AssertUnwindSafe(read)).unwrap_or(Err(ReadError::Failed));
            self.state().done.insert(index, read.map(|()| buffer));
            self.changed.notify_all();
        }
    }

    /// The next page to read, and a buffer.
    fn next(&self) -> Option<(usize, Vec<u8>)> {
        let mut state = self.state();
        loop {
            if state.cancelled || state.next == self.pages.len() {
                return None;
            }
            if state.next < state.taken + MAX_AHEAD {
                let index = state.next;
                state.next += 1;
                return Some((index, state.free.pop().unwrap_or_default()));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
