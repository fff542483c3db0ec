//! The tests of this crate's API in one binary, which is built faster than one for each file.

#[path = "../common/mod.rs"]
mod common;
mod complete;
mod configs;
mod embedding;
mod folders;
mod gguf_hostile;
mod safetensors_hostile;
mod vision;
