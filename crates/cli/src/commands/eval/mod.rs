//! `indrik eval`: quality measurements.

mod logits;
mod perplexity;

use std::process::ExitCode;

use clap::{Args, Subcommand};

/// Measures a model's quality: perplexity on a text, or raw logits
#[derive(Args)]
#[command(after_help = "Example: indrik eval perplexity -m gemma3:270m --text wiki.test.raw")]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Logits(logits::Arguments),
    Perplexity(perplexity::Arguments),
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    match &arguments.what {
        What::Logits(arguments) => logits::run(arguments),
        What::Perplexity(arguments) => perplexity::run(arguments),
    }
}
