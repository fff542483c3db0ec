//! Request fields that `/api/chat` and `/api/generate` share.

use std::time::Duration;

use engine::Sampling;
use serde::Deserialize;
use serde_json::Value;
use text::{Variables, set_thinking};
use utoipa::ToSchema;

use crate::constraint::{Constraint, ConstraintKind};
use crate::error::Error;
use crate::openai::MAX_CHAT_LOGPROBS;
use crate::request::{GenerationOptions, check_stops, ranged};
use crate::served::ServedModel;
use crate::unsupported::{Neutral, UnsupportedField};

/// Request fields that `/api/chat` and `/api/generate` share.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaCommonFields)]
pub(crate) struct CommonFields {
    /// Name of the model, as listed by `/api/tags`.
    pub(super) model: String,
    /// Stream lines of JSON; true by default.
    pub(super) stream: Option<bool>,
    /// "json" for any JSON object, or a JSON schema that the output matches.
    #[schema(value_type = Option<OllamaFormat>)]
    format: Option<Value>,
    pub(super) options: Option<Options>,
    /// Whether the model thinks before it answers: a boolean, or the effort ("low", "medium" or "high").
    #[schema(value_type = Option<OllamaThink>)]
    think: Option<Value>,
    /// When the model is unloaded after its last use: seconds, or a duration such as "5m". 0 is at once, and a negative
    /// one not before its memory is needed.
    #[schema(value_type = Option<OllamaKeepAlive>)]
    pub(super) keep_alive: Option<Value>,
    /// Whether to return log probabilities of the generated tokens.
    logprobs: Option<bool>,
    /// Number of most probable tokens to return per position; only with `logprobs`.
    #[schema(minimum = 0, maximum = 20)]
    top_logprobs: Option<u32>,
}

/// Options of the generation. Those of Ollama that are not listed, such as `num_thread`, have no effect.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = OllamaOptions)]
pub(crate) struct Options {
    /// Sampling temperature; 0 is greedy decoding.
    #[schema(minimum = 0, maximum = 100)]
    temperature: Option<f64>,
    /// Sample from the most probable tokens whose probabilities sum to this.
    #[schema(minimum = 0, maximum = 1)]
    top_p: Option<f64>,
    /// Sample from this many of the most probable tokens; 0 and less disable the limit.
    #[schema(maximum = 4294967295_i64)]
    top_k: Option<i64>,
    /// Minimum probability of a token, relative to the most probable one.
    #[schema(minimum = 0, maximum = 1)]
    min_p: Option<f64>,
    /// Random seed; -1 is a random one.
    seed: Option<i64>,
    /// Maximum number of generated tokens; 0 and less disable the limit.
    #[schema(maximum = 4294967295_i64)]
    num_predict: Option<i64>,
    /// Up to 64 strings that end the output; they are not part of it.
    #[schema(value_type = Option<OllamaStop>)]
    stop: Option<Value>,
    /// Divisor for the logits of tokens that occur in prompt or output; 1 disables it.
    #[schema(minimum = 0.01, maximum = 100)]
    repeat_penalty: Option<f64>,
    /// Without effect: penalties count all tokens.
    #[allow(dead_code, reason = "only its type is checked")]
    repeat_last_n: Option<i64>,
    /// Subtracted once from the logits of tokens that have been generated.
    #[schema(minimum = -100, maximum = 100)]
    presence_penalty: Option<f64>,
    /// Subtracted from the logits of generated tokens, times their count.
    #[schema(minimum = -100, maximum = 100)]
    frequency_penalty: Option<f64>,
    /// Without effect: the context length is the server's.
    #[allow(dead_code, reason = "only its type is checked")]
    num_ctx: Option<i64>,
}

/// Options that would change the output, but are not implemented.
pub(super) const UNSUPPORTED_OPTIONS: &[UnsupportedField] = &[
    ("mirostat", "mirostat sampling", Neutral::Empty),
    ("tfs_z", "tail-free sampling", Neutral::Number(1.0)),
    ("typical_p", "locally typical sampling", Neutral::Number(1.0)),
];

/// `format` in the OpenAPI document.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "describes the schema; never constructed")]
pub(crate) enum OllamaFormat {
    Name(String),
    #[schema(value_type = Object)]
    Schema(Value),
}

/// `stop` in the OpenAPI document.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "describes the schema; never constructed")]
pub(crate) enum OllamaStop {
    One(String),
    Many(Vec<String>),
}

