//! State shared by the engine's handles and its thread: submitted requests one way, the status the other.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use crate::{
    Capacity, EventStream, Options, RecentStats, Request, Status, SubmitError, job::Job,
    recent::RecentHistory,
};

/// Bounds of `retry_after`: retrying more than once per second only adds load, and after a minute the
/// estimate is stale.
const MIN_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(60);

/// The mailbox between handles and the scheduler, with the configuration that both read.
pub(crate) struct Shared {
    pub capacity: Capacity,
    pub options: Options,
    inbox: Mutex<Inbox>,
    /// Signalled when the inbox changes and when the thread ends.
    changed: Condvar,
}

/// Arrivals since the scheduler last emptied the inbox, and the status that it last published.
pub(crate) struct Inbox {
    pub arrived: Vec<Job>,
    /// Callers of [`Engine::probe`](crate::Engine::probe).
    pub probes: Vec<oneshot::Sender<()>>,
    pub status: Status,
    pub history: RecentHistory,
    /// Set when draining: the time at which unfinished requests fail.
    pub closing: Option<Instant>,
    /// The engine thread has ended.
    thread_ended: bool,
    submitted: u64,
    rejected: u64,
}

impl Shared {
    pub fn new(capacity: Capacity, options: Options) -> Self {
        let inbox = Inbox {
            arrived: vec![],
            probes: vec![],
            status: Status::default(),
            history: RecentHistory::new(Instant::now()),
            closing: None,
            thread_ended: false,
            submitted: 0,
            rejected: 0,
        };
        Self { capacity, options, inbox: Mutex::new(inbox), changed: Condvar::new() }
    }

    pub fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // No critical section leaves the inbox half updated, so a poisoned lock is safe to use.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until the inbox changes.
    pub fn wait<'a>(&self, inbox: MutexGuard<'a, Inbox>) -> MutexGuard<'a, Inbox> {
        self.changed.wait(inbox).unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until the inbox changes or `timeout` has passed.
    pub fn wait_timeout<'a>(&self, inbox: MutexGuard<'a, Inbox>, timeout: Duration) -> MutexGuard<'a, Inbox> {
        self.changed.wait_timeout(inbox, timeout).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Blocks until the engine thread has ended. Returns whether it was closed before.
    pub fn wait_for_exit(&self) -> bool {
        let mut inbox = self.inbox();
        while !inbox.thread_ended {
            inbox = self.wait(inbox);
        }
        inbox.closing.is_some()
    }

    /// Queues a request, or rejects it.
    pub fn submit(&self, request: Request) -> Result<EventStream, SubmitError> {
        let checked = request.check(&self.capacity);
        let mut inbox = self.inbox();
        if let Err(error) = checked.and_then(|()| self.check_queue(&inbox)) {
            inbox.rejected += 1;
            return Err(error);
        }
        let finish_early = Arc::default();
        let (events, stream) = EventStream::new(Arc::clone(&finish_early));
        let job = Job::new(inbox.submitted, request, events, finish_early);
        inbox.submitted += 1;
        inbox.arrived.push(job);
        drop(inbox);
        self.changed.notify_all();
        Ok(stream)
    }

    /// The error that [`submit`](Self::submit) would return now for any request. Counts as a rejection.
    pub fn would_reject(&self) -> Option<SubmitError> {
        let mut inbox = self.inbox();
        let error = self.check_queue(&inbox).err();
        inbox.rejected += u64::from(error.is_some());
        error
    }

    fn check_queue(&self, inbox: &Inbox) -> Result<(), SubmitError> {
        if inbox.closing.is_some() || inbox.thread_ended {
            return Err(SubmitError::Draining);
        }
        let status = &inbox.status;
        let max_sequences = self.capacity.max_sequences as usize;
        let free = max_sequences.saturating_sub(status.prefilling + status.decoding);
        if status.waiting + inbox.arrived.len() < self.options.queue_capacity + free {
            return Ok(());
        }
        // With a full batch a request finishes this often, by the mean latency so far.
        let interval = status.request_latency.mean().unwrap_or_default() / self.capacity.max_sequences.max(1);
        Err(SubmitError::QueueFull { retry_after: interval.clamp(MIN_RETRY, MAX_RETRY) })
    }

    pub fn status(&self) -> Status {
        let inbox = self.inbox();
        let waiting = inbox.status.waiting + inbox.arrived.len();
        let draining = inbox.closing.is_some() || inbox.thread_ended;
        Status { waiting, draining, rejected: inbox.rejected, ..inbox.status.clone() }
    }

    pub fn recent(&self) -> RecentStats {
        self.inbox().history.recent(Instant::now())
    }

    /// Requests a device probe. The channel is closed without a message if the device does not respond.
    pub fn probe(&self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut inbox = self.inbox();
        if !inbox.thread_ended {
            inbox.probes.push(sender);
        }
        drop(inbox);
        self.changed.notify_all();
        receiver
    }

    /// Rejects new requests from now on. Those already submitted may run until `deadline`.
    pub fn close(&self, deadline: Instant) {
        let mut inbox = self.inbox();
        inbox.closing = Some(inbox.closing.map_or(deadline, |earlier| earlier.min(deadline)));
        drop(inbox);
        self.changed.notify_all();
    }

    /// Called when the engine thread ends, also by a panic. Dropping the senders ends the streams and probes
    /// that are still in the inbox.
    pub fn thread_ended(&self) {
        let mut inbox = self.inbox();
        inbox.thread_ended = true;
        inbox.arrived.clear();
        inbox.probes.clear();
        drop(inbox);
        self.changed.notify_all();
    }
}
