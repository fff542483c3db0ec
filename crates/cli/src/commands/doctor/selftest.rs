//! Compares every kernel with its CPU reference on the selected device.

use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use anyhow::bail;
use gpu::{AdapterKind, Device, Instance, Tier};
use kernels::selftest::{self, Case, Report};
use serde::Serialize;

use crate::output;

/// Results of the self-test.
#[derive(Default, Serialize)]
pub struct Results {
    /// Totals per kernel and tier.
    pub kernels: Vec<Total>,
    /// Failed cases, with the first mismatch or the error.
    pub failures: Vec<String>,
    /// Messages of the validation layer, if it was loaded.
    pub validation_messages: Vec<String>,
    /// Cases that did not run because of Ctrl-C.
    pub not_run: usize,
    /// Whether Ctrl-C ended the self-test.
    pub interrupted: bool,
    /// Wall-clock time in seconds.
    pub seconds: f64,
}

/// Cases of one kernel at one tier.
#[derive(Default, Serialize)]
pub struct Total {
    kernel: String,
    tier: String,
    /// Cases that ran.
    cases: usize,
    passed: usize,
    compared: usize,
    /// Largest error as a fraction of the tolerance.
    worst: f64,
}

impl Total {
    /// One line, in the columns of the findings.
    fn text(&self) -> String {
        let Total { kernel, tier, cases, passed, compared, worst } = self;
        let mark = if passed == cases { "ok  " } else { "FAIL" };
        format!(
            "{mark}  {kernel:<16} {tier}: {passed} of {cases} cases passed, {compared} outputs, \
             max error {:.0}% of the tolerance\n",
            worst * 100.0
        )
    }
}

impl Results {
    /// Whether every case ran and passed, there was at least one, and the validation layer reported nothing.
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
            && self.validation_messages.is_empty()
            && !self.interrupted
            && self.kernels.iter().any(|total| total.cases > 0)
    }

    /// The summary. Failures and totals have been printed by then.
    pub fn text(&self) -> String {
        let messages: String =
            self.validation_messages.iter().map(|message| format!("validation: {message}\n")).collect();
        let passed: usize = self.kernels.iter().map(|total| total.passed).sum();
        let failed = self.failures.len();
        let verdict = match () {
            () if self.interrupted => "interrupted",
            () if self.passed() => "passed",
            () => "FAILED",
        };
        let not_run = if self.interrupted { format!(", {} not run", self.not_run) } else { String::new() };
        let seconds = self.seconds;
        format!(
            "\n{messages}self-test {verdict}: {passed} cases passed, {failed} failed{not_run}, in {seconds:.1} s\n"
        )
    }
}

/// What to run, and where progress goes.
pub struct Options<'a> {
    /// Only these kernels; empty means all.
    pub kernels: &'a [String],
    /// Cases whose pipelines are compiled at a time.
    pub jobs: Option<NonZeroUsize>,
    /// Standard output is for JSON: progress goes to standard error.
    pub json: bool,
}

pub fn run(device: &Device, instance: &Instance, options: &Options<'_>) -> anyhow::Result<Results> {
    let start = Instant::now();
    let only = options.kernels;
    let cases: Vec<(&'static str, Case)> = selftest::cases(device.caps())
        .filter(|(kernel, _)| only.is_empty() || only.iter().any(|only| only == kernel))
        .collect();
    if let Some(kernel) = only.iter().find(|only| !cases.iter().any(|(kernel, _)| *only == kernel)) {
        bail!("{kernel} has no test cases for {}: `indrik devices` lists its tiers", device.info().name);
    }
    let control = output::control();
    let cancel = &control.cancel;
    let mut lines = Lines { json: options.json, progress: output::Progress::new(), cancel, error: None };
    let mut results = Results::default();
    let mut ran = 0;
    let mut totals: BTreeMap<Tier, Total> = BTreeMap::new();
    let jobs = options.jobs.unwrap_or_else(|| default_jobs(device));
    selftest::run(device, &cases, jobs, cancel, |report| {
        ran += 1;
        add(&mut totals, &report);
        if !report.passed() {
            let failure = failure(&report);
            lines.print(&format!("FAIL  {failure}\n"));
            results.failures.push(failure);
        }
        // Cases are reported in order, so the next kernel's first case ends this one.
        if cases.get(ran).is_none_or(|(kernel, _)| *kernel != report.kernel) {
            let totals = std::mem::take(&mut totals);
            totals.values().for_each(|total| lines.print(&total.text()));
            results.kernels.extend(totals.into_values());
        } else {
            lines.progress.show(&format!("{} {} at {}", report.kernel, report.case, report.tier));
        }
    });
    // A kernel that Ctrl-C cut short.
    totals.values().for_each(|total| lines.print(&total.text()));
    results.kernels.extend(totals.into_values());
    if let Some(error) = lines.error {
        return Err(error);
    }
    results.not_run = cases.len() - ran;
    // Ctrl-C after the last case has started changes nothing.
    results.interrupted = results.not_run > 0;
    results.validation_messages = instance.validation_messages();
    results.seconds = start.elapsed().as_secs_f64();
    Ok(results)
}

/// All cores. One for a driver that runs on the CPU, which compiles a pipeline when it first runs.
fn default_jobs(device: &Device) -> NonZeroUsize {
    match device.info().kind {
        AdapterKind::Cpu => NonZeroUsize::MIN,
        _ => std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
    }
}

/// Lines that are printed, and flushed, while the self-test runs.
struct Lines<'a> {
    json: bool,
    progress: output::Progress,
    /// Set once standard output is closed: nobody reads the rest.
    cancel: &'a AtomicBool,
    error: Option<anyhow::Error>,
}

impl Lines<'_> {
    fn print(&mut self, text: &str) {
        self.progress.clear();
        if self.json {
            note_part!("{text}");
        } else if let Err(error) = output::print(text) {
            self.error = Some(error);
            self.cancel.store(true, Ordering::Relaxed);
        }
    }
}

fn add(totals: &mut BTreeMap<Tier, Total>, report: &Report) {
    let total = totals.entry(report.tier).or_default();
    total.kernel = report.kernel.to_string();
    total.tier = report.tier.to_string();
    total.cases += 1;
    total.passed += usize::from(report.passed());
    if let Ok(comparison) = &report.outcome {
        total.compared += comparison.compared;
        total.worst = total.worst.max(comparison.worst_error);
    }
}

fn failure(report: &Report) -> String {
    let reason = match &report.outcome {
        Err(error) => error.to_string(),
        Ok(comparison) => comparison.first_mismatch.clone().unwrap_or_else(|| "nothing was compared".into()),
    };
    format!("{} {} at {}: {reason}", report.kernel, report.case, report.tier)
}
