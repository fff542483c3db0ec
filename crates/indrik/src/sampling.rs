//! Sampling defaults.

use checkpoint::Architecture;
use model::Sampling;

/// The sampling parameters that the authors of a model family recommend for conversations. The seed is 0.
pub fn recommended_sampling(architecture: Architecture) -> Sampling {
    let (temperature, top_k, top_p) = match architecture {
        Architecture::Gemma3 | Architecture::Gemma4 => (1.0, 64, 0.95),
        // Meta recommends no top-k; 50 is the default of transformers.
        Architecture::Llama => (0.6, 50, 0.9),
        // Mistral recommends low temperatures and nothing else.
        Architecture::Mistral | Architecture::Ministral3 => (0.15, 50, 1.0),
        Architecture::Qwen2 => (0.7, 20, 0.8),
        Architecture::Qwen3 | Architecture::Qwen3Moe => (0.6, 20, 0.95),
    };
    Sampling { temperature, top_k, top_p, ..Sampling::default() }
}

/// A seed that differs from call to call. Below 2⁵³, so that JSON parsers that store numbers as doubles keep
/// it exact.
pub fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id()) >> 11
}
