//! A schema as it is given to the automata.

use llguidance::JsonCompileOptions;
use serde_json::{Map, Value};

use crate::{
    Error, Result,
    limits::{self, DEPTH, MULTIPLE},
};

/// What errors call a schema that a whole answer is held to.
pub const SCHEMA: &str = "the JSON schema";

/// White space between two parts of JSON: a space, as models write it, or a line break with indentation. Never more than one of these,
/// so that no answer is endless white space.
const SPACE: &str = r" |\r?\n[ \t]{0,32}";

/// A schema with the settings of answers that are JSON and nothing else, if it is small enough.
pub(crate) fn prepared(schema: &Value) -> Result<Value> {
    let options =
        JsonCompileOptions { whitespace_pattern: Some(SPACE.into()), ..JsonCompileOptions::default() };
    with(schema, &options)
}

/// A schema with settings, if it is small enough.
pub(crate) fn with(schema: &Value, options: &JsonCompileOptions) -> Result<Value> {
    if depth(schema) > DEPTH {
        return Err(Error::refused(SCHEMA, &format!("it is nested deeper than {DEPTH} levels")));
    }
    let mut prepared = match schema {
        Value::Object(_) => schema.clone(),
        // What allows everything, by the standard.
        Value::Bool(true) => Value::Object(Map::new()),
        Value::Bool(false) => return Err(Error::refused(SCHEMA, "it is false, which allows nothing")),
        _ => return Err(Error::refused(SCHEMA, "it must be an object")),
    };
    limits::length(SCHEMA, &schema.to_string())?;
    check_multiples(schema)?;
    options.apply_to(&mut prepared);
    Ok(prepared)
}

/// Whether what numbers must be multiples of makes automata of a bounded size. All of them together: they may meet in one number.
pub(crate) fn check_multiples(schema: &Value) -> Result<()> {
    let mut common = 1;
    let mut left = vec![schema];
    while let Some(value) = left.pop() {
        match value {
            Value::Array(list) => left.extend(list),
            Value::Object(fields) => {
                // What these hold are values, not schemas.
                let is_schema = |key: &str| !matches!(key, "const" | "enum" | "default" | "examples");
                left.extend(fields.iter().filter(|(key, _)| is_schema(key)).map(|(_, value)| value));
                if let Some(Value::Number(number)) = fields.get("multipleOf") {
                    let one = coefficient(&number.to_string());
                    let all = one.and_then(|one| least_common_multiple(common, one));
                    common = all.filter(|all| *all <= MULTIPLE).ok_or_else(|| {
                        let why = format!("multipleOf {number}, with all others, is more work than is allowed: use rounder numbers");
                        Error::refused(SCHEMA, &why)
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

/// Levels of nesting, found without recursion.
fn depth(value: &Value) -> usize {
    let mut deepest = 0;
    let mut left = vec![(value, 1)];
    while let Some((value, level)) = left.pop() {
        deepest = deepest.max(level);
        match value {
            Value::Array(list) => left.extend(list.iter().map(|value| (value, level + 1))),
            Value::Object(fields) => left.extend(fields.values().map(|value| (value, level + 1))),
            _ => {}
        }
    }
    deepest
}
