//! Routes and middleware.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, Uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::sync::watch;
use tower_http::catch_panic::CatchPanicLayer;
use tracing::Instrument;

use crate::access_log::{LogEntry, REQUEST_ID};
use crate::anthropic;
use crate::auth;
use crate::completion::{blocking, check_headers};
use crate::config::Config;
use crate::error::Error;
use crate::loads::{loads, model_info, server_info, version};
use crate::metrics::{self, Metrics};
use crate::models::{Models, Pool, find_named};
use crate::ollama;
use crate::openai::{self, responses};
use crate::openapi;
use crate::phase::Phase;
use crate::readiness::ready;
use crate::response::NDJSON;
use crate::state::AppState;
use crate::stats::{stats, stats_stream};
use crate::tokenize;
use crate::traces::Traces;
use crate::webui::webui;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const EMBEDDINGS: &str = "/v1/embeddings";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const COUNT_TOKENS: &str = "/v1/messages/count_tokens";
const TOKENIZE: &str = "/tokenize";
const DETOKENIZE: &str = "/detokenize";

/// What is at the path `/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    WebUi,
    /// A line of text.
    Text,
    /// Nothing: it is the path of the application that the routes are part of.
    Application,
}

/// What a server consists of beside its listener.
pub(crate) struct Routes {
    pub(crate) router: Router,
    pub(crate) models: Pool,
    /// To be closed when the server ends.
    pub(crate) traces: Option<Arc<Traces>>,
}

/// All routes of a server.
pub(crate) fn routes(
    config: Config,
    models: Models,
    phase: watch::Receiver<Phase>,
    root: Root,
) -> std::io::Result<Routes> {
    let cors = auth::cors_layer(&config.cors_origins)?;
    let app = Arc::new(AppState::new(config, models, phase)?);
    let checked = middleware::from_fn_with_state(app.clone(), check_generation);
    let checked_count = middleware::from_fn_with_state(app.clone(), check_body);
    // Paths of Ollama's API.
    let api = Router::new()
        .route("/api/chat", post(ollama::chat).route_layer(checked.clone()))
        .route("/api/generate", post(ollama::generate).route_layer(checked.clone()))
        .route("/api/embed", post(ollama::embed).route_layer(checked_count.clone()))
        .route("/api/embeddings", post(ollama::embeddings).route_layer(checked_count.clone()))
        .route("/api/show", post(ollama::show).route_layer(checked_count.clone()))
        .route("/api/pull", post(ollama::pull).route_layer(checked_count.clone()))
        .route("/api/delete", delete(ollama::delete).route_layer(checked_count.clone()))
        .route("/api/copy", post(ollama::refuse_copy))
        .route("/api/create", post(ollama::refuse_create))
        .route("/api/push", post(ollama::refuse_push))
        .route("/api/blobs/{digest}", post(ollama::refuse_blobs).head(ollama::refuse_blobs))
        .route("/api/tags", get(ollama::tags))
        .route("/api/ps", get(ollama::ps))
        .route("/api/version", get(ollama::version));
    let v1 = Router::new()
        .merge(api)
        .route(CHAT, post(openai::chat).route_layer(checked.clone()))
        .route(COMPLETIONS, post(openai::completions).route_layer(checked.clone()))
        .route(EMBEDDINGS, post(openai::embeddings).route_layer(checked_count.clone()))
        .route(RESPONSES, post(responses::create).route_layer(checked.clone()))
        .route("/v1/responses/{id}", get(responses::retrieve).delete(responses::delete))
        .route("/v1/responses/{id}/cancel", post(responses::cancel))
        .route("/v1/responses/{id}/input_items", get(responses::input_items))
        .route(MESSAGES, post(anthropic::messages).route_layer(checked))
        .route(COUNT_TOKENS, post(anthropic::count_tokens).route_layer(checked_count.clone()))
        .route(TOKENIZE, post(tokenize::tokenize).route_layer(checked_count.clone()))
        .route(DETOKENIZE, post(tokenize::detokenize).route_layer(checked_count))
        .route("/v1/models", get(list_models))
        .route("/v1/models/{*id}", get(model_by_id))
        // Inside the access log, which records a panic as the request's outcome.
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn_with_state(app.clone(), authorize))
        .layer(middleware::from_fn_with_state(app.clone(), log_request));
    // Asked every second by monitors and gateways: not logged.
    let state_routes = Router::new()
        .route("/stats", get(stats))
        .route("/stats/stream", get(stats_stream))
        .route("/v1/loads", get(loads))
        .route("/version", get(version))
        .route("/server_info", get(server_info))
        .route("/get_server_info", get(server_info))
        .route("/model_info", get(model_info))
        .route("/get_model_info", get(model_info))
        .layer(middleware::from_fn_with_state(app.clone(), authorize));
    let root = match root {
        Root::WebUi => Router::new().route("/", get(webui)),
        // Ollama's clients ask there whether a server is running.
        Root::Text => Router::new().route("/", get(async || "Indrik is running")),
        Root::Application => Router::new(),
    };
    let router = Router::new()
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/metrics", get(prometheus))
        .route("/openapi.json", get(openapi))
        .merge(v1)
        .merge(state_routes)
        .merge(root)
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(unknown_path)
        .layer(CatchPanicLayer::custom(panicked))
        .with_state(app.clone());
    let router = match cors {
        Some(cors) => router.layer(cors),
        None => router,
    };
    let (models, traces) = (app.models.clone(), app.traces.clone());
    let router = router.layer(middleware::from_fn_with_state(app, check_host));
    let router = router.layer(middleware::from_fn(anthropic::render_errors));
    Ok(Routes { router: router.layer(middleware::from_fn(ollama::render_errors)), models, traces })
}

