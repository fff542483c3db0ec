//! The kernel's time limit for a submission.
//!
//! amdgpu resets the GPU when a job runs past its ring's timeout, and every process on the GPU loses its
//! device. The engine keeps submissions below that limit. Only a configured limit can be read. The default
//! has been 10 s for graphics and 60 s for compute, then 10 s for both, and is 2 s on the newest kernels.

use std::path::Path;

use serde::Serialize;

use crate::read;

/// The shortest default of any kernel.
pub const SHORTEST_DEFAULT_MS: u64 = 2_000;

/// `amdgpu.lockup_timeout` as configured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LockupTimeout {
    /// The parameter as written; empty if it is not configured.
    pub raw: String,
    /// Timeout of the graphics ring, which also runs compute shaders from a Vulkan queue with graphics.
    pub graphics: RingTimeout,
    /// Timeout of the compute rings. A single value applies to graphics only on older kernels and to all
    /// rings on newer ones, so it does not determine this.
    pub compute: RingTimeout,
}

/// When the kernel aborts a job of one ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RingTimeout {
    /// After the default of this kernel, which cannot be read; at least [`SHORTEST_DEFAULT_MS`].
    KernelDefault,
    /// After this many milliseconds.
    Milliseconds(u64),
    /// Never: a hung shader hangs the machine.
    Never,
}

impl RingTimeout {
    /// Guaranteed milliseconds per job; `None` for no limit.
    pub fn at_least_ms(self) -> Option<u64> {
        match self {
            Self::KernelDefault => Some(SHORTEST_DEFAULT_MS),
            Self::Milliseconds(milliseconds) => Some(milliseconds),
            Self::Never => None,
        }
    }

    fn parse(value: Option<&str>) -> Self {
        match value.and_then(|value| value.trim().parse::<i64>().ok()) {
            None | Some(0) => Self::KernelDefault,
            Some(milliseconds) => u64::try_from(milliseconds).map_or(Self::Never, Self::Milliseconds),
        }
    }
}

impl LockupTimeout {
    /// Guaranteed milliseconds per submission on any ring; `None` for no limit.
    pub fn at_least_ms(&self) -> Option<u64> {
        [self.graphics, self.compute].into_iter().filter_map(RingTimeout::at_least_ms).min()
    }

    fn parse(raw: String) -> Self {
        let mut values = raw.split(',');
        let graphics = RingTimeout::parse(values.next());
        let compute = RingTimeout::parse(values.next());
        Self { raw, graphics, compute }
    }
}

pub(crate) fn lockup_timeout(root: &Path) -> Option<LockupTimeout> {
    read::text(root.join("sys/module/amdgpu/parameters/lockup_timeout")).map(LockupTimeout::parse)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Tree;
    use RingTimeout::{KernelDefault, Milliseconds, Never};

    #[test]
    fn the_parameter_is_parsed_like_the_kernel_does() {
        let tree = Tree::new();
        for (raw, graphics, compute, at_least) in [
            ("", KernelDefault, KernelDefault, Some(SHORTEST_DEFAULT_MS)),
            ("10000,60000,10000,10000", Milliseconds(10_000), Milliseconds(60_000), Some(10_000)),
            ("30000", Milliseconds(30_000), KernelDefault, Some(SHORTEST_DEFAULT_MS)),
            ("500", Milliseconds(500), KernelDefault, Some(500)),
            ("0,5000", KernelDefault, Milliseconds(5_000), Some(SHORTEST_DEFAULT_MS)),
            ("-1,5000", Never, Milliseconds(5_000), Some(5_000)),
            ("-1,-1", Never, Never, None),
            ("soon,,", KernelDefault, KernelDefault, Some(SHORTEST_DEFAULT_MS)),
            ("99999999999999999999", KernelDefault, KernelDefault, Some(SHORTEST_DEFAULT_MS)),
        ] {
            tree.write("sys/module/amdgpu/parameters/lockup_timeout", format!("{raw}\n"));
            let read = tree.system().lockup_timeout().unwrap();
            assert_eq!(read, LockupTimeout { raw: raw.into(), graphics, compute });
            assert_eq!(read.at_least_ms(), at_least, "{raw}");
        }
    }
}
