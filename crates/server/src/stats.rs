//! `/stats`, and `/stats/stream` with one such object per second: what the server is doing now, for monitors and the
//! page. It never contains the content of requests. What a machine cannot tell is `null`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::State as Extracted;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use engine::{Percentiles, RecentStats, RequestState, RequestStatus, Status};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use telemetry::Snapshot;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Interval, MissedTickBehavior};

use crate::error::Error;
use crate::phase::Phase;
use crate::state::AppState;

/// Interval of `/stats/stream`.
const INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of streams at a time: they stay open, and must not use up the connections.
pub(crate) const MAX_STREAMS: usize = 16;

/// What the server is doing now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Seconds since 1970.
    pub time: f64,
    /// Version of the server.
    pub version: String,
    /// Seconds since the server was started.
    pub uptime_seconds: f64,
    /// Whether requests are accepted.
    pub state: State,
    /// Why they are not.
    pub detail: Option<String>,
    /// The model.
    pub model: ModelStats,
    /// The device; unknown while the model is loading.
    pub device: Option<DeviceStats>,
    /// Requests by state, and how they ended.
    pub requests: RequestCounts,
    /// Tokens since the start, and their recent rates.
    pub tokens: TokenStats,
    /// Percentiles of the last minute.
    pub latency: LatencyStats,
    /// The batch.
    pub batch: BatchStats,
    /// Pages of the KV cache.
    pub kv_cache: KvCacheStats,
    /// Use of the prefix cache.
    pub prefix_cache: PrefixCacheStats,
    /// Memory bandwidth of decode steps; unknown while the model is loading.
    pub bandwidth: Option<BandwidthStats>,
    /// Energy of the GPU, where it can be measured.
    pub energy: Option<EnergyStats>,
    /// Use of each heap of GPU memory.
    pub memory: Vec<HeapStats>,
    /// The machine: GPUs, CPU, process.
    pub machine: Option<Snapshot>,
    /// The oldest requests in flight, at most 64: decoding, then prefilling, then waiting.
    pub in_flight: Vec<RequestStats>,
}

/// Whether requests are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// They are.
    Ready,
    /// The model is loading.
    Loading,
    /// The server is shutting down.
    Draining,
    /// The GPU was lost and is being reopened.
    DeviceLost,
}

/// The loaded model that was used last; empty if none is loaded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelStats {
    /// Its id.
    pub id: String,
    /// Context length in tokens.
    pub context_length: u32,
}

/// The device that runs the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceStats {
    /// Its name.
    pub name: String,
    /// Name and version of the driver.
    pub driver: String,
    /// Kernel tier.
    pub tier: Option<String>,
}

/// Requests by state, and how they ended since the start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of the engine's status")]
pub struct RequestCounts {
    pub running: usize,
    pub prefilling: usize,
    pub decoding: usize,
    pub waiting: usize,
    pub finished: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub rejected: u64,
    pub preemptions: u64,
}

/// Tokens since the start, and rates of the last five seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenStats {
    /// Prefilled.
    pub prompt: u64,
    /// Taken from the prefix cache.
    pub cached: u64,
    /// Generated.
    pub generated: u64,
    /// Prefilled per second.
    pub prompt_per_second: Option<f64>,
    /// Generated per second.
    pub generated_per_second: Option<f64>,
}

/// Latencies of the last minute; unknown if there were none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyStats {
    /// TTFT: from submission to the first token.
    pub time_to_first_token: Option<LatencyPercentiles>,
    /// ITL: between consecutive tokens of a request.
    pub inter_token: Option<LatencyPercentiles>,
    /// From submission to the end of the completion.
    pub request: Option<LatencyPercentiles>,
}

/// Percentiles in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct LatencyPercentiles {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
}

/// The batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchStats {
    /// Rows of the last step: prefill tokens and decode rows.
    pub last_step_rows: u64,
    /// Maximum number of concurrent sequences.
    pub max_sequences: Option<u32>,
}

/// Pages of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KvCacheStats {
    /// All pages.
    pub pages: u32,
    /// Held by sequences.
    pub used: u32,
    /// Kept by the prefix cache.
    pub cached: u32,
    /// Tokens per page.
    pub page_tokens: Option<u32>,
}

