//! HTTP server for the inference engine, with the APIs of OpenAI, Anthropic and Ollama.
//!
//! The path of a completion, module by module:
//!
//! 1. `listen` accepts connections ([`Server`]); `connections` decides which ones give way when there are too many;
//!    `connection` serves one and notices when its client is gone.
//! 2. `router` maps paths to handlers, checks the host (`host`) and API keys (`auth`) and opens the request's span and
//!    log entry (`access_log`). Handlers share one `state`.
//! 3. `body` receives the body within limits of size, time and total memory (`budget`), or refuses it; `encoding`
//!    decompresses it.
//! 4. `models` finds the model that the body names, and loads it if need be; `served` is a loaded one.
//! 5. The module of the protocol (`openai`, `anthropic`, `ollama`) parses the body into a `request`: a conversation or prompts,
//!    sampling parameters, tools (`tools`), a `constraint`. Errors name the invalid field (`parse`, `unsupported`).
//!    Everything from here to the response is the same for all protocols.
//! 6. `images` decodes its images, which `fetch` may have fetched first. `request` then builds the engine requests with
//!    the chat template and the tokenizer.
//! 7. `grammars` compiles the constraint and tool schemas; `completion`, which drives these steps, submits the engine
//!    requests to a [`Generator`] and waits for admission.
//! 8. `choice` turns the engine's events into parts; `output` finds thinking, stop strings and tool calls in the text;
//!    `emitted` tracks which tokens are reported with logprobs; `timing` measures prefill and decoding.
//! 9. `response` collects the parts into one object, or streams them as server-sent events or lines; the protocol writes
//!    all of them.
//!    If the client disconnects, the streams are dropped, which cancels the engine's requests.
//! 10. `metrics` renders counters, gauges and histograms for Prometheus, [`stats`] the current state for monitors,
//!     `readiness` and `loads` what gateways ask; `traces` sends spans to a collector.
//!
//! `tokenize` turns text into tokens and back. `webui` serves the web UI at `/`, which uses the same API.
//!
//! The crate contains no GPU code. Its tests run over real sockets with a scripted generator.
//!
//! # Embedding
//!
//! [`router()`] returns the routes without a listener, to be merged into an existing axum application:
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use engine::{Engine, Options, testing::{MockBackend, MockOptions}};
//!
//! # async fn example(model: server::Model) -> std::io::Result<()> {
//! // A real application starts its engine with `engine::GpuBackend`.
//! let engine = Engine::start(MockBackend::new(MockOptions::default()), Options::default())?;
//! let (api, handle) = server::router(server::Config::default(), server::Models::one(server::LoadedModel::new(model, Arc::new(engine))))?;
//! let app = axum::Router::new().route("/", axum::routing::get(|| async { "Hello" })).merge(api);
//!
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8006").await?;
//! let shutdown = async move {
//!     tokio::time::sleep(std::time::Duration::from_secs(3600)).await;
//!     // New requests get 503 from here on.
//!     handle.drain();
//! };
//! axum::serve(listener, app).with_graceful_shutdown(shutdown).await
//! # }
//! ```

mod access_log;
mod anthropic;
mod auth;
mod body;
mod budget;
mod choice;
mod completion;
mod config;
mod connection;
mod connections;
mod constraint;
mod embedder;
mod embeddings;
mod emitted;
mod encoding;
mod error;
mod fetch;
mod generator;
mod grammars;
mod host;
mod images;
mod listen;
mod loads;
mod metrics;
mod min_tokens;
mod models;
mod ollama;
mod openai;
mod openapi;
mod output;
mod parse;
mod phase;
mod random;
mod readiness;
mod request;
mod response;
mod router;
mod served;
mod state;
pub mod stats;
mod time;
mod timing;
mod tokenize;
mod tools;
mod traces;
mod truncation;
mod unsupported;
mod webui;

pub use config::{Config, Model};
pub use embedder::{EmbedError, EmbeddedText, Embedder, EmbeddingInput, EmbeddingModel, EmbeddingOptions};
pub use generator::{Gauge, Generator};
pub use listen::{Handle, Server, router};
pub use models::{
    Capability, LoadControl, LoadedModel, Machine, ModelDescription, ModelFacts, ModelLoader, ModelStore,
    Models, NpuOperation, OpenModel, Pool, PoolOptions, PullProgress, StoreError,
};
