//! The capabilities of a device as plain data, and the capability tiers derived from them.
//!
//! Kernels require a tier, never an extension: T0 is fp32 on any Vulkan 1.3 device; T1 adds fp16, packed int8
//! dot products and subgroup arithmetic; T2 adds cooperative matrices; T3 adds NVIDIA's second generation of
//! them. A missing tier always comes with a reason.

use serde::{Deserialize, Serialize};

/// A capability tier. A device of one tier also has all lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Tier {
    /// fp32 and shared memory: any Vulkan 1.3 device.
    T0,
    /// fp16, packed int8 dot products, subgroup arithmetic and shuffles.
    T1,
    /// `VK_KHR_cooperative_matrix` at subgroup scope.
    T2,
    /// `VK_NV_cooperative_matrix2` at workgroup scope.
    T3,
}

impl Tier {
    /// All tiers, lowest first.
    pub const ALL: [Tier; 4] = [Tier::T0, Tier::T1, Tier::T2, Tier::T3];

    /// A short description.
    pub fn description(self) -> &'static str {
        match self {
            Tier::T0 => "fp32, any subgroup size",
            Tier::T1 => "fp16 and packed int8 dot",
            Tier::T2 => "cooperative matrices",
            Tier::T3 => "NVIDIA cooperative matrices 2",
        }
    }
}

impl std::fmt::Display for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Whether a device has a tier, and if not, why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TierStatus {
    /// The tier.
    pub tier: Tier,
    /// Missing features; empty if the device has the tier.
    pub missing: Vec<String>,
}

/// Element type of a cooperative matrix operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Element {
    /// 16-bit float.
    F16,
    /// 32-bit float.
    F32,
    /// bfloat16.
    Bf16,
    /// Signed 8-bit integer.
    S8,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 32-bit integer.
    S32,
    /// Unsigned 32-bit integer.
    U32,
    /// A type that no kernel uses.
    Other,
}

/// One shape of cooperative matrix product: C (m × n) += A (m × k) · B (k × n).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct MatrixShape {
    /// Rows of A and C.
    pub m: u32,
    /// Columns of B and C.
    pub n: u32,
    /// Columns of A, rows of B.
    pub k: u32,
    /// Type of A.
    pub a: Element,
    /// Type of B.
    pub b: Element,
    /// Type of C and of the result.
    pub c: Element,
}

/// Limits and features of a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Caps {
    /// Whether shaders run on the CPU.
    pub cpu: bool,
    /// Vulkan version of the device, such as `1.4.305`.
    pub api_version: String,
    /// Features of tier T0 that the device lacks, by Vulkan name.
    pub missing_core: Vec<String>,
    /// Default subgroup size.
    pub subgroup_size: u32,
    /// Minimum subgroup size that a pipeline may require.
    pub min_subgroup_size: u32,
    /// Maximum subgroup size that a pipeline may require.
    pub max_subgroup_size: u32,
    /// Whether a pipeline may require a subgroup size.
    pub subgroup_size_control: bool,
    /// Whether a pipeline may require full subgroups.
    pub full_subgroups: bool,
    /// Subgroup reductions and votes.
    pub subgroup_arithmetic: bool,
    /// Subgroup shuffles.
    pub subgroup_shuffle: bool,
    /// 16-bit float arithmetic.
    pub float16: bool,
    /// 8-bit integer arithmetic.
    pub int8: bool,
    /// 64-bit integer arithmetic and loads.
    pub int64: bool,
    /// Buffers of 16-bit elements.
    pub storage16: bool,
    /// Buffers of 8-bit elements.
    pub storage8: bool,
    /// Packed 4 × 8-bit dot products.
    pub integer_dot: bool,
    /// Whether the packed dot product is a native instruction.
    pub integer_dot_accelerated: bool,
    /// The Vulkan memory model with device scope, which cooperative matrices need.
    pub memory_model: bool,
    /// Shapes of `VK_KHR_cooperative_matrix` at subgroup scope.
    pub cooperative_matrix: Vec<MatrixShape>,
    /// `VK_NV_cooperative_matrix2` with workgroup scope and flexible dimensions.
    pub cooperative_matrix2: bool,
    /// Why support for cooperative matrices was not queried; `None` if it was.
    pub cooperative_matrix_not_queried: Option<String>,
    /// `VK_EXT_conditional_rendering`: dispatches can be skipped by a predicate in memory, so that a decode
    /// run can end early. Without it every submission is a single step.
    pub conditional_rendering: bool,
    /// Number of compute units (AMD) or multiprocessors (NVIDIA), if the driver reports it.
    pub compute_units: Option<u32>,
    /// Width of a timestamp in bits; it wraps around after that.
    pub timestamp_bits: u32,
    /// Nanoseconds per timestamp tick; `None` if the compute queue has no timestamps.
    pub timestamp_period_ns: Option<f64>,
    /// Maximum shared memory per workgroup, in bytes.
    pub max_shared_bytes: u32,
    /// Maximum threads per workgroup.
    pub max_threads: u32,
    /// Maximum workgroups per dispatch along x.
    pub max_groups: u32,
    /// Maximum bytes of one allocation, and so of one buffer.
    pub max_allocation: u64,
}

