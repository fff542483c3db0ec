//! Events of a stream.

use serde::Serialize;
use utoipa::ToSchema;

use super::item::{Item, Part};
use super::response::ResponseObject;
use crate::openai::logprobs::TokenLogprob;

/// An event of a stream, with its number.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ResponseStreamEvent)]
pub(crate) struct StreamEvent<'a> {
    #[serde(flatten)]
    pub(super) kind: EventKind<'a>,
    /// Counted from 0.
    pub(super) sequence_number: u64,
}

/// What an event says. The name of the event is its type.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type")]
#[schema(as = ResponseEventKind)]
pub(crate) enum EventKind<'a> {
    /// The first event.
    #[serde(rename = "response.created")]
    Created { response: &'a ResponseObject },
    #[serde(rename = "response.in_progress")]
    InProgress { response: &'a ResponseObject },
    /// A new item, still empty.
    #[serde(rename = "response.output_item.added")]
    ItemAdded { output_index: usize, item: &'a Item },
    #[serde(rename = "response.output_item.done")]
    ItemDone { output_index: usize, item: &'a Item },
    /// The content of a message or of reasoning, still empty.
    #[serde(rename = "response.content_part.added")]
    PartAdded { item_id: &'a str, output_index: usize, content_index: usize, part: &'a Part },
    #[serde(rename = "response.content_part.done")]
    PartDone { item_id: &'a str, output_index: usize, content_index: usize, part: &'a Part },
    #[serde(rename = "response.output_text.delta")]
    TextDelta {
        item_id: &'a str,
        output_index: usize,
        content_index: usize,
        delta: &'a str,
        /// Empty if not requested.
        logprobs: &'a [TokenLogprob],
    },
    #[serde(rename = "response.output_text.done")]
    TextDone {
        item_id: &'a str,
        output_index: usize,
        content_index: usize,
        text: &'a str,
        /// Empty if not requested.
        logprobs: &'a [TokenLogprob],
    },
    #[serde(rename = "response.reasoning_text.delta")]
    ReasoningDelta { item_id: &'a str, output_index: usize, content_index: usize, delta: &'a str },
    #[serde(rename = "response.reasoning_text.done")]
    ReasoningDone { item_id: &'a str, output_index: usize, content_index: usize, text: &'a str },
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta { item_id: &'a str, output_index: usize, delta: &'a str },
    #[serde(rename = "response.function_call_arguments.done")]
    ArgumentsDone { item_id: &'a str, output_index: usize, name: &'a str, arguments: &'a str },
    /// The last event of a complete response.
    #[serde(rename = "response.completed")]
    Completed { response: &'a ResponseObject },
    /// The last event of a response that was cut off.
    #[serde(rename = "response.incomplete")]
    Incomplete { response: &'a ResponseObject },
    /// The last event of a response that failed.
    #[serde(rename = "response.failed")]
    Failed { response: &'a ResponseObject },
    /// Before the last event of a response that failed.
    #[serde(rename = "error")]
    Error {
        code: &'static str,
        message: String,
        /// The field that caused the error, if any.
        #[schema(required)]
        param: Option<&'a str>,
    },
}

impl EventKind<'_> {
    /// The name of the event, which is also its type.
    pub(super) fn name(&self) -> &'static str {
        match self {
            EventKind::Created { .. } => "response.created",
            EventKind::InProgress { .. } => "response.in_progress",
            EventKind::ItemAdded { .. } => "response.output_item.added",
            EventKind::ItemDone { .. } => "response.output_item.done",
            EventKind::PartAdded { .. } => "response.content_part.added",
            EventKind::PartDone { .. } => "response.content_part.done",
            EventKind::TextDelta { .. } => "response.output_text.delta",
            EventKind::TextDone { .. } => "response.output_text.done",
            EventKind::ReasoningDelta { .. } => "response.reasoning_text.delta",
            EventKind::ReasoningDone { .. } => "response.reasoning_text.done",
            EventKind::ArgumentsDelta { .. } => "response.function_call_arguments.delta",
            EventKind::ArgumentsDone { .. } => "response.function_call_arguments.done",
            EventKind::Completed { .. } => "response.completed",
            EventKind::Incomplete { .. } => "response.incomplete",
            EventKind::Failed { .. } => "response.failed",
            EventKind::Error { .. } => "error",
        }
    }
}
