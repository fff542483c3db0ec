//! Types of OpenAI's API: requests (`options`, `chat`, `completions`, `tools`, `format`) and responses (`response`,
//! `logprobs`, `timings`).
//!
//! A body is parsed to JSON once and read twice: as [`Options`], the fields that both endpoints share, and as the
//! fields of its endpoint. (One type with a flattened field would lose the path of an error.) Unknown fields
//! are ignored, as OpenAI does, except those of other servers that would change the response (`unsupported`); a known field with a wrong type or an invalid value is an error that names it.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod format;
mod image_url;
pub(crate) mod logprobs;
pub(crate) mod options;
mod parse;
pub(crate) mod response;
mod timings;
pub(crate) mod tools;
mod unsupported;

pub(crate) use chat::ChatRequest;
pub(crate) use completions::{CompletionRequest, Prompt};
pub(crate) use format::{Constraint, ConstraintKind};
pub(crate) use image_url::{ImageSource, ImageUrl, decode_data, take_images};
pub(crate) use logprobs::{ChatLogprobs, TextLogprobs};
pub(crate) use options::{MAX_BIASES, Options};
pub(crate) use parse::{parse, parse_json};
pub(crate) use response::*;
pub(crate) use timings::Timings;
pub(crate) use tools::{FunctionCall, FunctionCallDelta, ToolCall, ToolCallDelta, ToolOptions, ToolType};
pub(crate) use unsupported::check_unsupported;
