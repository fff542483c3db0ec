//! The publisher's thread: takes changes of the prefix tree, publishes them, and serves connections.

use std::{
    collections::BTreeMap,
    future::Future,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use model::pages::PageEventQueue;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream, tcp::OwnedWriteHalf},
    sync::{Notify, Semaphore, mpsc, watch},
    task::AbortHandle,
    time::{sleep, timeout},
};

use crate::{
    Limits, Stats,
    blocks::{Blocks, split},
    connection::{End, handshake},
    event::{Batch, KvEvent},
    history::{History, HistoryLimits},
    zmtp::{self, Change, Command, Received, SocketType, Violation},
};

/// Time after a change for which further ones are collected: a step changes several pages.
const BATCH_DELAY: Duration = Duration::from_millis(2);

/// Maximum time for a client to take a part of its replay.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of subscriptions of a connection.
const MAX_SUBSCRIPTIONS: usize = 1024;

/// Pause after a connection could not be accepted: the process has too many files open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Replays that are made and sent at the same time: each may hold all blocks.
const MAX_REPLAYS: usize = 4;

/// Maximum number of empty batches before a summary. Routers refuse a replay that does not begin with the number that they
/// asked for, or that has a gap.
const MAX_EMPTY_BATCHES: u64 = 1_000_000;

/// Bytes of empty batches that are sent at once.
const EMPTY_BATCHES_BYTES: usize = 1 << 16;

/// Sequence number of the end of a replay: -1.
const END_OF_REPLAY: u64 = u64::MAX;

/// What the publisher and its connections share.
pub(crate) struct Shared {
    topic: String,
    limits: Limits,
    queue: PageEventQueue,
    history: Mutex<History>,
    replays: Semaphore,
    subscribers: Mutex<BTreeMap<u64, Subscriber>>,
    /// Signalled when one leaves.
    left: Notify,
    /// Whether the publisher ends: subscribers get what was published, and the end of the stream.
    is_closing: watch::Sender<bool>,
    /// Whether events have been taken from the queue that are not published yet.
    is_publishing: AtomicBool,
    dropped_subscribers: AtomicU64,
    overflows: AtomicU64,
    said: Said,
}

/// What has been said once, at the level of a warning.
#[derive(Default)]
struct Said {
    overflow: AtomicBool,
    slow: AtomicBool,
    violation: AtomicBool,
    too_many: AtomicBool,
}

/// A connection that may have subscribed to the topic.
struct Subscriber {
    /// Whether one of its subscriptions is a prefix of the topic.
    is_subscribed: Arc<AtomicBool>,
    messages: mpsc::Sender<Arc<[u8]>>,
    connection: AbortHandle,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this is the first time.
fn is_first(said: &AtomicBool) -> bool {
    !said.swap(true, Ordering::Relaxed)
}

impl Shared {
    pub(crate) fn new(topic: String, limits: Limits, history: HistoryLimits, queue: PageEventQueue) -> Self {
        Self {
            topic,
            limits,
            queue,
            history: Mutex::new(History::new(history)),
            replays: Semaphore::new(MAX_REPLAYS),
            subscribers: Mutex::default(),
            left: Notify::new(),
            is_closing: watch::Sender::new(false),
            is_publishing: AtomicBool::new(false),
            dropped_subscribers: AtomicU64::new(0),
            overflows: AtomicU64::new(0),
            said: Said::default(),
        }
    }

    pub(crate) fn topic(&self) -> &str {
        &self.topic
    }

    pub(crate) fn stats(&self) -> Stats {
        // In this order: what is taken from the queue is being published before it is gone from there.
        let is_queued = !self.queue.is_empty();
        let pending = is_queued || self.is_publishing.load(Ordering::SeqCst);
        Stats {
            batches: locked(&self.history).next(),
            pending,
            subscribers: locked(&self.subscribers).len() as u64,
            dropped_subscribers: self.dropped_subscribers.load(Ordering::Relaxed),
            overflows: self.overflows.load(Ordering::Relaxed),
        }
    }

