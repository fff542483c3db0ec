//! `indrik kernels`: compiles every kernel variant and reports the driver's statistics.

use std::{
    process::ExitCode,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

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

/// Compile every kernel variant and report registers, spills and code size
#[derive(Args)]
#[command(after_help = "Example for a Radeon 780M, which need not be present:\n  \
                        RADV_FORCE_FAMILY=phoenix VK_DRIVER_FILES=/usr/share/vulkan/icd.d/radeon_icd.json indrik kernels")]
pub struct Arguments {
    /// Device, by index or part of its name
    #[arg(short, long, env = "INDRIK_DEVICE")]
    device: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also write the Markdown table to a file
    #[arg(long, value_name = "FILE", conflicts_with = "estimate")]
    table: Option<std::path::PathBuf>,
    /// Also write a CSV file, one row per variant
    #[arg(long, value_name = "FILE", conflicts_with = "estimate")]
    csv: Option<std::path::PathBuf>,
    /// List the variants without compiling them
    #[arg(long, conflicts_with_all = ["table", "csv", "assembly", "estimate"])]
    list: bool,
    /// Only this kernel
    #[arg(long, value_name = "NAME", value_parser = super::doctor::kernel_name)]
    kernel: Option<String>,
    /// Print the assembly of all variants whose shader name or label contains this text
    #[arg(long, value_name = "TEXT")]
    assembly: Option<String>,
    /// Estimate decode speed on a Radeon 780M for published model sizes instead (computed, not measured;
    /// needs no GPU)
    #[arg(long, conflicts_with_all = ["device", "kernel", "assembly"])]
    estimate: bool,
}

/// One compiled pipeline.
#[derive(Serialize)]
struct Compiled {
    kernel: &'static str,
    shader: &'static str,
    variant: String,
    /// [`Variant::fingerprint`].
    fingerprint: String,
    /// Subgroup size that it was compiled for.
    subgroup_size: u32,
    /// The driver's statistics by name.
    statistics: serde_json::Map<String, serde_json::Value>,
    /// Occurrences of the instructions in [`COUNTED`].
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
    let selected =
        kernels::ALL.iter().filter(|kernel| arguments.kernel.as_ref().is_none_or(|name| name == kernel.name));
    let variants: Vec<_> = selected
        .flat_map(|kernel| (kernel.variants)(device.caps()).into_iter().map(|variant| (kernel.name, variant)))
        .collect();
    if arguments.list {
        return list(&device, &variants, arguments.json);
    }
    let all = compile_all(&device, &variants)?;
    if all.iter().all(|compiled| compiled.statistics.is_empty()) {
        bail!("{} does not report pipeline statistics; Mesa's and NVIDIA's drivers do", device.info().driver);
    }
    if let Some(file) = &arguments.table {
        std::fs::write(file, markdown(&device, &all)).with_context(|| file.display().to_string())?;
    }
    if let Some(file) = &arguments.csv {
        std::fs::write(file, csv(&device, &all)).with_context(|| file.display().to_string())?;
    }
    if let Some(text) = &arguments.assembly {
        let found: Vec<_> =
            all.iter().filter(|c| format!("{} {}", c.shader, c.variant).contains(text.as_str())).collect();
        if found.is_empty() {
            bail!("no variant matches '{text}': `indrik kernels` lists them");
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

/// Prints the variants that [`compile_all`] would compile.
fn list(device: &Device, variants: &[(&str, Variant)], json: bool) -> anyhow::Result<ExitCode> {
    let fingerprint = |variant: &Variant| format!("{:016x}", variant.fingerprint());
    if json {
        let programs: Vec<_> = variants
            .iter()
            .map(|(kernel, variant)| {
                serde_json::json!({
                    "kernel": kernel, "shader": variant.shader.name, "variant": variant.label,
                    "fingerprint": fingerprint(variant),
                })
            })
            .collect();
        let info = device.info();
        output::print_json(
            &serde_json::json!({ "device": info.name, "driver": info.driver, "programs": programs }),
        )?;
    } else {
        let rows: Vec<Vec<String>> = variants
            .iter()
            .map(|(kernel, variant)| {
                let shader = variant.shader.name.to_string();
                vec![(*kernel).to_string(), shader, variant.label.clone(), fingerprint(variant)]
            })
            .collect();
        output::print(&output::table(&["kernel", "shader", "variant", "fingerprint"], &rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Estimates for every published model size in int8 and int4.
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
            "bandwidth_efficiency": machine.bandwidth_efficiency, "level_seconds": machine.level_seconds,
            "estimates": values,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let header =
        ["model", "GB per token", "levels", "read, ms", "levels, ms", "estimated tok/s (not measured)"];
    output::print(&format!(
        "ESTIMATE for a {}, not measured: time per token = bytes per token ÷ ({:.0}% of {:.1} GB/s) + levels × {:.0} µs.\n\
         The {:.0}% and the {:.0} µs are assumptions. A level is a group of dispatches between two barriers. One sequence at\n\
         the start of its context.\n\n{}",
        machine.name,
        machine.bandwidth_efficiency * 100.0,
        machine.peak_bytes_per_s / 1e9,
        machine.level_seconds * 1e6,
        machine.bandwidth_efficiency * 100.0,
        machine.level_seconds * 1e6,
        output::table(&header, &rows)
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Compiles variants of kernels on all cores, with progress.
fn compile_all(device: &Device, variants: &[(&'static str, Variant)]) -> gpu::Result<Vec<Compiled>> {
    let next = AtomicUsize::new(0);
    let progress = Mutex::new(output::Progress::new());
    let compiled: Vec<OnceLock<gpu::Result<Vec<Compiled>>>> =
        variants.iter().map(|_| OnceLock::new()).collect();
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((kernel, variant)) = variants.get(index) else { break };
            let text = format!("compiling {} ({})", variant.shader.name, variant.label);
            progress.lock().unwrap_or_else(PoisonError::into_inner).show(&text);
            let result = compile(device, kernel, variant);
            if result.is_err() {
                next.store(variants.len(), Ordering::Relaxed);
            }
            // Each index is taken by one thread.
            let _ = compiled[index].set(result);
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..cores).for_each(|_| _ = scope.spawn(work)));
    // Variants after one that failed were not compiled.
    let results = compiled.into_iter().filter_map(OnceLock::into_inner);
    results.collect::<gpu::Result<Vec<_>>>().map(|lists| lists.into_iter().flatten().collect())
}

fn compile(device: &Device, kernel: &'static str, variant: &Variant) -> gpu::Result<Vec<Compiled>> {
    let executables = variant.pipeline(device)?.executables()?;
    Ok(executables
        .into_iter()
        .map(|executable| Compiled {
            kernel,
            shader: variant.shader.name,
            variant: variant.label.clone(),
            fingerprint: format!("{:016x}", variant.fingerprint()),
            subgroup_size: executable.subgroup_size,
            statistics: executable.statistics.iter().map(|s| (s.name.clone(), s.value.into())).collect(),
            instructions: count_instructions(executable.assembly()),
            assembly: executable.assembly().to_string(),
        })
        .collect())
}

/// Counted instructions: a column name, and the mnemonics in AMD's assembly and in the compiler's last
/// intermediate representation. Only the latter is available for GPUs that are newer than the disassembler.
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

/// A statistic of the tables: column name, CSV column name, and the drivers' names for it (RADV's, NVIDIA's).
const STATISTICS: [(&str, &str, &[&str]); 9] = [
    ("VGPRs", "vgprs", &["VGPRs", "Register Count"]),
    ("SGPRs", "sgprs", &["SGPRs"]),
    ("waves/SIMD", "waves_per_simd", &["Subgroups per SIMD"]),
    ("spilled VGPRs", "spilled_vgprs", &["Spilled VGPRs", "Spill count"]),
    ("spilled SGPRs", "spilled_sgprs", &["Spilled SGPRs"]),
    ("scratch", "scratch_bytes", &["Scratch size", "Local Memory Size"]),
    ("LDS", "lds_bytes", &["LDS size", "Shared Memory Size"]),
    ("instructions", "instructions", &["Instructions", "Instruction Count"]),
    ("code bytes", "code_bytes", &["Code size", "Binary Size"]),
];

impl Compiled {
    fn statistic(&self, names: &[&str]) -> Option<f64> {
        let value = names.iter().find_map(|name| self.statistics.get(*name))?.as_f64()?;
        // NVIDIA's driver adds 64 GiB to the local memory size of every pipeline.
        Some(value).filter(|value| *value < f64::from(u32::MAX))
    }

    fn count(&self, instruction: &str) -> String {
        self.instructions.get(instruction).map_or_else(String::new, ToString::to_string)
    }
}

fn markdown(device: &Device, all: &[Compiled]) -> String {
    let row = |c: &Compiled| -> Vec<String> {
        let statistics = STATISTICS
            .iter()
            .map(|(.., names)| c.statistic(names).map_or_else(|| "–".to_string(), |value| value.to_string()));
        let mut row = vec![c.shader.to_string(), c.variant.clone(), c.subgroup_size.to_string()];
        row.extend(statistics);
        row.extend([c.count("v_dot4"), c.count("16-byte loads")]);
        row
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    let header: Vec<&str> = ["shader", "variant", "wave"]
        .into_iter()
        .chain(STATISTICS.iter().map(|(name, ..)| *name))
        .chain(["v_dot4", "16-byte loads"])
        .collect();
    let info = device.info();
    format!("{}, {}\n\n{}", info.name, info.driver, output::table(&header, &rows))
}

/// A comment line with device and driver, a header, and one row per variant. Labels are shortened and never
/// need quotes.
fn csv(device: &Device, all: &[Compiled]) -> String {
    let statistics: Vec<&str> = STATISTICS.iter().map(|(_, name, _)| *name).collect();
    let info = device.info();
    let mut text = format!(
        "# {}, {}\nkernel,shader,variant,wave,{},v_dot4,v_wmma,loads_16_bytes,fingerprint\n",
        info.name,
        info.driver,
        statistics.join(",")
    );
    for c in all {
        let variant = c.variant.replace(", ", ";").replace(',', ";").replace(" × ", "x").replace(" → ", ">");
        text += &format!("{},{},{variant},{}", c.kernel, c.shader, c.subgroup_size);
        for (.., names) in STATISTICS {
            text += &c.statistic(names).map_or_else(|| ",".to_string(), |value| format!(",{value}"));
        }
        let counts = [c.count("v_dot4"), c.count("v_wmma"), c.count("16-byte loads")].join(",");
        text += &format!(",{counts},{}\n", c.fingerprint);
    }
    text
}
