//! Parsing with errors that name the field.

use serde::Deserialize;
use serde_json::Value;

use crate::error::Error;

/// Parses a body to a JSON object.
pub(crate) fn parse_json(body: &[u8]) -> Result<Value, Error> {
    let invalid = |message| Error::Invalid { param: None, message };
    match serde_json::from_slice(body) {
        Ok(mut object @ Value::Object(_)) => {
            normalise_integers(&mut object);
            Ok(object)
        }
        Ok(_) => Err(invalid("the body must be a JSON object".to_owned())),
        Err(error) => Err(invalid(format!("the body is not valid JSON: {error}"))),
    }
}

/// The largest range in which a double represents all integers: ±2⁵³.
const MAX_EXACT: f64 = (1u64 << 53) as f64;

/// Turns numbers such as 16.0 into integers: JSON Schema counts them as integers, and some clients have no
/// integer type. Recursion is limited by the parser, to 128 levels.
fn normalise_integers(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            if let Some(number) = number.as_f64().filter(|n| n.fract() == 0.0 && n.abs() <= MAX_EXACT) {
                *value = Value::from(number as i64);
            }
        }
        Value::Array(values) => values.iter_mut().for_each(normalise_integers),
        Value::Object(fields) => fields.values_mut().for_each(normalise_integers),
        _ => {}
    }
}

/// Reads the fields of `T`; an error names the field.
pub(crate) fn parse<'de, T: Deserialize<'de>>(body: &'de Value) -> Result<T, Error> {
    serde_path_to_error::deserialize(body).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        match missing_field(&inner) {
            Some(field) if path == "." => Error::invalid_field(field, "is required"),
            Some(field) => Error::invalid_field(format!("{path}.{field}"), "is required"),
            None => Error::invalid_field(path, inner),
        }
    })
}

/// Reads the value of a field; paths in errors start with the field.
pub(super) fn parse_field<'de, T: Deserialize<'de>>(field: &str, value: &'de Value) -> Result<T, Error> {
    parse(value).map_err(|error| match error {
        Error::Invalid { param: Some(param), message } => {
            let path = if param == "." { field.to_owned() } else { format!("{field}.{param}") };
            let message = message.replacen(&format!("'{param}'"), &format!("'{path}'"), 1);
            Error::Invalid { param: Some(path), message }
        }
        error => error,
    })
}

/// The name of a missing field, if that is the error.
fn missing_field(error: &serde_json::Error) -> Option<String> {
    let text = error.to_string();
    Some(text.strip_prefix("missing field `")?.split_once('`')?.0.to_owned())
}

/// Checks that a field of an unimplemented feature is unset: absent, null, false or an empty list.
pub(super) fn require_unset(name: &str, value: &Option<Value>, feature: &str) -> Result<(), Error> {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => Ok(()),
        Some(Value::Array(list)) if list.is_empty() => Ok(()),
        Some(_) => Err(Error::unsupported(name, feature)),
    }
}
