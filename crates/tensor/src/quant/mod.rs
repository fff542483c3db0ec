//! Quantisation arithmetic: dequantising file encodings, transcoding them to GPU schemes, and quantising
//! floats.
//!
//! This is plain CPU arithmetic, written to be read. The GPU kernels are tested against it, and it follows
//! ggml operation by operation: [`dequantize`] returns the same bits as the `gguf` Python package.
//!
//! A file's [`Encoding`](crate::Encoding) becomes one of the GPU's [`Scheme`](crate::Scheme)s. [`scheme_for`]
//! states which one, and the rounding error; [`transcode()`] and [`transcode_layerwise`] convert, and reject
//! invalid scales ([`check_scales`]). [`quantize()`] converts floats to `int8` and `int4`.
//!
//! No product of a scale and an integer needs more than the 24 significant bits of an f32: 11 (f16) + 8
//! (integer), or 17 (sub-scale of a K-quant) + 5. Fusing the multiplication with the addition of the minimum
//! therefore does not change the result, whether or not a compiler or GPU fuses them.

mod blocks;
mod error;
mod exactness;
mod groups;
mod layerwise;
mod quantize;
mod transcode;

pub use blocks::dequantize;
pub use error::QuantError;
pub use exactness::{Exactness, INT8_ERROR, K_QUANT_ERROR, scheme_for};
pub use groups::Groups;
pub use layerwise::{LAYERWISE_GROUP, dequantize_layerwise, layerwise_scales, transcode_layerwise};
pub use quantize::{Rmse, quantize, relative_rmse};
pub use transcode::{check_scales, transcode};
