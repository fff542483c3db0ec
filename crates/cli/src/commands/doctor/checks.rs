//! The checks: functions from system and device properties to findings.

use gpu::{Adapter, AdapterInfo, AdapterKind, Device};
use kernels::matmul::tuning::Tuning;
use telemetry::{Access, System};

use super::{Finding, Level, memory, npu, settings};
use crate::{commands::devices, npu::NpuFacts};

/// Checks of the system, with or without a device.
pub fn machine(system: &System, adapters: &[Adapter], npu: Option<&NpuFacts>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let kernel = system.kernel();
    if let Some(release) = &kernel.release {
        let distribution = kernel.distribution.as_ref().map_or(String::new(), |name| format!(", {name}"));
        findings.push(Finding::new(Level::Good, "kernel", format!("Linux {release}{distribution}")));
    }
    findings.extend(memory::system(system));
    for node in system.render_nodes() {
        if node.node.access == Access::ReadWrite {
            continue;
        }
        let text =
            format!("{} cannot be opened, so its GPU is invisible to Vulkan", node.node.path.display());
        let finding = Finding::new(Level::Warning, "permissions", text);
        findings.push(match node.node.join_group_command() {
            Some(command) => finding.fix(format!("{command}, then log in again")),
            None => finding
                .fix("pass the device node into this container or sandbox, or request access from its owner"),
        });
    }
    findings.extend(gpus_without_driver(system, adapters));
    findings.extend(settings::power(system));
    findings.extend(settings::environment(|name| std::env::var(name).ok()));
    findings.extend(npu::findings(system, npu));
    findings
}

/// GPUs without a Vulkan driver: the most common reason for a slow first run.
fn gpus_without_driver(system: &System, adapters: &[Adapter]) -> Vec<Finding> {
    let has_driver = |vendor: u16| adapters.iter().any(|adapter| adapter.info.vendor_id == u32::from(vendor));
    system
        .pci_displays()
        .into_iter()
        .filter(|display| !has_driver(display.vendor))
        .filter_map(|display| {
            let vendor = display.vendor_name()?;
            let package = match display.vendor {
                telemetry::VENDOR_NVIDIA => {
                    "install NVIDIA's driver including Vulkan support (on Debian: nvidia-vulkan-icd)"
                }
                _ => "install mesa-vulkan-drivers, and check VK_DRIVER_FILES and the permissions of /dev/dri",
            };
            let text =
                format!("the {vendor} GPU at {} is not used: it has no Vulkan driver", display.address);
            Some(Finding::new(Level::Warning, "GPU", text).fix(package))
        })
        .collect()
}

/// Checks of the selected device.
pub fn device(system: &System, device: &Device) -> Vec<Finding> {
    let mut findings = adapter(system, device.info());
    findings.push(cache(device));
    findings.push(tuning(device));
    findings
}

/// Checks of a device's properties.
pub fn adapter(system: &System, info: &AdapterInfo) -> Vec<Finding> {
    let caps = &info.caps;
    let mut findings = Vec::new();
    let text = format!("{} ({}), {}", info.name, devices::kind(info), info.driver);
    findings.push(if info.kind == AdapterKind::Cpu {
        Finding::new(Level::Warning, "device", text)
            .fix("this is a CPU driver: results are correct but slow. If the machine has a GPU, see the warnings above")
    } else {
        Finding::new(Level::Good, "device", text)
    });
    findings.push(Finding::new(Level::Good, "tier", devices::tier_line(info)));
    if !caps.integer_dot_accelerated && caps.integer_dot {
        findings.push(Finding::new(Level::Note, "int8 dot", "supported, but not accelerated on this device"));
    }
    if !caps.conditional_rendering {
        let text = "missing (VK_EXT_conditional_rendering): every token needs its own submission, which is a few percent slower";
        findings.push(Finding::new(Level::Note, "conditional rendering", text));
    }
    if caps.timestamp_period_ns.is_none() {
        let text = "not supported by the compute queue: kernels cannot be timed individually";
        findings.push(Finding::new(Level::Warning, "timestamps", text).fix("update the GPU's driver"));
    }
    findings.extend(memory::adapter(system, info));
    if info.vendor_id == u32::from(telemetry::VENDOR_AMD)
        && let Some(limit) = system.lockup_timeout().and_then(|timeout| timeout.at_least_ms())
    {
        let text = format!(
            "the kernel resets the GPU if a submission takes longer than {} s",
            limit as f64 / 1000.0
        );
        findings.push(Finding::new(Level::Note, "watchdog", text));
    }
    findings
}

fn cache(device: &Device) -> Finding {
    let about = "pipeline cache";
    let Some(file) = device.cache_file() else {
        return Finding::new(Level::Warning, about, "no cache folder: every start compiles all kernels")
            .fix("set INDRIK_CACHE_DIR or HOME");
    };
    let writable = file
        .parent()
        .is_some_and(|dir| std::fs::create_dir_all(dir).and_then(|()| check_writable(dir)).is_ok());
    if writable {
        let state = if file.exists() { "present" } else { "empty" };
        Finding::new(Level::Good, about, format!("{} ({state})", file.display()))
    } else {
        Finding::new(
            Level::Warning,
            about,
            format!("{} cannot be written: every start compiles all kernels", file.display()),
        )
        .fix("make the folder writable or set INDRIK_CACHE_DIR to one that is")
    }
}

fn tuning(device: &Device) -> Finding {
    let about = "tuning";
    let tuning = Tuning::open(device);
    match tuning.file() {
        _ if !kernels::matmul::tuning::is_enabled(device) => {
            Finding::new(Level::Good, about, "off (CPU driver, or INDRIK_TUNE=off)")
        }
        None => Finding::new(Level::Good, about, "no cache folder: matrix products are tuned at every start"),
        Some(file) => {
            let changed = tuning.entries().filter(|entry| entry.changed()).count();
            let text = format!(
                "{} ({} matrix products, {changed} tuned differently from the default)",
                file.display(),
                tuning.entries().len()
            );
            Finding::new(Level::Good, about, text)
        }
    }
}

fn check_writable(dir: &std::path::Path) -> std::io::Result<()> {
    let probe = dir.join(format!(".probe-{}", std::process::id()));
    std::fs::write(&probe, b"")?;
    std::fs::remove_file(&probe)
}
