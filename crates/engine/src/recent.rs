//! The last seconds of an engine, for monitoring: token rates and percentiles of latencies.
//!
//! [`Status`](crate::Status) has counters since the start, from which a metrics system computes rates. A monitor that
//! reads once has no earlier reading to compare with, so the engine keeps a short history.

use std::time::{Duration, Instant};

/// Percentiles of a latency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percentiles {
    /// Median.
    pub p50: Duration,
    /// 95th percentile.
    pub p95: Duration,
    /// 99th percentile.
    pub p99: Duration,
}

/// Rates of the last five seconds and percentiles of the last minute.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RecentStats {
    /// Prefilled tokens per second; `None` in the first second.
    pub prompt_tokens_per_second: Option<f64>,
    /// Generated tokens per second; `None` in the first second.
    pub generation_tokens_per_second: Option<f64>,
    /// TTFT: from submission to the first token.
    pub time_to_first_token: Option<Percentiles>,
    /// ITL: between consecutive tokens of a request.
    pub inter_token_latency: Option<Percentiles>,
    /// From submission to the end of the completion.
    pub request_latency: Option<Percentiles>,
}

/// Something that happened in a round.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sample {
    PromptTokens(u64),
    GenerationTokens(u64),
    TimeToFirstToken(Duration),
    /// A latency, of this many tokens.
    InterTokenLatency(Duration, u64),
    RequestLatency(Duration),
}

/// What [`RecentStats`] is computed from.
#[derive(Debug)]
pub(crate) struct RecentHistory {
    prompt_tokens: TokenRate,
    generation_tokens: TokenRate,
    time_to_first_token: Window,
    inter_token_latency: Window,
    request_latency: Window,
}

impl RecentHistory {
    pub fn new(start: Instant) -> Self {
        Self {
            prompt_tokens: TokenRate::new(start),
            generation_tokens: TokenRate::new(start),
            time_to_first_token: Window::default(),
            inter_token_latency: Window::default(),
            request_latency: Window::default(),
        }
    }

    pub fn record(&mut self, now: Instant, sample: Sample) {
        match sample {
            Sample::PromptTokens(tokens) => self.prompt_tokens.record(now, tokens),
            Sample::GenerationTokens(tokens) => self.generation_tokens.record(now, tokens),
            Sample::TimeToFirstToken(latency) => self.time_to_first_token.record(now, latency, 1),
            Sample::InterTokenLatency(latency, tokens) => {
                self.inter_token_latency.record(now, latency, tokens);
            }
            Sample::RequestLatency(latency) => self.request_latency.record(now, latency, 1),
        }
    }

    pub fn recent(&self, now: Instant) -> RecentStats {
        RecentStats {
            prompt_tokens_per_second: self.prompt_tokens.per_second(now),
            generation_tokens_per_second: self.generation_tokens.per_second(now),
            time_to_first_token: self.time_to_first_token.percentiles(now),
            inter_token_latency: self.inter_token_latency.percentiles(now),
            request_latency: self.request_latency.percentiles(now),
        }
    }
}

/// Tokens per second over the last seconds.
#[derive(Debug)]
struct TokenRate {
    start: Instant,
    /// Tokens of each second, at index second modulo length; with the second they belong to.
    seconds: [(u64, u64); TokenRate::SECONDS as usize + 1],
}

impl TokenRate {
    /// Seconds over which the rate is taken; the current one is not complete and does not count.
    const SECONDS: u64 = 5;

    fn new(start: Instant) -> Self {
        Self { start, seconds: Default::default() }
    }

    fn second(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_secs()
    }

    fn record(&mut self, now: Instant, tokens: u64) {
        let second = self.second(now);
        let slot = &mut self.seconds[(second % (Self::SECONDS + 1)) as usize];
        if slot.0 != second {
            *slot = (second, 0);
        }
        slot.1 += tokens;
    }

    /// Tokens per second over the last five seconds; `None` in the first second.
    fn per_second(&self, now: Instant) -> Option<f64> {
        let now = self.second(now);
        let first = now.saturating_sub(Self::SECONDS);
        let complete = self.seconds.iter().filter(|(second, _)| (first..now).contains(second));
        (now > first).then(|| complete.map(|(_, tokens)| tokens).sum::<u64>() as f64 / (now - first) as f64)
    }
}

/// One latency over the last minute: a histogram per ten seconds.
#[derive(Debug, Default)]
struct Window {
    /// Oldest first, with their start.
    slots: Vec<(Instant, FineHistogram)>,
}

impl Window {
    const SLOT: Duration = Duration::from_secs(10);
    /// Besides the current slot.
    const FULL_SLOTS: usize = 6;

    fn record(&mut self, now: Instant, duration: Duration, samples: u64) {
        let is_current = |(start, _): &(Instant, _)| now.saturating_duration_since(*start) < Self::SLOT;
        if !self.slots.last().is_some_and(is_current) {
            if self.slots.len() > Self::FULL_SLOTS {
                self.slots.remove(0);
            }
            self.slots.push((now, FineHistogram::default()));
        }
        if let Some((_, histogram)) = self.slots.last_mut() {
            histogram.record(duration, samples);
        }
    }

