//! Many requests, one GPU: who reads, who writes, and who waits.
//!
//! - An [`Engine`] is a handle: [`Engine::submit`] takes a [`Request`] and gives its [`EventStream`], a stream of [`Event`]s. Dropping the
//!   answer cancels the request.
//! - A thread of its own runs `schedule`: it owns the [`Backend`], lets a prompt be read and answers be written step by step, and is the
//!   only one that waits for the GPU.
//! - [`GpuBackend`] is the backend of a `model::Runner`; `testing` has one of plain arithmetic.
//! - [`Status`] is what a server tells of all this.
//!
//! docs/engine.md tells the design.

mod backend;
mod error;
mod events;
mod handle;
mod job;
mod request;
mod runner;
mod schedule;
mod status;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use backend::{Backend, BackendError, Capacity};
pub use error::{RequestError, SubmitError};
pub use events::{Event, EventStream, FinishReason, Token, Usage};
pub use handle::{Engine, Options};
pub use model::{DecodeRow, MixedOutput, PrefillChunk, Sampled, Sampling};
pub use request::Request;
pub use runner::GpuBackend;
pub use status::{Histogram, MemoryTraffic, Pages, Status};
pub use text::TokenConstraint;
