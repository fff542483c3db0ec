//! Preparing a JSON schema for llguidance.

use llguidance::JsonCompileOptions;
use serde_json::{Map, Value};

use crate::{
    Error, Result,
    limits::{self, MAX_DEPTH, MAX_MULTIPLE},
};

/// The subject of errors about the schema of a completion.
pub const SCHEMA: &str = "the JSON schema";

/// White space between two JSON tokens: one space, as models write it, or a line break with indentation. Only
/// one of these at a time, so that a completion cannot be endless white space.
const WHITESPACE: &str = r" |\r?\n[ \t]{0,32}";

/// A schema with the options for completions that are JSON only. Fails if it exceeds the limits.
pub(crate) fn prepare(schema: &Value) -> Result<Value> {
    let options =
        JsonCompileOptions { whitespace_pattern: Some(WHITESPACE.into()), ..JsonCompileOptions::default() };
    with_options(schema, &options)
}

/// A schema with options. Fails if it exceeds the limits.
pub(crate) fn with_options(schema: &Value, options: &JsonCompileOptions) -> Result<Value> {
    if depth(schema) > MAX_DEPTH {
        return Err(Error::invalid(SCHEMA, &format!("it is nested deeper than {MAX_DEPTH} levels")));
    }
    let mut prepared = match schema {
        Value::Object(_) => schema.clone(),
        // `true` allows everything, by the specification.
        Value::Bool(true) => Value::Object(Map::new()),
        Value::Bool(false) => return Err(Error::invalid(SCHEMA, "it is false, which allows nothing")),
        _ => return Err(Error::invalid(SCHEMA, "it must be an object")),
    };
    limits::check_length(SCHEMA, &schema.to_string())?;
    check_multiples(schema)?;
    options.apply_to(&mut prepared);
    Ok(prepared)
}

/// Bounds the automata that `multipleOf` makes. The bound applies to all values together: several may apply
/// to one number.
pub(crate) fn check_multiples(schema: &Value) -> Result<()> {
    let mut common = 1;
    let mut pending = vec![schema];
    while let Some(value) = pending.pop() {
        match value {
            Value::Array(list) => pending.extend(list),
            Value::Object(fields) => {
                // These hold values, not schemas.
                let is_schema = |key: &str| !matches!(key, "const" | "enum" | "default" | "examples");
                pending.extend(fields.iter().filter(|(key, _)| is_schema(key)).map(|(_, value)| value));
                if let Some(Value::Number(number)) = fields.get("multipleOf") {
                    let multiple = coefficient(&number.to_string())
                        .and_then(|multiple| least_common_multiple(common, multiple));
                    common = multiple.filter(|multiple| *multiple <= MAX_MULTIPLE).ok_or_else(|| {
                        let reason = format!(
                            "multipleOf {number}, combined with the others, exceeds the work limit: use rounder numbers"
                        );
                        Error::invalid(SCHEMA, &reason)
                    })?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// The digits of a number without its power of ten.
fn coefficient(number: &str) -> Option<u64> {
    let digits = number.split(['e', 'E']).next()?.replace(['.', '-'], "");
    match digits.trim_matches('0') {
        "" => Some(1),
        digits => digits.parse().ok(),
    }
}

fn least_common_multiple(a: u64, b: u64) -> Option<u64> {
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (a / divisor.max(1)).checked_mul(b)
}

/// Nesting depth, computed without recursion.
fn depth(value: &Value) -> usize {
    let mut deepest = 0;
    let mut pending = vec![(value, 1)];
    while let Some((value, level)) = pending.pop() {
        deepest = deepest.max(level);
        match value {
            Value::Array(list) => pending.extend(list.iter().map(|value| (value, level + 1))),
            Value::Object(fields) => pending.extend(fields.values().map(|value| (value, level + 1))),
            _ => {}
        }
    }
    deepest
}
