//! The open connections: which of them give way when there are too many.
//!
//! A connection that does nothing must not keep others out. When the limit is reached, one is closed to make room, in
//! this order of preference: the one that has been silent for longest, idle between requests for longest, sending
//! headers for longest, sending a body without progress for longest, and the one whose client has gone longest without
//! reading its response. At most the limit of complete requests is handled; a few more connections are reserved for
//! probes (`/health`, `/ready`, `/metrics`) and monitors, so that a busy server does not look dead.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use axum::http::Version;
use rustix::net::RecvFlags;
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::budget::{GRACE, PROGRESS_BYTES};
use crate::stats::MAX_STREAMS;

/// Connections beyond the limit, for probes and for streams of statistics, which stay open.
const EXTRA_CONNECTIONS: usize = 16 + MAX_STREAMS;

/// Time after which a client that does not read its response may be dropped for another.
const STALL_GRACE: Duration = Duration::from_secs(5);

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Activity {
    /// Open, but no byte has arrived.
    Silent,
    /// Between requests.
    Idle,
    /// A part of the headers has arrived.
    Headers,
    /// A part of the body has arrived.
    Body,
    /// A request is being handled.
    Busy,
}

impl Activity {
    /// How long a connection may do this before it may be closed for another; `None`: as long as it takes.
    fn grace(self) -> Option<Duration> {
        match self {
            // Bytes of a connection that was just opened may not have been read yet.
            Activity::Silent | Activity::Idle | Activity::Headers | Activity::Body => Some(GRACE),
            Activity::Busy => None,
        }
    }
}

#[derive(Debug)]
struct State {
    activity: Activity,
    since: Instant,
    /// Length of the body when `since` was last set.
    body_bytes: usize,
    /// Since when writes to the client are blocked.
    stalled: Option<Instant>,
    /// Whether a 1xx response may be sent: nothing of the response has been written, and the client knows HTTP/1.1.
    allows_interim_response: bool,
    /// Whether the request is complete, and counted.
    is_handled: bool,
    /// Whether the body waits for memory.
    waits_for_memory: bool,
}

impl State {
    /// Order in which connections are closed, and the time until this one may be; `None`: never.
    fn eviction(&self) -> Option<((u8, Instant), Duration)> {
        let (rank, since, grace) = match (self.stalled, self.activity) {
            (Some(since), _) => (u8::MAX, since, STALL_GRACE),
            (None, Activity::Body) if self.waits_for_memory => return None,
            (None, activity) => (activity as u8, self.since, activity.grace()?),
        };
        Some(((rank, since), grace.saturating_sub(since.elapsed())))
    }
}

/// An open connection. Clones refer to the same one.
#[derive(Clone)]
pub(crate) struct Connection {
    id: u64,
    /// Weak: the socket is closed when its task ends, whoever else still knows the connection.
    stream: Weak<TcpStream>,
    state: Arc<Mutex<State>>,
    /// Signalled when the connection must be closed for another.
    eviction: Arc<Notify>,
    /// Signalled when a request begins.
    begin: Arc<Notify>,
    connections: Arc<Connections>,
}

impl Connection {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, activity: Activity) {
        let mut state = self.lock();
        state.activity = activity;
        state.since = Instant::now();
        state.body_bytes = 0;
    }

    /// The headers of a request are complete.
    pub(crate) fn begin(&self, version: Version) -> ActiveRequest {
        self.set(Activity::Busy);
        let mut state = self.lock();
        // Bytes of the previous response may not have been written yet.
        state.allows_interim_response = version >= Version::HTTP_11 && state.stalled.is_none();
        drop(state);
        self.begin.notify_one();
        ActiveRequest(self.clone())
    }

    /// Bytes have arrived.
    pub(crate) fn bytes_arrived(&self) {
        if matches!(self.lock().activity, Activity::Silent | Activity::Idle) {
            self.set(Activity::Headers);
        }
    }

    /// Whether the client has begun a request that a busy machine has not come to read yet.
    fn has_unread_request(&self) -> bool {
        let state = self.lock();
        if state.stalled.is_some() || !matches!(state.activity, Activity::Silent | Activity::Idle) {
            return false;
        }
        drop(state);
        let Some(stream) = self.stream.upgrade() else { return false };
        let peeked = rustix::net::recv(&*stream, &mut [0_u8], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        peeked.is_ok_and(|(count, _)| count > 0)
    }

    /// The body of a request is being received.
    pub(crate) fn receiving(&self) {
        self.set(Activity::Body);
    }

    /// The body has this length by now.
    pub(crate) fn advanced(&self, length: usize) {
        let mut state = self.lock();
        if length >= state.body_bytes + PROGRESS_BYTES {
            state.since = Instant::now();
            state.body_bytes = length;
        }
    }

    /// The body is complete, or given up.
    pub(crate) fn received(&self) {
        self.set(Activity::Busy);
        self.begin.notify_one();
    }

    /// The body waits for memory, not for its client; or no longer.
    pub(crate) fn set_waiting(&self, waits: bool) {
        let mut state = self.lock();
        if state.waits_for_memory != waits {
            state.waits_for_memory = waits;
            state.since = Instant::now();
        }
    }

    /// The request is complete and will be handled. False if all connections that requests may hold are in use.
    pub(crate) fn handle(&self) -> bool {
        let mut table = self.connections.lock();
        if table.requests >= self.connections.max_requests {
            return false;
        }
        table.requests += 1;
        self.lock().is_handled = true;
        true
    }

    /// Writes to the client are blocked.
    pub(crate) fn stalled(&self) {
        self.lock().stalled.get_or_insert_with(Instant::now);
    }

    /// A part of a response has been written.
    pub(crate) fn written(&self) {
        let mut state = self.lock();
        state.stalled = None;
        // While a body is being received, only `100 Continue` is written.
        if state.activity != Activity::Body {
            state.allows_interim_response = false;
        }
    }

    /// Whether a request is being handled, and a 1xx response may be sent.
    pub(crate) fn allows_interim_response(&self) -> bool {
        self.is_handling() && self.lock().allows_interim_response
    }

    /// Whether a request is being handled.
    pub(crate) fn is_handling(&self) -> bool {
        self.lock().activity == Activity::Busy
    }

    /// Waits until the connection must be closed for another.
    pub(crate) async fn evicted(&self) {
        self.eviction.notified().await;
    }

    /// Waits until a request begins.
    pub(crate) async fn began(&self) {
        self.begin.notified().await;
    }
}

