//! `/api/embed`, and its predecessor `/api/embeddings`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

#[allow(unused_imports, reason = "used by the OpenAPI document only")]
use super::options::OllamaKeepAlive;
use super::options::{KeepAlive, parse_keep_alive};
use super::response::nanoseconds;
use crate::access_log::LogEntry;
use crate::embedder::{EmbeddingInput, EmbeddingOptions};
use crate::embeddings::{self, EmbedRequest, MAX_INPUTS};
use crate::error::Error;
use crate::parse::parse;
use crate::served::ServedEmbedder;
use crate::state::AppState;

/// Body of `/api/embed`.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaEmbedRequest)]
pub(crate) struct EmbedFields {
    /// Name of the model, as listed by `/api/tags`.
    model: String,
    /// A text, or a list of texts.
    #[schema(value_type = OllamaEmbedInput)]
    input: Value,
    /// Whether to cut off the end of texts that are too long; true by default.
    truncate: Option<bool>,
    /// Number of values of each vector; the model's by default.
    #[schema(minimum = 1)]
    dimensions: Option<u32>,
    /// As in `/api/chat`.
    #[schema(value_type = Option<OllamaKeepAlive>)]
    keep_alive: Option<Value>,
}

/// `input` in the OpenAPI document.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "describes the schema; never constructed")]
pub(crate) enum OllamaEmbedInput {
    Text(String),
    Texts(Vec<String>),
}

/// Response of `/api/embed`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaEmbedResponse)]
pub(crate) struct EmbedResponse {
    model: String,
    embeddings: Vec<Vec<f32>>,
    /// In nanoseconds.
    total_duration: u64,
    /// In nanoseconds: time that the request waited for its model.
    load_duration: u64,
    /// Tokens of all texts.
    prompt_eval_count: usize,
}

/// Body of `/api/embeddings`.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaEmbeddingsRequest)]
pub(crate) struct EmbeddingsFields {
    /// Name of the model, as listed by `/api/tags`.
    #[allow(dead_code, reason = "read before the other fields")]
    model: String,
    prompt: String,
    /// As in `/api/chat`.
    #[schema(value_type = Option<OllamaKeepAlive>)]
    keep_alive: Option<Value>,
}

/// Response of `/api/embeddings`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaEmbeddingsResponse)]
pub(crate) struct EmbeddingsResponse {
    embedding: Vec<f32>,
}

pub(crate) async fn embed(
    State(app): State<Arc<AppState>>,
    Extension(log): Extension<Arc<LogEntry>>,
    request: Request,
) -> Result<Json<EmbedResponse>, Error> {
    let (texts, (model, keep_alive), id) = embeddings::embed(&app, &log, request, parse_embed).await?;
    set_unload_after(&app, &id, keep_alive);
    Ok(Json(EmbedResponse {
        model,
        prompt_eval_count: texts.iter().map(|text| text.tokens).sum(),
        embeddings: texts.into_iter().map(|text| text.vector).collect(),
        total_duration: nanoseconds(log.started.elapsed()),
        load_duration: nanoseconds(log.load_time()),
    }))
}

pub(crate) async fn embeddings(
    State(app): State<Arc<AppState>>,
    Extension(log): Extension<Arc<LogEntry>>,
    request: Request,
) -> Result<Json<EmbeddingsResponse>, Error> {
    let (texts, keep_alive, id) = embeddings::embed(&app, &log, request, parse_embeddings).await?;
    set_unload_after(&app, &id, keep_alive);
    let embedding = texts.into_iter().next().map(|text| text.vector).ok_or(Error::Internal)?;
    Ok(Json(EmbeddingsResponse { embedding }))
}

/// Sets when the model is unloaded, if the request says.
fn set_unload_after(app: &AppState, id: &str, keep_alive: Option<KeepAlive>) {
    if let Some(keep_alive) = keep_alive {
        app.models.set_unload_after(id, keep_alive);
        // Releasing the lease applies it.
        drop(app.models.try_acquire(id));
    }
}

type Kept = (String, Option<KeepAlive>);

fn parse_embed(body: &Value, _: &ServedEmbedder) -> Result<(EmbedRequest, Kept), Error> {
    const FIELD: &str = "input";
    let fields: EmbedFields = parse(body)?;
    let invalid = |message: &str| Error::invalid_field(FIELD, message);
    let is_list = fields.input.is_array();
    let inputs: Vec<EmbeddingInput> = match fields.input {
        Value::String(text) => vec![EmbeddingInput::Text(text)],
        Value::Array(texts) => {
            let text = |text| match text {
                Value::String(text) => Ok(EmbeddingInput::Text(text)),
                _ => Err(invalid("must be a string or a list of strings")),
            };
            texts.into_iter().map(text).collect::<Result<_, _>>()?
        }
        _ => return Err(invalid("must be a string or a list of strings")),
    };
    if inputs.len() > MAX_INPUTS {
        return Err(invalid(&format!("has {} texts, but at most {MAX_INPUTS} are allowed", inputs.len())));
    }
    let options = EmbeddingOptions {
        dimensions: fields.dimensions,
        truncate: fields.truncate.unwrap_or(true),
        prompt: None,
    };
    let keep_alive = parse_keep_alive(fields.keep_alive.as_ref())?;
    Ok((EmbedRequest { inputs, is_list, options, fields: (FIELD, FIELD) }, (fields.model, keep_alive)))
}

fn parse_embeddings(body: &Value, _: &ServedEmbedder) -> Result<(EmbedRequest, Option<KeepAlive>), Error> {
    let EmbeddingsFields { prompt, keep_alive, .. } = parse(body)?;
    let options = EmbeddingOptions { truncate: true, ..EmbeddingOptions::default() };
    let request = EmbedRequest {
        inputs: vec![EmbeddingInput::Text(prompt)],
        is_list: false,
        options,
        fields: ("prompt", "prompt"),
    };
    Ok((request, parse_keep_alive(keep_alive.as_ref())?))
}
