//! What only `/v1/chat/completions` has: messages.

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde_json::Value;
use text::Message;
use utoipa::ToSchema;

use super::logprobs::CHAT_MOST;
use super::options::unset;
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
    /// Not built yet: any value but none is refused.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Value>,
    /// Not built yet: only "none" and "auto" are let pass.
    #[schema(value_type = Option<String>)]
    tool_choice: Option<Value>,
    /// Not built: any value but none is refused.
    #[schema(value_type = Option<Vec<Object>>)]
    functions: Option<Value>,
    /// Only `["text"]`.
    modalities: Option<Vec<String>>,
}

/// A message.
#[derive(Debug, Deserialize, ToSchema)]
struct Said {
    role: Role,
    #[schema(value_type = Content)]
    content: Option<Text>,
    /// Not built yet: any value but none is refused.
    #[schema(value_type = Option<Vec<Object>>)]
    tool_calls: Option<Value>,
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

    /// The messages as a template takes them.
    pub(crate) fn messages(self) -> Result<Vec<Message>, Error> {
        unset("tools", &self.tools, "calling tools")?;
        unset("functions", &self.functions, "calling functions")?;
        if !matches!(self.tool_choice.as_ref().map(Value::as_str), None | Some(Some("none" | "auto"))) {
            unset("tool_choice", &self.tool_choice, "calling tools")?;
        }
        if let Some(other) = self.modalities.iter().flatten().find(|modality| *modality != "text") {
            return Err(Error::unsupported("modalities", other.clone()));
        }
        if self.messages.is_empty() {
            return Err(Error::field("messages", "is empty, but must hold one message or more"));
        }
        self.messages.into_iter().enumerate().map(|(at, said)| said.message(at)).collect()
    }
}

impl Said {
    fn message(self, at: usize) -> Result<Message, Error> {
        let place = |field: &str| format!("messages[{at}].{field}");
        let role = match self.role {
            // The same by its newer name.
            Role::System | Role::Developer => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => return Err(Error::unsupported(place("role"), "tool")),
            Role::Function => return Err(Error::unsupported(place("role"), "function")),
        };
        unset(&place("tool_calls"), &self.tool_calls, "calling tools")?;
        match self.content {
            Some(Text::Whole(content)) => Ok(Message::new(role, content)),
            Some(Text::Other { at, kind }) => {
                Err(Error::unsupported(place(&format!("content[{at}].type")), format!("{kind:?}")))
            }
            Some(Text::Missing { at }) => {
                Err(Error::field(place(&format!("content[{at}].text")), "is required"))
            }
            None => Err(Error::field(place("content"), "is required")),
        }
    }
}
