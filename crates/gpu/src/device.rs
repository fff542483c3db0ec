//! An open device: memory, pipelines, recorders and submissions all start here.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::Duration,
};

use crate::{
    accounting::{Accounting, Lifetime},
    adapter::{Adapter, AdapterInfo},
    block,
    cache::PipelineCache,
    caps::{Caps, Tier},
    device_inner::{AtomicCounters, Counters, DeviceInner, Queue, Ticket},
    error::{Error, Result},
    faults::{Fault, Faults},
    heap::Heap,
    logical_device::{LogicalDevice, create_timeline, limit_caps},
    pipeline::{self, KeepPipelines, Pipeline, PipelineTable, Subgroup},
    program::{self, Program},
    shader::{Shader, SpecConstants},
};

/// How to open a device.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// Highest tier whose features are enabled.
    pub max_tier: Tier,
    /// Folder of the pipeline cache; `None` keeps compiled pipelines in memory only.
    pub cache_dir: Option<PathBuf>,
    /// Keep the driver's statistics and assembly of every pipeline. Compilation gets slower, and the pipeline
    /// cache on disk is off.
    pub capture_statistics: bool,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self { max_tier: Tier::T3, cache_dir: crate::cache::cache_dir(), capture_statistics: false }
    }
}

/// An open device. Cheap to clone; closed when the last clone and everything made from it is dropped.
#[derive(Clone)]
pub struct Device {
    pub(crate) inner: Arc<DeviceInner>,
    pipelines: Arc<PipelineTable>,
    /// Programs are compiled, and cannot be run.
    pub(crate) compiles_only: bool,
}

impl Device {
    /// Opens a device with every feature its tiers need, up to `options.max_tier`.
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
        let LogicalDevice { raw, executable_properties, conditional_rendering } =
            LogicalDevice::create(adapter, queue_family, &caps, options.capture_statistics)?;

