//! Handlers of the paths.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::Value;
use tokio::sync::oneshot;

use super::builder::ResponseBuilder;
use super::input::MAX_SHOWN;
use super::request::{NewResponse, parse_request};
use super::response::{DeletedResponse, ItemList, Status};
use super::store::{Owner, StoredResponse};
use super::writer::{Recorder, ResponseCollector, ResponseWriter};
use crate::access_log::LogEntry;
use crate::completion::{start, wait_admitted};
use crate::error::Error;
use crate::phase::Phase;
use crate::response::Generation;
use crate::state::{AppState, Context};

/// Items per page.
const DEFAULT_LIMIT: usize = 20;
const MAX_LIMIT: usize = 100;

type IdPath = Result<Path<String>, PathRejection>;

pub(crate) async fn create(
    State(app): State<Arc<AppState>>,
    Extension(log): Extension<Arc<LogEntry>>,
    request: Request,
) -> Result<Response, Error> {
    let owner = app.keys.owner(request.headers());
    let parse = move |body: Value, context: &Context| parse_request(body, context, &owner);
    let (mut generation, NewResponse { stored, stream, logprobs }) =
        start(&app, &log, request, parse).await?;
    let tokenizer = logprobs.then(|| generation.served.model.tokenizer.clone());
    let background = stored.response.settings.background;
    let builder = ResponseBuilder::new(stored.response.clone(), tokenizer);
    let recorder = Recorder { app: app.clone(), owner, stored: stored.clone() };
    if background {
        let collector = ResponseCollector { builder, recorder };
        return Ok(run_in_background(&app, owner, stored, generation, collector));
    }
    wait_admitted(&app, &mut generation).await?;
    match stream {
        true => Ok(generation.stream(ResponseWriter::new(builder, recorder), &app.config)),
        false => generation.collect(ResponseCollector { builder, recorder }).await,
    }
}

/// Generates a response after its request. Its record in the store changes from queued to in progress to its end; if
/// the record is gone or cancelled by then, so is the generation.
fn run_in_background(
    app: &Arc<AppState>,
    owner: Owner,
    stored: StoredResponse,
    mut generation: Generation,
    collector: ResponseCollector,
) -> Response {
    let (is_stored, stored_signal) = oneshot::channel::<()>();
    let (state, queued) = (app.clone(), stored.response.clone());
    let task = tokio::spawn(async move {
        if stored_signal.await.is_err() {
            return;
        }
        let mut in_progress = queued.clone();
        in_progress.status = Status::InProgress;
        let generated = async {
            wait_admitted(&state, &mut generation).await?;
            state.responses.finish(&owner, in_progress);
            generation.collect(collector).await
        };
        let mut phase = state.phase.clone();
        let generated = tokio::select! {
            generated = generated => generated.map(drop),
            // Nobody could retrieve it any more. Without a handle, the phase stays as it is.
            Ok(_) = phase.wait_for(|phase| *phase != Phase::Running) => Err(Error::Stopping),
        };
        if let Err(error) = generated {
            state.responses.fail(&owner, &queued.id, &error);
        }
    });
    let response = Json(&stored.response).into_response();
    app.responses.insert(owner, stored, Some(task.abort_handle()));
    // The task has been aborted if the response was too large to be stored.
    let _ = is_stored.send(());
    response
}

pub(crate) async fn retrieve(
    State(app): State<Arc<AppState>>,
    headers: HeaderMap,
    uri: Uri,
    id: IdPath,
) -> Result<Response, Error> {
    if query(&uri, "stream").is_some_and(|stream| stream == "true") {
        return Err(Error::unsupported("stream", "streaming a stored response"));
    }
    let stored = find(&app, &headers, id)?;
    Ok(Json(&stored.response).into_response())
}

pub(crate) async fn delete(
    State(app): State<Arc<AppState>>,
    headers: HeaderMap,
    id: IdPath,
) -> Result<Json<DeletedResponse>, Error> {
    let id = valid_id(id)?;
    match app.responses.delete(&app.keys.owner(&headers), &id) {
        true => Ok(Json(DeletedResponse::new(id))),
        false => Err(not_found(&id)),
    }
}

pub(crate) async fn cancel(
    State(app): State<Arc<AppState>>,
    headers: HeaderMap,
    id: IdPath,
) -> Result<Response, Error> {
    let found = find(&app, &headers, id)?;
    let response = &found.response;
    if !response.settings.background {
        let message = "the response is not in the background: close the connection of its request instead";
        return Err(Error::Invalid { param: Some("response_id".to_owned()), message: message.to_owned() });
    }
    let cancelled = app.responses.cancel(&app.keys.owner(&headers), &response.id);
    let cancelled = cancelled.ok_or_else(|| not_found(&response.id))?;
    Ok(Json(&cancelled.response).into_response())
}

pub(crate) async fn input_items(
    State(app): State<Arc<AppState>>,
    headers: HeaderMap,
    uri: Uri,
    id: IdPath,
) -> Result<Json<ItemList>, Error> {
    let limit = match query(&uri, "limit") {
        None => DEFAULT_LIMIT,
        Some(limit) => {
            let number = limit.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
            let message = format!("must be a number between 1 and {MAX_LIMIT}");
            number.ok_or_else(|| Error::invalid_field("limit", message))?
        }
    };
    let oldest_first = match query(&uri, "order") {
        None | Some("desc") => false,
        Some("asc") => true,
        Some(_) => return Err(Error::invalid_field("order", "must be asc or desc")),
    };
    let stored = find(&app, &headers, id)?;
    let mut items: Vec<_> = stored.input_items().cloned().collect();
    if !oldest_first {
        items.reverse();
    }
    if let Some(after) = query(&uri, "after") {
        let position = items.iter().position(|item| item.id == after);
        let position = position.ok_or_else(|| {
            Error::invalid_field("after", "is not the id of an input item of this response")
        })?;
        items.drain(..=position);
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    Ok(Json(ItemList::new(items, has_more)))
}

/// The response that a request with these headers may see.
fn find(app: &AppState, headers: &HeaderMap, id: IdPath) -> Result<Arc<StoredResponse>, Error> {
    let id = valid_id(id)?;
    app.responses.get(&app.keys.owner(headers), &id).ok_or_else(|| not_found(&id))
}

fn valid_id(id: IdPath) -> Result<String, Error> {
    id.map(|Path(id)| id).map_err(|_| not_found("(not UTF-8)"))
}

fn not_found(id: &str) -> Error {
    Error::ResponseNotFound(id.chars().take(MAX_SHOWN).collect())
}

/// A parameter of the query. Values are ids, numbers and words: none is escaped.
fn query<'a>(uri: &'a Uri, name: &str) -> Option<&'a str> {
    let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next_back()
}
