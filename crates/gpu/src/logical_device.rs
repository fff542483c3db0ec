//! Creating the Vulkan logical device: which extensions and features are enabled.

use ash::vk;

use crate::{
    adapter::Adapter,
    caps::{Caps, Tier},
    error::{Error, Result},
    vk_ext,
};

/// A logical device and the extension functions that were loaded for it.
pub(crate) struct LogicalDevice {
    pub raw: ash::Device,
    pub executable_properties: Option<ash::khr::pipeline_executable_properties::Device>,
    pub conditional_rendering: Option<ash::ext::conditional_rendering::Device>,
}

/// `caps` without the features of tiers above `max`.
pub(crate) fn limit_caps(caps: &Caps, max: Tier) -> Caps {
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

pub(crate) fn create_timeline(raw: &ash::Device) -> Result<vk::Semaphore> {
    let mut kind =
        vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE).initial_value(0);
    let create = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
    // SAFETY: the device was created with timelineSemaphore enabled.
    unsafe { raw.create_semaphore(&create, None) }
        .map_err(|result| Error::from_vk("vkCreateSemaphore", result))
}

impl LogicalDevice {
    /// Creates a device with one queue of `family` and the features in `caps`.
    pub fn create(adapter: &Adapter, family: u32, caps: &Caps, statistics: bool) -> Result<Self> {
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

        let mut f11 =
            vk::PhysicalDeviceVulkan11Features::default().storage_buffer16_bit_access(caps.storage16);
        let mut f12 = vk::PhysicalDeviceVulkan12Features::default()
            .buffer_device_address(true)
            .scalar_block_layout(true)
            .timeline_semaphore(true)
            // Without device scope the memory model forbids device-scope atomics on buffers, so both are
            // enabled or neither.
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
        let mut f_statistics = vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default()
            .pipeline_executable_info(true);
        let mut f_matrix = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
        let mut f_matrix2 = vk_ext::PhysicalDeviceCooperativeMatrix2FeaturesNV {
            cooperative_matrix_workgroup_scope: vk::TRUE,
            cooperative_matrix_flexible_dimensions: vk::TRUE,
            ..Default::default()
        };
        let mut f_conditional =
            vk::PhysicalDeviceConditionalRenderingFeaturesEXT::default().conditional_rendering(true);

        let features = vk::PhysicalDeviceFeatures::default().shader_int64(caps.int64);
        let priorities = [1.0];
        let queues =
            [vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&priorities)];
        let mut create = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(&names)
            .enabled_features(&features)
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
        // SAFETY: `adapter.raw` comes from this instance; the extensions and features are among those that
        // the device lists; all structures outlive the call.
        let raw = unsafe { instance.create_device(adapter.raw, &create, None) }
            .map_err(|result| Error::from_vk("vkCreateDevice", result))?;
        let executable_properties =
            statistics.then(|| ash::khr::pipeline_executable_properties::Device::new(instance, &raw));
        let conditional_rendering =
            caps.conditional_rendering.then(|| ash::ext::conditional_rendering::Device::new(instance, &raw));
        Ok(Self { raw, executable_properties, conditional_rendering })
    }
}
