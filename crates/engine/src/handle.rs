//! The handle that requests are given to.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use tokio::sync::{mpsc::unbounded_channel, oneshot};

use crate::{Backend, Capacity, EventStream, Request, Status, SubmitError, job::Job, schedule::Scheduler};

/// What can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Requests that may wait, beside those that there are free sequences for.
    pub queue_capacity: usize,
    /// How long those who write may wait for chunks of others' prompts, and one who reads for another that is read in the same step.
    pub mixed_step_budget: Duration,
    /// How long a chunk may take when nobody writes: a longer one reads faster, but a request that comes then waits for it. At least as
    /// long as `mixed_step_budget`.
    pub prefill_step_budget: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queue_capacity: 64,
            mixed_step_budget: Duration::from_millis(100),
            prefill_step_budget: Duration::from_millis(400),
        }
    }
}

/// What the handles and the engine's thread share.
pub(crate) struct Shared {
    pub capacity: Capacity,
    pub options: Options,
    inbox: Mutex<Inbox>,
    /// Something came in, or the thread has ended.
    changed: Condvar,
}

/// What has come in since the last round, and how things stood after it.
pub(crate) struct Inbox {
    pub arrived: Vec<Job>,
    /// Those who ask whether the device answers.
    pub probes: Vec<oneshot::Sender<()>>,
    pub status: Status,
    /// When what is not done then is ended. Nothing new is taken.
    pub closing: Option<Instant>,
    /// The thread is over.
    ended: bool,
    taken: u64,
    rejected: u64,
}

impl Shared {
    pub fn new(capacity: Capacity, options: Options) -> Self {
        let inbox = Inbox {
            arrived: vec![],
            probes: vec![],
            status: Status::default(),
            closing: None,
            ended: false,
            taken: 0,
            rejected: 0,
        };
        Self { capacity, options, inbox: Mutex::new(inbox), changed: Condvar::new() }
    }

    pub fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // Whoever panics with it has changed one thing or nothing.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until something came in.
    pub fn wait<'a>(&self, inbox: MutexGuard<'a, Inbox>) -> MutexGuard<'a, Inbox> {
        self.changed.wait(inbox).unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, but no longer than this.
    pub fn wait_within<'a>(&self, inbox: MutexGuard<'a, Inbox>, within: Duration) -> MutexGuard<'a, Inbox> {
        self.changed.wait_timeout(inbox, within).unwrap_or_else(PoisonError::into_inner).0
    }

    pub fn submit(&self, request: Request) -> Result<EventStream, SubmitError> {
        let checked = request.check(&self.capacity);
        let mut inbox = self.inbox();
        if let Err(refused) = checked.and_then(|()| self.room(&inbox)) {
            inbox.rejected += 1;
            return Err(refused);
        }
        let (events, answer) = unbounded_channel();
        let enough = Arc::default();
        let job = Job::new(inbox.taken, request, events, Arc::clone(&enough));
        inbox.taken += 1;
        inbox.arrived.push(job);
        drop(inbox);
        self.changed.notify_all();
        Ok(EventStream::new(answer, enough))
    }

    /// Whether one more can be taken.
    fn room(&self, inbox: &Inbox) -> Result<(), SubmitError> {
        if inbox.closing.is_some() || inbox.ended {
            return Err(SubmitError::Draining);
        }
        let status = &inbox.status;
        let sequences = self.capacity.max_sequences as usize;
        let free = sequences.saturating_sub(status.prefilling + status.decoding);
        if status.waiting + inbox.arrived.len() < self.options.queue_capacity + free {
            return Ok(());
        }
        // So often one of those under way ends, as far as is known.
        let each = status.request_latency.mean().unwrap_or_default() / self.capacity.max_sequences.max(1);
        Err(SubmitError::QueueFull { retry_after: each.clamp(RETRY[0], RETRY[1]) })
    }

    fn status(&self) -> Status {
        let inbox = self.inbox();
        let waiting = inbox.status.waiting + inbox.arrived.len();
        let draining = inbox.closing.is_some() || inbox.ended;
        Status { waiting, draining, rejected: inbox.rejected, ..inbox.status.clone() }
    }

    /// Asks whether the device answers. Without an answer to come the channel is closed.
    fn probe(&self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut inbox = self.inbox();
        if !inbox.ended {
            inbox.probes.push(sender);
        }
        drop(inbox);
        self.changed.notify_all();
        receiver
    }

    /// Takes nothing more, and lets what was taken go on until then.
    fn close(&self, until: Instant) {
        let mut inbox = self.inbox();
        inbox.closing = Some(inbox.closing.map_or(until, |before| before.min(until)));
        drop(inbox);
        self.changed.notify_all();
    }
}

