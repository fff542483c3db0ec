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
pub(crate) fn normalise_integers(value: &mut Value) {
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
            Some(field) if path == "." => Error::missing_field(field),
            Some(field) => Error::missing_field(format!("{path}.{field}")),
            None => Error::invalid_field(path, in_json_terms(&inner.to_string())),
        }
    })
}

/// Reads the value of a field; paths in errors start with the field.
pub(crate) fn parse_field<'de, T: Deserialize<'de>>(field: &str, value: &'de Value) -> Result<T, Error> {
    parse(value).map_err(|error| match error {
        Error::Invalid { param: Some(param), message } => {
            let path = if param == "." { field.to_owned() } else { format!("{field}.{param}") };
            let message = message.replacen(&format!("'{param}'"), &format!("'{path}'"), 1);
            Error::Invalid { param: Some(path), message }
        }
        Error::Missing(param) => Error::missing_field(format!("{field}.{param}")),
        error => error,
    })
}

/// Maximum length of a value in an error, in characters.
const MAX_SHOWN: usize = 60;

/// serde's message about a value of the wrong type, in the terms of JSON rather than of Rust.
fn in_json_terms(message: &str) -> String {
    let Some(rest) =
        message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "))
    else {
        return message.to_owned();
    };
    let Some((found, expected)) = rest.rsplit_once(", expected ") else { return message.to_owned() };
    let expected = match expected {
        "u32" => "an integer from 0 to 4294967295",
        "u8" | "u16" | "u64" | "usize" => "a non-negative integer",
        "i8" | "i16" | "i32" | "i64" => "an integer",
        "f32" | "f64" => "a number",
        "a sequence" => "an array",
        "a map" => "an object",
        other if other.starts_with("struct ") => "an object",
        other => other,
    };
    let kind = |prefix: &str, kind: &str| {
        let value = found.strip_prefix(prefix)?.trim().trim_matches('`');
        let shown: String = value.chars().take(MAX_SHOWN).collect();
        let rest = if shown.len() < value.len() { "…" } else { "" };
        Some(format!("the {kind} {shown}{rest}"))
    };
    let found = match found {
        "map" => "an object".to_owned(),
        "sequence" => "an array".to_owned(),
        "null" | "unit value" => "null".to_owned(),
        found => kind("integer", "integer")
            .or_else(|| kind("floating point", "number"))
            .or_else(|| kind("boolean", "boolean"))
            .or_else(|| kind("string", "string"))
            .unwrap_or_else(|| found.to_owned()),
    };
    format!("must be {expected}, but is {found}")
}

/// The name of a missing field, if that is the error.
fn missing_field(error: &serde_json::Error) -> Option<String> {
    let text = error.to_string();
    Some(text.strip_prefix("missing field `")?.split_once('`')?.0.to_owned())
}

/// Checks that a field of an unimplemented feature is unset: absent, null, false or an empty list.
pub(crate) fn require_unset(name: &str, value: &Option<Value>, feature: &str) -> Result<(), Error> {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => Ok(()),
        Some(Value::Array(list)) if list.is_empty() => Ok(()),
        Some(_) => Err(Error::unsupported(name, feature)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "only errors are looked at")]
    struct Fields {
        count: Option<u32>,
        share: Option<f64>,
        on: Option<bool>,
        name: Option<String>,
        list: Option<Vec<i64>>,
        inner: Option<Inner>,
    }

    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "only errors are looked at")]
    struct Inner {
        needed: u32,
    }

    #[test]
    fn errors_name_the_types_of_json() {
        for (body, message) in [
            (
                json!({ "count": "3" }),
                "'count': must be an integer from 0 to 4294967295, but is the string \"3\"",
            ),
            (
                json!({ "count": -1 }),
                "'count': must be an integer from 0 to 4294967295, but is the integer -1",
            ),
            (
                json!({ "count": 1.5 }),
                "'count': must be an integer from 0 to 4294967295, but is the number 1.5",
            ),
            (
                json!({ "count": 5_000_000_000_u64 }),
                "'count': must be an integer from 0 to 4294967295, but is the integer 5000000000",
            ),
            (json!({ "share": true }), "'share': must be a number, but is the boolean true"),
            (json!({ "on": null, "name": 1 }), "'name': must be a string, but is the integer 1"),
            (json!({ "list": {} }), "'list': must be an array, but is an object"),
            (json!({ "list": [1, "a"] }), "'list[1]': must be an integer, but is the string \"a\""),
            (json!({ "inner": 1 }), "'inner': must be an object, but is the integer 1"),
            (json!({ "inner": {} }), "'inner.needed': is required"),
        ] {
            assert_eq!(parse::<Fields>(&body).unwrap_err().to_string(), message);
        }
    }
}
