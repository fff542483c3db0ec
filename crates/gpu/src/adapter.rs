//! Physical devices: listing them, querying their properties, and selecting one.

use std::ffi::CStr;

use ash::vk;
use serde::Serialize;

use crate::{
    caps::{Caps, Element, MatrixShape},
    error::{Error, Result},
    faults::Fault,
    heap::{Heap, MemoryType},
    instance::Instance,
    vk_ext,
};

/// Kind of device, in order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AdapterKind {
    /// A GPU with its own memory.
    Discrete,
    /// A GPU that shares the system's memory.
    Integrated,
    /// A GPU in a virtual machine.
    Virtual,
    /// A software implementation on the CPU.
    Cpu,
    /// Not reported by the driver.
    Other,
}

/// Properties of a device that are available without opening it.
#[derive(Clone, Debug, Serialize)]
pub struct AdapterInfo {
    /// Index in the driver's list.
    pub index: usize,
    /// Name reported by the driver.
    pub name: String,
    /// Kind of device.
    pub kind: AdapterKind,
    /// PCI vendor id.
    pub vendor_id: u32,
    /// PCI device id.
    pub device_id: u32,
    /// PCI address as Linux writes it, such as `0000:c1:00.0`, if the driver reports it.
    pub pci_address: Option<String>,
    /// Driver name and version, for display.
    pub driver: String,
    /// Driver version as a number, for cache keys.
    pub driver_version: u32,
    /// Changes whenever pipelines compiled by this driver for this device become invalid.
    #[serde(serialize_with = "hex")]
    pub pipeline_cache_uuid: [u8; 16],
    /// Whether the GPU and the CPU share one memory.
    pub unified_memory: bool,
    /// Whether this is RADV's null device (`RADV_FORCE_FAMILY`), which compiles pipelines but cannot run
    /// them.
    pub compile_only: bool,
    /// Limits and features.
    pub caps: Caps,
    /// Memory heaps.
    pub heaps: Vec<Heap>,
    /// Memory types, in the driver's order of preference.
    #[serde(skip)]
    pub memory_types: Vec<MemoryType>,
}

impl AdapterInfo {
    /// Bytes of the largest device-local heap; 0 if there is none.
    pub fn local_memory(&self) -> u64 {
        self.heaps.iter().filter(|heap| heap.device_local).map(|heap| heap.size).max().unwrap_or(0)
    }
}

/// A physical device that can be opened.
#[derive(Clone)]
pub struct Adapter {
    pub(crate) instance: Instance,
    pub(crate) raw: vk::PhysicalDevice,
    pub(crate) queue_family: Option<u32>,
    pub(crate) extensions: Extensions,
    /// Properties of the device.
    pub info: AdapterInfo,
}

/// Optional device extensions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extensions {
    pub memory_budget: bool,
    pub executable_properties: bool,
    pub cooperative_matrix: bool,
    pub cooperative_matrix2: bool,
    pub conditional_rendering: bool,
}

impl Instance {
    /// All Vulkan devices in the driver's order, usable or not.
    pub fn adapters(&self) -> Result<Vec<Adapter>> {
        // SAFETY: the instance is alive as long as `self`.
        let devices = unsafe { self.inner.raw.enumerate_physical_devices() }
            .map_err(|result| Error::from_vk("vkEnumeratePhysicalDevices", result))?;
        if devices.is_empty() {
            return Err(Error::NoDriver);
        }
        devices.into_iter().enumerate().map(|(index, raw)| Adapter::query(self, index, raw)).collect()
    }
}

impl Adapter {
    /// The heaps with their current budgets.
    pub fn heaps(&self) -> Vec<Heap> {
        crate::heap::query(&self.instance, self.raw, self.extensions.memory_budget).0
    }

