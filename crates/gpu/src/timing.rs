//! GPU timestamps of a program: what each command took, or the whole of it.
//!
//! A timestamp after a command is written when the command is done, and on some GPUs that alone costs microseconds: it shows
//! where time goes, but what a chain of commands takes is measured at its ends.

use std::sync::Arc;

use ash::vk;

use crate::{
    device::DeviceInner,
    error::{Error, Result},
    hazards::Stages,
    program::Commands,
};

/// Where a program's timestamps are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampMode {
    /// After each of at most this many commands.
    PerCommand(u32),
    /// At the start and the end only: one timing, named `whole`.
    Whole,
}

/// GPU time of one named command.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// The name given when it was recorded.
    pub name: String,
    /// Nanoseconds from the end of the command before it (or the start of the program) to its own end. Commands that
    /// run side by side share the time: the sum is the whole.
    pub nanoseconds: f64,
    /// How many barriers came before it in its program: commands of one level run side by side.
    pub level: u32,
}

/// One timestamp at the start and one for each timing.
pub(crate) struct Timestamps {
    device: Arc<DeviceInner>,
    pool: vk::QueryPool,
    stamps: TimestampMode,
    period_ns: f64,
    names: Vec<(String, u32)>,
}

impl Timestamps {
    pub fn new(device: &Arc<DeviceInner>, stamps: TimestampMode, period_ns: f64) -> Result<Self> {
        let create = vk::QueryPoolCreateInfo::default()
            .query_type(vk::QueryType::TIMESTAMP)
            .query_count(count(stamps));
        // SAFETY: the pool is destroyed by Drop.
        let pool = unsafe { device.raw.create_query_pool(&create, None) }
            .map_err(|result| device.fail("vkCreateQueryPool", result))?;
        Ok(Self { device: device.clone(), pool, stamps, period_ns, names: Vec::new() })
    }

    pub fn reset_and_start(&self, commands: &Commands) {
        // SAFETY: recording into a command buffer that keeps this pool beside it.
        unsafe {
            self.device.raw.cmd_reset_query_pool(commands.raw, self.pool, 0, count(self.stamps));
            self.device.raw.cmd_write_timestamp2(commands.raw, Stages::ALL_COMMANDS, self.pool, 0);
        }
    }

    /// A command was recorded; gives the number of the timestamp that follows it, if one does.
    pub fn command(&mut self, name: &str, level: u32) -> Result<Option<u32>> {
        match self.stamps {
            TimestampMode::Whole => Ok(None),
            TimestampMode::PerCommand(capacity) if self.names.len() < capacity as usize => {
                Ok(Some(self.next(name, level)))
            }
            TimestampMode::PerCommand(capacity) => {
                let reason = format!("more than the {capacity} timestamps asked for");
                Err(Error::InvalidUse { what: name.to_string(), reason })
            }
        }
    }

    /// The last command was recorded; as above.
    pub fn end(&mut self) -> Option<u32> {
        (self.stamps == TimestampMode::Whole).then(|| self.next("whole", 0))
    }

    fn next(&mut self, name: &str, level: u32) -> u32 {
        self.names.push((name.to_string(), level));
        self.names.len() as u32
    }

    /// Writes a timestamp whose number was given by one of the above.
    pub fn stamp(&self, commands: &Commands, number: u32, stage: Stages) {
        // SAFETY: recording into a command buffer that keeps this pool beside it; the number is below the pool's size.
        unsafe { self.device.raw.cmd_write_timestamp2(commands.raw, stage, self.pool, number) };
    }

    /// The timings of a run that is done.
    pub fn read(&self) -> Result<Vec<Timing>> {
        let mut ticks = vec![0_u64; self.names.len() + 1];
        let flags = vk::QueryResultFlags::TYPE_64 | vk::QueryResultFlags::WAIT;
        // SAFETY: the last submission is done, so every query that was written has its result.
        unsafe { self.device.raw.get_query_pool_results(self.pool, 0, &mut ticks, flags) }
            .map_err(|result| self.device.fail("vkGetQueryPoolResults", result))?;
        let bits = self.device.caps.timestamp_bits;
        let mask = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
        // Modulo its bits: a counter that started again from zero in between still gives the difference.
        let difference = |pair: &[u64]| pair[1].wrapping_sub(pair[0]) & mask;
        let nanoseconds = ticks.windows(2).map(|pair| difference(pair) as f64 * self.period_ns);
        Ok(self
            .names
            .iter()
            .zip(nanoseconds)
            .map(|((name, level), ns)| Timing { name: name.clone(), nanoseconds: ns, level: *level })
            .collect())
    }
}

impl Drop for Timestamps {
    fn drop(&mut self) {
        // SAFETY: the program that wrote to the pool has waited for the GPU.
        unsafe { self.device.raw.destroy_query_pool(self.pool, None) };
    }
}

fn count(stamps: TimestampMode) -> u32 {
    match stamps {
        TimestampMode::PerCommand(capacity) => capacity + 1,
        TimestampMode::Whole => 2,
    }
}
