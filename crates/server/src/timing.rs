//! How long prefill and decoding took, by the times at which the engine sent the events.

use std::time::{Duration, Instant};

use engine::Usage;

/// The events of a choice so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EventTimes {
    /// Admission.
    pub(crate) started: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

impl EventTimes {
    /// A token was sent.
    pub(crate) fn token(&mut self, at: Instant) {
        self.first_token.get_or_insert(at);
        self.last_token = Some(at);
    }

    /// The completion has ended. Without a token, its prefill ends here.
    pub(crate) fn end(&mut self, at: Instant) {
        if self.first_token.is_none() {
            self.token(at);
        }
    }
}

/// Token counts and times; with several choices, their sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timing {
    pub(crate) cached_tokens: u64,
    pub(crate) prefilled_tokens: u64,
    /// From admission to the first token.
    pub(crate) prefill: Duration,
    pub(crate) generated_tokens: u64,
    /// Times between two tokens of a choice.
    pub(crate) intervals: u64,
    /// From the first token to the last one.
    pub(crate) decode: Duration,
}

impl Timing {
    pub(crate) fn new(usage: Usage, times: &EventTimes) -> Timing {
        let between = |start: Option<Instant>, end: Option<Instant>| {
            start.zip(end).map_or(Duration::ZERO, |(start, end)| end.saturating_duration_since(start))
        };
        Timing {
            cached_tokens: u64::from(usage.cached_tokens),
            prefilled_tokens: u64::from(usage.prompt_tokens.saturating_sub(usage.cached_tokens)),
            prefill: between(times.started, times.first_token),
            generated_tokens: u64::from(usage.completion_tokens),
            intervals: u64::from(usage.completion_tokens.saturating_sub(1)),
            decode: between(times.first_token, times.last_token),
        }
    }
}

impl std::ops::AddAssign for Timing {
    fn add_assign(&mut self, other: Timing) {
        self.cached_tokens += other.cached_tokens;
        self.prefilled_tokens += other.prefilled_tokens;
        self.prefill += other.prefill;
        self.generated_tokens += other.generated_tokens;
        self.intervals += other.intervals;
        self.decode += other.decode;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_events() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut times = EventTimes { started: Some(start), ..EventTimes::default() };
        let usage = Usage { prompt_tokens: 10, cached_tokens: 4, completion_tokens: 3, ..Usage::default() };
        for milliseconds in [20, 25, 40] {
            times.token(at(milliseconds));
        }
        // The end comes with the last token, or later.
        times.end(at(90));
        let timing = Timing::new(usage, &times);
        let expected = Timing {
            cached_tokens: 4,
            prefilled_tokens: 6,
            prefill: Duration::from_millis(20),
            generated_tokens: 3,
            intervals: 2,
            decode: Duration::from_millis(20),
        };
        assert_eq!(timing, expected);
        // Without a token, the prefill took until the end.
        let mut times = EventTimes { started: Some(start), ..EventTimes::default() };
        times.end(at(30));
        let timing = Timing::new(Usage { completion_tokens: 0, ..usage }, &times);
        assert_eq!((timing.prefill, timing.intervals), (Duration::from_millis(30), 0));
        assert_eq!(timing.decode, Duration::ZERO);
    }
}
