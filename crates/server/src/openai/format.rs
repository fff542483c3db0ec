//! Fields that constrain the output: `response_format`, and those of other servers with the same purpose.

use grammar::ToolCallGrammar;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::parse::{normalise_integers, parse_field};
use crate::error::Error;

/// Path of the schema in a request.
const SCHEMA_FIELD: &str = "response_format.json_schema.schema";

/// Field of the tools in a request.
const TOOLS_FIELD: &str = "tools";

/// Maximum number of texts to choose from.
const MAX_CHOICES: usize = 1000;

/// `response_format` in the OpenAPI document.
#[derive(ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(dead_code, reason = "describes the schema; never constructed")]
pub(crate) enum ResponseFormatSchema {
    Text,
    JsonObject,
    JsonSchema { json_schema: JsonSchema },
}

/// `response_format` as it is parsed: flat, so that errors name the field.
#[derive(Debug, Deserialize)]
pub(crate) struct ResponseFormat {
    r#type: FormatType,
    /// Parsed only for the type `json_schema`.
    json_schema: Option<Value>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FormatType {
    Text,
    JsonObject,
    JsonSchema,
}

/// A JSON schema that the output must match.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct JsonSchema {
    /// Name of the schema, chosen by the client.
    #[allow(dead_code, reason = "only its type is checked")]
    name: String,
    /// JSON Schema. A schema with unsupported keywords is rejected; a supported one is enforced in full.
    #[schema(value_type = Object)]
    schema: Value,
    /// Ignored: the schema is always enforced.
    #[allow(dead_code, reason = "only its type is checked")]
    strict: Option<bool>,
}

/// vLLM's `structured_outputs`: exactly one of its fields.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct StructuredOutputs {
    /// JSON Schema, as an object or as text.
    #[schema(value_type = Option<Object>)]
    json: Option<Value>,
    /// Regular expression that the whole output matches.
    regex: Option<String>,
    /// The output is one of these texts.
    choice: Option<Vec<String>>,
    /// Grammar in Lark or GBNF.
    grammar: Option<String>,
    /// Any JSON object.
    json_object: Option<bool>,
    /// Not supported: must be unset.
    #[schema(value_type = Option<Object>)]
    structural_tag: Option<Value>,
    /// Not supported: must be unset.
    #[schema(value_type = Option<String>)]
    whitespace_pattern: Option<Value>,
}

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
    /// Tool calls, or output in the format that this field requests.
    ToolCalls(Box<ToolCallGrammar>, &'static str),
}

/// A constraint on the output, and the field that it comes from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Constraint {
    pub(crate) field: &'static str,
    pub(crate) kind: ConstraintKind,
}

impl Constraint {
    /// Of a completion that may call tools; without a call, its output follows the constraint of `format_field`.
    pub(crate) fn tool_calls(grammar: ToolCallGrammar, format_field: &'static str) -> Constraint {
        Constraint { field: TOOLS_FIELD, kind: ConstraintKind::ToolCalls(Box::new(grammar), format_field) }
    }

    /// The top-level field.
    pub(crate) fn top_field(&self) -> &'static str {
        self.field.split('.').next().unwrap_or(self.field)
    }

    /// JSON Schema, as an object or as text.
    pub(super) fn schema(field: &'static str, schema: &Value) -> Result<Constraint, Error> {
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

    pub(super) fn choice(field: &'static str, choices: &[String]) -> Result<Constraint, Error> {
        let invalid = |message: String| Err(Error::invalid_field(field, message));
        match choices.len() {
            0 => invalid("is empty: at least one text is required".to_owned()),
            1..=MAX_CHOICES => Ok(Constraint { field, kind: ConstraintKind::Choice(choices.to_vec()) }),
            count => invalid(format!("has {count} texts, but at most {MAX_CHOICES} are allowed")),
        }
    }

    pub(super) fn regex(field: &'static str, regex: &str) -> Constraint {
        Constraint { field, kind: ConstraintKind::Regex(regex.to_owned()) }
    }

    pub(super) fn grammar(field: &'static str, grammar: &str) -> Constraint {
        Constraint { field, kind: ConstraintKind::Grammar(grammar.to_owned()) }
    }
}

impl ResponseFormat {
    /// The constraint; `None` for text.
    pub(super) fn constraint(&self) -> Result<Option<Constraint>, Error> {
        const FIELD: &str = "response_format.json_schema";
        let schema = match (self.r#type, &self.json_schema) {
            (FormatType::Text, _) => return Ok(None),
            (FormatType::JsonObject, _) => {
                return Ok(Some(Constraint { field: SCHEMA_FIELD, kind: ConstraintKind::JsonObject }));
            }
            (FormatType::JsonSchema, None) => return Err(Error::missing_field(FIELD)),
            (FormatType::JsonSchema, Some(given)) => parse_field::<JsonSchema>(FIELD, given)?.schema,
        };
        match schema {
            Value::Object(_) => Constraint::schema(SCHEMA_FIELD, &schema).map(Some),
            _ => Err(Error::invalid_field(SCHEMA_FIELD, "must be an object")),
        }
    }
}

impl StructuredOutputs {
    pub(super) fn constraints(&self) -> Result<Vec<Constraint>, Error> {
        for (name, value) in
            [("structural_tag", &self.structural_tag), ("whitespace_pattern", &self.whitespace_pattern)]
        {
            if value.as_ref().is_some_and(|value| !value.is_null()) {
                return Err(Error::unsupported(format!("structured_outputs.{name}"), "this constraint"));
            }
        }
        let mut found = Vec::new();
        if let Some(schema) = self.json.as_ref().filter(|schema| !schema.is_null()) {
            found.push(Constraint::schema("structured_outputs.json", schema)?);
        }
        if let Some(regex) = &self.regex {
            found.push(Constraint::regex("structured_outputs.regex", regex));
        }
        if let Some(choices) = &self.choice {
            found.push(Constraint::choice("structured_outputs.choice", choices)?);
        }
        if let Some(grammar) = &self.grammar {
            found.push(Constraint::grammar("structured_outputs.grammar", grammar));
        }
        if self.json_object == Some(true) {
            let field = "structured_outputs.json_object";
            found.push(Constraint { field, kind: ConstraintKind::JsonObject });
        }
        Ok(found)
    }
}