/// A client asks no more often than each second, and no more seldom than each minute.
const RETRY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Says that the thread has ended, however it did.
struct Thread(Arc<Shared>);

impl Drop for Thread {
    fn drop(&mut self) {
        let mut inbox = self.0.inbox();
        inbox.ended = true;
        // Without an answer from here, who waits for one is told by the end of the stream.
        inbox.arrived.clear();
        inbox.probes.clear();
        drop(inbox);
        self.0.changed.notify_all();
    }
}

/// Stops the engine when the last handle is gone.
struct Handles(Arc<Shared>);

impl Drop for Handles {
    fn drop(&mut self) {
        self.0.close(Instant::now());
    }
}

/// A handle to the engine, cheap to clone. The engine stops when the last one is dropped.
#[derive(Clone)]
pub struct Engine {
    handles: Arc<Handles>,
}

impl Engine {
    /// Starts the thread that owns the backend.
    pub fn start<B: Backend>(backend: B, options: Options) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::new(backend.capacity(), options));
        let scheduler = Scheduler::new(backend, shared.clone());
        let thread = Thread(shared.clone());
        thread::Builder::new().name("engine".into()).spawn(move || {
            let _thread = thread;
            scheduler.run();
        })?;
        Ok(Self { handles: Arc::new(Handles(shared)) })
    }

    /// What its backend was made for.
    pub fn capacity(&self) -> Capacity {
        self.shared().capacity
    }

    /// Takes a request, or says at once why not.
    pub fn submit(&self, request: Request) -> Result<EventStream, SubmitError> {
        self.shared().submit(request)
    }

    /// Why nothing would be taken now, whatever it were: for those who would have to do something before they can ask. It counts as a
    /// refusal.
    pub fn would_reject(&self) -> Option<SubmitError> {
        let mut inbox = self.shared().inbox();
        let refused = self.shared().room(&inbox).err();
        inbox.rejected += u64::from(refused.is_some());
        refused
    }

    /// How things stand.
    pub fn status(&self) -> Status {
        self.shared().status()
    }

    /// Whether the device does something that it is asked for, after the step that is under way. A device that was lost while nobody
    /// used it is found by this, and put back.
    pub async fn probe(&self) -> bool {
        self.shared().probe().await.is_ok()
    }

    /// Takes nothing more, lets what was taken be done, and ends; what is not done within this time fails with `Stopped`. Returns when the
    /// engine's thread has given its backend back; until then it blocks, for a step longer at most.
    pub fn drain(&self, within: Duration) {
        let now = Instant::now();
        // Longer than a clock can say is a year.
        self.shared().close(now.checked_add(within).unwrap_or(now + YEAR));
        let mut inbox = self.shared().inbox();
        while !inbox.ended {
            inbox = self.shared().wait(inbox);
        }
    }

    /// Waits for the engine's thread to end, without keeping it from that; says whether nobody had asked it to, which is a bug of its own.
    pub fn watch_exit(&self) -> impl FnOnce() -> bool + Send + use<> {
        let shared = self.handles.0.clone();
        move || {
            let mut inbox = shared.inbox();
            while !inbox.ended {
                inbox = shared.wait(inbox);
            }
            inbox.closing.is_none()
        }
    }

    /// Ends now: what was taken fails with `Stopped`.
    pub fn stop(&self) {
        self.drain(Duration::ZERO);
    }

    fn shared(&self) -> &Shared {
        &self.handles.0
    }
}

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
