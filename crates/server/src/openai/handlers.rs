//! Handlers of the paths.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::Value;

use super::request::{Endpoint, parse_request};
use super::response::ResponseHead;
use super::writer::{ChunkWriter, CompletionCollector};
use crate::access_log::LogEntry;
use crate::completion::generate;
use crate::error::Error;
use crate::state::{AppState, Context};

pub(crate) async fn chat(
    State(app): State<Arc<AppState>>,
    Extension(log): Extension<Arc<LogEntry>>,
    request: Request,
) -> Result<Response, Error> {
    complete(app, Endpoint::Chat, log, request).await
}

pub(crate) async fn completions(
    State(app): State<Arc<AppState>>,
    Extension(log): Extension<Arc<LogEntry>>,
    request: Request,
) -> Result<Response, Error> {
    complete(app, Endpoint::Completions, log, request).await
}

async fn complete(
    app: Arc<AppState>,
    endpoint: Endpoint,
    log: Arc<LogEntry>,
    request: Request,
) -> Result<Response, Error> {
    let parse = move |body: Value, context: &Context| parse_request(endpoint, body, context);
    let (mut generation, options) = generate(&app, &log, request, parse).await?;
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let head = ResponseHead { id: generation.id.clone(), created, model: generation.served.model.id.clone() };
    let tokenizer = generation.served.model.tokenizer.clone();
    if options.stream {
        let writer = ChunkWriter::new(options, head, &mut generation, tokenizer);
        return Ok(generation.stream(writer, &app.config));
    }
    let collector = CompletionCollector::new(options, head, &mut generation, tokenizer);
    generation.collect(collector).await
}
