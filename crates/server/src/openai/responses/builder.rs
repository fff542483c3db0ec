//! Builds a response from the parts of the output. Streams and single objects come from the same steps: each step
//! changes the response and emits the events that say so.

use std::sync::Arc;

use text::Tokenizer;

use super::events::EventKind;
use super::item::{Item, ItemKind, ItemRole, ItemStatus, Part};
use super::response::{ResponseObject, ResponseUsage, Status};
use crate::emitted::EmittedToken;
use crate::error::Error;
use crate::openai::logprobs::TokenLogprob;
use crate::output::{OutputPart, StopReason};
use crate::random;

/// Receives the events of a step.
pub(super) type Emit<'a> = &'a mut dyn FnMut(EventKind<'_>);

/// A response that is being generated.
pub(super) struct ResponseBuilder {
    response: ResponseObject,
    /// The item that is not complete yet. Its index in the output is the number of complete ones.
    open: Option<Item>,
    /// If logprobs were requested.
    tokenizer: Option<Tokenizer>,
}

/// Every message and every reasoning item has one part.
const CONTENT_INDEX: usize = 0;

impl ResponseBuilder {
    pub(super) fn new(mut response: ResponseObject, tokenizer: Option<Tokenizer>) -> ResponseBuilder {
        response.status = Status::InProgress;
        ResponseBuilder { response, open: None, tokenizer }
    }

    pub(super) fn response(&self) -> &ResponseObject {
        &self.response
    }

    pub(super) fn into_response(self) -> ResponseObject {
        self.response
    }

    /// Adds a part of the output.
    pub(super) fn push(&mut self, part: OutputPart, emit: Emit) {
        match part {
            OutputPart::Text(text, tokens) => self.push_text(&text, &tokens, emit),
            OutputPart::Reasoning(text) => self.push_reasoning(&text, emit),
            OutputPart::ToolCall { name } => {
                let call_id = format!("call_{}", random::id());
                self.open(ItemKind::FunctionCall { call_id, name, arguments: String::new() }, emit);
            }
            OutputPart::Arguments(json) => self.push_arguments(&json, emit),
            OutputPart::Finished { reason, usage, reasoning_tokens, .. } => {
                self.finish(reason, ResponseUsage::new(usage, reasoning_tokens), emit);
            }
        }
    }

    fn push_text(&mut self, text: &str, tokens: &[EmittedToken], emit: Emit) {
        if !matches!(self.open.as_ref().map(|item| &item.kind), Some(ItemKind::Message { .. })) {
            self.open(ItemKind::Message { role: ItemRole::Assistant, content: vec![] }, emit);
        }
        let output_index = self.response.output.len();
        let Some(item) = &mut self.open else { return };
        let more: Vec<TokenLogprob> = match &self.tokenizer {
            Some(tokenizer) => {
                tokens.iter().map(|token| TokenLogprob::new(token, tokenizer).with_bytes()).collect()
            }
            None => vec![],
        };
        emit(EventKind::TextDelta {
            item_id: &item.id,
            output_index,
            content_index: CONTENT_INDEX,
            delta: text,
            logprobs: &more,
        });
        if let Some(Part::OutputText { text: all, logprobs, .. }) = item.last_part() {
            all.push_str(text);
            logprobs.extend(more);
        }
    }

    fn push_reasoning(&mut self, text: &str, emit: Emit) {
        if !matches!(self.open.as_ref().map(|item| &item.kind), Some(ItemKind::Reasoning { .. })) {
            let kind = ItemKind::Reasoning { summary: vec![], content: vec![], encrypted_content: None };
            self.open(kind, emit);
        }
        let output_index = self.response.output.len();
        let Some(item) = &mut self.open else { return };
        emit(EventKind::ReasoningDelta {
            item_id: &item.id,
            output_index,
            content_index: CONTENT_INDEX,
            delta: text,
        });
        if let Some(Part::ReasoningText { text: all }) = item.last_part() {
            all.push_str(text);
        }
    }

    fn push_arguments(&mut self, json: &str, emit: Emit) {
        let output_index = self.response.output.len();
        if let Some(Item { id, kind: ItemKind::FunctionCall { arguments, .. }, .. }) = &mut self.open {
            emit(EventKind::ArgumentsDelta { item_id: id, output_index, delta: json });
            arguments.push_str(json);
        }
    }

    /// Starts an item.
    fn open(&mut self, kind: ItemKind, emit: Emit) {
        self.close(false, emit);
        let output_index = self.response.output.len();
        let mut item = Item::new(ItemStatus::InProgress, kind);
        emit(EventKind::ItemAdded { output_index, item: &item });
        let part = match &mut item.kind {
            ItemKind::Message { content, .. } => Some((content, Part::output_text(String::new()))),
            ItemKind::Reasoning { content, .. } => {
                Some((content, Part::ReasoningText { text: String::new() }))
            }
            ItemKind::FunctionCall { .. } | ItemKind::FunctionCallOutput { .. } => None,
        };
        if let Some((content, part)) = part {
            let (item_id, content_index) = (item.id.as_str(), CONTENT_INDEX);
            emit(EventKind::PartAdded { item_id, output_index, content_index, part: &part });
            content.push(part);
        }
        self.open = Some(item);
    }

    /// Ends the item that is not complete, if any. `cut_off`: the output ended within it.
    fn close(&mut self, cut_off: bool, emit: Emit) {
        let Some(mut item) = self.open.take() else { return };
        let (output_index, content_index) = (self.response.output.len(), CONTENT_INDEX);
        item.status = if cut_off { ItemStatus::Incomplete } else { ItemStatus::Completed };
        let item_id = item.id.as_str();
        match &item.kind {
            ItemKind::Message { content, .. } | ItemKind::Reasoning { content, .. } => {
                for part in content {
                    match part {
                        Part::OutputText { text, logprobs, .. } => {
                            let text = text.as_str();
                            emit(EventKind::TextDone {
                                item_id,
                                output_index,
                                content_index,
                                text,
                                logprobs,
                            });
                        }
                        part => {
                            let text = part.text().unwrap_or_default();
                            emit(EventKind::ReasoningDone { item_id, output_index, content_index, text });
                        }
                    }
                    emit(EventKind::PartDone { item_id, output_index, content_index, part });
                }
            }
            ItemKind::FunctionCall { name, arguments, .. } => {
                // The end may come after the last character of the call.
                if is_object(arguments) {
                    item.status = ItemStatus::Completed;
                }
                emit(EventKind::ArgumentsDone { item_id, output_index, name, arguments });
            }
            ItemKind::FunctionCallOutput { .. } => {}
        }
        emit(EventKind::ItemDone { output_index, item: &item });
        self.response.output.push(Arc::new(item));
    }

    fn finish(&mut self, reason: StopReason, usage: ResponseUsage, emit: Emit) {
        let cut_off = reason == StopReason::Length;
        self.close(cut_off, emit);
        let only_reasoning =
            self.response.output.iter().all(|item| matches!(item.kind, ItemKind::Reasoning { .. }));
        if only_reasoning && !cut_off {
            // A complete response has a message, which may be empty.
            self.open(ItemKind::Message { role: ItemRole::Assistant, content: vec![] }, emit);
            self.close(false, emit);
        }
        self.response.finish(!cut_off, usage);
    }

    /// Ends the response with an error.
    pub(super) fn fail(&mut self, error: &Error) {
        if let Some(item) = self.open.take() {
            self.response.output.push(Arc::new(Item { status: ItemStatus::Incomplete, ..item }));
        }
        self.response.fail(error);
    }
}

/// Whether a text is a JSON object.
fn is_object(text: &str) -> bool {
    serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text).is_ok()
}
