//! What a client is told when it gets no answer: a status and OpenAI's body.

use std::time::Duration;

use axum::Json;
use axum::http::header::{ALLOW, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use engine::{RequestError, SubmitError};

use crate::openai;

/// Why a request has no answer. Each variant is a status and a code of its own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    /// A field is wrong, or the whole body where no field is named.
    #[error("{message}")]
    Invalid { param: Option<String>, message: String },
    /// A field asks for what is not built.
    #[error("'{param}': {what} is not supported by this server yet; leave it out")]
    Unsupported { param: String, what: String },
    /// A field asks for what the model that is served cannot do.
    #[error("'{param}': {message}")]
    NotByModel { param: String, message: String },
    #[error("the prompt has {tokens} tokens, but may have {most} here: shorten it")]
    TooLong { tokens: usize, most: u32 },
    #[error("no such model here: '{0}'. GET /v1/models lists what there is")]
    UnknownModel(String),
    #[error("wrong or missing API key: send the header 'Authorization: Bearer KEY'")]
    Unauthorized,
    #[error("nothing is at {0}")]
    UnknownPath(String),
    #[error("{path} does not take {method}")]
    WrongMethod { method: String, path: String },
    #[error("the body must be JSON: send it with the header 'Content-Type: application/json'")]
    NotJson,
    #[error("the body is larger than {0} bytes, the limit of this server")]
    BodyTooLarge(usize),
    #[error("the body did not arrive within {} s", .0.as_secs_f64())]
    BodyTooSlow(Duration),
    #[error("too many requests wait already: try again in {} s", seconds(*.0))]
    QueueFull(Duration),
    #[error("the request waited for {} s and was not begun: try again later", .0.as_secs_f64())]
    QueueTooSlow(Duration),
    #[error("the server cannot answer now: {0}")]
    Unready(String),
    #[error("the GPU was lost and did not come back: try again later")]
    DeviceLost,
    #[error("there is not enough GPU memory for this request: shorten it, or try again later")]
    OutOfMemory,
    #[error("the answer took longer than the server lets a request take: ask for fewer tokens")]
    Deadline,
    /// An answer cannot go on as what it is held to demands.
    #[error("'{param}': the answer cannot go on: {why}")]
    Format { param: &'static str, why: String },
    #[error("the model computed something that is no number, so that there is no next token")]
    NotFinite,
    #[error("something went wrong in the server; its log says what, under the request's id")]
    Internal,
}

/// When to come back to a server that is not ready: a model is loaded in about this time.
const UNREADY_RETRY: Duration = Duration::from_secs(5);

impl Error {
    /// A wrong field.
    pub(crate) fn field(param: impl Into<String>, message: impl std::fmt::Display) -> Error {
        let param = param.into();
        Error::Invalid { message: format!("'{param}': {message}"), param: Some(param) }
    }

    /// A field that asks for what is not built.
    pub(crate) fn unsupported(param: impl Into<String>, what: impl Into<String>) -> Error {
        Error::Unsupported { param: param.into(), what: what.into() }
    }

    /// The server is near its end.
    pub(crate) fn stopping() -> Error {
        Error::Unready("it is about to stop".to_owned())
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            // It follows from what was asked for, and would be the same again.
            Error::Invalid { .. }
            | Error::Unsupported { .. }
            | Error::NotByModel { .. }
            | Error::TooLong { .. }
            | Error::Format { .. } => StatusCode::BAD_REQUEST,
            Error::UnknownModel(_) | Error::UnknownPath(_) => StatusCode::NOT_FOUND,
            Error::Unauthorized => StatusCode::UNAUTHORIZED,
            Error::WrongMethod { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Error::NotJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Error::BodyTooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Error::BodyTooSlow(_) => StatusCode::REQUEST_TIMEOUT,
            Error::QueueFull(_) | Error::QueueTooSlow(_) => StatusCode::TOO_MANY_REQUESTS,
            Error::Unready(_) | Error::DeviceLost | Error::OutOfMemory => StatusCode::SERVICE_UNAVAILABLE,
            Error::Deadline => StatusCode::GATEWAY_TIMEOUT,
            Error::NotFinite | Error::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// A word for it, in OpenAI's `code`, the log and the metrics.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Error::Invalid { .. } => "invalid_value",
            Error::Unsupported { .. } | Error::NotByModel { .. } => "unsupported_parameter",
            Error::TooLong { .. } => "context_length_exceeded",
            Error::UnknownModel(_) => "model_not_found",
            Error::Unauthorized => "invalid_api_key",
            Error::UnknownPath(_) => "unknown_url",
            Error::WrongMethod { .. } => "method_not_allowed",
            Error::NotJson => "unsupported_media_type",
            Error::BodyTooLarge(_) => "body_too_large",
            Error::BodyTooSlow(_) => "body_too_slow",
            Error::QueueFull(_) => "queue_full",
            Error::QueueTooSlow(_) => "queue_too_slow",
            Error::Unready(_) => "not_ready",
            Error::DeviceLost => "device_lost",
            Error::OutOfMemory => "out_of_memory",
            Error::Deadline => "deadline",
            Error::Format { .. } => "format_failed",
            Error::NotFinite => "not_finite",
            Error::Internal => "internal_error",
        }
    }

    /// OpenAI's body for it.
    pub(crate) fn body(&self) -> openai::ErrorBody {
        let param = match self {
            Error::Invalid { param, .. } => param.clone(),
            Error::Unsupported { param, .. } | Error::NotByModel { param, .. } => Some(param.clone()),
            Error::UnknownModel(_) => Some("model".to_owned()),
            Error::Format { param, .. } => Some((*param).to_owned()),
            _ => None,
        };
        let kind = match self.status() {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        openai::ErrorBody::new(self.to_string(), kind, param, self.code())
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::QueueFull(after) => Some(*after),
            Error::QueueTooSlow(_) | Error::Unready(_) | Error::DeviceLost | Error::OutOfMemory => {
                Some(UNREADY_RETRY)
            }
            _ => None,
        }
    }
}

/// As the header has it: whole seconds, and never at once.
fn seconds(after: Duration) -> u64 {
    after.as_secs_f64().ceil().max(1.0) as u64
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let mut response = (self.status(), Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Some(after) = self.retry_after() {
            headers.insert(RETRY_AFTER, seconds(after).into());
        }
        match self {
            Error::Unauthorized => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Error::WrongMethod { ref path, .. } => {
                let allowed = if crate::router::is_post(path) { "POST" } else { "GET, HEAD" };
                headers.insert(ALLOW, HeaderValue::from_static(allowed));
            }
            _ => {}
        }
        response.extensions_mut().insert(self);
        response
    }
}

impl From<SubmitError> for Error {
    fn from(refused: SubmitError) -> Error {
        match refused {
            SubmitError::QueueFull { retry_after } => Error::QueueFull(retry_after),
            SubmitError::PromptTooLong { tokens, context_length } => {
                Error::TooLong { tokens, most: context_length }
            }
            SubmitError::Draining => Error::stopping(),
            SubmitError::Invalid(message) => Error::Invalid { param: None, message },
        }
    }
}

impl From<RequestError> for Error {
    fn from(failure: RequestError) -> Error {
        match failure {
            RequestError::DeviceLost => Error::DeviceLost,
            RequestError::OutOfMemory => Error::OutOfMemory,
            RequestError::Stopped => Error::stopping(),
            RequestError::DeadlineExceeded => Error::Deadline,
            RequestError::NonFiniteLogits => Error::NotFinite,
            RequestError::Grammar(why) => Error::Format { param: "response_format", why },
            // What it was is for the log alone: it may name files and devices.
            RequestError::Internal(_) => Error::Internal,
        }
    }
}
