//! Error objects.

use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::Error;

/// Body of an error response.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    error: ErrorObject,
}

#[derive(Debug, Serialize, ToSchema)]
struct ErrorObject {
    /// Description of the error, with advice where there is any.
    message: String,
    r#type: &'static str,
    /// The field that caused the error, if any.
    #[schema(required)]
    param: Option<String>,
    code: &'static str,
}

impl ErrorBody {
    pub(crate) fn new(error: &Error) -> ErrorBody {
        let r#type = match error.status() {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        let param = error.param().map(str::to_owned);
        ErrorBody { error: ErrorObject { message: error.to_string(), r#type, param, code: error.code() } }
    }
}
