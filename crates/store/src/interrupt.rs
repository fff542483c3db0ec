//! Ending blocked requests when the user cancels.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use crate::client::Client;

/// Polling interval for cancellation and the lock.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Runs an operation. A blocked read returns only after the stall timeout, so the client is shut down as soon
/// as `cancel` is set, which ends every read at once.
pub(crate) fn interruptible<T>(client: &Client, cancel: &AtomicBool, operation: impl FnOnce() -> T) -> T {
    let finished = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !finished.load(Ordering::Relaxed) {
                if cancel.load(Ordering::Relaxed) {
                    client.shut_down();
                    return;
                }
                std::thread::park_timeout(POLL_INTERVAL);
            }
        });
        let _finished = SetOnDrop { finished: &finished, watcher: watcher.thread() };
        operation()
    })
}

/// Ends the watcher, also when the operation panics.
struct SetOnDrop<'a> {
    finished: &'a AtomicBool,
    watcher: &'a std::thread::Thread,
}

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.finished.store(true, Ordering::Relaxed);
        self.watcher.unpark();
    }
}
