//! Tools: `tools` and `tool_choice`.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use text::Tool;
use utoipa::ToSchema;

use super::input::MAX_SHOWN;
use crate::error::Error;
use crate::openai::tools::{AllowedMode, AllowedType, MAX_NAME, ToolChoice, ToolChoiceMode, ToolType};
use crate::parse::parse_field;
use crate::tools::ToolOptions;

/// The field of a tool that has its schema.
const SCHEMA_FIELD: &str = "parameters";

/// A tool that the model may call.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct FunctionTool {
    /// "function". Tools that the server would execute are not supported.
    r#type: String,
    name: Option<String>,
    /// Shown to the model.
    description: Option<String>,
    /// JSON Schema of the arguments, an object. Without it the function has no arguments.
    #[schema(value_type = Option<Object>)]
    parameters: Option<Value>,
    /// If set, a schema with unsupported keywords is rejected. Otherwise those keywords are not enforced.
    strict: Option<bool>,
}

/// `tool_choice` in the OpenAPI document.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "describes the schema; never constructed")]
pub(crate) enum FunctionChoiceSchema {
    Mode(ToolChoiceMode),
    Named(FunctionChoice),
    Allowed(AllowedFunctions),
}

/// A tool by name.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct FunctionChoice {
    #[allow(dead_code, reason = "only its value is checked")]
    r#type: ToolType,
    name: String,
}

/// A subset of the tools.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct AllowedFunctions {
    #[allow(dead_code, reason = "only its value is checked")]
    r#type: AllowedType,
    mode: AllowedMode,
    #[schema(min_items = 1)]
    tools: Vec<FunctionChoice>,
}

/// Validates `tools`, `tool_choice` and `parallel_tool_calls`. `None` if no tool may be called.
pub(super) fn tool_options(
    tools: &[FunctionTool],
    choice: Option<&Value>,
    parallel: bool,
) -> Result<Option<ToolOptions>, Error> {
    let mut options = ToolOptions::new(tools.len(), parallel, SCHEMA_FIELD)?;
    for (index, tool) in tools.iter().enumerate() {
        let path = |field: &str| format!("tools[{index}].{field}");
        if tool.r#type != "function" {
            let shown: String = tool.r#type.chars().take(MAX_SHOWN).collect();
            let feature = format!("the tool {shown:?} (only functions, which the client executes, are)");
            return Err(Error::unsupported(path("type"), feature));
        }
        let name = tool.name.clone().ok_or_else(|| Error::missing_field(path("name")))?;
        let function =
            Tool { name, description: tool.description.clone(), parameters: tool.parameters.clone() };
        options.push(function, tool.strict.unwrap_or(false), MAX_NAME, &path("name"))?;
    }
    parse_choice(choice)?.apply(options)
}

fn parse_choice(choice: Option<&Value>) -> Result<ToolChoice, Error> {
    const FIELD: &str = "tool_choice";
    Ok(match choice {
        None | Some(Value::Null) => ToolChoice::Mode(ToolChoiceMode::Auto),
        Some(Value::Object(fields)) => {
            let value = choice.unwrap_or(&Value::Null);
            match fields.get("type").and_then(Value::as_str) {
                Some("allowed_tools") => {
                    let AllowedFunctions { mode, tools, .. } = parse_field(FIELD, value)?;
                    let named = tools.into_iter().enumerate();
                    let named = named.map(|(at, tool)| (format!("{FIELD}.tools[{at}].name"), tool.name));
                    ToolChoice::Allowed { field: "tool_choice.tools", named: named.collect(), mode }
                }
                Some("function") | None => {
                    let FunctionChoice { name, .. } = parse_field(FIELD, value)?;
                    ToolChoice::Named { field: "tool_choice.name", name }
                }
                Some(other) => {
                    let shown: String = other.chars().take(MAX_SHOWN).collect();
                    return Err(Error::unsupported("tool_choice.type", format!("the tool {shown:?}")));
                }
            }
        }
        Some(mode) => ToolChoice::Mode(parse_field(FIELD, mode)?),
    })
}

/// The tools as a response shows them.
pub(super) fn shown_tools(mut tools: Vec<FunctionTool>) -> Vec<FunctionTool> {
    for tool in &mut tools {
        tool.strict.get_or_insert(false);
    }
    tools
}
