//! OpenAI's protocol as types: what clients send (`options`, `chat`, `tools`, `completions`) and what they get (`reply`).
//!
//! A body is parsed once and read twice: once as [`Options`], what both kinds of completion have in common, and once as what is its own.
//! (One type that holds the other by `flatten` would lose the place of an error.) Fields that nobody knows are let
//! pass, as OpenAI does; a known field of a wrong type or out of range is an error that names it.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod format;
pub(crate) mod logprobs;
pub(crate) mod options;
pub(crate) mod reply;
pub(crate) mod tools;

pub(crate) use chat::Chat;
pub(crate) use completions::{Completion, Prompt};
pub(crate) use format::{SCHEMA, Shape};
pub(crate) use logprobs::{ChatLogprobs, TextLogprobs};
pub(crate) use options::Options;
pub(crate) use reply::*;
pub(crate) use tools::{Call, CallDelta, CalledFunction, FunctionDelta, Offered, ToolType};

use serde::Deserialize;
use serde_json::Value;

use crate::error::Error;

/// A body as JSON: an object, whatever it holds.
pub(crate) fn parse(body: &[u8]) -> Result<Value, Error> {
    let invalid = |message| Error::Invalid { param: None, message };
    match serde_json::from_slice(body) {
        Ok(mut object @ Value::Object(_)) => {
            make_whole(&mut object);
            Ok(object)
        }
        Ok(_) => Err(invalid("the body must be a JSON object".to_owned())),
        Err(error) => Err(invalid(format!("the body is no JSON: {error}"))),
    }
}

/// The largest number up to which a double tells all whole numbers apart.
const WHOLE: f64 = (1u64 << 53) as f64;

/// Makes whole numbers of those that are written as fractions: 16.0 is an integer in JSON Schema, and some clients know
/// no other numbers. As deep as the parser goes, which is 128.
fn make_whole(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            if let Some(number) = number.as_f64().filter(|n| n.fract() == 0.0 && n.abs() <= WHOLE) {
                *value = Value::from(number as i64);
            }
        }
        Value::Array(values) => values.iter_mut().for_each(make_whole),
        Value::Object(fields) => fields.values_mut().for_each(make_whole),
        _ => {}
    }
}

/// Reads what a type knows of a body; an error names the field.
pub(crate) fn read<'de, T: Deserialize<'de>>(body: &'de Value) -> Result<T, Error> {
    serde_path_to_error::deserialize(body).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        match missing(&inner) {
            Some(field) if path == "." => Error::field(field, "is required"),
            Some(field) => Error::field(format!("{path}.{field}"), "is required"),
            None => Error::field(path, inner),
        }
    })
}

/// The same of what stands in a field.
fn read_at<'de, T: Deserialize<'de>>(field: &str, value: &'de Value) -> Result<T, Error> {
    read(value).map_err(|error| match error {
        Error::Invalid { param: Some(param), message } => {
            let place = if param == "." { field.to_owned() } else { format!("{field}.{param}") };
            let message = message.replacen(&format!("'{param}'"), &format!("'{place}'"), 1);
            Error::Invalid { param: Some(place), message }
        }
        error => error,
    })
}

/// The field that is not there, where that is what is wrong.
fn missing(error: &serde_json::Error) -> Option<String> {
    let text = error.to_string();
    Some(text.strip_prefix("missing field `")?.split_once('`')?.0.to_owned())
}
