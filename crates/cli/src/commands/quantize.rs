//! `indrik quantize`: converts a model to int8 or int4 in the GPU's weight layout.

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::bail;
use checkpoint::Checkpoint;
use clap::{Args, ValueEnum};
use gpu::format_bytes;
use serde_json::json;
use tensor::Scheme;
use weights::quantize::quantize;

use crate::output;

/// Target scheme.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Quant {
    Int8,
    Int4,
}

/// Convert a model to int8 or int4, in a file that loads without conversion
#[derive(Args)]
#[command(after_help = "Example: indrik quantize gemma-3-27b-it gemma-3-27b-int8.safetensors --quant int8")]
pub struct Arguments {
    /// A GGUF file, a Hugging Face folder, or a name in the local store
    #[arg(value_name = "IN")]
    input: String,
    /// The file to write, ending in .safetensors
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// Weight scheme
    #[arg(long, default_value = "int8")]
    quant: Quant,
    /// Replace OUT if it exists
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let out = &arguments.output;
    if out.extension().is_none_or(|extension| extension != "safetensors") {
        bail!(
            "{}: the output file must end in .safetensors, because its format is recognised by the extension",
            out.display()
        );
    }
    if out.exists() && !arguments.force {
        bail!("{} already exists: choose another name, or replace it with --force", out.display());
    }
    let scheme = match arguments.quant {
        Quant::Int8 => Scheme::Int8,
        Quant::Int4 => Scheme::Int4,
    };
    let checkpoint = Checkpoint::open(&store::resolve_model(&arguments.input)?)?;
    let total: u64 = checkpoint.inventory.iter().map(|(_, tensor)| tensor.data.len).sum();
    let start = Instant::now();
    let (control, done) = (output::control(), AtomicBool::new(false));
    let report = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut progress = output::Progress::new();
            while !done.load(Ordering::Relaxed) {
                let read = control.done.load(Ordering::Relaxed);
                progress.show(&format!(
                    "converting {} of {} to {scheme}",
                    format_bytes(read),
                    format_bytes(total)
                ));
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let _done = output::SetOnDrop(&done);
        quantize(&checkpoint, out, scheme, &control)
    })?;
    let seconds = start.elapsed().as_secs_f64();
    if arguments.json {
        let roles: serde_json::Map<_, _> = report
            .roles
            .iter()
            .map(|(role, (tensors, rmse))| {
                (
                    format!("{role:?}").to_lowercase(),
                    json!({ "tensors": tensors, "relative_rmse": rmse.relative() }),
                )
            })
            .collect();
        output::print_json(&json!({
            "output": out, "scheme": scheme, "bytes_before": report.bytes_before,
            "bytes_after": report.bytes_after, "seconds": seconds, "roles": roles,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows: Vec<Vec<String>> = report
        .roles
        .iter()
        .map(|(role, (tensors, rmse))| {
            vec![
                format!("{role:?}").to_lowercase(),
                tensors.to_string(),
                format!("{:.3}%", rmse.relative() * 100.0),
            ]
        })
        .collect();
    output::print(&format!(
        "{}: {} → {} in {seconds:.1} s\n\n{}",
        out.display(),
        format_bytes(report.bytes_before),
        format_bytes(report.bytes_after),
        output::table(&["weights", "tensors", "error (relative RMSE)"], &rows)
    ))?;
    Ok(ExitCode::SUCCESS)
}
