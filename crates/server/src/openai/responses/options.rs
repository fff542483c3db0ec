//! Request fields that are objects of their own, and appear in responses.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::constraint::Constraint;
use crate::error::Error;
use crate::openai::format::FormatType;

/// Path of the schema in a request.
const SCHEMA_FIELD: &str = "text.format.schema";

/// Format of the output.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[schema(as = ResponseTextConfig)]
pub(crate) struct TextConfig {
    #[serde(default, deserialize_with = "or_default")]
    format: TextFormat,
    /// Accepted, without effect.
    #[serde(default, deserialize_with = "or_default")]
    verbosity: Verbosity,
}

/// Null is the default, too.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Constraint on the output.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
struct TextFormat {
    r#type: FormatType,
    /// Of a schema: its name, chosen by the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// Of a schema: not shown to the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// JSON Schema. A schema with unsupported keywords is rejected; a supported one is enforced in full.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    schema: Option<Value>,
    /// Without effect: the schema is always enforced.
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Verbosity {
    Low,
    #[default]
    Medium,
    High,
}

impl TextConfig {
    /// The constraint on the output; `None` for text.
    pub(super) fn constraint(&self) -> Result<Option<Constraint>, Error> {
        let TextFormat { r#type, name, schema, .. } = &self.format;
        if matches!(r#type, FormatType::JsonSchema) && name.is_none() {
            return Err(Error::missing_field("text.format.name"));
        }
        r#type.constraint(SCHEMA_FIELD, || schema.clone().ok_or_else(|| Error::missing_field(SCHEMA_FIELD)))
    }
}

/// Whether the model thinks before it answers.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[schema(as = ResponseReasoning)]
pub(crate) struct Reasoning {
    /// "none" switches thinking off, any other value on, if the template has a switch for it.
    pub(super) effort: Option<String>,
    /// Accepted, without effect: responses contain the thinking itself.
    summary: Option<ReasoningSummary>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum ReasoningSummary {
    Auto,
    Concise,
    Detailed,
}

/// What happens to an input that is too long.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Truncation {
    /// The oldest items are left out.
    Auto,
    /// The request is rejected.
    #[default]
    Disabled,
}
