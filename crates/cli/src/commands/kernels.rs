//! `indrik kernels`: every GPU program in this binary, as the driver compiled it.

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use gpu::Device;
use indrik::DeviceSelector;
use kernels::Variant;
use model::{
    Size,
    estimate::{Estimate, RADEON_780M},
};
use serde::Serialize;
use tensor::Scheme;

use crate::output;

/// Compiles every GPU program in this binary and shows registers, spills and code size
#[derive(Args)]
#[command(after_help = "Example, for a Radeon 780M that need not be there:\n  \
                        RADV_FORCE_FAMILY=phoenix VK_DRIVER_FILES=/usr/share/vulkan/icd.d/radeon_icd.json indrik kernels")]
pub struct Arguments {
    /// Device by index or part of its name
    #[arg(short, long, env = "INDRIK_DEVICE")]
    device: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write the table to a file as well
    #[arg(long, value_name = "FILE", conflicts_with = "estimate")]
    table: Option<std::path::PathBuf>,
    /// This kernel alone
    #[arg(long, value_name = "NAME", value_parser = super::doctor::kernel_name)]
    kernel: Option<String>,
    /// Print the assembly of the programs whose name and variant contain this text
    #[arg(long, value_name = "TEXT")]
    assembly: Option<String>,
    /// Instead: how fast published sizes may decode on a Radeon 780M. Computed from bytes and levels, not measured; needs no GPU
    #[arg(long, conflicts_with_all = ["device", "kernel", "assembly"])]
    estimate: bool,
}

