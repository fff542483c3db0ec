//! Continuous-batching scheduler: many requests share one GPU.
//!
//! A request passes through three states. It is *waiting* in the queue until there are a sequence and KV
//! pages for it; *prefilling* while its prompt runs through the model in chunks; and *decoding* while it
//! generates a token per step. Requests join and leave the batch between steps. Scheduling is first come,
//! first served: when pages run out, the youngest running request is preempted, and recomputed once another
//! has finished.
//!
//! | module | contents |
//! |---|---|
//! | `handle` | [`Engine`]: a cheap handle to submit requests, read the status, drain and stop |
//! | `request`, `events`, `error` | [`Request`], its [`EventStream`], and the errors of both directions |
//! | `inbox` | state shared by the handles and the engine thread |
//! | `schedule` | the engine thread: admission, steps, preemption, recovery of a lost device |
//! | `speculate` | speculative decoding: drafts of the next tokens, and how many of them pay |
//! | `backend`, `gpu_backend` | [`Backend`]: the interface to a model; [`GpuBackend`] runs a `model::Runner`, and a draft model's if there is one |
//! | `status` | [`Status`]: counters and latencies for metrics, and the running requests |
//! | `recent` | [`RecentStats`]: token rates and percentiles of latencies, for monitors |
//! | `energy` | energy of steps, by the power that a [`PowerMeter`] reads |
//! | `testing` | `MockBackend`: a backend without a GPU that checks every call (feature `testing`) |
//!
//! One thread owns the backend and is the only one that waits for the GPU. Handles pass requests to it
//! through an inbox, and each request's events return through a channel of its own. Dropping an
//! [`EventStream`] cancels its request.
//!
//! ```no_run
//! use engine::{Engine, Event, GpuBackend, Options, Request};
//!
//! # fn example(
//! #     runner: model::Runner,
//! #     reload: impl FnMut() -> model::Result<model::Runner> + Send + 'static,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::start(GpuBackend::new(runner, reload), Options::default())?;
//! let prompt = vec![2, 651, 6037, 576, 6081, 603];
//! let mut events = engine.submit(Request::new(prompt, 32_u32.try_into()?))?;
//! while let Some(event) = events.blocking_next() {
//!     match event {
//!         Event::Started { cached_tokens } => println!("{cached_tokens} prompt tokens cached"),
//!         Event::PromptTokens(_) => unreachable!("not requested"),
//!         Event::Token(token) => println!("token {} with logprob {}", token.id, token.logprob),
//!         Event::Finished { reason, usage } => println!("{reason:?}, {usage:?}"),
//!         Event::Failed(error) => return Err(error.into()),
//!     }
//! }
//! engine.stop();
//! # Ok(())
//! # }
//! ```
//!
//! docs/engine.md describes the design.

mod backend;
mod energy;
mod error;
mod events;
mod gpu_backend;
mod handle;
mod inbox;
mod job;
mod options;
mod recent;
mod request;
mod schedule;
mod speculate;
mod status;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use backend::{Backend, BackendError, Capacity};
pub use energy::{PowerMeter, StepEnergy};
pub use error::{RequestError, SubmitError};
pub use events::{Event, EventSender, EventStream, FinishReason, StreamDropped, Token, Usage};
pub use gpu_backend::{GpuBackend, Runners};
pub use handle::Engine;
pub use model::{
    DecodeRow, DraftInput, MixedOutput, PrefillChunk, Sampled, Sampling, VerifyRows, WriteBehind,
};
pub use model::{Image, ImageProcessor, join_images};
pub use options::Options;
pub use recent::{Percentiles, RecentStats};
pub use request::Request;
pub use speculate::{DraftCounts, DraftStats, Replay, replay};
pub use status::{Histogram, MemoryTraffic, Pages, RequestState, RequestStatus, Status};
pub use text::TokenConstraint;
