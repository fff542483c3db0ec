//! OpenAI's protocol as types: what clients send (`options`, `chat`, `completions`) and what they get (`reply`).
//!
//! A body is parsed once and read twice: once as [`Options`], what both kinds of completion have in common, and once as what is its own.
//! (One type that holds the other by `flatten` would lose the place of an error.) Fields that nobody knows are let
//! pass, as OpenAI does; a known field of a wrong type or out of range is an error that names it.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod options;
pub(crate) mod reply;

pub(crate) use chat::Chat;
pub(crate) use completions::{Completion, Prompt};
pub(crate) use options::Options;
pub(crate) use reply::*;

use serde::Deserialize;
use serde_json::Value;

use crate::error::Error;

/// A body as JSON: an object, whatever it holds.
pub(crate) fn parse(body: &[u8]) -> Result<Value, Error> {
    let invalid = |message| Error::Invalid { param: None, message };
    match serde_json::from_slice(body) {
        Ok(object @ Value::Object(_)) => Ok(object),
        Ok(_) => Err(invalid("the body must be a JSON object".to_owned())),
        Err(error) => Err(invalid(format!("the body is no JSON: {error}"))),
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

/// The field that is not there, where that is what is wrong.
fn missing(error: &serde_json::Error) -> Option<String> {
    let text = error.to_string();
    Some(text.strip_prefix("missing field `")?.split_once('`')?.0.to_owned())
}
