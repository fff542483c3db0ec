//! Error objects.

use axum::Json;
use axum::extract::Request;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::models::VERSION_HEADER;
use crate::access_log::REQUEST_ID;
use crate::error::Error;

/// Header of Anthropic's API for the request id.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Body of an error response.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = MessagesErrorBody)]
pub(crate) struct ErrorBody {
    r#type: &'static str,
    error: ErrorObject,
    /// Null if the request was refused before it got an id.
    #[schema(required)]
    request_id: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = MessagesErrorObject)]
struct ErrorObject {
    r#type: &'static str,
    /// Description of the error, with the field that caused it, and advice where there is any.
    message: String,
}

impl ErrorBody {
    pub(crate) fn new(error: &Error, request_id: Option<String>) -> ErrorBody {
        let r#type = match error.status() {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        };
        let error = ErrorObject { r#type, message: error.to_string() };
        ErrorBody { r#type: "error", error, request_id }
    }
}

/// Renders the errors of Anthropic's paths in its format, wherever they come from.
pub(crate) async fn render_errors(request: Request, next: Next) -> Response {
    let is_ours = is_anthropic(request.uri().path(), request.headers());
    let response = next.run(request).await;
    if is_ours { with_error_body(response) } else { response }
}

/// Whether a request is Anthropic's: by its path, or by its headers where paths are the same as OpenAI's.
fn is_anthropic(path: &str, headers: &HeaderMap) -> bool {
    let is_at =
        |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    is_at("/v1/messages") || is_at("/v1/models") && headers.contains_key(VERSION_HEADER)
}

fn with_error_body(response: Response) -> Response {
    let (mut parts, body) = response.into_parts();
    let id = parts.headers.get(REQUEST_ID).cloned();
    if let Some(id) = &id {
        parts.headers.insert(ANTHROPIC_REQUEST_ID, id.clone());
    }
    let Some(error) = parts.extensions.get::<Error>() else { return Response::from_parts(parts, body) };
    let id = id.as_ref().and_then(|id| id.to_str().ok()).map(str::to_owned);
    let body = Json(ErrorBody::new(error, id)).into_response().into_body();
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, body)
}
