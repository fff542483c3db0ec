//! From items to messages for the chat template.
//!
//! Consecutive items of one side are one message: reasoning, text and tool calls of the assistant; messages of the
//! user; instructions and messages of the system. The images of a tool result move to the next message of the user,
//! since templates take images there only.

use std::collections::{HashMap, HashSet};

use images::Limits;
use text::{Content, Message};

use super::input::{MAX_SHOWN, PlacedItem};
use super::item::{ItemKind, ItemRole, ItemStatus, Part, ToolOutput};
use crate::error::Error;
use crate::images::ImageSource;
use crate::openai::image_url::parse_url;
use crate::openai::tools::text_call;

/// Separates the texts of several items.
const PARAGRAPH: &str = "\n\n";

/// The messages of a conversation.
#[derive(Debug)]
pub(super) struct Messages {
    pub(super) messages: Vec<Message>,
    /// In the order of the messages.
    pub(super) images: Vec<ImageSource>,
    /// The first field with a tool call or a result.
    pub(super) tools_used_at: Option<String>,
}

/// Turns items into messages.
pub(super) fn messages(
    instructions: Option<&str>,
    items: &[PlacedItem],
    limits: &Limits,
) -> Result<Messages, Error> {
    let answered = items.iter().filter_map(|placed| match &placed.item.kind {
        ItemKind::FunctionCallOutput { call_id, .. } => Some(call_id.as_str()),
        _ => None,
    });
    let mut builder = Builder {
        messages: vec![],
        images: vec![],
        result_images: vec![],
        answered: answered.collect(),
        open: HashMap::new(),
        tools_used_at: None,
        limits,
    };
    if let Some(instructions) = instructions.filter(|text| !text.is_empty()) {
        builder.push_text("system", instructions);
    }
    for placed in items {
        builder.push(placed)?;
    }
    builder.finish()
}

struct Builder<'a> {
    messages: Vec<Message>,
    images: Vec<ImageSource>,
    /// Images of tool results, which are not part of a message yet.
    result_images: Vec<ImageSource>,
    /// Ids of the calls that have a result.
    answered: HashSet<&'a str>,
    /// Calls that have no result yet, by id: the field of the id, and the tool's name.
    open: HashMap<&'a str, (String, &'a str)>,
    tools_used_at: Option<String>,
    limits: &'a Limits,
}

impl<'a> Builder<'a> {
    fn push(&mut self, placed: &'a PlacedItem) -> Result<(), Error> {
        match &placed.item.kind {
            ItemKind::Message { role: ItemRole::User, content } => self.push_user(placed, content),
            ItemKind::Message { role: ItemRole::Assistant, content } => {
                self.assistant();
                self.push_text("assistant", &joined(content));
                Ok(())
            }
            ItemKind::Message { role: ItemRole::System | ItemRole::Developer, content } => {
                self.flush_images();
                self.push_text("system", &joined(content));
                Ok(())
            }
            ItemKind::Reasoning { summary, content, .. } => {
                let text = joined(if content.is_empty() { summary } else { content });
                if !text.is_empty() {
                    append(self.assistant().reasoning.get_or_insert_default(), &text);
                }
                Ok(())
            }
            ItemKind::FunctionCall { call_id, name, arguments } => {
                if placed.item.status == ItemStatus::Incomplete && !self.answered.contains(call_id.as_str()) {
                    return Ok(());
                }
                let field = placed.field("call_id");
                if self.open.contains_key(call_id.as_str()) {
                    let message = "is the id of another function_call without an output";
                    return Err(Error::invalid_field(field, message));
                }
                self.tools_used_at.get_or_insert_with(|| placed.field("type"));
                self.open.insert(call_id, (field, name));
                let call = text_call(call_id.clone(), name.clone(), arguments.clone());
                self.assistant().tool_calls.push(call);
                Ok(())
            }
            ItemKind::FunctionCallOutput { call_id, output } => self.push_output(placed, call_id, output),
        }
    }

    fn push_user(&mut self, placed: &PlacedItem, content: &[Part]) -> Result<(), Error> {
        let mut parts: Vec<text::Part> = self.result_images.iter().map(|_| text::Part::Image).collect();
        self.images.append(&mut self.result_images);
        for (index, part) in content.iter().enumerate() {
            match part {
                Part::InputImage { image_url, .. } => {
                    let source =
                        self.image(placed.field(&format!("content[{index}].image_url")), image_url)?;
                    self.images.push(source);
                    parts.push(text::Part::Image);
                }
                part => push_part(&mut parts, part.text().unwrap_or_default()),
            }
        }
        match self.messages.last_mut() {
            Some(last) if last.role == "user" => {
                let mut all = match last.content.take() {
                    Some(Content::Parts(parts)) => parts,
                    Some(Content::Text(text)) => vec![text::Part::Text(text)],
                    None => vec![],
                };
                let mut parts = parts.into_iter();
                // Where one item ends and the next starts is the end of a paragraph.
                match parts.next() {
                    Some(text::Part::Text(text)) => push_part(&mut all, &text),
                    first => all.extend(first),
                }
                all.extend(parts);
                last.content = Some(content_of(all));
            }
            _ => self.messages.push(Message::new("user", content_of(parts))),
        }
        Ok(())
    }

