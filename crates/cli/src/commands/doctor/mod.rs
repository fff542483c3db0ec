//! `indrik doctor`: diagnoses the machine and suggests fixes.

mod checks;
mod memory;
mod npu;
mod report;
mod selftest;
mod settings;

use std::{num::NonZeroUsize, path::PathBuf, process::ExitCode};

use clap::Args;
use gpu::{Instance, InstanceOptions};
use indrik::DeviceSelector;
use serde::Serialize;
use serde_json::json;
use telemetry::System;

use crate::{commands::devices, npu::NpuFacts, output};

/// Diagnose this machine and suggest fixes
#[derive(Args)]
#[command(after_help = "Examples:\n  indrik doctor --selftest\n  indrik doctor --report\n\
                        Exit code 0 if Indrik can run here and every test passed, 1 otherwise.\n\
                        Ctrl-C ends the self-test with a summary of what ran, and exit code 130.")]
pub struct Arguments {
    /// Compare every kernel with its CPU reference on the selected device
    #[arg(long)]
    selftest: bool,
    /// With --selftest: only this kernel, named as in `indrik kernels` (repeatable)
    #[arg(long, requires = "selftest", value_name = "NAME", value_parser = kernel_name)]
    kernel: Vec<String>,
    /// With --selftest: number of cases whose pipelines are compiled at a time [default: all cores; 1 for a CPU driver]
    #[arg(long, requires = "selftest", value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// With --selftest: load the Khronos validation layer; any message is a failure
    #[arg(long, requires = "selftest")]
    validation: bool,
    /// Device, by index or part of its name
    #[arg(short, long, env = "INDRIK_DEVICE")]
    device: Option<String>,
    /// Also write what was found to a file for a bug report, without secrets
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "indrik-report.md")]
    report: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Parses a kernel name on the command line.
pub fn kernel_name(name: &str) -> Result<String, String> {
    if kernels::ALL.iter().any(|kernel| kernel.name == name) {
        return Ok(name.to_string());
    }
    let names: Vec<&str> = kernels::ALL.iter().map(|kernel| kernel.name).collect();
    Err(format!("known kernels: {}", names.join(", ")))
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// No problem.
    Good,
    /// Information.
    Note,
    /// Works, but slower or with less capacity than possible.
    Warning,
    /// Indrik cannot run.
    Problem,
}

/// A finding.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What was checked.
    pub about: String,
    /// Severity.
    pub level: Level,
    /// What was found.
    pub text: String,
    /// What to do, if anything.
    pub fix: Option<String>,
}

impl Finding {
    fn new(level: Level, about: &str, text: impl Into<String>) -> Self {
        Self { about: about.into(), level, text: text.into(), fix: None }
    }

    fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let selector = DeviceSelector {
        name: arguments.device.as_deref(),
        validation: arguments.validation,
        ..DeviceSelector::default()
    };
    let opened = selector.open();
    let system = System::new();
    let adapters = Instance::new(&InstanceOptions::default()).and_then(|instance| instance.adapters());
    let adapters = adapters.unwrap_or_default();
    let npu = NpuFacts::of(&system);
    let mut findings = checks::machine(&system, &adapters, npu.as_ref());
    match &opened {
        Ok((_, device)) => findings.extend(checks::device(&system, device)),
        Err(error) => findings.push(Finding::new(Level::Problem, "Vulkan", error.to_string())),
    }
    let json = arguments.json;
    if !json {
        output::print(&text(&findings))?;
    }
    let mut results = None;
    if let (true, Ok((instance, device))) = (arguments.selftest, &opened) {
        let options = selftest::Options { kernels: &arguments.kernel, jobs: arguments.jobs, json };
        if !json {
            output::print("\n")?;
        }
        results = Some(selftest::run(device, instance, &options)?);
    }

    if let Some(file) = &arguments.report {
        report::write(file, &system, &findings, &adapters, npu.as_ref(), results.as_ref())?;
        note!("Wrote {}. Read it before you publish it.", file.display());
    }
    let healthy = findings.iter().all(|finding| finding.level != Level::Problem)
        && results.as_ref().is_none_or(selftest::Results::passed);
    if json {
        let device = opened
            .as_ref()
            .ok()
            .map(|(_, device)| devices::describe(device.info(), Some(device.info().index)));
        output::print_json(&json!({
            "healthy": healthy, "findings": findings, "device": device, "npu": npu.as_ref().map(NpuFacts::json),
            "selftest": results,
        }))?;
    } else if let Some(results) = &results {
        output::print(&results.text())?;
    }
    Ok(match results {
        Some(results) if results.interrupted => ExitCode::from(130),
        _ if healthy => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let mark = match finding.level {
            Level::Good => "ok  ",
            Level::Note => "note",
            Level::Warning => "warn",
            Level::Problem => "FAIL",
        };
        text += &format!("{mark}  {:<16} {}\n", finding.about, finding.text);
        if let Some(fix) = &finding.fix {
            for line in fix.lines() {
                text += &format!("{:24}→ {line}\n", "");
            }
        }
    }
    text
}
