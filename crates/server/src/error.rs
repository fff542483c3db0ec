//! Errors as clients see them: an HTTP status and an object in the format of the protocol.

use std::time::Duration;

use axum::Json;
use axum::http::header::{ACCEPT_ENCODING, ALLOW, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use engine::{RequestError, SubmitError};

use crate::encoding::ACCEPTED;
use crate::openai::ErrorBody;
use crate::stats::MAX_STREAMS;

/// Why a request failed. Each variant has its own status and code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    /// An invalid field, or an invalid body if `param` is `None`.
    #[error("{message}")]
    Invalid { param: Option<String>, message: String },
    /// A required field that is not there.
    #[error("'{0}': is required")]
    Missing(String),
    /// A field that requires a feature that is not implemented.
    #[error("'{param}': {feature} is not supported by this server yet; leave it out")]
    Unsupported { param: String, feature: String },
    /// A field that the served model does not support.
    #[error("'{param}': {message}")]
    UnsupportedByModel { param: String, message: String },
    // Client libraries recognise the first sentence.
    #[error(
        "This model's maximum context length is {max_tokens} tokens. However, the prompt has {tokens} tokens: shorten it"
    )]
    PromptTooLong { tokens: usize, max_tokens: u32 },
    #[error("model '{0}' not found; GET /v1/models lists the available models")]
    UnknownModel(String),
    #[error("Response with id '{0}' not found.")]
    ResponseNotFound(String),
    #[error("Previous response with id '{0}' not found.")]
    PreviousResponseNotFound(String),
    #[error("invalid or missing API key: send the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'")]
    Unauthorized,
    #[error("an HTTP/1.1 request needs exactly one valid 'Host' header")]
    InvalidHost,
    #[error(
        "this server does not answer to the name '{0}': start it with --allow-host {0}, or use localhost"
    )]
    HostNotAllowed(String),
    #[error("no such path: {0}")]
    UnknownPath(String),
    #[error("method {method} is not allowed for {path}; allowed: {allowed}")]
    MethodNotAllowed { method: String, path: String, allowed: &'static str },
    #[error("the body must be JSON: send it with the header 'Content-Type: application/json'")]
    NotJson,
    #[error("'Content-Encoding: {0}' is not supported: send the body with one of the encodings {ACCEPTED}")]
    UnsupportedEncoding(String),
    #[error("{0}")]
    InvalidEncoding(String),
    #[error("the body exceeds the limit of {0} bytes")]
    BodyTooLarge(usize),
    #[error("the body did not arrive within {} s", .0.as_secs_f64())]
    BodyTimeout(Duration),
    #[error("the body arrived too slowly while other requests needed memory: try again")]
    BodyTooSlow,
    #[error("too many large requests at once: try again in a second")]
    TooManyBodies,
    #[error("all connections are in use: try again later")]
    TooManyConnections,
    #[error("all {MAX_STREAMS} /stats/stream connections are in use: close one, or poll /stats")]
    TooManyStreams,
    #[error("the queue is full: try again in {} s", retry_seconds(*.0))]
    QueueFull(Duration),
    #[error("the request waited {} s in the queue without being admitted: try again later", .0.as_secs_f64())]
    QueueTimeout(Duration),
    #[error("the server is not ready: {0}")]
    NotReady(String),
    #[error("the server is not ready: it is shutting down")]
    Stopping,
    #[error("model '{model}' cannot be used now: {reason}")]
    ModelUnavailable { model: String, reason: String },
    #[error("{0}")]
    Forbidden(&'static str),
    #[error("{0}")]
    NotImplemented(&'static str),
    /// A model could not be pulled or deleted.
    #[error("{0}")]
    StoreFailed(String),
    #[error("the GPU was lost and could not be recovered: try again later")]
    DeviceLost,
    #[error("not enough GPU memory for this request: shorten it, or try again later")]
    OutOfMemory,
    #[error("the request exceeded the server's time limit: lower max_tokens")]
    DeadlineExceeded,
    /// The grammar allows no next token, or following it became too expensive.
    #[error("'{param}': the completion cannot continue: {reason}")]
    Grammar { param: &'static str, reason: String },
    #[error("the model produced NaN or Inf logits, so no next token can be sampled")]
    NonFiniteLogits,
    #[error("internal error; the server log has details under the request id")]
    Internal,
}

/// `Retry-After` while the server is not ready: about the time it takes to load a model.
const NOT_READY_RETRY: Duration = Duration::from_secs(5);

impl Error {
    /// An invalid field.
    pub(crate) fn invalid_field(param: impl Into<String>, message: impl std::fmt::Display) -> Error {
        let param = param.into();
        Error::Invalid { message: format!("'{param}': {message}"), param: Some(param) }
    }

    /// A required field that is not there.
    pub(crate) fn missing_field(param: impl Into<String>) -> Error {
        Error::Missing(param.into())
    }

    /// A field that requires a feature that is not implemented.
    pub(crate) fn unsupported(param: impl Into<String>, feature: impl Into<String>) -> Error {
        Error::Unsupported { param: param.into(), feature: feature.into() }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            // `Grammar` follows from the request: a retry would fail the same way.
            Error::Invalid { .. }
            | Error::Missing(_)
            | Error::Unsupported { .. }
            | Error::UnsupportedByModel { .. }
            | Error::PromptTooLong { .. }
            | Error::PreviousResponseNotFound(_)
            | Error::InvalidHost
            | Error::InvalidEncoding(_)
            | Error::Grammar { .. } => StatusCode::BAD_REQUEST,
            Error::HostNotAllowed(_) | Error::Forbidden(_) => StatusCode::FORBIDDEN,
            Error::NotImplemented(_) => StatusCode::NOT_IMPLEMENTED,
            Error::UnknownModel(_) | Error::ResponseNotFound(_) | Error::UnknownPath(_) => {
                StatusCode::NOT_FOUND
            }
            Error::Unauthorized => StatusCode::UNAUTHORIZED,
            Error::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Error::NotJson | Error::UnsupportedEncoding(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Error::BodyTooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Error::BodyTimeout(_) | Error::BodyTooSlow => StatusCode::REQUEST_TIMEOUT,
            Error::TooManyBodies | Error::QueueFull(_) | Error::QueueTimeout(_) => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Error::TooManyConnections
            | Error::TooManyStreams
            | Error::NotReady(_)
            | Error::Stopping
            | Error::ModelUnavailable { .. }
            | Error::DeviceLost
            | Error::OutOfMemory => StatusCode::SERVICE_UNAVAILABLE,
            Error::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Error::NonFiniteLogits | Error::StoreFailed(_) | Error::Internal => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        }
    }

    /// The outcome in the access log and the metrics; also OpenAI's `code`.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Error::Invalid { .. } => "invalid_value",
            Error::Missing(_) => "missing_required_parameter",
            Error::Unsupported { .. } | Error::UnsupportedByModel { .. } => "unsupported_parameter",
            Error::PromptTooLong { .. } => "context_length_exceeded",
            Error::UnknownModel(_) => "model_not_found",
            Error::ResponseNotFound(_) => "response_not_found",
            Error::PreviousResponseNotFound(_) => "previous_response_not_found",
            Error::Unauthorized => "invalid_api_key",
            Error::UnknownPath(_) => "unknown_url",
            Error::MethodNotAllowed { .. } => "method_not_allowed",
            Error::NotJson => "unsupported_media_type",
            Error::UnsupportedEncoding(_) => "unsupported_encoding",
            Error::InvalidEncoding(_) => "invalid_encoding",
            Error::BodyTooLarge(_) => "body_too_large",
            Error::BodyTimeout(_) | Error::BodyTooSlow => "body_too_slow",
            Error::InvalidHost => "invalid_host",
            Error::HostNotAllowed(_) => "host_not_allowed",
            Error::TooManyConnections => "too_many_connections",
            Error::TooManyStreams => "too_many_streams",
            Error::TooManyBodies => "too_many_bodies",
            Error::QueueFull(_) => "queue_full",
            Error::QueueTimeout(_) => "queue_too_slow",
            Error::NotReady(_) | Error::Stopping => "not_ready",
            Error::ModelUnavailable { .. } => "model_unavailable",
            Error::Forbidden(_) => "forbidden",
            Error::NotImplemented(_) => "not_implemented",
            Error::StoreFailed(_) => "store_failed",
            Error::DeviceLost => "device_lost",
            Error::OutOfMemory => "out_of_memory",
            Error::DeadlineExceeded => "deadline",
            Error::Grammar { .. } => "format_failed",
            Error::NonFiniteLogits => "not_finite",
            Error::Internal => "internal_error",
        }
    }

    /// The field that caused the error, if any.
    pub(crate) fn param(&self) -> Option<&str> {
        match self {
            Error::Invalid { param, .. } => param.as_deref(),
            Error::Missing(param)
            | Error::Unsupported { param, .. }
            | Error::UnsupportedByModel { param, .. } => Some(param),
            Error::UnknownModel(_) => Some("model"),
            Error::ResponseNotFound(_) => Some("response_id"),
            Error::PreviousResponseNotFound(_) => Some("previous_response_id"),
            Error::Grammar { param, .. } => Some(param),
            _ => None,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::QueueFull(after) => Some(*after),
            Error::TooManyBodies | Error::BodyTooSlow | Error::Stopping => Some(Duration::from_secs(1)),
            Error::QueueTimeout(_)
            | Error::TooManyConnections
            | Error::TooManyStreams
            | Error::NotReady(_)
            | Error::DeviceLost
            | Error::OutOfMemory => Some(NOT_READY_RETRY),
            _ => None,
        }
    }
}

/// Value of the `Retry-After` header: whole seconds, at least one.
fn retry_seconds(after: Duration) -> u64 {
    after.as_secs_f64().ceil().max(1.0) as u64
}

/// With OpenAI's error object.
impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let mut response = (self.status(), Json(ErrorBody::new(&self))).into_response();
        let headers = response.headers_mut();
        if let Some(after) = self.retry_after() {
            headers.insert(RETRY_AFTER, retry_seconds(after).into());
        }
        match self {
            Error::Unauthorized => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Error::MethodNotAllowed { allowed, .. } => {
                headers.insert(ALLOW, HeaderValue::from_static(allowed));
            }
            Error::UnsupportedEncoding(_) => {
                headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(ACCEPTED));
            }
            _ => {}
        }
        // The access log takes the outcome from here.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<SubmitError> for Error {
    fn from(error: SubmitError) -> Error {
        match error {
            SubmitError::QueueFull { retry_after } => Error::QueueFull(retry_after),
            SubmitError::PromptTooLong { tokens, context_length } => {
                Error::PromptTooLong { tokens, max_tokens: context_length }
            }
            SubmitError::Draining => Error::Stopping,
            SubmitError::Invalid(message) => Error::Invalid { param: None, message },
        }
    }
}

impl From<RequestError> for Error {
    fn from(error: RequestError) -> Error {
        match error {
            RequestError::DeviceLost => Error::DeviceLost,
            RequestError::OutOfMemory => Error::OutOfMemory,
            RequestError::Stopped => Error::Stopping,
            RequestError::DeadlineExceeded => Error::DeadlineExceeded,
            RequestError::NonFiniteLogits => Error::NonFiniteLogits,
            RequestError::Grammar(reason) => Error::Grammar { param: "response_format", reason },
            // Details may name files and devices: they are logged, not sent.
            RequestError::Internal(_) => Error::Internal,
        }
    }
}
