//! Items, which the input and the output of responses consist of.

use std::sync::{Arc, OnceLock};

use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use crate::openai::logprobs::TokenLogprob;
use crate::random;

/// An item with its id.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = ResponseItem)]
pub(crate) struct Item {
    pub(super) id: String,
    pub(super) status: ItemStatus,
    #[serde(flatten)]
    pub(super) kind: ItemKind,
    /// Length as JSON, measured once: items of a long conversation are stored with each of its responses.
    #[serde(skip)]
    #[schema(ignore)]
    pub(super) json_length: OnceLock<usize>,
}

#[derive(Clone, Copy, Debug, Serialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ItemStatus {
    InProgress,
    Completed,
    /// Cut off.
    Incomplete,
}

/// What an item is.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = ResponseItemKind)]
pub(crate) enum ItemKind {
    Message {
        role: ItemRole,
        content: Vec<Part>,
    },
    /// A tool call.
    FunctionCall {
        /// Id that the item with the tool's result refers to.
        call_id: String,
        name: String,
        /// Arguments as JSON text, exactly as the model generated them.
        arguments: String,
    },
    /// The result of a tool call.
    FunctionCallOutput {
        call_id: String,
        output: ToolOutput,
    },
    /// What the model thought.
    Reasoning {
        /// Empty in output: the thinking is not summarised.
        summary: Vec<Part>,
        content: Vec<Part>,
        /// Always null: the thinking is not encrypted.
        #[schema(required)]
        encrypted_content: Option<()>,
    },
}

/// The result of a tool call: text, or parts.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum ToolOutput {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Clone, Copy, Debug, serde::Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ItemRole {
    User,
    Assistant,
    System,
    /// As system.
    Developer,
}

/// A part of an item's content.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = ResponsePart)]
pub(crate) enum Part {
    InputText {
        text: String,
    },
    InputImage {
        /// A data URL, or an http or https URL.
        image_url: String,
        detail: ImageDetail,
    },
    OutputText {
        text: String,
        /// Always empty.
        #[schema(value_type = Vec<Object>)]
        annotations: [(); 0],
        /// Empty if not requested.
        logprobs: Vec<TokenLogprob>,
    },
    Refusal {
        refusal: String,
    },
    ReasoningText {
        text: String,
    },
    SummaryText {
        text: String,
    },
}

/// Without effect: the model decides how images are scaled.
#[derive(Clone, Copy, Debug, Default, serde::Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ImageDetail {
    #[default]
    Auto,
    Low,
    High,
    Original,
}

impl Item {
    /// An item with a new id.
    pub(super) fn new(status: ItemStatus, kind: ItemKind) -> Item {
        let prefix = match &kind {
            ItemKind::Message { .. } => "msg_",
            ItemKind::FunctionCall { .. } => "fc_",
            ItemKind::FunctionCallOutput { .. } => "fco_",
            ItemKind::Reasoning { .. } => "rs_",
        };
        Item { id: format!("{prefix}{}", random::id()), status, kind, json_length: OnceLock::new() }
    }

    /// The last part of its content, if it has content.
    pub(super) fn last_part(&mut self) -> Option<&mut Part> {
        match &mut self.kind {
            ItemKind::Message { content, .. } | ItemKind::Reasoning { content, .. } => content.last_mut(),
            ItemKind::FunctionCall { .. } | ItemKind::FunctionCallOutput { .. } => None,
        }
    }
}

impl Part {
    pub(super) fn output_text(text: String) -> Part {
        Part::OutputText { text, annotations: [], logprobs: vec![] }
    }

    /// The text; `None` for an image.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Part::InputText { text }
            | Part::OutputText { text, .. }
            | Part::ReasoningText { text }
            | Part::SummaryText { text }
            | Part::Refusal { refusal: text } => Some(text),
            Part::InputImage { .. } => None,
        }
    }
}

/// Serialises shared items.
pub(super) fn serialize_items<S: Serializer>(items: &[Arc<Item>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(items.iter().map(|item| &**item))
}