        // SAFETY: the device was created with one queue of this family.
        let queue = unsafe { raw.get_device_queue(queue_family, 0) };
        // Drivers have no statistics for pipelines loaded from a cache.
        let cache_dir = options.cache_dir.as_deref().filter(|_| !options.capture_statistics);
        let created =
            if info.compile_only { Ok(None) } else { create_timeline(&raw).map(Some) }.and_then(|timeline| {
                let cache = PipelineCache::open(&raw, info, cache_dir).inspect_err(|_| {
                    // SAFETY: nothing was submitted, so nothing waits for the semaphore or signals it.
                    timeline.inspect(|timeline| unsafe { raw.destroy_semaphore(*timeline, None) });
                })?;
                Ok((timeline, cache))
            });
        let (timeline, cache) = created.inspect_err(|_| {
            // SAFETY: nothing was submitted, and all objects made from the device are destroyed.
            unsafe { raw.destroy_device(None) }
        })?;
        let buffer_memory_types = if info.compile_only { 0 } else { block::memory_types(&raw, &caps) };
        let faults = Faults::default();
        for fault in &adapter.instance.inner.faults {
            faults.inject(fault.clone());
        }
        let inner = DeviceInner {
            adapter: adapter.clone(),
            executable_properties,
            conditional_rendering,
            queue_family,
            queue: Queue::new(queue, timeline),
            caps,
            cache,
            faults,
            lost: AtomicBool::new(false),
            running: Mutex::new(()),
            counters: AtomicCounters::default(),
            accounting: Accounting::default(),
            buffer_memory_types,
            raw,
        };
        Ok(Self { inner: Arc::new(inner), pipelines: Arc::default(), compiles_only: false })
    }

    /// Keeps all pipelines that are created from now on, until the result is dropped.
    pub fn keep_pipelines(&self) -> KeepPipelines {
        KeepPipelines::new(&self.pipelines)
    }

    /// The same device for compiling only: programs that are recorded from it are compiled, and running or submitting them
    /// is an error. The pipelines of equal programs then come from the pipeline cache.
    pub fn compiling_only(&self) -> Self {
        Self { compiles_only: true, ..self.clone() }
    }

    /// Whether this is [`Device::compiling_only`].
    pub fn is_compiling_only(&self) -> bool {
        self.compiles_only
    }

    /// The same device for running programs, whether or not this is [`Device::compiling_only`].
    pub fn running(&self) -> Self {
        Self { compiles_only: false, ..self.clone() }
    }

    /// The physical device. It may outlive this one.
    pub fn adapter(&self) -> &Adapter {
        &self.inner.adapter
    }

    /// Name, driver and memory of the device.
    pub fn info(&self) -> &AdapterInfo {
        &self.inner.adapter.info
    }

    /// Limits and features, up to the tier that the device was opened with.
    pub fn caps(&self) -> &Caps {
        &self.inner.caps
    }

    /// The heaps with their current budgets.
    pub fn heaps(&self) -> Vec<Heap> {
        self.inner.heaps()
    }

    /// Bytes of device memory currently allocated for a lifetime.
    pub fn allocated_bytes(&self, lifetime: Lifetime) -> u64 {
        self.inner.accounting.by_lifetime(lifetime)
    }

    /// Counts of allocations, recorded commands, compiled pipelines and submissions so far.
    pub fn counters(&self) -> Counters {
        self.inner.counters.load()
    }

    /// Injects a fault, to test how callers recover from it.
    pub fn inject(&self, fault: Fault) {
        self.inner.faults.inject(fault);
    }

    /// A pipeline of a shader with its specialisation constants. Equal requests share one pipeline. It is
    /// compiled when a program that uses it is sealed.
    pub fn pipeline(
        &self,
        shader: &'static Shader,
        constants: &impl SpecConstants,
        subgroup: Subgroup,
    ) -> Result<Pipeline> {
        self.pipelines.get_or_create(&self.inner, shader, constants.values(), subgroup)
    }

    /// Number of pipelines that [`Device::compile`] has yet to compile, for showing its progress.
    pub fn pipelines_pending(&self) -> u64 {
        self.inner.counters.pipelines_pending.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Compiles pipelines that are not compiled yet, in parallel on all cores. Sealing a program compiles
    /// that program's pipelines; call this first to compile those of several programs together.
    pub fn compile(&self, pipelines: &[Pipeline]) -> Result<()> {
        pipeline::compile_all(pipelines, pipeline::cores(), None)
    }

    /// The same; once `cancel` is set, the pipelines that are left are not compiled.
    pub fn compile_unless(&self, cancel: &AtomicBool, pipelines: &[Pipeline]) -> Result<()> {
        pipeline::compile_all(pipelines, pipeline::cores(), Some(cancel))
    }

    /// The same on half of the cores, for work beside which others are to run.
    pub fn compile_in_background(&self, pipelines: &[Pipeline]) -> Result<()> {
        pipeline::compile_all(pipelines, (pipeline::cores() / 2).max(1), None)
    }

    /// Submits programs, in order, as one submission of 1 to
    /// [`MAX_PROGRAMS_PER_SUBMIT`](crate::MAX_PROGRAMS_PER_SUBMIT).
    pub fn submit(&self, programs: &[&Program]) -> Result<Ticket> {
        program::submit(&self.inner, programs)
    }

    /// Blocks until the submission completes.
    pub fn wait(&self, ticket: Ticket, timeout: Duration) -> Result<()> {
        self.inner.wait(ticket, timeout)
    }

    /// Whether the submission has completed, without waiting.
    pub fn is_done(&self, ticket: Ticket) -> Result<bool> {
        self.inner.is_done(ticket)
    }

    /// Writes the pipeline cache to disk if it has new pipelines. Also done when the device is closed.
    pub fn save_cache(&self) {
        self.inner.cache.save(&self.inner.raw);
    }

    /// The pipeline cache file, if there is one.
    pub fn cache_file(&self) -> Option<&Path> {
        self.inner.cache.file()
    }

    /// Path of another cache file that is valid for this device and driver only: `FOLDER/KEY.EXTENSION` in
    /// the cache folder.
    pub fn cache_path(&self, folder: &str, extension: &str) -> Option<PathBuf> {
        self.inner.cache.path_for(folder, extension)
    }
}
