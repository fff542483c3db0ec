//! A checkpoint's weights: what they need, where they go, and the way into GPU memory.

pub mod blueprint;
mod error;
pub mod load;
pub mod plan;
pub mod quantize;
pub mod stream;

pub use error::{Error, Result};
