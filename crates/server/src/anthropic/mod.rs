//! Anthropic's Messages API: requests (`request`, `content`, `tools`), which `conversation` turns into messages for the
//! chat template, and responses (`response`, `models`, `error`), which `writer` makes of the output.
//!
//! Unknown fields are ignored, such as `cache_control`; those that would change the response but are not implemented
//! are rejected (`unsupported`). A known field with a wrong type or an invalid value is an error that names it.

mod content;
mod conversation;
mod error;
mod handlers;
mod models;
mod request;
mod response;
mod tools;
mod unsupported;
mod writer;

pub(crate) use error::{ErrorBody, render_errors};
pub(crate) use handlers::{count_tokens, messages};
pub(crate) use models::{ModelInfo, ModelList, VERSION_HEADER};
pub(crate) use request::{CountTokensRequest, MessagesRequest};
pub(crate) use response::{Message, StreamEvent, TokenCount};
pub(crate) use tools::NAME_PATTERN;
