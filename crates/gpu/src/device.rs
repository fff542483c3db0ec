//! An open device: its queue, its clock (one timeline semaphore) and its counters.
//!
//! All work goes through one compute queue. Each submission raises the timeline by one; a [`Ticket`] is the value it
//! will reach when that submission is done. Waiting sleeps in the kernel; nothing polls.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use ash::vk;

use crate::{
    adapter::{Adapter, AdapterInfo},
    cache::PipelineCache,
    caps::{Caps, Tier},
    error::{Error, Result},
    faults::{Fault, Faults},
    heap::Heap,
    memory::Lifetime,
    pipeline::PipelineTable,
    program::Program,
    vk_ext,
};

/// How to open a device.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// Enable nothing above this tier.
    pub max_tier: Tier,
    /// Where compiled pipelines are kept between runs; none to keep them in memory only.
    pub cache_dir: Option<PathBuf>,
    /// Keep the driver's statistics and assembly of every pipeline (compiling gets slower, caching is off).
    pub capture_statistics: bool,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self { max_tier: Tier::T3, cache_dir: crate::cache::cache_dir(), capture_statistics: false }
    }
}

/// An open device. Cheap to clone; closed when the last clone and everything made from it is gone.
#[derive(Clone)]
pub struct Device {
    pub(crate) inner: Arc<DeviceInner>,
}

/// A submission, to be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub(crate) u64);

/// How often the things happened that must not happen per token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Allocations of device memory.
    pub allocations: u64,
    /// Commands recorded (dispatches, copies, fills, barriers).
    pub commands_recorded: u64,
    /// Barriers among them.
    pub barriers_recorded: u64,
    /// Pipelines compiled or taken from the cache on disk.
    pub pipelines: u64,
    /// Those among them that the driver says it took from the cache.
    pub pipelines_from_cache: u64,
    /// Submissions to the queue.
    pub submissions: u64,
}

pub(crate) struct DeviceInner {
    pub adapter: Adapter,
    pub raw: ash::Device,
    pub executable_properties: Option<ash::khr::pipeline_executable_properties::Device>,
    /// Where the device has it.
    pub conditional: Option<ash::ext::conditional_rendering::Device>,
    pub queue_family: u32,
    queue: Mutex<Queue>,
    // None on a device that can only compile.
    timeline: Option<vk::Semaphore>,
    pub caps: Caps,
    pub cache: PipelineCache,
    pub pipelines: PipelineTable,
    pub faults: Faults,
    lost: AtomicBool,
    pub counters: AtomicCounters,
    pub in_use: [AtomicU64; Lifetime::COUNT],
    pub in_use_by_heap: [AtomicU64; vk::MAX_MEMORY_HEAPS],
    /// Memory types that a buffer may have, one bit each.
    pub buffer_types: u32,
}

struct Queue {
    raw: vk::Queue,
    last: u64,
}

#[derive(Default)]
pub(crate) struct AtomicCounters {
    pub allocations: AtomicU64,
    pub commands: AtomicU64,
    pub barriers: AtomicU64,
    pub pipelines: AtomicU64,
    pub pipelines_from_cache: AtomicU64,
    pub submissions: AtomicU64,
}

/// Most programs of one submission; their order is kept. The bound keeps replay free of allocation.
pub const MAX_PROGRAMS_PER_SUBMIT: usize = 64;

