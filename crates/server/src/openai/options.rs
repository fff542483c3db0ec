//! What both kinds of completion may ask for.

use std::collections::BTreeMap;
use std::fmt::Display;

use engine::Sampling;
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde_json::Value;
use utoipa::ToSchema;

#[allow(unused_imports, reason = "only the description names it")]
use super::format::AnyFormat;
use super::format::{ResponseFormat, Shape};
use crate::error::Error;

/// Stop strings that a request may have.
pub(crate) const MAX_STOPS: usize = 4;

/// Bytes of a string that ends an answer: each answer looks for it in all that is written, and keeps a table of it.
const MAX_STOP_BYTES: usize = 1024;

/// Biases that the sampler has room for.
pub(crate) const MAX_BIASES: usize = 512;

/// How an answer is made and sent.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct Options {
    /// The model's name, as `/v1/models` lists it.
    pub(crate) model: String,
    /// Send tokens as they come, as server-sent events.
    pub(crate) stream: Option<bool>,
    /// Only with `stream`.
    pub(crate) stream_options: Option<StreamOptions>,
    /// Up to four strings that end the answer; they are no part of it.
    #[schema(value_type = Option<Stop>)]
    pub(crate) stop: Option<Stops>,
    /// So many tokens at most.
    #[schema(minimum = 1)]
    pub(crate) max_tokens: Option<u32>,
    /// The same by its newer name, which wins.
    #[schema(minimum = 1)]
    pub(crate) max_completion_tokens: Option<u32>,
    /// 0 takes the most probable token.
    #[schema(minimum = 0, maximum = 2)]
    temperature: Option<f64>,
    /// Only the most probable tokens whose probabilities make this sum.
    #[schema(minimum = 0, maximum = 1)]
    top_p: Option<f64>,
    /// Only so many of the most probable tokens; 0 is all.
    top_k: Option<u32>,
    /// Only tokens at least this probable, relative to the most probable one.
    #[schema(minimum = 0, maximum = 1)]
    min_p: Option<f64>,
    /// The same seed gives the same tokens.
    pub(crate) seed: Option<i64>,
    /// So many answers.
    #[schema(minimum = 1)]
    n: Option<u32>,
    /// Taken off the logits of tokens that were generated before.
    #[schema(minimum = -2, maximum = 2)]
    presence_penalty: Option<f64>,
    /// Taken off the logits of generated tokens once for each time.
    #[schema(minimum = -2, maximum = 2)]
    frequency_penalty: Option<f64>,
    /// Divides the logits of tokens that occurred; 1 is off.
    #[schema(minimum = 0.01, maximum = 100)]
    repetition_penalty: Option<f64>,
    /// Added to the logits of tokens, by id.
    logit_bias: Option<BTreeMap<String, f64>>,
    /// What the answer is held to.
    #[schema(value_type = Option<AnyFormat>)]
    response_format: Option<ResponseFormat>,
}

/// What a stream has beside its tokens.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct StreamOptions {
    /// A last chunk without choices that holds the usage.
    pub(crate) include_usage: Option<bool>,
}

/// One stop string or several: the shape in the schema.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "only described, never made")]
pub(crate) enum Stop {
    One(String),
    Many(Vec<String>),
}

/// Stop strings, however they were written.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Stops(pub(crate) Vec<String>);

impl<'de> Deserialize<'de> for Stops {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Stops, D::Error> {
        struct OneOrMany;
        impl<'de> Visitor<'de> for OneOrMany {
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
        deserializer.deserialize_any(OneOrMany)
    }
}

impl Options {
    /// Whether tokens are sent as they come.
    pub(crate) fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Whether a stream ends with the usage.
    pub(crate) fn streams_usage(&self) -> bool {
        self.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false)
    }

    /// How many answers to each prompt.
    pub(crate) fn n(&self) -> u32 {
        self.n.unwrap_or(1)
    }

    /// How many tokens were asked for at most.
    pub(crate) fn most(&self) -> Option<u32> {
        self.max_completion_tokens.or(self.max_tokens)
    }

    /// The stop strings.
    pub(crate) fn stops(&self) -> &[String] {
        self.stop.as_ref().map_or(&[], |stops| &stops.0)
    }