/// `think` in the OpenAPI document.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "describes the schema; never constructed")]
pub(crate) enum OllamaThink {
    Switch(bool),
    Effort(String),
}

/// `keep_alive` in the OpenAPI document.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "describes the schema; never constructed")]
pub(crate) enum OllamaKeepAlive {
    Seconds(f64),
    Text(String),
}

/// When a model is unloaded after its last use. `None`: only if its memory is needed.
pub(super) type KeepAlive = Option<Duration>;

impl CommonFields {
    /// The options of the generation. Sampling parameters that are not given are those of the model.
    pub(super) fn generation(&self, base: &Sampling) -> Result<GenerationOptions, Error> {
        let none = Options::default();
        let options = self.options.as_ref().unwrap_or(&none);
        let top_logprobs = match (self.logprobs.unwrap_or(false), self.top_logprobs) {
            (_, Some(top)) if top > MAX_CHAT_LOGPROBS => {
                let message = format!("is {top}, but must be between 0 and {MAX_CHAT_LOGPROBS}");
                return Err(Error::invalid_field("top_logprobs", message));
            }
            (false, Some(1..)) => {
                return Err(Error::invalid_field("top_logprobs", "is only allowed if 'logprobs' is true"));
            }
            (false, _) => None,
            (true, top) => Some(top.unwrap_or(0)),
        };
        Ok(GenerationOptions {
            sampling: options.sampling(base)?,
            seed: options.seed.filter(|seed| *seed != -1).map(|seed| seed as u64),
            candidates: 1,
            max_tokens: count("options.num_predict", options.num_predict)?.filter(|tokens| *tokens > 0),
            stops: options.stops()?,
            constraint: self.constraint()?,
            top_logprobs,
            ..GenerationOptions::default()
        })
    }

    fn constraint(&self) -> Result<Option<Constraint>, Error> {
        const FIELD: &str = "format";
        match &self.format {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(name)) if name.is_empty() => Ok(None),
            Some(Value::String(name)) if name == "json" => {
                Ok(Some(Constraint { field: FIELD, kind: ConstraintKind::JsonObject }))
            }
            Some(schema @ Value::Object(_)) => Constraint::schema(FIELD, schema).map(Some),
            Some(_) => Err(Error::invalid_field(FIELD, "must be \"json\" or an object: a JSON schema")),
        }
    }

    /// Checks what does not depend on the model.
    pub(super) fn validate(&self) -> Result<(), Error> {
        self.generation(&Sampling::default())?;
        self.thinking().map(drop)
    }

    /// Whether the model thinks, if the request says, and how much.
    fn thinking(&self) -> Result<(Option<bool>, Option<&str>), Error> {
        match &self.think {
            None | Some(Value::Null) => Ok((None, None)),
            Some(Value::Bool(think)) => Ok((Some(*think), None)),
            Some(Value::String(effort)) if matches!(effort.as_str(), "low" | "medium" | "high") => {
                Ok((Some(true), Some(effort.as_str())))
            }
            Some(_) => {
                let message = "must be a boolean, \"low\", \"medium\" or \"high\"";
                Err(Error::invalid_field("think", message))
            }
        }
    }

    /// Variables of the chat template. `thinking`: whether the model thinks if the request does not say; `None` leaves
    /// it to the template.
    pub(super) fn variables(&self, served: &ServedModel, thinking: Option<bool>) -> Result<Variables, Error> {
        let (requested, effort) = self.thinking()?;
        if requested == Some(true) && served.thinking_format.is_none() {
            let message = format!("the model '{}' does not support thinking: leave it out", served.model.id);
            return Err(Error::UnsupportedByModel { param: "think".to_owned(), message });
        }
        let mut variables = Variables::new();
        if let Some(thinking) = requested.or(thinking) {
            set_thinking(&mut variables, thinking);
        }
        if let Some(effort) = effort {
            variables.insert("reasoning_effort".to_owned(), effort.into());
        }
        Ok(variables)
    }
}

