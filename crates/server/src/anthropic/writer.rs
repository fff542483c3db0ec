//! Responses of `/v1/messages`: from the parts of the output to content blocks.

use axum::Json;
use axum::response::sse::{Event, KeepAlive};
use axum::response::{IntoResponse, Response};
use serde_json::Map;

use super::error::ErrorBody;
use super::response::{BlockDelta, Message, MessageEnd, MessageUsage, ResponseBlock, StreamEvent};
use crate::choice::ChoicePart;
use crate::error::Error;
use crate::output::OutputPart;
use crate::random;
use crate::response::{self, Collector, EventWriter, Generation};

/// A message that is still without content.
pub(super) fn new_message(generation: &Generation, model: &str) -> Message {
    Message {
        id: generation.id.clone(),
        r#type: "message",
        role: "assistant",
        model: model.to_owned(),
        content: vec![],
        stop_reason: None,
        stop_sequence: None,
        usage: MessageUsage::new(generation.usage(), None),
    }
}

/// Thinking is not signed: it is not checked when it is sent back.
const SIGNATURE: &str = "";

/// A tool call with a new id, still without arguments.
fn new_tool_use(name: String) -> ResponseBlock {
    ResponseBlock::ToolUse { id: format!("toolu_{}", random::id()), name, input: Map::new() }
}

/// Collects a message.
pub(super) struct MessageCollector {
    pub(super) message: Message,
    /// The arguments of the last block, if that is a tool call.
    pub(super) arguments: String,
    pub(super) stop_sequences: Vec<String>,
}

impl MessageCollector {
    /// Completes the last block, if that is a tool call. A call whose arguments were cut off is left out: it must not
    /// be executed.
    fn end_call(&mut self) {
        let arguments = std::mem::take(&mut self.arguments);
        if let Some(ResponseBlock::ToolUse { input, .. }) = self.message.content.last_mut() {
            match serde_json::from_str(&arguments) {
                Ok(parsed) => *input = parsed,
                Err(_) => drop(self.message.content.pop()),
            }
        }
    }
}

impl Collector for MessageCollector {
    fn push(&mut self, part: ChoicePart) {
        match part.part {
            OutputPart::Text(text, _) => match self.message.content.last_mut() {
                Some(ResponseBlock::Text { text: last }) => last.push_str(&text),
                _ => {
                    self.end_call();
                    self.message.content.push(ResponseBlock::Text { text });
                }
            },
            OutputPart::Reasoning(thinking) => match self.message.content.last_mut() {
                Some(ResponseBlock::Thinking { thinking: last, .. }) => last.push_str(&thinking),
                _ => {
                    self.end_call();
                    self.message.content.push(ResponseBlock::Thinking { thinking, signature: SIGNATURE });
                }
            },
            OutputPart::ToolCall { name } => {
                self.end_call();
                self.message.content.push(new_tool_use(name));
            }
            OutputPart::Arguments(json) => self.arguments.push_str(&json),
            OutputPart::Finished { reason, usage, reasoning_tokens, .. } => {
                self.end_call();
                let end = MessageEnd::new(reason, &self.stop_sequences);
                self.message.stop_reason = Some(end.stop_reason);
                self.message.stop_sequence = end.stop_sequence;
                self.message.usage = MessageUsage::new(usage, reasoning_tokens);
            }
        }
    }

    fn into_response(self) -> Response {
        Json(self.message).into_response()
    }
}

/// The type of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockType {
    Thinking,
    Text,
    ToolUse,
}

/// Writes the events of a stream.
pub(super) struct MessageWriter {
    message: Message,
    stop_sequences: Vec<String>,
    request_id: String,
    /// The block that is not complete yet.
    open: Option<BlockType>,
    /// Index of the block that is not complete, or of the next one.
    index: u32,
    events: Vec<Event>,
}

impl MessageWriter {
    pub(super) fn new(message: Message, stop_sequences: Vec<String>, request_id: String) -> MessageWriter {
        MessageWriter { message, stop_sequences, request_id, open: None, index: 0, events: vec![] }
    }

    fn push(&mut self, event: StreamEvent) {
        self.events.push(named(&event));
    }

    fn delta(&mut self, delta: BlockDelta) {
        self.push(StreamEvent::ContentBlockDelta { index: self.index, delta });
    }

    /// Ends the block that is not complete, if any.
    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            if open == BlockType::Thinking {
                self.delta(BlockDelta::SignatureDelta { signature: SIGNATURE });
            }
            self.push(StreamEvent::ContentBlockStop { index: self.index });
            self.index += 1;
        }
    }

    /// Starts a block.
    fn open(&mut self, block: BlockType, content_block: ResponseBlock) {
        self.close();
        self.open = Some(block);
        self.push(StreamEvent::ContentBlockStart { index: self.index, content_block });
    }
}

fn named(event: &StreamEvent) -> Event {
    response::named_event(event.name(), event)
}

impl EventWriter for MessageWriter {
    fn start(&mut self) -> Vec<Event> {
        self.push(StreamEvent::MessageStart { message: self.message.clone() });
        self.push(StreamEvent::Ping);
        std::mem::take(&mut self.events)
    }

    fn part(&mut self, part: ChoicePart) -> Vec<Event> {
        match part.part {
            OutputPart::Text(text, _) => {
                if self.open != Some(BlockType::Text) {
                    self.open(BlockType::Text, ResponseBlock::Text { text: String::new() });
                }
                self.delta(BlockDelta::TextDelta { text });
            }
            OutputPart::Reasoning(thinking) => {
                if self.open != Some(BlockType::Thinking) {
                    let block = ResponseBlock::Thinking { thinking: String::new(), signature: SIGNATURE };
                    self.open(BlockType::Thinking, block);
                }
                self.delta(BlockDelta::ThinkingDelta { thinking });
            }
            OutputPart::ToolCall { name } => self.open(BlockType::ToolUse, new_tool_use(name)),
            OutputPart::Arguments(partial_json) => self.delta(BlockDelta::InputJsonDelta { partial_json }),
            OutputPart::Finished { reason, usage, reasoning_tokens, .. } => {
                self.close();
                let delta = MessageEnd::new(reason, &self.stop_sequences);
                let usage = MessageUsage::new(usage, reasoning_tokens);
                self.push(StreamEvent::MessageDelta { delta, usage });
            }
        }
        std::mem::take(&mut self.events)
    }

    fn end(&mut self) -> Vec<Event> {
        vec![named(&StreamEvent::MessageStop)]
    }

    fn error(&mut self, error: &Error) -> Vec<Event> {
        vec![response::named_event("error", &ErrorBody::new(error, Some(self.request_id.clone())))]
    }

    fn keep_alive(&self) -> KeepAlive {
        KeepAlive::new().event(named(&StreamEvent::Ping))
    }
}
