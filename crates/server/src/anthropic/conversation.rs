//! From the messages of a request to those of the chat template.
//!
//! Consecutive messages of one role are one turn. A tool result becomes a message of its own, which precedes the rest
//! of its turn, since templates expect it right after the call. The images of a result move to the rest of the turn,
//! since templates take images in messages of the user only.

use std::collections::{HashMap, HashSet};

use text::{Content, Message, Part, PromptEnd, ToolCall};

use super::content::{MessageContent, PARAGRAPH, RequestBlock};
use super::request::{RequestMessage, Role};
use super::tools::MAX_NAME;
use crate::error::Error;
use crate::images::ImageSource;
use crate::tools::check_name;

/// The messages of a conversation.
pub(super) struct Turns {
    pub(super) messages: Vec<Message>,
    /// In the order of the messages.
    pub(super) images: Vec<ImageSource>,
    pub(super) end: PromptEnd,
    /// The first field with a tool call or a result.
    pub(super) tools_used_at: Option<String>,
}

/// A block of a turn, and its field.
struct TurnBlock {
    path: String,
    block: RequestBlock,
}

/// Consecutive messages of one role.
struct Turn {
    role: Role,
    blocks: Vec<TurnBlock>,
}

/// Turns messages into those of the chat template. `images` are those that were taken out of them, in order.
pub(super) fn turns(
    system: Option<String>,
    messages: Vec<RequestMessage>,
    images: Vec<ImageSource>,
) -> Result<Turns, Error> {
    let mut builder = Builder { images: images.into_iter(), ..Builder::default() };
    if let Some(system) = system.filter(|system| !system.is_empty()) {
        builder.messages.push(Message::new("system", system));
    }
    for turn in merge(messages)? {
        match turn.role {
            Role::System => builder.push_system(turn.blocks)?,
            Role::User => builder.push_user(turn.blocks)?,
            Role::Assistant => builder.push_assistant(turn.blocks)?,
        }
    }
    builder.finish()
}

/// Merges consecutive messages of one role.
fn merge(messages: Vec<RequestMessage>) -> Result<Vec<Turn>, Error> {
    if messages.is_empty() {
        return Err(Error::invalid_field("messages", "is empty: at least one message is required"));
    }
    let last = messages.len() - 1;
    let mut turns: Vec<Turn> = Vec::new();
    for (index, RequestMessage { role, content }) in messages.into_iter().enumerate() {
        if index == 0 && role == Role::Assistant {
            let message = "is assistant, but the first message must be the user's";
            return Err(Error::invalid_field("messages[0].role", message));
        }
        let path = format!("messages[{index}].content");
        let blocks: Vec<TurnBlock> = match content {
            MessageContent::Text(text) if text.is_empty() => vec![],
            MessageContent::Text(text) => {
                vec![TurnBlock { path: path.clone(), block: RequestBlock::text(text) }]
            }
            MessageContent::Blocks(blocks) => {
                let block = |(at, block)| TurnBlock { path: format!("{path}[{at}]"), block };
                blocks.into_iter().enumerate().map(block).collect()
            }
        };
        // The last message of the assistant is the start of the reply, which may be empty.
        if blocks.is_empty() && !(index == last && role == Role::Assistant) {
            return Err(Error::invalid_field(path, "is empty: text or another block is required"));
        }
        match turns.last_mut() {
            Some(turn) if turn.role == role => turn.blocks.extend(blocks),
            _ => turns.push(Turn { role, blocks }),
        }
    }
    Ok(turns)
}

/// Tool calls of the last turn that have no result yet, by id: the field of the call, and the tool's name.
type OpenCalls = HashMap<String, (String, String)>;

#[derive(Default)]
struct Builder {
    messages: Vec<Message>,
    /// Images that are not placed yet, in the order of the request.
    images: std::vec::IntoIter<ImageSource>,
    placed: Vec<ImageSource>,
    ids: HashSet<String>,
    open: OpenCalls,
    tools_used_at: Option<String>,
}

