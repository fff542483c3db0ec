//! Response bodies of `/api/chat` and `/api/generate`.

use std::time::{Duration, Instant, SystemTime};

use engine::Usage;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::openai::TokenLogprob;
use crate::output::StopReason;
use crate::time::rfc3339_micros;
use crate::timing::Timing;

/// Response of `/api/chat`, or a line of its stream.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaChatResponse)]
pub(crate) struct ChatResponse {
    model: String,
    /// As in RFC 3339.
    created_at: String,
    message: ResponseMessage,
    #[serde(flatten)]
    state: State,
}

/// Response of `/api/generate`, or a line of its stream.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaGenerateResponse)]
pub(crate) struct GenerateResponse {
    model: String,
    /// As in RFC 3339.
    created_at: String,
    /// The output, or more of it.
    response: String,
    /// What the model thought, or more of it; absent if there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    thinking: String,
    #[serde(flatten)]
    state: State,
}

/// A generated message, or more of it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaMessage)]
struct ResponseMessage {
    role: &'static str,
    content: String,
    /// What the model thought before it answered; absent if there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    thinking: String,
    /// Complete calls; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    tool_calls: Vec<ToolCall>,
}

/// A tool call.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = OllamaToolCall)]
pub(crate) struct ToolCall {
    pub(super) function: FunctionCall,
}

#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = OllamaFunctionCall)]
pub(crate) struct FunctionCall {
    pub(super) name: String,
    #[schema(value_type = Object)]
    pub(super) arguments: Map<String, Value>,
}

/// The fields that both endpoints share.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaState)]
struct State {
    /// Whether the output is complete.
    done: bool,
    /// Only if they were requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    logprobs: Vec<TokenLogprob>,
    /// In the last object.
    #[serde(flatten)]
    #[schema(value_type = End)]
    end: Option<End>,
}

/// The end of the output.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[schema(as = OllamaEnd)]
pub(crate) struct End {
    /// "stop", "length", "load" or "unload".
    #[schema(required = false)]
    done_reason: &'static str,
    /// Times are in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    total_duration: Option<u64>,
    /// Time that the request waited for its model.
    #[serde(skip_serializing_if = "Option::is_none")]
    load_duration: Option<u64>,
    /// Tokens of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_eval_count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_eval_duration: Option<u64>,
    /// Generated tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    eval_count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    eval_duration: Option<u64>,
}

impl End {
    /// The end of an output.
    pub(super) fn new(
        reason: StopReason,
        usage: Usage,
        timing: &Timing,
        started: Instant,
        load: Duration,
    ) -> End {
        let done_reason = match reason {
            StopReason::EndOfTurn | StopReason::StopString(_) | StopReason::ToolCalls => "stop",
            StopReason::Length => "length",
        };
        // Clients divide by it.
        let positive = |time: Duration| Some(nanoseconds(time).max(1));
        End {
            done_reason,
            total_duration: positive(started.elapsed()),
            load_duration: Some(nanoseconds(load)),
            prompt_eval_count: Some(usage.prompt_tokens),
            prompt_eval_duration: positive(timing.prefill),
            eval_count: Some(usage.completion_tokens),
            eval_duration: positive(timing.decode),
        }
    }

    /// Without output: the model was loaded or unloaded.
    pub(super) fn without_output(done_reason: &'static str) -> End {
        End { done_reason, ..End::default() }
    }
}

pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What an object says of the output: all of it, or more of it.
#[derive(Debug, Default)]
pub(super) struct Output {
    pub(super) text: String,
    pub(super) thinking: String,
    pub(super) tool_calls: Vec<ToolCall>,
    pub(super) logprobs: Vec<TokenLogprob>,
}

impl Output {
    pub(super) fn is_empty(&self) -> bool {
        let Output { text, thinking, tool_calls, logprobs } = self;
        text.is_empty() && thinking.is_empty() && tool_calls.is_empty() && logprobs.is_empty()
    }

    pub(super) fn into_chat(self, model: &str, end: Option<End>) -> ChatResponse {
        let Output { text: content, thinking, tool_calls, logprobs } = self;
        ChatResponse {
            model: model.to_owned(),
            created_at: rfc3339_micros(SystemTime::now()),
            message: ResponseMessage { role: "assistant", content, thinking, tool_calls },
            state: State { done: end.is_some(), logprobs, end },
        }
    }

    pub(super) fn into_generated(self, model: &str, end: Option<End>) -> GenerateResponse {
        // Without tools, there are no calls.
        let Output { text: response, thinking, logprobs, .. } = self;
        GenerateResponse {
            model: model.to_owned(),
            created_at: rfc3339_micros(SystemTime::now()),
            response,
            thinking,
            state: State { done: end.is_some(), logprobs, end },
        }
    }
}
