//! What only `/v1/chat/completions` has: messages, and tools.

use std::collections::HashMap;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde_json::Value;
use text::Message;
use utoipa::ToSchema;

use super::logprobs::CHAT_MOST;
use super::options::unset;
#[allow(unused_imports, reason = "only the description names it")]
use super::tools::AnyChoice;
use super::tools::{AnyTool, Call, Offered, offered};
use crate::error::Error;

/// A conversation.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct Chat {
    /// What was said so far; the answer is what the assistant says next.
    #[schema(min_items = 1)]
    messages: Vec<Said>,
    /// Whether the probabilities of the answer's tokens are told.
    logprobs: Option<bool>,
    /// So many of the most probable tokens are told in the place of each; only with `logprobs`.
    #[schema(minimum = 0, maximum = 20)]
    top_logprobs: Option<u32>,
    /// What the assistant may call, where the model knows of such.
    tools: Option<Vec<AnyTool>>,
    /// Which of them may or must be called; "auto" where nothing is said.
    #[schema(value_type = Option<AnyChoice>)]
    tool_choice: Option<Value>,
    /// Whether an answer may call several tools; true where nothing is said.
    parallel_tool_calls: Option<bool>,
    /// The older name of `tools`, which is not built: any value but none is refused.
    #[schema(value_type = Option<Vec<Object>>)]
    functions: Option<Value>,
    /// The older name of `tool_choice`, which is not built: any value but none is refused.
    #[schema(value_type = Option<String>)]
    function_call: Option<Value>,
    /// Only `["text"]`.
    modalities: Option<Vec<String>>,
}

