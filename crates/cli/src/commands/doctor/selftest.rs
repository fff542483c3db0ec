//! Compares every kernel with its CPU reference on the selected device.

use std::{collections::BTreeMap, time::Instant};

use anyhow::bail;
use gpu::{Device, Instance, Tier};
use kernels::selftest::{self, Report};
use serde::Serialize;

use crate::output;

/// Results of the self-test.
#[derive(Serialize)]
pub struct Results {
    /// Totals per kernel and tier.
    pub kernels: Vec<Total>,
    /// Failed cases, with the first mismatch or the error.
    pub failures: Vec<String>,
    /// Messages of the validation layer, if it was loaded.
    pub validation_messages: Vec<String>,
    /// Wall-clock time in seconds.
    pub seconds: f64,
}

/// Cases of one kernel at one tier.
#[derive(Default, Serialize)]
pub struct Total {
    kernel: String,
    tier: String,
    cases: usize,
    passed: usize,
    compared: usize,
    /// Largest error as a fraction of the tolerance.
    worst: f64,
}

impl Results {
    /// Whether there were cases, all passed, and the validation layer reported nothing.
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
            && self.validation_messages.is_empty()
            && self.kernels.iter().any(|t| t.cases > 0)
    }

    /// The results as text.
    pub fn text(&self) -> String {
        let rows: Vec<Vec<String>> = self
            .kernels
            .iter()
            .map(|total| {
                vec![
                    total.kernel.clone(),
                    total.tier.clone(),
                    format!("{}/{}", total.passed, total.cases),
                    total.compared.to_string(),
                    format!("{:.0}%", total.worst * 100.0),
                ]
            })
            .collect();
        let table = output::table(&["kernel", "tier", "passed", "outputs", "max error / tolerance"], &rows);
        let failures: String = self.failures.iter().map(|failure| format!("FAIL  {failure}\n")).collect();
        let messages: String =
            self.validation_messages.iter().map(|m| format!("validation: {m}\n")).collect();
        let (passed, cases) = self.kernels.iter().fold((0, 0), |(p, c), t| (p + t.passed, c + t.cases));
        let verdict = if self.passed() { "passed" } else { "FAILED" };
        let end = format!("\nself-test {verdict}: {passed} of {cases} cases in {:.1} s\n", self.seconds);
        format!("\n{table}{failures}{messages}{end}")
    }
}

pub fn run(device: &Device, instance: &Instance, only: Option<&str>, quiet: bool) -> anyhow::Result<Results> {
    let start = Instant::now();
    let mut progress = output::Progress::new();
    let reports = selftest::run(device, only, |report| {
        if !quiet {
            progress.show(&format!("{} {} at {}", report.kernel, report.case, report.tier));
        }
    });
    drop(progress);
    if let (Some(kernel), true) = (only, reports.is_empty()) {
        bail!("{kernel} has no test cases for {}: `indrik devices` lists its tiers", device.info().name);
    }
    let mut totals: BTreeMap<(&str, Tier), Total> = BTreeMap::new();
    for report in &reports {
        let total = totals.entry((report.kernel, report.tier)).or_default();
        total.kernel = report.kernel.to_string();
        total.tier = report.tier.to_string();
        total.cases += 1;
        total.passed += usize::from(report.passed());
        if let Ok(comparison) = &report.outcome {
            total.compared += comparison.compared;
            total.worst = total.worst.max(comparison.worst_error);
        }
    }
    Ok(Results {
        kernels: totals.into_values().collect(),
        failures: reports.iter().filter(|report| !report.passed()).map(failure).collect(),
        validation_messages: instance.validation_messages(),
        seconds: start.elapsed().as_secs_f64(),
    })
}

fn failure(report: &Report) -> String {
    let reason = match &report.outcome {
        Err(error) => error.to_string(),
        Ok(comparison) => comparison.first_mismatch.clone().unwrap_or_else(|| "nothing was compared".into()),
    };
    format!("{} {} at {}: {reason}", report.kernel, report.case, report.tier)
}
