//! `indrik eval logits`: the logits of every position, for comparison with other engines.

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
    loading::{ModelArguments, Outputs},
    output,
};

/// Writes the logits of every position of some tokens as a NumPy file
#[derive(Args)]
#[command(after_help = "Example: indrik eval logits -m gemma3:270m --ids 2,818,66673,563 --out logits.npy")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Token ids, taken as they are
    #[arg(long, value_delimiter = ',', required_unless_present = "prompt", value_name = "IDS")]
    ids: Option<Vec<u32>>,
    /// A text in place of ids
    #[arg(short, long, conflicts_with = "ids", value_name = "TEXT")]
    prompt: Option<String>,
    /// The file to write: f32, one row a position
    #[arg(short, long, value_name = "FILE.npy")]
    out: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let opened = arguments.model.open()?;
    let ids = match (&arguments.ids, &arguments.prompt) {
        (Some(ids), _) => ids.clone(),
        (None, prompt) => opened.language()?.tokenizer.encode_prompt(prompt.as_deref().unwrap_or_default()),
    };
    let config = &opened.checkpoint.config;
    if arguments.prompt.as_ref().is_some_and(String::is_empty) {
        return Err(model::Error::EmptyPrompt.into());
    }
    model::check_tokens(config, 0, &ids, config.max_positions)?;
    let context = opened.check_context(ids.len())?;
    let vocab = config.vocab;
    // Under its own name only when it is whole.
    let partial = arguments.out.with_extension("npy.partial");
    let at = || partial.display().to_string();
    let mut file = BufWriter::new(File::create(&partial).with_context(at)?);
    let remove = RemoveOnDrop(&partial);
    let mut loaded = opened.load(context, Outputs::Every)?;
    file.write_all(&header(ids.len(), vocab)).with_context(at)?;
    let mut sequence = loaded.runner.start()?;
    let mut progress = output::Progress::new();
    let (mut rows, mut failed) = (0, None);
    let control = output::control();
    let done = loaded.runner.logits(&mut sequence, &ids, |row| {
        if control.cancel.load(Ordering::Relaxed) {
            return Err(model::Error::Cancelled);
        }
        rows += 1;
        progress.say(&format!("row {rows} of {}", ids.len()));
        for value in row {
            if let Err(error) = file.write_all(&value.to_le_bytes()) {
                failed = Some(error);
                return Err(model::Error::Cancelled);
            }
        }
        Ok(())
    });
    drop(progress);
    if let Some(error) = failed {
        return Err(error).with_context(at);
    }
    done?;
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

/// Takes a file away that did not become whole.
struct RemoveOnDrop<'a>(&'a Path);

impl Drop for RemoveOnDrop<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}

/// The head of a NumPy file, version 1.0: f32, row after row.
fn header(rows: usize, columns: u32) -> Vec<u8> {
    let mut text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    // Magic, version and length take 10 bytes; the format wants data at a multiple of 64, after a newline.
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
    fn a_header_that_numpy_reads() {
        let header = super::header(3, 262_144);
        assert_eq!(header.len() % 64, 0);
        assert_eq!(&header[..8], b"\x93NUMPY\x01\x00");
        assert_eq!(u16::from_le_bytes([header[8], header[9]]) as usize, header.len() - 10);
        let text = std::str::from_utf8(&header[10..]).unwrap();
        assert!(text.starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 262144), }"));
        assert!(text.ends_with(" \n"));
    }
}
