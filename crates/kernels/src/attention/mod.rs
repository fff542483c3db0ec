//! Attention: RoPE with the write into the KV cache, and softmax(q · kᵀ) · v over its pages.
//!
//! | module | used for |
//! |---|---|
//! | [`decode`] | decode batches, one row per sequence: QK norm, RoPE, cache write and attention in one dispatch |
//! | [`rope`] | QK norm, RoPE and the cache write alone, before [`paged`] or [`flash`] |
//! | [`split_qkv`] | bias and the cache write alone, for heads without norms and RoPE (image encoders) |
//! | [`paged`] | any rows, on any device |
//! | [`flash`] | prefill on devices with cooperative matrices |
//!
//! [`kv`] describes the memory layout of the cache that all of them share.

pub mod decode;
pub mod flash;
pub mod kv;
pub mod paged;
pub mod rope;
pub mod split_qkv;
