//! `--think`.

use std::{fmt, str::FromStr};

use clap::ValueEnum;
use serde::Deserialize;

/// Whether the model thinks before it answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Think {
    /// Think, if the chat template has a switch for it
    On,
    /// Answer at once, if the chat template has a switch for it
    Off,
    /// The default of the chat template
    #[default]
    Auto,
}

impl Think {
    /// `None` leaves it to the template.
    pub fn setting(self) -> Option<bool> {
        match self {
            Think::On => Some(true),
            Think::Off => Some(false),
            Think::Auto => None,
        }
    }
}

impl fmt::Display for Think {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Think::On => "on",
            Think::Off => "off",
            Think::Auto => "auto",
        })
    }
}

impl FromStr for Think {
    type Err = String;

    fn from_str(text: &str) -> Result<Think, String> {
        <Think as ValueEnum>::from_str(text, false)
    }
}