/// All open connections.
pub(crate) struct Connections {
    /// Maximum number of requests being handled.
    max_requests: usize,
    table: Mutex<Table>,
    /// Signalled when a connection is closed or a request ends.
    changed: Notify,
}

#[derive(Default)]
struct Table {
    next_id: u64,
    open: BTreeMap<u64, Connection>,
    /// Requests being handled: complete, and without their whole response sent. Probes do not count.
    requests: usize,
}

impl Connections {
    pub(crate) fn new(max_requests: usize) -> Connections {
        Connections { max_requests, table: Mutex::default(), changed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is room for one more connection, closing another if necessary.
    pub(crate) async fn room(&self) {
        loop {
            let changed = self.changed.notified();
            let wait = {
                let mut table = self.lock();
                if table.open.len() < self.max_requests + EXTRA_CONNECTIONS {
                    return;
                }
                match table.evict() {
                    None => return,
                    Some(wait) => wait,
                }
            };
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Registers an accepted connection.
    pub(crate) fn open(self: &Arc<Self>, stream: &Arc<TcpStream>) -> OpenConnection {
        let mut table = self.lock();
        let id = table.next_id;
        table.next_id += 1;
        let state = State {
            activity: Activity::Silent,
            since: Instant::now(),
            body_bytes: 0,
            stalled: None,
            allows_interim_response: false,
            is_handled: false,
            waits_for_memory: false,
        };
        let connection = Connection {
            id,
            stream: Arc::downgrade(stream),
            state: Arc::new(Mutex::new(state)),
            eviction: Arc::default(),
            begin: Arc::default(),
            connections: self.clone(),
        };
        table.open.insert(id, connection.clone());
        OpenConnection { connections: self.clone(), connection }
    }

    /// Waits until no request is being handled.
    pub(crate) async fn no_requests(&self) {
        loop {
            let changed = self.changed.notified();
            if self.lock().requests == 0 {
                return;
            }
            changed.await;
        }
    }
}

impl Table {
    /// Closes the connection that is first to give way. Returns the time until one may be closed if none may be now.
    fn evict(&mut self) -> Option<Duration> {
        let candidates = self.open.values().filter_map(|connection| {
            let (order, wait) = connection.lock().eviction()?;
            Some((order, wait, connection.id))
        });
        let mut candidates: Vec<_> = candidates.collect();
        candidates.sort_unstable();
        for (_, _, id) in candidates.iter().filter(|(_, wait, _)| wait.is_zero()) {
            if self.open[id].has_unread_request() {
                self.open[id].bytes_arrived();
            } else if let Some(connection) = self.open.remove(id) {
                connection.eviction.notify_one();
                return None;
            }
        }
        let waits = candidates.iter().map(|(_, wait, _)| *wait).filter(|wait| !wait.is_zero());
        Some(waits.min().unwrap_or(GRACE))
    }
}

/// A registered connection; deregistered when dropped.
pub(crate) struct OpenConnection {
    connections: Arc<Connections>,
    pub(crate) connection: Connection,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.connections.lock().open.remove(&self.connection.id);
        self.connections.changed.notify_waiters();
    }
}

/// A request, until its response is written or given up.
pub(crate) struct ActiveRequest(Connection);

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let ActiveRequest(connection) = self;
        connection.set(Activity::Idle);
        let mut table = connection.connections.lock();
        if std::mem::take(&mut connection.lock().is_handled) {
            table.requests -= 1;
        }
        drop(table);
        connection.connections.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::Ipv4Addr;

    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_request_that_nobody_has_read_yet_keeps_its_connection() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(Connections::new(0));
        let mut open = Vec::new();
        for _ in 0..EXTRA_CONNECTIONS {
            let client = std::net::TcpStream::connect(address).unwrap();
            let stream = Arc::new(listener.accept().await.unwrap().0);
            let entry = connections.open(&stream);
            open.push((client, stream, entry));
        }
        open[0].0.write_all(b"G").unwrap();
        connections.room().await;
        let is_open = |index: usize| connections.lock().open.contains_key(&open[index].2.connection.id);
        assert!(is_open(0), "its request was there");
        assert!(!is_open(1), "the next in order of age");
        assert!((2..EXTRA_CONNECTIONS).all(is_open), "one is enough");
        assert_eq!(open[0].2.connection.lock().activity, Activity::Headers);
    }
}
