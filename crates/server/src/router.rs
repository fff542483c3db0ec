//! What lies at which path.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use engine::Usage;
use futures_util::StreamExt;
use serde_json::{Value, json};
use text::{DecodeSpecial, ToolSupport};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tower_http::catch_panic::CatchPanicLayer;

use crate::access::{self, Keys};
use crate::choice::Choice;
use crate::config::{Config, Model};
use crate::error::Error;
use crate::generator::Generator;
use crate::grammars::Grammars;
use crate::listen::Phase;
use crate::metrics::{self, Metrics};
use crate::openai::{Head, ModelInfo, ModelList};
use crate::prompt::{Asked, Form};
use crate::record::Record;
use crate::reply::Running;

/// What all handlers share.
pub(crate) struct App {
    config: Config,
    keys: Keys,
    model: Model,
    generator: Arc<dyn Generator>,
    metrics: Arc<Metrics>,
    phase: watch::Receiver<Phase>,
    grammars: Grammars,
    /// What the model knows of tools.
    knows: ToolSupport,
    /// Room for bodies, in units of [`BODY_UNIT`].
    bodies: Semaphore,
    /// It never changes while the server runs.
    openapi: Value,
}

/// Room for bodies is counted in so many bytes.
const BODY_UNIT: usize = 1024;

/// Room that a body has before the first of it has come.
const FIRST_ROOM: usize = 64 << 10;

/// How long a body that has some room waits for more.
const MORE_ROOM_TIME: Duration = Duration::from_secs(5);

/// Who is refused before its body was read may still send so much of it; then the connection is closed.
const HEARD_OUT: usize = 256 << 20;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// Whether a path takes POST; all others take GET.
pub(crate) fn is_post(path: &str) -> bool {
    path == CHAT || path == TEXT
}

/// All of it.
pub(crate) fn router(
    config: Config,
    model: Model,
    generator: Arc<dyn Generator>,
    phase: watch::Receiver<Phase>,
) -> std::io::Result<Router> {
    let cors = access::cors(&config.cors_origins)?;
    let openapi = crate::openapi::document(&model, &config);
    let keys = Keys::new(&config.api_keys);
    let grammars = Grammars::start(&model, &config)?;
    let knows = match &model.template {
        Some(template) => template.tool_support(&model.tokenizer),
        None => ToolSupport::None,
    };
    let bodies = Semaphore::new(units(config.max_inflight_body_bytes.max(config.max_body_bytes)) as usize);
    let counted = Arc::default();
    let app =
        App { config, keys, model, generator, metrics: counted, phase, grammars, knows, bodies, openapi };
    let app = Arc::new(app);
    let v1 = Router::new()
        .route(CHAT, post(chat))
        .route(TEXT, post(text))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model_by_id))
        // Within the record, so that it says what became of the request.
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn_with_state(app.clone(), admit))
        .layer(middleware::from_fn_with_state(app.clone(), keep_record));
    let router = Router::new()
        .route("/health", get(async || Json(json!({ "status": "alive" }))))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(description))
        .merge(v1)
        .method_not_allowed_fallback(wrong_method)
        .fallback(unknown_path)
        .layer(CatchPanicLayer::custom(panicked))
        .with_state(app);
    Ok(match cors {
        Some(cors) => router.layer(cors),
        None => router,
    })
}

/// The units of so many bytes; a body of none takes one, too.
fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BODY_UNIT)).map_or(MOST_UNITS, |units| units.clamp(1, MOST_UNITS))
}

/// As many as a semaphore can be asked for, on any machine: 256 GiB.
const MOST_UNITS: u32 = 1 << 28;

/// What became of a handler that panicked; the panic itself has gone to standard error.
fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    Error::Internal.into_response()
}

/// Starts a request's record, and says in it how the request ended where that is known by the head of its response.
async fn keep_record(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    let record = Arc::new(Record::new(method, path, app.metrics.clone()));
    request.extensions_mut().insert(record.clone());
    let mut response = next.run(request).await;
    match response.extensions().get::<Error>() {
        Some(error) => record.outcome(error.code()),
        None if is_stream(response.headers()) => {}
        None => record.outcome("success"),
    }
    let id = HeaderValue::from_str(&record.id).expect("digits are allowed in headers");
    response.headers_mut().insert("x-request-id", id);
    response
}

fn is_stream(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"))
}

/// Lets in who bears a key.
async fn admit(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if app.keys.admit(request.headers()) {
        return next.run(request).await;
    }
    app.hear_out(request).await;
    Error::Unauthorized.into_response()
}

