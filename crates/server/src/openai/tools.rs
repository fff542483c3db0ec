//! Tools that an answer may call: `tools`, `tool_choice`, and the calls and results that messages hold.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use text::{Tool, ToolCall};
use utoipa::ToSchema;

use super::read_at;
use crate::error::Error;

/// OpenAI's number.
pub(crate) const MAX_TOOLS: usize = 128;

/// Characters of a tool's name.
const MAX_NAME: usize = 64;

/// Characters that a tool's name may have: the same as an expression.
pub(crate) const NAME: &str = "^[a-zA-Z0-9_-]{1,64}$";

/// A tool that may be called.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct AnyTool {
    #[allow(dead_code, reason = "only its value is checked")]
    r#type: ToolType,
    function: Function,
}

/// The only kind of tools.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ToolType {
    Function,
}

#[derive(Debug, Deserialize, ToSchema)]
struct Function {
    /// What calls it.
    name: String,
    /// What it does, for the model.
    description: Option<String>,
    /// JSON Schema of the arguments, which are an object. Without it there are none.
    #[schema(value_type = Option<Object>)]
    parameters: Option<Value>,
    /// Whether a schema is refused that cannot be held to in all its parts. Else what is not supported of it is left out.
    strict: Option<bool>,
}

/// Which tools may or must be called: the shape in the schema.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "only described, never made")]
pub(crate) enum AnyChoice {
    Mode(Mode),
    Named(Named),
    Allowed(Allowed),
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Nothing is called.
    None,
    /// The model decides.
    Auto,
    /// Something is called.
    Required,
}

/// This tool is called.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct Named {
    #[allow(dead_code, reason = "only its value is checked")]
    r#type: ToolType,
    function: NamedFunction,
}

#[derive(Debug, Deserialize, ToSchema)]
struct NamedFunction {
    name: String,
}

/// Some of the tools.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct Allowed {
    #[allow(dead_code, reason = "only its value is checked")]
    r#type: AllowedType,
    allowed_tools: AllowedTools,
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum AllowedType {
    AllowedTools,
}

#[derive(Debug, Deserialize, ToSchema)]
struct AllowedTools {
    mode: AllowedMode,
    /// As they are named in `tools`.
    #[schema(min_items = 1)]
    tools: Vec<Named>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
enum AllowedMode {
    Auto,
    Required,
}

/// What a request says of tools.
#[derive(Debug, Default)]
pub(crate) struct Offered {
    /// All that the model is told of.
    pub(crate) tools: Vec<Tool>,
    /// Whether each is held to its whole schema.
    pub(crate) strict: Vec<bool>,
    /// Those that may be called.
    pub(crate) allowed: Vec<usize>,
    /// Whether one must be called.
    pub(crate) must: bool,
    /// Whether several may be.
    pub(crate) parallel: bool,
}

/// What a request offers; nothing where no tool may be called.
pub(crate) fn offered(
    tools: Vec<AnyTool>,
    choice: Option<&Value>,
    parallel: Option<bool>,
) -> Result<Option<Offered>, Error> {
    if tools.len() > MAX_TOOLS {
        let message = format!("holds {} tools, but may hold {MAX_TOOLS} at most", tools.len());
        return Err(Error::field("tools", message));
    }
    let mut offered = Offered { parallel: parallel.unwrap_or(true), ..Offered::default() };
    let mut known = HashSet::new();
    for (at, AnyTool { function, .. }) in tools.into_iter().enumerate() {
        let place = |field: &str| format!("tools[{at}].function.{field}");
        check_name(&place("name"), &function.name)?;
        if !known.insert(function.name.clone()) {
            return Err(Error::field(place("name"), format!("is '{}', as another's is", function.name)));
        }
        if !matches!(function.parameters, None | Some(Value::Object(_))) {
            return Err(Error::field(place("parameters"), "must be an object, a JSON schema"));
        }
        let Function { name, description, parameters, strict } = function;
        offered.tools.push(Tool { name, description, parameters });
        offered.strict.push(strict.unwrap_or(false));
    }
    let all = 0..offered.tools.len();
    let find = |place: &str, name: &str| {
        let at = offered.tools.iter().position(|tool| tool.name == name);
        at.ok_or_else(|| Error::field(place, format!("is '{name}', which none of the tools is")))
    };
    let (allowed, must) = match choice {
        None | Some(Value::Null) => (all.collect(), false),
        Some(Value::Object(fields)) if fields.get("type").is_some_and(|kind| kind == "allowed_tools") => {
            let Allowed { allowed_tools, .. } = read_at("tool_choice", choice.unwrap_or(&Value::Null))?;
            let place = |at: usize| format!("tool_choice.allowed_tools.tools[{at}].function.name");
            let named = allowed_tools.tools.iter().enumerate();
            let mut allowed = named
                .map(|(at, named)| find(&place(at), &named.function.name))
                .collect::<Result<Vec<usize>, Error>>()?;
            if allowed.is_empty() {
                let message = "is empty, but must name one tool or more";
                return Err(Error::field("tool_choice.allowed_tools.tools", message));
            }
            allowed.sort_unstable();
            allowed.dedup();
            (allowed, allowed_tools.mode == AllowedMode::Required)
        }
        Some(named @ Value::Object(_)) => {
            let Named { function, .. } = read_at("tool_choice", named)?;
            (vec![find("tool_choice.function.name", &function.name)?], true)
        }
        Some(mode) => match read_at("tool_choice", mode)? {
            Mode::None => return Ok(None),
            Mode::Auto => (all.collect(), false),
            Mode::Required => (all.collect(), true),
        },
    };
    if offered.tools.is_empty() && must {
        return Err(Error::field("tool_choice", "demands a call, but there are no tools: give 'tools'"));
    }
    Ok((!offered.tools.is_empty()).then_some(Offered { allowed, must, ..offered }))
}

fn check_name(place: &str, name: &str) -> Result<(), Error> {
    let right = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-');
    match name.len() {
        1..=MAX_NAME if name.chars().all(right) => Ok(()),
        _ => {
            let message = format!(
                "is {:?}, but must be of 1 to {MAX_NAME} letters, digits, '_' and '-'",
                name.chars().take(MAX_NAME).collect::<String>()
            );
            Err(Error::field(place, message))
        }
    }
}

/// A call, as a message has it: in a request, and in an answer.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Call {
    /// What the tool's result names.
    pub(crate) id: String,
    pub(crate) r#type: ToolType,
    pub(crate) function: CalledFunction,
}

#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct CalledFunction {
    pub(crate) name: String,
    /// JSON as a text, exactly as the model wrote it.
    pub(crate) arguments: String,
}

impl Call {
    /// As a template takes it.
    pub(crate) fn read(self, place: &str) -> Result<ToolCall, Error> {
        let CalledFunction { name, arguments } = self.function;
        check_name(&format!("{place}.function.name"), &name)?;
        // What is no object is shown to the model as it was written.
        let parsed = serde_json::from_str(&arguments).ok().filter(Value::is_object);
        Ok(ToolCall { id: self.id, name, arguments: parsed.unwrap_or(Value::String(arguments)) })
    }
}

/// A piece of a call in a stream.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CallDelta {
    /// Which of the answer's calls.
    pub(crate) index: u32,
    /// With the first piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    /// With the first piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) r#type: Option<ToolType>,
    pub(crate) function: FunctionDelta,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FunctionDelta {
    /// With the first piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// More of them.
    pub(crate) arguments: String,
}