    /// Publishes what has changed.
    async fn publish(&self, blocks: &mut Blocks) {
        self.is_publishing.store(true, Ordering::SeqCst);
        let taken = self.queue.take();
        if taken.overflowed {
            self.overflows.fetch_add(1, Ordering::Relaxed);
            if is_first(&self.said.overflow) {
                tracing::warn!(
                    "the prefix cache changed faster than KV events could be published: all blocks are republished \
                     (logged once; see indrik_kv_events_overflows_total)"
                );
            }
        }
        for events in split(blocks.convert(taken.events)) {
            self.publish_batch(events);
            // Others use this thread, too.
            tokio::task::yield_now().await;
        }
        self.is_publishing.store(false, Ordering::SeqCst);
    }

    fn publish_batch(&self, events: Vec<KvEvent>) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let batch = locked(&self.history).push(events, now.as_secs_f64());
        let mut subscribers = locked(&self.subscribers);
        if !subscribers.values().any(|subscriber| subscriber.is_subscribed.load(Ordering::Relaxed)) {
            return;
        }
        let sequence = batch.sequence.to_be_bytes();
        let message = zmtp::message(&[self.topic.as_bytes(), &sequence, &batch.encode()]);
        let message: Arc<[u8]> = message.into();
        subscribers.retain(|_, Subscriber { is_subscribed, messages, connection }| {
            if !is_subscribed.load(Ordering::Relaxed) {
                return true;
            }
            match messages.try_send(message.clone()) {
                Ok(()) => true,
                Err(mpsc::error::TrySendError::Closed(_)) => false,
                Err(mpsc::error::TrySendError::Full(_)) => {
                    connection.abort();
                    self.dropped_subscribers.fetch_add(1, Ordering::Relaxed);
                    if is_first(&self.said.slow) {
                        tracing::warn!(
                            "a subscriber of KV events was disconnected: it did not read {} batches (logged once; see \
                             indrik_kv_events_dropped_subscribers_total)",
                            self.limits.high_water_mark
                        );
                    }
                    false
                }
            }
        });
    }

    /// Sends subscribers what was published, and the end of the stream. Waits until they have closed their connections,
    /// but not for long.
    async fn close(&self) {
        self.is_closing.send_replace(true);
        let all_left = async {
            while !locked(&self.subscribers).is_empty() {
                self.left.notified().await;
            }
        };
        if timeout(self.limits.flush_timeout, all_left).await.is_err() {
            let left = locked(&self.subscribers).len();
            tracing::debug!("{left} subscribers of KV events have not taken the last ones in time");
        }
    }

    /// Says why a connection ended, if its peer is to blame.
    fn report(&self, peer: SocketAddr, socket: &str, end: &End) {
        match end {
            End::Closed => {}
            End::Violation(_) | End::Timeout if is_first(&self.said.violation) => {
                tracing::warn!(
                    "closed a connection from {peer} to the socket for {socket}: {end} (logged once; further ones at debug \
                     level)"
                );
            }
            End::Violation(_) | End::Timeout => {
                tracing::debug!("closed a connection from {peer} to the socket for {socket}: {end}");
            }
        }
    }
}

/// Publishes until it is stopped.
pub(crate) async fn run(
    shared: Arc<Shared>,
    model: String,
    events: std::net::TcpListener,
    replay: Option<std::net::TcpListener>,
    stop: Arc<Notify>,
) -> io::Result<()> {
    let changed = Arc::<Notify>::default();
    shared.queue.on_event({
        let changed = changed.clone();
        move || changed.notify_one()
    });
    tokio::spawn(accept(TcpListener::from_std(events)?, shared.clone(), "KV events", subscribe));
    if let Some(replay) = replay {
        tokio::spawn(accept(
            TcpListener::from_std(replay)?,
            shared.clone(),
            "replays of KV events",
            answer_replays,
        ));
    }
    let mut blocks = Blocks::new(&model);
    // What was there before `on_event`.
    changed.notify_one();
    loop {
        tokio::select! {
            () = changed.notified() => sleep(BATCH_DELAY).await,
            () = stop.notified() => break,
        }
        shared.publish(&mut blocks).await;
    }
    shared.publish(&mut blocks).await;
    shared.close().await;
    Ok(())
}

