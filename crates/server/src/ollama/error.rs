//! Error objects.

use axum::Json;
use axum::extract::Request;
use axum::http::header::CONTENT_LENGTH;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::Error;

/// Body of an error response, or the last line of a stream that fails.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaErrorBody)]
pub(crate) struct ErrorBody {
    /// Description of the error, with the field that caused it, and advice where there is any.
    error: String,
}

impl ErrorBody {
    pub(crate) fn new(error: &Error) -> ErrorBody {
        let error = match error {
            Error::UnknownModel(name) => format!("model '{name}' not found; GET /api/tags lists the models"),
            error => error.to_string(),
        };
        ErrorBody { error }
    }
}

/// Renders the errors of Ollama's paths in its format, wherever they come from.
pub(crate) async fn render_errors(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_ours = path == "/api" || path.starts_with("/api/");
    let response = next.run(request).await;
    if is_ours { with_error_body(response) } else { response }
}

fn with_error_body(response: Response) -> Response {
    let (mut parts, body) = response.into_parts();
    let Some(error) = parts.extensions.get::<Error>() else { return Response::from_parts(parts, body) };
    let body = Json(ErrorBody::new(error)).into_response().into_body();
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, body)
}
