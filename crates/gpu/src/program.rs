//! A recorded program. It keeps everything it refers to alive, and replaying it costs one driver call.

use std::{
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ash::vk;

use crate::{
    block::Block,
    device_inner::{DeviceInner, Ticket},
    error::{Error, Result},
    pipeline::{Pipeline, PipelineInner},
    timing::{Timestamps, Timing},
};

/// Maximum number of programs per submission. The bound keeps replay free of allocation.
pub const MAX_PROGRAMS_PER_SUBMIT: usize = 64;

/// A sealed command sequence that can be submitted any number of times.
pub struct Program {
    commands: Commands,
    timestamps: Option<Timestamps>,
    /// Ticket of the last submission; 0 before the first.
    last: AtomicU64,
    /// Whether it is only compiled.
    compiles_only: bool,
}

impl Program {
    pub(crate) fn new(commands: Commands, timestamps: Option<Timestamps>, compiles_only: bool) -> Self {
        Self { commands, timestamps, last: AtomicU64::new(0), compiles_only }
    }

    /// Submits the program without waiting for it.
    pub fn submit(&self) -> Result<Ticket> {
        submit(&self.commands.device, &[self])
    }

    /// Submits the program and waits until it completes. Calls from several threads run one after the other, so that
    /// none spends its timeout on the work of others, and a submission at fault is the one that fails.
    pub fn run(&self, timeout: Duration) -> Result<()> {
        self.check_device(&self.commands.device)?;
        let _alone = self.commands.device.running.lock().unwrap_or_else(PoisonError::into_inner);
        let ticket = self.submit()?;
        self.commands.device.wait(ticket, timeout)
    }

    /// GPU time of each command in the last submission, which must have completed. An error if the program
    /// was recorded without timestamps.
    pub fn timings(&self) -> Result<Vec<Timing>> {
        let last = Ticket(self.last.load(Ordering::Acquire));
        let invalid = |reason: &str| Error::InvalidUse { what: "timings".into(), reason: reason.into() };
        let timestamps =
            self.timestamps.as_ref().ok_or_else(|| invalid("the program was recorded without timestamps"))?;
        if last.0 == 0 {
            return Err(invalid("the program has not run yet"));
        }
        self.commands.device.wait(last, Duration::ZERO)?;
        timestamps.read()
    }

    fn check_device(&self, device: &DeviceInner) -> Result<()> {
        let reason = match std::ptr::eq(&*self.commands.device, device) {
            true if !self.compiles_only => return Ok(()),
            true => "it was recorded for compiling only",
            false => "it belongs to another device",
        };
        Err(Error::InvalidUse { what: "program".into(), reason: reason.into() })
    }

    fn note_submission(&self, ticket: Ticket) {
        self.last.fetch_max(ticket.0, Ordering::AcqRel);
        for block in &self.commands.resources.blocks {
            block.note_use(ticket);
        }
    }
}

/// Submits programs, in order, as one submission.
pub(crate) fn submit(device: &DeviceInner, programs: &[&Program]) -> Result<Ticket> {
    if programs.is_empty() || programs.len() > MAX_PROGRAMS_PER_SUBMIT {
        return Err(Error::InvalidUse {
            what: "submission".into(),
            reason: format!("{} programs; 1 to {MAX_PROGRAMS_PER_SUBMIT} are allowed", programs.len()),
        });
    }
    let mut buffers = [vk::CommandBufferSubmitInfo::default(); MAX_PROGRAMS_PER_SUBMIT];
    for (slot, program) in buffers.iter_mut().zip(programs) {
        program.check_device(device)?;
        *slot = slot.command_buffer(program.commands.raw);
    }
    let ticket = device.submit_commands(&buffers[..programs.len()])?;
    for program in programs {
        program.note_submission(ticket);
    }
    Ok(ticket)
}

impl Drop for Program {
    fn drop(&mut self) {
        let last = Ticket(self.last.load(Ordering::Acquire));
        if last.0 > 0 && !self.commands.device.wait_in_drop(last) {
            // The GPU may still use these resources, so they are leaked.
            std::mem::forget(std::mem::take(&mut self.commands.resources));
            self.commands.leak = true;
            if let Some(timestamps) = self.timestamps.take() {
                std::mem::forget(timestamps);
            }
        }
    }
}

/// A command buffer with its own pool, and the resources that its commands refer to.
pub(crate) struct Commands {
    pub device: Arc<DeviceInner>,
    pool: vk::CommandPool,
    pub raw: vk::CommandBuffer,
    resources: Resources,
    leak: bool,
}

#[derive(Default)]
struct Resources {
    blocks: Vec<Arc<Block>>,
    pipelines: Vec<Arc<PipelineInner>>,
}

impl Commands {
    pub fn new(device: &Arc<DeviceInner>) -> Result<Self> {
        let create = vk::CommandPoolCreateInfo::default().queue_family_index(device.queue_family);
        // SAFETY: the device was created with a queue of this family; the pool is destroyed by Drop.
        let pool = unsafe { device.raw.create_command_pool(&create, None) }
            .map_err(|result| device.fail("vkCreateCommandPool", result))?;
        let mut commands = Self {
            device: device.clone(),
            pool,
            raw: vk::CommandBuffer::null(),
            resources: Resources::default(),
            leak: false,
        };
        let allocate = vk::CommandBufferAllocateInfo::default()
            .command_pool(pool)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(1);
        let allocated = if device.faults.fails_commands() {
            Err(vk::Result::ERROR_OUT_OF_HOST_MEMORY)
        } else {
            // SAFETY: the pool was just created and is used by this thread only.
            unsafe { device.raw.allocate_command_buffers(&allocate) }
        };
        let buffers = allocated.map_err(|result| device.fail("vkAllocateCommandBuffers", result))?;
        commands.raw = buffers[0];
        Ok(commands)
    }

    pub fn keep_block(&mut self, block: &Arc<Block>) {
        if !self.resources.blocks.iter().any(|kept| Arc::ptr_eq(kept, block)) {
            self.resources.blocks.push(block.clone());
        }
    }

    pub fn pipelines(&self) -> Vec<Pipeline> {
        self.resources.pipelines.iter().map(|inner| Pipeline { inner: inner.clone() }).collect()
    }

    pub fn keep_pipeline(&mut self, pipeline: &Pipeline) {
        if !self.resources.pipelines.iter().any(|kept| Arc::ptr_eq(kept, &pipeline.inner)) {
            self.resources.pipelines.push(pipeline.inner.clone());
        }
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        if !self.leak {
            // SAFETY: a Program waits for the GPU before it drops its commands, and an unsubmitted pool is
            // idle. Destroying the pool frees its command buffer.
            unsafe { self.device.raw.destroy_command_pool(self.pool, None) };
        }
    }
}
