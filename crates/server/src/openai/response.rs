//! What clients get.

use serde::Serialize;
use utoipa::ToSchema;

use super::logprobs::{ChatLogprobs, TextLogprobs};
use super::tools::{Call, CallDelta};

/// Why there is no answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    error: ErrorInfo,
}

#[derive(Debug, Serialize, ToSchema)]
struct ErrorInfo {
    /// What is wrong and what to do.
    message: String,
    r#type: &'static str,
    /// The field that is wrong.
    #[schema(required)]
    param: Option<String>,
    code: &'static str,
}

impl ErrorBody {
    pub(crate) fn new(
        message: String,
        kind: &'static str,
        param: Option<String>,
        code: &'static str,
    ) -> ErrorBody {
        ErrorBody { error: ErrorInfo { message, r#type: kind, param, code } }
    }
}

/// What the models are.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<ModelInfo>,
}

impl ModelList {
    pub(crate) fn new(data: Vec<ModelInfo>) -> ModelList {
        ModelList { object: "list", data }
    }
}

/// A model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelInfo {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
}

impl ModelInfo {
    pub(crate) fn new(model: &crate::Model) -> ModelInfo {
        ModelInfo { id: model.id.clone(), object: "model", created: model.created, owned_by: "indrik" }
    }
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub(crate) struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptDetails,
}

#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
struct PromptDetails {
    /// Tokens that needed no reading, since an earlier request began with the same.
    cached_tokens: u64,
}

impl Usage {
    /// Adds an answer's tokens, and its prompt's where no other answer has the same.
    pub(crate) fn add(&mut self, usage: engine::Usage, prompt: bool) {
        if prompt {
            self.prompt_tokens += u64::from(usage.prompt_tokens);
            self.prompt_tokens_details.cached_tokens += u64::from(usage.cached_tokens);
        }
        self.completion_tokens += u64::from(usage.completion_tokens);
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
    }
}

/// What all chunks and answers of a request have in common.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    /// Of the request.
    pub(crate) id: String,
    /// When it came, in seconds since 1970.
    pub(crate) created: u64,
    /// Which model answers.
    pub(crate) model: String,
}

/// An answer, or a chunk of one; `C` are its choices.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Reply<C> {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    choices: Vec<C>,
    /// In chunks only where asked for, and then null in all but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    usage: Option<Option<Usage>>,
}

impl<C> Reply<C> {
    pub(crate) fn new(
        head: &Head,
        object: &'static str,
        choices: Vec<C>,
        usage: Option<Option<Usage>>,
    ) -> Self {
        let Head { id, created, model } = head.clone();
        Reply { id, object, created, model, choices, usage }
    }
}

/// A whole answer of the assistant.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChoice {
    pub(crate) index: u32,
    pub(crate) message: ChatMessage,
    /// Null where not asked for.
    #[schema(required)]
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: &'static str,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatMessage {
    pub(crate) role: &'static str,
    /// Null where the assistant says nothing, but calls tools.
    #[schema(required)]
    pub(crate) content: Option<String>,
    /// The tools that it calls; left out where it calls none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) tool_calls: Vec<Call>,
    /// Always null.
    #[schema(required)]
    pub(crate) refusal: Option<()>,
}

/// A piece of the assistant's answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatDelta {
    pub(crate) index: u32,
    pub(crate) delta: Delta,
    /// Null where not asked for, and where no token is told.
    #[schema(required)]
    pub(crate) logprobs: Option<ChatLogprobs>,
    /// Null in all but the last.
    #[schema(required)]
    pub(crate) finish_reason: Option<&'static str>,
}

#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tool_calls: Option<Vec<CallDelta>>,
}

/// A continued text, or a piece of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TextChoice {
    pub(crate) index: u32,
    pub(crate) text: String,
    /// Null where not asked for, and in chunks where no token is told.
    #[schema(required)]
    pub(crate) logprobs: Option<TextLogprobs>,
    /// Null in all chunks but the last.
    #[schema(required)]
    pub(crate) finish_reason: Option<&'static str>,
}
