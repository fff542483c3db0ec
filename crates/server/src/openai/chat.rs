//! Request fields of `/v1/chat/completions`: messages and tools.

use std::collections::HashMap;

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::Value;
use text::{Message, Part, PromptEnd, PromptOptions, TEMPLATE_VARIABLES, Variables, set_thinking};
use utoipa::ToSchema;

use super::image_url::IMAGE_URL;
#[allow(unused_imports, reason = "used by the OpenAPI document only")]
use super::image_url::ImageUrlSchema;
use super::logprobs::MAX_CHAT_LOGPROBS;
#[allow(unused_imports, reason = "used by the OpenAPI document only")]
use super::tools::ToolChoiceSchema;
use super::tools::{ToolCall, ToolDefinition, tool_options};
use crate::error::Error;
use crate::parse::require_unset;
use crate::request::Conversation;

/// Request fields of `/v1/chat/completions`.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ChatRequest {
    /// The conversation so far.
    #[schema(min_items = 1)]
    messages: Vec<RequestMessage>,
    /// Whether to return log probabilities of the generated tokens.
    logprobs: Option<bool>,
    /// Number of most probable tokens to return per position; only with `logprobs`.
    #[schema(minimum = 0, maximum = 20)]
    top_logprobs: Option<u32>,
    /// Tools that the model may call, if its chat template supports them.
    tools: Option<Vec<ToolDefinition>>,
    /// Which tools may or must be called; "auto" by default.
    #[schema(value_type = Option<ToolChoiceSchema>)]
    tool_choice: Option<Value>,
    /// Whether a message may contain several tool calls; true by default.
    parallel_tool_calls: Option<bool>,
    /// Deprecated by OpenAI in favour of `tools`; not supported: must be unset.
    #[schema(value_type = Option<Vec<Object>>)]
    functions: Option<Value>,
    /// Deprecated by OpenAI in favour of `tool_choice`; not supported: must be unset.
    #[schema(value_type = Option<String>)]
    function_call: Option<Value>,
    /// Only `["text"]` is supported.
    modalities: Option<Vec<String>>,
    /// Whether the prompt ends where a reply of the model starts; true by default.
    add_generation_prompt: Option<bool>,
    /// Whether the model continues the last message, which must be the assistant's. Requires
    /// `add_generation_prompt` to be false or unset.
    continue_final_message: Option<bool>,
    /// Variables of the chat template, such as `enable_thinking`.
    #[schema(value_type = Option<Object>)]
    chat_template_kwargs: Option<Variables>,
    /// Whether the model thinks before it answers, if its template has a switch for it: "none" switches thinking off,
    /// any other value on. `enable_thinking` in `chat_template_kwargs` overrides it.
    reasoning_effort: Option<String>,
    /// Predicted text of the reply, such as the file that it edits. Drafts of speculative decoding are taken from it, which
    /// makes the reply faster where it is right.
    prediction: Option<Prediction>,
}

/// Predicted text of a reply.
#[derive(Debug, Deserialize, ToSchema)]
struct Prediction {
    /// "content".
    r#type: String,
    #[schema(value_type = ContentSchema)]
    content: Content,
}

/// A message of the conversation.
#[derive(Debug, Deserialize, ToSchema)]
struct RequestMessage {
    role: Role,
    /// Required, except in assistant messages with tool calls.
    #[schema(value_type = Option<ContentSchema>)]
    content: Option<Content>,
    /// What the assistant thought before it answered, from an earlier response. The template decides whether the model
    /// sees it.
    reasoning_content: Option<String>,
    /// Another name of `reasoning_content`.
    reasoning: Option<String>,
    /// Tool calls of an assistant message.
    tool_calls: Option<Vec<ToolCall>>,
    /// Id of the call that a tool message is the result of.
    tool_call_id: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
    Function,
}

/// `content` in the OpenAPI document.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "describes the schema; never constructed")]
enum ContentSchema {
    Text(String),
    Parts(Vec<ContentPart>),
}

