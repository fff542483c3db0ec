//! Typed access to keys of JSON or GGUF metadata, with errors that name the key.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// Maximum number of layers. Dense models have far fewer; a malicious count would become a long list.
pub(crate) const MAX_LAYERS: u32 = 1024;
/// Maximum width, length or vocabulary size: products of two stay far inside 64 bits.
pub(crate) const MAX_SIZE: u32 = 1 << 24;

/// A JSON or GGUF metadata value, as far as a config needs it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetaValue<'a> {
    /// A non-negative integer of any width.
    Unsigned(u64),
    /// A negative integer.
    Negative(i64),
    /// A float of any width.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A string.
    Text(&'a str),
    /// An array, by its length.
    Array(u64),
}

impl<'a> MetaValue<'a> {
    /// `None` for `null`, which stands for a default. An object counts as an array of its members.
    pub(super) fn from_json(value: &'a Value) -> Option<Self> {
        Some(match value {
            Value::Null => return None,
            Value::Bool(value) => MetaValue::Bool(*value),
            Value::String(value) => MetaValue::Text(value),
            Value::Array(values) => MetaValue::Array(values.len() as u64),
            Value::Object(members) => MetaValue::Array(members.len() as u64),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(value), _) => MetaValue::Unsigned(value),
                (None, Some(value)) => MetaValue::Negative(value),
                (None, None) => MetaValue::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
        })
    }

    fn describe(self) -> String {
        match self {
            MetaValue::Unsigned(value) => value.to_string(),
            MetaValue::Negative(value) => value.to_string(),
            MetaValue::Float(value) => value.to_string(),
            MetaValue::Bool(value) => value.to_string(),
            MetaValue::Text(text) => {
                format!("the string '{}'", text.chars().take(64).collect::<String>().escape_debug())
            }
            MetaValue::Array(count) => format!("a list of {count}"),
        }
    }
}

/// Keys with a common prefix.
pub(crate) struct Keys<'a> {
    /// The file, for messages.
    pub(crate) path: &'a Path,
    /// Prefix of each key, in messages and in the file.
    pub(crate) prefix: &'a str,
    /// Looks up a key, given without the prefix.
    pub(crate) get: &'a dyn Fn(&str) -> Option<MetaValue<'a>>,
}

impl<'a> Keys<'a> {
    pub(crate) fn error(&self, key: &str, reason: impl AsRef<str>) -> Error {
        Error::invalid(self.path, format!("{}{key} {}", self.prefix, reason.as_ref()))
    }

    pub(crate) fn unsupported(&self, what: impl Into<String>, fix: &str) -> Error {
        Error::Unsupported { path: self.path.to_path_buf(), what: what.into(), fix: fix.to_string() }
    }

    fn wrong(&self, key: &str, expected: &str, found: MetaValue) -> Error {
        self.error(key, format!("must be {expected}, but is {}", found.describe()))
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        (self.get)(key).is_some()
    }

    pub(crate) fn bounded(&self, key: &str, value: u64, limit: u32) -> Result<u32> {
        match u32::try_from(value) {
            Ok(value) if (1..=limit).contains(&value) => Ok(value),
            _ => Err(self.error(key, format!("is {value}, but must be between 1 and {limit}"))),
        }
    }

    /// A count from 1 to `limit`.
    pub(crate) fn size(&self, key: &str, limit: u32, default: Option<u32>) -> Result<u32> {
        match (self.get)(key) {
            Some(MetaValue::Unsigned(value)) => self.bounded(key, value, limit),
            Some(other) => Err(self.wrong(key, "a positive integer", other)),
            None => default.ok_or_else(|| self.error(key, "is missing")),
        }
    }

    /// A finite positive number.
    pub(crate) fn number(&self, key: &str, default: Option<f32>) -> Result<f32> {
        let value = match (self.get)(key) {
            Some(MetaValue::Unsigned(value)) => value as f32,
            Some(MetaValue::Float(value)) => value as f32,
            Some(other) => return Err(self.wrong(key, "a positive number", other)),
            None => return default.ok_or_else(|| self.error(key, "is missing")),
        };
        if value.is_finite() && value > 0.0 {
            return Ok(value);
        }
        Err(self.error(key, format!("is {value}, but must be a positive number")))
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match (self.get)(key) {
            None => Ok(None),
            Some(MetaValue::Text(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, "a string", other)),
        }
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>> {
        match (self.get)(key) {
            None => Ok(None),
            Some(MetaValue::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(self.wrong(key, "true or false", other)),
        }
    }

    pub(crate) fn token(&self, key: &str) -> Result<Option<u32>> {
        match (self.get)(key) {
            None => Ok(None),
            Some(MetaValue::Unsigned(value)) if value < u64::from(MAX_SIZE) => Ok(Some(value as u32)),
            Some(other) => Err(self.wrong(key, "a token id", other)),
        }
    }
}

/// The object at `key`; `None` if absent or null.
pub(super) fn object<'a>(
    path: &Path,
    parent: &'a Map<String, Value>,
    key: &str,
) -> Result<Option<&'a Map<String, Value>>> {
    match parent.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(members)) => Ok(Some(members)),
        Some(_) => Err(Error::invalid(path, format!("{key} must be an object"))),
    }
}