/// One compiled pipeline.
#[derive(Serialize)]
struct Compiled {
    kernel: &'static str,
    shader: &'static str,
    variant: String,
    /// Subgroup size it was compiled for.
    subgroup_size: u32,
    /// The driver's figures by name.
    statistics: serde_json::Map<String, serde_json::Value>,
    /// How often instructions that matter occur in the assembly.
    instructions: serde_json::Map<String, serde_json::Value>,
    #[serde(skip)]
    assembly: String,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if arguments.estimate {
        return estimate(arguments.json);
    }
    let (_instance, device) =
        DeviceSelector { name: arguments.device.as_deref(), statistics: true, ..DeviceSelector::default() }
            .open()?;
    let mut progress = output::Progress::new();
    let mut all = Vec::new();
    for kernel in
        kernels::ALL.iter().filter(|kernel| arguments.kernel.as_ref().is_none_or(|name| name == kernel.name))
    {
        for variant in (kernel.variants)(device.caps()) {
            progress.say(&format!("compiling {} ({})", variant.shader.name, variant.label));
            all.extend(compile(&device, kernel.name, &variant)?);
        }
    }
    drop(progress);
    if all.iter().all(|compiled| compiled.statistics.is_empty()) {
        bail!(
            "{} tells nothing about its compiled programs: Mesa's drivers and NVIDIA's do",
            device.info().driver
        );
    }
    if let Some(file) = &arguments.table {
        std::fs::write(file, markdown(&device, &all)).with_context(|| file.display().to_string())?;
    }
    if let Some(text) = &arguments.assembly {
        let found: Vec<_> =
            all.iter().filter(|c| format!("{} {}", c.shader, c.variant).contains(text.as_str())).collect();
        if found.is_empty() {
            bail!("no program matches '{text}': `indrik kernels` lists them");
        }
        for compiled in found {
            output::print(&format!("; {} {}\n{}\n", compiled.shader, compiled.variant, compiled.assembly))?;
        }
    } else if arguments.json {
        let info = device.info();
        output::print_json(
            &serde_json::json!({ "device": info.name, "driver": info.driver, "programs": all }),
        )?;
    } else {
        output::print(&markdown(&device, &all))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Estimates for every published size, in the schemes that a user would choose.
fn estimate(json: bool) -> anyhow::Result<ExitCode> {
    let machine = &RADEON_780M;
    let mut rows = Vec::new();
    let mut values = Vec::new();
    for size in Size::ALL {
        for scheme in [Scheme::Int8, Scheme::Int4] {
            let estimate = Estimate::new(&size.config()?, scheme, machine);
            rows.push(vec![
                format!("{} {scheme}", size.name()),
                format!("{:.2}", estimate.bytes as f64 / 1e9),
                estimate.levels.to_string(),
                format!("{:.1}", estimate.read_seconds * 1e3),
                format!("{:.1}", estimate.level_seconds * 1e3),
                format!("{:.1}", estimate.tokens_per_s()),
            ]);
            values.push(serde_json::json!({
                "model": size.name(), "scheme": scheme.to_string(), "bytes_per_token": estimate.bytes,
                "levels": estimate.levels, "estimated_tokens_per_s": estimate.tokens_per_s(),
            }));
        }
    }
    if json {
        output::print_json(&serde_json::json!({
            "measured": false, "machine": machine.name, "peak_bytes_per_s": machine.peak_bytes_per_s,
            "reached": machine.reached, "level_seconds": machine.level_seconds, "estimates": values,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let header =
        ["model", "GB a token", "levels", "reading, ms", "levels, ms", "estimated tok/s (not measured)"];
    output::print(&format!(
        "ESTIMATE for a {}, nothing of it measured: bytes a token ÷ {:.0}% of {:.1} GB/s + levels × {:.0} µs; the {:.0}% and the {:.0} µs are \
         assumed. One sequence near the start of its context.\n\n{}",
        machine.name,
        machine.reached * 100.0,
        machine.peak_bytes_per_s / 1e9,
        machine.level_seconds * 1e6,
        machine.reached * 100.0,
        machine.level_seconds * 1e6,
        output::table(&header, &rows)
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn compile(device: &Device, kernel: &'static str, variant: &Variant) -> gpu::Result<Vec<Compiled>> {
    let executables = variant.pipeline(device)?.executables()?;
    Ok(executables
        .into_iter()
        .map(|executable| Compiled {
            kernel,
            shader: variant.shader.name,
            variant: variant.label.clone(),
            subgroup_size: executable.subgroup_size,
            statistics: executable.statistics.iter().map(|s| (s.name.clone(), s.value.into())).collect(),
            instructions: count_instructions(executable.assembly()),
            assembly: executable.assembly().to_string(),
        })
        .collect())
}

/// Instructions whose presence or absence a kernel is written for: a name for the table, and what they are called in AMD's
/// assembly and in its compiler's last form before that, which is all there is for GPUs newer than the disassembler.
const COUNTED: [(&str, &[&str]); 5] = [
    ("v_dot4", &["v_dot4"]),
    ("v_wmma", &["v_wmma"]),
    ("16-byte loads", &["global_load_b128", "global_load_dwordx4"]),
    ("LDS", &["ds_"]),
    ("waits", &["s_waitcnt"]),
];

fn count_instructions(assembly: &str) -> serde_json::Map<String, serde_json::Value> {
    let is_one_of = |line: &str, names: &[&str]| {
        line.split_whitespace().any(|word| names.iter().any(|name| word.starts_with(name)))
    };
    COUNTED
        .into_iter()
        .map(|(name, names)| {
            let count = assembly.lines().filter(|line| is_one_of(line, names)).count();
            (name.to_string(), count.into())
        })
        .collect()
}

fn markdown(device: &Device, all: &[Compiled]) -> String {
    let figure = |compiled: &Compiled, names: &[&str]| {
        let value =
            names.iter().find_map(|name| compiled.statistics.get(*name)).and_then(serde_json::Value::as_f64);
        // NVIDIA's driver tells 64 GiB of local memory for every program, and what it has on top of that.
        let value = value.filter(|value| *value < f64::from(u32::MAX));
        value.map_or_else(|| "–".to_string(), |value| format!("{value}"))
    };
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|c| {
            let instruction =
                |name: &str| c.instructions.get(name).map_or_else(String::new, ToString::to_string);
            vec![
                c.shader.to_string(),
                c.variant.clone(),
                c.subgroup_size.to_string(),
                figure(c, &["VGPRs", "Register Count"]),
                figure(c, &["SGPRs"]),
                figure(c, &["Subgroups per SIMD"]),
                figure(c, &["Spilled VGPRs", "Spill count"]),
                figure(c, &["Spilled SGPRs"]),
                figure(c, &["Scratch size", "Local Memory Size"]),
                figure(c, &["LDS size", "Shared Memory Size"]),
                figure(c, &["Instructions", "Instruction Count"]),
                figure(c, &["Code size", "Binary Size"]),
                instruction("v_dot4"),
                instruction("16-byte loads"),
            ]
        })
        .collect();
    let header = [
        "program",
        "variant",
        "wave",
        "VGPRs",
        "SGPRs",
        "waves/SIMD",
        "spilled VGPRs",
        "spilled SGPRs",
        "scratch",
        "LDS",
        "instructions",
        "code bytes",
        "v_dot4",
        "16-byte loads",
    ];
    let info = device.info();
    format!("{}, {}\n\n{}", info.name, info.driver, output::table(&header, &rows))
}
