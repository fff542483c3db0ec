//! `indrik embed`: texts to vectors.

use std::{
    io::{IsTerminal, Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::Ordering,
    time::Instant,
};

use anyhow::{Context, bail};
use clap::Args;
use indrik::{EmbedOptions, Embedding, EmbeddingFiles, EmbeddingOptions};
use serde_json::json;

use crate::{loading::Terminal, npu::NpuUse, output};

/// Turn texts into vectors with an embedding model
#[derive(Args)]
#[command(after_help = "Examples:\n  indrik embed -m all-minilm \"a cat on a mat\" \"a dog\" --json\n  \
                        indrik embed -m qwen3-embedding:0.6b --prompt query \"When do herons nest?\"\n  \
                        indrik embed -m all-minilm --npu force \"a cat on a mat\"\n  \
                        indrik embed -m embeddinggemma --file lines.txt --dimensions 256 --output vectors.f32\n  \
                        cat lines.txt | indrik embed -m all-minilm -")]
pub struct Arguments {
    /// Embedding model: Hugging Face folder, GGUF file, or name in the local store
    #[arg(short, long, value_name = "MODEL")]
    model: String,
    /// Texts; - for standard input, one text per line (default: standard input)
    #[arg(value_name = "TEXT", conflicts_with = "file")]
    texts: Vec<String>,
    /// File with one text per line
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Number of values per vector: the first ones, normalised to unit length (default: all)
    #[arg(long, value_name = "N")]
    dimensions: Option<u32>,
    /// Prompt of the model that texts start with, such as query or document (default: the model's)
    #[arg(long, value_name = "NAME")]
    prompt: Option<String>,
    /// Cut off the end of texts that are too long
    #[arg(long)]
    truncate: bool,
    /// Maximum tokens per text (default: the model's, at most 8192)
    #[arg(short, long = "context", value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,
    /// Print one JSON object: vectors with their tokens, and the total usage
    #[arg(long)]
    json: bool,
    /// Write the vectors to a file instead: f32, little-endian, one after the other
    #[arg(short, long, value_name = "FILE", conflicts_with = "json")]
    output: Option<PathBuf>,
    /// Matrix products on AMD's NPU (XDNA1); not yet run on hardware by us
    #[arg(long, value_name = "WHEN", env = "INDRIK_NPU", default_value_t)]
    npu: NpuUse,
    /// Device, by index or part of its name
    #[arg(short, long, env = "INDRIK_DEVICE")]
    device: Option<String>,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let files = EmbeddingFiles::open(&arguments.model)?;
    let texts = texts(arguments)?;
    if texts.is_empty() {
        bail!("no text: give at least one, or one per line with --file or on standard input");
    }
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let control = output::control();
    let options = EmbeddingOptions {
        device: arguments.device.clone(),
        max_tokens: arguments.context,
        npu: arguments.npu.settings(),
        ..EmbeddingOptions::default()
    };
    let terminal = Terminal::default();
    let model = files.load_with(options, &control, &|stage| terminal.show(stage))?;
    drop(terminal);

    let options = EmbedOptions {
        dimensions: arguments.dimensions,
        truncate: arguments.truncate,
        prompt: arguments.prompt.clone(),
    };
    let start = Instant::now();
    let mut progress = output::Progress::new();
    let result = model.embed_with(&texts, &options, &mut |done| {
        if done > 0 && done < texts.len() {
            progress.show(&format!("embedded {done} of {} texts", texts.len()));
        }
        !control.cancel.load(Ordering::Relaxed)
    });
    drop(progress);
    let embeddings = match result {
        Err(indrik::Error::Model(model::Error::Cancelled)) => return Ok(ExitCode::from(130)),
        Err(error @ indrik::Error::TextTooLong { .. }) => {
            return Err(error).context("use --truncate to cut long texts off");
        }
        result => result?,
    };
    let seconds = start.elapsed().as_secs_f64();
    let tokens: usize = embeddings.iter().map(|embedding| embedding.tokens).sum();
    let truncated = embeddings.iter().filter(|embedding| embedding.truncated).count();

    if arguments.json {
        let data: Vec<_> = (0..)
            .zip(&embeddings)
            .map(|(index, Embedding { vector, tokens, truncated }): (usize, _)| {
                json!({ "index": index, "embedding": vector, "tokens": tokens, "truncated": truncated })
            })
            .collect();
        // Not indented: vectors have hundreds of values.
        let report = json!({
            "model": files.path(), "device": model.device().name,
            "dimensions": embeddings[0].vector.len(), "data": data,
            "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
            "load_seconds": model.load_seconds(), "seconds": seconds,
        });
        output::print(&(serde_json::to_string(&report)? + "\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    match &arguments.output {
        Some(path) => write(path, &embeddings)?,
        None => {
            for embedding in &embeddings {
                output::print(&(serde_json::to_string(&embedding.vector)? + "\n"))?;
            }
        }
    }
    let cut = if truncated > 0 { format!(", {truncated} truncated") } else { String::new() };
    let texts = if embeddings.len() == 1 { "text" } else { "texts" };
    note!(
        "{}: {} {texts}, {} tokens, {} dimensions in {seconds:.2} s{cut}",
        model.device().name,
        output::grouped(embeddings.len()),
        output::grouped(tokens),
        embeddings[0].vector.len()
    );
    Ok(ExitCode::SUCCESS)
}

/// The texts of the arguments, of the file, or of standard input.
fn texts(arguments: &Arguments) -> anyhow::Result<Vec<String>> {
    if let Some(path) = &arguments.file {
        let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
        return lines(bytes, &path.display().to_string());
    }
    match &arguments.texts[..] {
        [] if std::io::stdin().is_terminal() => Ok(vec![]),
        [] => standard_input(),
        [only] if only == "-" => standard_input(),
        texts => Ok(texts.to_vec()),
    }
}

fn standard_input() -> anyhow::Result<Vec<String>> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).context("standard input")?;
    lines(bytes, "standard input")
}

fn lines(bytes: Vec<u8>, name: &str) -> anyhow::Result<Vec<String>> {
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        anyhow::anyhow!("{name} is not UTF-8 (byte {at}): convert it first, for example with iconv")
    })?;
    Ok(text.lines().map(str::to_owned).collect())
}

fn write(path: &Path, embeddings: &[Embedding]) -> anyhow::Result<()> {
    let bytes: Vec<u8> = embeddings
        .iter()
        .flat_map(|embedding| &embedding.vector)
        .flat_map(|value| value.to_le_bytes())
        .collect();
    let mut file = std::fs::File::create(path).with_context(|| path.display().to_string())?;
    file.write_all(&bytes).with_context(|| path.display().to_string())
}
