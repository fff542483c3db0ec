//! Request fields that both endpoints share.

use std::collections::BTreeMap;
use std::fmt::Display;

use engine::Sampling;
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde_json::Value;
use utoipa::ToSchema;

#[allow(unused_imports, reason = "used by the OpenAPI document only")]
use super::format::ResponseFormatSchema;
use super::format::{ResponseFormat, StructuredOutputs};
use crate::constraint::Constraint;
use crate::error::Error;
use crate::request::{GenerationOptions, MAX_BIASES, MAX_STOPS, check_stops, ranged};

/// Request fields that both endpoints share.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct Options {
    /// Name of the model, as listed by `/v1/models`.
    #[allow(dead_code, reason = "read before the other fields")]
    pub(crate) model: String,
    /// Stream tokens as server-sent events.
    stream: Option<bool>,
    /// Options of the stream; only with `stream`.
    stream_options: Option<StreamOptions>,
    /// Up to 64 strings that end the completion; they are not part of it.
    #[schema(value_type = Option<StopSchema>)]
    stop: Option<Stops>,
    /// Maximum number of generated tokens; 0 only to report log probabilities of the prompt.
    max_tokens: Option<u32>,
    /// Newer name of `max_tokens`, which it overrides.
    max_completion_tokens: Option<u32>,
    /// Sampling temperature; 0 is greedy decoding.
    #[schema(minimum = 0, maximum = 2)]
    temperature: Option<f64>,
    /// Nucleus sampling: sample from the most probable tokens whose probabilities sum to this.
    #[schema(minimum = 0, maximum = 1)]
    top_p: Option<f64>,
    /// Sample from this many of the most probable tokens; 0 and -1 disable the limit.
    #[schema(minimum = -1, maximum = 4294967295_i64)]
    top_k: Option<i64>,
    /// Minimum probability of a token, relative to the most probable one.
    #[schema(minimum = 0, maximum = 1)]
    min_p: Option<f64>,
    /// Random seed; the same seed gives the same tokens.
    seed: Option<i64>,
    /// Number of choices.
    #[schema(minimum = 1)]
    n: Option<u32>,
    /// Subtracted once from the logits of tokens that have been generated.
    #[schema(minimum = -2, maximum = 2)]
    presence_penalty: Option<f64>,
    /// Subtracted from the logits of generated tokens, times their count.
    #[schema(minimum = -2, maximum = 2)]
    frequency_penalty: Option<f64>,
    /// Divisor for the logits of tokens that occur in prompt or completion; 1 disables it.
    #[schema(minimum = 0.01, maximum = 100)]
    repetition_penalty: Option<f64>,
    /// llama.cpp's name of `repetition_penalty`, which overrides it.
    #[schema(minimum = 0.01, maximum = 100)]
    repeat_penalty: Option<f64>,
    /// Added to logits, by token id.
    logit_bias: Option<BTreeMap<String, f64>>,
    /// Constraint on the output.
    #[schema(value_type = Option<ResponseFormatSchema>)]
    response_format: Option<ResponseFormat>,
    /// vLLM's constraint on the output; instead of `response_format`.
    structured_outputs: Option<StructuredOutputs>,
    /// JSON Schema that the output matches, as an object or as text.
    #[schema(value_type = Option<Object>)]
    guided_json: Option<Value>,
    /// Regular expression that the whole output matches.
    guided_regex: Option<String>,
    /// The output is one of these texts.
    guided_choice: Option<Vec<String>>,
    /// Grammar of the output in Lark or GBNF.
    guided_grammar: Option<String>,
    /// Grammar of the output in GBNF or Lark.
    grammar: Option<String>,
    /// llama.cpp's name of `guided_json`.
    #[schema(value_type = Option<Object>)]
    json_schema: Option<Value>,
    /// Go on after the tokens that end a completion, up to `max_tokens`.
    ignore_eos: Option<bool>,
    /// Minimum number of tokens before the completion may end.
    min_tokens: Option<u32>,
    /// Further tokens that end the completion; they are not part of it.
    stop_token_ids: Option<Vec<u32>>,
    /// Whether tokens may be drafted and verified several at a time; true by default. The completion is the same.
    speculate: Option<bool>,
    /// Return `timings`, the speed of prefill and decoding: in the response, or in every chunk with tokens.
    timings_per_token: Option<bool>,
}