    fn query(instance: &Instance, index: usize, raw: vk::PhysicalDevice) -> Result<Self> {
        let vk_instance = &instance.inner.raw;
        // SAFETY: `raw` was enumerated from this instance.
        let base = unsafe { vk_instance.get_physical_device_properties(raw) };
        let name = base.device_name_as_c_str().unwrap_or(c"unknown").to_string_lossy().into_owned();
        let available = extension_names(instance, raw)?;
        let has = |name: &CStr| available.iter().any(|known| known == name);
        let has_13 = base.api_version >= vk::API_VERSION_1_3;
        let queue_family = compute_family(vk_instance, raw);

        let mut driver = vk::PhysicalDeviceDriverProperties::default();
        let mut chain = vk::PhysicalDeviceProperties2::default().push_next(&mut driver);
        if base.api_version >= vk::API_VERSION_1_2 {
            // SAFETY: driver properties are core in Vulkan 1.2.
            unsafe { vk_instance.get_physical_device_properties2(raw, &mut chain) };
        }
        let text = |text: Result<&CStr, std::ffi::FromBytesUntilNulError>| {
            text.map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
        };
        // Querying the memory budget of RADV's null device crashes inside Mesa.
        let compile_only =
            driver.driver_id == vk::DriverId::MESA_RADV && std::env::var_os("RADV_FORCE_FAMILY").is_some();
        let driver_text =
            format!("{} {}", text(driver.driver_name_as_c_str()), text(driver.driver_info_as_c_str()));

        let mut extensions = Extensions {
            memory_budget: has(ash::ext::memory_budget::NAME) && !compile_only,
            executable_properties: has(ash::khr::pipeline_executable_properties::NAME),
            cooperative_matrix: has(ash::khr::cooperative_matrix::NAME),
            cooperative_matrix2: has(vk_ext::NV_COOPERATIVE_MATRIX_2_NAME),
            conditional_rendering: has(ash::ext::conditional_rendering::NAME),
        };
        let not_queried = disable_for_old_validation_layer(instance, &mut extensions);

        let mut caps =
            if has_13 { query_caps(instance, raw, &base, &extensions, &has) } else { caps_below_13(&base) };
        caps.cooperative_matrix_not_queried = not_queried;
        match queue_family {
            None => caps.missing_core.push("a compute queue".into()),
            Some((_, bits)) => {
                caps.timestamp_bits = bits;
                if bits == 0 {
                    caps.timestamp_period_ns = None;
                }
            }
        }
        for fault in &instance.inner.faults {
            if let Fault::NoFeature(name) = fault {
                remove_feature(&mut caps, name);
            }
        }

        let (heaps, memory_types) = crate::heap::query(instance, raw, extensions.memory_budget);
        let kind = match base.device_type {
            vk::PhysicalDeviceType::DISCRETE_GPU => AdapterKind::Discrete,
            vk::PhysicalDeviceType::INTEGRATED_GPU => AdapterKind::Integrated,
            vk::PhysicalDeviceType::VIRTUAL_GPU => AdapterKind::Virtual,
            vk::PhysicalDeviceType::CPU => AdapterKind::Cpu,
            _ => AdapterKind::Other,
        };
        let info = AdapterInfo {
            index,
            name,
            kind,
            vendor_id: base.vendor_id,
            device_id: base.device_id,
            pci_address: has(ash::ext::pci_bus_info::NAME).then(|| pci_address(vk_instance, raw)),
            driver: driver_text.trim().to_string(),
            driver_version: base.driver_version,
            pipeline_cache_uuid: base.pipeline_cache_uuid,
            unified_memory: matches!(kind, AdapterKind::Integrated | AdapterKind::Cpu),
            compile_only,
            caps,
            heaps,
            memory_types,
        };
        Ok(Self {
            instance: instance.clone(),
            raw,
            queue_family: queue_family.map(|(family, _)| family),
            extensions,
            info,
        })
    }
}

