//! Settings that make a machine slow or hide its GPU.

use telemetry::System;

use super::{Finding, Level};

/// Environment variables that change which devices Vulkan lists.
const VULKAN_VARIABLES: [&str; 6] = [
    "VK_DRIVER_FILES",
    "VK_ICD_FILENAMES",
    "VK_LOADER_DRIVERS_SELECT",
    "VK_LOADER_DRIVERS_DISABLE",
    "MESA_VK_DEVICE_SELECT",
    "DRI_PRIME",
];

/// Checks of power settings.
pub fn power(system: &System) -> Vec<Finding> {
    let settings = system.power_settings();
    let mut findings = Vec::new();
    if let Some(profile) = &settings.profile {
        let finding = |level| Finding::new(level, "power profile", profile);
        let can_be_faster = settings.profiles.iter().any(|choice| choice == "performance");
        findings.push(match profile.as_str() {
            "low-power" | "cool" | "quiet" => {
                finding(Level::Warning).fix("powerprofilesctl set performance: this profile lowers clocks")
            }
            "balanced" if can_be_faster => {
                finding(Level::Note).fix("powerprofilesctl set performance can be faster for long replies")
            }
            _ => finding(Level::Good),
        });
    }
    if settings.on_mains == Some(false) {
        let text = "the machine runs on battery: most lower their clocks then";
        findings.push(Finding::new(Level::Note, "power", text));
    }
    for (card, level) in &settings.amd_levels {
        if level == "low" || level.starts_with("profile_") {
            let text = format!("{card} is held at the performance level {level}");
            let file = format!("/sys/class/drm/{card}/device/power_dpm_force_performance_level");
            findings.push(
                Finding::new(Level::Warning, "GPU clocks", text).fix(format!("echo auto | sudo tee {file}")),
            );
        }
    }
    findings
}

/// Checks of environment variables, which `variable` looks up.
pub fn environment(variable: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    let is_set = |name: &&str| variable(name).is_some_and(|value| !value.is_empty());
    VULKAN_VARIABLES
        .into_iter()
        .filter(is_set)
        .map(|name| {
            let text = format!("{name} is set: Vulkan may list fewer devices than the machine has");
            Finding::new(Level::Note, "environment", text)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use telemetry::fixture::{RADEON_780M, Tree};

    use super::*;

    #[test]
    fn slow_settings_are_named_with_their_fix() {
        let tree = Tree::new();
        assert!(power(&tree.system()).is_empty());
        tree.add_780m().write(&format!("{RADEON_780M}/power_dpm_force_performance_level"), "low\n");
        tree.write("sys/firmware/acpi/platform_profile", "low-power\n");
        tree.write("sys/class/power_supply/AC/type", "Mains\n");
        tree.write("sys/class/power_supply/AC/online", "0\n");
        let findings = power(&tree.system());
        let seen: Vec<_> = findings.iter().map(|finding| (finding.about.as_str(), finding.level)).collect();
        assert_eq!(
            seen,
            [("power profile", Level::Warning), ("power", Level::Note), ("GPU clocks", Level::Warning)]
        );
        let fix = findings[2].fix.as_deref().unwrap();
        assert!(fix.ends_with("/sys/class/drm/card1/device/power_dpm_force_performance_level"), "{fix}");
    }

    #[test]
    fn a_balanced_profile_is_a_note_only_where_there_is_a_faster_one() {
        let tree = Tree::new();
        tree.write("sys/firmware/acpi/platform_profile", "balanced\n");
        assert_eq!(power(&tree.system())[0].level, Level::Good);
        tree.write("sys/firmware/acpi/platform_profile_choices", "balanced performance\n");
        assert_eq!(power(&tree.system())[0].level, Level::Note);
    }

    #[test]
    fn variables_are_named_without_their_values() {
        let findings = environment(|name| (name == "VK_DRIVER_FILES").then(|| "/home/me/x.json".into()));
        assert_eq!(findings.len(), 1);
        assert!(findings[0].text.contains("VK_DRIVER_FILES") && !findings[0].text.contains("/home"));
    }
}