/// Options of a stream.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct StreamOptions {
    /// Send a last chunk with the usage and no choices.
    include_usage: Option<bool>,
}

/// `stop` in the OpenAPI document.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "describes the schema; never constructed")]
pub(crate) enum StopSchema {
    One(String),
    Many(Vec<String>),
}

/// Stop strings: one string or a list.
#[derive(Debug, Default, PartialEq, Eq)]
struct Stops(Vec<String>);

impl<'de> Deserialize<'de> for Stops {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Stops, D::Error> {
        struct StopsVisitor;
        impl<'de> Visitor<'de> for StopsVisitor {
            type Value = Stops;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string or a list of strings")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Stops, E> {
                Ok(Stops(vec![text.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Stops, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(seq)).map(Stops)
            }
        }
        deserializer.deserialize_any(StopsVisitor)
    }
}

impl Options {
    /// Whether the response is a stream.
    pub(super) fn stream(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Whether a stream ends with a usage chunk.
    pub(super) fn include_usage(&self) -> bool {
        self.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false)
    }

    /// Whether the response contains `timings`.
    pub(super) fn timings(&self) -> bool {
        self.timings_per_token.unwrap_or(false)
    }

    /// Choices per prompt.
    pub(super) fn n(&self) -> u32 {
        self.n.unwrap_or(1)
    }

    /// Requested token limit.
    fn max_tokens(&self) -> Option<u32> {
        self.max_completion_tokens.or(self.max_tokens)
    }

    /// Rejects a token limit of 0: nothing would be reported.
    pub(super) fn require_completion(&self) -> Result<(), Error> {
        for (name, max_tokens) in
            [("max_tokens", self.max_tokens), ("max_completion_tokens", self.max_completion_tokens)]
        {
            if max_tokens == Some(0) {
                return Err(Error::invalid_field(name, "is 0, but must be at least 1"));
            }
        }
        Ok(())
    }

    /// The stop strings.
    fn stops(&self) -> &[String] {
        self.stop.as_ref().map_or(&[], |stops| &stops.0)
    }

    /// Validates all fields except the sampling parameters.
    pub(super) fn validate(&self, max_choices: u32) -> Result<(), Error> {
        if self.stream_options.is_some() && !self.stream() {
            return Err(Error::invalid_field("stream_options", "is only allowed if 'stream' is true"));
        }
        if !(1..=max_choices).contains(&self.n()) {
            return Err(Error::invalid_field(
                "n",
                format!("is {}, but must be between 1 and {max_choices}", self.n()),
            ));
        }
        check_stops("stop", self.stops())
    }

    /// Sampling parameters that are not given are taken from `base`. `candidates` and `top_logprobs` are fields of the
    /// endpoint.
    pub(super) fn generation(
        &self,
        base: &Sampling,
        vocab_size: usize,
        candidates: u32,
        top_logprobs: Option<u32>,
    ) -> Result<GenerationOptions, Error> {
        Ok(GenerationOptions {
            sampling: self.sampling(base, vocab_size)?,
            seed: self.seed.map(|seed| seed as u64),
            candidates,
            max_tokens: self.max_tokens(),
            min_tokens: self.min_tokens.unwrap_or(0),
            stops: self.stops().to_vec(),
            stop_token_ids: self.stop_token_ids(vocab_size)?,
            ignore_eos: self.ignore_eos.unwrap_or(false),
            constraint: self.constraint()?,
            top_logprobs,
            no_drafts: self.speculate == Some(false),
            prediction: None,
        })
    }

