//! The state that everything made from a device shares: the Vulkan handle, the queue and its timeline, device
//! loss, counters.
//!
//! All work goes through one compute queue. Each submission increments a timeline semaphore; a [`Ticket`] is
//! the value that the semaphore reaches when that submission completes. Waiting blocks in the kernel; nothing
//! polls.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use ash::vk;

use crate::{
    accounting::Accounting,
    adapter::Adapter,
    cache::PipelineCache,
    caps::Caps,
    error::{Error, Result},
    faults::Faults,
    heap::Heap,
};

/// A submission that can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub(crate) u64);

/// Counts of operations that must not happen per token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Allocations of device memory.
    pub allocations: u64,
    /// Recorded commands: dispatches, copies, fills, barriers.
    pub commands_recorded: u64,
    /// Recorded barriers.
    pub barriers_recorded: u64,
    /// Pipelines compiled or loaded from the pipeline cache.
    pub pipelines: u64,
    /// Pipelines that the driver reports as loaded from the pipeline cache.
    pub pipelines_from_cache: u64,
    /// Submissions to the queue.
    pub submissions: u64,
}

#[derive(Default)]
pub(crate) struct AtomicCounters {
    pub allocations: AtomicU64,
    pub commands: AtomicU64,
    pub barriers: AtomicU64,
    pub pipelines: AtomicU64,
    pub pipelines_from_cache: AtomicU64,
    pub pipelines_pending: AtomicU64,
    pub submissions: AtomicU64,
}

impl AtomicCounters {
    pub fn load(&self) -> Counters {
        Counters {
            allocations: self.allocations.load(Ordering::Relaxed),
            commands_recorded: self.commands.load(Ordering::Relaxed),
            barriers_recorded: self.barriers.load(Ordering::Relaxed),
            pipelines: self.pipelines.load(Ordering::Relaxed),
            pipelines_from_cache: self.pipelines_from_cache.load(Ordering::Relaxed),
            submissions: self.submissions.load(Ordering::Relaxed),
        }
    }
}

/// A logical device. Memory, pipelines and programs hold an `Arc` to it.
pub(crate) struct DeviceInner {
    pub adapter: Adapter,
    pub raw: ash::Device,
    pub executable_properties: Option<ash::khr::pipeline_executable_properties::Device>,
    /// `VK_EXT_conditional_rendering`, if the device has it.
    pub conditional_rendering: Option<ash::ext::conditional_rendering::Device>,
    pub queue_family: u32,
    pub queue: Queue,
    pub caps: Caps,
    pub cache: PipelineCache,
    pub faults: Faults,
    pub lost: AtomicBool,
    /// Held by [`Program::run`](crate::Program::run).
    pub running: Mutex<()>,
    pub counters: AtomicCounters,
    pub accounting: Accounting,
    /// Memory types that buffers may use, one bit per type.
    pub buffer_memory_types: u32,
}

/// The compute queue and the timeline of its submissions.
pub(crate) struct Queue {
    state: Mutex<QueueState>,
    /// `None` on a compile-only device.
    timeline: Option<vk::Semaphore>,
}

struct QueueState {
    raw: vk::Queue,
    /// Timeline value of the last submission.
    last: u64,
}

