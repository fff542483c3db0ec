//! Scheduling of channels and cores: round-robin, optionally with one of them starved.

/// Schedules processes, numbered from 0.
#[derive(Debug, Clone)]
pub(super) struct Scheduler {
    random: u64,
    processes: usize,
    /// The process that runs only when all others are stalled.
    starved: Option<usize>,
    /// Whether it runs in this round.
    resumed: bool,
}

impl Scheduler {
    /// Every process runs in every round.
    pub(super) fn fair(processes: usize) -> Self {
        Self { random: 1, processes, starved: None, resumed: false }
    }

    /// Process `seed` modulo their number is starved.
    pub(super) fn starving(processes: usize, seed: u64) -> Self {
        // The generator stays at zero, so it must not start there; similar seeds must not start alike.
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let starved = usize::try_from(seed % processes.max(1) as u64).ok();
        Self { random, processes, starved, resumed: false }
    }

    /// The first process of the next round, and the maximum number of words per channel in it.
    pub(super) fn next_round(&mut self) -> (usize, usize) {
        // xorshift: a few lines, and the same schedule on every machine.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let draw = self.random >> 11;
        (draw as usize % self.processes.max(1), 1 + (draw >> 40) as usize % 64)
    }

    pub(super) fn skips(&self, process: usize) -> bool {
        self.starved == Some(process) && !self.resumed
    }

    /// After a round without progress: resumes the starved process. Returns false if it ran already: a deadlock.
    pub(super) fn resume_starved(&mut self) -> bool {
        self.resumed = self.starved.is_some() && !self.resumed;
        self.resumed
    }

    /// After a round with progress: suspends the starved process.
    pub(super) fn suspend_starved(&mut self) {
        self.resumed = false;
    }
}
