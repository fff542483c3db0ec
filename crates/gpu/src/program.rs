//! A recorded program: what it needs stays alive with it, and replaying it costs one call into the driver.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ash::vk;

use crate::{
    device::{Device, DeviceInner, Ticket},
    error::{Error, Result},
    memory::Block,
    pipeline::{Pipeline, PipelineInner},
    timing::{Timestamps, Timing},
};

/// A sealed sequence of commands, replayed with one submission.
pub struct Program {
    commands: Commands,
    timestamps: Option<Timestamps>,
    last: AtomicU64,
}

impl Program {
    pub(crate) fn new(commands: Commands, timestamps: Option<Timestamps>) -> Self {
        Self { commands, timestamps, last: AtomicU64::new(0) }
    }

    /// Replays the program. Returns at once.
    pub fn submit(&self) -> Result<Ticket> {
        Device { inner: self.commands.device.clone() }.submit(&[self])
    }

    /// Replays the program and waits for it.
    pub fn run(&self, timeout: Duration) -> Result<()> {
        let ticket = self.submit()?;
        self.commands.device.wait(ticket, timeout)
    }

    /// GPU time of each command in the last run, which must be done. An error unless the recorder was a timed one.
    pub fn timings(&self) -> Result<Vec<Timing>> {
        let last = Ticket(self.last.load(Ordering::Acquire));
        let wrong = |reason: &str| Error::InvalidUse { what: "timings".into(), reason: reason.into() };
        let timestamps =
            self.timestamps.as_ref().ok_or_else(|| wrong("the program was recorded without timestamps"))?;
        if last.0 == 0 {
            return Err(wrong("the program has not run yet"));
        }
        self.commands.device.wait(last, Duration::ZERO)?;
        timestamps.read()
    }

    pub(crate) fn commands(&self) -> vk::CommandBuffer {
        self.commands.raw
    }

    pub(crate) fn must_be_of(&self, device: &DeviceInner) -> Result<()> {
        if std::ptr::eq(&*self.commands.device, device) {
            Ok(())
        } else {
            Err(Error::InvalidUse { what: "program".into(), reason: "it belongs to another device".into() })
        }
    }

    pub(crate) fn note_submission(&self, ticket: Ticket) {
        self.last.fetch_max(ticket.0, Ordering::AcqRel);
        for block in &self.commands.kept.blocks {
            block.note_use(ticket);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let last = Ticket(self.last.load(Ordering::Acquire));
        if last.0 > 0 && !self.commands.device.is_past(last) {
            // The GPU may still read all of it: leaking is the only safe way left.
            std::mem::forget(std::mem::take(&mut self.commands.kept));
            self.commands.leak = true;
            if let Some(timestamps) = self.timestamps.take() {
                std::mem::forget(timestamps);
            }
        }
    }
}

/// A command buffer with its own pool, and everything its commands point to.
pub(crate) struct Commands {
    pub device: Arc<DeviceInner>,
    pool: vk::CommandPool,
    pub raw: vk::CommandBuffer,
    kept: Kept,
    leak: bool,
}

#[derive(Default)]
struct Kept {
    blocks: Vec<Arc<Block>>,
    pipelines: Vec<Arc<PipelineInner>>,
}

impl Commands {
    pub fn new(device: &Arc<DeviceInner>) -> Result<Self> {
        let create = vk::CommandPoolCreateInfo::default().queue_family_index(device.queue_family);
        // SAFETY: the family is the one the device was opened with; the pool is destroyed by Drop.
        let pool = unsafe { device.raw.create_command_pool(&create, None) }
            .map_err(|result| device.fail("vkCreateCommandPool", result))?;
        let mut commands = Self {
            device: device.clone(),
            pool,
            raw: vk::CommandBuffer::null(),
            kept: Kept::default(),
            leak: false,
        };
        let allocate = vk::CommandBufferAllocateInfo::default()
            .command_pool(pool)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(1);
        let allocated = match device.faults.strikes_commands() {
            true => Err(vk::Result::ERROR_OUT_OF_HOST_MEMORY),
            // SAFETY: the pool was just made.
            false => unsafe { device.raw.allocate_command_buffers(&allocate) },
        };
        let buffers = allocated.map_err(|result| device.fail("vkAllocateCommandBuffers", result))?;
        commands.raw = buffers[0];
        Ok(commands)
    }

    pub fn keep_block(&mut self, block: &Arc<Block>) {
        if !self.kept.blocks.iter().any(|kept| Arc::ptr_eq(kept, block)) {
            self.kept.blocks.push(block.clone());
        }
    }

    pub fn pipelines(&self) -> Vec<Pipeline> {
        self.kept.pipelines.iter().map(|inner| Pipeline { inner: inner.clone() }).collect()
    }

    pub fn keep_pipeline(&mut self, pipeline: &Pipeline) {
        if !self.kept.pipelines.iter().any(|kept| Arc::ptr_eq(kept, &pipeline.inner)) {
            self.kept.pipelines.push(pipeline.inner.clone());
        }
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        if !self.leak {
            // SAFETY: a Program waits for the GPU before it drops its commands.
            unsafe { self.device.raw.destroy_command_pool(self.pool, None) };
        }
    }
}