    /// Percentiles of the samples of the last minute, exact to 1%; `None` if there are none.
    fn percentiles(&self, now: Instant) -> Option<Percentiles> {
        let age = Self::SLOT * Self::FULL_SLOTS as u32;
        let recent = self.slots.iter().filter(|(start, _)| now.saturating_duration_since(*start) <= age);
        let mut sum = FineHistogram::default();
        recent.for_each(|(_, histogram)| sum.add(histogram));
        Some(Percentiles {
            p50: sum.percentile(0.5)?,
            p95: sum.percentile(0.95)?,
            p99: sum.percentile(0.99)?,
        })
    }
}

/// A histogram with 64 buckets per power of two: a bucket is less than 1.6% wide.
#[derive(Debug, Default)]
struct FineHistogram {
    /// Samples per bucket. Empty until the first one.
    counts: Vec<u64>,
}

impl FineHistogram {
    /// Base 2 logarithm of the unit in nanoseconds: about a microsecond.
    const UNIT_BITS: u32 = 10;
    /// Base 2 logarithm of the number of buckets per power of two.
    const SUB_BITS: u32 = 6;
    /// Longer samples count as this many units, about five hours.
    const MAX_UNITS: u64 = (1 << 34) - 1;

    /// The bucket of a number of units. Up to 64 units, each has its own.
    fn bucket(units: u64) -> usize {
        let exponent = units.max(1).ilog2().saturating_sub(Self::SUB_BITS);
        ((u64::from(exponent) << Self::SUB_BITS) + (units >> exponent)) as usize
    }

    /// The middle of a bucket, in units.
    fn middle(bucket: usize) -> f64 {
        let sub = 1 << Self::SUB_BITS;
        let exponent = (bucket / sub).saturating_sub(1);
        let first = bucket - exponent * sub;
        (first as f64 + 0.5) * f64::powi(2.0, exponent as i32)
    }

    fn record(&mut self, duration: Duration, samples: u64) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = Self::bucket((nanoseconds >> Self::UNIT_BITS).min(Self::MAX_UNITS));
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += samples;
    }

    fn add(&mut self, other: &FineHistogram) {
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
    }

    /// The smallest sample that is at least as long as this share of all; `None` without samples.
    fn percentile(&self, share: f64) -> Option<Duration> {
        let all: u64 = self.counts.iter().sum();
        let rank = (share * all as f64).ceil().max(1.0) as u64;
        let mut below = 0;
        let bucket = self.counts.iter().position(|count| {
            below += count;
            below >= rank
        })?;
        Some(Duration::from_nanos((Self::middle(bucket) * f64::from(1 << Self::UNIT_BITS)) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_last_complete_seconds() {
        let start = Instant::now();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        let mut rate = TokenRate::new(start);
        assert_eq!(rate.per_second(at(0.5)), None);
        rate.record(at(0.5), 10);
        assert_eq!(rate.per_second(at(1.0)), Some(10.0));
        rate.record(at(1.5), 20);
        rate.record(at(2.5), 1000);
        assert_eq!(rate.per_second(at(2.9)), Some(15.0), "the current second is not complete");
        assert_eq!(rate.per_second(at(6.0)), Some((20.0 + 1000.0) / 5.0), "the first is forgotten");
        rate.record(at(60.0), 5);
        assert_eq!(rate.per_second(at(61.0)), Some(1.0));
        assert_eq!(rate.per_second(at(70.0)), Some(0.0));
    }

    #[test]
    fn percentiles_are_exact_to_one_percent() {
        let now = Instant::now();
        let mut window = Window::default();
        assert_eq!(window.percentiles(now), None);
        for milliseconds in 1..=1000 {
            window.record(now, Duration::from_millis(milliseconds), 1);
        }
        let Percentiles { p50, p95, p99 } = window.percentiles(now).unwrap();
        for (got, want) in [(p50, 0.5), (p95, 0.95), (p99, 0.99)] {
            let error = got.as_secs_f64() / want - 1.0;
            assert!(error.abs() < 0.01, "{got:?} instead of {want} s");
        }
    }

    #[test]
    fn every_bucket_is_narrow_and_none_is_missed() {
        let mut last = 0;
        for units in (0..5000).chain((13..34).flat_map(|bits| [(1 << bits) - 1, 1 << bits])) {
            let bucket = FineHistogram::bucket(units);
            assert!(bucket == last || bucket == last + 1 || units > 5000, "{units}");
            let error = (FineHistogram::middle(bucket) - units as f64).abs();
            assert!(error <= 0.5 + units as f64 / 64.0, "{units}: {error}");
            last = bucket;
        }
        let mut histogram = FineHistogram::default();
        histogram.record(Duration::MAX, 1);
        assert!(histogram.percentile(0.5).unwrap() > Duration::from_secs(4 * 3600));
    }

    #[test]
    fn samples_older_than_a_minute_are_forgotten() {
        let start = Instant::now();
        let mut window = Window::default();
        window.record(start, Duration::from_secs(1), 1);
        for second in (15..=600).step_by(15) {
            window.record(start + Duration::from_secs(second), Duration::from_millis(10), 1);
        }
        let now = start + Duration::from_secs(600);
        assert!(window.percentiles(now).unwrap().p99 < Duration::from_millis(11));
        assert!(window.slots.len() <= Window::FULL_SLOTS + 1);
        assert_eq!(window.percentiles(now + Duration::from_secs(100)), None);
    }
}
