//! The `indrik` command. Each subcommand is a module in `commands`.
//!
//! Exit codes: 0 success, 1 failure, 2 usage error, 130 cancelled with Ctrl-C.

#[macro_use]
mod output;

mod commands;
mod energy;
#[cfg(test)]
mod fixture;
mod heaps;
mod images;
mod loading;
mod logging;
mod npu;
mod pick;
mod render;
mod sampling;
mod speculate;
mod speed;
mod think;

use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

/// Run language models on the GPU you already own, with Vulkan.
#[derive(Parser)]
#[command(
    name = "indrik",
    version,
    after_help = "Example: indrik run smollm2\n\n\
                  Start with `indrik doctor`: it checks this machine and suggests fixes.\n\
                  INDRIK_DEVICE selects the device, INDRIK_LOG=debug prints debug logs."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(commands::run::Arguments),
    Generate(commands::generate::Arguments),
    Chat(commands::chat::Arguments),
    Serve(Box<commands::serve::Arguments>),
    Embed(commands::embed::Arguments),
    Eval(commands::eval::Arguments),
    Pull(Box<commands::pull::Arguments>),
    Search(commands::search::Arguments),
    Import(commands::import::Arguments),
    Models(commands::models::Arguments),
    Rm(commands::rm::Arguments),
    Devices(commands::devices::Arguments),
    Doctor(commands::doctor::Arguments),
    Monitor(commands::monitor::Arguments),
    Npu(commands::npu::Arguments),
    Inspect(commands::inspect::Arguments),
    Quantize(commands::quantize::Arguments),
    Bench(commands::bench::Arguments),
    Kernels(commands::kernels::Arguments),
    Completions(commands::completions::Arguments),
    Man(commands::man::Arguments),
}

/// Lets Mesa's CPU driver use vectors of 512 bits on processors that have them, unless the environment says otherwise: its
/// default is 256 at most. Prefill takes about 60% of the time (docs/performance/cpu.md).
#[cfg(target_arch = "x86_64")]
fn widen_cpu_driver() {
    const WIDTH: &str = "LP_NATIVE_VECTOR_WIDTH";
    if std::arch::is_x86_feature_detected!("avx512bw") && std::env::var_os(WIDTH).is_none() {
        // SAFETY: no other thread runs yet that could read the environment.
        #[allow(unsafe_code)]
        unsafe {
            std::env::set_var(WIDTH, "512");
        }
    }
}

fn main() -> ExitCode {
    #[cfg(target_arch = "x86_64")]
    widen_cpu_driver();
    let matches = Arguments::command().get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    // `serve` starts logging itself, once its settings are known.
    if !matches!(arguments.command, Command::Serve(_)) {
        logging::init("warn", logging::LogFormat::Text);
    }

    match run(arguments.command, &matches) {
        Ok(code) => code,
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            note!("indrik: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(arguments) => commands::run::run(&arguments),
        Command::Generate(arguments) => commands::generate::run(&arguments),
        Command::Chat(arguments) => commands::chat::run(&arguments),
        Command::Serve(arguments) => {
            // Where each setting comes from: flag or environment.
            let given = matches.subcommand_matches("serve").cloned().unwrap_or_default();
            commands::serve::run(&arguments, &given)
        }
        Command::Embed(arguments) => commands::embed::run(&arguments),
        Command::Eval(arguments) => commands::eval::run(&arguments),
        Command::Pull(arguments) => commands::pull::run(&arguments),
        Command::Search(arguments) => commands::search::run(&arguments),
        Command::Import(arguments) => commands::import::run(&arguments),
        Command::Models(arguments) => commands::models::run(&arguments),
        Command::Rm(arguments) => commands::rm::run(&arguments),
        Command::Devices(arguments) => commands::devices::run(&arguments),
        Command::Doctor(arguments) => commands::doctor::run(&arguments),
        Command::Monitor(arguments) => commands::monitor::run(&arguments),
        Command::Npu(arguments) => commands::npu::run(&arguments),
        Command::Inspect(arguments) => commands::inspect::run(&arguments),
        Command::Quantize(arguments) => commands::quantize::run(&arguments),
        Command::Bench(arguments) => commands::bench::run(&arguments),
        Command::Kernels(arguments) => commands::kernels::run(&arguments),
        Command::Completions(arguments) => commands::completions::run(&arguments, Arguments::command()),
        Command::Man(arguments) => commands::man::run(&arguments, Arguments::command()),
    }
}
