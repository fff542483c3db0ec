//! Processors: load from `/proc/stat`, temperature from hwmon.

use std::path::{Path, PathBuf};

use crate::probe::Probe;
use crate::read;

/// Longer than the first line of `/proc/stat`.
const LINE: usize = 512;
/// Sensors in the processor, by the name of their driver, with the label of the package's temperature.
const SENSORS: [(&str, &str); 3] = [("k10temp", "Tctl"), ("zenpower", "Tctl"), ("coretemp", "Package id ")];

/// Share of time that the processors are busy.
#[derive(Debug)]
pub(crate) struct Load {
    stat: Probe,
    last: Option<Times>,
}

/// Ticks since boot, over all processors.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Times {
    idle: u64,
    total: u64,
}

impl Load {
    pub(crate) fn open(root: &Path) -> Self {
        Self { stat: Probe::open(root.join("proc/stat")), last: None }
    }

    /// The share since the previous call, 0 to 1; `None` at the first call and if no tick has passed.
    pub(crate) fn sample(&mut self) -> Option<f64> {
        let now = self.stat.text(&mut [0; LINE]).and_then(Times::parse);
        let last = std::mem::replace(&mut self.last, now)?;
        let now = now?;
        // The kernel's idle time may step back by a tick or two.
        let idle = now.idle.saturating_sub(last.idle) as f64;
        let total = now.total.checked_sub(last.total).filter(|ticks| *ticks > 0)? as f64;
        Some((1.0 - idle / total).clamp(0.0, 1.0))
    }
}

impl Times {
    /// Parses `cpu  user nice system idle iowait irq softirq steal …`. The fields after these are already
    /// counted in the first two.
    fn parse(stat: &str) -> Option<Self> {
        let fields = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Option<Vec<u64>> =
            fields.split_whitespace().take(8).map(|field| field.parse().ok()).collect();
        let ticks = ticks.filter(|ticks| ticks.len() >= 5)?;
        let total = ticks.iter().try_fold(0u64, |sum, ticks| sum.checked_add(*ticks))?;
        Some(Self { idle: ticks[3] + ticks[4], total })
    }
}

/// The temperature sensors of all packages.
#[derive(Debug)]
pub(crate) struct Thermometer(Vec<Probe>);

impl Thermometer {
    pub(crate) fn open(root: &Path) -> Self {
        let sensors = read::numbered(root.join("sys/class/hwmon"), "hwmon");
        Self(sensors.iter().filter_map(|(_, sensor)| package_input(sensor)).map(Probe::open).collect())
    }

    /// The hottest package.
    pub(crate) fn celsius(&self) -> Option<f64> {
        self.0.iter().filter_map(Probe::thousandths).max_by(f64::total_cmp)
    }
}

/// The file with the temperature of the package that `sensor` is in.
fn package_input(sensor: &Path) -> Option<PathBuf> {
    let driver = read::text(sensor.join("name"))?;
    let (_, package) = SENSORS.into_iter().find(|(name, _)| *name == driver)?;
    labelled_input(sensor, "temp", |label| label.starts_with(package))
        .or_else(|| Some(sensor.join("temp1_input")))
}

/// The input of a hwmon directory whose label is the one looked for, for instance `temp2_input` for the label in
/// `temp2_label`.
pub(crate) fn labelled_input(sensor: &Path, kind: &str, is_wanted: impl Fn(&str) -> bool) -> Option<PathBuf> {
    read::entries(sensor).into_iter().find_map(|path| {
        let name = path.file_name()?.to_str()?;
        let channel = name.strip_suffix("_label").filter(|channel| channel.starts_with(kind))?;
        is_wanted(&read::text(&path)?).then(|| sensor.join(format!("{channel}_input")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Tree;

    #[test]
    fn load_is_the_share_of_ticks_that_were_not_idle() {
        let tree = Tree::new();
        let stat = |line: &str| {
            tree.write("proc/stat", format!("{line}\ncpu0 1 2 3 4\n"));
        };
        stat("cpu  100 0 50 800 50 0 0 0 0 0");
        let mut load = Load::open(&tree.path(""));
        assert_eq!(load.sample(), None);
        assert_eq!(load.sample(), None, "no tick has passed");
        // 100 ticks: 20 user, 5 steal, 70 idle, 5 waiting for storage.
        stat("cpu  120 0 50 870 55 0 0 5 7 7");
        assert_eq!(load.sample(), Some(0.25));
        // Idle time that steps back.
        stat("cpu  220 0 50 868 55 0 0 5 7 7");
        assert_eq!(load.sample(), Some(1.0));
        stat("cpu  1 0 0 0 0 0 0 0");
        assert_eq!(load.sample(), None, "counters started again");
    }

    #[test]
    fn invalid_load_is_none() {
        for garbage in ["", "cpu", "cpu  1 2 3", "cpu  1 2 3 x 5 6 7 8", "cpu0 1 2 3 4 5 6 7 8"] {
            assert_eq!(Times::parse(garbage), None, "{garbage}");
        }
        let max = format!("cpu  {0} {0} 1 1 1 1 1 1", u64::MAX);
        assert_eq!(Times::parse(&max), None);
    }

    #[test]
    fn the_temperature_of_the_package_is_found() {
        let tree = Tree::new();
        let hwmon = |number: u32, file: &str, text: &str| {
            tree.write(&format!("sys/class/hwmon/hwmon{number}/{file}"), text);
        };
        assert_eq!(Thermometer::open(&tree.path("")).celsius(), None);
        hwmon(0, "name", "nvme\n");
        hwmon(0, "temp1_input", "99000\n");
        hwmon(1, "name", "k10temp\n");
        hwmon(1, "temp1_label", "Tctl\n");
        hwmon(1, "temp1_input", "61125\n");
        hwmon(1, "temp3_label", "Tccd1\n");
        hwmon(1, "temp3_input", "80000\n");
        assert_eq!(Thermometer::open(&tree.path("")).celsius(), Some(61.125));
        hwmon(2, "name", "coretemp\n");
        hwmon(2, "temp1_label", "Package id 1\n");
        hwmon(2, "temp1_input", "70000\n");
        assert_eq!(Thermometer::open(&tree.path("")).celsius(), Some(70.0));
    }

    #[test]
    fn this_machine_has_a_load() {
        assert!(read::text("/proc/stat").as_deref().and_then(Times::parse).is_some());
    }
}
