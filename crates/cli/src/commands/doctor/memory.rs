//! How much memory a model can have, and what takes the rest.
//!
//! On an APU three counters disagree: Vulkan's heaps are VRAM and GTT split by a rule of the driver, the kernel limits
//! GTT, and the pages of GTT come from the RAM that other programs leave. The smallest one is what a model gets.

use gpu::{AdapterInfo, AdapterKind, Heap, format_bytes};
use indrik::amd_apu;
use telemetry::{AmdGpu, System};

use super::{Finding, Level};

/// Less than this is not worth a warning.
const WORTHWHILE: u64 = 256 << 20;

/// Kernel parameters that make memory smaller, and what they hide.
const LIMITS: [(&str, &str); 4] = [
    ("mem", "RAM above it is not used by anything"),
    ("amdgpu.vramlimit", "VRAM above it is not used by anything"),
    ("amdgpu.vis_vramlimit", "the CPU cannot map VRAM above it"),
    ("amdgpu.gttsize", "it replaces the kernel's own size of GTT"),
];

/// Checks of the system memory, and of what other programs hold.
pub fn system(system: &System) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(memory) = system.memory() {
        let available =
            memory.available.map_or(String::new(), |free| format!(", {} available", format_bytes(free)));
        let text = format!("{}{available}", format_bytes(memory.total));
        findings.push(Finding::new(Level::Good, "system memory", text));
        if let Some(bytes) = memory.huge_pages.filter(|bytes| *bytes >= WORTHWHILE) {
            let text = format!(
                "{} of RAM are reserved as huge pages, which Indrik does not use",
                format_bytes(bytes)
            );
            findings.push(
                Finding::new(Level::Warning, "huge pages", text)
                    .fix("if nothing needs them: sudo sysctl vm.nr_hugepages=0, and remove hugepages= from the kernel's command line"),
            );
        }
    }
    let kernel = system.kernel();
    for (name, effect) in LIMITS {
        for parameter in kernel.parameters_named(&[name]) {
            let text = format!("{parameter} is on the kernel's command line: {effect}");
            findings.push(Finding::new(Level::Note, "kernel parameter", text));
        }
    }
    for process in system.rocm_processes() {
        if process.bytes >= WORTHWHILE {
            let name = process.name.as_deref().map_or(String::new(), |name| format!(" ({name})"));
            let text = format!(
                "process {}{name} holds {} of GPU memory through ROCm",
                process.pid,
                format_bytes(process.bytes)
            );
            let fix = format!("if it is not needed any more: kill {}", process.pid);
            findings.push(Finding::new(Level::Warning, "other programs", text).fix(fix));
        }
    }
    findings
}

/// Checks of a device's memory.
pub fn adapter(system: &System, info: &AdapterInfo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for heap in &info.heaps {
        let place = if heap.device_local { "device-local" } else { "host" };
        let text = format!(
            "{} {place}, {} free for this process",
            format_bytes(heap.size),
            format_bytes(heap.free())
        );
        findings.push(Finding::new(Level::Good, &format!("heap {}", heap.index), text));
    }
    let apu = amd_apu(system, info);
    if let Some(gpu) = &apu {
        findings.push(pools(system, gpu));
    }
    if info.unified_memory {
        findings.push(usable(system, info, apu.as_ref()));
    } else {
        findings.extend(resizable_bar(system, info));
    }
    findings
}

/// VRAM and GTT sizes from the kernel driver; Vulkan's heaps report only parts of them.
fn pools(system: &System, gpu: &AmdGpu) -> Finding {
    let pool = |total: Option<u64>, used: Option<u64>| match (total, used) {
        (Some(total), Some(used)) => format!("{} ({} in use)", format_bytes(total), format_bytes(used)),
        (Some(total), None) => format_bytes(total),
        (None, _) => "unknown".to_string(),
    };
    let text = format!(
        "{}: VRAM {}, GTT {}",
        gpu.card,
        pool(gpu.vram_total, gpu.vram_used),
        pool(gpu.gtt_total, gpu.gtt_used)
    );
    let finding = Finding::new(Level::Good, "amdgpu memory", text);
    match system.gtt_advice(gpu) {
        None => finding,
        Some(advice) => Finding {
            level: Level::Warning,
            text: format!("{}; {} of GTT would be safe", finding.text, format_bytes(advice.target)),
            ..finding
        }
        .fix(format!("boot with {}\n{}", advice.parameters, advice.instructions)),
    }
}

/// What a model can have now: the least of what Vulkan, the kernel's pools and the RAM allow.
fn usable(system: &System, info: &AdapterInfo, apu: Option<&AmdGpu>) -> Finding {
    let free = |total: Option<u64>, used: Option<u64>| Some(total?.saturating_sub(used?));
    let vram = apu.and_then(|gpu| free(gpu.vram_total, gpu.vram_used));
    let gtt = apu.and_then(|gpu| free(gpu.gtt_total, gpu.gtt_used));
    let available = system.memory().and_then(|memory| memory.available);
    let mut bounds = vec![("Vulkan's budget", Some(info.heaps.iter().map(Heap::free).sum()))];
    if apu.is_some() {
        bounds.push(("free VRAM and GTT", vram.zip(gtt).map(|(vram, gtt)| vram + gtt)));
        bounds.push(("available RAM and free VRAM", vram.zip(available).map(|(vram, ram)| vram + ram)));
    } else {
        bounds.push(("available RAM", available));
    }
    let least = bounds.iter().filter_map(|(name, bytes)| Some((bytes.as_ref()?, name))).min();
    let list: Vec<String> = bounds
        .iter()
        .map(|(name, bytes)| format!("{name} {}", bytes.map_or_else(|| "unknown".to_string(), format_bytes)))
        .collect();
    let text = match least {
        Some((bytes, name)) => {
            format!("at most {} for models now, by {name} ({})", format_bytes(*bytes), list.join(", "))
        }
        None => "unknown".to_string(),
    };
    Finding::new(Level::Good, "usable memory", text)
}

/// Without resizable BAR, the CPU maps 256 MiB of a discrete GPU at a time.
fn resizable_bar(system: &System, info: &AdapterInfo) -> Option<Finding> {
    let bar = system.largest_bar(info.pci_address.as_deref()?)?;
    let local = info.local_memory();
    if info.kind != AdapterKind::Discrete || bar >= local / 2 {
        return None;
    }
    let text = format!(
        "off: the CPU can map {} of {} at a time, so weights take a detour when they are loaded",
        format_bytes(bar),
        format_bytes(local)
    );
    let fix = "enable Resizable BAR (also called Smart Access Memory) and Above 4G Decoding in the firmware's setup";
    Some(Finding::new(Level::Note, "resizable BAR", text).fix(fix))
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