impl Options {
    fn sampling(&self, base: &Sampling) -> Result<Sampling, Error> {
        let penalty =
            |field: &str, value, base| ranged(&format!("options.{field}"), value, -100.0, 100.0, base);
        Ok(Sampling {
            top: 0,
            temperature: ranged("options.temperature", self.temperature, 0.0, 100.0, base.temperature)?,
            top_k: count("options.top_k", self.top_k)?.unwrap_or(base.top_k),
            // 0 keeps only the most probable token, and so does the smallest positive number.
            top_p: ranged("options.top_p", self.top_p, 0.0, 1.0, base.top_p)?.max(f32::MIN_POSITIVE),
            min_p: ranged("options.min_p", self.min_p, 0.0, 1.0, base.min_p)?,
            repetition: ranged("options.repeat_penalty", self.repeat_penalty, 0.01, 100.0, base.repetition)?,
            presence: penalty("presence_penalty", self.presence_penalty, base.presence)?,
            frequency: penalty("frequency_penalty", self.frequency_penalty, base.frequency)?,
            ..base.clone()
        })
    }

    /// The stop strings: a list, or one string, as some clients send it.
    fn stops(&self) -> Result<Vec<String>, Error> {
        const FIELD: &str = "options.stop";
        let invalid = || Error::invalid_field(FIELD, "must be a list of strings");
        let stops = match &self.stop {
            None | Some(Value::Null) => vec![],
            Some(Value::String(stop)) => vec![stop.clone()],
            Some(Value::Array(stops)) => {
                let texts = stops.iter().map(|stop| stop.as_str().map(str::to_owned));
                texts.collect::<Option<_>>().ok_or_else(invalid)?
            }
            Some(_) => return Err(invalid()),
        };
        check_stops(FIELD, &stops)?;
        Ok(stops)
    }
}

/// A number of tokens; negative ones are 0.
fn count(field: &str, value: Option<i64>) -> Result<Option<u32>, Error> {
    let Some(value) = value else { return Ok(None) };
    let count = u32::try_from(value.max(0));
    count.map(Some).map_err(|_| Error::invalid_field(field, format!("is {value}, but must be below 2³²")))
}

/// Parses `keep_alive`; `None` if it is not given.
pub(super) fn parse_keep_alive(value: Option<&Value>) -> Result<Option<KeepAlive>, Error> {
    let invalid = || {
        let message =
            "must be a number of seconds or a duration such as \"300ms\", \"5m\", \"1h30m\" or \"-1\"";
        Error::invalid_field("keep_alive", message)
    };
    let seconds = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Number(number)) => number.as_f64(),
        // Some clients send numbers as text.
        Some(Value::String(text)) if text.is_empty() => return Ok(None),
        Some(Value::String(text)) => text.parse().ok().or_else(|| duration(text)),
        Some(_) => None,
    };
    let seconds = seconds.filter(|seconds| seconds.is_finite()).ok_or_else(invalid)?;
    // More than fits is forever, too.
    Ok(Some(if seconds < 0.0 { None } else { Duration::try_from_secs_f64(seconds).ok() }))
}

/// Seconds of a duration in Go's format: numbers with units, such as `1h30m`.
fn duration(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        // "ms" before "m".
        let units =
            [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("h", 3600.0), ("m", 60.0), ("s", 1.0)];
        let (unit, factor) = units.iter().find(|(unit, _)| rest.starts_with(unit))?;
        rest = &rest[unit.len()..];
        seconds += number * factor;
    }
    (text.len() > 1).then_some(sign * seconds)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keep_alive_is_a_number_or_a_duration() {
        let parse = |value: Value| parse_keep_alive(Some(&value));
        let after = |seconds: f64| Some(Some(Duration::from_secs_f64(seconds)));
        for (value, expected) in [
            (Value::Null, None),
            (json!(""), None),
            (json!(0), after(0.0)),
            (json!("0"), after(0.0)),
            (json!(300), after(300.0)),
            (json!("300"), after(300.0)),
            (json!(1.5), after(1.5)),
            (json!("5m"), after(300.0)),
            (json!("1h30m"), after(5400.0)),
            (json!("300ms"), after(0.3)),
            (json!("1.5h"), after(5400.0)),
            (json!(-1), Some(None)),
            (json!("-1"), Some(None)),
            (json!("-1m"), Some(None)),
            (json!(1e300), Some(None)),
        ] {
            assert_eq!(parse(value.clone()).unwrap(), expected, "{value}");
        }
        for invalid in ["-", "5 m", "m", "5x", "nan", "1e999"]
            .map(Value::from)
            .into_iter()
            .chain([true.into(), json!({})])
        {
            assert!(parse(invalid.clone()).is_err(), "{invalid}");
        }
    }
}
