//! OpenAI's API: requests (`options`, `chat`, `completions`, `tools`, `format`, `image_url`), which `request` turns
//! into those of the engine, and responses (`response`, `logprobs`, `timings`, `error`), which `writer` makes of their
//! output. `embeddings` is apart: it needs no engine.
//!
//! `responses` is the Responses API; what follows is true of the other two endpoints.
//!
//! A body is parsed to JSON once and read twice: as [`Options`], the fields that both endpoints share, and as the
//! fields of its endpoint. (One type with a flattened field would lose the path of an error.) Unknown fields
//! are ignored, as OpenAI does, except those of other servers that would change the response (`unsupported`); a known
//! field with a wrong type or an invalid value is an error that names it.

mod chat;
mod completions;
mod embeddings;
mod error;
mod format;
mod handlers;
mod image_url;
mod logprobs;
mod options;
mod request;
mod response;
pub(crate) mod responses;
mod timings;
pub(crate) mod tools;
mod unsupported;
mod writer;

pub(crate) use chat::ChatRequest;
pub(crate) use completions::CompletionRequest;
pub(crate) use embeddings::{EmbeddingList, EmbeddingsRequest, embeddings};
pub(crate) use error::ErrorBody;
pub(crate) use handlers::{chat, completions};
pub(crate) use logprobs::{ChatLogprobs, MAX_CHAT_LOGPROBS, TextLogprobs, TokenLogprob, token_text};
pub(crate) use options::Options;
pub(crate) use request::parse_chat;
pub(crate) use response::*;
