//! Families of models: what sets one apart from the others, for whoever reads its files and whoever runs it.
//!
//! All are the same decoder (see the crate `indrik-model`). A family is a row of facts, in a file of its own: adding one is described in
//! docs/adding-a-model.md.

mod facts;
mod gemma3;
mod llama;
mod qwen2;
mod qwen3;

pub use facts::{Activation, Family};

use crate::{architecture::Architecture, error::Error};
use std::path::Path;

impl Architecture {
    /// Name in messages and in GGUF metadata.
    pub fn name(self) -> &'static str {
        self.family().name
    }

    pub(crate) fn unsupported(path: &Path, found: &str) -> Error {
        let known = Architecture::ALL.map(Architecture::name).join(", ");
        let found: String = found.chars().take(64).collect();
        Error::Unsupported {
            path: path.to_path_buf(),
            what: format!("the architecture '{}'", found.escape_debug()),
            fix: format!("use a model of one of these: {known}"),
        }
    }

    /// What is known of it.
    pub fn family(self) -> &'static Family {
        match self {
            Architecture::Gemma3 => &gemma3::FAMILY,
            Architecture::Llama => &llama::FAMILY,
            Architecture::Qwen2 => &qwen2::FAMILY,
            Architecture::Qwen3 => &qwen3::FAMILY,
        }
    }
}
