//! Compute pipelines: a shader, its specialisation constants and its subgroup size, compiled once per device.
//!
//! A [`Pipeline`] is validated when it is created, but compiled only when the first program that uses it is
//! sealed. By then all pipelines of the program are known and compile in parallel. That matters: compiling
//! dominates the start-up time when the pipeline cache is empty.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use ash::vk;

use crate::{
    device_inner::DeviceInner,
    error::{Error, Result},
    shader::{MAX_PUSH_BYTES, Shader},
};

/// The subgroup size that a pipeline requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subgroup {
    /// The driver's choice.
    Any,
    /// Exactly this size. An error if the device does not support it.
    Exactly(u32),
}

/// A compute pipeline. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Pipeline {
    pub(crate) inner: Arc<PipelineInner>,
}

pub(crate) struct PipelineInner {
    pub device: Arc<DeviceInner>,
    pub layout: vk::PipelineLayout,
    pub shader: &'static Shader,
    /// Workgroup size in threads.
    pub threads: u32,
    constants: Vec<u32>,
    subgroup: Subgroup,
    compiled: OnceLock<vk::Pipeline>,
    /// Held while compiling, so that a second thread waits for the first instead of compiling again.
    compiling: Mutex<()>,
}

/// Pipelines by shader, constants and subgroup size. Weak references: the programs that use the pipelines own
/// them, unless they are kept.
#[derive(Default)]
pub(crate) struct PipelineTable {
    entries: Mutex<HashMap<Key, Weak<PipelineInner>>>,
    kept: Mutex<Kept>,
}

/// The pipelines that were created while a [`KeepPipelines`] existed.
#[derive(Default)]
struct Kept {
    guards: usize,
    pipelines: Vec<Pipeline>,
}

/// While it exists, every pipeline that the device creates stays compiled, whether or not a program uses it: for programs
/// that are recorded, dropped and recorded again. Taking a pipeline from the driver's cache is not free.
#[must_use]
pub struct KeepPipelines {
    table: Arc<PipelineTable>,
}

impl KeepPipelines {
    pub(crate) fn new(table: &Arc<PipelineTable>) -> Self {
        table.kept().guards += 1;
        Self { table: table.clone() }
    }
}

impl Drop for KeepPipelines {
    fn drop(&mut self) {
        let mut kept = self.table.kept();
        kept.guards -= 1;
        let dropped = if kept.guards == 0 { std::mem::take(&mut kept.pipelines) } else { vec![] };
        // Destroying pipelines takes a while: not while others wait for the lock.
        drop(kept);
        drop(dropped);
    }
}

#[derive(PartialEq, Eq, Hash)]
struct Key {
    shader: &'static str,
    constants: Vec<u32>,
    subgroup: Subgroup,
}

impl PipelineTable {
    pub fn get_or_create(
        &self,
        device: &Arc<DeviceInner>,
        shader: &'static Shader,
        constants: Vec<u32>,
        subgroup: Subgroup,
    ) -> Result<Pipeline> {
        let key = Key { shader: shader.name, constants, subgroup };
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inner) = entries.get(&key).and_then(Weak::upgrade) {
            return Ok(Pipeline { inner });
        }
        let inner = Arc::new(PipelineInner::new(device, shader, key.constants.clone(), subgroup)?);
        entries.insert(key, Arc::downgrade(&inner));
        let pipeline = Pipeline { inner };
        let mut kept = self.kept();
        if kept.guards > 0 {
            kept.pipelines.push(pipeline.clone());
        }
        Ok(pipeline)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Cores of the machine.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Compiles the pipelines that are not compiled yet, on up to `threads` threads, until `cancel` is set.
pub(crate) fn compile_all(pipelines: &[Pipeline], threads: usize, cancel: Option<&AtomicBool>) -> Result<()> {
    let mut pending: Vec<&PipelineInner> = Vec::new();
    for inner in pipelines.iter().map(|pipeline| &*pipeline.inner) {
        if inner.compiled.get().is_none() && !pending.iter().any(|known| std::ptr::eq(*known, inner)) {
            pending.push(inner);
        }
    }
    let waiting = Pending::new(&pending);
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(inner) = pending.get(next.fetch_add(1, Ordering::Relaxed)) {
            if cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
                break;
            }
            inner.raw()?;
            waiting.done();
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        // The current thread is one of the workers.
        let others: Vec<_> = (1..threads.min(pending.len())).map(|_| scope.spawn(work)).collect();
        let own = work();
        others.into_iter().fold(own, |result, other| {
            let other = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result.and(other)
        })
    })
}

