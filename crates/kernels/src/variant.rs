//! Kernels and their variants: what is known of a kernel without running it.

use gpu::{Caps, Device, Error, Pipeline, RawConstants, Result, Shader, SpecConstants, Subgroup, Tier};

use crate::case::Case;

/// One kernel, as used by the self-test, the compile checks and the documentation.
pub struct Kernel {
    /// Name, after its folder.
    pub name: &'static str,
    /// What it computes, in a few words.
    pub about: &'static str,
    /// Every pipeline that its policy may request on a device.
    pub variants: fn(&Caps) -> Vec<Variant>,
    /// The self-test cases for a device.
    pub cases: fn(&Caps) -> Vec<Case>,
}

/// One pipeline of a kernel: a shader with its constants.
#[derive(Clone, Debug)]
pub struct Variant {
    /// What distinguishes it, in a few words.
    pub label: String,
    /// The tier it needs.
    pub tier: Tier,
    /// The shader of that tier.
    pub shader: &'static Shader,
    /// Its specialisation constants.
    pub constants: RawConstants,
    /// The required subgroup size.
    pub subgroup: Subgroup,
}

impl Variant {
    /// Creates a variant from a shader's tiers (as generated: lowest first).
    pub fn new(
        label: String,
        tiers: &[(u32, &'static Shader)],
        tier: Tier,
        constants: &impl SpecConstants,
        subgroup: Subgroup,
    ) -> Self {
        Self {
            label,
            tier,
            shader: shader_of(tiers, tier),
            constants: RawConstants(constants.values()),
            subgroup,
        }
    }

    /// Whether both compile to the same code.
    pub fn same_code(&self, other: &Variant) -> bool {
        (self.tier, &self.constants, self.subgroup) == (other.tier, &other.constants, other.subgroup)
    }

    /// A fingerprint of all that a driver compiles: SPIR-V, constants, subgroup size. FNV-1a, which is the same on every
    /// machine.
    pub fn fingerprint(&self) -> u64 {
        let subgroup = match self.subgroup {
            Subgroup::Any => 0,
            Subgroup::Exactly(size) => size,
        };
        let numbers = self.constants.0.iter().chain([&subgroup]).flat_map(|value| value.to_le_bytes());
        self.shader.spirv.iter().copied().chain(numbers).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }

    /// Compiles the pipeline, or returns the cached one.
    pub fn pipeline(&self, device: &Device) -> Result<Pipeline> {
        let threads = self.shader.threads(&self.constants.0);
        let subgroup = match self.subgroup {
            Subgroup::Exactly(size) => size,
            Subgroup::Any => device.caps().max_subgroup_size,
        };
        // From T1 on shaders derive the thread index from the subgroup, which requires full subgroups.
        if self.tier >= Tier::T1 && !threads.is_multiple_of(subgroup) {
            let reason = format!("{threads} threads are not a multiple of the subgroup size, {subgroup}");
            return Err(Error::InvalidUse { what: format!("{} ({})", self.shader.name, self.label), reason });
        }
        device.pipeline(self.shader, &self.constants, self.subgroup)
    }
}

/// The shader for a tier: that tier's, or the highest below it.
fn shader_of(tiers: &[(u32, &'static Shader)], tier: Tier) -> &'static Shader {
    tiers
        .iter()
        .rev()
        .find(|(number, _)| *number <= tier as u32)
        .map(|(_, shader)| *shader)
        .expect("every shader has tier T0, or only its own tiers are requested")
}

/// Runs every case of a kernel on Mesa's CPU driver with the validation layer; any wrong output or validation
/// message fails.
#[cfg(test)]
pub(crate) fn run_cases_on_cpu(kernel: &Kernel) {
    let (Some(device), Some(t0_device)) = (testkit::cpu_device(), testkit::cpu_device_t0()) else { return };
    // A device opened without the T1 features exposes a T0 shader that needs one of them.
    let t0_cases = (kernel.cases)(t0_device.caps()).into_iter().map(|case| (&t0_device, case));
    // Cases at T0 have already run.
    let t1_cases = (kernel.cases)(device.caps()).into_iter().filter(|case| case.tier > Tier::T0);
    let cases = t1_cases.map(|case| (&device, case));
    let mut count = 0;
    for (device, case) in t0_cases.chain(cases) {
        count += 1;
        let name = format!("{} {} at {}", kernel.name, case.name, case.tier);
        let comparison = case.run(device).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(comparison.passed(), "{name}: {:?}", comparison.first_mismatch);
    }
    assert!(count > 0);
}
