//! `indrik eval perplexity`: perplexity on a text, computed as llama.cpp computes it.
//!
//! The text is tokenized once, with a beginning-of-sequence token, and cut into chunks of the context length.
//! The first token of each chunk is replaced by the beginning-of-sequence token. Only the second half of each
//! chunk counts, so that every prediction has at least half a context before it.

use std::{path::PathBuf, process::ExitCode, sync::atomic::Ordering, time::Instant};

use anyhow::{Context, bail};
use clap::Args;
use serde_json::json;
use text::EncodeSpecial;

use crate::{
    loading::{self, ModelArguments},
    output,
};

/// Measure a model's perplexity on a text
#[derive(Args)]
#[command(
    after_help = "Example: indrik eval perplexity -m gemma3:270m --text wiki.test.raw -c 512 --chunks 60"
)]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Text file in UTF-8; one trailing newline is ignored
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Chunk length in tokens
    #[arg(short, long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..))]
    context: u32,
    /// Maximum number of chunks to evaluate (default: all)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    chunks: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let files = arguments.model.open()?;
    let language = files.language()?;
    let context_length = files.check_context_length(arguments.context as usize)?;
    let bytes = std::fs::read(&arguments.text).with_context(|| arguments.text.display().to_string())?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        anyhow::anyhow!("{} is not UTF-8 (byte {at}): convert it first", arguments.text.display())
    })?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let bos = language.tokenizer.bos();
    let mut ids: Vec<u32> = bos.into_iter().collect();
    ids.extend(language.tokenizer.encode(text, EncodeSpecial::AsText));
    let length = context_length as usize;
    let chunks: Vec<Vec<u32>> = ids
        .chunks_exact(length)
        .take(arguments.chunks.map_or(usize::MAX, |chunks| chunks as usize))
        .map(|chunk| bos.into_iter().chain(chunk[bos.iter().len()..].iter().copied()).collect())
        .collect();
    if let Some(wanted) = arguments.chunks.filter(|wanted| chunks.len() < *wanted as usize) {
        note!("The text has only {} chunks of {length} tokens, not {wanted}.", chunks.len());
    }
    if chunks.is_empty() {
        bail!(
            "{} has {} tokens, fewer than one chunk of {length}: use a longer text or a smaller -c",
            arguments.text.display(),
            ids.len()
        );
    }
    anyhow::ensure!(arguments.model.load.draft.is_none(), "--draft: nothing is generated here");
    let options = arguments.model.options();
    let options = indrik::Options { context_length: Some(context_length), all_logits: true, ..options };
    let model = loading::load(&files, options)?;
    let control = output::control();
    let start = Instant::now();
    let mut tally = Tally::default();
    let mut progress = output::Progress::new();
    let mut running = Vec::new();
    for (index, chunk) in chunks.iter().enumerate() {
        let targets: Vec<Option<u32>> = (0..length)
            .map(|position| if position >= length / 2 { chunk.get(position + 1).copied() } else { None })
            .collect();
        let scores = model.with_runner(|runner| {
            let mut sequence = runner.start()?;
            runner.score(&mut sequence, chunk, &targets)
        })?;
        for (score, _) in scores.iter().zip(&targets).filter(|(_, target)| target.is_some()) {
            tally.add(f64::from(*score));
        }
        running.push(tally.perplexity());
        let speed = ((index + 1) * length) as f64 / start.elapsed().as_secs_f64();
        let (done, all, so_far) = (index + 1, chunks.len(), tally.perplexity());
        progress.show(&format!("chunk {done} of {all}: perplexity {so_far:.4}, {speed:.1} tok/s"));
        if control.cancel.load(Ordering::Relaxed) {
            break;
        }
    }
    drop(progress);
    let seconds = start.elapsed().as_secs_f64();
    let evaluated = running.len() * length;
    let device = &model.load_report().device;
    if arguments.json {
        output::print_json(&json!({
            "model": files.path(), "device": device.name, "driver": device.driver, "text": arguments.text,
            "context": length, "chunks": running.len(), "tokens_counted": tally.count,
            "tokens_evaluated": evaluated, "perplexity": tally.perplexity(), "stderr": tally.error(),
            "cancelled": running.len() < chunks.len(), "running": running, "seconds": seconds,
            "tokens_per_s": evaluated as f64 / seconds,
        }))?;
    } else {
        output::print(&format!(
            "perplexity {:.4} ± {:.4}: {} tokens scored in {} chunks of {length}{}\n{}, {:.1} tok/s\n",
            tally.perplexity(),
            tally.error(),
            tally.count,
            running.len(),
            if running.len() < chunks.len() {
                format!(" (cancelled; {} were requested)", chunks.len())
            } else {
                String::new()
            },
            device.name,
            evaluated as f64 / seconds
        ))?;
    }
    Ok(if running.len() < chunks.len() { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

/// Running sums of negative log probabilities (nll).
#[derive(Default)]
struct Tally {
    count: u64,
    sum: f64,
    squares: f64,
}

impl Tally {
    fn add(&mut self, nll: f64) {
        self.count += 1;
        self.sum += nll;
        self.squares += nll * nll;
    }

    fn perplexity(&self) -> f64 {
        (self.sum / self.count as f64).exp()
    }

    /// Standard error of the perplexity.
    fn error(&self) -> f64 {
        let mean = self.sum / self.count as f64;
        let variance = self.squares / self.count as f64 - mean * mean;
        (variance.max(0.0) / (self.count as f64 - 1.0).max(1.0)).sqrt() * self.perplexity()
    }
}

#[cfg(test)]
mod tests {
    use super::Tally;

    #[test]
    fn perplexity_is_the_exponential_of_the_mean_nll() {
        let mut tally = Tally::default();
        for nll in [1.0, 3.0] {
            tally.add(nll);
        }
        assert!((tally.perplexity() - 2_f64.exp()).abs() < 1e-12);
        assert!(
            (tally.error() - 2_f64.exp()).abs() < 1e-12,
            "a standard deviation of 1, over one degree of freedom"
        );
    }
}
