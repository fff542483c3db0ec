//! The log on standard error: level from `INDRIK_LOG`, format as text or JSON lines.

use std::{
    fmt,
    io::stderr,
    str::FromStr,
    sync::atomic::{AtomicBool, Ordering},
};

use clap::ValueEnum;
use serde::Deserialize;
use tracing_subscriber::EnvFilter;

/// `--log-format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One line of text per event
    #[default]
    Text,
    /// One JSON object per event
    Json,
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        })
    }
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<LogFormat, String> {
        <LogFormat as ValueEnum>::from_str(text, false)
    }
}

/// Whether the log is JSON.
static JSON: AtomicBool = AtomicBool::new(false);

/// Writes a status line: an event if the log is JSON, so that every line can be parsed, else plain text.
pub fn announce(text: fmt::Arguments<'_>) {
    match JSON.load(Ordering::Relaxed) {
        true => tracing::info!("{text}"),
        false => note!("{text}"),
    }
}

/// Starts logging. `level` is the filter if `INDRIK_LOG` is not set.
pub fn init(level: &str, format: LogFormat) {
    let filter = EnvFilter::try_from_env("INDRIK_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    JSON.store(format == LogFormat::Json, Ordering::Relaxed);
    match format {
        LogFormat::Text => subscriber.without_time().init(),
        // With timestamps, by which log collectors order events. Event fields are flattened into the object;
        // the request's fields are under `span`.
        LogFormat::Json => subscriber.json().flatten_event(true).with_span_list(false).init(),
    }
}
