//! Compute pipelines: a shader, its specialisation constants and its subgroup size, compiled once per device.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak, atomic::Ordering},
};

use ash::vk;

use crate::{
    device::{Device, DeviceInner},
    error::{Error, Result},
    shader::{MAX_PUSH_BYTES, Shader, SpecConstants},
};

/// Which subgroup size a pipeline wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subgroup {
    /// Whatever the driver takes.
    Any,
    /// Exactly this size; an error where the device has no such size.
    Exactly(u32),
}

/// A compiled pipeline. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Pipeline {
    pub(crate) inner: Arc<PipelineInner>,
}

pub(crate) struct PipelineInner {
    pub device: Arc<DeviceInner>,
    pub raw: vk::Pipeline,
    pub layout: vk::PipelineLayout,
    pub shader: &'static Shader,
    /// Threads of a workgroup.
    pub threads: u32,
}

/// Pipelines already made, by everything that distinguishes them. Weak: the programs that use them own them.
#[derive(Default)]
pub(crate) struct PipelineTable {
    made: Mutex<HashMap<Key, Entry>>,
}

/// Locked while its pipeline is compiled: threads that ask for the same one wait, others compile beside it.
type Entry = Arc<Mutex<Weak<PipelineInner>>>;

#[derive(PartialEq, Eq, Hash)]
struct Key {
    shader: &'static str,
    constants: Vec<u32>,
    subgroup: Subgroup,
}

impl Device {
    /// Compiles a shader with its constants, or returns the pipeline already made from the same.
    pub fn pipeline(
        &self,
        shader: &'static Shader,
        constants: &impl SpecConstants,
        subgroup: Subgroup,
    ) -> Result<Pipeline> {
        let key = Key { shader: shader.name, constants: constants.values(), subgroup };
        let constants = key.constants.clone();
        let entry = {
            let mut made = self.inner.pipelines.made.lock().unwrap_or_else(PoisonError::into_inner);
            made.entry(key).or_default().clone()
        };
        let mut entry = entry.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inner) = entry.upgrade() {
            return Ok(Pipeline { inner });
        }
        let inner = Arc::new(PipelineInner::compile(&self.inner, shader, &constants, subgroup)?);
        *entry = Arc::downgrade(&inner);
        Ok(Pipeline { inner })
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
    fn compile(
        device: &Arc<DeviceInner>,
        shader: &'static Shader,
        constants: &[u32],
        subgroup: Subgroup,
    ) -> Result<Self> {
        device.check_lost("vkCreateComputePipelines")?;
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
        let threads = shader.threads(constants);
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

        let words = ash::util::read_spv(&mut std::io::Cursor::new(shader.spirv))
            .map_err(|error| wrong(format!("its SPIR-V cannot be read: {error}")))?;
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
        let largest = match subgroup {
            Subgroup::Exactly(size) => size,
            Subgroup::Any => caps.max_subgroup_size,
        };
        if caps.full_subgroups && threads.is_multiple_of(largest) {
            stage = stage.flags(vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS);
        }
        if let (Subgroup::Exactly(size), true) = (subgroup, caps.subgroup_size_control) {
            required = required.required_subgroup_size(size);
            stage = stage.push_next(&mut required);
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
        // SAFETY: the SPIR-V is our own, compiled and reflected at build time; every structure lives until the calls
        // return; what was made is destroyed on each failing path and by Drop otherwise.
        unsafe {
            let raw = &device.raw;
            let fail = |call| move |result| device.fail(call, result);
            let layout =
                raw.create_pipeline_layout(&layout_info, None).map_err(fail("vkCreatePipelineLayout"))?;
            let module = raw
                .create_shader_module(&vk::ShaderModuleCreateInfo::default().code(&words), None)
                .inspect_err(|_| raw.destroy_pipeline_layout(layout, None))
                .map_err(fail("vkCreateShaderModule"))?;
            let create = [vk::ComputePipelineCreateInfo::default()
                .flags(flags)
                .stage(stage.module(module))
                .layout(layout)
                .push_next(&mut feedback_info)];
            let made = raw.create_compute_pipelines(device.cache.raw, &create, None);
            raw.destroy_shader_module(module, None);
            let pipelines = made.map_err(|(_, result)| {
                raw.destroy_pipeline_layout(layout, None);
                device.fail("vkCreateComputePipelines", result)
            })?;
            let hit = vk::PipelineCreationFeedbackFlags::VALID
                | vk::PipelineCreationFeedbackFlags::APPLICATION_PIPELINE_CACHE_HIT;
            if feedback.flags.contains(hit) {
                device.counters.pipelines_from_cache.fetch_add(1, Ordering::Relaxed);
            } else {
                device.cache.note_new();
            }
            device.counters.pipelines.fetch_add(1, Ordering::Relaxed);
            Ok(Self { device: device.clone(), raw: pipelines[0], layout, shader, threads })
        }
    }
}

impl Drop for PipelineInner {
    fn drop(&mut self) {
        // SAFETY: programs hold an Arc to the pipelines they dispatch until the GPU is done with them.
        unsafe {
            self.device.raw.destroy_pipeline(self.raw, None);
            self.device.raw.destroy_pipeline_layout(self.layout, None);
        }
    }
}

impl std::fmt::Debug for PipelineInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pipeline {{ {}, {} threads }}", self.shader.name, self.threads)
    }
}
