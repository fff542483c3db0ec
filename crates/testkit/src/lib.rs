//! Devices for tests.
//!
//! Tests run on Mesa's CPU driver with the Khronos validation layer, so that they need no GPU and forgive nothing. Where
//! either is not installed a test says so and passes, except under `CI=true`, where it fails: a check that silently did not
//! run is worse than none.

use std::ops::Deref;

use gpu::{AdapterKind, Device, DeviceOptions, Instance, InstanceOptions, Tier};

/// An open device whose validation messages are collected. Any message fails the test: at the latest when the device is
/// dropped, so that what was not destroyed shows too.
pub struct TestDevice {
    // Always there, until Drop takes it.
    device: Option<Device>,
    instance: Instance,
}

impl Drop for TestDevice {
    fn drop(&mut self) {
        self.device = None;
        if !std::thread::panicking() {
            self.assert_no_messages();
        }
    }
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
        self.device.as_ref().expect("it is taken in Drop only")
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

/// The same without validation, for long runs: what they execute is validated by shorter ones.
pub fn cpu_device_plain() -> Option<TestDevice> {
    open_cpu(&DeviceOptions::default(), false)
}

/// The same with options.
pub fn cpu_device_with(options: &DeviceOptions) -> Option<TestDevice> {
    open_cpu(options, true)
}

fn open_cpu(options: &DeviceOptions, validation: bool) -> Option<TestDevice> {
    let opened = Instance::new(&InstanceOptions { validation }).and_then(|instance| {
        let adapters = instance.adapters()?;
        let cpu = adapters
            .iter()
            .find(|adapter| adapter.info.kind == AdapterKind::Cpu)
            .ok_or(gpu::Error::NoDriver)?;
        let device = Device::open(cpu, options)?;
        Ok(TestDevice { device: Some(device), instance })
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
        .find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // A machine that runs 32-bit games has the driver twice.
            name.starts_with("radeon_icd") && !name.contains("i686") && !name.contains("i386")
        });
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
