//! From the messages of a request to those of the chat template.

use std::collections::{HashMap, VecDeque};

use images::Limits;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use text::{Content, Message, Part, PromptEnd, ToolCall};
use utoipa::ToSchema;

use crate::error::Error;
use crate::images::{ImageLocation, ImageSource};
use crate::tools::check_name;

/// Maximum length of a tool's name, same as OpenAI's.
const MAX_NAME: usize = 64;

/// A message of the conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaRequestMessage)]
pub(crate) struct RequestMessage {
    role: Role,
    content: Option<String>,
    /// What the assistant thought before it answered. The template decides whether the model sees it.
    thinking: Option<String>,
    /// Images of a message of the user, in base64.
    // They have been taken out of the body before it is parsed.
    #[schema(value_type = Option<Vec<String>>)]
    #[allow(dead_code, reason = "describes the schema; images are parsed elsewhere")]
    images: Option<IgnoredAny>,
    /// Tool calls of the assistant.
    tool_calls: Option<Vec<RequestCall>>,
    /// Of a result: the tool.
    tool_name: Option<String>,
    /// Of a result: the call, if it has an id.
    tool_call_id: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = OllamaRole)]
enum Role {
    System,
    User,
    Assistant,
    Tool,
}

/// A tool call of the assistant.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaRequestCall)]
pub(crate) struct RequestCall {
    id: Option<String>,
    function: RequestFunction,
}

#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaRequestFunction)]
struct RequestFunction {
    name: String,
    #[schema(value_type = Object)]
    arguments: Option<Map<String, Value>>,
}

/// The messages of a conversation.
pub(super) struct Turns {
    pub(super) messages: Vec<Message>,
    pub(super) end: PromptEnd,
    /// The first field with a tool call or a result.
    pub(super) tools_used_at: Option<String>,
}

/// Turns messages into those of the chat template. If the last one is a text of the assistant, the model continues it.
/// `images`: number of images per message.
pub(super) fn turns(messages: Vec<RequestMessage>, images: &[usize]) -> Result<Turns, Error> {
    let (mut turns, mut tools_used_at) = (Vec::with_capacity(messages.len()), None);
    let mut open = OpenCalls::default();
    for (index, message) in messages.into_iter().enumerate() {
        let path = |field: &str| format!("messages[{index}].{field}");
        let text = message.content.unwrap_or_default();
        let calls = message.tool_calls.unwrap_or_default();
        if !calls.is_empty() && message.role != Role::Assistant {
            return Err(Error::invalid_field(path("tool_calls"), "is only allowed if 'role' is assistant"));
        }
        turns.push(match message.role {
            Role::System => Message::new("system", text),
            Role::User => {
                let count = images.get(index).copied().unwrap_or(0);
                Message::new("user", content(text, count))
            }
            Role::Assistant => {
                if !calls.is_empty() {
                    tools_used_at.get_or_insert_with(|| path("tool_calls"));
                    open = OpenCalls::default();
                }
                let mut tool_calls = Vec::with_capacity(calls.len());
                for (at, RequestCall { id, function }) in calls.into_iter().enumerate() {
                    let RequestFunction { name, arguments } = function;
                    check_name(&path(&format!("tool_calls[{at}].function.name")), &name, MAX_NAME)?;
                    let id = id.unwrap_or_else(|| format!("call_{index}_{at}"));
                    open.push(&id, &name);
                    tool_calls.push(ToolCall { id, name, arguments: arguments.unwrap_or_default().into() });
                }
                let content =
                    Some(Content::Text(text)).filter(|text| !text.is_empty() || tool_calls.is_empty());
                Message {
                    role: "assistant".to_owned(),
                    content,
                    reasoning: message.thinking.filter(|text| !text.is_empty()),
                    tool_calls,
                    ..Message::default()
                }
            }
            Role::Tool => {
                tools_used_at.get_or_insert_with(|| path("role"));
                let (given_id, given_name) = (message.tool_call_id, message.tool_name);
                let call = open.take(given_id.as_deref(), given_name.as_deref());
                let (id, name) = match (call, given_name) {
                    (Some((id, _)), Some(name)) => (id, name),
                    (Some(call), None) => call,
                    (None, Some(name)) => (given_id.unwrap_or_else(|| format!("call_{index}")), name),
                    (None, None) => return Err(Error::missing_field(path("tool_name"))),
                };
                Message { tool_call_id: Some(id), name: Some(name), ..Message::new("tool", text) }
            }
        });
    }
    let mut end = PromptEnd::Reply;
    if let Some(last) = turns.last().filter(|last| last.role == "assistant" && last.tool_calls.is_empty()) {
        match last.text().is_empty() {
            true => drop(turns.pop()),
            false => end = PromptEnd::LastMessage,
        }
    }
    Ok(Turns { messages: turns, end, tools_used_at })
}

