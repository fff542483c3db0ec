//! Matrix products of quantised weights and activations, and what surrounds them.
//!
//! | module | used for |
//! |---|---|
//! | [`gemv`] | up to 8 columns (decode) |
//! | [`gemv_norm`] | the norm before them, where it is not their prologue |
//! | [`gemm`] | more columns, on any device |
//! | [`coopmat`] | more columns, on cooperative matrices |
//! | [`gated`] | GeGLU or SwiGLU of a gate and an up product that were computed separately |
//! | [`quantize_rows`] | f32 activations to int16 or f16, the input of a product |
//! | [`prefetch`] | loads the start of the next weights into the cache while another kernel runs |
//! | [`tuning`] | times GEMV variants on the device and remembers the fastest |
//!
//! [`common`] holds what they share: epilogues, targets and the CPU reference.

pub mod common;
pub mod coopmat;
pub mod gated;
pub mod gemm;
pub mod gemv;
pub mod gemv_norm;
pub mod prefetch;
pub mod quantize_rows;
pub mod tuning;
