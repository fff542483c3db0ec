//! Compute pipelines: a shader, its specialisation constants and its subgroup size, compiled once per device.
//!
//! A [`Pipeline`] is known before it is compiled: what can be wrong with it is said when it is asked for, and the driver's
//! compiler runs when the first program that uses it is sealed. By then all of a program's pipelines are known, and
//! [`Device::compile`] makes them side by side: drivers take longer for one than for all the rest of a start.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use ash::vk;

use crate::{
    device::{Device, DeviceInner},
    error::{Error, Result},
    shader::{MAX_PUSH_BYTES, Shader, SpecConstants},
};

/// Which subgroup size a pipeline wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subgroup {
    /// Whatever the driver takes.
    Any,
    /// Exactly this size; an error where the device has no such size.
    Exactly(u32),
}

/// A pipeline. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Pipeline {
    pub(crate) inner: Arc<PipelineInner>,
}

pub(crate) struct PipelineInner {
    pub device: Arc<DeviceInner>,
    pub layout: vk::PipelineLayout,
    pub shader: &'static Shader,
    /// Threads of a workgroup.
    pub threads: u32,
    constants: Vec<u32>,
    subgroup: Subgroup,
    made: OnceLock<vk::Pipeline>,
    // Held while it is compiled: a second thread that needs it waits for the first.
    compiling: Mutex<()>,
}

/// Pipelines already asked for, by everything that distinguishes them. Weak: the programs that use them own them.
#[derive(Default)]
pub(crate) struct PipelineTable {
    known: Mutex<HashMap<Key, Weak<PipelineInner>>>,
}

#[derive(PartialEq, Eq, Hash)]
struct Key {
    shader: &'static str,
    constants: Vec<u32>,
    subgroup: Subgroup,
}

impl Device {
    /// A shader with its constants, or the pipeline already made from the same. It is compiled when a program needs it.
    pub fn pipeline(
        &self,
        shader: &'static Shader,
        constants: &impl SpecConstants,
        subgroup: Subgroup,
    ) -> Result<Pipeline> {
        let key = Key { shader: shader.name, constants: constants.values(), subgroup };
        let mut known = self.inner.pipelines.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inner) = known.get(&key).and_then(Weak::upgrade) {
            return Ok(Pipeline { inner });
        }
        let inner = Arc::new(PipelineInner::new(&self.inner, shader, key.constants.clone(), subgroup)?);
        known.insert(key, Arc::downgrade(&inner));
        Ok(Pipeline { inner })
    }

    /// Compiles those of some pipelines that are not compiled yet, on as many threads as the machine has cores. Sealing a
    /// program does it for the program's own; before several are sealed, those of all of them can be compiled at once.
    pub fn compile(&self, pipelines: &[Pipeline]) -> Result<()> {
        let mut pending: Vec<&PipelineInner> = Vec::new();
        for inner in pipelines.iter().map(|pipeline| &*pipeline.inner) {
            if inner.made.get().is_none() && !pending.iter().any(|known| std::ptr::eq(*known, inner)) {
                pending.push(inner);
            }
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(inner) = pending.get(next.fetch_add(1, Ordering::Relaxed)) {
                inner.raw()?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            // One of the threads is this one.
            let others: Vec<_> = (1..cores.min(pending.len())).map(|_| scope.spawn(work)).collect();
            let own = work();
            others.into_iter().fold(own, |result, other| {
                let other = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                result.and(other)
            })
        })
    }
}

impl Pipeline {
    /// The shader's name.
    pub fn name(&self) -> &'static str {
        self.inner.shader.name
    }

    /// Threads of a workgroup.
    pub fn threads(&self) -> u32 {
        self.inner.threads
    }
}

impl PipelineInner {
    /// Checks all that can be checked without the driver's compiler.
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
        let wrong = |reason: String| Error::InvalidUse { what: shader.name.to_string(), reason };
        if constants.len() != shader.constant_ids.len() {
            return Err(wrong(format!(
                "{} constants for a shader that has {}",
                constants.len(),
                shader.constant_ids.len()
            )));
        }
        if shader.push_size as usize > MAX_PUSH_BYTES {
            return Err(wrong(format!("{} bytes of push constants", shader.push_size)));
        }
        let caps = &device.caps;
        let threads = shader.threads(&constants);
        if threads == 0 || threads > caps.max_threads {
            return Err(unsupported(format!(
                "wants {threads} threads a workgroup, the device has {}",
                caps.max_threads
            )));
        }
        if let Subgroup::Exactly(size) = subgroup
            && !caps.allows_subgroup_size(size)
        {
            return Err(unsupported(format!(
                "wants subgroups of {size}, the device has {} to {}",
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
        // SAFETY: the structures live until the call returns; the layout is destroyed by Drop.
        let layout = unsafe { device.raw.create_pipeline_layout(&layout_info, None) }
            .map_err(|result| device.fail("vkCreatePipelineLayout", result))?;
        Ok(Self {
            device: device.clone(),
            layout,
            shader,
            threads,
            constants,
            subgroup,
            made: OnceLock::new(),
            compiling: Mutex::new(()),
        })
    }

    /// The compiled pipeline: compiled now, unless it was before.
    pub fn raw(&self) -> Result<vk::Pipeline> {
        if let Some(made) = self.made.get() {
            return Ok(*made);
        }
        let _compiling = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        match self.made.get() {
            Some(made) => Ok(*made),
            None => {
                let made = self.compile()?;
                Ok(*self.made.get_or_init(|| made))
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
        // Full subgroups are promised only for workgroups that are whole multiples of the subgroup.
        let largest = match *subgroup {
            Subgroup::Exactly(size) => size,
            Subgroup::Any => caps.max_subgroup_size,
        };
        if caps.full_subgroups && threads.is_multiple_of(largest) {
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
        // SAFETY: the SPIR-V is our own, compiled and reflected at build time; every structure lives until the calls
        // return; the module is destroyed on each path and the pipeline by Drop. The pipeline cache is made without
        // EXTERNALLY_SYNCHRONIZED, so several threads may compile through it.
        let made = unsafe {
            let module = raw
                .create_shader_module(&vk::ShaderModuleCreateInfo::default().code(&words), None)
                .map_err(|result| device.fail("vkCreateShaderModule", result))?;
            let create = [vk::ComputePipelineCreateInfo::default()
                .flags(flags)
                .stage(stage.module(module))
                .layout(*layout)
                .push_next(&mut feedback_info)];
            let made = raw.create_compute_pipelines(device.cache.raw, &create, None);
            raw.destroy_shader_module(module, None);
            made.map_err(|(_, result)| device.fail("vkCreateComputePipelines", result))?
        };
        let hit = vk::PipelineCreationFeedbackFlags::VALID
            | vk::PipelineCreationFeedbackFlags::APPLICATION_PIPELINE_CACHE_HIT;
        if feedback.flags.contains(hit) {
            device.counters.pipelines_from_cache.fetch_add(1, Ordering::Relaxed);
        } else {
            device.cache.note_new();
        }
        device.counters.pipelines.fetch_add(1, Ordering::Relaxed);
        Ok(made[0])
    }
}

impl Drop for PipelineInner {
    fn drop(&mut self) {
        // SAFETY: programs hold an Arc to the pipelines they dispatch until the GPU is done with them.
        unsafe {
            if let Some(made) = self.made.get() {
                self.device.raw.destroy_pipeline(*made, None);
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
