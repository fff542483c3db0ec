//! `indrik import`: adds a local model to the store.

use std::{path::PathBuf, process::ExitCode};

use checkpoint::{Checkpoint, EmbeddingCheckpoint, ModelKind};
use clap::Args;
use gpu::format_bytes;
use serde_json::json;
use store::{Store, printable};

use super::pull::Reporter;
use crate::output;

/// Add a local model to the store
#[derive(Args)]
#[command(after_help = "Example: indrik import ~/Downloads/model-Q8_0.gguf --name my-model\n\n\
    FILE is a .gguf file (all parts of a split one are found beside it), a file written by `indrik quantize`, or a \
    Hugging Face folder. On the store's file system it is linked, which takes no space; elsewhere it is copied. The \
    original stays where it is.")]
pub struct Arguments {
    /// The file or folder
    #[arg(value_name = "FILE")]
    path: PathBuf,
    /// Name in the store; by default the file's name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let store = Store::open_default()?;
    // Only what can be opened later is added.
    let (family, next) = match ModelKind::of(&arguments.path)? {
        ModelKind::Generative => {
            (Checkpoint::open(&arguments.path)?.config.architecture.name(), "indrik chat -m")
        }
        ModelKind::Embedding => {
            (EmbeddingCheckpoint::open(&arguments.path)?.config.architecture(), "indrik embed -m")
        }
    };
    let control = output::control();
    let mut reporter = Reporter::new(arguments.name.as_deref().unwrap_or("the model"));
    let imported = store.import(&arguments.path, arguments.name.as_deref(), &control.cancel, &mut |event| {
        reporter.report(event);
    });
    drop(reporter);
    let imported = imported?;
    if arguments.json {
        output::print_json(&json!({
            "name": imported.name, "path": imported.path, "bytes": imported.bytes, "placed": imported.placed,
            "family": family,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::print(&format!(
        "{}: {}, imported ({})\n{}\n\nNext: {next} {}\n",
        printable(&imported.name),
        format_bytes(imported.bytes),
        imported.placed,
        printable(imported.path.display()),
        printable(&imported.name)
    ))?;
    Ok(ExitCode::SUCCESS)
}