impl Builder {
    fn push_system(&mut self, blocks: Vec<TurnBlock>) -> Result<(), Error> {
        self.check_results()?;
        let mut texts = Vec::with_capacity(blocks.len());
        for TurnBlock { path, block } in blocks {
            match block.r#type.as_str() {
                "text" => texts.push(block.into_text(&path)?),
                _ => return Err(block.unsupported(&path)),
            }
        }
        self.messages.push(Message::new("system", texts.join(PARAGRAPH)));
        Ok(())
    }

    fn push_user(&mut self, blocks: Vec<TurnBlock>) -> Result<(), Error> {
        // Images of results precede the other parts.
        let (mut result_images, mut images, mut parts) = (vec![], vec![], vec![]);
        for TurnBlock { path, block } in blocks {
            match block.r#type.as_str() {
                "text" => push_text(&mut parts, non_empty(block, &path)?),
                "image" => {
                    images.push(self.next_image()?);
                    parts.push(Part::Image);
                }
                "tool_result" => self.push_result(block, &path, &mut result_images)?,
                _ => return Err(block.unsupported(&path)),
            }
        }
        self.check_results()?;
        parts.splice(0..0, result_images.iter().map(|_| Part::Image));
        self.placed.append(&mut result_images);
        self.placed.append(&mut images);
        if !parts.is_empty() {
            self.messages.push(Message::new("user", content(parts)));
        }
        Ok(())
    }

    fn push_result(
        &mut self,
        block: RequestBlock,
        path: &str,
        images: &mut Vec<ImageSource>,
    ) -> Result<(), Error> {
        let field = format!("{path}.tool_use_id");
        let id = block.tool_use_id.ok_or_else(|| Error::missing_field(field.clone()))?;
        let Some((_, name)) = self.open.remove(&id) else {
            let message = "matches no tool_use of the message before it that has no other result";
            return Err(Error::invalid_field(field, message));
        };
        let mut texts = Vec::new();
        match block.content {
            None => {}
            Some(MessageContent::Text(text)) => texts.push(text),
            Some(MessageContent::Blocks(blocks)) => {
                for (index, block) in blocks.into_iter().enumerate() {
                    let path = format!("{path}.content[{index}]");
                    match block.r#type.as_str() {
                        "text" => texts.push(block.into_text(&path)?),
                        "image" => images.push(self.next_image()?),
                        _ => return Err(block.unsupported(&path)),
                    }
                }
            }
        }
        let mut text = texts.join(PARAGRAPH);
        // Templates have no field for it.
        if block.is_error == Some(true) && !text.trim_start().to_ascii_lowercase().starts_with("error") {
            text.insert_str(0, "Error: ");
        }
        let result = Message { tool_call_id: Some(id), name: Some(name), ..Message::new("tool", text) };
        self.messages.push(result);
        Ok(())
    }

    fn push_assistant(&mut self, blocks: Vec<TurnBlock>) -> Result<(), Error> {
        self.check_results()?;
        let (mut text, mut reasoning, mut tool_calls) = (String::new(), String::new(), vec![]);
        for TurnBlock { path, block } in blocks {
            match block.r#type.as_str() {
                "text" => text.push_str(&block.into_text(&path)?),
                "thinking" => {
                    let thinking = block.thinking;
                    let missing = || Error::missing_field(format!("{path}.thinking"));
                    reasoning.push_str(&thinking.ok_or_else(missing)?);
                }
                // Of another model, which alone can read it.
                "redacted_thinking" => {}
                "tool_use" => tool_calls.push(self.tool_call(block, &path)?),
                _ => return Err(block.unsupported(&path)),
            }
        }
        let content = Some(Content::Text(text)).filter(|text| !text.is_empty() || tool_calls.is_empty());
        self.messages.push(Message {
            role: "assistant".to_owned(),
            content,
            reasoning: Some(reasoning).filter(|text| !text.is_empty()),
            tool_calls,
            ..Message::default()
        });
        Ok(())
    }

    fn tool_call(&mut self, block: RequestBlock, path: &str) -> Result<ToolCall, Error> {
        let missing = |field: &str| Error::missing_field(format!("{path}.{field}"));
        let id = block.id.ok_or_else(|| missing("id"))?;
        let name = block.name.ok_or_else(|| missing("name"))?;
        let input = block.input.ok_or_else(|| missing("input"))?;
        check_name(&format!("{path}.name"), &name, MAX_NAME)?;
        let field = format!("{path}.id");
        if !self.ids.insert(id.clone()) {
            return Err(Error::invalid_field(field, "is the id of another tool_use, but ids must be unique"));
        }
        self.tools_used_at.get_or_insert_with(|| format!("{path}.type"));
        self.open.insert(id.clone(), (field, name.clone()));
        Ok(ToolCall { id, name, arguments: input.into() })
    }

    /// An error if a call of the last turn has no result.
    fn check_results(&self) -> Result<(), Error> {
        let first = self.open.values().map(|(field, _)| field).min();
        first.map_or(Ok(()), |field| {
            let message = "has no tool_result: the next message must have one for each tool_use";
            Err(Error::invalid_field(field.clone(), message))
        })
    }

    fn next_image(&mut self) -> Result<ImageSource, Error> {
        // Images are taken and placed in the same order.
        self.images.next().ok_or(Error::Internal)
    }

    fn finish(mut self) -> Result<Turns, Error> {
        self.check_results()?;
        let mut end = PromptEnd::Reply;
        if let Some(last) = self.messages.last().filter(|last| last.role == "assistant") {
            match last.text().is_empty() {
                true => drop(self.messages.pop()),
                false => end = PromptEnd::LastMessage,
            }
        }
        let Builder { messages, placed: images, tools_used_at, .. } = self;
        Ok(Turns { messages, images, end, tools_used_at })
    }
}

/// The text of a block, which must not be empty.
fn non_empty(block: RequestBlock, path: &str) -> Result<String, Error> {
    let text = block.into_text(path)?;
    match text.is_empty() {
        true => Err(Error::invalid_field(format!("{path}.text"), "is empty: leave the block out")),
        false => Ok(text),
    }
}

fn push_text(parts: &mut Vec<Part>, text: String) {
    match parts.last_mut() {
        Some(Part::Text(last)) => {
            last.push_str(PARAGRAPH);
            last.push_str(&text);
        }
        _ => parts.push(Part::Text(text)),
    }
}

fn content(parts: Vec<Part>) -> Content {
    match &parts[..] {
        [Part::Text(text)] => text.into(),
        _ => parts.into(),
    }
}
