//! The store: `/api/pull` and `/api/delete`. What would change or upload models is refused.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Extension;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use utoipa::ToSchema;

use super::error::ErrorBody;
use super::models::model_name;
use crate::access_log::LogEntry;
use crate::completion::{blocking, receive_body};
use crate::error::Error;
use crate::models::{ModelStore, PullProgress, StoreError, find_named, without_default_tag};
use crate::parse::parse;
use crate::response::{line, lines};
use crate::state::AppState;

/// Body of `/api/pull`.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaPullRequest)]
pub(crate) struct PullRequest {
    /// A name as in `indrik pull`.
    model: Option<String>,
    /// Older name of `model`.
    name: Option<String>,
    /// Stream the progress as lines of JSON; true by default.
    stream: Option<bool>,
    /// Without effect: connections are always encrypted.
    #[allow(dead_code, reason = "only its type is checked")]
    insecure: Option<bool>,
}

/// Body of `/api/delete`.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaDeleteRequest)]
pub(crate) struct DeleteRequest {
    model: Option<String>,
    /// Older name of `model`.
    name: Option<String>,
}

/// Response of `/api/pull`, or a line of its stream.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaPullStatus)]
pub(crate) struct PullStatus {
    /// What the pull does; "success" at the end.
    status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// Bytes of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    /// Bytes that are on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    completed: Option<u64>,
}

impl PullStatus {
    fn new(status: impl Into<String>) -> PullStatus {
        PullStatus { status: status.into(), digest: None, total: None, completed: None }
    }
}

impl From<PullProgress> for PullStatus {
    fn from(progress: PullProgress) -> PullStatus {
        match progress {
            PullProgress::Status(status) => PullStatus::new(status),
            PullProgress::Download { digest, completed, total } => PullStatus {
                status: format!("pulling {digest}"),
                digest: Some(digest),
                total: Some(total),
                completed: Some(completed),
            },
        }
    }
}

/// Why the store cannot be changed.
const NOT_OFFERED: &str = "models can be pulled and deleted only if the server offers all models of the store: start \
                           it without -m, or with --models store";

fn store(app: &AppState) -> Result<Arc<dyn ModelStore>, Error> {
    app.store.clone().ok_or(Error::Forbidden(NOT_OFFERED))
}

impl StoreError {
    fn into_error(self, name: &str) -> Error {
        match self {
            StoreError::NotFound => Error::UnknownModel(name.to_owned()),
            StoreError::Failed(reason) => Error::StoreFailed(reason),
        }
    }
}

pub(crate) async fn pull(
    State(app): State<Arc<AppState>>,
    Extension(log): Extension<Arc<LogEntry>>,
    request: Request,
) -> Result<Response, Error> {
    let body = receive_body(&app, request).await?.json;
    let PullRequest { model, name, stream, .. } = parse(&body)?;
    let name = model_name(model, name)?;
    let name = without_default_tag(&name).map_or(name.clone(), str::to_owned);
    log.set_model(&name);
    let store = store(&app)?;
    let mut pull = Pull::start(app, store, name);
    if stream.unwrap_or(true) {
        return Ok(lines(pull.lines(log)));
    }
    loop {
        match pull.next().await {
            PullEvent::Progress(_) => {}
            PullEvent::Ended(result) => {
                result?;
                return Ok(Json(PullStatus::new("success")).into_response());
            }
        }
    }
}

pub(crate) async fn delete(
    State(app): State<Arc<AppState>>,
    Extension(log): Extension<Arc<LogEntry>>,
    request: Request,
) -> Result<Response, Error> {
    let body = receive_body(&app, request).await?.json;
    let DeleteRequest { model, name } = parse(&body)?;
    let name = model_name(model, name)?;
    log.set_model(&name);
    let store = store(&app)?;
    let models = app.models.list().await?;
    let found = find_named(&models, &name).ok_or_else(|| Error::UnknownModel(name.clone()))?.id.clone();
    let id = found.clone();
    blocking(move || store.delete(&id).map_err(|error| error.into_error(&name))).await?;
    // Its file is gone: it must not answer any more.
    app.models.unload(&found);
    Ok(().into_response())
}

pub(crate) async fn refuse_copy(State(app): State<Arc<AppState>>, request: Request) -> Response {
    let message =
        "copying models is not supported: requests may use any name of a model, with or without a tag";
    app.bodies.refuse(request, Error::NotImplemented(message))
}

pub(crate) async fn refuse_create(State(app): State<Arc<AppState>>, request: Request) -> Response {
    let message = "creating models is not supported: send the system prompt and the options with each request; `indrik \
                   import` adds a file to the store, and `indrik quantize` writes a quantised one";
    app.bodies.refuse(request, Error::NotImplemented(message))
}

pub(crate) async fn refuse_push(State(app): State<Arc<AppState>>, request: Request) -> Response {
    app.bodies.refuse(request, Error::NotImplemented("pushing models is not supported"))
}

pub(crate) async fn refuse_blobs(State(app): State<Arc<AppState>>, request: Request) -> Response {
    let message = "uploading files is not supported: `indrik import` adds a file to the store";
    app.bodies.refuse(request, Error::NotImplemented(message))
}

/// Progress that may wait for its client. More is left out: the next one has the current state.
const QUEUE: usize = 64;

/// A pull on a thread of its own. Dropping it cancels the pull.
struct Pull {
    events: mpsc::Receiver<PullEvent>,
    cancel: Arc<AtomicBool>,
}

enum PullEvent {
    Progress(PullStatus),
    Ended(Result<(), Error>),
}

impl Drop for Pull {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
    }
}

impl Pull {
    fn start(app: Arc<AppState>, store: Arc<dyn ModelStore>, name: String) -> Pull {
        let (sender, events) = mpsc::channel(QUEUE);
        let cancel = Arc::<AtomicBool>::default();
        let cancelled = cancel.clone();
        tokio::spawn(async move {
            let status = PullEvent::Progress(PullStatus::new("pulling manifest"));
            let _ = sender.send(status).await;
            let turn = tokio::select! {
                turn = app.pulls.turn(&name) => turn,
                () = sender.closed() => return,
            };
            let progress = sender.clone();
            let work = move || {
                // Until the thread has ended, also if the client is gone before.
                let _turn = turn;
                let mut report = |event: PullProgress| {
                    let is_status = matches!(event, PullProgress::Status(_));
                    let event = PullEvent::Progress(event.into());
                    let _ = match is_status {
                        true => progress.blocking_send(event).is_ok(),
                        false => progress.try_send(event).is_ok(),
                    };
                };
                store.pull(&name, &mut report, &cancelled).map_err(|error| error.into_error(&name))
            };
            let result = blocking(work).await;
            let _ = sender.send(PullEvent::Ended(result)).await;
        });
        Pull { events, cancel }
    }

    async fn next(&mut self) -> PullEvent {
        self.events.recv().await.unwrap_or(PullEvent::Ended(Err(Error::Internal)))
    }

    /// The progress as lines; the last one is the result.
    fn lines(self, log: Arc<LogEntry>) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
        stream::unfold(Some((self, log)), |running| async {
            let (mut pull, log) = running?;
            Some(match pull.next().await {
                PullEvent::Progress(status) => (Ok(line(&status)), Some((pull, log))),
                PullEvent::Ended(Ok(())) => {
                    log.set_outcome("success");
                    (Ok(line(&PullStatus::new("success"))), None)
                }
                PullEvent::Ended(Err(error)) => {
                    log.set_outcome(error.code());
                    (Ok(line(&ErrorBody::new(&error))), None)
                }
            })
        })
    }
}