/// `GET /health`: liveness, and the operations of loaded models that may run on an NPU, if there are any.
async fn health(State(app): State<Arc<AppState>>) -> Json<Value> {
    let operations = app.machine.as_ref().map(|machine| machine.npu_operations()).unwrap_or_default();
    Json(match operations.is_empty() {
        true => json!({ "status": "alive" }),
        false => json!({ "status": "alive", "npu": operations }),
    })
}

/// A URI without double slashes and slashes at the end of its path, as base URLs with a slash produce them; `None` if it
/// has none.
pub(crate) fn normalise_path(uri: &Uri) -> Option<Uri> {
    let path = uri.path();
    let has_extra_slash = path.contains("//") || path.len() > 1 && path.ends_with('/');
    if !has_extra_slash {
        return None;
    }
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = format!("/{}{query}", segments.join("/")).parse().ok();
    Uri::from_parts(parts).ok()
}

/// Response of a handler that panicked. The panic hook has printed the message to standard error.
fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    Error::Internal.into_response()
}

/// Runs a request in its span, with its log entry. Sets the outcome, except of streams: they set it when they end.
async fn log_request(State(app): State<Arc<AppState>>, mut request: Request, next: Next) -> Response {
    let log = log_entry(&app, &request);
    request.extensions_mut().insert(log.clone());
    let response = next.run(request).instrument(log.span.clone()).await;
    with_outcome(&log, response)
}

fn log_entry(app: &AppState, request: &Request) -> Arc<LogEntry> {
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    let (metrics, traces) = (app.metrics.clone(), app.traces.clone());
    Arc::new(LogEntry::new(method, path, request.headers(), metrics, traces))
}

/// Sets the outcome of a request, and the request id of its response.
fn with_outcome(log: &LogEntry, mut response: Response) -> Response {
    match response.extensions().get::<Error>() {
        Some(error) => log.set_outcome(error.code()),
        None if is_stream(response.headers()) => {}
        None => log.set_outcome("success"),
    }
    let id = HeaderValue::from_str(&log.id).expect("an id is printable ASCII");
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

fn is_stream(headers: &HeaderMap) -> bool {
    let is = |media_type: &str| {
        headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(media_type.as_bytes()))
    };
    is("text/event-stream") || is(NDJSON)
}

async fn check_host(State(app): State<Arc<AppState>>, request: Request, next: Next) -> Response {
    match app.hosts.check(&request) {
        Ok(()) => next.run(request).await,
        Err(error) => {
            let log = log_entry(&app, &request);
            with_outcome(&log, app.bodies.refuse(request, error))
        }
    }
}

