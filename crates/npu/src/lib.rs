//! AMD's XDNA NPU without XRT: from an overlay's file to the result of a matrix product.
//!
//! | module | what it is |
//! |---|---|
//! | [`uapi`] | structures and numbers of the kernel's `amdxdna` driver |
//! | [`xclbin`] | overlays: container, partition, PDI, CDO; reader and writer |
//! | [`txn`] | instruction streams: encoder, decoder, disassembler |
//! | [`tile`] | addresses and registers of the tile array |
//! | [`gemm`] | matrix products of any shape: overlays by hash, one of our own, and a generator of streams |
//! | [`array`](mod@array) | a model of the tile array that runs an overlay and a stream on the CPU |
//! | [`bundle`] | programs of the cores: bundles and their slots; reader and writer |
//! | [`isa`] | the cores' instructions: assembler, disassembler, decoder |
//! | [`runtime`] | the driver: heap, buffers, contexts, commands, waits; and a fake driver with the model behind it |
//! | [`matmul`] | exact products for an engine: tested at the start, given up after an error |
//! | [`linear`] | products of floats, rounded to 16 bits, on an int8 overlay |
//! | [`report`] | which operations use the NPU, and why: for logs, `/health` and metrics |
//! | [`settings`] | how the models of a process use the NPU |
//! | [`selftest`] | exact products on an overlay, compared with the CPU |
//!
//! Not yet run on hardware by us. What can be checked without hardware is checked: sizes and numbers of
//! the driver's interface, files bit by bit, and results in the array model.

pub mod array;
pub mod bundle;
pub mod error;
pub mod gemm;
pub mod isa;
pub mod linear;
pub mod matmul;
pub mod report;
pub mod runtime;
pub mod selftest;
pub mod settings;
pub mod tile;
pub mod txn;
pub mod uapi;
pub mod xclbin;

mod bytes;

pub use error::{Error, Format, Result};
