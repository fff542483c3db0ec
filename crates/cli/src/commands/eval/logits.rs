//! `indrik eval logits`: the logits after every token of a prompt, for comparison with other engines.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::Ordering,
};

use anyhow::Context;
use clap::Args;
use serde_json::json;

use crate::{
    loading::{self, ModelArguments},
    output,
};

/// Write the logits after every token of a prompt to a NumPy file
#[derive(Args)]
#[command(after_help = "Example: indrik eval logits -m gemma3:270m --ids 2,818,66673,563 --out logits.npy")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Prompt as token ids, used as they are
    #[arg(long, value_delimiter = ',', required_unless_present = "prompt", value_name = "IDS")]
    ids: Option<Vec<u32>>,
    /// Prompt as text
    #[arg(short, long, conflicts_with = "ids", value_name = "TEXT")]
    prompt: Option<String>,
    /// Output file: f32, one row per token
    #[arg(short, long, value_name = "FILE.npy")]
    out: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let files = arguments.model.open()?;
    let ids = match (&arguments.ids, &arguments.prompt) {
        (Some(ids), _) => ids.clone(),
        (None, prompt) => files.language()?.tokenizer.encode_prompt(prompt.as_deref().unwrap_or_default()),
    };
    let config = files.config();
    if arguments.prompt.as_ref().is_some_and(String::is_empty) {
        return Err(model::Error::EmptyPrompt.into());
    }
    model::check_tokens(config, 0, &ids, config.max_positions)?;
    let context_length = files.check_context_length(ids.len())?;
    let vocab = config.vocab;
    // Renamed to its final name when complete.
    let partial = arguments.out.with_extension("npy.partial");
    let at = || partial.display().to_string();
    let mut file = BufWriter::new(File::create(&partial).with_context(at)?);
    let remove = RemoveOnDrop(&partial);
    anyhow::ensure!(arguments.model.load.draft.is_none(), "--draft: nothing is generated here");
    let options = arguments.model.options();
    let options = indrik::Options { context_length: Some(context_length), all_logits: true, ..options };
    let model = loading::load(&files, options)?;
    file.write_all(&header(ids.len(), vocab)).with_context(at)?;
    let mut progress = output::Progress::new();
    let (mut rows, mut write_error) = (0, None);
    let control = output::control();
    let result = model.with_runner(|runner| {
        let mut sequence = runner.start()?;
        runner.logits(&mut sequence, &ids, |row| {
            if control.cancel.load(Ordering::Relaxed) {
                return Err(model::Error::Cancelled);
            }
            rows += 1;
            progress.show(&format!("row {rows} of {}", ids.len()));
            for value in row {
                if let Err(error) = file.write_all(&value.to_le_bytes()) {
                    write_error = Some(error);
                    return Err(model::Error::Cancelled);
                }
            }
            Ok(())
        })
    });
    drop(progress);
    if let Some(error) = write_error {
        return Err(error).with_context(at);
    }
    result?;
    file.into_inner().map_err(|error| error.into_error()).with_context(at)?;
    std::fs::rename(&partial, &arguments.out).with_context(|| arguments.out.display().to_string())?;
    drop(remove);
    if arguments.json {
        output::print_json(
            &json!({ "file": arguments.out, "rows": ids.len(), "columns": vocab, "ids": ids }),
        )?;
    } else {
        output::print(&format!("{}: {} rows of {vocab} logits\n", arguments.out.display(), ids.len()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes an incomplete file.
struct RemoveOnDrop<'a>(&'a Path);

impl Drop for RemoveOnDrop<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}

/// Header of a NumPy file, version 1.0: f32 in row-major order.
fn header(rows: usize, columns: u32) -> Vec<u8> {
    let mut text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    // Magic, version and length take 10 bytes. The format requires data at a multiple of 64, after a newline.
    let padded = (10 + text.len() + 1).next_multiple_of(64) - 10;
    text += &" ".repeat(padded - text.len() - 1);
    text.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    #[test]
    fn header_matches_the_numpy_format() {
        let header = super::header(3, 262_144);
        assert_eq!(header.len() % 64, 0);
        assert_eq!(&header[..8], b"\x93NUMPY\x01\x00");
        assert_eq!(u16::from_le_bytes([header[8], header[9]]) as usize, header.len() - 10);
        let text = std::str::from_utf8(&header[10..]).unwrap();
        assert!(text.starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 262144), }"));
        assert!(text.ends_with(" \n"));
    }
}
