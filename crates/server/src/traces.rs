//! OpenTelemetry traces: a span per request, sent to a collector with OTLP over HTTP.
//!
//! A request never waits for the collector: its span is put into a bounded queue, and one thread sends what is there. A
//! span that finds the queue full, or that cannot be sent, is dropped and counted.

mod context;
mod otlp;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use engine::Usage;
use ureq::Agent;

pub(crate) use context::{ParentContext, SpanId, TraceId};

/// Spans that wait to be sent.
const QUEUE: usize = 2048;

/// Maximum number of spans per request to the collector.
const BATCH: usize = 256;

/// Time after its first span when a batch is sent.
const BATCH_DELAY: Duration = Duration::from_secs(1);

/// Maximum time of a request to the collector.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// A finished request.
pub(crate) struct Span {
    pub(crate) trace: TraceId,
    pub(crate) id: SpanId,
    pub(crate) parent: Option<SpanId>,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) request_id: String,
    pub(crate) model: String,
    pub(crate) outcome: &'static str,
    pub(crate) usage: Usage,
    pub(crate) started: SystemTime,
    pub(crate) duration: Duration,
    pub(crate) time_to_first_token: Option<Duration>,
}

/// Sends spans to a collector.
pub(crate) struct Traces {
    /// `None` once closed.
    queue: Mutex<Option<SyncSender<Box<Span>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    counts: Arc<Counts>,
}

/// What became of the spans.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) exported: AtomicU64,
    pub(crate) dropped: AtomicU64,
    /// Whether the server is ending, and must not wait for a collector that does not answer.
    is_closing: AtomicBool,
}

impl Traces {
    /// Starts the thread that sends to `endpoint`, the base URL of a collector.
    pub(crate) fn start(endpoint: &str) -> io::Result<Traces> {
        let url = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
        let (queue, spans) = sync_channel(QUEUE);
        let counts = Arc::<Counts>::default();
        let exporter = Exporter::new(url, counts.clone());
        let thread = std::thread::Builder::new().name("traces".into()).spawn(move || exporter.run(&spans))?;
        Ok(Traces { queue: Mutex::new(Some(queue)), thread: Mutex::new(Some(thread)), counts })
    }

    /// Queues a span, or drops it.
    pub(crate) fn push(&self, span: Span) {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let is_queued = queue.as_ref().is_some_and(|queue| queue.try_send(Box::new(span)).is_ok());
        if !is_queued {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Sends what is queued and ends the thread. Blocks; if the collector does not answer, for [`SEND_TIMEOUT`] or two.
    pub(crate) fn close(&self) {
        self.counts.is_closing.store(true, Ordering::Relaxed);
        drop(self.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A panic has been reported by its hook.
        thread.into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// The sending thread.
struct Exporter {
    agent: Agent,
    url: String,
    counts: Arc<Counts>,
}

impl Exporter {
    fn new(url: String, counts: Arc<Counts>) -> Exporter {
        let config = Agent::config_builder()
            .user_agent(concat!("indrik/", env!("CARGO_PKG_VERSION")))
            .timeout_global(Some(SEND_TIMEOUT))
            .max_redirects(0)
            .proxy(None)
            .build();
        Exporter { agent: config.into(), url, counts }
    }

    fn run(self, spans: &Receiver<Box<Span>>) {
        let mut fails = false;
        let mut closing_since = None;
        while let Ok(first) = spans.recv() {
            let batch = collect(*first, spans);
            let sent = self.send(&batch);
            let counter = if sent.is_ok() { &self.counts.exported } else { &self.counts.dropped };
            counter.fetch_add(batch.len() as u64, Ordering::Relaxed);
            match (&sent, fails) {
                (Err(error), false) => {
                    tracing::warn!(%error, url = self.url, "traces cannot be sent: spans are dropped until they can");
                }
                (Ok(()), true) => tracing::info!("traces are sent again"),
                _ => {}
            }
            fails = sent.is_err();
            if !self.counts.is_closing.load(Ordering::Relaxed) {
                continue;
            }
            let since = *closing_since.get_or_insert_with(Instant::now);
            if fails || since.elapsed() > SEND_TIMEOUT {
                self.counts.dropped.fetch_add(spans.try_iter().count() as u64, Ordering::Relaxed);
            }
        }
    }

    fn send(&self, batch: &[Span]) -> Result<(), ureq::Error> {
        let body = otlp::request(batch).to_string();
        let request = self.agent.post(&self.url).content_type("application/json");
        request.send(body).map(drop)
    }
}

/// The spans that arrive within [`BATCH_DELAY`].
fn collect(first: Span, spans: &Receiver<Box<Span>>) -> Vec<Span> {
    let deadline = Instant::now() + BATCH_DELAY;
    let mut batch = vec![first];
    while batch.len() < BATCH {
        match spans.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(span) => batch.push(*span),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    batch
}
