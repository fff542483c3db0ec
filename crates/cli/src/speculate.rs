//! `--speculate`.

use std::{fmt, str::FromStr};

use clap::ValueEnum;
use serde::Deserialize;

/// Speculative decoding: tokens are drafted, and verified several at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Speculate {
    /// Where it is expected to be faster and the output stays the same bit by bit; with --draft, models with experts and GPUs
    /// without packed dot products may differ by rounding
    #[default]
    Auto,
    /// Never
    Off,
    /// Where it is expected to be faster; on a GPU the output may differ by rounding
    Fastest,
}

impl From<Speculate> for indrik::Speculate {
    fn from(speculate: Speculate) -> Self {
        match speculate {
            Speculate::Auto => indrik::Speculate::Auto,
            Speculate::Off => indrik::Speculate::Off,
            Speculate::Fastest => indrik::Speculate::Fastest,
        }
    }
}

impl fmt::Display for Speculate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Speculate::Auto => "auto",
            Speculate::Off => "off",
            Speculate::Fastest => "fastest",
        })
    }
}

impl FromStr for Speculate {
    type Err = String;

    fn from_str(text: &str) -> Result<Speculate, String> {
        <Speculate as ValueEnum>::from_str(text, false)
    }
}
