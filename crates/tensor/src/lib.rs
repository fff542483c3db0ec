//! Tensor encodings, GPU weight layouts and quantisation arithmetic, all on the CPU.

mod encoding;
mod kv;
mod layout;
pub mod quant;

pub use encoding::Encoding;
pub use kv::{KV_INT8_GROUP, KvScheme};
pub use layout::{GROUP, Layout, QUAD, STRIP, Scheme};