/// A message.
#[derive(Debug, Deserialize, ToSchema)]
struct Said {
    role: Role,
    /// Only an assistant that calls tools may leave it out.
    #[schema(value_type = Option<Content>)]
    content: Option<Text>,
    /// What the assistant called.
    tool_calls: Option<Vec<Call>>,
    /// Whose result a message of a tool is.
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

/// One text or its parts: the shape in the schema.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "only described, never made")]
enum Content {
    Whole(String),
    Parts(Vec<Part>),
}

/// A part of a message.
#[derive(Deserialize, ToSchema)]
struct Part {
    /// Only "text" so far.
    r#type: String,
    /// What was said.
    text: Option<String>,
}

/// A message's text, whole or in parts.
#[derive(Debug)]
enum Text {
    Whole(String),
    /// The part at `at` is no text, but `kind`.
    Other {
        at: usize,
        kind: String,
    },
    /// The part at `at` has no text.
    Missing {
        at: usize,
    },
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        struct WholeOrParts;
        impl<'de> Visitor<'de> for WholeOrParts {
            type Value = Text;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string or a list of parts")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text, E> {
                Ok(Text::Whole(text.to_owned()))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<Text, E> {
                Ok(Text::Whole(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Text, A::Error> {
                let parts = Vec::<Part>::deserialize(de::value::SeqAccessDeserializer::new(seq))?;
                let mut whole = String::new();
                for (at, part) in parts.into_iter().enumerate() {
                    match (part.r#type.as_str(), part.text) {
                        ("text", Some(text)) => whole.push_str(&text),
                        ("text", None) => return Ok(Text::Missing { at }),
                        _ => return Ok(Text::Other { at, kind: part.r#type }),
                    }
                }
                Ok(Text::Whole(whole))
            }
        }
        deserializer.deserialize_any(WholeOrParts)
    }
}

impl Chat {
    /// How many of the most probable tokens are told with each; none where no probabilities are.
    pub(crate) fn tops(&self) -> Result<Option<u32>, Error> {
        match (self.logprobs.unwrap_or(false), self.top_logprobs) {
            (false, Some(_)) => Err(Error::field("top_logprobs", "is only allowed where 'logprobs' is true")),
            (_, Some(top)) if top > CHAT_MOST => {
                Err(Error::field("top_logprobs", format!("is {top}, but must be from 0 to {CHAT_MOST}")))
            }
            (false, None) => Ok(None),
            (true, top) => Ok(Some(top.unwrap_or(0))),
        }
    }

    /// The messages as a template takes them, and the tools that may be called.
    pub(crate) fn read(self) -> Result<(Vec<Message>, Option<Offered>), Error> {
        unset("functions", &self.functions, "the older form of 'tools', which is to be used instead,")?;
        if !matches!(self.function_call, None | Some(Value::Null)) {
            let what = "the older form of 'tool_choice', which is to be used instead,";
            return Err(Error::unsupported("function_call", what));
        }
        let offered =
            offered(self.tools.unwrap_or_default(), self.tool_choice.as_ref(), self.parallel_tool_calls)?;
        if let Some(other) = self.modalities.iter().flatten().find(|modality| *modality != "text") {
            return Err(Error::unsupported("modalities", other.clone()));
        }
        if self.messages.is_empty() {
            return Err(Error::field("messages", "is empty, but must hold one message or more"));
        }
        let mut messages: Vec<Message> = Vec::with_capacity(self.messages.len());
        // The tool of each call so far, by the call's id: a result is of the last one of its id.
        let mut called: HashMap<String, String> = HashMap::new();
        for (at, said) in self.messages.into_iter().enumerate() {
            let mut message = said.message(at)?;
            if let Some(id) = &message.tool_call_id {
                message.name = Some(called.get(id).cloned().ok_or_else(|| {
                    let wrong = "is the id of no call that an assistant's message before it has made";
                    Error::field(format!("messages[{at}].tool_call_id"), wrong)
                })?);
            }
            called.extend(message.tool_calls.iter().map(|call| (call.id.clone(), call.name.clone())));
            messages.push(message);
        }
        Ok((messages, offered))
    }
}

impl Said {
    fn message(self, at: usize) -> Result<Message, Error> {
        let place = |field: &str| format!("messages[{at}].{field}");
        let calls = self.tool_calls.unwrap_or_default();
        let role = match self.role {
            // The same by its newer name.
            Role::System | Role::Developer => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
            Role::Function => {
                return Err(Error::unsupported(place("role"), "function, the older name of 'tool',"));
            }
        };
        if self.role != Role::Assistant && !calls.is_empty() {
            return Err(Error::field(place("tool_calls"), "is only allowed where 'role' is assistant"));
        }
        if self.role == Role::Tool && self.tool_call_id.is_none() {
            return Err(Error::field(place("tool_call_id"), "is required"));
        }
        let content = match self.content {
            Some(Text::Whole(content)) => Some(content),
            Some(Text::Other { at, kind }) => {
                return Err(Error::unsupported(place(&format!("content[{at}].type")), format!("{kind:?}")));
            }
            Some(Text::Missing { at }) => {
                return Err(Error::field(place(&format!("content[{at}].text")), "is required"));
            }
            None if !calls.is_empty() => None,
            None => return Err(Error::field(place("content"), "is required")),
        };
        let of = |(call, value): (usize, Call)| value.read(&place(&format!("tool_calls[{call}]")));
        Ok(Message {
            role: role.to_owned(),
            content,
            tool_calls: calls.into_iter().enumerate().map(of).collect::<Result<_, _>>()?,
            tool_call_id: self.tool_call_id.filter(|_| self.role == Role::Tool),
            name: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use serde_json::json;

    use super::*;

    fn call(id: &str, name: &str) -> Value {
        let function = json!({ "name": name, "arguments": "{}" });
        json!({ "role": "assistant", "tool_calls": [{ "id": id, "type": "function", "function": function }] })
    }

    fn result(id: &str) -> Value {
        json!({ "role": "tool", "tool_call_id": id, "content": "" })
    }

    fn read(messages: &[Value]) -> Result<Vec<Message>, Error> {
        let chat: Chat = serde_json::from_value(json!({ "messages": messages })).expect("a conversation");
        Ok(chat.read()?.0)
    }

    #[test]
    fn results_are_of_the_last_call_of_their_id() {
        let messages = [call("1", "a"), result("1"), call("1", "b"), call("2", "c"), result("1")];
        let read = read(&messages).expect("a conversation");
        assert_eq!([&read[1].name, &read[4].name], [&Some("a".to_owned()), &Some("b".to_owned())]);
        assert!(super::tests::read(&[call("1", "a"), result("2"), call("2", "b")]).is_err());
    }

    /// A search through all calls for each result takes more than four seconds, a look at a table less than a tenth of one.
    #[test]
    fn many_results_take_little_time() {
        let ids: Vec<String> = (0..20_000).map(|id| id.to_string()).collect();
        let calls = ids.iter().map(|id| call(id, "f"));
        let messages: Vec<Value> = calls.chain(ids.iter().map(|id| result(id))).collect();
        let chat: Chat = serde_json::from_value(json!({ "messages": messages })).expect("a conversation");
        let begun = Instant::now();
        let (read, _) = chat.read().expect("a conversation");
        assert!(read[20_000..].iter().all(|message| message.name.as_deref() == Some("f")));
        assert!(begun.elapsed().as_secs_f64() < 1.5, "{:?}", begun.elapsed());
    }
}
