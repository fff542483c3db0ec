//! `indrik models`: lists the local store.

use std::{collections::BTreeMap, fs, path::Path, process::ExitCode};

use checkpoint::{
    Checkpoint, EmbeddingCheckpoint, Tensor,
    gguf::{self, Gguf, Metadata},
};
use clap::Args;
use gpu::format_bytes;
use serde::Serialize;
use store::{EntryKind, Store, StoreEntry, catalogue, printable};

use crate::output;

/// List the models in the local store
#[derive(Args)]
#[command(after_help = "Example: indrik models\n\n\
    The store is INDRIK_MODELS_DIR, or ~/.local/share/indrik/models. `indrik pull` downloads models to it. You can \
    also put models there: a .gguf file (or all parts of a split one), a file written by `indrik quantize`, or a Hugging \
    Face folder. Such a model is named after its file, without the extension.")]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// An entry of the store with metadata from the model's headers.
#[derive(Serialize)]
struct Row {
    name: String,
    path: String,
    bytes: u64,
    date: String,
    #[serde(flatten)]
    facts: Facts,
    licence: Option<String>,
    licence_url: Option<String>,
    source: Option<String>,
    sha256: Option<String>,
    /// Why the model cannot be used.
    problem: Option<String>,
}

/// Metadata from a model's headers.
#[derive(Default, Serialize)]
pub struct Facts {
    pub family: Option<String>,
    pub parameters: Option<u64>,
    pub quantisation: Option<String>,
    pub context: Option<u64>,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let store = Store::open_default()?;
    let rows: Vec<Row> = store.entries()?.into_iter().map(|entry| row(&store, entry)).collect();
    let total: u64 = rows.iter().map(|row| row.bytes).sum();
    if arguments.json {
        let folder = store.folder().display().to_string();
        let value = serde_json::json!({ "folder": folder, "bytes": total, "models": rows });
        output::print_json(&value)?;
        return Ok(ExitCode::SUCCESS);
    }
    let folder = printable(store.folder().display());
    if rows.is_empty() {
        output::print(&format!(
            "No models in {folder} yet.\n\n`indrik pull NAME` downloads one, for instance smollm2:135m; `indrik search` \
             lists {} of them.\n",
            catalogue::MODELS.len()
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    let header = ["name", "family", "parameters", "quantisation", "size", "context", "licence", "date"];
    let mut text = output::table(&header, &rows.iter().map(cells).collect::<Vec<_>>());
    let problems: Vec<(&str, &str)> =
        rows.iter().filter_map(|row| Some((row.name.as_str(), row.problem.as_deref()?))).collect();
    if !problems.is_empty() {
        text += "\n";
    }
    for (name, problem) in problems {
        text += &format!("{}: {}\n", printable(name), printable(problem));
    }
    text += &format!("\n{} in {folder}\n", format_bytes(total));
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn cells(row: &Row) -> Vec<String> {
    let known = |text: &Option<String>| text.as_ref().map_or_else(|| "–".to_string(), printable);
    let size = format_bytes(row.bytes) + if Path::new(&row.path).is_symlink() { " (link)" } else { "" };
    vec![
        printable(&row.name),
        known(&row.facts.family),
        known(&row.facts.parameters.map(parameters)),
        known(&row.facts.quantisation),
        size,
        known(&row.facts.context.map(|context| context.to_string())),
        known(&row.licence),
        printable(row.date.split('T').next().unwrap_or_default()),
    ]
}

fn row(store: &Store, entry: StoreEntry) -> Row {
    let (facts, licence, problem) = match &entry.kind {
        EntryKind::Model => {
            let (facts, licence, problem) = describe(&entry.path);
            (facts, licence, problem.or_else(|| size_changed(&entry)))
        }
        EntryKind::Incomplete => {
            let advice = format!(
                "incomplete: `indrik pull {}` resumes the download, `indrik rm {}` removes it",
                store.resume_arguments(&entry.name),
                entry.name
            );
            (Facts::default(), None, Some(advice))
        }
        EntryKind::Unrecognized(reason) => (Facts::default(), None, Some(reason.to_string())),
    };
    let record = entry.record.as_ref();
    Row {
        licence: record.map(|record| record.licence.clone()).filter(|name| !name.is_empty()).or(licence),
        licence_url: record.map(|record| record.licence_url.clone()).filter(|url| !url.is_empty()),
        source: record.map(|record| record.source.clone()),
        sha256: record.map(|record| record.sha256.clone()),
        path: entry.path.display().to_string(),
        name: entry.name,
        bytes: entry.bytes,
        date: entry.date,
        facts,
        problem,
    }
}

/// A message if the file's size differs from the pulled one's.
fn size_changed(entry: &StoreEntry) -> Option<String> {
    // The user may have moved the file to another disk and left a symbolic link.
    let linked = entry.path.is_symlink();
    let now = if linked { fs::metadata(&entry.path).ok()?.len() } else { entry.bytes };
    let record = entry.record.as_ref().filter(|record| record.bytes != now)?;
    Some(format!(
        "it had {} bytes when it was pulled but has {now} now: `indrik pull {}` downloads it again",
        record.bytes,
        record.request.as_deref().unwrap_or(&entry.name)
    ))
}

/// Reads a model's headers: metadata, licence, and why it cannot be used. Weights are not read.
fn describe(path: &Path) -> (Facts, Option<String>, Option<String>) {
    let (mut facts, problem) = match Checkpoint::open(path) {
        Err(checkpoint::Error::IsEmbeddingModel { .. }) => match EmbeddingCheckpoint::open(path) {
            Ok(checkpoint) => {
                let facts = Facts {
                    family: Some(checkpoint.config.architecture().to_string()),
                    context: Some(checkpoint.config.max_tokens.into()),
                    ..tensor_facts(&checkpoint.source.tensors)
                };
                (facts, None)
            }
            Err(error) => (Facts::default(), Some(reason(path, &error))),
        },
        Ok(checkpoint) => {
            let facts = Facts {
                family: Some(checkpoint.config.architecture.name().to_string()),
                context: Some(checkpoint.config.max_positions.into()),
                ..tensor_facts(&checkpoint.source.tensors)
            };
            (facts, None)
        }
        Err(error) => (Facts::default(), Some(reason(path, &error))),
    };
    if !is_gguf(path) {
        return (facts, None, problem);
    }
    // A GGUF file has more metadata, even for unsupported families.
    let Ok(Gguf { source, metadata, .. }) = gguf::open(path) else { return (facts, None, problem) };
    let string = |key: &str| metadata.str(key).ok().map(truncated);
    let family = facts.family.or_else(|| string("general.architecture"));
    let length = |family: &String| metadata.u64(&format!("{family}.context_length")).ok();
    let context = facts.context.or_else(|| family.as_ref().and_then(length));
    facts = Facts { family, context, ..tensor_facts(&source.tensors) };
    if let Some(name) = file_type(&metadata) {
        facts.quantisation = Some(name.to_string());
    }
    (facts, string("general.license"), problem)
}

/// Metadata of a model. What cannot be read is left out.
pub fn facts(path: &Path) -> Facts {
    describe(path).0
}

/// Whether a path is that of a GGUF file.
pub fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "gguf")
}

/// An error without the file, which the row already names.
fn reason(path: &Path, error: &checkpoint::Error) -> String {
    let text = error.to_string();
    text.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&text).to_string()
}

/// Number of parameters and the most common encoding.
fn tensor_facts(tensors: &[Tensor]) -> Facts {
    let mut values: BTreeMap<String, u64> = BTreeMap::new();
    for tensor in tensors {
        let sum = values.entry(tensor.encoding.to_string()).or_default();
        *sum = sum.saturating_add(tensor.values().unwrap_or(0));
    }
    let total = values.values().fold(0_u64, |sum, values| sum.saturating_add(*values));
    let most_common = values.into_iter().max_by_key(|(_, values)| *values);
    Facts {
        parameters: Some(total),
        quantisation: most_common.map(|(encoding, _)| encoding.to_uppercase()),
        ..Facts::default()
    }
}

/// The name of `general.file_type`, a mix of encodings, which is more specific than the most common encoding.
fn file_type(metadata: &Metadata) -> Option<&'static str> {
    // llama.cpp's `llama_ftype` numbers of supported files.
    Some(match metadata.u32("general.file_type").ok()? {
        0 => "F32",
        1 => "F16",
        2 => "Q4_0",
        3 => "Q4_1",
        7 => "Q8_0",
        8 => "Q5_0",
        9 => "Q5_1",
        14 => "Q4_K_S",
        15 => "Q4_K_M",
        16 => "Q5_K_S",
        17 => "Q5_K_M",
        18 => "Q6_K",
        32 => "BF16",
        _ => return None,
    })
}

/// Truncates untrusted text for a table.
fn truncated(text: &str) -> String {
    text.chars().take(40).collect()
}

/// A parameter count for display.
pub fn parameters(count: u64) -> String {
    match count {
        0..1_000_000 => count.to_string(),
        1_000_000..1_000_000_000 => format!("{:.0} million", count as f64 / 1e6),
        _ => format!("{:.2} billion", count as f64 / 1e9),
    }
}