impl Caps {
    /// Every tier, lowest first, with its missing features.
    pub fn tiers(&self) -> [TierStatus; 4] {
        let mut missing: Vec<String> = Vec::new();
        Tier::ALL.map(|tier| {
            // A tier builds on the lower ones: the reason names the lowest missing tier.
            if let (false, Some(below)) = (missing.is_empty(), tier_below(tier)) {
                if !missing[0].starts_with("needs ") {
                    missing = vec![format!("needs {below}")];
                }
            } else {
                missing = self.missing_for(tier);
            }
            TierStatus { tier, missing: missing.clone() }
        })
    }

    /// The highest tier of the device; `None` if it lacks even T0.
    pub fn tier(&self) -> Option<Tier> {
        self.tiers().into_iter().filter(|status| status.missing.is_empty()).map(|status| status.tier).max()
    }

    fn missing_for(&self, tier: Tier) -> Vec<String> {
        let mut missing = Vec::new();
        let mut need = |has: bool, name: &str| {
            if !has {
                missing.push(name.to_string());
            }
        };
        match tier {
            Tier::T0 => return self.missing_core.clone(),
            Tier::T1 => {
                need(self.float16, "shaderFloat16");
                need(self.int8, "shaderInt8");
                need(self.storage16, "storageBuffer16BitAccess");
                need(self.storage8, "storageBuffer8BitAccess");
                need(self.integer_dot, "shaderIntegerDotProduct");
                need(self.subgroup_arithmetic, "subgroup arithmetic");
                need(self.subgroup_shuffle, "subgroup shuffles");
                need(self.full_subgroups, "computeFullSubgroups");
                // Kernels reduce across subgroups in shared memory that is sized for at least this width.
                need(self.min_subgroup_size >= 4, "subgroups of at least 4");
            }
            Tier::T2 => {
                if let Some(reason) = &self.cooperative_matrix_not_queried {
                    return vec![reason.clone()];
                }
                let usable = |shape: &MatrixShape| matches!(shape.a, Element::F16 | Element::S8);
                need(self.cooperative_matrix.iter().any(usable), "VK_KHR_cooperative_matrix");
                need(self.memory_model, "vulkanMemoryModelDeviceScope");
            }
            Tier::T3 => need(self.cooperative_matrix2, "VK_NV_cooperative_matrix2"),
        }
        missing
    }

    /// Whether the device supports cooperative matrices of this shape.
    pub fn has_matrix(&self, shape: MatrixShape) -> bool {
        self.cooperative_matrix.contains(&shape)
    }

    /// Whether a pipeline may require exactly this subgroup size.
    pub fn allows_subgroup_size(&self, size: u32) -> bool {
        self.subgroup_size_control && (self.min_subgroup_size..=self.max_subgroup_size).contains(&size)
            || (self.min_subgroup_size == size && self.max_subgroup_size == size)
    }

    /// A typical GPU with Vulkan 1.3, the base of the well-known devices.
    fn typical() -> Caps {
        Caps {
            cpu: false,
            api_version: "1.3.0".into(),
            missing_core: vec![],
            subgroup_size: 32,
            min_subgroup_size: 32,
            max_subgroup_size: 32,
            subgroup_size_control: true,
            full_subgroups: true,
            subgroup_arithmetic: true,
            subgroup_shuffle: true,
            float16: true,
            int8: true,
            int64: true,
            storage16: true,
            storage8: true,
            integer_dot: true,
            integer_dot_accelerated: true,
            memory_model: true,
            cooperative_matrix: vec![],
            cooperative_matrix2: false,
            cooperative_matrix_not_queried: None,
            conditional_rendering: true,
            compute_units: None,
            timestamp_bits: 64,
            timestamp_period_ns: Some(1.0),
            max_shared_bytes: 49152,
            max_threads: 1024,
            max_groups: i32::MAX as u32,
            max_allocation: 4 << 30,
        }
    }

