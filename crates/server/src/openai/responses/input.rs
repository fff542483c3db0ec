//! The field `input`: a text, or items.

use std::sync::Arc;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde_json::Value;
use utoipa::ToSchema;

use super::item::{ImageDetail, Item, ItemKind, ItemRole, ItemStatus, Part, ToolOutput};
use crate::error::Error;
use crate::openai::tools::MAX_NAME;
use crate::parse::parse_field;
use crate::tools::check_name;

/// Maximum length of a type in an error, in characters.
pub(super) const MAX_SHOWN: usize = 60;

/// `input` in the OpenAPI document.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "describes the schema; never constructed")]
pub(crate) enum InputSchema {
    Text(String),
    Items(Vec<InputItem>),
}

/// An item of the input. Its type decides which fields it has.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct InputItem {
    /// "message" if it is unset and there is a role; "function_call", "function_call_output", "reasoning" or
    /// "item_reference".
    #[allow(dead_code, reason = "describes the schema; the type is read before the other fields")]
    r#type: Option<String>,
    /// Of a reference: the item. Other items get new ids.
    id: Option<String>,
    /// Of a message.
    role: Option<ItemRole>,
    /// Of a message: text, or parts. Of reasoning: what the model thought, which the template may show to it.
    #[schema(value_type = Option<InputContentSchema>)]
    content: Option<InputContent>,
    /// Of a tool call or its result: the id of the call.
    call_id: Option<String>,
    /// Of a tool call: the tool.
    name: Option<String>,
    /// Of a tool call: the arguments as JSON text.
    arguments: Option<String>,
    /// Of a tool result: text, or parts.
    #[schema(value_type = Option<InputContentSchema>)]
    output: Option<InputContent>,
    /// Of reasoning: used if there is no content.
    summary: Option<Vec<InputPart>>,
    status: Option<InputStatus>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "snake_case")]
enum InputStatus {
    InProgress,
    Completed,
    /// A tool call that was cut off; it is left out unless it has a result.
    Incomplete,
}

/// The content of an item in the OpenAPI document.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "describes the schema; never constructed")]
enum InputContentSchema {
    Text(String),
    Parts(Vec<InputPart>),
}

/// A part of an item's content. Its type decides which fields it has.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct InputPart {
    /// "input_text"; "input_image" in messages of the user and in tool results, if the model takes images;
    /// "output_text" and "refusal" in messages of the assistant; "reasoning_text" and "summary_text" in reasoning.
    r#type: String,
    text: Option<String>,
    refusal: Option<String>,
    /// A data URL in base64: PNG, JPEG, WebP, GIF or BMP. An http or https URL only if the server allows it.
    image_url: Option<String>,
    detail: Option<ImageDetail>,
    /// Not supported: must be unset.
    file_id: Option<String>,
}

/// Text, or parts.
#[derive(Debug)]
enum InputContent {
    Text(String),
    Parts(Vec<InputPart>),
}

impl<'de> Deserialize<'de> for InputContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<InputContent, D::Error> {
        struct ContentVisitor;
        impl<'de> Visitor<'de> for ContentVisitor {
            type Value = InputContent;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string or a list of parts")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<InputContent, E> {
                Ok(InputContent::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<InputContent, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(seq)).map(InputContent::Parts)
            }
        }
        deserializer.deserialize_any(ContentVisitor)
    }
}

/// Where parts are, which decides their types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    User,
    System,
    Assistant,
    ToolOutput,
    Reasoning,
    Summary,
}

impl Place {
    /// The types of the parts.
    fn types(self) -> &'static [&'static str] {
        match self {
            Place::User | Place::ToolOutput => &["input_text", "input_image"],
            Place::System => &["input_text"],
            Place::Assistant => &["output_text", "refusal", "input_text"],
            Place::Reasoning => &["reasoning_text"],
            Place::Summary => &["summary_text"],
        }
    }

    /// A text as a part.
    fn text_part(self, text: String) -> Part {
        match self {
            Place::User | Place::System | Place::ToolOutput => Part::InputText { text },
            Place::Assistant => Part::output_text(text),
            Place::Reasoning => Part::ReasoningText { text },
            Place::Summary => Part::SummaryText { text },
        }
    }
}

/// The field that names the items of earlier responses.
const PREVIOUS: &str = "previous_response_id";

/// An item, and its field.
pub(super) struct PlacedItem {
    path: String,
    pub(super) item: Arc<Item>,
}

impl PlacedItem {
    /// An item of an earlier response.
    pub(super) fn earlier(item: Arc<Item>) -> PlacedItem {
        PlacedItem { path: PREVIOUS.to_owned(), item }
    }

    /// A field of the item; that of the earlier response if the item is part of it.
    pub(super) fn field(&self, name: &str) -> String {
        if self.path == PREVIOUS { self.path.clone() } else { format!("{}.{name}", self.path) }
    }
}

