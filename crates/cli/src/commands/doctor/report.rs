//! One file for a bug report, without secrets.
//!
//! It holds what was found about the machine, never what its owner does with it: no environment variable's value, no
//! kernel parameter that does not concern memory or GPUs, no host name, and `~` for the home folder.

use std::{env, fs, path::Path};

use anyhow::Context;
use gpu::Adapter;
use serde_json::json;
use telemetry::System;

use super::{Finding, selftest, text};
use crate::{commands::devices, npu::NpuFacts};

/// Variables whose names are reported if they begin so. Their values could be keys or names of people.
const VARIABLES: [&str; 6] = ["INDRIK_", "VK_", "MESA_", "RADV_", "ROCR_", "HSA_"];

/// Writes the report.
pub fn write(
    file: &Path,
    system: &System,
    findings: &[Finding],
    adapters: &[Adapter],
    npu: Option<&NpuFacts>,
    results: Option<&selftest::Results>,
) -> anyhow::Result<()> {
    let mut report = format!("# Indrik {} on {}\n", env!("CARGO_PKG_VERSION"), env::consts::ARCH);
    report += &section("Findings", "text", &text(findings));
    if let Some(results) = results {
        report += &section("Self-test", "text", &results.text());
    }
    let devices: Vec<_> = adapters.iter().map(|adapter| devices::describe(&adapter.info, None)).collect();
    let facts = json!({
        "kernel": system.kernel(),
        "memory": system.memory(),
        "amd_gpus": system.amd_gpus(),
        "gtt": system.gtt_controls(),
        "lockup_timeout": system.lockup_timeout(),
        "nvidia_driver": system.nvidia_driver(),
        "displays": system.pci_displays(),
        "render_nodes": system.render_nodes(),
        "npus": system.npus(),
        "npu": npu.map(NpuFacts::json),
        "power": system.power_settings(),
        "variables_set": variables(env::vars_os().filter_map(|(name, _)| name.into_string().ok())),
    });
    report += &section("Machine", "json", &serde_json::to_string_pretty(&facts)?);
    report += &section("Vulkan devices", "json", &serde_json::to_string_pretty(&devices)?);
    let home = env::var("HOME").ok();
    fs::write(file, without_home(&report, home.as_deref()))
        .with_context(|| format!("cannot write {}", file.display()))
}

fn section(title: &str, language: &str, content: &str) -> String {
    // Longer than any run of backticks that a device's name could contain.
    format!("\n## {title}\n\n``````{language}\n{}\n``````\n", content.trim_end())
}

fn variables(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<String> =
        names.filter(|name| VARIABLES.iter().any(|prefix| name.starts_with(prefix))).collect();
    names.sort();
    names
}

/// Replaces the home folder, which often holds its owner's name.
fn without_home(text: &str, home: Option<&str>) -> String {
    match home.map(|home| home.trim_end_matches('/')).filter(|home| home.len() > 1) {
        Some(home) => text.replace(home, "~"),
        None => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_home_folder_is_not_named() {
        assert_eq!(without_home("/home/me/.cache", Some("/home/me/")), "~/.cache");
        assert_eq!(without_home("/a/b", Some("/")), "/a/b");
        assert_eq!(without_home("/a/b", None), "/a/b");
    }

    #[test]
    fn only_names_of_related_variables_are_listed() {
        let names = ["VK_DRIVER_FILES", "HF_TOKEN", "INDRIK_API_KEY", "PATH"];
        assert_eq!(variables(names.into_iter().map(str::to_owned)), ["INDRIK_API_KEY", "VK_DRIVER_FILES"]);
    }
}