    /// A device with only what Vulkan 1.3 requires.
    pub(crate) fn minimal() -> Caps {
        Caps {
            float16: false,
            storage16: false,
            integer_dot: false,
            int64: false,
            integer_dot_accelerated: false,
            subgroup_arithmetic: false,
            subgroup_shuffle: false,
            conditional_rendering: false,
            max_shared_bytes: 16384,
            max_threads: 128,
            max_groups: 65535,
            max_allocation: 1 << 30,
            ..Caps::typical()
        }
    }
}

fn tier_below(tier: Tier) -> Option<Tier> {
    Tier::ALL.into_iter().rfind(|below| *below < tier)
}

/// Capabilities of well-known devices, to test policies without those devices.
#[cfg(any(test, feature = "testing"))]
pub mod known {
    use super::{Caps, Element, MatrixShape};

    fn shape(m: u32, n: u32, k: u32, a: Element, c: Element) -> MatrixShape {
        MatrixShape { m, n, k, a, b: a, c }
    }

    /// NVIDIA H200, driver 580.
    pub fn h200() -> Caps {
        Caps {
            cooperative_matrix: vec![
                shape(16, 16, 16, Element::F16, Element::F32),
                shape(16, 8, 16, Element::F16, Element::F32),
                shape(16, 16, 32, Element::S8, Element::S32),
            ],
            cooperative_matrix2: true,
            compute_units: Some(132),
            ..Caps::typical()
        }
    }

    /// Radeon 780M under RADV.
    pub fn radeon_780m() -> Caps {
        Caps {
            subgroup_size: 64,
            max_subgroup_size: 64,
            compute_units: Some(12),
            max_shared_bytes: 65536,
            cooperative_matrix: vec![
                shape(16, 16, 16, Element::F16, Element::F32),
                shape(16, 16, 16, Element::S8, Element::S32),
            ],
            ..Caps::typical()
        }
    }

    /// Mesa's CPU driver with 256-bit vectors.
    pub fn mesa_cpu() -> Caps {
        Caps {
            cpu: true,
            subgroup_size: 8,
            min_subgroup_size: 8,
            max_subgroup_size: 8,
            integer_dot_accelerated: false,
            max_shared_bytes: 32768,
            max_groups: 65535,
            max_allocation: 2 << 30,
            ..Caps::typical()
        }
    }

    /// The same with 512-bit vectors.
    pub fn mesa_cpu_wide() -> Caps {
        Caps { subgroup_size: 16, min_subgroup_size: 16, max_subgroup_size: 16, ..mesa_cpu() }
    }

    /// A device with only what Vulkan 1.3 requires.
    pub fn bare_vulkan_13() -> Caps {
        Caps::minimal()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_devices_have_the_expected_tiers() {
        assert_eq!(known::h200().tier(), Some(Tier::T3));
        assert_eq!(known::radeon_780m().tier(), Some(Tier::T2));
        assert_eq!(known::mesa_cpu().tier(), Some(Tier::T1));
        assert_eq!(known::bare_vulkan_13().tier(), Some(Tier::T0));
    }

    #[test]
    fn a_missing_tier_has_a_reason_and_higher_tiers_refer_to_it() {
        let status = known::bare_vulkan_13().tiers();
        assert!(status[0].missing.is_empty());
        assert!(status[1].missing.contains(&"shaderFloat16".to_string()));
        assert_eq!(status[2].missing, ["needs T1"]);
        assert_eq!(status[3].missing, ["needs T1"]);
    }

    #[test]
    fn a_device_below_vulkan_13_has_no_tier() {
        let caps = Caps { missing_core: vec!["Vulkan 1.3 (has 1.1)".into()], ..known::h200() };
        assert_eq!(caps.tier(), None);
        assert_eq!(caps.tiers()[3].missing, ["needs T0"]);
    }
}
