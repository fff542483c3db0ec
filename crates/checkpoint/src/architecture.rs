//! The supported model families, by name only; [`family`](crate::family) holds the facts about each.

use serde::{Deserialize, Serialize};

/// A family of models with one architecture; see [`Architecture::family`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Architecture {
    /// Gemma 3, text-only or the language model of the multimodal sizes.
    Gemma3,
    /// Gemma 4: dense, with experts, or with per-layer embeddings.
    Gemma4,
    /// Llama 2 and 3.
    Llama,
    /// Mistral.
    Mistral,
    /// Ministral 3, and the language model of Mistral's multimodal classes.
    Ministral3,
    /// Qwen 2 and 2.5.
    Qwen2,
    /// Qwen 3, dense.
    Qwen3,
    /// Qwen 3 with experts.
    Qwen3Moe,
}

impl Architecture {
    /// Every supported family.
    pub const ALL: [Architecture; 8] = [
        Architecture::Gemma3,
        Architecture::Gemma4,
        Architecture::Llama,
        Architecture::Mistral,
        Architecture::Ministral3,
        Architecture::Qwen2,
        Architecture::Qwen3,
        Architecture::Qwen3Moe,
    ];
}
