//! Tensor encodings, weight layouts and quantisation arithmetic: everything about stored numbers that needs
//! no GPU.
//!
//! | question | answer |
//! |---|---|
//! | How does a file store a tensor? | [`Encoding`]: GGUF block formats, floats, layerwise integers, native tiles |
//! | How does the GPU store a weight matrix? | [`Scheme`] (the number format) and [`Layout`] (strips, quads, scale plane) |
//! | How do numbers get from one to the other? | [`quant`]: dequantise, transcode, quantise, and the error of each |
//! | How does the KV cache store its elements? | [`KvScheme`] |
//!
//! The crate depends on neither Vulkan nor the shader compiler. Kernels compute with these layouts, and are
//! tested against this arithmetic.
//!
//! ```
//! use tensor::{Encoding, Layout, Scheme, quant};
//!
//! // A row of 64 floats, quantised to 4 bits and packed into the tile layout of the GPU.
//! let values: Vec<f32> = (0..64).map(|k| (k as f32 - 31.5) / 32.0).collect();
//! let groups = quant::quantize(&values, Scheme::Int4)?;
//! let layout = Layout::new(Scheme::Int4, 1, 64).expect("64 columns are two groups");
//! assert_eq!(layout.pack_values(&groups.q).len(), layout.value_bytes());
//! assert!(quant::relative_rmse(&values, &groups.dequantize()) < 0.1);
//!
//! // Files encode tensors in their own formats; each has one scheme on the GPU.
//! assert_eq!(Encoding::Q4K.scheme(), Scheme::Int4Min);
//! # Ok::<(), quant::QuantError>(())
//! ```

mod encoding;
mod kv;
mod layout;
pub mod quant;

pub use encoding::Encoding;
pub use kv::{KV_INT8_GROUP, KvScheme};
pub use layout::{GROUP, Layout, QUAD, STRIP, Scheme};
