//! The flags that say how tokens are chosen.

use checkpoint::Architecture;
use clap::Args;
use model::Sampling;

/// How tokens are chosen; the same for every command that generates.
#[derive(Args)]
pub struct SamplingArguments {
    /// 0 always takes the most probable token, 1 draws by the model's own probabilities
    #[arg(short, long, allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Draw from this many of the most probable tokens; 0 is all
    #[arg(long)]
    top_k: Option<u32>,
    /// Draw from the most probable tokens whose probabilities make this sum; 1 is all
    #[arg(long, allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Draw from tokens at least this probable, relative to the most probable one; 0 is all
    #[arg(long, allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Divide the logits of tokens that occurred by this; 1 is off
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    repetition_penalty: Option<f32>,
    /// Take this off the logits of tokens that were generated before
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// Take this off the logits of generated tokens once for each time
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// Add to the logit of a token, as in 106=-5 (-inf bans it); may be given several times
    #[arg(long, value_name = "ID=BIAS", value_parser = parse_bias, allow_hyphen_values = true)]
    logit_bias: Vec<(u32, f32)>,
    /// Where random numbers start: the same seed gives the same answer (default: another one each time)
    #[arg(long)]
    seed: Option<u64>,
}

/// What the authors of a family recommend for conversations, where nobody says otherwise.
pub fn recommended(architecture: Architecture) -> Sampling {
    let (temperature, top_k, top_p) = match architecture {
        Architecture::Gemma3 => (1.0, 64, 0.95),
        // Of the 50 that transformers takes where nobody says how many.
        Architecture::Llama => (0.6, 50, 0.9),
        Architecture::Qwen2 => (0.7, 20, 0.8),
        Architecture::Qwen3 => (0.6, 20, 0.95),
    };
    Sampling { temperature, top_k, top_p, ..Sampling::default() }
}

impl SamplingArguments {
    /// What was asked for, on top of `defaults`.
    pub fn sampling(&self, defaults: &Sampling) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition: self.repetition_penalty.unwrap_or(defaults.repetition),
            presence: self.presence_penalty.unwrap_or(defaults.presence),
            frequency: self.frequency_penalty.unwrap_or(defaults.frequency),
            seed: self.seed.unwrap_or_else(random_seed),
            biases: self.logit_bias.clone(),
            top: 0,
        }
    }
}

/// Another one each time. Kept below 2⁵³, so that it survives JSON readers that know only doubles.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id()) >> 11
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let (token, bias) = text.split_once('=').ok_or("expected ID=BIAS, as in 106=-5")?;
    let token = token.trim().parse().map_err(|_| format!("'{token}' is not a token id"))?;
    let bias = bias.trim().parse().map_err(|_| format!("'{bias}' is not a number"))?;
    Ok((token, bias))
}
