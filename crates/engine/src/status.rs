//! Engine state and counters, for metrics and health checks.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{DraftStats, StepEnergy};

/// Snapshot of the engine after its last step. Counters start at zero and only grow.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// Requests in the queue, preempted ones included.
    pub waiting: usize,
    /// Requests in prefill.
    pub prefilling: usize,
    /// Requests in decode.
    pub decoding: usize,
    /// Pages of the KV cache.
    pub pages: Pages,
    /// Whether the engine is shutting down and rejects new requests.
    pub draining: bool,
    /// The oldest requests, at most [`Status::MAX_REQUESTS`]: decoding, then prefilling, then waiting ones.
    pub requests: Vec<RequestStatus>,
    /// Tokens prefilled. Tokens recomputed after a preemption count again.
    pub prompt_tokens: u64,
    /// Tokens taken from the prefix cache instead of being prefilled. Readmissions after a preemption count
    /// again.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generation_tokens: u64,
    /// Steps executed.
    pub steps: u64,
    /// Steps that verified drafts.
    pub verify_steps: u64,
    /// Drafts that were verified.
    pub drafts: DraftStats,
    /// Rows of all steps: prefill tokens, drafts, and one per decoding request.
    pub rows: u64,
    /// Rows of the last step.
    pub last_step_rows: u64,
    /// Memory traffic of decode-only steps.
    pub memory_traffic: MemoryTraffic,
    /// Energy of steps.
    pub energy: StepEnergy,
    /// Sequences started. Readmissions after a preemption count again.
    pub sequences_started: u64,
    /// Sequences that started with at least one token from the prefix cache.
    pub prefix_cache_hits: u64,
    /// Preemptions: for lack of pages or memory, or because the device was lost. A preempted request
    /// recomputes its sequence, less the tokens that the prefix cache still holds.
    pub preemptions: u64,
    /// Requests that finished.
    pub finished: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Requests whose stream was dropped before they finished.
    pub cancelled: u64,
    /// Requests that were rejected at submission.
    pub rejected: u64,
    /// How often the device was lost.
    pub devices_lost: u64,
    /// Whether the device is lost and not recovered yet.
    pub device_lost: bool,
    /// TTFT: from submission to the first token.
    pub time_to_first_token: Histogram,
    /// ITL: between consecutive tokens of a request. The tokens of a decode run arrive together and share its
    /// time equally.
    pub inter_token_latency: Histogram,
    /// From submission to the end of the completion.
    pub request_latency: Histogram,
}

impl Status {
    /// Maximum length of [`Status::requests`].
    pub const MAX_REQUESTS: usize = 64;

    /// Adds the state and the counters of another engine.
    pub fn add(&mut self, other: &Status) {
        self.waiting += other.waiting;
        self.prefilling += other.prefilling;
        self.decoding += other.decoding;
        self.pages.free += other.pages.free;
        self.pages.cached += other.pages.cached;
        self.pages.total += other.pages.total;
        self.draining |= other.draining;
        self.device_lost |= other.device_lost;
        self.last_step_rows = self.last_step_rows.max(other.last_step_rows);
        let room = Self::MAX_REQUESTS.saturating_sub(self.requests.len());
        self.requests.extend(other.requests.iter().take(room).cloned());
        self.memory_traffic.recent.0 += other.memory_traffic.recent.0;
        self.memory_traffic.recent.1 += other.memory_traffic.recent.1;
        self.add_counters(other);
    }

    /// Adds the counters of another engine, but not what it is doing now.
    pub fn add_counters(&mut self, other: &Status) {
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens += other.cached_tokens;
        self.generation_tokens += other.generation_tokens;
        self.steps += other.steps;
        self.verify_steps += other.verify_steps;
        self.drafts.add(&other.drafts);
        self.rows += other.rows;
        self.memory_traffic.bytes += other.memory_traffic.bytes;
        self.memory_traffic.time += other.memory_traffic.time;
        self.memory_traffic.tokens += other.memory_traffic.tokens;
        self.energy.joules += other.energy.joules;
        self.energy.generation_tokens += other.energy.generation_tokens;
        self.sequences_started += other.sequences_started;
        self.prefix_cache_hits += other.prefix_cache_hits;
        self.preemptions += other.preemptions;
        self.finished += other.finished;
        self.failed += other.failed;
        self.cancelled += other.cancelled;
        self.rejected += other.rejected;
        self.devices_lost += other.devices_lost;
        self.time_to_first_token.add(&other.time_to_first_token);
        self.inter_token_latency.add(&other.inter_token_latency);
        self.request_latency.add(&other.request_latency);
    }
}

/// What a request is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// In the queue, also after a preemption.
    Waiting,
    /// Its prompt runs through the model.
    Prefilling,
    /// It generates tokens.
    Decoding,
}

/// A submitted request, without its content.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestStatus {
    /// [`Request::name`](crate::Request::name).
    pub name: Arc<str>,
    /// What it is doing.
    pub state: RequestState,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens from the prefix cache, at the first admission.
    pub cached_tokens: u32,
    /// Tokens that its sequence holds.
    pub sequence_tokens: u32,
    /// Tokens generated.
    pub generated_tokens: u32,
    /// Maximum number of completion tokens.
    pub max_tokens: u32,
    /// When it was submitted.
    pub submitted_at: Instant,
    /// Tokens per second from the first token to the last; `None` before the second one.
    pub tokens_per_second: Option<f64>,
}

