//! Typed access to keys of JSON or GGUF metadata, with errors that name the key.

use std::path::Path;

use serde_json::{Map, Value};

use crate::{
    error::{Error, Result},
    gguf::Array,
};

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
    /// A list of integers or booleans (GGUF).
    Integers(&'a Array),
    /// Any other array, by its length.
    Array(u64),
    /// `null` (JSON).
    Null,
}

impl<'a> MetaValue<'a> {
    /// An object counts as an array of its members.
    pub(crate) fn from_json(value: &'a Value) -> Self {
        match value {
            Value::Null => MetaValue::Null,
            Value::Bool(value) => MetaValue::Bool(*value),
            Value::String(value) => MetaValue::Text(value),
            Value::Array(values) => MetaValue::Array(values.len() as u64),
            Value::Object(members) => MetaValue::Array(members.len() as u64),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(value), _) => MetaValue::Unsigned(value),
                (None, Some(value)) => MetaValue::Negative(value),
                (None, None) => MetaValue::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
        }
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
            MetaValue::Integers(list) => format!("a list of {}", list.len()),
            MetaValue::Null => "null".to_string(),
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

    /// The value of a key; null stands for a default.
    fn value(&self, key: &str) -> Option<MetaValue<'a>> {
        (self.get)(key).filter(|value| *value != MetaValue::Null)
    }

    /// Whether a key is null, for those whose null is not their default.
    pub(crate) fn is_null(&self, key: &str) -> bool {
        (self.get)(key) == Some(MetaValue::Null)
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    pub(crate) fn bounded(&self, key: &str, value: u64, limit: u32) -> Result<u32> {
        match u32::try_from(value) {
            Ok(value) if (1..=limit).contains(&value) => Ok(value),
            _ => Err(self.error(key, format!("is {value}, but must be between 1 and {limit}"))),
        }
    }

    /// A count from 1 to `limit`.
    pub(crate) fn size(&self, key: &str, limit: u32, default: Option<u32>) -> Result<u32> {
        match self.value(key) {
            Some(MetaValue::Unsigned(value)) => self.bounded(key, value, limit),
            Some(other) => Err(self.wrong(key, "a positive integer", other)),
            None => default.ok_or_else(|| self.error(key, "is missing")),
        }
    }

    /// A count up to `limit`; `None` for 0.
    pub(crate) fn count(&self, key: &str, limit: u32, default: u32) -> Result<Option<u32>> {
        match self.value(key) {
            Some(MetaValue::Unsigned(0)) => Ok(None),
            None if default == 0 => Ok(None),
            _ => self.size(key, limit, Some(default)).map(Some),
        }
    }

    /// A count from 1 to `limit` per layer, from a list or from one number for all layers.
    pub(crate) fn sizes(&self, key: &str, layers: u32, limit: u32, default: Option<u32>) -> Result<Vec<u32>> {
        let Some(MetaValue::Integers(list)) = self.value(key) else {
            return Ok(vec![self.size(key, limit, default)?; layers as usize]);
        };
        self.check_length(key, list, layers)?;
        let value = |index| match list.integer(index) {
            Some(value) => self.bounded(key, value, limit),
            None => Err(self.wrong(key, "positive integers", MetaValue::Integers(list))),
        };
        (0..layers as usize).map(value).collect()
    }

    /// A list with one boolean per layer.
    pub(crate) fn flags(&self, key: &str, layers: u32) -> Result<Option<Vec<bool>>> {
        match self.value(key) {
            None => Ok(None),
            Some(MetaValue::Integers(list @ Array::Bool(flags))) => {
                self.check_length(key, list, layers)?;
                Ok(Some(flags.clone()))
            }
            Some(other) => Err(self.wrong(key, "a list of booleans", other)),
        }
    }

    fn check_length(&self, key: &str, list: &Array, layers: u32) -> Result<()> {
        match list.len() == layers as usize {
            true => Ok(()),
            false => Err(self.error(key, format!("has {} entries for {layers} layers", list.len()))),
        }
    }

    /// A finite positive number.
    pub(crate) fn number(&self, key: &str, default: Option<f32>) -> Result<f32> {
        let value = match self.value(key) {
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

    /// The same where it may be absent.
    pub(crate) fn optional_number(&self, key: &str) -> Result<Option<f32>> {
        if self.has(key) { self.number(key, None).map(Some) } else { Ok(None) }
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.value(key) {
            None => Ok(None),
            Some(MetaValue::Text(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, "a string", other)),
        }
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.value(key) {
            None => Ok(None),
            Some(MetaValue::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(self.wrong(key, "true or false", other)),
        }
    }

    pub(crate) fn token(&self, key: &str) -> Result<Option<u32>> {
        match self.value(key) {
            None => Ok(None),
            Some(MetaValue::Unsigned(value)) if value < u64::from(MAX_SIZE) => Ok(Some(value as u32)),
            Some(other) => Err(self.wrong(key, "a token id", other)),
        }
    }
}

/// The object at `key`; `None` if absent or null.
pub(crate) fn object<'a>(
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
