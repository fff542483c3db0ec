//! The tests of this crate's API in one binary, which is built faster than one for each file.

mod call_syntaxes;
#[path = "../common/mod.rs"]
mod common;
mod completions;
mod dashboard;
mod embeddings;
mod formats;
mod gateway;
mod hostile;
mod images;
mod limits;
mod logprobs;
mod messages;
mod messages_errors;
mod messages_stream;
mod models;
mod observe;
mod ollama;
mod ollama_errors;
mod ollama_models;
mod ollama_stream;
mod responses;
mod responses_errors;
mod responses_store;
mod responses_stream;
mod stats;
mod thinking;
mod tokenize;
mod tools;
mod traces;
mod webui;