/// Use of the prefix cache since the start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrefixCacheStats {
    /// Lookups, one per admission.
    pub queries: u64,
    /// Lookups that found at least one token.
    pub hits: u64,
    /// Tokens found.
    pub cached_tokens: u64,
}

/// Memory bandwidth of decode steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BandwidthStats {
    /// Measured at startup.
    pub peak_bytes_per_second: Option<f64>,
    /// Fraction of the peak that recent decode steps reached, 0 to 1.
    pub utilization: Option<f64>,
    /// Bytes of weights and KV cache that decode steps read per generated token, since the start.
    pub bytes_per_token: Option<f64>,
}

/// Energy of the GPU since the model was loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EnergyStats {
    /// How it is measured.
    pub source: String,
    /// Joules, idle time included.
    pub joules: f64,
    /// Joules of all steps per generated token.
    pub joules_per_token: Option<f64>,
}

/// Use of one heap of GPU memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeapStats {
    /// Index of the heap.
    pub heap: usize,
    /// Whether it is the GPU's own memory.
    pub device_local: bool,
    /// Size.
    pub size_bytes: u64,
    /// What this process may use, if the driver reports it.
    pub budget_bytes: Option<u64>,
    /// Weights.
    pub weights_bytes: u64,
    /// KV cache.
    pub kv_cache_bytes: u64,
    /// Scratch buffers.
    pub scratch_bytes: u64,
    /// Used by other processes or reserved, if the driver reports it.
    pub other_processes_bytes: Option<u64>,
    /// What this process may still allocate, if the driver reports it.
    pub free_bytes: Option<u64>,
}

/// A request, without its content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestStats {
    /// Id of the response.
    pub id: String,
    /// `waiting`, `prefilling` or `decoding`.
    pub state: String,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens from the prefix cache.
    pub cached_tokens: u32,
    /// Prompt tokens in the KV cache.
    pub prefilled_tokens: u32,
    /// Tokens generated.
    pub generated_tokens: u32,
    /// Maximum number of tokens to generate.
    pub max_tokens: u32,
    /// Seconds since it was submitted.
    pub elapsed_seconds: f64,
    /// Decode speed; unknown before the second token.
    pub tokens_per_second: Option<f64>,
}

/// What the server cannot know by itself: the device and the machine.
#[derive(Clone, Debug, Default)]
pub struct HardwareStats {
    /// The device.
    pub device: Option<DeviceStats>,
    /// Memory bandwidth.
    pub bandwidth: Option<BandwidthStats>,
    /// Energy.
    pub energy: Option<EnergyStats>,
    /// GPU memory.
    pub memory: Vec<HeapStats>,
    /// The machine.
    pub machine: Option<Snapshot>,
}

impl RequestStats {
    fn new(request: &RequestStatus, now: Instant) -> RequestStats {
        let state = match request.state {
            RequestState::Waiting => "waiting",
            RequestState::Prefilling => "prefilling",
            RequestState::Decoding => "decoding",
        };
        RequestStats {
            id: request.name.to_string(),
            state: state.to_owned(),
            prompt_tokens: request.prompt_tokens,
            cached_tokens: request.cached_tokens,
            prefilled_tokens: request.sequence_tokens.min(request.prompt_tokens),
            generated_tokens: request.generated_tokens,
            max_tokens: request.max_tokens,
            elapsed_seconds: now.saturating_duration_since(request.submitted_at).as_secs_f64(),
            tokens_per_second: request.tokens_per_second,
        }
    }
}

impl From<Percentiles> for LatencyPercentiles {
    fn from(Percentiles { p50, p95, p99 }: Percentiles) -> Self {
        let [p50, p95, p99] = [p50, p95, p99].map(|latency| latency.as_secs_f64());
        LatencyPercentiles { p50, p95, p99 }
    }
}