/// Parses the field `input`. `find` finds a stored item by its id.
pub(super) fn parse_input(
    input: Value,
    find: impl Fn(&str) -> Option<Arc<Item>>,
) -> Result<Vec<PlacedItem>, Error> {
    let items = match input {
        Value::String(text) => {
            let content = vec![Part::InputText { text }];
            let kind = ItemKind::Message { role: ItemRole::User, content };
            let item = Arc::new(Item::new(ItemStatus::Completed, kind));
            return Ok(vec![PlacedItem { path: "input".to_owned(), item }]);
        }
        Value::Array(items) => items,
        _ => return Err(Error::invalid_field("input", "must be a string or a list of items")),
    };
    let item = |(index, value): (usize, Value)| {
        let path = format!("input[{index}]");
        let item = parse_item(&path, &value, &find)?;
        Ok(PlacedItem { path, item })
    };
    items.into_iter().enumerate().map(item).collect()
}

fn parse_item(
    path: &str,
    value: &Value,
    find: impl Fn(&str) -> Option<Arc<Item>>,
) -> Result<Arc<Item>, Error> {
    // The type first: items of other types may have fields of the same name, but not of the same type.
    let kind = match (value.get("type"), value.get("role")) {
        (None | Some(Value::Null), Some(_)) => "message",
        (Some(Value::String(kind)), _) => kind.as_str(),
        (None | Some(Value::Null), None) if value.is_object() => {
            return Err(Error::missing_field(format!("{path}.type")));
        }
        (Some(_), _) => return Err(Error::invalid_field(format!("{path}.type"), "must be a string")),
        _ => return Err(Error::invalid_field(path, "must be an object")),
    };
    if !["message", "function_call", "function_call_output", "reasoning", "item_reference"].contains(&kind) {
        let shown: String = kind.chars().take(MAX_SHOWN).collect();
        return Err(Error::unsupported(format!("{path}.type"), format!("the item {shown:?}")));
    }
    let item: InputItem = parse_field(path, value)?;
    let field = |name: &str| format!("{path}.{name}");
    let missing = |name: &str| Error::missing_field(field(name));
    let kind = match kind {
        "message" => {
            let role = item.role.ok_or_else(|| missing("role"))?;
            let place = match role {
                ItemRole::User => Place::User,
                ItemRole::Assistant => Place::Assistant,
                ItemRole::System | ItemRole::Developer => Place::System,
            };
            let content = item.content.ok_or_else(|| missing("content"))?;
            ItemKind::Message { role, content: content.into_parts(&field("content"), place)? }
        }
        "function_call" => {
            let name = item.name.ok_or_else(|| missing("name"))?;
            check_name(&field("name"), &name, MAX_NAME)?;
            ItemKind::FunctionCall {
                call_id: item.call_id.ok_or_else(|| missing("call_id"))?,
                name,
                arguments: item.arguments.ok_or_else(|| missing("arguments"))?,
            }
        }
        "function_call_output" => {
            let output = match item.output.ok_or_else(|| missing("output"))? {
                InputContent::Text(text) => ToolOutput::Text(text),
                parts => ToolOutput::Parts(parts.into_parts(&field("output"), Place::ToolOutput)?),
            };
            ItemKind::FunctionCallOutput { call_id: item.call_id.ok_or_else(|| missing("call_id"))?, output }
        }
        "reasoning" => {
            let content = item.content.unwrap_or(InputContent::Parts(vec![]));
            let summary = InputContent::Parts(item.summary.unwrap_or_default());
            ItemKind::Reasoning {
                summary: summary.into_parts(&field("summary"), Place::Summary)?,
                content: content.into_parts(&field("content"), Place::Reasoning)?,
                encrypted_content: None,
            }
        }
        _ => {
            let id = item.id.ok_or_else(|| missing("id"))?;
            let unknown = "is the id of no stored item: send the item itself";
            return find(&id).ok_or_else(|| Error::invalid_field(field("id"), unknown));
        }
    };
    let status = match item.status {
        Some(InputStatus::Incomplete) => ItemStatus::Incomplete,
        _ => ItemStatus::Completed,
    };
    Ok(Arc::new(Item::new(status, kind)))
}

impl InputContent {
    fn into_parts(self, path: &str, place: Place) -> Result<Vec<Part>, Error> {
        match self {
            InputContent::Text(text) => Ok(vec![place.text_part(text)]),
            InputContent::Parts(parts) => {
                let part =
                    |(index, part): (usize, InputPart)| part.into_part(&format!("{path}[{index}]"), place);
                parts.into_iter().enumerate().map(part).collect()
            }
        }
    }
}

impl InputPart {
    fn into_part(self, path: &str, place: Place) -> Result<Part, Error> {
        let types = place.types();
        if !types.contains(&self.r#type.as_str()) {
            let shown: String = self.r#type.chars().take(MAX_SHOWN).collect();
            let message = format!("is {shown:?}, but the parts here may be {}", types.join(", "));
            return Err(Error::invalid_field(format!("{path}.type"), message));
        }
        let missing = |name: &str| Error::missing_field(format!("{path}.{name}"));
        match self.r#type.as_str() {
            "refusal" => Ok(Part::Refusal { refusal: self.refusal.ok_or_else(|| missing("refusal"))? }),
            "input_image" => {
                if self.file_id.is_some() {
                    let feature = "an uploaded file (send the image as 'image_url')";
                    return Err(Error::unsupported(format!("{path}.file_id"), feature));
                }
                let image_url = self.image_url.ok_or_else(|| missing("image_url"))?;
                Ok(Part::InputImage { image_url, detail: self.detail.unwrap_or_default() })
            }
            _ => Ok(place.text_part(self.text.ok_or_else(|| missing("text"))?)),
        }
    }
}
