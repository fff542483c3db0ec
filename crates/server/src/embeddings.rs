//! The path of texts that are embedded, for all protocols: body, model, parsed request, turns of the embedder.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::Request;
use serde_json::Value;

use crate::access_log::LogEntry;
use crate::completion::{ModelField, ReceivedBody, blocking, receive_body};
use crate::embedder::{EmbedError, EmbeddedText, EmbeddingInput, EmbeddingOptions};
use crate::error::Error;
use crate::models::Lease;
use crate::parse::parse as parse_body;
use crate::served::ServedEmbedder;
use crate::state::AppState;

/// Maximum number of texts in a request, same as OpenAI's.
pub(crate) const MAX_INPUTS: usize = 2048;

/// Maximum texts per turn: requests for one embedding model alternate.
const TEXTS_PER_TURN: usize = 32;

/// Texts to embed.
#[derive(Debug)]
pub(crate) struct EmbedRequest {
    pub(crate) inputs: Vec<EmbeddingInput>,
    /// Whether they were given as a list, for errors.
    pub(crate) is_list: bool,
    pub(crate) options: EmbeddingOptions,
    /// Names of the fields with the texts and the prompt's name, for errors.
    pub(crate) fields: (&'static str, &'static str),
}

/// Parses a body; also returns what is kept of it for the response.
type ParseEmbedRequest<T> = fn(&Value, &ServedEmbedder) -> Result<(EmbedRequest, T), Error>;

/// Embeds the texts of a request: receives its body, parses it with the protocol's `parse`, and waits for its turns.
/// Also returns what `parse` keeps of the request for its response, and the id of the model.
pub(crate) async fn embed<T: Send + 'static>(
    app: &Arc<AppState>,
    log: &Arc<LogEntry>,
    request: Request,
    parse: ParseEmbedRequest<T>,
) -> Result<(Vec<EmbeddedText>, T, String), Error> {
    let ReceivedBody { json: body, reservation } = receive_body(app, request).await?;
    let ModelField { model: name } = parse_body(&body)?;
    app.check_ready()?;
    let asked = Instant::now();
    let served = app.models.acquire_embedder(&name).await?;
    log.set_load_time(asked.elapsed());
    log.set_model(&name);
    let model = served.clone();
    let (request, kept) = blocking(move || parse(&body, &model)).await?;
    // The texts take about as much memory as the body, until the last is embedded.
    let _reservation = reservation;
    let EmbedRequest { inputs, is_list, options, fields } = request;
    check_dimensions(&served, &options)?;
    let mut texts = Vec::with_capacity(inputs.len());
    let mut rest = inputs;
    while !rest.is_empty() {
        let later = rest.split_off(rest.len().min(TEXTS_PER_TURN));
        let first = texts.len();
        let embedded = embed_turn(app, &served, rest, options.clone()).await?;
        texts.extend(embedded.map_err(|error| match error {
            EmbedError::Input(index, reason) if is_list => {
                Error::invalid_field(format!("{}[{}]", fields.0, first + index), reason)
            }
            EmbedError::Input(_, reason) => Error::invalid_field(fields.0, reason),
            EmbedError::Prompt(reason) => Error::invalid_field(fields.1, reason),
            EmbedError::DeviceLost => Error::DeviceLost,
            EmbedError::Internal(details) => {
                log.span.in_scope(|| tracing::error!(%details, "texts could not be embedded"));
                Error::Internal
            }
        })?);
        rest = later;
    }
    log.add_prompt_tokens(texts.iter().map(|text| text.tokens as u32).sum());
    Ok((texts, kept, served.model.id.clone()))
}

fn check_dimensions(served: &ServedEmbedder, options: &EmbeddingOptions) -> Result<(), Error> {
    let max = served.model.dimensions;
    match options.dimensions {
        Some(dimensions) if !(1..=max).contains(&dimensions) => {
            let message = format!("is {dimensions}, but vectors of this model have 1 to {max} values");
            Err(Error::invalid_field("dimensions", message))
        }
        _ => Ok(()),
    }
}

/// Embeds some texts of a request, once it is its turn.
async fn embed_turn(
    app: &AppState,
    served: &Lease<ServedEmbedder>,
    inputs: Vec<EmbeddingInput>,
    options: EmbeddingOptions,
) -> Result<Result<Vec<EmbeddedText>, EmbedError>, Error> {
    let timeout = app.config.queue_timeout;
    let turn = tokio::time::timeout(timeout, served.turn.clone().acquire_owned()).await;
    let turn = turn.map_err(|_| Error::QueueTimeout(timeout))?.expect("the semaphore is never closed");
    let model = served.clone();
    let work = move || {
        let _turn = turn;
        Ok(model.embedder.embed(&inputs, &options))
    };
    blocking(work).await
}