/// The address of a device whose driver has VK_EXT_pci_bus_info.
fn pci_address(instance: &ash::Instance, raw: vk::PhysicalDevice) -> String {
    let mut pci = vk::PhysicalDevicePCIBusInfoPropertiesEXT::default();
    let mut chain = vk::PhysicalDeviceProperties2::default().push_next(&mut pci);
    // SAFETY: `raw` was enumerated from this instance, and the caller checked the extension of the chained struct.
    unsafe { instance.get_physical_device_properties2(raw, &mut chain) };
    format!("{:04x}:{:02x}:{:02x}.{:x}", pci.pci_domain, pci.pci_bus, pci.pci_device, pci.pci_function)
}

/// Selects the device that `wanted` identifies by index or by part of its name. Without `wanted`, the best
/// usable one: discrete, then integrated, then the others.
pub fn select_adapter<'a>(adapters: &'a [Adapter], wanted: Option<&str>) -> Result<&'a Adapter> {
    let infos: Vec<&AdapterInfo> = adapters.iter().map(|adapter| &adapter.info).collect();
    select_info(&infos, wanted).map(|position| &adapters[position])
}

fn select_info(infos: &[&AdapterInfo], wanted: Option<&str>) -> Result<usize> {
    let position = match wanted.map(str::trim).filter(|wanted| !wanted.is_empty()) {
        Some(wanted) => find_by_name(infos, wanted)?,
        None => (0..infos.len())
            .min_by_key(|position| (infos[*position].caps.tier().is_none(), infos[*position].kind))
            .ok_or(Error::NoDriver)?,
    };
    let info = infos[position];
    if info.caps.tier().is_none() {
        return Err(Error::Unsupported {
            device: info.name.clone(),
            missing: format!("it lacks {}", info.caps.missing_core.join(", ")),
            fix: "update its driver or choose another device (indrik devices)".into(),
        });
    }
    Ok(position)
}

fn find_by_name(infos: &[&AdapterInfo], wanted: &str) -> Result<usize> {
    let error = |matches| Error::NoSuchDevice {
        wanted: wanted.to_string(),
        matches,
        available: infos
            .iter()
            .map(|info| format!("{}: {}", info.index, info.name))
            .collect::<Vec<_>>()
            .join(", "),
    };
    if let Ok(index) = wanted.parse::<usize>() {
        return infos.iter().position(|info| info.index == index).ok_or_else(|| error("no"));
    }
    let wanted_lower = wanted.to_lowercase();
    let mut matching =
        (0..infos.len()).filter(|position| infos[*position].name.to_lowercase().contains(&wanted_lower));
    match (matching.next(), matching.next()) {
        (Some(position), None) => Ok(position),
        (None, _) => Err(error("no")),
        (Some(_), Some(_)) => Err(error("more than one")),
    }
}

fn extension_names(instance: &Instance, raw: vk::PhysicalDevice) -> Result<Vec<std::ffi::CString>> {
    // SAFETY: `raw` was enumerated from this instance.
    let properties = unsafe { instance.inner.raw.enumerate_device_extension_properties(raw) }
        .map_err(|result| Error::from_vk("vkEnumerateDeviceExtensionProperties", result))?;
    Ok(properties.iter().filter_map(|p| p.extension_name_as_c_str().ok().map(CStr::to_owned)).collect())
}

/// The compute queue family and its timestamp bits. Families without graphics are preferred: on AMD their
/// ring is not shared with the desktop and has a longer watchdog timeout.
fn compute_family(instance: &ash::Instance, raw: vk::PhysicalDevice) -> Option<(u32, u32)> {
    // SAFETY: `raw` was enumerated from this instance.
    let families = unsafe { instance.get_physical_device_queue_family_properties(raw) };
    families
        .iter()
        .enumerate()
        .filter(|(_, family)| family.queue_flags.contains(vk::QueueFlags::COMPUTE))
        .min_by_key(|(_, family)| {
            (family.timestamp_valid_bits == 0, family.queue_flags.contains(vk::QueueFlags::GRAPHICS))
        })
        .map(|(index, family)| (index as u32, family.timestamp_valid_bits))
}

