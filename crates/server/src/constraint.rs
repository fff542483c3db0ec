//! Constraints on the output of a request, which `grammars` compiles.

use grammar::ToolCallGrammar;
use serde_json::Value;

use crate::error::Error;
use crate::parse::normalise_integers;

/// Field of the tools in a request.
const TOOLS_FIELD: &str = "tools";

/// Maximum number of texts to choose from.
const MAX_CHOICES: usize = 1000;

/// What the output must be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ConstraintKind {
    /// Any JSON object.
    JsonObject,
    /// JSON that matches this schema.
    JsonSchema(Value),
    /// Text that this regular expression matches.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Text of a grammar in Lark or GBNF.
    Grammar(String),
    /// Tool calls, or output in another format.
    ToolCalls {
        grammar: Box<ToolCallGrammar>,
        /// The field that requests the other format.
        format_field: &'static str,
        /// The field of a tool that has its schema.
        schema_field: &'static str,
    },
}

/// A constraint on the output, and the field that it comes from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Constraint {
    pub(crate) field: &'static str,
    pub(crate) kind: ConstraintKind,
}

impl Constraint {
    /// Of a completion that may call tools; without a call, its output follows the constraint of `format_field`.
    pub(crate) fn tool_calls(
        grammar: ToolCallGrammar,
        format_field: &'static str,
        schema_field: &'static str,
    ) -> Constraint {
        let grammar = Box::new(grammar);
        let kind = ConstraintKind::ToolCalls { grammar, format_field, schema_field };
        Constraint { field: TOOLS_FIELD, kind }
    }

    /// The top-level field.
    pub(crate) fn top_field(&self) -> &'static str {
        self.field.split('.').next().unwrap_or(self.field)
    }

    /// JSON Schema, as an object or as text.
    pub(crate) fn schema(field: &'static str, schema: &Value) -> Result<Constraint, Error> {
        let parsed = match schema {
            Value::String(text) => {
                let mut schema = serde_json::from_str(text)
                    .map_err(|error| Error::invalid_field(field, format!("is not JSON: {error}")))?;
                normalise_integers(&mut schema);
                schema
            }
            schema => schema.clone(),
        };
        match parsed {
            Value::Object(_) => Ok(Constraint { field, kind: ConstraintKind::JsonSchema(parsed) }),
            _ => Err(Error::invalid_field(field, "must be an object")),
        }
    }

    pub(crate) fn choice(field: &'static str, choices: &[String]) -> Result<Constraint, Error> {
        let invalid = |message: String| Err(Error::invalid_field(field, message));
        match choices.len() {
            0 => invalid("is empty: at least one text is required".to_owned()),
            1..=MAX_CHOICES => Ok(Constraint { field, kind: ConstraintKind::Choice(choices.to_vec()) }),
            count => invalid(format!("has {count} texts, but at most {MAX_CHOICES} are allowed")),
        }
    }

    pub(crate) fn regex(field: &'static str, regex: &str) -> Constraint {
        Constraint { field, kind: ConstraintKind::Regex(regex.to_owned()) }
    }

    pub(crate) fn grammar(field: &'static str, grammar: &str) -> Constraint {
        Constraint { field, kind: ConstraintKind::Grammar(grammar.to_owned()) }
    }
}
