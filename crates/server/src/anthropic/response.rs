//! Response bodies and stream events.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::output::StopReason;

/// A generated message.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Message {
    pub(super) id: String,
    pub(super) r#type: &'static str,
    pub(super) role: &'static str,
    /// Name of the model.
    pub(super) model: String,
    pub(super) content: Vec<ResponseBlock>,
    /// Null at the start of a stream.
    #[schema(required)]
    pub(super) stop_reason: Option<&'static str>,
    /// The stop sequence that ended the message, if one did.
    #[schema(required)]
    pub(super) stop_sequence: Option<String>,
    pub(super) usage: MessageUsage,
}

/// A block of a generated message.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ResponseBlock {
    /// What the model thought before it answered.
    Thinking {
        thinking: String,
        /// Always empty: thinking is not signed.
        signature: &'static str,
    },
    Text {
        text: String,
    },
    /// A tool call.
    ToolUse {
        id: String,
        /// The tool.
        name: String,
        /// The arguments.
        input: Map<String, Value>,
    },
}

/// Token counts of a request.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct MessageUsage {
    /// Prompt tokens that were prefilled.
    input_tokens: u32,
    /// Always 0: the prefix cache is filled without being asked to.
    cache_creation_input_tokens: u32,
    /// Prompt tokens found in the prefix cache.
    cache_read_input_tokens: u32,
    output_tokens: u32,
    /// At the end, if the model's chat template supports thinking.
    #[serde(skip_serializing_if = "Option::is_none")]
    output_tokens_details: Option<OutputTokensDetails>,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
struct OutputTokensDetails {
    /// Tokens of the thinking, with its delimiters.
    thinking_tokens: u32,
}

impl MessageUsage {
    pub(super) fn new(usage: engine::Usage, thinking_tokens: Option<u32>) -> MessageUsage {
        MessageUsage {
            input_tokens: usage.prompt_tokens.saturating_sub(usage.cached_tokens),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: usage.cached_tokens,
            output_tokens: usage.completion_tokens,
            output_tokens_details: thinking_tokens
                .map(|thinking_tokens| OutputTokensDetails { thinking_tokens }),
        }
    }
}

/// An event of a stream.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum StreamEvent {
    /// The first event.
    MessageStart {
        message: Message,
    },
    /// Sent after the start, and while there are no new tokens.
    Ping,
    /// A new block, still empty.
    ContentBlockStart {
        index: u32,
        content_block: ResponseBlock,
    },
    /// More of the block.
    ContentBlockDelta {
        index: u32,
        delta: BlockDelta,
    },
    ContentBlockStop {
        index: u32,
    },
    /// The end of the message.
    MessageDelta {
        delta: MessageEnd,
        usage: MessageUsage,
    },
    /// The last event.
    MessageStop,
}

impl StreamEvent {
    /// The name of the event, which is also its type.
    pub(super) fn name(&self) -> &'static str {
        match self {
            StreamEvent::MessageStart { .. } => "message_start",
            StreamEvent::Ping => "ping",
            StreamEvent::ContentBlockStart { .. } => "content_block_start",
            StreamEvent::ContentBlockDelta { .. } => "content_block_delta",
            StreamEvent::ContentBlockStop { .. } => "content_block_stop",
            StreamEvent::MessageDelta { .. } => "message_delta",
            StreamEvent::MessageStop => "message_stop",
        }
    }
}

/// What an event adds to a block.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(clippy::enum_variant_names, reason = "the names of the protocol")]
pub(crate) enum BlockDelta {
    TextDelta {
        text: String,
    },
    ThinkingDelta {
        thinking: String,
    },
    SignatureDelta {
        signature: &'static str,
    },
    /// More of the arguments, as JSON text.
    InputJsonDelta {
        partial_json: String,
    },
}

/// The end of a streamed message.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MessageEnd {
    pub(super) stop_reason: &'static str,
    /// The stop sequence that ended the message, if one did.
    #[schema(required)]
    pub(super) stop_sequence: Option<String>,
}

impl MessageEnd {
    pub(super) fn new(reason: StopReason, stop_sequences: &[String]) -> MessageEnd {
        let (stop_reason, stop_sequence) = match reason {
            StopReason::EndOfTurn => ("end_turn", None),
            StopReason::StopString(index) => ("stop_sequence", stop_sequences.get(index).cloned()),
            StopReason::ToolCalls => ("tool_use", None),
            StopReason::Length => ("max_tokens", None),
        };
        MessageEnd { stop_reason, stop_sequence }
    }
}

/// Response of `/v1/messages/count_tokens`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenCount {
    /// Tokens of the prompt.
    pub(super) input_tokens: usize,
}