    /// Whether everything but the sampling is in its range, and asks for nothing that is not built.
    pub(crate) fn check(&self, choices: u32) -> Result<(), Error> {
        if self.stream_options.is_some() && !self.streams() {
            return Err(Error::field("stream_options", "is only allowed where 'stream' is true"));
        }
        for (name, most) in
            [("max_tokens", self.max_tokens), ("max_completion_tokens", self.max_completion_tokens)]
        {
            if most == Some(0) {
                return Err(Error::field(name, "is 0, but must be 1 or more"));
            }
        }
        if !(1..=choices).contains(&self.n()) {
            return Err(Error::field("n", format!("is {}, but must be from 1 to {choices}", self.n())));
        }
        if self.stops().len() > MAX_STOPS {
            let message = format!("holds {} strings, but may hold {MAX_STOPS} at most", self.stops().len());
            return Err(Error::field("stop", message));
        }
        if let Some(long) = self.stops().iter().find(|stop| stop.len() > MAX_STOP_BYTES) {
            let message =
                format!("holds a string of {} bytes, but {MAX_STOP_BYTES} are the most", long.len());
            return Err(Error::field("stop", message));
        }
        if self.stops().iter().any(String::is_empty) {
            return Err(Error::field("stop", "holds an empty string: leave it out"));
        }
        Ok(())
    }

    /// What answers are held to; nothing where they are any text.
    pub(crate) fn shape(&self) -> Result<Option<Shape>, Error> {
        self.response_format.as_ref().map_or(Ok(None), ResponseFormat::shape)
    }

    /// How tokens are chosen: as asked for, else as `base` says. The seed is left as it is there.
    pub(crate) fn sampling(&self, base: &Sampling, vocab: usize) -> Result<Sampling, Error> {
        let ranged = |name: &str, value: Option<f64>, low: f64, high: f64, base: f32| match value {
            None => Ok(base),
            Some(value) if (low..=high).contains(&value) => Ok(value as f32),
            Some(value) => Err(Error::field(name, format!("is {value}, but must be from {low} to {high}"))),
        };
        Ok(Sampling {
            top: 0,
            temperature: ranged("temperature", self.temperature, 0.0, 2.0, base.temperature)?,
            top_k: self.top_k.unwrap_or(base.top_k),
            // 0 leaves only the most probable token, as the smallest number above it does.
            top_p: ranged("top_p", self.top_p, 0.0, 1.0, base.top_p)?.max(f32::MIN_POSITIVE),
            min_p: ranged("min_p", self.min_p, 0.0, 1.0, base.min_p)?,
            repetition: ranged("repetition_penalty", self.repetition_penalty, 0.01, 100.0, base.repetition)?,
            presence: ranged("presence_penalty", self.presence_penalty, -2.0, 2.0, base.presence)?,
            frequency: ranged("frequency_penalty", self.frequency_penalty, -2.0, 2.0, base.frequency)?,
            seed: base.seed,
            biases: self.biases(vocab)?.unwrap_or_else(|| base.biases.clone()),
        })
    }

    fn biases(&self, vocab: usize) -> Result<Option<Vec<(u32, f32)>>, Error> {
        let Some(biases) = &self.logit_bias else { return Ok(None) };
        let wrong = |message: &dyn Display| Error::field("logit_bias", message);
        if biases.len() > MAX_BIASES {
            return Err(wrong(&format!("names {} tokens, but may name {MAX_BIASES} at most", biases.len())));
        }
        let bias = |(token, bias): (&String, &f64)| match token.parse::<u32>() {
            Ok(id) if (id as usize) < vocab && (-100.0..=100.0).contains(bias) => Ok((id, *bias as f32)),
            Ok(id) if (id as usize) < vocab => {
                Err(wrong(&format!("of token {id} is {bias}, but must be from -100 to 100")))
            }
            _ => Err(wrong(&format!("names {token:?}, which is no token id below {vocab}"))),
        };
        biases.iter().map(bias).collect::<Result<_, _>>().map(Some)
    }
}

/// That a field which is not built says nothing: absent, null, false or an empty list.
pub(super) fn unset(name: &str, value: &Option<Value>, what: &str) -> Result<(), Error> {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => Ok(()),
        Some(Value::Array(list)) if list.is_empty() => Ok(()),
        Some(_) => Err(Error::unsupported(name, what)),
    }
}
