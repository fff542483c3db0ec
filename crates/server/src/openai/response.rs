//! Response bodies.

use serde::Serialize;
use utoipa::ToSchema;

use super::logprobs::{ChatLogprobs, TextLogprobs};
use super::timings::Timings;
use super::tools::{ToolCall, ToolCallDelta};
use crate::models::{Capability, ModelDescription};

/// Response of `/v1/models`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<ModelInfo>,
}

impl ModelList {
    pub(crate) fn new(models: &[ModelDescription]) -> ModelList {
        ModelList { object: "list", data: models.iter().map(ModelInfo::new).collect() }
    }
}

/// A model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelInfo {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// What the model takes, as OpenRouter lists it.
    input_modalities: Vec<&'static str>,
    /// Context length in tokens, as vLLM lists it; absent if it is not known before the model is loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<u32>,
    /// What requests may do with the model, as Ollama lists it.
    capabilities: Vec<Capability>,
}

impl ModelInfo {
    pub(crate) fn new(model: &ModelDescription) -> ModelInfo {
        let image = model.takes_images().then_some("image");
        ModelInfo {
            id: model.id.clone(),
            object: "model",
            created: model.created,
            owned_by: "indrik",
            input_modalities: ["text"].into_iter().chain(image).collect(),
            max_model_len: model.context_length,
            capabilities: model.capabilities.clone(),
        }
    }
}

/// Token counts of a request.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub(crate) struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptTokensDetails,
    /// Only if the model's chat template supports thinking, or tokens of a prediction were verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<CompletionTokensDetails>,
    /// Only if `timings_per_token` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    indrik: Option<UsageCost>,
}

/// Energy and memory traffic of a request; null where they were not measured. Requests in the same step share both by
/// rows.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub(crate) struct UsageCost {
    /// Energy of the GPU during the request's steps.
    joules: Option<f64>,
    /// The same per completion token.
    joules_per_token: Option<f64>,
    /// Bytes of weights and KV cache that decode steps read per token.
    decode_bytes_per_token: Option<f64>,
}

impl UsageCost {
    pub(crate) fn new(joules: Option<f64>, tokens: u64, decode_bytes: u64, decode_tokens: u64) -> UsageCost {
        let per_token = |sum: f64, tokens: u64| (tokens > 0).then(|| sum / tokens as f64);
        UsageCost {
            joules,
            joules_per_token: joules.and_then(|joules| per_token(joules, tokens)),
            decode_bytes_per_token: per_token(decode_bytes as f64, decode_tokens),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
struct PromptTokensDetails {
    /// Prompt tokens found in the prefix cache.
    cached_tokens: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
struct CompletionTokensDetails {
    /// Tokens of the thinking, with its delimiters.
    reasoning_tokens: u64,
    /// Tokens that were drafted from the prediction and are in the completion.
    accepted_prediction_tokens: u64,
    /// Tokens that were drafted from the prediction and are not in the completion.
    rejected_prediction_tokens: u64,
}

impl Usage {
    pub(crate) fn with_cost(self, cost: Option<UsageCost>) -> Usage {
        Usage { indrik: cost, ..self }
    }

    /// Adds the tokens of a choice; those of its prompt only if `count_prompt` is set. `reasoning_tokens` is `None` if
    /// the model has no thinking.
    pub(crate) fn add(&mut self, usage: engine::Usage, count_prompt: bool, reasoning_tokens: Option<u32>) {
        if count_prompt {
            self.prompt_tokens += u64::from(usage.prompt_tokens);
            self.prompt_tokens_details.cached_tokens += u64::from(usage.cached_tokens);
        }
        self.completion_tokens += u64::from(usage.completion_tokens);
        if let Some(tokens) = reasoning_tokens {
            self.completion_tokens_details.get_or_insert_default().reasoning_tokens += u64::from(tokens);
        }
        let prediction = usage.drafts.prediction;
        if prediction.drafted > 0 {
            let details = self.completion_tokens_details.get_or_insert_default();
            details.accepted_prediction_tokens += prediction.accepted;
            details.rejected_prediction_tokens += prediction.rejected();
        }
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
    }
}

/// Fields that all objects of a response share.
#[derive(Clone, Debug)]
pub(crate) struct ResponseHead {
    /// Id of the completion.
    pub(crate) id: String,
    /// Creation time in seconds since 1970.
    pub(crate) created: u64,
    /// Name of the model.
    pub(crate) model: String,
}

/// A completion or a chunk of one, with choices of type `C`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Completion<C> {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    choices: Vec<C>,
    /// In chunks only if `include_usage` is set, and then null in all but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    usage: Option<Option<Usage>>,
    /// Only if `timings_per_token` is set. In a chunk those of its choice so far, otherwise the sums of all choices.
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
}

impl<C> Completion<C> {
    pub(crate) fn new(
        head: &ResponseHead,
        object: &'static str,
        choices: Vec<C>,
        usage: Option<Option<Usage>>,
    ) -> Self {
        let ResponseHead { id, created, model } = head.clone();
        Completion { id, object, created, model, choices, usage, timings: None }
    }

    pub(crate) fn with_timings(mut self, timings: Option<Timings>) -> Self {
        self.timings = timings;
        self
    }
}

/// A choice of a chat completion.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChoice {
    pub(crate) index: u32,
    pub(crate) message: AssistantMessage,
    /// Null if not requested.
    #[schema(required)]
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: &'static str,
}

/// A generated message.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AssistantMessage {
    pub(crate) role: &'static str,
    /// Null if the message only calls tools.
    #[schema(required)]
    pub(crate) content: Option<String>,
    /// What the model thought before it answered; absent if it did not think.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    /// Tool calls; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) tool_calls: Vec<ToolCall>,
    /// Always null.
    #[schema(required)]
    pub(crate) refusal: Option<()>,
}

/// A choice in a chunk of a chat completion.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChunkChoice {
    pub(crate) index: u32,
    pub(crate) delta: Delta,
    /// Null if not requested, and in chunks without tokens.
    #[schema(required)]
    pub(crate) logprobs: Option<ChatLogprobs>,
    /// Null in all chunks but the last.
    #[schema(required)]
    pub(crate) finish_reason: Option<&'static str>,
}

/// What a chunk adds to a message.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
    /// More of what the model thinks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tool_calls: Option<Vec<ToolCallDelta>>,
}

/// A choice of a text completion, or a chunk of one.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TextChoice {
    pub(crate) index: u32,
    pub(crate) text: String,
    /// Null if not requested, and in chunks without tokens.
    #[schema(required)]
    pub(crate) logprobs: Option<TextLogprobs>,
    /// Null in all chunks but the last.
    #[schema(required)]
    pub(crate) finish_reason: Option<&'static str>,
}
