//! Response bodies: the response, its items, and its deletion.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::item::{Item, serialize_items};
use super::options::{Reasoning, TextConfig, Truncation};
#[allow(unused_imports, reason = "used by the OpenAPI document only")]
use super::tools::FunctionChoiceSchema;
use super::tools::FunctionTool;
use crate::error::Error;

/// A response.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Response)]
pub(crate) struct ResponseObject {
    pub(super) id: String,
    pub(super) object: &'static str,
    /// In seconds since 1970.
    pub(super) created_at: u64,
    pub(super) status: Status,
    /// Null unless the response is complete.
    #[schema(required)]
    pub(super) completed_at: Option<u64>,
    /// Null unless the response failed.
    #[schema(required)]
    pub(super) error: Option<ResponseError>,
    /// Null unless the response was cut off.
    #[schema(required)]
    pub(super) incomplete_details: Option<IncompleteDetails>,
    #[serde(serialize_with = "serialize_items")]
    #[schema(value_type = Vec<Item>)]
    pub(super) output: Vec<Arc<Item>>,
    /// Null until the response has ended.
    #[schema(required)]
    pub(super) usage: Option<ResponseUsage>,
    #[serde(flatten)]
    pub(super) settings: Settings,
}

/// Fields of the request in its response.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[schema(as = ResponseSettings)]
pub(crate) struct Settings {
    /// Name of the model.
    pub(super) model: String,
    pub(super) background: bool,
    #[schema(required)]
    pub(super) instructions: Option<String>,
    #[schema(required)]
    pub(super) max_output_tokens: Option<u32>,
    #[schema(required)]
    pub(super) max_tool_calls: Option<u32>,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) parallel_tool_calls: bool,
    #[schema(required)]
    pub(super) previous_response_id: Option<String>,
    #[schema(required)]
    pub(super) prompt_cache_key: Option<String>,
    #[schema(required)]
    pub(super) prompt_cache_retention: Option<String>,
    pub(super) reasoning: Reasoning,
    #[schema(required)]
    pub(super) safety_identifier: Option<String>,
    pub(super) service_tier: &'static str,
    pub(super) store: bool,
    pub(super) temperature: f32,
    pub(super) text: TextConfig,
    #[schema(value_type = FunctionChoiceSchema)]
    pub(super) tool_choice: Value,
    pub(super) tools: Vec<FunctionTool>,
    pub(super) top_logprobs: u32,
    pub(super) top_p: f32,
    pub(super) truncation: Truncation,
    #[schema(required)]
    pub(super) user: Option<String>,
}

#[derive(Clone, Copy, Debug, Serialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ResponseStatus)]
pub(crate) enum Status {
    /// In the background, before admission.
    Queued,
    InProgress,
    Completed,
    /// Cut off.
    Incomplete,
    Failed,
    Cancelled,
}

/// Why a response failed.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ResponseError {
    code: &'static str,
    message: String,
}

/// Why a response was cut off.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct IncompleteDetails {
    /// Also at the end of the context.
    reason: &'static str,
}

/// Token counts of a response.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct ResponseUsage {
    input_tokens: u32,
    input_tokens_details: InputTokensDetails,
    output_tokens: u32,
    output_tokens_details: ReasoningTokensDetails,
    total_tokens: u64,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
struct InputTokensDetails {
    /// Input tokens found in the prefix cache.
    cached_tokens: u32,
    /// Always 0: the prefix cache is filled without being asked to.
    cache_write_tokens: u32,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
struct ReasoningTokensDetails {
    /// Tokens of the thinking, with its delimiters.
    reasoning_tokens: u32,
}

impl ResponseUsage {
    pub(super) fn new(usage: engine::Usage, reasoning_tokens: Option<u32>) -> ResponseUsage {
        ResponseUsage {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputTokensDetails {
                cached_tokens: usage.cached_tokens,
                cache_write_tokens: 0,
            },
            output_tokens: usage.completion_tokens,
            output_tokens_details: ReasoningTokensDetails { reasoning_tokens: reasoning_tokens.unwrap_or(0) },
            total_tokens: u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
        }
    }
}

impl ResponseError {
    fn new(error: &Error) -> ResponseError {
        let code = match error.status() {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_exceeded",
            status if status.is_client_error() => "invalid_prompt",
            _ => "server_error",
        };
        ResponseError { code, message: error.to_string() }
    }
}

impl ResponseObject {
    /// A response without output.
    pub(super) fn new(id: String, settings: Settings) -> ResponseObject {
        ResponseObject {
            id,
            object: "response",
            created_at: now(),
            status: if settings.background { Status::Queued } else { Status::InProgress },
            completed_at: None,
            error: None,
            incomplete_details: None,
            output: vec![],
            usage: None,
            settings,
        }
    }

    /// Ends the response; `is_complete`: it was not cut off.
    pub(super) fn finish(&mut self, is_complete: bool, usage: ResponseUsage) {
        self.usage = Some(usage);
        match is_complete {
            true => (self.status, self.completed_at) = (Status::Completed, Some(now())),
            false => {
                self.status = Status::Incomplete;
                self.incomplete_details = Some(IncompleteDetails { reason: "max_output_tokens" });
            }
        }
    }

    pub(super) fn fail(&mut self, error: &Error) {
        self.status = Status::Failed;
        self.error = Some(ResponseError::new(error));
    }

    /// Whether the response may still change.
    pub(super) fn is_running(&self) -> bool {
        matches!(self.status, Status::Queued | Status::InProgress)
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Response to the deletion of a response.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeletedResponse {
    id: String,
    object: &'static str,
    deleted: bool,
}

impl DeletedResponse {
    pub(super) fn new(id: String) -> DeletedResponse {
        DeletedResponse { id, object: "response", deleted: true }
    }
}

/// A page of a response's input items.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ResponseItemList)]
pub(crate) struct ItemList {
    object: &'static str,
    #[serde(serialize_with = "serialize_items")]
    #[schema(value_type = Vec<Item>)]
    data: Vec<Arc<Item>>,
    /// Null if the page is empty.
    #[schema(required)]
    first_id: Option<String>,
    /// Null if the page is empty.
    #[schema(required)]
    last_id: Option<String>,
    has_more: bool,
}

impl ItemList {
    pub(super) fn new(data: Vec<Arc<Item>>, has_more: bool) -> ItemList {
        let id = |item: Option<&Arc<Item>>| item.map(|item| item.id.clone());
        let (first_id, last_id) = (id(data.first()), id(data.last()));
        ItemList { object: "list", data, first_id, last_id, has_more }
    }
}