impl Queue {
    pub fn new(raw: vk::Queue, timeline: Option<vk::Semaphore>) -> Self {
        Self { state: Mutex::new(QueueState { raw, last: 0 }), timeline }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DeviceInner {
    pub fn submit_commands(&self, buffers: &[vk::CommandBufferSubmitInfo<'_>]) -> Result<Ticket> {
        let timeline = self.timeline()?;
        let mut queue = self.queue.lock();
        // Checked under the lock: nothing is submitted after the submission that found the device lost.
        self.check_lost("vkQueueSubmit2")?;
        if self.faults.fails_submission() {
            // A lost device no longer accesses memory. Waiting for idle puts this one into the same state.
            // SAFETY: vkDeviceWaitIdle requires that no other thread uses the queue; it is locked.
            let _ = unsafe { self.raw.device_wait_idle() };
            return Err(self.fail("vkQueueSubmit2 (injected fault)", vk::Result::ERROR_DEVICE_LOST));
        }
        let value = queue.last + 1;
        let signal = [vk::SemaphoreSubmitInfo::default()
            .semaphore(timeline)
            .value(value)
            .stage_mask(vk::PipelineStageFlags2::ALL_COMMANDS)];
        let submit =
            [vk::SubmitInfo2::default().command_buffer_infos(buffers).signal_semaphore_infos(&signal)];
        // SAFETY: the queue is locked, so access to it is synchronised. The command buffers are in the
        // executable state and their owners keep them alive until the timeline has reached `value` (Program
        // waits for it in Drop).
        let result = unsafe { self.raw.queue_submit2(queue.raw, &submit, vk::Fence::null()) };
        result.map_err(|result| self.fail("vkQueueSubmit2", result))?;
        queue.last = value;
        self.counters.submissions.fetch_add(1, Ordering::Relaxed);
        Ok(Ticket(value))
    }

    /// Blocks until the submission completes.
    pub fn wait(&self, ticket: Ticket, timeout: Duration) -> Result<()> {
        self.check_lost("vkWaitSemaphores")?;
        let semaphores = [self.timeline()?];
        let values = [ticket.0];
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        let nanoseconds = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        // SAFETY: the semaphore is a timeline semaphore of this device and is destroyed only in Drop.
        match unsafe { self.raw.wait_semaphores(&info, nanoseconds) } {
            Ok(()) => Ok(()),
            Err(vk::Result::TIMEOUT) => Err(Error::Timeout { what: "a submission", waited: timeout }),
            Err(result) => Err(self.fail("vkWaitSemaphores", result)),
        }
    }

    /// Whether the submission has completed, without waiting.
    pub fn is_done(&self, ticket: Ticket) -> Result<bool> {
        match self.wait(ticket, Duration::ZERO) {
            Ok(()) => Ok(true),
            Err(Error::Timeout { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits in a destructor. Returns true if it is certain that the GPU no longer uses the submission's
    /// resources: the submission has completed, or the device is lost.
    pub fn wait_in_drop(&self, ticket: Ticket) -> bool {
        const TIMEOUT: Duration = Duration::from_secs(60);
        match self.wait(ticket, TIMEOUT) {
            Ok(()) | Err(Error::DeviceLost { .. }) => true,
            Err(error) => {
                tracing::error!("{error}; memory used by the submission is not freed");
                false
            }
        }
    }

    /// Converts a driver result to an error. After a device loss, every later call fails with it.
    pub fn fail(&self, call: &'static str, result: vk::Result) -> Error {
        if result == vk::Result::ERROR_DEVICE_LOST {
            self.lost.store(true, Ordering::SeqCst);
        }
        Error::from_vk(call, result)
    }

    pub fn check_lost(&self, during: &'static str) -> Result<()> {
        if self.lost.load(Ordering::SeqCst) { Err(Error::DeviceLost { during }) } else { Ok(()) }
    }

    /// The heaps with their current budgets.
    pub fn heaps(&self) -> Vec<Heap> {
        self.adapter.heaps()
    }

    fn timeline(&self) -> Result<vk::Semaphore> {
        self.queue.timeline.ok_or_else(|| Error::Unsupported {
            device: self.adapter.info.name.clone(),
            missing: "it is not present and can only compile".into(),
            fix: "unset RADV_FORCE_FAMILY".into(),
        })
    }
}

impl Drop for DeviceInner {
    fn drop(&mut self) {
        // SAFETY: everything made from the device holds an Arc to it, so all other objects are already
        // destroyed and only the queue can be busy; waiting for a lost device returns at once. The cache and
        // the semaphore are destroyed once, before the device they belong to.
        unsafe {
            // Waiting for the queue of a compile-only device crashes inside Mesa.
            if self.queue.timeline.is_some() {
                let _ = self.raw.device_wait_idle();
            }
            self.cache.save(&self.raw);
            self.cache.destroy(&self.raw);
            if let Some(timeline) = self.queue.timeline {
                self.raw.destroy_semaphore(timeline, None);
            }
            self.raw.destroy_device(None);
        }
    }
}
