//! Fields that constrain the output: `response_format`, and those of other servers with the same purpose.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::constraint::{Constraint, ConstraintKind};
use crate::error::Error;
use crate::parse::parse_field;

/// Path of the schema in a request.
const SCHEMA_FIELD: &str = "response_format.json_schema.schema";

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

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FormatType {
    #[default]
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

impl ResponseFormat {
    /// The constraint; `None` for text.
    pub(super) fn constraint(&self) -> Result<Option<Constraint>, Error> {
        const FIELD: &str = "response_format.json_schema";
        self.r#type.constraint(SCHEMA_FIELD, || match &self.json_schema {
            None => Err(Error::missing_field(FIELD)),
            Some(given) => Ok(parse_field::<JsonSchema>(FIELD, given)?.schema),
        })
    }
}

impl FormatType {
    /// The constraint of a format, whose schema is the field `field`; `None` for text.
    pub(super) fn constraint(
        self,
        field: &'static str,
        schema: impl FnOnce() -> Result<Value, Error>,
    ) -> Result<Option<Constraint>, Error> {
        match self {
            FormatType::Text => Ok(None),
            FormatType::JsonObject => Ok(Some(Constraint { field, kind: ConstraintKind::JsonObject })),
            FormatType::JsonSchema => match schema()? {
                schema @ Value::Object(_) => Constraint::schema(field, &schema).map(Some),
                _ => Err(Error::invalid_field(field, "must be an object")),
            },
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