/// Accepts connections and serves each with `serve`.
async fn accept<F: Future<Output = End> + Send + 'static>(
    listener: TcpListener,
    shared: Arc<Shared>,
    socket: &'static str,
    serve: fn(TcpStream, Arc<Shared>) -> F,
) {
    let places = Arc::new(Semaphore::new(shared.limits.connections));
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            if is_first(&shared.said.too_many) {
                tracing::warn!(
                    "refused a connection from {peer} for {socket}: the limit of {} connections is reached (logged once)",
                    shared.limits.connections
                );
            }
            continue;
        };
        let shared = shared.clone();
        tokio::spawn(async move {
            let end = serve(stream, shared.clone()).await;
            shared.report(peer, socket, &end);
            drop(place);
        });
    }
}

/// Forgets a subscriber when its connection ends.
struct Registration {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        locked(&self.shared.subscribers).remove(&self.id);
        self.shared.left.notify_one();
    }
}

async fn subscribe(stream: TcpStream, shared: Arc<Shared>) -> End {
    serve_subscriber(stream, shared).await.err().unwrap_or(End::Closed)
}

/// Sends batches to a subscriber, and follows its subscriptions.
async fn serve_subscriber(stream: TcpStream, shared: Arc<Shared>) -> Result<(), End> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let (mut reader, writer) = handshake(stream, SocketType::Pub).await?;
    let (sender, messages) = mpsc::channel::<Arc<[u8]>>(shared.limits.high_water_mark);
    let is_subscribed = Arc::new(AtomicBool::new(false));
    let mut write = tokio::spawn(send(messages, writer, shared.is_closing.subscribe()));
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let subscriber = Subscriber {
        is_subscribed: is_subscribed.clone(),
        messages: sender.clone(),
        connection: write.abort_handle(),
    };
    locked(&shared.subscribers).insert(id, subscriber);
    let registration = Registration { shared: shared.clone(), id };
    let read = async {
        let mut subscriptions: Vec<Vec<u8>> = vec![];
        loop {
            let change = match reader.next().await? {
                Received::Message(frames) => Change::of_message(frames),
                Received::Command(Command::Subscribe(topic)) => Some(Change::Subscribe(topic)),
                Received::Command(Command::Cancel(topic)) => Some(Change::Cancel(topic)),
                Received::Command(Command::Ping(context)) => {
                    // With batches waiting, the peer hears from this side anyway.
                    let _ = sender.try_send(zmtp::pong(&context).into());
                    None
                }
                Received::Command(Command::Ready { .. }) => return Err(Violation::Handshake.into()),
                Received::Command(Command::Other) => None,
            };
            let topic = shared.topic.as_bytes();
            match change {
                // No other subscription can ever match: it takes no memory.
                Some(Change::Subscribe(other) | Change::Cancel(other)) if !topic.starts_with(&other) => {
                    continue;
                }
                Some(Change::Subscribe(_)) if subscriptions.len() == MAX_SUBSCRIPTIONS => {
                    return Err(End::Violation(Violation::TooManySubscriptions));
                }
                Some(Change::Subscribe(topic)) => subscriptions.push(topic),
                // One that was made twice must be cancelled twice.
                Some(Change::Cancel(topic)) => {
                    if let Some(index) = subscriptions.iter().position(|subscribed| *subscribed == topic) {
                        subscriptions.swap_remove(index);
                    }
                }
                None => continue,
            }
            is_subscribed.store(!subscriptions.is_empty(), Ordering::Relaxed);
        }
    };
    let abort = write.abort_handle();
    tokio::pin!(read);
    let end = tokio::select! {
        end = &mut read => end,
        written = &mut write => match written {
            // The publisher ends. Until the peer has closed its side, what it sends is still read: the system drops what
            // it has not sent yet if a connection is closed with unread bytes.
            Ok(Ok(())) => read.await,
            // The network failed, or it was too slow.
            Ok(Err(_)) | Err(_) => Err(End::Closed),
        },
    };
    drop(registration);
    abort.abort();
    end
}

