//! Scheduler configuration.

use std::time::Duration;

/// Scheduler configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Maximum number of waiting requests, beyond those for which a sequence is free.
    pub queue_capacity: usize,
    /// Time budget of a step that prefills next to decoding requests or for several prompts. It bounds the
    /// inter-token latency that other prompts cause, and how long a short prompt waits for those in its step.
    pub mixed_step_budget: Duration,
    /// The same during a burst, when at least eight requests, and one for every eight that decode, can be prefilled and
    /// have no token yet. Longer steps have higher throughput and lower the time to first token, at the cost of the
    /// inter-token latency. `mixed_step_budget` is the lower bound.
    pub burst_step_budget: Duration,
    /// Time budget of a step that prefills a single prompt while nothing decodes. Longer chunks prefill
    /// faster, but a request that arrives meanwhile waits for the step. `mixed_step_budget` is the lower
    /// bound.
    pub prefill_step_budget: Duration,
    /// Maximum time for KV pages that are not stored on disk yet when the engine stops.
    pub store_timeout: Duration,
    /// Whether tokens are drafted and verified several at a time, where that is expected to be faster.
    pub speculate: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queue_capacity: 64,
            mixed_step_budget: Duration::from_millis(100),
            // On an H200, steps of 1,024 rows of a 27B take 175 ms; steps twice as long gain nothing there.
            burst_step_budget: Duration::from_millis(250),
            prefill_step_budget: Duration::from_millis(400),
            // About a gigabyte on a usual SSD.
            store_timeout: Duration::from_secs(5),
            speculate: true,
        }
    }
}
