//! Energy of processor packages, from the kernel's powercap class.
//!
//! The counters are those of Intel's RAPL, which AMD's processors have too. Since 2020 only root may read them,
//! because fine-grained power betrays secrets, so for most users the energy is unknown.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use crate::energy::{Accumulator, EnergyReading, EnergySource, Sum};
use crate::probe::Probe;
use crate::read;

/// The counters of all packages.
#[derive(Debug)]
pub(crate) struct Rapl {
    packages: Vec<Package>,
    last: Option<(Instant, f64)>,
}

#[derive(Debug)]
struct Package {
    microjoules: Probe,
    wraps_after: Option<u64>,
    energy: Accumulator,
}

impl Rapl {
    /// Zones named `intel-rapl:0` are packages or, named `psys`, the whole platform, which includes them. Their
    /// parts, like `intel-rapl:0:0`, are left out.
    pub(crate) fn open(root: &Path) -> Self {
        let packages = read::numbered(root.join("sys/class/powercap"), "intel-rapl:")
            .into_iter()
            .filter(|(_, zone)| read::text(zone.join("name")).is_some_and(|name| name.starts_with("package")))
            .map(|(_, zone)| Package {
                microjoules: Probe::open(zone.join("energy_uj")),
                wraps_after: read::number(zone.join("max_energy_range_uj")),
                energy: Accumulator::new(Arc::new(Sum::default())),
            })
            .collect();
        Self { packages, last: None }
    }

    /// Mean power since the previous call, and joules since the first; `None` unless every package is readable.
    pub(crate) fn sample(&mut self, now: Instant) -> (Option<f64>, Option<f64>) {
        let joules = self.joules(now);
        let last = std::mem::replace(&mut self.last, joules.map(|joules| (now, joules)));
        let watts = last.zip(joules).and_then(|((then, before), joules)| {
            let seconds = now.saturating_duration_since(then).as_secs_f64();
            (seconds > 0.0).then(|| (joules - before) / seconds)
        });
        (watts, joules)
    }

    fn joules(&mut self, now: Instant) -> Option<f64> {
        let mut sum = None;
        for package in &mut self.packages {
            let Package { microjoules, wraps_after, energy } = package;
            let (joules_per_unit, wraps_after) = (1e-6, *wraps_after);
            let value = microjoules.number()?;
            energy.add(
                now,
                Some(EnergyReading::Counter {
                    source: EnergySource::Rapl,
                    value,
                    joules_per_unit,
                    wraps_after,
                }),
            );
            *sum.get_or_insert(0.0) += energy.joules()?;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fixture::Tree;

    #[test]
    fn packages_are_added_and_their_parts_are_not() {
        let tree = Tree::new();
        let zone = |zone: &str, name: &str, microjoules: u64| {
            let zone = format!("sys/class/powercap/intel-rapl:{zone}");
            tree.write(&format!("{zone}/name"), format!("{name}\n"));
            tree.write(&format!("{zone}/max_energy_range_uj"), "1000000000\n");
            tree.write(&format!("{zone}/energy_uj"), format!("{microjoules}\n"));
        };
        zone("0", "package-0", 500_000_000);
        zone("0:0", "core", 100_000_000);
        zone("1", "package-1", 999_000_000);
        zone("2", "psys", 700_000_000);
        let (mut rapl, start) = (Rapl::open(&tree.path("")), Instant::now());
        assert_eq!(rapl.sample(start), (None, Some(0.0)));
        zone("0", "package-0", 520_000_000);
        // Past its end.
        zone("1", "package-1", 9_000_000);
        zone("2", "psys", 900_000_000);
        assert_eq!(rapl.sample(start + Duration::from_secs(2)), (Some(15.0), Some(30.0)));
        tree.write("sys/class/powercap/intel-rapl:1/energy_uj", "");
        assert_eq!(rapl.sample(start + Duration::from_secs(3)), (None, None));
    }

    #[test]
    fn a_machine_without_counters_knows_nothing() {
        let tree = Tree::new();
        assert_eq!(Rapl::open(&tree.path("")).sample(Instant::now()), (None, None));
    }
}