/// Counts the pipelines of one call of [`compile_all`] as pending until they are compiled, or it fails.
struct Pending<'a> {
    counter: Option<&'a AtomicU64>,
    left: AtomicU64,
}

impl<'a> Pending<'a> {
    fn new(pipelines: &[&'a PipelineInner]) -> Self {
        // All pipelines of a call belong to one device.
        let counter = pipelines.first().map(|inner| &inner.device.counters.pipelines_pending);
        let left = pipelines.len() as u64;
        counter.inspect(|counter| _ = counter.fetch_add(left, Ordering::Relaxed));
        Self { counter, left: AtomicU64::new(left) }
    }

    fn done(&self) {
        self.left.fetch_sub(1, Ordering::Relaxed);
        self.counter.inspect(|counter| _ = counter.fetch_sub(1, Ordering::Relaxed));
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let left = *self.left.get_mut();
        self.counter.inspect(|counter| _ = counter.fetch_sub(left, Ordering::Relaxed));
    }
}

impl Pipeline {
    /// The shader's name.
    pub fn name(&self) -> &'static str {
        self.inner.shader.name
    }

    /// Workgroup size in threads.
    pub fn threads(&self) -> u32 {
        self.inner.threads
    }
}

impl PipelineInner {
    /// Validates everything that does not need the driver's compiler.
    fn new(
        device: &Arc<DeviceInner>,
        shader: &'static Shader,
        constants: Vec<u32>,
        subgroup: Subgroup,
    ) -> Result<Self> {
        device.check_lost("vkCreatePipelineLayout")?;
        let unsupported = |missing: String| Error::Unsupported {
            device: device.adapter.info.name.clone(),
            missing: format!("{} {missing}", shader.name),
            fix: "please report it with the output of `indrik devices`".into(),
        };
        let invalid = |reason: String| Error::InvalidUse { what: shader.name.to_string(), reason };
        if constants.len() != shader.constant_ids.len() {
            return Err(invalid(format!(
                "{} specialisation constants; the shader has {}",
                constants.len(),
                shader.constant_ids.len()
            )));
        }
        if shader.push_size as usize > MAX_PUSH_BYTES {
            return Err(invalid(format!(
                "{} bytes of push constants; the maximum is {MAX_PUSH_BYTES}",
                shader.push_size
            )));
        }
        let caps = &device.caps;
        let threads = shader.threads(&constants);
        if threads == 0 || threads > caps.max_threads {
            return Err(unsupported(format!(
                "needs {threads} threads per workgroup; the device allows {}",
                caps.max_threads
            )));
        }
        if let Subgroup::Exactly(size) = subgroup
            && !caps.allows_subgroup_size(size)
        {
            return Err(unsupported(format!(
                "needs subgroups of {size}; the device has {} to {}",
                caps.min_subgroup_size, caps.max_subgroup_size
            )));
        }

        let ranges = [vk::PushConstantRange {
            stage_flags: vk::ShaderStageFlags::COMPUTE,
            offset: 0,
            size: shader.push_size.next_multiple_of(4),
        }];
        let mut layout_info = vk::PipelineLayoutCreateInfo::default();
        if shader.push_size > 0 {
            layout_info = layout_info.push_constant_ranges(&ranges);
        }
        // SAFETY: the structures outlive the call; the layout is destroyed by Drop.
        let layout = unsafe { device.raw.create_pipeline_layout(&layout_info, None) }
            .map_err(|result| device.fail("vkCreatePipelineLayout", result))?;
        Ok(Self {
            device: device.clone(),
            layout,
            shader,
            threads,
            constants,
            subgroup,
            compiled: OnceLock::new(),
            compiling: Mutex::new(()),
        })
    }