async fn wrong_method(State(app): State<Arc<App>>, request: Request) -> Error {
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    app.hear_out(request).await;
    Error::WrongMethod { method, path }
}

async fn unknown_path(State(app): State<Arc<App>>, request: Request) -> Error {
    let path = request.uri().path().to_owned();
    app.hear_out(request).await;
    Error::UnknownPath(path)
}

async fn ready(State(app): State<Arc<App>>) -> Result<Response, Error> {
    app.ready()?;
    let limit = app.config.probe_timeout;
    if !tokio::time::timeout(limit, app.generator.probe()).await.unwrap_or(false) {
        // A loss that the probe has found is the better reason.
        app.ready()?;
        let reason = format!("the GPU did not answer within {} s", limit.as_secs_f64());
        return Err(Error::Unready(reason));
    }
    Ok(Json(json!({ "status": "ready" })).into_response())
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    // Some are read from files of a driver, which may take its time.
    let of_generator = app.clone();
    let gauges =
        tokio::task::spawn_blocking(move || of_generator.generator.gauges()).await.unwrap_or_default();
    let text = app.metrics.render(&app.generator.status(), app.ready().is_ok(), &gauges);
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response()
}

async fn description(State(app): State<Arc<App>>) -> Json<Value> {
    Json(app.openapi.clone())
}

async fn models(State(app): State<Arc<App>>) -> Json<ModelList> {
    Json(ModelList::new(vec![ModelInfo::new(&app.model)]))
}

