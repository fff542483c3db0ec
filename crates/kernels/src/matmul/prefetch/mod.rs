//! Loads memory ranges into the device's cache, concurrently with a kernel that leaves memory bandwidth idle.

mod cases;
pub mod policy;
#[cfg(test)]
mod tests;

use gpu::{Device, Error, Pipeline, Recorder, Result, Subgroup, Tier, View};

use crate::{
    Kernel,
    shaders::prefetch::{Constants, Push, TIERS},
    variant::Variant,
};
use policy::Ranges;

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "prefetch",
    about: "prefetch of weights into the cache",
    variants: policy::variants,
    cases: cases::cases,
};

/// The kernel.
pub struct Prefetch {
    pipeline: Pipeline,
}

impl Prefetch {
    /// Compiles the kernel.
    pub fn new(device: &Device) -> Result<Self> {
        Ok(Self { pipeline: variant().pipeline(device)? })
    }

    /// Records reading some ranges of `data`. `checksums` gets one word per [`policy::GROUP_BYTES`] of them.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        data: &View,
        checksums: &View,
        ranges: Ranges,
    ) -> Result<()> {
        let Ranges { count, bytes, stride } = ranges;
        let aligned =
            bytes > 0 && bytes.is_multiple_of(policy::GROUP_BYTES) && stride.is_multiple_of(16) && count > 0;
        let end = ranges.end();
        if !aligned
            || end > data.len()
            || end / 16 > u64::from(u32::MAX)
            || checksums.len() < u64::from(ranges.groups()) * 4
        {
            let reason = format!(
                "{ranges:?} of a buffer of {} bytes, with {} bytes of checksums",
                data.len(),
                checksums.len()
            );
            return Err(Error::InvalidUse { what: name.to_string(), reason });
        }
        let push = Push {
            data: data.clone().into(),
            checksums: checksums.clone().into(),
            groups_per_range: bytes / policy::GROUP_BYTES,
            stride: stride / 16,
        };
        recorder.dispatch(name, &self.pipeline, [ranges.groups(), 1, 1], &push)
    }
}

fn variant() -> Variant {
    let constants = Constants { threads: policy::THREADS, loads: policy::LOADS };
    Variant::new(
        format!("{} bytes per workgroup", policy::GROUP_BYTES),
        TIERS,
        Tier::T0,
        &constants,
        Subgroup::Any,
    )
}
