//! `indrik npu`: overlays for AMD's NPU, and its self-test.

mod pull;
mod selftest;

use std::process::ExitCode;

use clap::{Args, Subcommand};

/// Pull overlays for AMD's NPU (XDNA1), and test it
#[derive(Args)]
#[command(after_help = "Example: indrik npu pull && indrik npu selftest\n\n\
    `--npu` of `indrik serve`, `embed` and others runs parts of models on it. docs/npu.md says what that is good for; \
    `indrik doctor` says whether this machine has one, and what keeps programs from using it.")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Pull(pull::Arguments),
    Selftest(selftest::Arguments),
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    match &arguments.command {
        Command::Pull(arguments) => pull::run(arguments),
        Command::Selftest(arguments) => selftest::run(arguments),
    }
}
