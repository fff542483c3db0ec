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
    Size is that of a file with 4 bits per weight. Memory is what a model needs with an 8k context. Both are computed \
    from the number of parameters, except for the three pinned models. `indrik pull NAME --dry-run` reads the exact figures from the hub. The hub \
    has many more models: `indrik pull hf.co/OWNER/REPO` pulls any that is supported.")]
pub struct Arguments {
    /// Words to match in name, description, licence and suggested use (default: list all models)
    words: Vec<String>,
    /// Device whose memory the model must fit, by index or part of its name
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
const FILE_BITS_4: f64 = 4.85;
/// Bits per weight on the GPU of 4-bit files, a part of which has 8: the embeddings, and some of the layers.
const BITS_4: f64 = 5.3;
/// Bits per weight on the GPU of 8-bit files.
const BITS_8: f64 = 8.5;
/// Activations, logits and tables: a constant, and a share of the weights.
const SCRATCH: u64 = 256 << 20;
const SCRATCH_SHARE: f64 = 0.02;

/// Memory that a model needs with an 8k context, in bytes: an estimate.
fn memory_needed(model: &Model, bits: f64) -> u64 {
    let weights = f64::from(model.millions) * 1e6 * bits / 8.0;
    (weights * (1.0 + SCRATCH_SHARE)) as u64 + (u64::from(model.kv_mib) << 20) + SCRATCH
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
                "bytes": model.file_bytes(FILE_BITS_4), "bytes_exact": model.pinned.is_some(),
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
            "No model matches '{}'. Names: {}.\nAny other: indrik pull hf.co/OWNER/REPO\n",
            store::printable(words.join(" ")),
            catalogue::name_prefixes()
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    let row = |model: &&Model| {
        let about = if model.pinned.is_some() { "" } else { "~" };
        vec![
            model.name.to_string(),
            format!("{about}{}", format_bytes(model.file_bytes(FILE_BITS_4))),
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
    output::print(&format!("\nFits: in the usable memory of {}, {}.\n", machine.name, format_bytes(usable)))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use model::Size;
    use weights::blueprint::{Reservation, kv_layers};
    use weights::plan::kv_bytes;

    use super::*;

    #[test]
    fn the_catalogue_agrees_with_published_dimensions() {
        for (name, size) in [
            ("gemma3:270m", Size::Gemma3Of270M),
            ("gemma3:1b", Size::Gemma3Of1B),
            ("gemma3:4b", Size::Gemma3Of4B),
            ("gemma3:12b", Size::Gemma3Of12B),
            ("gemma3:27b", Size::Gemma3Of27B),
            ("gemma4:e2b", Size::Gemma4E2B),
            ("gemma4:e4b", Size::Gemma4E4B),
            ("gemma4:12b", Size::Gemma4Of12B),
            ("gemma4:26b-a4b", Size::Gemma4Of26B),
            ("gemma4:31b", Size::Gemma4Of31B),
            ("ministral3:8b", Size::Ministral3Of8B),
            ("smollm2:135m", Size::SmolLm135M),
            ("llama3.2:1b", Size::Llama1B),
            ("llama3.1:8b", Size::Llama8B),
            ("qwen2.5:1.5b", Size::Qwen1B5),
            ("qwen2.5:7b", Size::Qwen7B),
            ("qwen3:8b", Size::Qwen3Of8B),
            ("qwen3:30b-a3b", Size::Qwen3Of30B),
        ] {
            let model = catalogue::find(name).unwrap();
            let config = size.config().unwrap();
            let ratio = f64::from(model.millions) * 1e6 / model::measure::parameters(&config) as f64;
            assert!((0.99..1.01).contains(&ratio), "{name}: parameters {ratio}");
            // Sliding-window layers keep the window and a prefill chunk of 512 tokens.
            let window = config.attentions().find_map(|attention| attention.span.window()).unwrap_or(0);
            let reservation = Reservation {
                context_length: 8192,
                sliding_tokens: u64::from(window) + 576,
                ..Reservation::WEIGHTS_ONLY
            };
            let kv = kv_bytes(&kv_layers(&config, &reservation), 8192, 1);
            let ratio = f64::from(model.kv_mib) / (kv as f64 / f64::from(1 << 20));
            assert!((0.95..1.05).contains(&ratio), "{name}: KV cache {ratio}");
        }
    }
}
