//! The tests of this crate's API in one binary, which is built faster than one for each file.

#[path = "../../../text/tests/common/mod.rs"]
mod common;
mod gemma;
mod gemma4;
mod qwen;