    /// The Vulkan pipeline; compiles it on the first call.
    pub fn raw(&self) -> Result<vk::Pipeline> {
        if let Some(compiled) = self.compiled.get() {
            return Ok(*compiled);
        }
        let _compiling = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        match self.compiled.get() {
            Some(compiled) => Ok(*compiled),
            None => {
                let compiled = self.compile()?;
                Ok(*self.compiled.get_or_init(|| compiled))
            }
        }
    }

    fn compile(&self) -> Result<vk::Pipeline> {
        let Self { device, shader, constants, subgroup, threads, layout, .. } = self;
        let caps = &device.caps;
        device.check_lost("vkCreateComputePipelines")?;
        let words = ash::util::read_spv(&mut std::io::Cursor::new(shader.spirv)).map_err(|error| {
            let reason = format!("its SPIR-V cannot be read: {error}");
            Error::InvalidUse { what: shader.name.to_string(), reason }
        })?;
        let entries: Vec<_> = (0_u32..)
            .zip(shader.constant_ids)
            .map(|(index, id)| vk::SpecializationMapEntry { constant_id: *id, offset: index * 4, size: 4 })
            .collect();
        let specialization =
            vk::SpecializationInfo::default().map_entries(&entries).data(bytemuck::cast_slice(constants));
        let mut required = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default();
        let mut stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .name(c"main")
            .specialization_info(&specialization);
        // Vulkan allows full subgroups only for workgroup sizes that are multiples of the subgroup size.
        let subgroup_size = match *subgroup {
            Subgroup::Exactly(size) => size,
            Subgroup::Any => caps.max_subgroup_size,
        };
        if caps.full_subgroups && threads.is_multiple_of(subgroup_size) {
            stage = stage.flags(vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS);
        }
        if let (Subgroup::Exactly(size), true) = (*subgroup, caps.subgroup_size_control) {
            required = required.required_subgroup_size(size);
            stage = stage.push_next(&mut required);
        }

        let mut feedback = vk::PipelineCreationFeedback::default();
        let mut feedback_info =
            vk::PipelineCreationFeedbackCreateInfo::default().pipeline_creation_feedback(&mut feedback);
        let capture = device.executable_properties.is_some();
        let flags = if capture {
            vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR
                | vk::PipelineCreateFlags::CAPTURE_INTERNAL_REPRESENTATIONS_KHR
        } else {
            vk::PipelineCreateFlags::empty()
        };
        let raw = &device.raw;
        // SAFETY: the SPIR-V is our own, compiled and reflected at build time, and the constants match its
        // map entries; every structure outlives the calls; the module is destroyed on each path and the
        // pipeline by Drop. The pipeline cache was created without EXTERNALLY_SYNCHRONIZED, so several
        // threads may compile through it.
        let pipelines = unsafe {
            let module = raw
                .create_shader_module(&vk::ShaderModuleCreateInfo::default().code(&words), None)
                .map_err(|result| device.fail("vkCreateShaderModule", result))?;
            let create = [vk::ComputePipelineCreateInfo::default()
                .flags(flags)
                .stage(stage.module(module))
                .layout(*layout)
                .push_next(&mut feedback_info)];
            let created = raw.create_compute_pipelines(device.cache.raw, &create, None);
            raw.destroy_shader_module(module, None);
            created.map_err(|(_, result)| device.fail("vkCreateComputePipelines", result))?
        };
        let hit = vk::PipelineCreationFeedbackFlags::VALID
            | vk::PipelineCreationFeedbackFlags::APPLICATION_PIPELINE_CACHE_HIT;
        if feedback.flags.contains(hit) {
            device.counters.pipelines_from_cache.fetch_add(1, Ordering::Relaxed);
        } else {
            device.cache.mark_dirty();
        }
        device.counters.pipelines.fetch_add(1, Ordering::Relaxed);
        Ok(pipelines[0])
    }
}

impl Drop for PipelineInner {
    fn drop(&mut self) {
        // SAFETY: programs hold an Arc to the pipelines they dispatch until the GPU is done with them, so
        // nothing uses these handles any more.
        unsafe {
            if let Some(compiled) = self.compiled.get() {
                self.device.raw.destroy_pipeline(*compiled, None);
            }
            self.device.raw.destroy_pipeline_layout(self.layout, None);
        }
    }
}

impl std::fmt::Debug for PipelineInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pipeline {{ {}, {} threads }}", self.shader.name, self.threads)
    }
}
