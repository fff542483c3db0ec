//! Handlers of the paths.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use axum::{Extension, Json};

use super::request::{parse_count, parse_request};
use super::response::TokenCount;
use super::writer::{MessageCollector, MessageWriter, new_message};
use crate::access_log::LogEntry;
use crate::completion::{generate, receive};
use crate::error::Error;
use crate::request::count_prompt_tokens;
use crate::state::AppState;

pub(crate) async fn messages(
    State(app): State<Arc<AppState>>,
    Extension(log): Extension<Arc<LogEntry>>,
    request: Request,
) -> Result<Response, Error> {
    let (generation, options) = generate(&app, &log, request, parse_request).await?;
    let message = new_message(&generation, &generation.served.model.id);
    let stop_sequences = options.stop_sequences;
    if options.stream {
        let writer = MessageWriter::new(message, stop_sequences, log.id.clone());
        return Ok(generation.stream(writer, &app.config));
    }
    generation.collect(MessageCollector { message, arguments: String::new(), stop_sequences }).await
}

pub(crate) async fn count_tokens(
    State(app): State<Arc<AppState>>,
    Extension(log): Extension<Arc<LogEntry>>,
    request: Request,
) -> Result<Json<TokenCount>, Error> {
    let (input_tokens, ..) = receive(&app, &log, request, parse_count, count_prompt_tokens).await?;
    Ok(Json(TokenCount { input_tokens }))
}
