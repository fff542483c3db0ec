//! Vulkan structures that are newer than the headers ash was generated from. Their layouts follow the
//! registry (vk.xml).

use std::{ffi::CStr, marker::PhantomData};

use ash::vk::{self, TaggedStructure};

/// `VK_NV_cooperative_matrix2`.
pub(crate) const NV_COOPERATIVE_MATRIX_2_NAME: &CStr = c"VK_NV_cooperative_matrix2";

/// `VkPhysicalDeviceCooperativeMatrix2FeaturesNV`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PhysicalDeviceCooperativeMatrix2FeaturesNV<'a> {
    pub s_type: vk::StructureType,
    pub p_next: *mut std::ffi::c_void,
    pub cooperative_matrix_workgroup_scope: vk::Bool32,
    pub cooperative_matrix_flexible_dimensions: vk::Bool32,
    pub cooperative_matrix_reductions: vk::Bool32,
    pub cooperative_matrix_conversions: vk::Bool32,
    pub cooperative_matrix_per_element_operations: vk::Bool32,
    pub cooperative_matrix_tensor_addressing: vk::Bool32,
    pub cooperative_matrix_block_loads: vk::Bool32,
    pub marker: PhantomData<&'a ()>,
}

impl Default for PhysicalDeviceCooperativeMatrix2FeaturesNV<'_> {
    fn default() -> Self {
        Self {
            s_type: Self::STRUCTURE_TYPE,
            p_next: std::ptr::null_mut(),
            cooperative_matrix_workgroup_scope: vk::FALSE,
            cooperative_matrix_flexible_dimensions: vk::FALSE,
            cooperative_matrix_reductions: vk::FALSE,
            cooperative_matrix_conversions: vk::FALSE,
            cooperative_matrix_per_element_operations: vk::FALSE,
            cooperative_matrix_tensor_addressing: vk::FALSE,
            cooperative_matrix_block_loads: vk::FALSE,
            marker: PhantomData,
        }
    }
}

// SAFETY: the structure is #[repr(C)], starts with sType and pNext, and has the registry's structure type
// value.
unsafe impl TaggedStructure for PhysicalDeviceCooperativeMatrix2FeaturesNV<'_> {
    const STRUCTURE_TYPE: vk::StructureType = vk::StructureType::from_raw(1_000_593_000);
}
// SAFETY: the registry lists the structure as extending VkPhysicalDeviceFeatures2 and VkDeviceCreateInfo.
unsafe impl vk::ExtendsPhysicalDeviceFeatures2 for PhysicalDeviceCooperativeMatrix2FeaturesNV<'_> {}
// SAFETY: as above.
unsafe impl vk::ExtendsDeviceCreateInfo for PhysicalDeviceCooperativeMatrix2FeaturesNV<'_> {}
