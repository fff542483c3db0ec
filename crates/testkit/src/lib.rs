//! Devices for tests.
//!
//! Tests run on Mesa's CPU driver with the Khronos validation layer, so that they need no GPU and every
//! misuse of Vulkan fails. If either is not installed, a test prints a note and passes; with `CI=true` it
//! fails, so that CI cannot skip tests silently.
//!
//! ```
//! # fn main() {
//! let Some(device) = testkit::cpu_device() else { return };
//! assert!(device.caps().tier().is_some());
//! device.assert_no_messages();
//! # }
//! ```

use std::ops::Deref;

use gpu::{AdapterKind, Device, DeviceOptions, Instance, InstanceOptions, Tier};

/// An open device whose validation messages are collected. Any message fails the test, at the latest when the
/// device is dropped, so that leaked objects are detected too.
pub struct TestDevice {
    /// Always `Some` until Drop.
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
    /// Fails the test if the validation layer reported anything.
    pub fn assert_no_messages(&self) {
        let messages = self.instance.validation_messages();
        assert!(messages.is_empty(), "validation layer messages:\n{}", messages.join("\n"));
    }

    /// The instance of the device.
    pub fn instance(&self) -> &Instance {
        &self.instance
    }
}

impl Deref for TestDevice {
    type Target = Device;
    fn deref(&self) -> &Device {
        self.device.as_ref().expect("the device is taken only in Drop")
    }
}

/// Whether to test every combination: `INDRIK_TEST_ALL=1`, which `make soak` sets. Otherwise, tests of products of
/// models and settings leave out combinations whose parts others have.
pub fn exhaustive() -> bool {
    std::env::var("INDRIK_TEST_ALL").is_ok_and(|value| value == "1")
}

/// Mesa's CPU driver with validation; `None` if it is not installed.
pub fn cpu_device() -> Option<TestDevice> {
    cpu_device_with(&DeviceOptions { cache_dir: None, ..DeviceOptions::default() })
}

/// [`cpu_device`], limited to tier T0.
pub fn cpu_device_t0() -> Option<TestDevice> {
    cpu_device_with(&DeviceOptions { cache_dir: None, max_tier: Tier::T0, ..DeviceOptions::default() })
}

/// [`cpu_device`] without validation, for long tests whose code paths are validated by shorter ones.
pub fn cpu_device_plain() -> Option<TestDevice> {
    open_cpu(&DeviceOptions::default(), false)
}

/// [`cpu_device`] with other options.
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

/// The manifest of Mesa's RADV driver; `None` if it is not installed. With `RADV_FORCE_FAMILY` set it
/// compiles for AMD GPUs that are not present.
pub fn radv_driver() -> Option<String> {
    let found = ["/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d"]
        .iter()
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // Machines with 32-bit support have a second manifest.
            name.starts_with("radeon_icd") && !name.contains("i686") && !name.contains("i386")
        });
    if found.is_none() {
        missing("Mesa's AMD driver (RADV)");
    }
    found.map(|path| path.to_string_lossy().into_owned())
}

/// Reports that a test is skipped because a dependency is not installed. Panics with `CI=true`.
pub fn missing(what: &str) {
    let text = format!("test skipped, not installed (scripts/setup.sh installs it): {what}");
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{text}");
    eprintln!("{text}");
}