    fn push_output(
        &mut self,
        placed: &PlacedItem,
        call_id: &'a str,
        output: &ToolOutput,
    ) -> Result<(), Error> {
        let Some((_, name)) = self.open.remove(call_id) else {
            let message = "matches no function_call before it that has no other output";
            return Err(Error::invalid_field(placed.field("call_id"), message));
        };
        let content = match output {
            ToolOutput::Text(text) => text.clone(),
            ToolOutput::Parts(parts) => {
                for (index, part) in parts.iter().enumerate() {
                    if let Part::InputImage { image_url, .. } = part {
                        let source =
                            self.image(placed.field(&format!("output[{index}].image_url")), image_url)?;
                        self.result_images.push(source);
                    }
                }
                joined(parts)
            }
        };
        self.messages.push(Message {
            role: "tool".to_owned(),
            content: Some(content.into()),
            tool_call_id: Some(call_id.to_owned()),
            name: Some(name.to_owned()),
            ..Message::default()
        });
        Ok(())
    }

    /// The assistant's message at the end, which is new if the last one is another's.
    fn assistant(&mut self) -> &mut Message {
        self.flush_images();
        if self.messages.last().is_none_or(|last| last.role != "assistant") {
            self.messages.push(Message { role: "assistant".to_owned(), ..Message::default() });
        }
        self.messages.last_mut().expect("a message was pushed")
    }

    /// Adds a text to the last message if that has the same role.
    fn push_text(&mut self, role: &str, text: &str) {
        match self.messages.last_mut() {
            Some(last) if last.role == role => {
                let mut all = match last.content.take() {
                    // Moved, not copied: there may be many items.
                    Some(Content::Text(text)) => text,
                    Some(content) => content.text().into_owned(),
                    None => String::new(),
                };
                append(&mut all, text);
                last.content = Some(all.into());
            }
            _ => self.messages.push(Message::new(role, text)),
        }
    }

    /// A message of the user for the images of tool results, unless there are none.
    fn flush_images(&mut self) {
        if !self.result_images.is_empty() {
            let parts: Vec<text::Part> = self.result_images.iter().map(|_| text::Part::Image).collect();
            self.images.append(&mut self.result_images);
            self.messages.push(Message::new("user", parts));
        }
    }

    fn image(&self, param: String, url: &str) -> Result<ImageSource, Error> {
        Ok(ImageSource { location: parse_url(url.to_owned(), &param, self.limits)?, param })
    }

    fn finish(mut self) -> Result<Messages, Error> {
        if let Some((call_id, (field, _))) = self.open.iter().min_by(|a, b| a.1.0.cmp(&b.1.0)) {
            let shown: String = call_id.chars().take(MAX_SHOWN).collect();
            let message =
                format!("the function_call {shown:?} has no function_call_output: add it to 'input'");
            return Err(Error::invalid_field(field.clone(), message));
        }
        self.flush_images();
        let Builder { messages, images, tools_used_at, .. } = self;
        Ok(Messages { messages, images, tools_used_at })
    }
}

/// The texts of several parts.
fn joined(parts: &[Part]) -> String {
    let mut text = String::new();
    parts.iter().filter_map(Part::text).for_each(|more| append(&mut text, more));
    text
}

/// Appends a paragraph.
fn append(text: &mut String, more: &str) {
    if !text.is_empty() && !more.is_empty() {
        text.push_str(PARAGRAPH);
    }
    text.push_str(more);
}

fn push_part(parts: &mut Vec<text::Part>, text: &str) {
    match parts.last_mut() {
        Some(text::Part::Text(last)) => append(last, text),
        _ => parts.push(text::Part::Text(text.to_owned())),
    }
}

fn content_of(mut parts: Vec<text::Part>) -> Content {
    match (parts.len(), parts.pop()) {
        (1, Some(text::Part::Text(text))) => text.into(),
        (_, Some(last)) => {
            parts.push(last);
            parts.into()
        }
        (_, None) => "".into(),
    }
}
