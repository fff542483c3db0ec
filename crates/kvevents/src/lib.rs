//! KV events: tells routers what a server has in its prefix cache, so that they can send requests to the server that has
//! the longest prefix of a prompt. The format is vLLM's, over ZeroMQ's protocol, so that routers made for it understand it.
//!
//! ```text
//!  engine thread                          thread "kv-events"
//!  prefix tree ─▶ PageEventQueue ─▶ Blocks ─▶ Batch ─┬─▶ History ─▶ replay connections (ROUTER)
//!                 (bounded)         (hashes)         └─▶ a bounded queue per subscriber ─▶ event connections (PUB)
//! ```
//!
//! - The engine's part is to push a change of the prefix tree into a queue: it never waits for subscribers. If the queue
//!   overflows, all blocks are published anew after `AllBlocksCleared`.
//! - A block is a full page of tokens, and its hash one of all tokens up to its end, the same on every server of a model.
//!   Pages with images are not published, nor what follows them.
//! - A subscriber that does not read is disconnected when its queue is full. It can connect again and ask for a replay.
//! - When the publisher ends, subscribers get the last events, then the end of the stream; the wait for that is bounded.
//!
//! | module | contents |
//! |---|---|
//! | `blocks` | changes of the prefix tree as events |
//! | `event`, `msgpack` | batches of events and their bytes |
//! | `history` | published batches, for replays |
//! | `zmtp` | ZeroMQ's protocol, without a network |
//! | `connection`, `server` | event and replay connections |
//!
//! docs/scale-out.md describes it for users.

mod blocks;
mod connection;
mod event;
mod history;
mod msgpack;
mod server;
mod zmtp;

use std::{
    fmt, io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use model::pages::PageEventQueue;
use tokio::sync::Notify;

use history::HistoryLimits;
use server::Shared;

/// Where and as what events are published.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address of the socket that publishes events.
    pub events: SocketAddr,
    /// Address of the socket that answers replays.
    pub replay: Option<SocketAddr>,
    /// First frame of each message, by which subscribers choose.
    pub topic: String,
    /// Name of the model, on which the hashes of blocks depend.
    pub model: String,
    /// Limits that tests lower.
    pub limits: Limits,
}

/// Limits of what is kept and of how many connect.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Batches kept for replays.
    pub replay_batches: usize,
    /// Blocks in the events of those batches.
    pub replay_blocks: usize,
    /// Batches that wait for a subscriber before it is disconnected.
    pub high_water_mark: usize,
    /// Connections per socket.
    pub connections: usize,
    /// Time for subscribers to take the last events when the publisher is dropped.
    pub flush_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            replay_batches: 10_000,
            // About 30 MB.
            replay_blocks: 100_000,
            high_water_mark: 1000,
            connections: 64,
            flush_timeout: Duration::from_millis(500),
        }
    }
}

/// An address that cannot be used.
#[derive(Debug)]
pub struct StartError {
    /// The address; `None` if the thread could not be started.
    pub address: Option<SocketAddr>,
    /// Why.
    pub error: io::Error,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => {
                write!(f, "cannot listen for subscribers of KV events on {address}: {}", self.error)
            }
            None => write!(f, "cannot start the thread that publishes KV events: {}", self.error),
        }
    }
}

impl std::error::Error for StartError {}

/// Counters and gauges of a [`Publisher`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Batches published so far: the sequence number of the next one.
    pub batches: u64,
    /// Whether changes of the prefix cache have not been published yet.
    pub pending: bool,
    /// Connected subscribers.
    pub subscribers: u64,
    /// Subscribers disconnected because they did not keep up.
    pub dropped_subscribers: u64,
    /// Times that the queue of events was full.
    pub overflows: u64,
}

/// Reads the counters of a [`Publisher`]. Clones share it.
#[derive(Clone)]
pub struct Monitor(Arc<Shared>);

impl Monitor {
    /// The counters now.
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }
}

/// Publishes the events of a queue. Dropping it publishes what is left, sends it to the subscribers, and closes all
/// connections. A subscriber that does not read delays that by at most [`Limits::flush_timeout`].
pub struct Publisher {
    shared: Arc<Shared>,
    events: SocketAddr,
    replay: Option<SocketAddr>,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Publisher {
    /// Starts to listen and to publish, on a thread of its own.
    pub fn start(options: Options, queue: PageEventQueue) -> Result<Publisher, StartError> {
        let listen = |address: SocketAddr| {
            let listener = TcpListener::bind(address).and_then(|listener| {
                listener.set_nonblocking(true)?;
                Ok((listener.local_addr()?, listener))
            });
            listener.map_err(|error| StartError { address: Some(address), error })
        };
        let (events, event_listener) = listen(options.events)?;
        let (replay, replay_listener) = options.replay.map(listen).transpose()?.unzip();
        let failed = |error| StartError { address: None, error };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let Limits { replay_batches: batches, replay_blocks: blocks, .. } = options.limits;
        let history = HistoryLimits { batches, blocks };
        let shared = Arc::new(Shared::new(options.topic, options.limits, history, queue));
        let stop = Arc::<Notify>::default();
        let work = {
            let (shared, stop) = (shared.clone(), stop.clone());
            move || {
                let run = server::run(shared, options.model, event_listener, replay_listener, stop);
                if let Err(error) = runtime.block_on(run) {
                    tracing::error!("KV events are not published any more: {error}");
                }
            }
        };
        let thread = std::thread::Builder::new().name("kv-events".into()).spawn(work).map_err(failed)?;
        Ok(Publisher { shared, events, replay, stop, thread: Some(thread) })
    }

    /// The address of the socket that publishes events.
    pub fn events_address(&self) -> SocketAddr {
        self.events
    }

    /// The address of the socket that answers replays.
    pub fn replay_address(&self) -> Option<SocketAddr> {
        self.replay
    }

    /// First frame of each message.
    pub fn topic(&self) -> &str {
        self.shared.topic()
    }

    /// Reads its counters.
    pub fn monitor(&self) -> Monitor {
        Monitor(self.shared.clone())
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.stop.notify_one();
        // A panic was reported by its hook.
        self.thread.take().map(JoinHandle::join);
    }
}
