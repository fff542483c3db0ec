//! Sampling flags.

use clap::Args;
use model::Sampling;

/// Sampling parameters, shared by all commands that generate.
#[derive(Args)]
pub struct SamplingArguments {
    /// Sampling temperature: 0 is greedy, 1 samples from the model's own distribution
    #[arg(short, long, allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Sample from this many of the most probable tokens; 0 is off
    #[arg(long)]
    top_k: Option<u32>,
    /// Sample from the smallest set of tokens whose probabilities add up to this; 1 is off
    #[arg(long, allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Sample from tokens with at least this probability relative to the most probable one; 0 is off
    #[arg(long, allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Divide the logits of tokens that occurred in prompt or completion by this; 1 is off
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    repetition_penalty: Option<f32>,
    /// Subtract this from the logits of tokens that were generated before
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// Subtract this from the logits of generated tokens, once per occurrence
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// Add to the logit of a token, as in 106=-5 (-inf bans it); repeatable
    #[arg(long, value_name = "ID=BIAS", value_parser = parse_bias, allow_hyphen_values = true)]
    logit_bias: Vec<(u32, f32)>,
    /// Seed of the random number generator: the same seed gives the same output (default: random)
    #[arg(long)]
    seed: Option<u64>,
}

impl SamplingArguments {
    /// The given flags, and `defaults` for all others.
    pub fn sampling(&self, defaults: &Sampling) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition: self.repetition_penalty.unwrap_or(defaults.repetition),
            presence: self.presence_penalty.unwrap_or(defaults.presence),
            frequency: self.frequency_penalty.unwrap_or(defaults.frequency),
            seed: self.seed.unwrap_or_else(indrik::random_seed),
            biases: self.logit_bias.clone(),
            top: 0,
        }
    }
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let (token, bias) = text.split_once('=').ok_or("expected ID=BIAS, as in 106=-5")?;
    let token = token.trim().parse().map_err(|_| format!("'{token}' is not a token id"))?;
    let bias = bias.trim().parse().map_err(|_| format!("'{bias}' is not a number"))?;
    Ok((token, bias))
}
