//! What an answer must look like: `response_format`.

use grammar::ToolCallGrammar;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::error::Error;

/// The field that a schema stands in.
pub(crate) const SCHEMA: &str = "response_format.json_schema.schema";

/// What an answer must look like: the shape in the schema.
#[derive(ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(dead_code, reason = "only described, never made")]
pub(crate) enum AnyFormat {
    Text,
    JsonObject,
    JsonSchema { json_schema: JsonSchema },
}

/// The same as it is read, so that errors name the field.
#[derive(Debug, Deserialize)]
pub(crate) struct ResponseFormat {
    r#type: Format,
    /// Only looked at where the type says so.
    json_schema: Option<Value>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Format {
    Text,
    JsonObject,
    JsonSchema,
}

/// A schema that the answer is held to.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct JsonSchema {
    /// What the client calls it.
    #[allow(dead_code, reason = "only its type is checked")]
    name: String,
    /// JSON Schema, as far as it is supported; the answer is held to all of it.
    #[schema(value_type = Object)]
    schema: Value,
    /// Makes no difference: the answer is held to the schema in any case.
    #[allow(dead_code, reason = "only its type is checked")]
    strict: Option<bool>,
}

/// What an answer is held to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shape {
    /// Any JSON object.
    Object,
    /// JSON that this schema allows.
    Schema(Value),
    /// Calls of tools, or what the request's format says.
    Calls(Box<ToolCallGrammar>),
}

impl ResponseFormat {
    /// What the answer is held to; nothing where it is text.
    pub(crate) fn shape(&self) -> Result<Option<Shape>, Error> {
        const FIELD: &str = "response_format.json_schema";
        let schema = match (self.r#type, &self.json_schema) {
            (Format::Text, _) => return Ok(None),
            (Format::JsonObject, _) => return Ok(Some(Shape::Object)),
            (Format::JsonSchema, None) => return Err(Error::field(FIELD, "is required")),
            (Format::JsonSchema, Some(given)) => super::read_at::<JsonSchema>(FIELD, given)?.schema,
        };
        match schema {
            Value::Object(_) => Ok(Some(Shape::Schema(schema))),
            _ => Err(Error::field(SCHEMA, "must be an object")),
        }
    }
}
