//! How the next token is chosen: what people set, checked, and what the kernel is told.

use std::collections::BTreeMap;

use kernels::sample::{BAN, Bias, Features, MAX_BIASES, MAX_TOP, Params};
use serde::Serialize;

use crate::{Error, Result};

/// How the next token is chosen. Logit biases and penalties come first, then temperature, top-k, top-p and min-p.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sampling {
    /// 0 takes the most probable token; 1 draws by the model's own probabilities.
    pub temperature: f32,
    /// Only this many of the most probable tokens; 0 is all.
    pub top_k: u32,
    /// Only the most probable tokens whose probabilities make this sum; 1 is all.
    pub top_p: f32,
    /// Only tokens at least this probable, relative to the most probable one; 0 is all.
    pub min_p: f32,
    /// Logits of tokens that occurred are divided by this where positive and multiplied where negative; 1 is off.
    pub repetition: f32,
    /// Taken off the logits of tokens that were generated before.
    pub presence: f32,
    /// Taken off the logits of generated tokens once for each time.
    pub frequency: f32,
    /// Where the random numbers start. The same seed gives the same tokens.
    pub seed: u64,
    /// Added to the logits of some tokens; −100 and less bans one.
    pub biases: Vec<(u32, f32)>,
    /// So many of the most probable tokens, whether they may be chosen or not, are told with the chosen one: 20 at most.
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
    /// Whether every setting is in its range, for a vocabulary of `vocab` tokens.
    pub fn check(&self, vocab: u32) -> Result<()> {
        let in_range = |name: &'static str, value: f32, low: f32, high: f32, range: &'static str| {
            // What is not a number is in no range.
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

    /// Whether it asks which tokens there were.
    pub fn has_penalties(&self) -> bool {
        self.params().penalties()
    }

    /// The tokens that its biases ban.
    pub fn bans(&self) -> impl Iterator<Item = u32> {
        self.unique_biases().into_iter().filter(|bias| bias.bias <= BAN).map(|bias| bias.token)
    }

    /// What it needs of the kernel.
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

    /// As the kernel reads it.
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

    /// The biases with those of one token added up.
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
    /// What it needs of the kernel.
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
    fn what_is_out_of_range_is_named() {
        let refused = |sampling: Sampling, name: &str| {
            let error = sampling.check(100).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        };
        let greedy = Sampling::default;
        assert!(greedy().check(100).is_ok());
        refused(Sampling { temperature: -0.1, ..greedy() }, "temperature is -0.1, but must be from 0");
        refused(Sampling { temperature: f32::NAN, ..greedy() }, "temperature is NaN");
        refused(Sampling { top_p: 0.0, ..greedy() }, "top-p is 0");
        refused(Sampling { min_p: 1.5, ..greedy() }, "min-p");
        refused(Sampling { repetition: 0.0, ..greedy() }, "repetition");
        refused(Sampling { presence: f32::INFINITY, ..greedy() }, "presence");
        refused(Sampling { biases: vec![(100, 0.0)], ..greedy() }, "token 100 is not in");
        refused(Sampling { biases: vec![(1, f32::NAN)], ..greedy() }, "bias is NaN");
        refused(Sampling { biases: vec![(1, 0.0); 513], ..greedy() }, "513 tokens");
        refused(Sampling { top: 21, ..greedy() }, "most probable tokens is 21");
        assert!(Sampling { biases: vec![(99, f32::NEG_INFINITY)], ..greedy() }.check(100).is_ok());
    }
}
