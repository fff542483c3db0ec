//! Memory for request bodies, shared by all connections.
//!
//! The first 64 KiB of a body are its connection's own, so that a small request never waits for a large one. What goes
//! beyond them is taken from a shared budget as it arrives. If the budget is used up, the body that has been arriving
//! most slowly is dropped to make room.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Bytes of each body that do not count.
const FREE_BYTES: usize = 64 << 10;

/// A body that does not gain this many bytes within [`GRACE`] may be dropped.
pub(crate) const PROGRESS_BYTES: usize = 64 << 10;

/// Time that every body has to make progress.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// Memory for request bodies.
pub(crate) struct Budget {
    state: Mutex<State>,
    /// Signalled when memory is returned.
    freed: Notify,
}

struct State {
    free: usize,
    next_id: u64,
    /// Bodies that are being received.
    receiving: BTreeMap<u64, Receiving>,
}

struct Receiving {
    /// Last time that [`PROGRESS_BYTES`] were complete.
    advanced: Instant,
    /// Whether it waits for memory, and not for its client.
    waiting: bool,
    held: usize,
    eviction: Option<Arc<Notify>>,
}

/// Why a body was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evicted {
    /// It arrived more slowly than others.
    Slow,
    /// There is no memory for it.
    NoMemory,
}

impl Budget {
    pub(crate) fn new(bytes: usize) -> Budget {
        let state = State { free: bytes, next_id: 0, receiving: BTreeMap::new() };
        Budget { state: Mutex::new(state), freed: Notify::new() }
    }

    /// Registers a body; it holds no memory yet.
    pub(crate) fn reservation(self: &Arc<Self>) -> Reservation {
        let eviction = Arc::new(Notify::new());
        let mut state = self.lock();
        let id = state.next_id;
        state.next_id += 1;
        let entry =
            Receiving { advanced: Instant::now(), waiting: false, held: 0, eviction: Some(eviction.clone()) };
        state.receiving.insert(id, entry);
        Reservation { budget: self.clone(), id, held: 0, received: 0, advanced_at: 0, eviction }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Tells the slowest body other than `id` to return its memory. Returns the time until the next one may be told.
    fn evict_slowest(&mut self, id: u64) -> Duration {
        // One at a time: two that wait for each other must not drop each other.
        if self.receiving.values().any(|body| body.eviction.is_none()) {
            return GRACE;
        }
        let others = self.receiving.iter_mut().filter(|(other, _)| **other != id);
        let candidates = others.map(|(_, body)| body).filter(|body| body.held > 0);
        // A body that waits for memory is not slow: only if all wait, one of them goes.
        let Some(slowest) = candidates.min_by_key(|body| (body.waiting, body.advanced)) else {
            return GRACE;
        };
        let left = GRACE.saturating_sub(slowest.advanced.elapsed());
        if left.is_zero() {
            if let Some(eviction) = slowest.eviction.take() {
                // Stores a permit if the body is not waiting for it yet.
                eviction.notify_one();
            }
            return GRACE;
        }
        left
    }
}

/// Memory of one body. Returned when dropped.
pub(crate) struct Reservation {
    budget: Arc<Budget>,
    id: u64,
    held: usize,
    /// Bytes that have arrived. A compressed body has more when it is decoded.
    received: usize,
    /// Bytes that had arrived when the body last made progress.
    advanced_at: usize,
    eviction: Arc<Notify>,
}

impl Reservation {
    /// Sets the number of bytes that have arrived. They tell slow bodies, not the memory that a body takes: a few bytes
    /// may decode to many.
    pub(crate) fn set_received(&mut self, bytes: usize) {
        self.received = bytes;
    }

    /// Takes memory for a body of `length` bytes so far; waits until there is some.
    pub(crate) async fn grow_to(&mut self, length: usize) -> Result<(), Evicted> {
        let wanted = length.saturating_sub(FREE_BYTES);
        loop {
            // Before the check: a signal between check and wait is not lost.
            let freed = self.budget.freed.notified();
            let wait = {
                let mut state = self.budget.lock();
                let missing = wanted.saturating_sub(self.held);
                let fits = missing <= state.free;
                if fits {
                    state.free -= missing;
                    self.held += missing;
                }
                if let Some(entry) = state.receiving.get_mut(&self.id) {
                    entry.waiting = !fits;
                    entry.held = self.held;
                    if self.received >= self.advanced_at + PROGRESS_BYTES {
                        entry.advanced = Instant::now();
                        self.advanced_at = self.received;
                    }
                }
                if fits {
                    return Ok(());
                }
                state.evict_slowest(self.id)
            };
            tokio::select! {
                () = freed => {}
                () = tokio::time::sleep(wait) => {}
                () = self.eviction.notified() => return Err(Evicted::NoMemory),
            }
        }
    }

    /// Waits until this body must return its memory to others.
    pub(crate) async fn evicted(&self) -> Evicted {
        self.eviction.notified().await;
        Evicted::Slow
    }

    /// The body is complete: from here on the memory is kept.
    pub(crate) fn complete(&self) {
        self.budget.lock().receiving.remove(&self.id);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut state = self.budget.lock();
        state.free += self.held;
        state.receiving.remove(&self.id);
        drop(state);
        self.budget.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn small_bodies_need_no_memory() {
        block_on(async {
            let budget = Arc::new(Budget::new(MIB));
            let mut large = budget.reservation();
            large.grow_to(MIB + FREE_BYTES).await.unwrap();
            let mut small = budget.reservation();
            small.grow_to(FREE_BYTES).await.unwrap();
            large.complete();
        });
    }

    #[test]
    fn the_slowest_body_gives_way() {
        block_on(async {
            let budget = Arc::new(Budget::new(2 * MIB));
            let mut slow = budget.reservation();
            slow.grow_to(MIB + FREE_BYTES).await.unwrap();
            let mut complete = budget.reservation();
            complete.grow_to(MIB + FREE_BYTES).await.unwrap();
            complete.complete();
            let mut third = budget.reservation();
            let grow = third.grow_to(FREE_BYTES + 1);
            let evicted = async {
                assert_eq!(slow.evicted().await, Evicted::Slow);
                drop(slow);
            };
            let (grown, ()) = tokio::join!(grow, evicted);
            grown.unwrap();
        });
    }

    #[test]
    fn bodies_that_wait_for_each_other_do_not_deadlock() {
        block_on(async {
            let budget = Arc::new(Budget::new(2 * MIB));
            let (mut first, mut second) = (budget.reservation(), budget.reservation());
            first.grow_to(MIB + FREE_BYTES).await.unwrap();
            second.grow_to(MIB + FREE_BYTES).await.unwrap();
            // Each returns its memory when it fails, as a request does.
            let grow = async |mut reservation: Reservation| reservation.grow_to(2 * MIB + FREE_BYTES).await;
            let results = tokio::join!(grow(first), grow(second));
            assert!(
                matches!(results, (Ok(()), Err(Evicted::NoMemory)) | (Err(Evicted::NoMemory), Ok(()))),
                "{results:?}"
            );
        });
    }
}
