//! Sampling parameters: their ranges, and their encoding for the kernel.

use std::collections::BTreeMap;

use kernels::sample::{BAN, Bias, Features, MAX_BIASES, MAX_TOP, Params};
use serde::Serialize;

use crate::{Error, Result};

/// How the next token is sampled. Logit biases and penalties apply first, then temperature, top-k, top-p and
/// min-p.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sampling {
    /// 0 is greedy; 1 samples from the model's own distribution.
    pub temperature: f32,
    /// Keep this many of the most probable tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the most probable tokens whose probabilities sum up to this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this probable relative to the most probable one; 0 keeps all.
    pub min_p: f32,
    /// Repetition penalty: positive logits of tokens that occurred are divided by it, negative ones
    /// multiplied; 1 is off.
    pub repetition: f32,
    /// Presence penalty: subtracted from the logits of tokens that were generated before.
    pub presence: f32,
    /// Frequency penalty: subtracted from the logits of generated tokens once per occurrence.
    pub frequency: f32,
    /// Seed of the random numbers. The same seed gives the same tokens.
    pub seed: u64,
    /// Logit biases by token id; −100 or less bans a token.
    pub biases: Vec<(u32, f32)>,
    /// Number of most probable tokens to return with the sampled one, whether they may be sampled or not: at
    /// most 20.
    pub top: u32,
}

impl Default for Sampling {
    /// Greedy.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition: 1.0,
            presence: 0.0,
            frequency: 0.0,
            seed: 0,
            biases: vec![],
            top: 0,
        }
    }
}

impl Sampling {
    /// Checks that every parameter is in its range, for a vocabulary of `vocab` tokens.
    pub fn check(&self, vocab: u32) -> Result<()> {
        let in_range = |name: &'static str, value: f32, low: f32, high: f32, range: &'static str| {
            // NaN is in no range.
            if (low..=high).contains(&value) {
                return Ok(());
            }
            Err(Error::Sampling { name, value: value.to_string(), range })
        };
        in_range("temperature", self.temperature, 0.0, 100.0, "from 0 to 100")?;
        in_range("top-p", self.top_p, f32::MIN_POSITIVE, 1.0, "above 0 and at most 1")?;
        in_range("min-p", self.min_p, 0.0, 1.0, "from 0 to 1")?;
        in_range("the repetition penalty", self.repetition, 0.01, 100.0, "from 0.01 to 100")?;
        in_range("the presence penalty", self.presence, -100.0, 100.0, "from -100 to 100")?;
        in_range("the frequency penalty", self.frequency, -100.0, 100.0, "from -100 to 100")?;
        if self.top as usize > MAX_TOP {
            let (name, value) = ("the number of most probable tokens", self.top.to_string());
            return Err(Error::Sampling { name, value, range: "from 0 to 20" });
        }
        if self.biases.len() > MAX_BIASES {
            let value = format!("given for {} tokens", self.biases.len());
            return Err(Error::Sampling { name: "the logit bias", value, range: "given for at most 512" });
        }
        for (token, bias) in &self.biases {
            if *token >= vocab {
                return Err(Error::UnknownToken { token: *token, vocab });
            }
            // Minus infinity bans a token.
            if *bias != f32::NEG_INFINITY {
                in_range("a logit bias", *bias, -1000.0, 1000.0, "from -1000 to 1000, or -inf")?;
            }
        }
        Ok(())
    }

    /// Whether it depends on earlier tokens.
    pub fn has_penalties(&self) -> bool {
        self.params().penalties()
    }

    /// Tokens that the biases ban.
    pub fn bans(&self) -> impl Iterator<Item = u32> {
        self.unique_biases().into_iter().filter(|bias| bias.bias <= BAN).map(|bias| bias.token)
    }

    /// Kernel features that it needs.
    pub(crate) fn features(&self, vocab: u32) -> Features {
        let params = self.params();
        Features {
            filters: params.filters(vocab as usize),
            counts: params.penalties(),
            biases: !self.biases.is_empty(),
            mask: false,
            top: self.top > 0,
        }
    }

    /// Parameters as the kernel reads them.
    pub(crate) fn params(&self) -> Params {
        Params {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition: self.repetition,
            presence: self.presence,
            frequency: self.frequency,
            seed: self.seed,
            bias_count: self.unique_biases().len() as u32,
            masked: false,
            top: self.top,
        }
    }

    /// The biases, with several of the same token added up.
    pub(crate) fn unique_biases(&self) -> Vec<Bias> {
        let mut sums: BTreeMap<u32, f32> = BTreeMap::new();
        for (token, bias) in &self.biases {
            *sums.entry(*token).or_default() += bias;
        }
        sums.into_iter().map(|(token, bias)| Bias { token, bias }).collect()
    }
}

/// How the token of one output row is sampled.
#[derive(Clone, Copy)]
pub(crate) struct RowSampling<'a> {
    pub sampling: &'a Sampling,
    /// Token mask, one bit per token; `None` allows every token.
    pub mask: Option<&'a [u32]>,
}

impl RowSampling<'_> {
    /// Kernel features that it needs.
    pub fn features(&self, vocab: u32) -> Features {
        Features { mask: self.mask.is_some(), ..self.sampling.features(vocab) }
    }

    /// Parameters as the kernel reads them.
    pub fn params(&self) -> Params {
        Params { masked: self.mask.is_some(), ..self.sampling.params() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_parameter_out_of_range() {
        let check_error = |sampling: Sampling, name: &str| {
            let error = sampling.check(100).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        };
        let greedy = Sampling::default;
        assert!(greedy().check(100).is_ok());
        check_error(Sampling { temperature: -0.1, ..greedy() }, "temperature is -0.1, but must be from 0");
        check_error(Sampling { temperature: f32::NAN, ..greedy() }, "temperature is NaN");
        check_error(Sampling { top_p: 0.0, ..greedy() }, "top-p is 0");
        check_error(Sampling { min_p: 1.5, ..greedy() }, "min-p");
        check_error(Sampling { repetition: 0.0, ..greedy() }, "repetition");
        check_error(Sampling { presence: f32::INFINITY, ..greedy() }, "presence");
        check_error(Sampling { biases: vec![(100, 0.0)], ..greedy() }, "token 100 is not in");
        check_error(Sampling { biases: vec![(1, f32::NAN)], ..greedy() }, "bias is NaN");
        check_error(Sampling { biases: vec![(1, 0.0); 513], ..greedy() }, "513 tokens");
        check_error(Sampling { top: 21, ..greedy() }, "most probable tokens is 21");
        assert!(Sampling { biases: vec![(99, f32::NEG_INFINITY)], ..greedy() }.check(100).is_ok());
    }
}