async fn authorize(State(app): State<Arc<AppState>>, request: Request, next: Next) -> Response {
    match app.keys.authorize(request.headers()) {
        true => next.run(request).await,
        false => app.bodies.refuse(request, Error::Unauthorized),
    }
}

/// Refuses bodies that would be rejected whatever they contain.
async fn check_body(State(app): State<Arc<AppState>>, request: Request, next: Next) -> Response {
    match check_headers(&app, request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => app.bodies.refuse(request, error),
    }
}

/// [`check_body`] for requests to the engine, which may be overloaded.
async fn check_generation(State(app): State<Arc<AppState>>, request: Request, next: Next) -> Response {
    let accepted = check_headers(&app, request.headers()).and_then(|()| match app.models.would_reject() {
        Some(rejected) => Err(rejected.into()),
        None => Ok(()),
    });
    match accepted {
        Ok(()) => next.run(request).await,
        Err(error) => app.bodies.refuse(request, error),
    }
}

async fn method_not_allowed(State(app): State<Arc<AppState>>, request: Request) -> Response {
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    let allowed = match path.as_str() {
        CHAT | COMPLETIONS | EMBEDDINGS | RESPONSES | MESSAGES | COUNT_TOKENS | TOKENIZE | DETOKENIZE => {
            "POST"
        }
        "/api/delete" => "DELETE",
        "/api/tags" | "/api/ps" | "/api/version" => "GET, HEAD",
        blob if blob.starts_with("/api/blobs/") => "HEAD, POST",
        api if api.starts_with("/api/") => "POST",
        path => match path.strip_prefix(RESPONSES).and_then(|rest| rest.rsplit_once('/')) {
            Some(("", _)) => "GET, HEAD, DELETE",
            Some((_, "cancel")) => "POST",
            _ => "GET, HEAD",
        },
    };
    app.bodies.refuse(request, Error::MethodNotAllowed { method, path, allowed })
}

async fn unknown_path(State(app): State<Arc<AppState>>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    app.bodies.refuse(request, Error::UnknownPath(path))
}

async fn prometheus(State(app): State<Arc<AppState>>) -> Response {
    // Some gauges are read from sysfs, where a driver may block.
    let (machine, status) = (app.machine.clone(), app.models.status());
    let read = move || {
        let gauges = machine.map(|machine| machine.gauges(&status)).unwrap_or_default();
        (status, gauges)
    };
    let (status, gauges) = tokio::task::spawn_blocking(read).await.unwrap_or_default();
    let traces = app.traces.as_ref().map(|traces| traces.counts());
    let mut text = app.metrics.render(&status, app.check_ready().is_ok(), &gauges, traces);
    if app.config.vllm_metrics {
        text += &Metrics::render_as_vllm(&app.models.engines());
    }
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response()
}

async fn openapi(State(app): State<Arc<AppState>>) -> Result<Json<Value>, Error> {
    let models = app.models.list().await?;
    // The limits of a server's only model.
    let only = match &*models {
        [model] => app.models.peek(&model.id),
        _ => None,
    };
    let document =
        move || Ok(openapi::document(&models, only.as_ref().map(|served| &served.model), &app.config));
    blocking(document).await.map(Json)
}

async fn list_models(State(app): State<Arc<AppState>>, headers: HeaderMap) -> Result<Response, Error> {
    let models = app.models.list().await?;
    Ok(match headers.contains_key(anthropic::VERSION_HEADER) {
        true => Json(anthropic::ModelList::new(&models)).into_response(),
        false => Json(openai::ModelList::new(&models)).into_response(),
    })
}

async fn model_by_id(
    State(app): State<Arc<AppState>>,
    headers: HeaderMap,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Error> {
    let Path(id) = id.map_err(|_| Error::UnknownModel("(not UTF-8)".into()))?;
    let models = app.models.list().await?;
    let Some(model) = find_named(&models, &id) else {
        return Err(Error::UnknownModel(id));
    };
    Ok(match headers.contains_key(anthropic::VERSION_HEADER) {
        true => Json(anthropic::ModelInfo::new(model)).into_response(),
        false => Json(openai::ModelInfo::new(model)).into_response(),
    })
}
