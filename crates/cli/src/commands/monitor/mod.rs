//! `indrik monitor`: a live view of a server, or of this machine.

mod format;
mod history;
mod source;
mod terminal;
mod view;

use std::{io::IsTerminal, process::ExitCode, time::Duration};

use clap::Args;

use crate::output;
use source::Source;

/// Live view of a server: throughput, latency, batch, KV cache, memory, GPU
#[derive(Args)]
#[command(after_help = "Examples: indrik monitor\n          \
                        indrik monitor http://192.168.1.5:8006 --api-key KEY\n          \
                        indrik monitor --once --json\n\n\
                        q, Esc or Ctrl-C quits. If standard output is not a terminal, the state is printed once.")]
pub struct Arguments {
    /// URL of the server; http:// and :8006 may be omitted. Default: the server on port 8006 of this machine, or this
    /// machine alone if there is none
    url: Option<String>,
    /// API key of the server
    #[arg(long, env = "INDRIK_API_KEY", hide_env_values = true, value_name = "KEY")]
    api_key: Option<String>,
    /// Interval between readings, in seconds
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS", value_parser = parse_interval)]
    interval: f64,
    /// Print the state once and exit
    #[arg(long)]
    once: bool,
    /// Print one JSON object per reading, with the fields of /stats
    #[arg(long)]
    json: bool,
}

fn parse_interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    (0.1..=3600.0)
        .contains(&seconds)
        .then_some(seconds)
        .ok_or_else(|| "must be between 0.1 and 3600 seconds".to_owned())
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    // The variable may have several, as for `indrik serve`.
    let key = arguments.api_key.as_deref().and_then(|keys| keys.split(',').next());
    let mut source = Source::open(arguments.url.as_deref(), key)?;
    let interval = Duration::from_secs_f64(arguments.interval);
    if arguments.json {
        loop {
            output::print(&(source.read()?.to_json()? + "\n"))?;
            if arguments.once {
                return Ok(ExitCode::SUCCESS);
            }
            std::thread::sleep(interval);
        }
    }
    if arguments.once || !std::io::stdout().is_terminal() {
        let reading = source.read()?;
        output::print(&view::text(&reading, source.name()))?;
        return Ok(ExitCode::SUCCESS);
    }
    terminal::watch(source, interval)?;
    Ok(ExitCode::SUCCESS)
}