/// A part of a message's content.
#[derive(Deserialize, ToSchema)]
struct ContentPart {
    /// "text", or "image_url" in messages of the user if the model takes images.
    r#type: String,
    /// Text of the part.
    text: Option<String>,
    /// The image of the part.
    // Images have been taken out of the body before it is parsed.
    #[schema(value_type = Option<ImageUrlSchema>)]
    #[allow(dead_code, reason = "describes the schema; images are parsed elsewhere")]
    image_url: Option<IgnoredAny>,
}

/// A message's content: a string, or parts. Parts without images are joined.
#[derive(Debug)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
    /// The part at `index` has a type other than `text` and `image_url`.
    UnsupportedPart {
        index: usize,
        r#type: String,
    },
    /// The part at `index` has no text.
    MissingText {
        index: usize,
    },
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Content, D::Error> {
        struct ContentVisitor;
        impl<'de> Visitor<'de> for ContentVisitor {
            type Value = Content;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string or a list of parts")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Content, E> {
                Ok(Content::Text(text.to_owned()))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<Content, E> {
                Ok(Content::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Content, A::Error> {
                let parts = Vec::<ContentPart>::deserialize(de::value::SeqAccessDeserializer::new(seq))?;
                let mut content = Vec::with_capacity(parts.len());
                for (index, part) in parts.into_iter().enumerate() {
                    content.push(match (part.r#type.as_str(), part.text) {
                        ("text", Some(text)) => Part::Text(text),
                        ("text", None) => return Ok(Content::MissingText { index }),
                        (IMAGE_URL, _) => Part::Image,
                        _ => return Ok(Content::UnsupportedPart { index, r#type: part.r#type }),
                    });
                }
                let content = text::Content::Parts(content);
                Ok(match (content.image_count(), content) {
                    (1.., text::Content::Parts(parts)) => Content::Parts(parts),
                    (_, content) => Content::Text(content.text().into_owned()),
                })
            }
        }
        deserializer.deserialize_any(ContentVisitor)
    }
}

impl ChatRequest {
    /// Number of most probable tokens to report per position; `None` without logprobs.
    pub(super) fn top_logprobs(&self) -> Result<Option<u32>, Error> {
        match (self.logprobs.unwrap_or(false), self.top_logprobs) {
            (false, Some(_)) => {
                Err(Error::invalid_field("top_logprobs", "is only allowed if 'logprobs' is true"))
            }
            (_, Some(top)) if top > MAX_CHAT_LOGPROBS => Err(Error::invalid_field(
                "top_logprobs",
                format!("is {top}, but must be between 0 and {MAX_CHAT_LOGPROBS}"),
            )),
            (false, None) => Ok(None),
            (true, top) => Ok(Some(top.unwrap_or(0))),
        }
    }

    /// Predicted text of the reply.
    pub(super) fn take_prediction(&mut self) -> Result<Option<String>, Error> {
        let Some(Prediction { r#type, content }) = self.prediction.take() else { return Ok(None) };
        if r#type != "content" {
            return Err(Error::unsupported("prediction.type", format!("{type:?}")));
        }
        match content {
            Content::Text(text) => Ok(Some(text)),
            Content::Parts(_) => Err(Error::unsupported("prediction.content", "an image")),
            Content::UnsupportedPart { index, r#type } => {
                Err(Error::unsupported(format!("prediction.content[{index}].type"), format!("{type:?}")))
            }
            Content::MissingText { index } => {
                Err(Error::missing_field(format!("prediction.content[{index}].text")))
            }
        }
    }

    /// How the messages become a prompt. `thinking`: whether the model thinks if the request does not say; `None`
    /// leaves it to the template.
    fn prompt_options(&self, thinking: Option<bool>) -> Result<PromptOptions, Error> {
        let end = match (self.add_generation_prompt, self.continue_final_message.unwrap_or(false)) {
            (Some(true), true) => {
                let message = "must be false if 'continue_final_message' is true";
                return Err(Error::invalid_field("add_generation_prompt", message));
            }
            (_, true) => PromptEnd::LastMessage,
            (Some(false), false) => PromptEnd::Messages,
            (None | Some(true), false) => PromptEnd::Reply,
        };
        let mut variables = self.chat_template_kwargs.clone().unwrap_or_default();
        if let Some(name) = TEMPLATE_VARIABLES.iter().find(|name| variables.contains_key(**name)) {
            let message = format!("must not contain '{name}', which the server sets");
            return Err(Error::invalid_field("chat_template_kwargs", message));
        }
        set_effort(&mut variables, "reasoning_effort", self.reasoning_effort.as_deref(), thinking)?;
        Ok(PromptOptions { end, variables })
    }

    /// The conversation. `thinking`: whether the model thinks if the request does not say; `None` leaves it to the
    /// template.
    pub(super) fn into_conversation(self, thinking: Option<bool>) -> Result<Conversation, Error> {
        let prompt_options = self.prompt_options(thinking)?;
        require_unset("functions", &self.functions, "the deprecated form of 'tools' (use 'tools' instead)")?;
        if !matches!(self.function_call, None | Some(Value::Null)) {
            let feature = "the deprecated form of 'tool_choice' (use 'tool_choice' instead)";
            return Err(Error::unsupported("function_call", feature));
        }
        let tools = tool_options(
            self.tools.unwrap_or_default(),
            self.tool_choice.as_ref(),
            self.parallel_tool_calls,
        )?;
        if let Some(other) = self.modalities.iter().flatten().find(|modality| *modality != "text") {
            return Err(Error::unsupported("modalities", other.clone()));
        }
        if self.messages.is_empty() {
            return Err(Error::invalid_field("messages", "is empty: at least one message is required"));
        }
        let mut messages: Vec<Message> = Vec::with_capacity(self.messages.len());
        // Names of called tools by call id. If an id repeats, a result belongs to the last call with it.
        let mut called: HashMap<String, String> = HashMap::new();
        for (index, message) in self.messages.into_iter().enumerate() {
            let mut message = message.into_message(index)?;
            if let Some(id) = &message.tool_call_id {
                message.name = Some(called.get(id).cloned().ok_or_else(|| {
                    let invalid = "matches no tool call of an earlier assistant message";
                    Error::invalid_field(format!("messages[{index}].tool_call_id"), invalid)
                })?);
            }
            called.extend(message.tool_calls.iter().map(|call| (call.id.clone(), call.name.clone())));
            messages.push(message);
        }
        let is_text = |last: &Message| last.role == "assistant" && last.tool_calls.is_empty();
        if prompt_options.end == PromptEnd::LastMessage && !messages.last().is_some_and(is_text) {
            let message = "needs an assistant message without tool calls at the end of 'messages'";
            return Err(Error::invalid_field("continue_final_message", message));
        }
        let uses_tools = |message: &Message| message.role == "tool" || !message.tool_calls.is_empty();
        let tools_used_at = messages.iter().position(uses_tools).map(|index| {
            let field = if messages[index].role == "tool" { "role" } else { "tool_calls" };
            format!("messages[{index}].{field}")
        });
        let (field, truncate) = ("messages", false);
        Ok(Conversation { messages, tools, prompt_options, tools_used_at, field, truncate })
    }
}

/// Sets the template's variables for the effort of the field `field`. `thinking`: whether the model thinks if there is
/// none; `None` leaves it to the template.
pub(super) fn set_effort(
    variables: &mut Variables,
    field: &str,
    effort: Option<&str>,
    thinking: Option<bool>,
) -> Result<(), Error> {
    if effort == Some("") {
        return Err(Error::invalid_field(field, "is empty: use none, low, medium or high"));
    }
    if let Some(thinking) = effort.map(|effort| effort != "none").or(thinking) {
        set_thinking(variables, thinking);
    }
    if let Some(effort) = effort {
        variables.entry("reasoning_effort").or_insert(effort.into());
    }
    Ok(())
}

impl RequestMessage {
    /// The message in the form that chat templates expect. `index` is its position, for errors.
    fn into_message(self, index: usize) -> Result<Message, Error> {
        let path = |field: &str| format!("messages[{index}].{field}");
        let calls = self.tool_calls.unwrap_or_default();
        let role = match self.role {
            // OpenAI's newer name for the same role.
            Role::System | Role::Developer => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
            Role::Function => {
                return Err(Error::unsupported(
                    path("role"),
                    "the deprecated role 'function' (use 'tool' instead)",
                ));
            }
        };
        if self.role != Role::Assistant && !calls.is_empty() {
            return Err(Error::invalid_field(path("tool_calls"), "is only allowed if 'role' is assistant"));
        }
        if self.role == Role::Tool && self.tool_call_id.is_none() {
            return Err(Error::missing_field(path("tool_call_id")));
        }
        let content = match self.content {
            Some(Content::Text(content)) => Some(content.into()),
            Some(Content::Parts(parts)) => Some(parts.into()),
            Some(Content::UnsupportedPart { index, r#type }) => {
                let field = path(&format!("content[{index}].type"));
                return Err(Error::unsupported(field, format!("{type:?}")));
            }
            Some(Content::MissingText { index }) => {
                return Err(Error::missing_field(path(&format!("content[{index}].text"))));
            }
            None if !calls.is_empty() => None,
            None => return Err(Error::missing_field(path("content"))),
        };
        let call =
            |(index, call): (usize, ToolCall)| call.into_text_call(&path(&format!("tool_calls[{index}]")));
        let reasoning = self.reasoning_content.or(self.reasoning);
        Ok(Message {
            role: role.to_owned(),
            content,
            reasoning: reasoning.filter(|text| self.role == Role::Assistant && !text.is_empty()),
            tool_calls: calls.into_iter().enumerate().map(call).collect::<Result<_, _>>()?,
            tool_call_id: self.tool_call_id.filter(|_| self.role == Role::Tool),
            name: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::json;

    use super::*;

    fn call(id: &str, name: &str) -> Value {
        let function = json!({ "name": name, "arguments": "{}" });
        json!({ "role": "assistant", "tool_calls": [{ "id": id, "type": "function", "function": function }] })
    }

    fn result(id: &str) -> Value {
        json!({ "role": "tool", "tool_call_id": id, "content": "" })
    }

    fn messages(messages: &[Value]) -> Result<Vec<Message>, Error> {
        let chat: ChatRequest =
            serde_json::from_value(json!({ "messages": messages })).expect("a valid request");
        Ok(chat.into_conversation(None)?.messages)
    }

    #[test]
    fn a_tool_result_belongs_to_the_last_call_with_its_id() {
        let given = [call("1", "a"), result("1"), call("1", "b"), call("2", "c"), result("1")];
        let parsed = messages(&given).expect("valid messages");
        assert_eq!([&parsed[1].name, &parsed[4].name], [&Some("a".to_owned()), &Some("b".to_owned())]);
        assert!(messages(&[call("1", "a"), result("2"), call("2", "b")]).is_err());
    }

    /// The shortest of three times to parse `count` calls and their results.
    fn time_to_parse(count: usize) -> Duration {
        let ids: Vec<String> = (0..count).map(|id| id.to_string()).collect();
        let calls = ids.iter().map(|id| call(id, "f"));
        let messages: Vec<Value> = calls.chain(ids.iter().map(|id| result(id))).collect();
        let parse = || {
            let chat: ChatRequest =
                serde_json::from_value(json!({ "messages": messages })).expect("a valid request");
            let started = Instant::now();
            let parsed = chat.into_conversation(None).expect("valid messages").messages;
            let time = started.elapsed();
            assert!(parsed[count..].iter().all(|message| message.name.as_deref() == Some("f")));
            time
        };
        (0..3).map(|_| parse()).min().expect("three times")
    }

    /// 16 times as many results take about 16 times as long with a hash map, and 256 times with a search for
    /// each. A busy machine may need several attempts to measure it.
    #[test]
    fn many_tool_results_are_parsed_in_linear_time() {
        let mut times = (0..10).map(|_| (time_to_parse(1_000), time_to_parse(16_000)));
        assert!(times.any(|(few, many)| many < few * 64), "parsing is not linear");
    }
}