/// Disables extensions that are newer than the loaded validation layer, which would report their structures
/// as errors. Returns the reason if cooperative matrices are affected.
fn disable_for_old_validation_layer(instance: &Instance, extensions: &mut Extensions) -> Option<String> {
    // Header versions that introduced VK_KHR_cooperative_matrix and VK_NV_cooperative_matrix2.
    const KHR: u32 = vk::make_api_version(0, 1, 3, 255);
    const NV2: u32 = vk::make_api_version(0, 1, 3, 297);
    let layer = instance.inner.validation_version?;
    extensions.cooperative_matrix2 &= layer >= NV2;
    if layer >= KHR {
        return None;
    }
    extensions.cooperative_matrix = false;
    Some(format!("the validation layer ({}) is too old for cooperative matrices", version(layer)))
}

fn version(raw: u32) -> String {
    format!("{}.{}.{}", vk::api_version_major(raw), vk::api_version_minor(raw), vk::api_version_patch(raw))
}

fn caps_below_13(base: &vk::PhysicalDeviceProperties) -> Caps {
    Caps {
        api_version: version(base.api_version),
        missing_core: vec![format!("Vulkan 1.3 (it has {})", version(base.api_version))],
        ..Caps::minimal()
    }
}

fn query_caps(
    instance: &Instance,
    raw: vk::PhysicalDevice,
    base: &vk::PhysicalDeviceProperties,
    extensions: &Extensions,
    has: &dyn Fn(&CStr) -> bool,
) -> Caps {
    let vk_instance = &instance.inner.raw;
    let mut p11 = vk::PhysicalDeviceVulkan11Properties::default();
    let mut p13 = vk::PhysicalDeviceVulkan13Properties::default();
    let mut sm = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
    let mut amd = vk::PhysicalDeviceShaderCorePropertiesAMD::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut p11).push_next(&mut p13);
    let has_sm = has(ash::nv::shader_sm_builtins::NAME);
    let has_amd = has(ash::amd::shader_core_properties::NAME);
    if has_sm {
        properties = properties.push_next(&mut sm);
    }
    if has_amd {
        properties = properties.push_next(&mut amd);
    }
    // SAFETY: the chain contains structures of Vulkan 1.3 and of extensions that the device lists, all of
    // which outlive the call.
    unsafe { vk_instance.get_physical_device_properties2(raw, &mut properties) };

    let mut f11 = vk::PhysicalDeviceVulkan11Features::default();
    let mut f12 = vk::PhysicalDeviceVulkan12Features::default();
    let mut f13 = vk::PhysicalDeviceVulkan13Features::default();
    let mut matrix = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
    let mut matrix2 = vk_ext::PhysicalDeviceCooperativeMatrix2FeaturesNV::default();
    let mut conditional = vk::PhysicalDeviceConditionalRenderingFeaturesEXT::default();
    let mut features =
        vk::PhysicalDeviceFeatures2::default().push_next(&mut f11).push_next(&mut f12).push_next(&mut f13);
    if extensions.cooperative_matrix {
        features = features.push_next(&mut matrix);
    }
    if extensions.cooperative_matrix2 {
        features = features.push_next(&mut matrix2);
    }
    if extensions.conditional_rendering {
        features = features.push_next(&mut conditional);
    }
    // SAFETY: as above.
    unsafe { vk_instance.get_physical_device_features2(raw, &mut features) };
    let int64 = features.features.shader_int64 == vk::TRUE;

    let missing_core = [
        (f12.buffer_device_address, "bufferDeviceAddress"),
        (f12.scalar_block_layout, "scalarBlockLayout"),
        (f12.timeline_semaphore, "timelineSemaphore"),
        (f13.synchronization2, "synchronization2"),
        (f13.maintenance4, "maintenance4"),
    ];
    let subgroup_in_compute = p11.subgroup_supported_stages.contains(vk::ShaderStageFlags::COMPUTE);
    let subgroup = |operation| subgroup_in_compute && p11.subgroup_supported_operations.contains(operation);
    let limits = &base.limits;
    Caps {
        cpu: base.device_type == vk::PhysicalDeviceType::CPU,
        api_version: version(base.api_version),
        missing_core: missing_core
            .iter()
            .filter(|(present, _)| *present == vk::FALSE)
            .map(|(_, name)| (*name).to_string())
            .collect(),
        subgroup_size: p11.subgroup_size,
        min_subgroup_size: p13.min_subgroup_size,
        max_subgroup_size: p13.max_subgroup_size,
        subgroup_size_control: f13.subgroup_size_control == vk::TRUE
            && p13.required_subgroup_size_stages.contains(vk::ShaderStageFlags::COMPUTE),
        full_subgroups: f13.compute_full_subgroups == vk::TRUE,
        subgroup_arithmetic: subgroup(vk::SubgroupFeatureFlags::ARITHMETIC | vk::SubgroupFeatureFlags::VOTE),
        subgroup_shuffle: subgroup(vk::SubgroupFeatureFlags::SHUFFLE),
        float16: f12.shader_float16 == vk::TRUE,
        int8: f12.shader_int8 == vk::TRUE,
        int64,
        storage16: f11.storage_buffer16_bit_access == vk::TRUE,
        storage8: f12.storage_buffer8_bit_access == vk::TRUE,
        integer_dot: f13.shader_integer_dot_product == vk::TRUE,
        integer_dot_accelerated: p13.integer_dot_product4x8_bit_packed_signed_accelerated == vk::TRUE,
        cooperative_matrix: if matrix.cooperative_matrix == vk::TRUE {
            matrix_shapes(instance, raw)
        } else {
            vec![]
        },
        memory_model: f12.vulkan_memory_model == vk::TRUE && f12.vulkan_memory_model_device_scope == vk::TRUE,
        cooperative_matrix2: matrix2.cooperative_matrix_workgroup_scope == vk::TRUE
            && matrix2.cooperative_matrix_flexible_dimensions == vk::TRUE,
        cooperative_matrix_not_queried: None,
        conditional_rendering: conditional.conditional_rendering == vk::TRUE,
        compute_units: if has_sm && sm.shader_sm_count > 0 {
            Some(sm.shader_sm_count)
        } else if has_amd {
            let units = amd.shader_engine_count
                * amd.shader_arrays_per_engine_count
                * amd.compute_units_per_shader_array;
            (units > 0).then_some(units)
        } else {
            None
        },
        timestamp_bits: 0,
        timestamp_period_ns: Some(f64::from(limits.timestamp_period)).filter(|period| *period > 0.0),
        max_shared_bytes: limits.max_compute_shared_memory_size,
        max_threads: limits.max_compute_work_group_invocations.min(limits.max_compute_work_group_size[0]),
        max_groups: limits.max_compute_work_group_count[0],
        // A buffer may need slightly more memory than its size: RADV allows 4 GiB minus 4 bytes and rounds up
        // to pages.
        max_allocation: p11.max_memory_allocation_size.min(p13.max_buffer_size) / PAGE * PAGE,
    }
}

