//! Handlers of `/api/chat` and `/api/generate`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::Value;

use super::models::describe;
use super::request::{Endpoint, LoadRequest, parse_load, parse_request};
use super::response::{End, Output};
use super::writer::ResponseWriter;
use crate::access_log::LogEntry;
use crate::completion::{generate_body, receive_body};
use crate::error::Error;
use crate::state::{AppState, Context};

pub(crate) async fn chat(
    State(app): State<Arc<AppState>>,
    Extension(log): Extension<Arc<LogEntry>>,
    request: Request,
) -> Result<Response, Error> {
    respond(app, Endpoint::Chat, log, request).await
}

pub(crate) async fn generate(
    State(app): State<Arc<AppState>>,
    Extension(log): Extension<Arc<LogEntry>>,
    request: Request,
) -> Result<Response, Error> {
    respond(app, Endpoint::Generate, log, request).await
}

async fn respond(
    app: Arc<AppState>,
    endpoint: Endpoint,
    log: Arc<LogEntry>,
    request: Request,
) -> Result<Response, Error> {
    let body = receive_body(&app, request).await?;
    if let Some(load) = parse_load(endpoint, &body.json)? {
        return load_model(&app, endpoint, &log, load).await;
    }
    let parse = move |body: Value, context: &Context| parse_request(endpoint, body, context);
    let (generation, options) = generate_body(&app, &log, body, parse).await?;
    if let Some(keep_alive) = options.keep_alive {
        app.models.set_unload_after(&generation.served.model.id, keep_alive);
    }
    let tokenizer = generation.served.model.tokenizer.clone();
    let writer = ResponseWriter::new(options.endpoint, options.model, tokenizer, log);
    match options.stream {
        true => Ok(generation.stream_lines(writer)),
        false => generation.collect(writer).await,
    }
}

/// Loads a model, or unloads it if it is to be kept for no time.
async fn load_model(
    app: &Arc<AppState>,
    endpoint: Endpoint,
    log: &LogEntry,
    request: LoadRequest,
) -> Result<Response, Error> {
    let LoadRequest { model, keep_alive } = request;
    log.set_model(&model);
    app.check_ready()?;
    let reason = match keep_alive {
        Some(Some(Duration::ZERO)) => {
            app.models.unload(&describe(app, &model).await?.id);
            "unload"
        }
        keep_alive => {
            let served = app.models.acquire(&model).await?;
            if let Some(keep_alive) = keep_alive {
                app.models.set_unload_after(served.id(), keep_alive);
            }
            "load"
        }
    };
    let (output, end) = (Output::default(), Some(End::without_output(reason)));
    Ok(match endpoint {
        Endpoint::Chat => Json(output.into_chat(&model, end)).into_response(),
        Endpoint::Generate => Json(output.into_generated(&model, end)).into_response(),
    })
}
