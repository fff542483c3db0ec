//! AMD's XDNA NPU without XRT: overlays, instruction streams and the driver's interface.
//!
//! | module | what it is |
//! |---|---|
//! | [`uapi`] | structures and numbers of the kernel's `amdxdna` driver |
//! | [`xclbin`] | overlays: container, partition, PDI, CDO; reader and writer |
//! | [`txn`] | instruction streams: encoder, decoder, disassembler |
//! | [`tile`] | addresses and registers of the tile array |
//!
//! None of this has run on hardware by us yet. What can be checked without hardware is checked: sizes and numbers of
//! the driver's interface, and files bit by bit.

pub mod error;
pub mod tile;
pub mod txn;
pub mod uapi;
pub mod xclbin;

mod bytes;

pub use error::{Error, Format, Result};
