//! Device selection.

use gpu::{Adapter, Device, DeviceOptions, Instance, InstanceOptions, Tier};

/// Which Vulkan device to open, and how.
#[derive(Clone, Debug, Default)]
pub struct DeviceSelector<'a> {
    /// Index or part of the name; the fastest device if `None`.
    pub name: Option<&'a str>,
    /// Highest tier to use, to test the code paths of less capable devices.
    pub max_tier: Option<Tier>,
    /// Load the Khronos validation layer.
    pub validation: bool,
    /// Record the shader compiler's statistics. Also accepts compile-only devices.
    pub statistics: bool,
}

impl DeviceSelector<'_> {
    /// Finds the device.
    pub fn adapter(&self) -> gpu::Result<(Instance, Adapter)> {
        let instance = Instance::new(&InstanceOptions { validation: self.validation })?;
        let adapter = gpu::select_adapter(&instance.adapters()?, self.name)?.clone();
        Ok((instance, adapter))
    }

    /// Finds and opens the device.
    pub fn open(&self) -> gpu::Result<(Instance, Device)> {
        let (instance, adapter) = self.adapter()?;
        if adapter.info.compile_only && !self.statistics {
            return Err(gpu::Error::Unsupported {
                device: adapter.info.name.clone(),
                missing: "only its compiler is present, not the hardware".into(),
                fix: "unset RADV_FORCE_FAMILY (only `indrik kernels` works with it)".into(),
            });
        }
        let options = DeviceOptions {
            max_tier: self.max_tier.unwrap_or(Tier::T3),
            capture_statistics: self.statistics,
            ..DeviceOptions::default()
        };
        let device = Device::open(&adapter, &options)?;
        Ok((instance, device))
    }
}
