//! The tests of this crate's API in one binary, which is built faster than one for each file.

mod bytelevel;
mod call_syntaxes;
mod chat;
#[path = "../common/mod.rs"]
mod common;
mod gemma;
mod gemma4;
mod hostile;
mod images;
mod marks;
mod sentencepiece;
mod stop;
mod thinking;
mod tools;
mod vectors;
mod wordpiece;
