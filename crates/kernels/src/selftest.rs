//! Self-test: runs every kernel's cases, to check that this device and driver compute what the CPU reference computes.

use gpu::{Caps, Device, Result, Tier};

use crate::ALL;
pub use crate::case::{Case, Comparison, Output, Random, TIMEOUT, arena};

/// The result of one case.
#[derive(Debug)]
pub struct Report {
    /// Kernel.
    pub kernel: &'static str,
    /// Case.
    pub case: String,
    /// Tier.
    pub tier: Tier,
    /// The comparison; an error counts as failed.
    pub outcome: Result<Comparison>,
}

impl Report {
    /// Whether the case passed.
    pub fn passed(&self) -> bool {
        self.outcome.as_ref().is_ok_and(Comparison::passed)
    }
}

/// Every case that a device with these capabilities can run.
pub fn cases(caps: &Caps) -> impl Iterator<Item = (&'static str, Case)> {
    let max_tier = caps.tier().unwrap_or(Tier::T0);
    ALL.iter().flat_map(move |kernel| {
        (kernel.cases)(caps)
            .into_iter()
            .filter(move |case| case.tier <= max_tier)
            .map(|case| (kernel.name, case))
    })
}

/// Runs every case, or those of one kernel; `on_report` is called with each result as it arrives.
pub fn run(device: &Device, only: Option<&str>, mut on_report: impl FnMut(&Report)) -> Vec<Report> {
    cases(device.caps())
        .filter(|(kernel, _)| only.is_none_or(|only| only == *kernel))
        .map(|(kernel, case)| {
            let outcome = case.run(device);
            let report = Report { kernel, case: case.name, tier: case.tier, outcome };
            on_report(&report);
            report
        })
        .collect()
}