/// Sends messages to a subscriber until the publisher ends; then those that are left, and the end of the stream.
async fn send(
    mut messages: mpsc::Receiver<Arc<[u8]>>,
    mut writer: OwnedWriteHalf,
    mut is_closing: watch::Receiver<bool>,
) -> io::Result<()> {
    let closing = async {
        // An error means that the publisher is gone.
        let _ = is_closing.wait_for(|is_closing| *is_closing).await;
    };
    tokio::pin!(closing);
    loop {
        tokio::select! {
            message = messages.recv() => match message {
                Some(message) => writer.write_all(&message).await?,
                None => break,
            },
            () = &mut closing => break,
        }
    }
    messages.close();
    while let Some(message) = messages.recv().await {
        writer.write_all(&message).await?;
    }
    writer.shutdown().await
}

async fn answer_replays(stream: TcpStream, shared: Arc<Shared>) -> End {
    serve_replays(stream, shared).await.err().unwrap_or(End::Closed)
}

/// Answers a client's requests for batches from some sequence number on.
async fn serve_replays(stream: TcpStream, shared: Arc<Shared>) -> Result<(), End> {
    let (mut reader, mut writer) = handshake(stream, SocketType::Router).await?;
    loop {
        let answer = match reader.next().await? {
            Received::Message(request) => Replay::of(&request)?,
            Received::Command(Command::Ping(context)) => {
                writer.write_all(&zmtp::pong(&context)).await?;
                continue;
            }
            Received::Command(Command::Other) => continue,
            Received::Command(_) => return Err(Violation::Malformed.into()),
        };
        // Never closed.
        let Ok(_place) = shared.replays.acquire().await else { return Err(End::Closed) };
        let topic = shared.topic.as_bytes();
        let batches = locked(&shared.history).since(answer.from);
        if let Some(first) = batches.first()
            && first.sequence.saturating_sub(answer.from) <= MAX_EMPTY_BATCHES
        {
            let empty = Batch { sequence: 0, time: first.time, events: vec![] }.encode();
            let mut messages = vec![];
            for sequence in answer.from..first.sequence {
                messages.extend(answer.message(topic, sequence, &empty));
                if messages.len() >= EMPTY_BATCHES_BYTES || sequence + 1 == first.sequence {
                    timeout(REPLAY_TIMEOUT, writer.write_all(&messages))
                        .await
                        .map_err(|_| End::Timeout)??;
                    messages.clear();
                }
            }
        }
        for batch in batches {
            let message = answer.message(topic, batch.sequence, &batch.encode());
            timeout(REPLAY_TIMEOUT, writer.write_all(&message)).await.map_err(|_| End::Timeout)??;
        }
        let end = answer.message(b"", END_OF_REPLAY, b"");
        timeout(REPLAY_TIMEOUT, writer.write_all(&end)).await.map_err(|_| End::Timeout)??;
    }
}

/// A request for a replay.
struct Replay {
    /// The first sequence number that is asked for.
    from: u64,
    /// Whether an empty frame came first, as from a REQ socket. The answer has one, too.
    has_delimiter: bool,
}

impl Replay {
    fn of(request: &[Vec<u8>]) -> Result<Replay, Violation> {
        let (number, has_delimiter) = match request {
            [number] => (number, false),
            [delimiter, number] if delimiter.is_empty() => (number, true),
            _ => return Err(Violation::Malformed),
        };
        let number = <[u8; 8]>::try_from(&number[..]).map_err(|_| Violation::Malformed)?;
        Ok(Replay { from: u64::from_be_bytes(number), has_delimiter })
    }

    fn message(&self, topic: &[u8], sequence: u64, payload: &[u8]) -> Vec<u8> {
        let frames = [b"", topic, &sequence.to_be_bytes(), payload];
        zmtp::message(if self.has_delimiter { &frames } else { &frames[1..] })
    }
}
