//! What a server tells of the engine: how much there is to do, and how it goes.

use std::time::Duration;

/// How things stand, as of the last step; numbers of what has been since the start only grow.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// Requests that wait, with those that were set back.
    pub waiting: usize,
    /// Requests whose prompt is being read.
    pub prefilling: usize,
    /// Requests whose answer is being written.
    pub decoding: usize,
    /// Pages of the KV cache.
    pub pages: Pages,
    /// Whether nothing new is taken any more.
    pub draining: bool,
    /// Tokens read so far, those that were read again counted again.
    pub prompt_tokens: u64,
    /// Tokens that needed no reading so far, those of requests that were set back counted again.
    pub cached_tokens: u64,
    /// Tokens written so far.
    pub generation_tokens: u64,
    /// Steps so far.
    pub steps: u64,
    /// Rows of all steps so far: tokens that were read, and one for each who wrote.
    pub rows: u64,
    /// Rows of the last step.
    pub last_step_rows: u64,
    /// What steps had to read of memory, those in which no prompt was read.
    pub memory_traffic: MemoryTraffic,
    /// Sequences that were begun so far, those of requests that were set back counted again.
    pub sequences_started: u64,
    /// Of those, the ones that began with text that was known.
    pub prefix_cache_hits: u64,
    /// How often a request was set back, to read again what it had read: for want of pages or of memory, or by a lost device.
    pub preemptions: u64,
    /// Requests whose answer became whole.
    pub finished: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Requests whose answer was dropped before its end.
    pub cancelled: u64,
    /// Requests that were not taken.
    pub rejected: u64,
    /// How often the device was lost.
    pub devices_lost: u64,
    /// Whether it is lost now, and not put back yet.
    pub device_lost: bool,
    /// From a request's arrival to its first token.
    pub time_to_first_token: Histogram,
    /// From a token to the next of the same answer. Of a run's tokens, which come together, each has its share.
    pub inter_token_latency: Histogram,
    /// From a request's arrival to its answer being whole.
    pub request_latency: Histogram,
}

/// Pages of the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// That no sequence holds.
    pub free: u32,
    /// Of those, the ones that are kept for prompts that begin with the same tokens.
    pub cached: u32,
    /// That there are.
    pub total: u32,
}

/// What steps that only write had to read: all weights, and the keys and values of everyone. They are bound by that; a step that reads a
/// prompt is bound by arithmetic, and counts for nothing here.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryTraffic {
    /// Bytes so far.
    pub bytes: u64,
    /// The time of those steps, as the host sees it.
    pub time: Duration,
    /// The same of late: what is older counts less.
    recent: (f64, f64),
}

impl MemoryTraffic {
    /// What lies so many seconds of such steps back counts for a third.
    const FADES: f64 = 10.0;

    pub(crate) fn note(&mut self, bytes: u64, time: Duration) {
        self.bytes += bytes;
        self.time += time;
        let seconds = time.as_secs_f64();
        let kept = (-seconds / Self::FADES).exp();
        self.recent = (self.recent.0 * kept + bytes as f64, self.recent.1 * kept + seconds);
    }

    /// Bytes a second of late, in the time of such steps; none before the first.
    pub fn bytes_per_second(&self) -> Option<f64> {
        (self.recent.1 > 0.0).then(|| self.recent.0 / self.recent.1)
    }
}

/// How long something took each time: a small histogram.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    sum: Duration,
    /// How many were at most as long as the bound of the same place and longer than that of the place before; the last place is for those
    /// longer than all bounds.
    counts: [u64; Histogram::BOUNDS.len() + 1],
}

impl Histogram {
    /// Capacity in milliseconds: a token of a small model, a second, a long prompt.
    const BOUNDS: [u64; 14] =
        [5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 300_000];

    pub(crate) fn note(&mut self, time: Duration, times: u64) {
        let place = Self::BOUNDS.partition_point(|bound| Duration::from_millis(*bound) < time);
        self.counts[place] += times;
        self.sum += time.saturating_mul(u32::try_from(times).unwrap_or(u32::MAX));
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// All of them together.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// What they took on average.
    pub fn mean(&self) -> Option<Duration> {
        let count = self.count();
        (count > 0).then(|| self.sum.div_f64(count as f64))
    }

    /// How many took at most so long, for every bound. Those that took longer than all of them are in `count` only.
    pub fn at_most(&self) -> impl Iterator<Item = (Duration, u64)> {
        let sums = self.counts.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        Self::BOUNDS.iter().map(|bound| Duration::from_millis(*bound)).zip(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_long_ago_does_not_count_for_the_speed_of_late() {
        let mut traffic = MemoryTraffic::default();
        assert_eq!(traffic.bytes_per_second(), None);
        traffic.note(500, Duration::from_secs(1));
        assert_eq!(traffic.bytes_per_second(), Some(500.0));
        (0..1000).for_each(|_| traffic.note(10, Duration::from_millis(100)));
        let late = traffic.bytes_per_second().unwrap();
        assert!((100.0..100.1).contains(&late), "{late}");
        assert_eq!((traffic.bytes, traffic.time), (10_500, Duration::from_secs(101)));
    }

    #[test]
    fn times_are_counted_up_to_their_bound() {
        let mut times = Histogram::default();
        assert_eq!(times.mean(), None);
        times.note(Duration::from_millis(5), 2);
        times.note(Duration::from_millis(6), 1);
        times.note(Duration::from_secs(3600), 1);
        let counts: Vec<u64> = times.at_most().map(|(_, count)| count).collect();
        assert_eq!((counts[0], counts[1], counts[13], times.count()), (2, 3, 3, 4));
        assert_eq!(times.sum(), Duration::from_millis(16) + Duration::from_secs(3600));
    }
}
