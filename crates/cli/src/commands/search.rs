//! `indrik search`: the models that can be pulled by name.

use std::process::ExitCode;

use clap::Args;
use gpu::format_bytes;
use serde_json::json;
use store::{Model, Store, catalogue};

use super::pull::Machine;
use crate::output;

/// List the models that can be pulled by name
#[derive(Args)]
#[command(after_help = "Example: indrik search coder\n\n\
    Sizes are those of the weights with 4 and with 8 bits. Memory is what a model needs with an 8k context; both are \
    computed from the number of parameters. `indrik pull NAME --dry-run` reads the exact figures from the hub. The hub \
    has many more models: `indrik pull hf.co/OWNER/REPOSITORY` pulls any that is supported.")]
pub struct Arguments {
    /// Words that must occur in the name, description, licence or suggested use; all models without any
    words: Vec<String>,
    /// Device to judge for, by index or part of its name
    #[arg(short, long, env = "INDRIK_DEVICE")]
    device: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    list(&arguments.words, arguments.device.as_deref(), arguments.json)
}

/// Bits per weight of files with 4 bits: Q4_K_M and its relatives.
const BITS_4: f64 = 4.85;
/// Bits per weight of Q8_0.
const BITS_8: f64 = 8.5;
/// Share of the weights that KV cache and scratch buffers take on top.
const OVERHEAD: f64 = 0.12;
/// Minimum of that, in bytes.
const MIN_OVERHEAD: u64 = 400 << 20;

/// Memory that a model needs, in bytes: an estimate.
fn memory_needed(model: &Model, bits: f64) -> u64 {
    let weights = f64::from(model.millions) * 1e6 * bits / 8.0;
    weights as u64 + MIN_OVERHEAD.max((weights * OVERHEAD) as u64)
}

/// Lists the models that match all words.
pub fn list(words: &[String], device: Option<&str>, as_json: bool) -> anyhow::Result<ExitCode> {
    let store = Store::open_default()?;
    let models = catalogue::search(words);
    let machine = Machine::detect(device)?;
    let usable = machine.usable();
    let fits = |model: &Model| match () {
        () if memory_needed(model, BITS_8) <= usable => Some(8),
        () if memory_needed(model, BITS_4) <= usable => Some(4),
        () => None,
    };
    if as_json {
        let entry = |model: &&Model| {
            json!({
                "name": model.name, "aliases": model.aliases, "title": model.title,
                "parameters": u64::from(model.millions) * 1_000_000, "context_length": model.context_length,
                "bytes": model.file_bytes(BITS_4), "bytes_exact": model.pinned.is_some(),
                "sha256": model.pinned.map(|pinned| pinned.sha256),
                "memory_4_bit": memory_needed(model, BITS_4), "memory_8_bit": memory_needed(model, BITS_8),
                "fits_bits": fits(model),
                "licence": model.licence.name, "licence_url": model.licence.url, "chat": model.chat,
                "use": model.suggested_use, "repositories": model.repositories, "path": store.resolve(model.name),
            })
        };
        output::print_json(&models.iter().map(entry).collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    if models.is_empty() {
        output::print(&format!(
            "No model matches '{}'. Families: {}.\nAny other: indrik pull hf.co/OWNER/REPOSITORY\n",
            store::printable(words.join(" ")),
            catalogue::families()
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    let row = |model: &&Model| {
        let about = if model.pinned.is_some() { "" } else { "~" };
        vec![
            model.name.to_string(),
            format!("{about}{}", format_bytes(model.file_bytes(BITS_4))),
            format!(
                "~{} / ~{}",
                format_bytes(memory_needed(model, BITS_4)),
                format_bytes(memory_needed(model, BITS_8))
            ),
            fits(model).map_or_else(|| "no".to_string(), |bits| format!("{bits} bits")),
            if store.resolve(model.name).is_some() { "yes" } else { "" }.to_string(),
            model.licence.name.to_string(),
            if model.chat { "yes" } else { "no" }.to_string(),
            model.suggested_use.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = models.iter().map(row).collect();
    let header = ["name", "size", "memory, 4 / 8 bits", "fits", "downloaded", "licence", "chat", "use"];
    output::print(&output::table(&header, &rows))?;
    output::print(&format!("\nFits: on {}, {} for models.\n", machine.name, format_bytes(usable)))?;
    Ok(ExitCode::SUCCESS)
}
