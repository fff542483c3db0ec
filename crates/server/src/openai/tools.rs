//! Tools: `tools`, `tool_choice`, and tool calls in messages.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use text::Tool;
use utoipa::ToSchema;

use crate::error::Error;
use crate::parse::parse_field;
use crate::tools::{ToolOptions, check_name};

/// Maximum length of a tool's name.
pub(super) const MAX_NAME: usize = 64;

/// The field of a tool that has its schema.
const SCHEMA_FIELD: &str = "function.parameters";

/// Tool names as a regular expression, for the OpenAPI document.
pub(crate) const NAME_PATTERN: &str = "^[a-zA-Z0-9_-]{1,64}$";

/// A tool that the model may call.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ToolDefinition {
    #[allow(dead_code, reason = "only its value is checked")]
    r#type: ToolType,
    function: FunctionDefinition,
}

/// Type of a tool; only functions are supported.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ToolType {
    Function,
}

#[derive(Debug, Deserialize, ToSchema)]
struct FunctionDefinition {
    /// Name of the function.
    name: String,
    /// Description, shown to the model.
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
pub(crate) enum ToolChoiceSchema {
    Mode(ToolChoiceMode),
    Named(NamedToolChoice),
    Allowed(AllowedToolsChoice),
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ToolChoiceMode {
    /// No tool is called.
    None,
    /// The model decides whether to call tools.
    Auto,
    /// At least one tool is called.
    Required,
}

/// The tool that must be called.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct NamedToolChoice {
    #[allow(dead_code, reason = "only its value is checked")]
    r#type: ToolType,
    function: NamedFunction,
}

#[derive(Debug, Deserialize, ToSchema)]
struct NamedFunction {
    name: String,
}

/// A subset of the tools.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct AllowedToolsChoice {
    #[allow(dead_code, reason = "only its value is checked")]
    r#type: AllowedType,
    allowed_tools: AllowedTools,
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AllowedType {
    AllowedTools,
}

#[derive(Debug, Deserialize, ToSchema)]
struct AllowedTools {
    mode: AllowedMode,
    /// Tools of the request, by name.
    #[schema(min_items = 1)]
    tools: Vec<NamedToolChoice>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AllowedMode {
    Auto,
    Required,
}

/// Validates `tools`, `tool_choice` and `parallel_tool_calls`. `None` if no tool may be called.
pub(crate) fn tool_options(
    tools: Vec<ToolDefinition>,
    choice: Option<&Value>,
    parallel: Option<bool>,
) -> Result<Option<ToolOptions>, Error> {
    let mut options = ToolOptions::new(tools.len(), parallel.unwrap_or(true), SCHEMA_FIELD)?;
    for (index, ToolDefinition { function, .. }) in tools.into_iter().enumerate() {
        let FunctionDefinition { name, description, parameters, strict } = function;
        let tool = Tool { name, description, parameters };
        options.push(tool, strict.unwrap_or(false), MAX_NAME, &format!("tools[{index}].function.name"))?;
    }
    parse_choice(choice)?.apply(options)
}

fn parse_choice(choice: Option<&Value>) -> Result<ToolChoice, Error> {
    const FIELD: &str = "tool_choice";
    Ok(match choice {
        None | Some(Value::Null) => ToolChoice::Mode(ToolChoiceMode::Auto),
        Some(Value::Object(fields)) if fields.get("type").is_some_and(|kind| kind == "allowed_tools") => {
            let AllowedToolsChoice { allowed_tools, .. } =
                parse_field(FIELD, choice.unwrap_or(&Value::Null))?;
            let path = |index: usize| format!("tool_choice.allowed_tools.tools[{index}].function.name");
            let named = allowed_tools.tools.into_iter().enumerate();
            let named = named.map(|(index, named)| (path(index), named.function.name)).collect();
            let field = "tool_choice.allowed_tools.tools";
            ToolChoice::Allowed { field, named, mode: allowed_tools.mode }
        }
        Some(named @ Value::Object(_)) => {
            let NamedToolChoice { function, .. } = parse_field(FIELD, named)?;
            ToolChoice::Named { field: "tool_choice.function.name", name: function.name }
        }
        Some(mode) => ToolChoice::Mode(parse_field(FIELD, mode)?),
    })
}

/// `tool_choice` in the terms of both chats and responses, with the fields of names for errors.
#[derive(Debug)]
pub(super) enum ToolChoice {
    Mode(ToolChoiceMode),
    /// This tool is called.
    Named {
        field: &'static str,
        name: String,
    },
    /// A subset of the tools: the field of each name, and the name.
    Allowed {
        field: &'static str,
        named: Vec<(String, String)>,
        mode: AllowedMode,
    },
}

impl ToolChoice {
    /// The options of a request with this choice. `None` if no tool may be called.
    pub(super) fn apply(self, options: ToolOptions) -> Result<Option<ToolOptions>, Error> {
        let all = (0..options.tools.len()).collect();
        let (allowed, required) = match self {
            ToolChoice::Mode(ToolChoiceMode::None) => return Ok(None),
            ToolChoice::Mode(mode) => (all, mode == ToolChoiceMode::Required),
            ToolChoice::Named { field, name } => (vec![options.find(field, &name)?], true),
            ToolChoice::Allowed { field, named, mode } => {
                let mut allowed = named
                    .iter()
                    .map(|(field, name)| options.find(field, name))
                    .collect::<Result<Vec<usize>, Error>>()?;
                if allowed.is_empty() {
                    return Err(Error::invalid_field(field, "is empty: at least one tool is required"));
                }
                allowed.sort_unstable();
                allowed.dedup();
                (allowed, mode == AllowedMode::Required)
            }
        };
        options.allowing(allowed, required)
    }
}

/// A tool call in a message, of a request or of a response.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct ToolCall {
    /// Id that the message with the tool's result refers to.
    pub(crate) id: String,
    pub(crate) r#type: ToolType,
    pub(crate) function: FunctionCall,
}

#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct FunctionCall {
    pub(crate) name: String,
    /// Arguments as JSON text, exactly as the model generated them.
    pub(crate) arguments: String,
}

impl ToolCall {
    /// The call in the form that chat templates expect.
    pub(crate) fn into_text_call(self, path: &str) -> Result<text::ToolCall, Error> {
        let FunctionCall { name, arguments } = self.function;
        check_name(&format!("{path}.function.name"), &name, MAX_NAME)?;
        Ok(text_call(self.id, name, arguments))
    }
}

/// A call in the form that chat templates expect.
pub(super) fn text_call(id: String, name: String, arguments: String) -> text::ToolCall {
    // Arguments that are not an object are shown to the model as text.
    let parsed = serde_json::from_str(&arguments).ok().filter(Value::is_object);
    text::ToolCall { id, name, arguments: parsed.unwrap_or(Value::String(arguments)) }
}

/// A tool call in a chunk of a stream.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ToolCallDelta {
    /// Index among the message's calls.
    pub(crate) index: u32,
    /// In the first chunk of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    /// In the first chunk of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) r#type: Option<ToolType>,
    pub(crate) function: FunctionCallDelta,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FunctionCallDelta {
    /// In the first chunk of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// The next part of the arguments.
    pub(crate) arguments: String,
}
