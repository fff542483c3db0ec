//! `indrik eval`: quality measurements.

mod logits;
mod perplexity;

use std::process::ExitCode;

use clap::{Args, Subcommand};

/// Measure a model's quality: perplexity on a text, or raw logits
#[derive(Args)]
#[command(after_help = "Example: indrik eval perplexity -m gemma3:270m --text wiki.test.raw")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Logits(logits::Arguments),
    Perplexity(perplexity::Arguments),
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    match &arguments.command {
        Command::Logits(arguments) => logits::run(arguments),
        Command::Perplexity(arguments) => perplexity::run(arguments),
    }
}