/// Tool calls that have no result yet. Each operation takes constant time on average: there may be many.
#[derive(Default)]
struct OpenCalls {
    /// Ids and names; `None` if the call has its result.
    calls: Vec<Option<(String, String)>>,
    by_id: HashMap<String, usize>,
    by_name: HashMap<String, VecDeque<usize>>,
    /// All calls before it have results.
    first: usize,
}

impl OpenCalls {
    fn push(&mut self, id: &str, name: &str) {
        let index = self.calls.len();
        self.calls.push(Some((id.to_owned(), name.to_owned())));
        self.by_id.insert(id.to_owned(), index);
        self.by_name.entry(name.to_owned()).or_default().push_back(index);
    }

    /// Takes the call that a result belongs to: the one with its id, or else the first of its tool; without both, the
    /// first of all.
    fn take(&mut self, id: Option<&str>, name: Option<&str>) -> Option<(String, String)> {
        if id.is_none() && name.is_none() {
            while self.calls.get(self.first)?.is_none() {
                self.first += 1;
            }
            return self.calls[self.first].take();
        }
        if let Some(index) = id.and_then(|id| self.by_id.remove(id))
            && self.calls[index].is_some()
        {
            return self.calls[index].take();
        }
        let of_tool = self.by_name.get_mut(name?)?;
        while let Some(index) = of_tool.pop_front() {
            if self.calls[index].is_some() {
                return self.calls[index].take();
            }
        }
        None
    }
}

/// Text with this many images in front of it.
pub(super) fn content(text: String, images: usize) -> Content {
    match images {
        0 => Content::Text(text),
        count => {
            let images = std::iter::repeat_n(Part::Image, count);
            images.chain((!text.is_empty()).then_some(Part::Text(text))).collect::<Vec<_>>().into()
        }
    }
}

/// Takes the images out of the messages of the user, so that parsing does not copy them. Also returns their number per
/// message.
pub(super) fn take_message_images(
    body: &mut Value,
    limits: &Limits,
) -> Result<(Vec<ImageSource>, Vec<usize>), Error> {
    let (mut sources, mut counts) = (vec![], vec![]);
    let Some(messages) = body.get_mut("messages").and_then(Value::as_array_mut) else {
        return Ok((sources, counts));
    };
    for (index, message) in messages.iter_mut().enumerate() {
        let field = format!("messages[{index}].images");
        let images = take_images(message, &field, limits)?;
        if !images.is_empty() && message.get("role").and_then(Value::as_str) != Some("user") {
            return Err(Error::invalid_field(field, "is only allowed in messages with the role user"));
        }
        counts.push(images.len());
        sources.extend(images);
    }
    Ok((sources, counts))
}

/// Takes the images out of the field `images` of an object; `field` is its path.
pub(super) fn take_images(
    object: &mut Value,
    field: &str,
    limits: &Limits,
) -> Result<Vec<ImageSource>, Error> {
    let images = match object.get_mut("images").map(Value::take) {
        None | Some(Value::Null) => return Ok(vec![]),
        Some(Value::Array(images)) => images,
        Some(_) => return Err(Error::invalid_field(field, "must be a list of images in base64")),
    };
    let source = |(index, image): (usize, Value)| {
        let param = format!("{field}[{index}]");
        let Value::String(text) = image else {
            return Err(Error::invalid_field(param, "must be a string: an image in base64"));
        };
        let location = ImageLocation::untyped_base64(&param, text, limits)?;
        Ok(ImageSource { param, location })
    };
    images.into_iter().enumerate().map(source).collect()
}