async fn model_by_id(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelInfo>, Error> {
    match id {
        Ok(Path(id)) if id == app.model.id => Ok(Json(ModelInfo::new(&app.model))),
        Ok(Path(id)) => Err(Error::UnknownModel(id)),
        // A name that is no text is no model's.
        Err(_) => Err(Error::UnknownModel("that is no UTF-8".into())),
    }
}

async fn chat(
    State(app): State<Arc<App>>,
    Extension(record): Extension<Arc<Record>>,
    request: Request,
) -> Result<Response, Error> {
    app.complete(Form::Chat, record, request).await
}

async fn text(
    State(app): State<Arc<App>>,
    Extension(record): Extension<Arc<Record>>,
    request: Request,
) -> Result<Response, Error> {
    app.complete(Form::Text, record, request).await
}

impl App {
    fn ready(&self) -> Result<(), Error> {
        if *self.phase.borrow() != Phase::Open {
            return Err(Error::stopping());
        }
        self.generator.not_ready().map_or(Ok(()), |reason| Err(Error::Unready(reason)))
    }

    /// From a body to an answer.
    async fn complete(
        self: Arc<App>,
        form: Form,
        record: Arc<Record>,
        request: Request,
    ) -> Result<Response, Error> {
        if !is_json(request.headers()) {
            self.hear_out(request).await;
            return Err(Error::NotJson);
        }
        if let Some(refused) = self.generator.admission_error() {
            self.hear_out(request).await;
            return Err(refused.into());
        }
        let mut asked = self.read(form, request, &record).await?;
        record.model(&asked.options.model);
        self.ready()?;
        self.hold(&mut asked).await?;
        let mut running = self.submit(&mut asked, &record)?;
        let (streams, usage) = (asked.options.streams(), asked.options.streams_usage());
        // What was said may be large, and the wait long.
        drop(asked);
        // What never begins is refused by its status, streams too.
        let limit = self.config.queue_timeout;
        tokio::time::timeout(limit, running.begun()).await.map_err(|_| Error::QueueTooSlow(limit))??;
        if streams { Ok(running.stream(usage, &self.config)) } else { running.whole().await }
    }

    /// Takes a body in and reads it. Its room is its own until what it asks for is known: as JSON it is many times larger.
    async fn read(
        self: &Arc<App>,
        form: Form,
        request: Request,
        record: &Arc<Record>,
    ) -> Result<Asked, Error> {
        let limit = self.config.max_body_bytes;
        let said = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        // Room is taken as bytes come: who says much and sends nothing keeps nobody out.
        let first = said.map_or(limit, |said: usize| said.min(limit)).min(FIRST_ROOM);
        let mut room = self.room(first, self.config.body_timeout).await?;
        let body = self.body(request.into_body(), &mut room).await?;
        let (app, id) = (self.clone(), record.id.clone());
        let read = move || {
            let asked = Asked::read(
                form,
                &body,
                &app.model,
                &app.knows,
                &app.config,
                app.generator.context_length(),
            )?;
            if app.config.log_prompts {
                for request in &asked.requests {
                    let prompt = app.model.tokenizer.decode(&request.prompt, DecodeSpecial::Keep);
                    tracing::info!(id, prompt, "prompt");
                }
            }
            Ok(asked)
        };
        let asked = tokio::task::spawn_blocking(read).await.map_err(|error| {
            tracing::error!(id = record.id, %error, "a request could not be read");
            Error::Internal
        })?;
        drop(room);
        asked
    }

    /// Gives every answer what it is held to.
    async fn hold(&self, asked: &mut Asked) -> Result<(), Error> {
        let Some(shape) = asked.shape.take() else { return Ok(()) };
        let matchers = self.grammars.matchers(shape, asked.requests.len()).await?;
        for (request, matcher) in asked.requests.iter_mut().zip(matchers) {
            request.grammar = Some(Box::new(matcher));
        }
        Ok(())
    }

    /// Hands all requests in. If one of them is refused, those before it are cancelled by being dropped.
    fn submit(&self, asked: &mut Asked, record: &Arc<Record>) -> Result<Running, Error> {
        let deadline = record.started + self.config.request_timeout;
        let n = asked.options.n();
        let mut choices = Vec::new();
        for (mut request, index) in std::mem::take(&mut asked.requests).into_iter().zip(0..) {
            let (text, said) = asked.text(&self.model)?;
            let prompt = request.prompt.len() as u32;
            request.deadline = Some(deadline);
            let answer = self.generator.submit(request)?;
            if u32::is_multiple_of(index, n) {
                record.prompt(prompt);
            }
            let usage = Usage { prompt_tokens: prompt, ..Usage::default() };
            let record = record.clone();
            choices.push(Choice { index, answer, text, said, usage, deadline, record });
        }
        let prefix = match asked.form {
            Form::Chat => "chatcmpl",
            Form::Text => "cmpl",
        };
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let head = Head { id: format!("{prefix}-{}", record.id), created, model: self.model.id.clone() };
        let echoes = std::mem::take(&mut asked.echoes);
        let tokenizer = self.model.tokenizer.clone();
        let (calls, record) = (asked.calling.is_some(), record.clone());
        Ok(Running { form: asked.form, head, choices, echoes, n, calls, tokenizer, record })
    }

    /// Reads a body that nobody wants, for as long as one may take and up to a size: a client that is still sending when its connection is
    /// closed would not see why.
    async fn hear_out(&self, request: Request) {
        let mut chunks = request.into_body().into_data_stream();
        let read = async {
            let mut length = 0;
            while let Some(Ok(chunk)) = chunks.next().await
                && length < HEARD_OUT
            {
                length += chunk.len();
            }
        };
        // Whether it came to its end or not, the answer is the same.
        let _ = tokio::time::timeout(self.config.body_timeout, read).await;
    }

    /// Room for so many bytes of a body.
    async fn room(&self, bytes: usize, wait: Duration) -> Result<SemaphorePermit<'_>, Error> {
        let room = tokio::time::timeout(wait, self.bodies.acquire_many(units(bytes))).await;
        room.ok().and_then(Result::ok).ok_or(Error::QueueFull(wait))
    }

    /// The whole body, within its limits. One that is too large is heard out, too.
    async fn body<'a>(&'a self, body: Body, room: &mut SemaphorePermit<'a>) -> Result<Vec<u8>, Error> {
        let limit = self.config.max_body_bytes;
        let mut bytes = Vec::new();
        let mut length = 0;
        let read = async {
            let mut chunks = body.into_data_stream();
            while let Some(chunk) = chunks.next().await {
                let wrong = |error| Error::Invalid { param: None, message: format!("the body: {error}") };
                let chunk = chunk.map_err(wrong)?;
                length += chunk.len();
                if length <= limit {
                    let more = (units(length) as usize).saturating_sub(room.num_permits());
                    if more > 0 {
                        // Not for long: those who wait for more with what they have could wait for each other.
                        room.merge(self.room(more * BODY_UNIT, MORE_ROOM_TIME).await?);
                    }
                    bytes.extend_from_slice(&chunk);
                } else if length > HEARD_OUT {
                    break;
                } else {
                    bytes = Vec::new();
                }
            }
            Ok::<(), Error>(())
        };
        let read = tokio::time::timeout(self.config.body_timeout, read).await;
        if length > limit {
            return Err(Error::BodyTooLarge(limit));
        }
        read.map_err(|_| Error::BodyTooSlow(self.config.body_timeout))??;
        Ok(bytes)
    }
}

/// Only a body that says it is JSON is taken: a page of another origin cannot send that without asking first, so that none
/// makes the GPU work behind its reader's back, unless a name of its own leads to this machine.
fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media = value.split(';').next().unwrap_or_default().trim();
    media.eq_ignore_ascii_case("application/json")
}