impl Stats {
    fn read(app: &AppState) -> Stats {
        let (status, current) = (app.models.status(), app.models.current());
        let recent = current.as_ref().map(|current| current.recent).unwrap_or_default();
        let capacity = current.as_ref().and_then(|current| current.capacity);
        let hardware = app.machine.as_ref().map(|machine| machine.hardware(&status)).unwrap_or_default();
        let HardwareStats { device, bandwidth, energy, memory, machine } = hardware;
        let detail = app.check_ready().err().map(|error| error.to_string());
        let now = Instant::now();
        Stats {
            time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: now.saturating_duration_since(app.started).as_secs_f64(),
            state: match &detail {
                None => State::Ready,
                Some(_) if status.draining || app.check_phase().is_err() => State::Draining,
                Some(_) if status.device_lost => State::DeviceLost,
                Some(_) => State::Loading,
            },
            detail,
            model: current.map_or_else(ModelStats::default, |current| ModelStats {
                id: current.id,
                context_length: current.context_length,
            }),
            device,
            requests: requests(&status),
            tokens: tokens(&status, &recent),
            latency: LatencyStats {
                time_to_first_token: recent.time_to_first_token.map(Into::into),
                inter_token: recent.inter_token_latency.map(Into::into),
                request: recent.request_latency.map(Into::into),
            },
            batch: BatchStats {
                last_step_rows: status.last_step_rows,
                max_sequences: capacity.map(|capacity| capacity.max_sequences),
            },
            kv_cache: KvCacheStats {
                pages: status.pages.total,
                used: status.pages.total.saturating_sub(status.pages.free),
                cached: status.pages.cached,
                page_tokens: capacity.map(|capacity| capacity.page_size),
            },
            prefix_cache: PrefixCacheStats {
                queries: status.sequences_started,
                hits: status.prefix_cache_hits,
                cached_tokens: status.cached_tokens,
            },
            bandwidth,
            energy,
            memory,
            machine,
            in_flight: status.requests.iter().map(|request| RequestStats::new(request, now)).collect(),
        }
    }

    /// Reads on a thread that may block. One at a time: a driver that hangs must not use up the threads.
    async fn read_blocking(app: Arc<AppState>) -> Result<Stats, Error> {
        let permit = app.stats_reader.clone().acquire_owned().await;
        let read = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            Stats::read(&app)
        });
        let read = read.await;
        read.map_err(|error| {
            tracing::error!(%error, "reading the statistics panicked");
            Error::Internal
        })
    }
}

fn requests(status: &Status) -> RequestCounts {
    RequestCounts {
        running: status.prefilling + status.decoding,
        prefilling: status.prefilling,
        decoding: status.decoding,
        waiting: status.waiting,
        finished: status.finished,
        failed: status.failed,
        cancelled: status.cancelled,
        rejected: status.rejected,
        preemptions: status.preemptions,
    }
}

fn tokens(status: &Status, recent: &RecentStats) -> TokenStats {
    TokenStats {
        prompt: status.prompt_tokens,
        cached: status.cached_tokens,
        generated: status.generation_tokens,
        prompt_per_second: recent.prompt_tokens_per_second,
        generated_per_second: recent.generation_tokens_per_second,
    }
}

/// `GET /stats`.
pub(crate) async fn stats(Extracted(app): Extracted<Arc<AppState>>) -> Result<Json<Stats>, Error> {
    Stats::read_blocking(app).await.map(Json)
}

/// `GET /stats/stream`. Ends when the server shuts down.
pub(crate) async fn stats_stream(Extracted(app): Extracted<Arc<AppState>>) -> Result<Response, Error> {
    let permit = app.stats_streams.clone().try_acquire_owned().map_err(|_| Error::TooManyStreams)?;
    let mut interval = tokio::time::interval(INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let state = StreamState { phase: app.phase.clone(), app, interval, is_last: false, _permit: permit };
    let events = stream::unfold(state, async |mut state| {
        if state.is_last {
            return None;
        }
        tokio::select! {
            _ = state.interval.tick() => {}
            // Without a handle, the phase stays as it is.
            Ok(_) = state.phase.wait_for(|phase| *phase != Phase::Running) => {}
        }
        // The last event says that the server is shutting down.
        state.is_last = *state.phase.borrow() != Phase::Running;
        let stats = Stats::read_blocking(state.app.clone()).await.ok()?;
        let event = Event::default().json_data(&stats).ok()?;
        Some((Ok::<_, Infallible>(event), state))
    });
    Ok(Sse::new(events).into_response())
}

/// A stream of statistics.
struct StreamState {
    app: Arc<AppState>,
    phase: watch::Receiver<Phase>,
    interval: Interval,
    /// Whether the event that was sent is the last one.
    is_last: bool,
    _permit: OwnedSemaphorePermit,
}