/// The largest memory page size of any supported system.
const PAGE: u64 = 64 << 10;

fn matrix_shapes(instance: &Instance, raw: vk::PhysicalDevice) -> Vec<MatrixShape> {
    let functions = ash::khr::cooperative_matrix::Instance::new(&instance.inner.entry, &instance.inner.raw);
    // SAFETY: `raw` was enumerated from this instance, lists VK_KHR_cooperative_matrix and has the feature.
    let Ok(properties) = (unsafe { functions.get_physical_device_cooperative_matrix_properties(raw) }) else {
        return vec![];
    };
    let element = |kind| match kind {
        vk::ComponentTypeKHR::FLOAT16 => Element::F16,
        vk::ComponentTypeKHR::FLOAT32 => Element::F32,
        vk::ComponentTypeKHR::SINT8 => Element::S8,
        vk::ComponentTypeKHR::UINT8 => Element::U8,
        vk::ComponentTypeKHR::SINT32 => Element::S32,
        vk::ComponentTypeKHR::UINT32 => Element::U32,
        // VK_COMPONENT_TYPE_BFLOAT16_KHR, which is newer than ash's headers.
        other if other.as_raw() == 1_000_141_000 => Element::Bf16,
        _ => Element::Other,
    };
    properties
        .iter()
        .filter(|shape| shape.scope == vk::ScopeKHR::SUBGROUP)
        .map(|shape| MatrixShape {
            m: shape.m_size,
            n: shape.n_size,
            k: shape.k_size,
            a: element(shape.a_type),
            b: element(shape.b_type),
            c: element(shape.c_type),
        })
        .collect()
}

