//! The tests of this crate's API in one binary, which is built faster than one for each file.

#[path = "../common/mod.rs"]
mod common;
mod damaged;
mod draft;
mod embeddings;
mod gemma3_270m;
mod images;
mod instruct_models;
mod kv_cache;
mod language;
mod logits;
mod masks;
mod mixed;
mod npu;
mod npu_fallback;
mod prefill;
mod prefix;
mod prefix_disk;
#[path = "../common/reference.rs"]
mod reference;
mod runs;
mod sampling;
mod tuning;
mod verify;
