//! Model families: the facts that distinguish one from another, for reading its files and for running it.
//!
//! All families run on the same decoder (crate `indrik-model`). A family is a table of facts in its own file;
//! docs/adding-a-model.md describes how to add one.

mod facts;
mod gemma3;
mod gemma4;
mod llama;
mod ministral3;
mod mistral;
mod qwen2;
mod qwen3;
mod qwen3_moe;

pub use facts::{Activation, Family, WholeImages};

use std::path::Path;

use crate::{architecture::Architecture, error::Error};

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

    /// The facts of the family.
    pub fn family(self) -> &'static Family {
        match self {
            Architecture::Gemma3 => &gemma3::FAMILY,
            Architecture::Gemma4 => &gemma4::FAMILY,
            Architecture::Llama => &llama::FAMILY,
            Architecture::Mistral => &mistral::FAMILY,
            Architecture::Ministral3 => &ministral3::FAMILY,
            Architecture::Qwen2 => &qwen2::FAMILY,
            Architecture::Qwen3 => &qwen3::FAMILY,
            Architecture::Qwen3Moe => &qwen3_moe::FAMILY,
        }
    }
}
