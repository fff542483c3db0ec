//! `indrik devices`: lists the Vulkan devices, and AMD's NPU.

use std::process::ExitCode;

use clap::Args;
use gpu::{AdapterInfo, Instance, InstanceOptions, format_bytes};
use serde_json::json;
use telemetry::System;

use crate::{npu::NpuFacts, output};

/// List Vulkan devices with capability tier, memory heaps and budgets, and AMD's NPU
#[derive(Args)]
#[command(after_help = "Example: indrik devices --json | jq '.devices[].name'")]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let instance = Instance::new(&InstanceOptions::default())?;
    let adapters = instance.adapters()?;
    let wanted = std::env::var("INDRIK_DEVICE").ok();
    let default = gpu::select_adapter(&adapters, wanted.as_deref()).ok().map(|adapter| adapter.info.index);
    let npu = NpuFacts::of(&System::new());
    if arguments.json {
        let devices: Vec<_> = adapters.iter().map(|adapter| describe(&adapter.info, default)).collect();
        output::print_json(&json!({ "devices": devices, "npu": npu.as_ref().map(NpuFacts::json) }))?;
    } else {
        let mut text: Vec<_> = adapters.iter().map(|adapter| text(&adapter.info, default)).collect();
        text.extend(npu.as_ref().map(npu_text));
        output::print(&text.join("\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A device as JSON: its properties, its tiers, and whether commands use it by default.
pub fn describe(info: &AdapterInfo, default: Option<usize>) -> serde_json::Value {
    let mut value = serde_json::to_value(info).unwrap_or_default();
    value["chosen"] = json!(default == Some(info.index));
    value["tier"] = json!(info.caps.tier());
    value["tiers"] = json!(info.caps.tiers());
    value
}

fn text(info: &AdapterInfo, default: Option<usize>) -> String {
    let mark = if default == Some(info.index) { "  (default)" } else { "" };
    let mut text = format!("{}: {}{mark}\n", info.index, info.name);
    text += &format!("   kind     {}\n", kind(info));
    text += &format!("   driver   {}, Vulkan {}\n", info.driver, info.caps.api_version);
    text += &format!("   tier     {}\n", tier_line(info));
    for heap in &info.heaps {
        let place = if heap.device_local { "device-local" } else { "host" };
        let mapped = if heap.host_visible { ", host-visible" } else { "" };
        let budget = heap.budget.map_or(String::new(), |budget| format!(", budget {}", format_bytes(budget)));
        let used = heap.used.map_or(String::new(), |used| format!(", in use {}", format_bytes(used)));
        text +=
            &format!("   heap {}   {} {place}{mapped}{budget}{used}\n", heap.index, format_bytes(heap.size));
    }
    text
}

/// The NPU, which is not a device that models run on.
fn npu_text(npu: &NpuFacts) -> String {
    let mut text = format!("NPU: {}\n", npu.text());
    for obstacle in npu.xdna.obstacles() {
        text += &format!("   blocked  {obstacle}\n");
        text += &obstacle.fix().map_or(String::new(), |fix| format!("            → {fix}\n"));
    }
    text + &format!("   use      {}\n", npu.verdict())
}

/// The kind of device, for display.
pub fn kind(info: &AdapterInfo) -> String {
    let memory = if info.unified_memory { "unified memory" } else { "dedicated memory" };
    let kind = serde_json::to_value(info.kind).unwrap_or_default();
    let kind = kind.as_str().unwrap_or("unknown").to_string();
    if info.compile_only { format!("{kind}, not present: compile-only") } else { format!("{kind}, {memory}") }
}

/// The tier, and why the next one is missing.
pub fn tier_line(info: &AdapterInfo) -> String {
    let tiers = info.caps.tiers();
    let missing = tiers.iter().find(|status| !status.missing.is_empty());
    let next_tier = missing.map_or(String::new(), |status| {
        format!("; no {} ({}): lacks {}", status.tier, status.tier.description(), status.missing.join(", "))
    });
    match info.caps.tier() {
        Some(tier) => format!("{tier} ({}){next_tier}", tier.description()),
        None => format!("unusable{next_tier}"),
    }
}