    /// The constraint on the output; `None` for text.
    fn constraint(&self) -> Result<Option<Constraint>, Error> {
        let mut found = Vec::new();
        if let Some(format) = &self.response_format {
            found.extend(format.constraint()?);
        }
        if let Some(outputs) = &self.structured_outputs {
            found.extend(outputs.constraints()?);
        }
        for (field, schema) in [("guided_json", &self.guided_json), ("json_schema", &self.json_schema)] {
            if let Some(schema) = schema.as_ref().filter(|schema| !schema.is_null()) {
                found.push(Constraint::schema(field, schema)?);
            }
        }
        found.extend(self.guided_regex.iter().map(|regex| Constraint::regex("guided_regex", regex)));
        if let Some(choices) = &self.guided_choice {
            found.push(Constraint::choice("guided_choice", choices)?);
        }
        for (field, grammar) in [("guided_grammar", &self.guided_grammar), ("grammar", &self.grammar)] {
            let given = grammar.as_ref().filter(|grammar| !grammar.is_empty());
            found.extend(given.map(|grammar| Constraint::grammar(field, grammar)));
        }
        match &found[..] {
            [] | [_] => {}
            [first, second, ..] => {
                let message = format!("cannot be combined with '{}'", first.field);
                return Err(Error::invalid_field(second.field, message));
            }
        }
        Ok(found.pop())
    }

    /// Further tokens that end a completion.
    fn stop_token_ids(&self, vocab_size: usize) -> Result<Vec<u32>, Error> {
        let given = self.stop_token_ids.as_deref().unwrap_or_default();
        let invalid = |message: String| Err(Error::invalid_field("stop_token_ids", message));
        if given.len() > MAX_STOPS {
            return invalid(format!("has {} tokens, but at most {MAX_STOPS} are allowed", given.len()));
        }
        if let Some(id) = given.iter().find(|id| **id as usize >= vocab_size) {
            return invalid(format!("has the token {id}, but token ids are below {vocab_size}"));
        }
        Ok(given.to_vec())
    }

    /// Sampling parameters. The seed and parameters that are not given are taken from `base`.
    fn sampling(&self, base: &Sampling, vocab_size: usize) -> Result<Sampling, Error> {
        Ok(Sampling {
            top: 0,
            temperature: ranged("temperature", self.temperature, 0.0, 2.0, base.temperature)?,
            top_k: match self.top_k {
                None => base.top_k,
                Some(-1) => 0,
                Some(top_k) => u32::try_from(top_k).map_err(|_| {
                    Error::invalid_field(
                        "top_k",
                        format!("is {top_k}, but must be -1, 0 or a positive number"),
                    )
                })?,
            },
            // 0 keeps only the most probable token, and so does the smallest positive number.
            top_p: ranged("top_p", self.top_p, 0.0, 1.0, base.top_p)?.max(f32::MIN_POSITIVE),
            min_p: ranged("min_p", self.min_p, 0.0, 1.0, base.min_p)?,
            repetition: match self.repeat_penalty {
                Some(_) => ranged("repeat_penalty", self.repeat_penalty, 0.01, 100.0, base.repetition)?,
                None => ranged("repetition_penalty", self.repetition_penalty, 0.01, 100.0, base.repetition)?,
            },
            presence: ranged("presence_penalty", self.presence_penalty, -2.0, 2.0, base.presence)?,
            frequency: ranged("frequency_penalty", self.frequency_penalty, -2.0, 2.0, base.frequency)?,
            seed: base.seed,
            biases: self.biases(vocab_size)?.unwrap_or_else(|| base.biases.clone()),
        })
    }

    fn biases(&self, vocab_size: usize) -> Result<Option<Vec<(u32, f32)>>, Error> {
        let Some(biases) = &self.logit_bias else { return Ok(None) };
        let invalid = |message: &dyn Display| Error::invalid_field("logit_bias", message);
        if biases.len() > MAX_BIASES {
            return Err(invalid(&format!(
                "has {} tokens, but at most {MAX_BIASES} are allowed",
                biases.len()
            )));
        }
        let bias = |(token, bias): (&String, &f64)| match token.parse::<u32>() {
            Ok(id) if (id as usize) < vocab_size && (-100.0..=100.0).contains(bias) => Ok((id, *bias as f32)),
            Ok(id) if (id as usize) < vocab_size => {
                Err(invalid(&format!("of token {id} is {bias}, but must be between -100 and 100")))
            }
            _ => Err(invalid(&format!("has the key {token:?}, which is not a token id below {vocab_size}"))),
        };
        biases.iter().map(bias).collect::<Result<_, _>>().map(Some)
    }
}