/// Page counts of the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Pages that no sequence holds.
    pub free: u32,
    /// Free pages that the prefix cache holds; evicted when a sequence needs them.
    pub cached: u32,
    /// All pages.
    pub total: u32,
}

/// Memory traffic of decode-only steps: all weights, and the keys and values of every sequence in the batch.
/// These steps are bound by memory bandwidth. Steps with a prefill chunk are bound by arithmetic and not
/// counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryTraffic {
    /// Total bytes read.
    pub bytes: u64,
    /// Total time of those steps, measured on the host.
    pub time: Duration,
    /// Tokens that those steps generated.
    pub tokens: u64,
    /// Exponentially decayed bytes and seconds, for the recent bandwidth.
    recent: (f64, f64),
}

impl MemoryTraffic {
    /// Time constant of the recent bandwidth, in seconds of decode-only steps: a sample this old weighs 1/e.
    const DECAY_SECONDS: f64 = 10.0;

    pub(crate) fn record(&mut self, bytes: u64, time: Duration, tokens: u64) {
        self.bytes += bytes;
        self.time += time;
        self.tokens += tokens;
        let seconds = time.as_secs_f64();
        let decay = (-seconds / Self::DECAY_SECONDS).exp();
        self.recent = (self.recent.0 * decay + bytes as f64, self.recent.1 * decay + seconds);
    }

    /// Bytes per generated token; `None` before the first decode-only step.
    pub fn bytes_per_token(&self) -> Option<f64> {
        (self.tokens > 0).then(|| self.bytes as f64 / self.tokens as f64)
    }

    /// Recent bandwidth in bytes per second of decode time; `None` before the first decode-only step.
    pub fn bytes_per_second(&self) -> Option<f64> {
        (self.recent.1 > 0.0).then(|| self.recent.0 / self.recent.1)
    }
}

/// A histogram of durations with fixed buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    sum: Duration,
    /// Samples per bucket, not cumulative. The last bucket holds those above all bounds.
    counts: [u64; Histogram::BOUNDS_MS.len() + 1],
}

impl Histogram {
    /// Inclusive upper bounds in milliseconds: from a decode step of a small model to the prefill of a long
    /// prompt.
    const BOUNDS_MS: [u64; 14] =
        [5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 300_000];

    /// Adds `samples` samples of the same duration.
    pub(crate) fn record(&mut self, duration: Duration, samples: u64) {
        let bucket = Self::BOUNDS_MS.partition_point(|bound| Duration::from_millis(*bound) < duration);
        self.counts[bucket] += samples;
        self.sum += duration.saturating_mul(u32::try_from(samples).unwrap_or(u32::MAX));
    }

    /// Adds the samples of another histogram.
    fn add(&mut self, other: &Histogram) {
        self.sum += other.sum;
        self.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
    }

    /// Number of samples.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of all samples.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// Mean of all samples.
    pub fn mean(&self) -> Option<Duration> {
        let count = self.count();
        (count > 0).then(|| self.sum.div_f64(count as f64))
    }

    /// Upper bound and cumulative count of each bucket, as Prometheus expects. Samples above all bounds are
    /// in [`count`](Self::count) only.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> {
        let cumulative = self.counts.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        Self::BOUNDS_MS.iter().map(|bound| Duration::from_millis(*bound)).zip(cumulative)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_bandwidth_forgets_old_samples() {
        let mut traffic = MemoryTraffic::default();
        assert_eq!(traffic.bytes_per_second(), None);
        traffic.record(500, Duration::from_secs(1), 1);
        assert_eq!(traffic.bytes_per_second(), Some(500.0));
        (0..1000).for_each(|_| traffic.record(10, Duration::from_millis(100), 1));
        let recent = traffic.bytes_per_second().unwrap();
        assert!((100.0..100.1).contains(&recent), "{recent}");
        assert_eq!((traffic.bytes, traffic.time), (10_500, Duration::from_secs(101)));
    }

    #[test]
    fn statuses_of_several_engines_add_up() {
        let mut first = Status { waiting: 1, finished: 2, last_step_rows: 3, ..Status::default() };
        first.request_latency.record(Duration::from_millis(7), 2);
        first.memory_traffic.record(100, Duration::from_secs(1), 1);
        let (mut sum, mut retired) = (first.clone(), Status::default());
        sum.add(&first);
        assert_eq!((sum.waiting, sum.finished, sum.last_step_rows), (2, 4, 3));
        assert_eq!((sum.request_latency.count(), sum.request_latency.sum()), (4, Duration::from_millis(28)));
        assert_eq!(sum.memory_traffic.bytes_per_second(), Some(100.0));
        retired.add_counters(&first);
        assert_eq!((retired.waiting, retired.finished, retired.memory_traffic.bytes), (0, 2, 100));
        assert_eq!(retired.memory_traffic.bytes_per_second(), None);
    }

    #[test]
    fn histogram_buckets_are_cumulative_with_inclusive_bounds() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.mean(), None);
        histogram.record(Duration::from_millis(5), 2);
        histogram.record(Duration::from_millis(6), 1);
        histogram.record(Duration::from_secs(3600), 1);
        let counts: Vec<u64> = histogram.buckets().map(|(_, count)| count).collect();
        assert_eq!((counts[0], counts[1], counts[13], histogram.count()), (2, 3, 3, 4));
        assert_eq!(histogram.sum(), Duration::from_millis(16) + Duration::from_secs(3600));
    }
}
