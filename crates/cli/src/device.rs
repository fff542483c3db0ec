//! From `--device` to an open device.

use gpu::{Adapter, Device, DeviceOptions, Instance, InstanceOptions, Tier};

/// How the device is opened; the same for every command.
#[derive(Clone, Debug, Default)]
pub struct Choice<'a> {
    /// Index or part of a name.
    pub wanted: Option<&'a str>,
    /// Nothing above this tier.
    pub max_tier: Option<Tier>,
    /// Load the validation layer.
    pub validation: bool,
    /// Keep the compiler's statistics.
    pub statistics: bool,
}

impl Choice<'_> {
    /// Finds the device.
    pub fn adapter(&self) -> gpu::Result<(Instance, Adapter)> {
        let instance = Instance::new(&InstanceOptions { validation: self.validation })?;
        let adapter = gpu::select_adapter(&instance.adapters()?, self.wanted)?.clone();
        Ok((instance, adapter))
    }

    /// Finds and opens it.
    pub fn open(&self) -> gpu::Result<(Instance, Device)> {
        let (instance, adapter) = self.adapter()?;
        if adapter.info.compile_only && !self.statistics {
            return Err(gpu::Error::Unsupported {
                device: adapter.info.name.clone(),
                missing: "it is not present, only its compiler is".into(),
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
