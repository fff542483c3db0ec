//! Tools: `tools` and `tool_choice`.

use serde::Deserialize;
use serde_json::Value;
use text::Tool;
use utoipa::ToSchema;

use super::content::MAX_SHOWN;
use crate::error::Error;
use crate::tools::ToolOptions;

/// Maximum length of a tool's name.
pub(super) const MAX_NAME: usize = 128;

/// Tool names as a regular expression, for the OpenAPI document.
pub(crate) const NAME_PATTERN: &str = "^[a-zA-Z0-9_-]{1,128}$";

/// The field of a tool that has its schema.
const SCHEMA_FIELD: &str = "input_schema";

/// A tool that the model may call.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ClientTool {
    /// "custom", or unset: the client executes the calls. Tools that the server would execute or define are not
    /// supported.
    r#type: Option<String>,
    name: Option<String>,
    /// Shown to the model.
    description: Option<String>,
    /// JSON Schema of the arguments, an object.
    #[schema(value_type = Object)]
    input_schema: Option<Value>,
    /// If set, a schema with unsupported keywords is rejected. Otherwise those keywords are not enforced.
    strict: Option<bool>,
}

/// Which tools may or must be called.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ToolChoice {
    r#type: ToolChoiceType,
    /// The tool that must be called, for the type "tool".
    name: Option<String>,
    /// Whether a message may contain at most one tool call.
    disable_parallel_tool_use: Option<bool>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
enum ToolChoiceType {
    /// The model decides whether to call tools.
    Auto,
    /// At least one tool is called.
    Any,
    /// This tool is called.
    Tool,
    /// No tool is called.
    None,
}

/// Validates `tools` and `tool_choice`. `None` if no tool may be called.
pub(super) fn tool_options(
    tools: Vec<ClientTool>,
    choice: Option<&ToolChoice>,
) -> Result<Option<ToolOptions>, Error> {
    let parallel = !choice.and_then(|choice| choice.disable_parallel_tool_use).unwrap_or(false);
    let mut options = ToolOptions::new(tools.len(), parallel, SCHEMA_FIELD)?;
    for (index, ClientTool { r#type, name, description, input_schema, strict }) in
        tools.into_iter().enumerate()
    {
        let path = |field: &str| format!("tools[{index}].{field}");
        if let Some(other) = r#type.filter(|kind| kind != "custom") {
            let shown: String = other.chars().take(MAX_SHOWN).collect();
            return Err(Error::unsupported(
                path("type"),
                format!("the tool {shown:?}, which Anthropic defines,"),
            ));
        }
        let name = name.ok_or_else(|| Error::missing_field(path("name")))?;
        let parameters = Some(input_schema.ok_or_else(|| Error::missing_field(path(SCHEMA_FIELD)))?);
        let tool = Tool { name, description, parameters };
        options.push(tool, strict.unwrap_or(false), MAX_NAME, &path("name"))?;
    }
    let all = (0..options.tools.len()).collect();
    match choice.map(|choice| (choice.r#type, &choice.name)) {
        None | Some((ToolChoiceType::Auto, _)) => options.allowing(all, false),
        Some((ToolChoiceType::Any, _)) => options.allowing(all, true),
        Some((ToolChoiceType::None, _)) => Ok(None),
        Some((ToolChoiceType::Tool, None)) => Err(Error::missing_field("tool_choice.name")),
        Some((ToolChoiceType::Tool, Some(name))) => {
            let named = options.find("tool_choice.name", name)?;
            options.allowing(vec![named], true)
        }
    }
}