/// Removes a feature, for an injected fault.
fn remove_feature(caps: &mut Caps, feature: &str) {
    match feature {
        "shaderFloat16" => caps.float16 = false,
        "shaderInt8" => caps.int8 = false,
        "shaderIntegerDotProduct" => caps.integer_dot = false,
        "subgroupArithmetic" => caps.subgroup_arithmetic = false,
        "timestamps" => caps.timestamp_period_ns = None,
        "cooperativeMatrix" => caps.cooperative_matrix.clear(),
        "conditionalRendering" => caps.conditional_rendering = false,
        core => caps.missing_core.push(core.to_string()),
    }
}

fn hex<S: serde::Serializer>(bytes: &[u8; 16], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&hex_text(bytes))
}

pub(crate) fn hex_text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caps::known;

    fn info(index: usize, name: &str, kind: AdapterKind, caps: Caps) -> AdapterInfo {
        AdapterInfo {
            index,
            name: name.into(),
            kind,
            vendor_id: 0,
            device_id: 0,
            driver: String::new(),
            driver_version: 0,
            pci_address: None,
            pipeline_cache_uuid: [0; 16],
            unified_memory: false,
            compile_only: false,
            caps,
            heaps: vec![],
            memory_types: vec![],
        }
    }

    fn machine() -> Vec<AdapterInfo> {
        vec![
            info(0, "llvmpipe (LLVM 15.0.6, 256 bits)", AdapterKind::Cpu, known::mesa_cpu()),
            info(1, "AMD Radeon 780M (RADV PHOENIX)", AdapterKind::Integrated, known::radeon_780m()),
            info(2, "NVIDIA H200", AdapterKind::Discrete, known::h200()),
        ]
    }

    fn select(infos: &[AdapterInfo], wanted: Option<&str>) -> Result<usize> {
        select_info(&infos.iter().collect::<Vec<_>>(), wanted)
    }

    #[test]
    fn discrete_is_preferred_over_integrated_over_cpu() {
        let machine = machine();
        assert_eq!(select(&machine, None).unwrap(), 2);
        assert_eq!(select(&machine[..2], None).unwrap(), 1);
        assert_eq!(select(&machine[..1], None).unwrap(), 0);
        assert_eq!(select(&machine, Some("")).unwrap(), 2);
    }

    #[test]
    fn devices_are_selected_by_index_or_part_of_the_name() {
        let machine = machine();
        assert_eq!(select(&machine, Some("0")).unwrap(), 0);
        assert_eq!(select(&machine, Some("radeon")).unwrap(), 1);
        let unknown = select(&machine, Some("geforce")).unwrap_err().to_string();
        assert!(
            unknown.contains("no Vulkan device matches 'geforce'") && unknown.contains("2: NVIDIA H200"),
            "{unknown}"
        );
        assert!(select(&machine, Some("7")).unwrap_err().to_string().contains("no Vulkan device"));
        assert!(select(&machine, Some("i")).unwrap_err().to_string().contains("more than one"));
    }

    #[test]
    fn an_unusable_device_is_skipped_and_rejected_when_named() {
        let mut machine = machine();
        machine[2].caps.missing_core = vec!["bufferDeviceAddress".into()];
        assert_eq!(select(&machine, None).unwrap(), 1);
        let error = select(&machine, Some("h200")).unwrap_err().to_string();
        assert!(error.contains("NVIDIA H200 does not support this: it lacks bufferDeviceAddress"), "{error}");
    }
}
