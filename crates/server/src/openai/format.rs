//! `response_format`: constraints on the output.

use grammar::ToolCallGrammar;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::parse::parse_field;
use crate::error::Error;

/// Path of the schema in a request.
pub(crate) const SCHEMA_FIELD: &str = "response_format.json_schema.schema";

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

/// A constraint on the output.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Constraint {
    /// Any JSON object.
    JsonObject,
    /// JSON that matches this schema.
    JsonSchema(Value),
    /// Tool calls, or output in the requested format.
    ToolCalls(Box<ToolCallGrammar>),
}

impl ResponseFormat {
    /// The constraint; `None` for text.
    pub(crate) fn constraint(&self) -> Result<Option<Constraint>, Error> {
        const FIELD: &str = "response_format.json_schema";
        let schema = match (self.r#type, &self.json_schema) {
            (FormatType::Text, _) => return Ok(None),
            (FormatType::JsonObject, _) => return Ok(Some(Constraint::JsonObject)),
            (FormatType::JsonSchema, None) => return Err(Error::invalid_field(FIELD, "is required")),
            (FormatType::JsonSchema, Some(given)) => parse_field::<JsonSchema>(FIELD, given)?.schema,
        };
        match schema {
            Value::Object(_) => Ok(Some(Constraint::JsonSchema(schema))),
            _ => Err(Error::invalid_field(SCHEMA_FIELD, "must be an object")),
        }
    }
}
