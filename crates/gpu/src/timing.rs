//! GPU timestamps: the time of each command of a program, or of the whole program.
//!
//! A timestamp after each command costs microseconds on some GPUs. Use per-command timings for profiles, and
//! [`TimestampMode::Whole`] to measure a program.

use std::sync::Arc;

use ash::vk;

use crate::{
    device_inner::DeviceInner,
    error::{Error, Result},
    hazards::Stages,
};

/// Where a program writes timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampMode {
    /// After each command, for at most this many commands.
    PerCommand(u32),
    /// At the start and the end: one timing, named `whole`.
    Whole,
}

/// GPU time of one named command.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// The name given when it was recorded.
    pub name: String,
    /// Nanoseconds from the end of the previous command (or the start of the program) to the end of this one.
    /// Concurrent commands share their time, so the sum over all commands is the time of the program.
    pub nanoseconds: f64,
    /// Number of barriers before the command. Commands of the same level may run concurrently.
    pub level: u32,
}

/// A query pool with one timestamp at the start and one per timing.
pub(crate) struct Timestamps {
    device: Arc<DeviceInner>,
    pool: vk::QueryPool,
    mode: TimestampMode,
    period_ns: f64,
    /// Name and level of each timed command.
    commands: Vec<(String, u32)>,
}

impl Timestamps {
    pub fn new(device: &Arc<DeviceInner>, mode: TimestampMode, period_ns: f64) -> Result<Self> {
        let create = vk::QueryPoolCreateInfo::default()
            .query_type(vk::QueryType::TIMESTAMP)
            .query_count(query_count(mode));
        // SAFETY: the create info outlives the call; the pool is destroyed by Drop.
        let pool = unsafe { device.raw.create_query_pool(&create, None) }
            .map_err(|result| device.fail("vkCreateQueryPool", result))?;
        Ok(Self { device: device.clone(), pool, mode, period_ns, commands: Vec::new() })
    }

    /// Records the reset of the queries and the first timestamp.
    pub fn record_start(&self, buffer: vk::CommandBuffer) {
        // SAFETY: the command buffer is in the recording state, and its program keeps this pool alive.
        unsafe {
            self.device.raw.cmd_reset_query_pool(buffer, self.pool, 0, query_count(self.mode));
            self.device.raw.cmd_write_timestamp2(buffer, Stages::ALL_COMMANDS, self.pool, 0);
        }
    }

    /// Registers a command; returns the query to write after it, if any.
    pub fn add_command(&mut self, name: &str, level: u32) -> Result<Option<u32>> {
        match self.mode {
            TimestampMode::Whole => Ok(None),
            TimestampMode::PerCommand(capacity) if self.commands.len() < capacity as usize => {
                Ok(Some(self.next_query(name, level)))
            }
            TimestampMode::PerCommand(capacity) => {
                let reason = format!("more commands than the {capacity} timestamps reserved");
                Err(Error::InvalidUse { what: name.to_string(), reason })
            }
        }
    }

    /// Ends the program; returns the query to write after the last command, if any.
    pub fn end(&mut self) -> Option<u32> {
        (self.mode == TimestampMode::Whole).then(|| self.next_query("whole", 0))
    }

    fn next_query(&mut self, name: &str, level: u32) -> u32 {
        self.commands.push((name.to_string(), level));
        self.commands.len() as u32
    }

    /// Records a timestamp into a query that [`add_command`](Self::add_command) or [`end`](Self::end)
    /// returned.
    pub fn record(&self, buffer: vk::CommandBuffer, query: u32, stage: Stages) {
        // SAFETY: the command buffer is in the recording state, and its program keeps this pool alive; the
        // query is below the pool's size.
        unsafe { self.device.raw.cmd_write_timestamp2(buffer, stage, self.pool, query) };
    }

    /// The timings of the last submission, which must have completed.
    pub fn read(&self) -> Result<Vec<Timing>> {
        let mut ticks = vec![0_u64; self.commands.len() + 1];
        let flags = vk::QueryResultFlags::TYPE_64 | vk::QueryResultFlags::WAIT;
        // SAFETY: the last submission has completed, so every query has a result; `ticks` has one element per
        // query.
        unsafe { self.device.raw.get_query_pool_results(self.pool, 0, &mut ticks, flags) }
            .map_err(|result| self.device.fail("vkGetQueryPoolResults", result))?;
        let bits = self.device.caps.timestamp_bits;
        let mask = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
        // Modulo the counter's width, so that a wrap-around in between gives the right difference.
        let difference = |pair: &[u64]| pair[1].wrapping_sub(pair[0]) & mask;
        let nanoseconds = ticks.windows(2).map(|pair| difference(pair) as f64 * self.period_ns);
        Ok(self
            .commands
            .iter()
            .zip(nanoseconds)
            .map(|((name, level), ns)| Timing { name: name.clone(), nanoseconds: ns, level: *level })
            .collect())
    }
}

impl Drop for Timestamps {
    fn drop(&mut self) {
        // SAFETY: the program that owns the pool waits for the GPU before it drops it, or leaks it.
        unsafe { self.device.raw.destroy_query_pool(self.pool, None) };
    }
}

fn query_count(mode: TimestampMode) -> u32 {
    match mode {
        TimestampMode::PerCommand(capacity) => capacity + 1,
        TimestampMode::Whole => 2,
    }
}
