//! Settings that hold clocks down.

use std::path::Path;

use serde::Serialize;

use crate::{amdgpu, read, runtime_power::RuntimeStatus};

/// What the machine and its owner set about power. A value is `None` if there is no such setting.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PowerSettings {
    /// The firmware's profile, for instance `balanced`.
    pub profile: Option<String>,
    /// The profiles that can be chosen.
    pub profiles: Vec<String>,
    /// Whether the machine runs on mains power.
    pub on_mains: Option<bool>,
    /// Name and performance level of every AMD GPU, for instance `card0` and `auto`.
    pub amd_levels: Vec<(String, String)>,
}

pub(crate) fn power_settings(root: &Path) -> PowerSettings {
    let acpi = root.join("sys/firmware/acpi");
    let profiles = read::text(acpi.join("platform_profile_choices")).unwrap_or_default();
    let level = |(card, device): (String, std::path::PathBuf)| {
        // Reading it would wake a sleeping GPU.
        let awake = RuntimeStatus::open(&device).asleep() != Some(true);
        awake.then_some(())?;
        Some((card, read::text(device.join("power_dpm_force_performance_level"))?))
    };
    PowerSettings {
        profile: read::text(acpi.join("platform_profile")).filter(|profile| !profile.is_empty()),
        profiles: profiles.split_whitespace().map(str::to_owned).collect(),
        on_mains: on_mains(root),
        amd_levels: amdgpu::device_directories(root).into_iter().filter_map(level).collect(),
    }
}

/// Whether any power supply from the mains is plugged in. A machine without such a supply is not asked.
fn on_mains(root: &Path) -> Option<bool> {
    let supplies = read::entries(root.join("sys/class/power_supply"));
    let plugged = supplies.iter().filter_map(|supply| {
        let is_mains = matches!(read::text(supply.join("type")).as_deref(), Some("Mains" | "USB"));
        read::number(supply.join("online")).filter(|_| is_mains)
    });
    plugged.map(|online| online > 0).reduce(|any, online| any || online)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{RADEON_780M, Tree};

    #[test]
    fn profiles_and_levels_are_read() {
        let tree = Tree::new();
        assert_eq!(tree.system().power_settings(), PowerSettings::default());
        tree.add_780m().write(&format!("{RADEON_780M}/power_dpm_force_performance_level"), "low\n");
        tree.write("sys/firmware/acpi/platform_profile", "balanced\n");
        tree.write("sys/firmware/acpi/platform_profile_choices", "low-power balanced performance\n");
        let settings = tree.system().power_settings();
        assert_eq!(settings.profile.as_deref(), Some("balanced"));
        assert_eq!(settings.profiles, ["low-power", "balanced", "performance"]);
        assert_eq!(settings.amd_levels, [("card1".to_owned(), "low".to_owned())]);
        assert_eq!(settings.on_mains, None);
        tree.write(&format!("{RADEON_780M}/power/runtime_status"), "suspended\n");
        assert_eq!(tree.system().power_settings().amd_levels, []);
    }

    #[test]
    fn one_plugged_supply_is_enough() {
        let tree = Tree::new();
        tree.write("sys/class/power_supply/BAT0/type", "Battery\n");
        assert_eq!(tree.system().power_settings().on_mains, None);
        tree.write("sys/class/power_supply/AC/type", "Mains\n")
            .write("sys/class/power_supply/AC/online", "0\n");
        assert_eq!(tree.system().power_settings().on_mains, Some(false));
        tree.write("sys/class/power_supply/C0/type", "USB\n")
            .write("sys/class/power_supply/C0/online", "1\n");
        assert_eq!(tree.system().power_settings().on_mains, Some(true));
    }
}
