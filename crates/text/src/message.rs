//! What a conversation holds, in the shape that chat templates know: OpenAI's, as Hugging Face has taken it over.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Map, Value};

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, `tool`, or what else the template knows.
    pub role: String,
    /// What was said. An assistant that only calls tools says nothing.
    pub content: Option<String>,
    /// The tools that the assistant calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Whose result this is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The name of the tool whose result this is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// What its result refers to.
    pub id: String,
    /// The tool.
    pub name: String,
    /// What it is called with: an object, or a text where that is no JSON.
    pub arguments: Value,
}

/// A tool that may be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    /// What calls it.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// What it may be called with, as a JSON schema.
    pub parameters: Option<Value>,
}

impl Message {
    /// A message that says something.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: Some(content.into()), ..Message::default() }
    }

    /// A message of the assistant that calls tools.
    pub fn with_tool_calls(content: Option<String>, tool_calls: Vec<ToolCall>) -> Message {
        Message { role: "assistant".to_owned(), content, tool_calls, ..Message::default() }
    }

    /// The same with every text in it changed, but for the role.
    pub(crate) fn map(&self, change: &mut dyn FnMut(&str) -> String) -> Message {
        let mut call = |call: &ToolCall| ToolCall {
            id: change(&call.id),
            name: change(&call.name),
            arguments: map_value(&call.arguments, change),
        };
        let tool_calls = self.tool_calls.iter().map(&mut call).collect();
        Message {
            role: self.role.clone(),
            content: self.content.as_deref().map(&mut *change),
            tool_calls,
            tool_call_id: self.tool_call_id.as_deref().map(&mut *change),
            name: self.name.as_deref().map(&mut *change),
        }
    }
}

impl Tool {
    /// The same with every text in it changed.
    pub(crate) fn map(&self, change: &mut dyn FnMut(&str) -> String) -> Tool {
        Tool {
            name: change(&self.name),
            description: self.description.as_deref().map(&mut *change),
            parameters: self.parameters.as_ref().map(|parameters| map_value(parameters, change)),
        }
    }
}

/// As deep as a value of JSON can be read, which is 128.
fn map_value(value: &Value, change: &mut dyn FnMut(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(change(text)),
        Value::Array(values) => values.iter().map(|value| map_value(value, change)).collect(),
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| (change(key), map_value(value, change));
            Value::Object(fields.iter().map(field).collect::<Map<_, _>>())
        }
        other => other.clone(),
    }
}

/// What both a tool and a call are wrapped in.
#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<&'a Value>,
}

impl Serialize for ToolCall {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let arguments = Some(&self.arguments);
        let function = Function { name: &self.name, description: None, parameters: None, arguments };
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("id", &self.id)?;
        map.serialize_entry("type", "function")?;
        map.serialize_entry("function", &function)?;
        map.end()
    }
}

impl Serialize for Tool {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Tool { name, description, parameters } = self;
        let (description, parameters) = (description.as_deref(), parameters.as_ref());
        let function = Function { name, description, parameters, arguments: None };
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("type", "function")?;
        map.serialize_entry("function", &function)?;
        map.end()
    }
}
