//! Who works when.

/// The order of turns.
#[derive(Debug, Clone)]
pub(super) struct Turns {
    random: u64,
    agents: usize,
    /// The agent that works only when nobody else can.
    slow: Option<usize>,
    /// Whether it works in this round.
    awake: bool,
}

impl Turns {
    /// Everybody works in every round.
    pub(super) fn new(agents: usize) -> Self {
        Self { random: 1, agents, slow: None, awake: false }
    }

    /// One works only when nobody else can.
    pub(super) fn seeded(agents: usize, seed: u64) -> Self {
        // The generator stays at zero, so it must not begin there; seeds that differ little must not begin alike.
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let slow = usize::try_from(seed % agents.max(1) as u64).ok();
        Self { random, agents, slow, awake: false }
    }

    /// The agent that begins the next round, and the most words that a channel moves in it.
    pub(super) fn next(&mut self) -> (usize, usize) {
        // xorshift: a few lines, and the same order on every machine.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let draw = self.random >> 11;
        (draw as usize % self.agents.max(1), 1 + (draw >> 40) as usize % 64)
    }

    pub(super) fn stands_still(&self, agent: usize) -> bool {
        self.slow == Some(agent) && !self.awake
    }

    /// After a round without progress, lets the slow one work in the next; whether it has not already.
    pub(super) fn wake(&mut self) -> bool {
        let wakes = self.slow.is_some() && !self.awake;
        self.awake = wakes;
        wakes
    }

    /// After a round with progress, lets the slow one stand still again.
    pub(super) fn rest(&mut self) {
        self.awake = false;
    }
}
