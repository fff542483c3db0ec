//! Fields that would change the response, but are not implemented. They are rejected: a client must not believe that
//! they had an effect.

use serde_json::Value;

use crate::error::Error;

/// A field: its name, its meaning and its neutral values.
pub(crate) type UnsupportedField = (&'static str, &'static str, Neutral);

/// Values that leave the response as it is, besides null.
pub(crate) enum Neutral {
    /// False, zero, and empty texts and lists.
    Empty,
    /// True.
    True,
    /// This number.
    Number(f64),
}

/// An error if a body has one of these fields with a value that would change the response.
pub(crate) fn check_unsupported(body: &Value, fields: &[UnsupportedField]) -> Result<(), Error> {
    for (name, feature, neutral) in fields {
        if let Some(value) = body.get(name)
            && !neutral.allows(value)
        {
            return Err(Error::unsupported(*name, *feature));
        }
    }
    Ok(())
}

impl Neutral {
    fn allows(&self, value: &Value) -> bool {
        let is_empty = match value {
            Value::Null | Value::Bool(false) => true,
            Value::Bool(true) => false,
            Value::Number(number) => number.as_f64() == Some(0.0),
            Value::String(text) => text.is_empty(),
            Value::Array(values) => values.is_empty(),
            Value::Object(fields) => fields.is_empty(),
        };
        match self {
            Neutral::Empty => is_empty,
            Neutral::True => matches!(value, Value::Null | Value::Bool(true)),
            Neutral::Number(neutral) => value.is_null() || value.as_f64() == Some(*neutral),
        }
    }
}
