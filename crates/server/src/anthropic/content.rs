//! Content of messages: text, or blocks of several types.

use images::Limits;
use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::error::Error;
use crate::images::{ImageLocation, ImageSource};

/// `content` and `system` in the OpenAPI document.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "describes the schema; never constructed")]
pub(crate) enum MessageContentSchema {
    Text(String),
    Blocks(Vec<RequestBlock>),
}

/// A block of a message's content. Its type decides which fields it has.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct RequestBlock {
    /// "text"; "image" and "tool_result" in messages of the user; "tool_use", "thinking" and "redacted_thinking" in
    /// messages of the assistant.
    pub(super) r#type: String,
    /// Of a text.
    pub(super) text: Option<String>,
    /// Of an image.
    // Images have been taken out of the body before it is parsed.
    #[schema(value_type = Option<ImageSourceSchema>)]
    #[allow(dead_code, reason = "describes the schema; images are parsed elsewhere")]
    source: Option<IgnoredAny>,
    /// Of a tool call.
    pub(super) id: Option<String>,
    /// Of a tool call: the tool.
    pub(super) name: Option<String>,
    /// Of a tool call: the arguments.
    #[schema(value_type = Option<Object>)]
    pub(super) input: Option<Map<String, Value>>,
    /// Of a tool result: the call.
    pub(super) tool_use_id: Option<String>,
    /// Of a tool result: text, or blocks of text and images.
    #[schema(value_type = Option<MessageContentSchema>, no_recursion)]
    pub(super) content: Option<MessageContent>,
    /// Of a tool result: whether the call failed.
    pub(super) is_error: Option<bool>,
    /// What the assistant thought. The template decides whether the model sees it.
    pub(super) thinking: Option<String>,
}

/// The source of an image.
#[derive(ToSchema)]
#[allow(dead_code, reason = "describes the schema; never constructed")]
pub(crate) struct ImageSourceSchema {
    /// "base64", or "url" if the server allows it.
    r#type: String,
    /// Of the data: image/png, image/jpeg, image/webp, image/gif or image/bmp.
    media_type: Option<String>,
    /// The image in base64.
    data: Option<String>,
    /// An http or https URL.
    url: Option<String>,
}

/// The content of a message.
#[derive(Debug)]
pub(crate) enum MessageContent {
    Text(String),
    Blocks(Vec<RequestBlock>),
}

impl<'de> Deserialize<'de> for MessageContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MessageContent, D::Error> {
        struct ContentVisitor;
        impl<'de> Visitor<'de> for ContentVisitor {
            type Value = MessageContent;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string or a list of blocks")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<MessageContent, E> {
                Ok(MessageContent::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<MessageContent, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(seq)).map(MessageContent::Blocks)
            }
        }
        deserializer.deserialize_any(ContentVisitor)
    }
}

impl MessageContent {
    /// The text of content that may only have text; `path` is its field. Blocks are paragraphs.
    pub(super) fn into_text(self, path: &str) -> Result<String, Error> {
        let blocks = match self {
            MessageContent::Text(text) => return Ok(text),
            MessageContent::Blocks(blocks) => blocks,
        };
        let mut texts = Vec::with_capacity(blocks.len());
        for (index, block) in blocks.into_iter().enumerate() {
            let path = format!("{path}[{index}]");
            match block.r#type.as_str() {
                "text" => texts.push(block.into_text(&path)?),
                _ => return Err(block.unsupported(&path)),
            }
        }
        texts.retain(|text| !text.is_empty());
        Ok(texts.join(PARAGRAPH))
    }
}

/// Separates the texts of several blocks, and those of several messages of one role.
pub(super) const PARAGRAPH: &str = "\n\n";

impl RequestBlock {
    pub(super) fn text(text: String) -> RequestBlock {
        RequestBlock { r#type: "text".to_owned(), text: Some(text), ..RequestBlock::default() }
    }

    /// The text of a block of the type `text`.
    pub(super) fn into_text(self, path: &str) -> Result<String, Error> {
        self.text.ok_or_else(|| Error::missing_field(format!("{path}.text")))
    }

    /// The error for a block of a type that is not allowed where it is.
    pub(super) fn unsupported(&self, path: &str) -> Error {
        let path = format!("{path}.type");
        let place = match self.r#type.as_str() {
            "image" => "images are only allowed in messages with the role user",
            "tool_result" => "tool results are only allowed in messages with the role user",
            "tool_use" => "tool calls are only allowed in messages with the role assistant",
            "thinking" | "redacted_thinking" => {
                "thinking is only allowed in messages with the role assistant"
            }
            "text" => "text is not allowed here",
            other => {
                let shown: String = other.chars().take(MAX_SHOWN).collect();
                return Error::unsupported(path, format!("the content block {shown:?}"));
            }
        };
        Error::invalid_field(path, place)
    }
}

/// Maximum length of a type in an error, in characters.
pub(super) const MAX_SHOWN: usize = 60;

/// Takes the images out of the messages of the user, in order, so that parsing does not copy them.
pub(super) fn take_images(body: &mut Value, limits: &Limits) -> Result<Vec<ImageSource>, Error> {
    let mut sources = Vec::new();
    let Some(messages) = body.get_mut("messages").and_then(Value::as_array_mut) else { return Ok(sources) };
    for (index, message) in messages.iter_mut().enumerate() {
        if message.get("role").and_then(Value::as_str) == Some("user")
            && let Some(content) = message.get_mut("content")
        {
            take_from(content, &format!("messages[{index}].content"), limits, &mut sources)?;
        }
    }
    Ok(sources)
}

/// Takes the images out of blocks and of the tool results among them. Recursion is limited by the parser, to 128
/// levels.
fn take_from(
    content: &mut Value,
    path: &str,
    limits: &Limits,
    sources: &mut Vec<ImageSource>,
) -> Result<(), Error> {
    for (index, block) in content.as_array_mut().into_iter().flatten().enumerate() {
        match block.get("type").and_then(Value::as_str) {
            Some("image") => {
                let param = format!("{path}[{index}].source");
                sources.push(ImageSource { location: take_source(block, &param, limits)?, param });
            }
            Some("tool_result") => {
                if let Some(content) = block.get_mut("content") {
                    take_from(content, &format!("{path}[{index}].content"), limits, sources)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn take_source(block: &mut Value, param: &str, limits: &Limits) -> Result<ImageLocation, Error> {
    let mut fields = match block.get_mut("source").map(Value::take) {
        Some(Value::Object(fields)) => fields,
        None | Some(Value::Null) => return Err(Error::missing_field(param)),
        Some(_) => return Err(Error::invalid_field(param, "must be an object")),
    };
    let mut take = |name: &str| match fields.remove(name) {
        Some(Value::String(text)) => Ok(text),
        None | Some(Value::Null) => Err(Error::missing_field(format!("{param}.{name}"))),
        Some(_) => Err(Error::invalid_field(format!("{param}.{name}"), "must be a string")),
    };
    match take("type")?.as_str() {
        "base64" => {
            let media_type = take("media_type")?;
            ImageLocation::base64(param, &media_type, take("data")?, 0, limits)
        }
        "url" => ImageLocation::remote(&format!("{param}.url"), take("url")?),
        other => {
            let shown: String = other.chars().take(MAX_SHOWN).collect();
            Err(Error::unsupported(format!("{param}.type"), format!("the image source {shown:?}")))
        }
    }
}
