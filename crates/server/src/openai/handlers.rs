//! Handlers of the paths.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;

use super::request::{Endpoint, parse_request};
use super::response::ResponseHead;
use super::writer::{ChunkWriter, CompletionCollector};
use crate::access_log::LogEntry;
use crate::completion::generate;
use crate::error::Error;
use crate::state::AppState;

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
    let parse = move |body: &[u8], app: &AppState| parse_request(endpoint, body, app);
    let (mut generation, options) = generate(&app, &log, request, parse).await?;
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let head = ResponseHead { id: generation.id.clone(), created, model: app.model.id.clone() };
    let tokenizer = app.model.tokenizer.clone();
    if options.stream {
        let writer = ChunkWriter::new(options, head, &mut generation, tokenizer);
        return Ok(generation.stream(writer, &app.config));
    }
    let collector = CompletionCollector::new(options, head, &mut generation, tokenizer);
    generation.collect(collector).await
}
