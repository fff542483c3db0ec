//! The latest times of steps that are alike.

use std::time::Duration;

/// Times that are kept.
const KEPT: usize = 4;

/// The latest times of steps of one bucket. The shortest of them counts, since other work of the machine only ever makes a
/// step slower.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecentTimes {
    times: [Duration; KEPT],
    /// Steps so far.
    steps: usize,
}

impl RecentTimes {
    /// Records a step, unless it is the first: a driver may compile its program then.
    pub fn record(&mut self, time: Duration) {
        if let Some(index) = self.steps.checked_sub(1) {
            self.times[index % KEPT] = time;
        }
        self.steps += 1;
    }

    pub fn time(&self) -> Option<Duration> {
        let known = self.steps.saturating_sub(1).min(KEPT);
        self.times[..known].iter().min().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_of_the_latest_counts_but_not_the_first() {
        let mut recent = RecentTimes::default();
        let mut record = |millis: u64| {
            recent.record(Duration::from_millis(millis));
            recent.time().map(|time| time.as_millis() as u64)
        };
        assert_eq!(record(1), None);
        assert_eq!([900, 20, 30, 25].map(&mut record), [Some(900), Some(20), Some(20), Some(20)]);
        assert_eq!([40, 50].map(&mut record), [Some(20), Some(25)]);
        assert_eq!([60, 70].map(record), [Some(25), Some(40)]);
    }
}
