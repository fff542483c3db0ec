//! Pressure stall information: how much time tasks lose by waiting.

use std::path::Path;

use crate::probe::Probe;
use crate::snapshot::PressureSample;

/// Longer than the two lines of a file.
const FILE: usize = 256;

/// The files in `/proc/pressure`; kernels built or booted without PSI have none.
#[derive(Debug)]
pub(crate) struct Pressure {
    cpu: Probe,
    memory: Probe,
    io: Probe,
}

impl Pressure {
    pub(crate) fn open(root: &Path) -> Self {
        let open = |name| Probe::open(root.join("proc/pressure").join(name));
        Self { cpu: open("cpu"), memory: open("memory"), io: open("io") }
    }

    pub(crate) fn sample(&self) -> PressureSample {
        let some = |probe: &Probe| probe.text(&mut [0; FILE]).and_then(some_avg10);
        PressureSample { cpu: some(&self.cpu), memory: some(&self.memory), io: some(&self.io) }
    }
}

/// The first average of a line like `some avg10=1.25 avg60=0.50 avg300=0.10 total=123`, from percent to 0 to 1.
fn some_avg10(text: &str) -> Option<f64> {
    let averages = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let percent = averages.split_whitespace().find_map(|word| word.strip_prefix("avg10="))?;
    percent.parse().ok().filter(|percent| (0.0..=100.0).contains(percent)).map(|percent: f64| percent / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Tree;

    #[test]
    fn averages_are_shares_of_one() {
        let tree = Tree::new();
        let full = "full avg10=99.00 avg60=0.00 avg300=0.00 total=0";
        tree.write(
            "proc/pressure/cpu",
            format!("some avg10=81.25 avg60=84.60 avg300=60.22 total=17\n{full}\n"),
        );
        tree.write("proc/pressure/io", format!("{full}\n"));
        let pressure = Pressure::open(&tree.path(""));
        assert_eq!(pressure.sample(), PressureSample { cpu: Some(0.8125), memory: None, io: None });
        for garbage in ["some avg10=", "some avg10=NaN", "some avg10=-1", "some avg10=101", "some", ""] {
            tree.write("proc/pressure/cpu", garbage);
            assert_eq!(pressure.sample().cpu, None, "{garbage}");
        }
    }
}
