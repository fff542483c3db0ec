//! Devices for tests.
//!
//! Tests run on Mesa's CPU driver with the Khronos validation layer, so that they need no GPU and forgive nothing. Where
//! either is not installed a test says so and passes, except under `CI=true`, where it fails: a check that silently did not
//! run is worse than none.

use std::ops::Deref;

use gpu::{AdapterKind, Device, DeviceOptions, Instance, InstanceOptions, Tier};

/// An open device whose validation messages are collected.
pub struct TestDevice {
    device: Device,
    instance: Instance,
}

impl TestDevice {
    /// Fails the test if the validation layer said anything.
    pub fn assert_no_messages(&self) {
        let messages = self.instance.validation_messages();
        assert!(messages.is_empty(), "the validation layer says:\n{}", messages.join("\n"));
    }

    /// The instance behind it.
    pub fn instance(&self) -> &Instance {
        &self.instance
    }
}

impl Deref for TestDevice {
    type Target = Device;
    fn deref(&self) -> &Device {
        &self.device
    }
}

/// Mesa's CPU driver with validation, or nothing where it is not installed.
pub fn cpu_device() -> Option<TestDevice> {
    cpu_device_with(&DeviceOptions { cache_dir: None, ..DeviceOptions::default() })
}

/// The same at tier T0.
pub fn cpu_device_t0() -> Option<TestDevice> {
    cpu_device_with(&DeviceOptions { cache_dir: None, max_tier: Tier::T0, ..DeviceOptions::default() })
}

/// The same with options.
pub fn cpu_device_with(options: &DeviceOptions) -> Option<TestDevice> {
    let opened = Instance::new(&InstanceOptions { validation: true }).and_then(|instance| {
        let adapters = instance.adapters()?;
        let cpu = adapters
            .iter()
            .find(|adapter| adapter.info.kind == AdapterKind::Cpu)
            .ok_or(gpu::Error::NoDriver)?;
        let device = Device::open(cpu, options)?;
        Ok(TestDevice { device, instance })
    });
    match opened {
        Ok(device) => Some(device),
        Err(error) => {
            missing(&format!("Mesa's CPU driver or the validation layer: {error}"));
            None
        }
    }
}

/// The manifest of Mesa's RADV, which compiles for AMD GPUs that are not there when `RADV_FORCE_FAMILY` names one; nothing
/// where it is not installed.
pub fn radv_driver() -> Option<String> {
    let found = ["/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d"]
        .iter()
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("radeon_icd")));
    if found.is_none() {
        missing("Mesa's AMD driver (RADV)");
    }
    found.map(|path| path.to_string_lossy().into_owned())
}

/// Something that a test needs is not installed: says so, and fails under `CI=true`.
pub fn missing(what: &str) {
    let text = format!("not tested, because something is missing (scripts/setup.sh installs it): {what}");
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{text}");
    eprintln!("{text}");
}
