//! Messages and tools in the form that chat templates expect: OpenAI's, as adopted by Hugging Face.

use std::borrow::Cow;

use serde::Serialize;
use serde::ser::{SerializeMap, SerializeSeq, Serializer};
use serde_json::{Map, Value};

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A text.
    Text(String),
    /// Texts and images, in order.
    Parts(Vec<Part>),
}

/// A part of a message's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A text.
    Text(String),
    /// The place of an image. The images themselves are passed to the model with the prompt.
    Image,
}

impl Content {
    /// The text, without images; texts of several parts are joined.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Content::Text(text) => Cow::Borrowed(text),
            Content::Parts(parts) => {
                let texts = parts.iter().map(|part| match part {
                    Part::Text(text) => text.as_str(),
                    Part::Image => "",
                });
                Cow::Owned(texts.collect())
            }
        }
    }

    /// Number of images.
    pub fn image_count(&self) -> usize {
        match self {
            Content::Text(_) => 0,
            Content::Parts(parts) => parts.iter().filter(|part| **part == Part::Image).count(),
        }
    }

    /// Whether it has neither text nor images.
    pub fn is_empty(&self) -> bool {
        match self {
            Content::Text(text) => text.is_empty(),
            Content::Parts(parts) => {
                parts.iter().all(|part| matches!(part, Part::Text(text) if text.is_empty()))
            }
        }
    }

    /// Number of parts, for limits on the work of a template.
    pub(crate) fn part_count(&self) -> usize {
        match self {
            Content::Text(_) => 1,
            Content::Parts(parts) => parts.len(),
        }
    }

    /// Appends a character to the text.
    pub(crate) fn push(&mut self, character: char) {
        match self {
            Content::Text(text) => text.push(character),
            Content::Parts(parts) => match parts.last_mut() {
                Some(Part::Text(text)) => text.push(character),
                Some(Part::Image) | None => parts.push(Part::Text(character.into())),
            },
        }
    }

    fn map(&self, change: &mut dyn FnMut(&str) -> String) -> Content {
        match self {
            Content::Text(text) => Content::Text(change(text)),
            Content::Parts(parts) => {
                let part = |part: &Part| match part {
                    Part::Text(text) => Part::Text(change(text)),
                    Part::Image => Part::Image,
                };
                Content::Parts(parts.iter().map(part).collect())
            }
        }
    }
}

impl From<String> for Content {
    fn from(text: String) -> Content {
        Content::Text(text)
    }
}

impl From<&String> for Content {
    fn from(text: &String) -> Content {
        Content::Text(text.clone())
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Content {
        Content::Text(text.to_owned())
    }
}

impl From<Vec<Part>> for Content {
    fn from(parts: Vec<Part>) -> Content {
        Content::Parts(parts)
    }
}

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The role: `system`, `user`, `assistant`, `tool`, or another that the template supports.
    pub role: String,
    /// Text and images; `None` for an assistant message that only calls tools.
    pub content: Option<Content>,
    /// What the assistant thought before it answered.
    pub reasoning: Option<String>,
    /// Tool calls of the assistant.
    pub tool_calls: Vec<ToolCall>,
    /// Id of the call whose result this is.
    pub tool_call_id: Option<String>,
    /// Name of the tool whose result this is.
    pub name: Option<String>,
}

/// The names under which templates look for the reasoning of a message.
const REASONING_NAMES: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

/// A tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Id, to which its result refers.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// The arguments: an object, or a string if they are not valid JSON.
    pub arguments: Value,
}

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    /// The name.
    pub name: String,
    /// What the tool does.
    pub description: Option<String>,
    /// JSON schema of the arguments.
    pub parameters: Option<Value>,
}

impl Message {
    /// A message with a text, or with parts.
    pub fn new(role: impl Into<String>, content: impl Into<Content>) -> Message {
        Message { role: role.into(), content: Some(content.into()), ..Message::default() }
    }

    /// An assistant message with tool calls.
    pub fn with_tool_calls(content: Option<String>, tool_calls: Vec<ToolCall>) -> Message {
        let content = content.map(Content::Text);
        Message { role: "assistant".to_owned(), content, tool_calls, ..Message::default() }
    }

    /// The text of the content, without images; empty without content.
    pub fn text(&self) -> Cow<'_, str> {
        self.content.as_ref().map_or(Cow::Borrowed(""), Content::text)
    }

    /// Number of images in the content.
    pub fn image_count(&self) -> usize {
        self.content.as_ref().map_or(0, Content::image_count)
    }

    /// Applies a function to every text except the role.
    pub(crate) fn map(&self, change: &mut dyn FnMut(&str) -> String) -> Message {
        let mut call = |call: &ToolCall| ToolCall {
            id: change(&call.id),
            name: change(&call.name),
            arguments: map_value(&call.arguments, change),
        };
        let tool_calls = self.tool_calls.iter().map(&mut call).collect();
        Message {
            role: self.role.clone(),
            content: self.content.as_ref().map(|content| content.map(change)),
            reasoning: self.reasoning.as_deref().map(&mut *change),
            tool_calls,
            tool_call_id: self.tool_call_id.as_deref().map(&mut *change),
            name: self.name.as_deref().map(&mut *change),
        }
    }
}

impl Tool {
    /// Applies a function to every text.
    pub(crate) fn map(&self, change: &mut dyn FnMut(&str) -> String) -> Tool {
        Tool {
            name: change(&self.name),
            description: self.description.as_deref().map(&mut *change),
            parameters: self.parameters.as_ref().map(|parameters| map_value(parameters, change)),
        }
    }
}

/// Recursion depth is bounded: serde_json parses at most 128 levels.
pub(crate) fn map_value(value: &Value, change: &mut dyn FnMut(&str) -> String) -> Value {
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

/// The `function` object of a tool or a call.
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

/// A part as templates expect it.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum TemplatePart<'a> {
    Text { text: &'a str },
    Image,
}

/// A list of parts if there is an image; otherwise a string, since many templates know no lists.
impl Serialize for Content {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Content::Parts(parts) if self.image_count() > 0 => {
                let mut list = serializer.serialize_seq(Some(parts.len()))?;
                for part in parts {
                    list.serialize_element(&match part {
                        Part::Text(text) => TemplatePart::Text { text },
                        Part::Image => TemplatePart::Image,
                    })?;
                }
                list.end()
            }
            Content::Text(_) | Content::Parts(_) => serializer.serialize_str(&self.text()),
        }
    }
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Message { role, content, reasoning, tool_calls, tool_call_id, name } = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("role", role)?;
        map.serialize_entry("content", content)?;
        if let Some(reasoning) = reasoning {
            REASONING_NAMES.into_iter().try_for_each(|name| map.serialize_entry(name, reasoning))?;
        }
        if !tool_calls.is_empty() {
            map.serialize_entry("tool_calls", tool_calls)?;
        }
        if let Some(id) = tool_call_id {
            map.serialize_entry("tool_call_id", id)?;
        }
        if let Some(name) = name {
            map.serialize_entry("name", name)?;
        }
        map.end()
    }
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