impl Device {
    /// Opens the device with every feature its tiers need, up to `options.max_tier`.
    pub fn open(adapter: &Adapter, options: &DeviceOptions) -> Result<Self> {
        let info = &adapter.info;
        let unusable = |missing: String| Error::Unsupported {
            device: info.name.clone(),
            missing,
            fix: "update its driver or choose another device (indrik devices)".into(),
        };
        if info.caps.tier().is_none() {
            return Err(unusable(format!("it lacks {}", info.caps.missing_core.join(", "))));
        }
        let queue_family = adapter.queue_family.ok_or_else(|| unusable("it has no compute queue".into()))?;
        let caps = limit_caps(&info.caps, options.max_tier);
        let Opened { raw, executable_properties, conditional } =
            create_device(adapter, queue_family, &caps, options.capture_statistics)?;

        // SAFETY: the family was enabled with one queue.
        let queue = unsafe { raw.get_device_queue(queue_family, 0) };
        // Statistics are only there for pipelines that were compiled and not found.
        let cache_dir = options.cache_dir.as_deref().filter(|_| !options.capture_statistics);
        let made = if info.compile_only { Ok(None) } else { create_timeline(&raw).map(Some) }
            .and_then(|timeline| Ok((timeline, PipelineCache::open(&raw, info, cache_dir)?)));
        let (timeline, cache) = made.inspect_err(|_| {
            // SAFETY: nothing but the queue was made from the device that could still be in use.
            unsafe { raw.destroy_device(None) }
        })?;
        let buffer_types = if info.compile_only { 0 } else { crate::memory::buffer_types(&raw, &caps) };
        let faults = Faults::default();
        for fault in &adapter.instance.inner.faults {
            faults.inject(fault.clone());
        }
        let inner = DeviceInner {
            adapter: adapter.clone(),
            executable_properties,
            conditional,
            queue_family,
            queue: Mutex::new(Queue { raw: queue, last: 0 }),
            timeline,
            caps,
            cache,
            pipelines: PipelineTable::default(),
            faults,
            lost: AtomicBool::new(false),
            counters: AtomicCounters::default(),
            in_use: Default::default(),
            in_use_by_heap: Default::default(),
            buffer_types,
            raw,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// What the device is.
    pub fn info(&self) -> &AdapterInfo {
        &self.inner.adapter.info
    }

    /// What the device can do, limited to the tier it was opened with.
    pub fn caps(&self) -> &Caps {
        &self.inner.caps
    }

    /// The heaps with their budgets as they are now.
    pub fn heaps(&self) -> Vec<Heap> {
        let adapter = &self.inner.adapter;
        crate::heap::query(&adapter.instance, adapter.raw, adapter.extensions.memory_budget).0
    }

    /// Bytes of device memory that this device has allocated for a lifetime and not yet given back.
    pub fn allocated_bytes(&self, lifetime: Lifetime) -> u64 {
        self.inner.in_use[lifetime as usize].load(Ordering::Relaxed)
    }

    /// How often the costly things happened so far.
    pub fn counters(&self) -> Counters {
        let counters = &self.inner.counters;
        Counters {
            allocations: counters.allocations.load(Ordering::Relaxed),
            commands_recorded: counters.commands.load(Ordering::Relaxed),
            barriers_recorded: counters.barriers.load(Ordering::Relaxed),
            pipelines: counters.pipelines.load(Ordering::Relaxed),
            pipelines_from_cache: counters.pipelines_from_cache.load(Ordering::Relaxed),
            submissions: counters.submissions.load(Ordering::Relaxed),
        }
    }

    /// Makes a fault happen, for tests of what follows it.
    pub fn inject(&self, fault: Fault) {
        self.inner.faults.inject(fault);
    }

    /// Replays programs, in order, as one submission.
    pub fn submit(&self, programs: &[&Program]) -> Result<Ticket> {
        let inner = &*self.inner;
        if programs.is_empty() || programs.len() > MAX_PROGRAMS_PER_SUBMIT {
            return Err(Error::InvalidUse {
                what: "submission".into(),
                reason: format!("{} programs; 1 to {MAX_PROGRAMS_PER_SUBMIT} are allowed", programs.len()),
            });
        }
        let mut buffers = [vk::CommandBufferSubmitInfo::default(); MAX_PROGRAMS_PER_SUBMIT];
        for (slot, program) in buffers.iter_mut().zip(programs) {
            program.must_be_of(inner)?;
            *slot = slot.command_buffer(program.commands());
        }
        let ticket = inner.submit_commands(&buffers[..programs.len()])?;
        for program in programs {
            program.note_submission(ticket);
        }
        Ok(ticket)
    }

    /// Sleeps until the submission is done.
    pub fn wait(&self, ticket: Ticket, timeout: Duration) -> Result<()> {
        self.inner.wait(ticket, timeout)
    }

    /// Whether the submission is done, without waiting.
    pub fn is_done(&self, ticket: Ticket) -> Result<bool> {
        self.inner.is_done(ticket)
    }

    /// Writes compiled pipelines to disk if there are new ones. Also done when the device is closed.
    pub fn save_cache(&self) {
        self.inner.cache.save(&self.inner.raw);
    }

    /// Where compiled pipelines are kept, if anywhere.
    pub fn cache_file(&self) -> Option<&std::path::Path> {
        self.inner.cache.file()
    }

    /// Where something else may be kept that holds for this device and driver alone, as compiled pipelines do: a file in a folder
    /// beside theirs.
    pub fn cache_path(&self, folder: &str, extension: &str) -> Option<PathBuf> {
        self.inner.cache.path_for(folder, extension)
    }
}

impl DeviceInner {
    pub fn submit_commands(&self, buffers: &[vk::CommandBufferSubmitInfo<'_>]) -> Result<Ticket> {
        let timeline = self.timeline()?;
        let mut queue = self.lock_queue();
        // Under the lock: after the submission that found the device lost there is no other.
        self.check_lost("vkQueueSubmit2")?;
        if self.faults.strikes_submission() {
            // A device that is really lost touches no memory any more; this one must be brought to that.
            // SAFETY: the queue is locked.
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
        // SAFETY: the queue is locked; the command buffers are sealed and kept alive by their owners until the
        // timeline has passed `value` (a Program waits for it in Drop).
        let result = unsafe { self.raw.queue_submit2(queue.raw, &submit, vk::Fence::null()) };
        result.map_err(|result| self.fail("vkQueueSubmit2", result))?;
        queue.last = value;
        self.counters.submissions.fetch_add(1, Ordering::Relaxed);
        Ok(Ticket(value))
    }

    pub fn wait(&self, ticket: Ticket, timeout: Duration) -> Result<()> {
        self.check_lost("vkWaitSemaphores")?;
        let semaphores = [self.timeline()?];
        let values = [ticket.0];
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        let nanoseconds = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        // SAFETY: the semaphore lives as long as the device.
        match unsafe { self.raw.wait_semaphores(&info, nanoseconds) } {
            Ok(()) => Ok(()),
            Err(vk::Result::TIMEOUT) => Err(Error::Timeout { what: "a submission", waited: timeout }),
            Err(result) => Err(self.fail("vkWaitSemaphores", result)),
        }
    }

    /// Whether the submission is done, without waiting.
    pub fn is_done(&self, ticket: Ticket) -> Result<bool> {
        match self.wait(ticket, Duration::ZERO) {
            Ok(()) => Ok(true),
            Err(Error::Timeout { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits without limit, for destructors: true when the GPU is certainly done, or gone.
    pub fn is_past(&self, ticket: Ticket) -> bool {
        const PATIENCE: Duration = Duration::from_secs(60);
        match self.wait(ticket, PATIENCE) {
            Ok(()) | Err(Error::DeviceLost { .. }) => true,
            Err(error) => {
                tracing::error!("{error}; its memory is left allocated");
                false
            }
        }
    }

    /// Turns a driver's answer into an error and remembers a lost device: from then on every call says so.
    pub fn fail(&self, call: &'static str, result: vk::Result) -> Error {
        if result == vk::Result::ERROR_DEVICE_LOST {
            self.lost.store(true, Ordering::SeqCst);
        }
        Error::from_vk(call, result)
    }

    pub fn check_lost(&self, during: &'static str) -> Result<()> {
        if self.lost.load(Ordering::SeqCst) { Err(Error::DeviceLost { during }) } else { Ok(()) }
    }

    fn timeline(&self) -> Result<vk::Semaphore> {
        self.timeline.ok_or_else(|| Error::Unsupported {
            device: self.adapter.info.name.clone(),
            missing: "it is not present and can only compile".into(),
            fix: "unset RADV_FORCE_FAMILY".into(),
        })
    }

    fn lock_queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DeviceInner {
    fn drop(&mut self) {
        // SAFETY: everything made from the device holds an Arc to it, so nothing but the queue can be in use; an idle
        // wait on a lost device returns at once.
        unsafe {
            // The queue of a device that can only compile crashes when it is waited for.
            if self.timeline.is_some() {
                let _ = self.raw.device_wait_idle();
            }
            self.cache.save(&self.raw);
            self.cache.destroy(&self.raw);
            if let Some(timeline) = self.timeline {
                self.raw.destroy_semaphore(timeline, None);
            }
            self.raw.destroy_device(None);
        }
    }
}

/// The caps that remain when nothing above `max` is to be used.
fn limit_caps(caps: &Caps, max: Tier) -> Caps {
    let mut caps = caps.clone();
    if max < Tier::T3 {
        caps.cooperative_matrix2 = false;
    }
    if max < Tier::T2 {
        caps.cooperative_matrix.clear();
    }
    if max < Tier::T1 {
        caps.float16 = false;
        caps.int8 = false;
        caps.integer_dot = false;
        caps.storage16 = false;
        caps.storage8 = false;
    }
    caps
}

fn create_timeline(raw: &ash::Device) -> Result<vk::Semaphore> {
    let mut kind =
        vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE).initial_value(0);
    let create = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
    // SAFETY: the device was made with timelineSemaphore enabled.
    unsafe { raw.create_semaphore(&create, None) }
        .map_err(|result| Error::from_vk("vkCreateSemaphore", result))
}

struct Opened {
    raw: ash::Device,
    executable_properties: Option<ash::khr::pipeline_executable_properties::Device>,
    conditional: Option<ash::ext::conditional_rendering::Device>,
}

fn create_device(adapter: &Adapter, family: u32, caps: &Caps, statistics: bool) -> Result<Opened> {
    let mut names = Vec::new();
    if adapter.extensions.memory_budget {
        names.push(ash::ext::memory_budget::NAME.as_ptr());
    }
    let statistics = statistics && adapter.extensions.executable_properties;
    if statistics {
        names.push(ash::khr::pipeline_executable_properties::NAME.as_ptr());
    }
    let matrix = !caps.cooperative_matrix.is_empty();
    if matrix {
        names.push(ash::khr::cooperative_matrix::NAME.as_ptr());
    }
    if caps.cooperative_matrix2 {
        names.push(vk_ext::NV_COOPERATIVE_MATRIX_2_NAME.as_ptr());
    }
    if caps.conditional_rendering {
        names.push(ash::ext::conditional_rendering::NAME.as_ptr());
    }

    let mut f11 = vk::PhysicalDeviceVulkan11Features::default().storage_buffer16_bit_access(caps.storage16);
    let mut f12 = vk::PhysicalDeviceVulkan12Features::default()
        .buffer_device_address(true)
        .scalar_block_layout(true)
        .timeline_semaphore(true)
        // Without device scope the model would forbid atomics on buffers: both or neither.
        .vulkan_memory_model(caps.memory_model)
        .vulkan_memory_model_device_scope(caps.memory_model)
        .shader_float16(caps.float16)
        .shader_int8(caps.int8)
        .storage_buffer8_bit_access(caps.storage8);
    let mut f13 = vk::PhysicalDeviceVulkan13Features::default()
        .synchronization2(true)
        .maintenance4(true)
        .shader_integer_dot_product(caps.integer_dot)
        .subgroup_size_control(caps.subgroup_size_control)
        .compute_full_subgroups(caps.full_subgroups);
    let mut f_statistics =
        vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default().pipeline_executable_info(true);
    let mut f_matrix = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
    let mut f_matrix2 = vk_ext::PhysicalDeviceCooperativeMatrix2FeaturesNV {
        cooperative_matrix_workgroup_scope: vk::TRUE,
        cooperative_matrix_flexible_dimensions: vk::TRUE,
        ..Default::default()
    };
    let mut f_conditional =
        vk::PhysicalDeviceConditionalRenderingFeaturesEXT::default().conditional_rendering(true);

    let priorities = [1.0];
    let queues =
        [vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&priorities)];
    let mut create = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_extension_names(&names)
        .push_next(&mut f11)
        .push_next(&mut f12)
        .push_next(&mut f13);
    if statistics {
        create = create.push_next(&mut f_statistics);
    }
    if matrix {
        create = create.push_next(&mut f_matrix);
    }
    if caps.cooperative_matrix2 {
        create = create.push_next(&mut f_matrix2);
    }
    if caps.conditional_rendering {
        create = create.push_next(&mut f_conditional);
    }
    let instance = &adapter.instance.inner.raw;
    // SAFETY: extensions and features are among those the device lists; all structures live until the call returns.
    let raw = unsafe { instance.create_device(adapter.raw, &create, None) }
        .map_err(|result| Error::from_vk("vkCreateDevice", result))?;
    let executable_properties =
        statistics.then(|| ash::khr::pipeline_executable_properties::Device::new(instance, &raw));
    let conditional =
        caps.conditional_rendering.then(|| ash::ext::conditional_rendering::Device::new(instance, &raw));
    Ok(Opened { raw, executable_properties, conditional })
}
