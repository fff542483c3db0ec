//! Ollama's API: requests (`request`, `options`, `conversation`, `embed`), responses (`response`, `error`), which `writer` makes
//! of the output, the models (`models`), and the store (`store`).
//!
//! Bodies are JSON, and streams are lines of JSON. Unknown fields and options are ignored, as Ollama does; those that
//! would change the response but are not implemented are rejected. A known field with a wrong type or an invalid value
//! is an error that names it.

mod conversation;
mod embed;
mod error;
mod handlers;
mod models;
mod options;
mod request;
mod response;
mod store;
mod writer;

pub(crate) use embed::{EmbedFields, EmbedResponse, EmbeddingsFields, EmbeddingsResponse, embed, embeddings};
pub(crate) use error::{ErrorBody, render_errors};
pub(crate) use handlers::{chat, generate};
pub(crate) use models::{
    ModelTags, RunningModels, ShowRequest, ShowResponse, Version, ps, show, tags, version,
};
pub(crate) use options::CommonFields;
pub(crate) use request::{ChatFields, GenerateFields};
pub(crate) use response::{ChatResponse, GenerateResponse};
pub(crate) use store::{
    DeleteRequest, PullRequest, PullStatus, delete, pull, refuse_blobs, refuse_copy, refuse_create,
    refuse_push,
};
