//! OpenAI's protocol over HTTP, on top of whoever makes tokens.
//!
//! 1. [`Server`] (`listen`) accepts connections, with limits on how slow and how many they may be.
//! 2. `router` says what lies at which path; `access` lets in who bears a key.
//! 3. A body becomes one of the types of `openai`, whose errors name the wrong field.
//! 4. `prompt` makes tokens of it (`tools`: and says what may be called), `grammars` what the answer is held to, and an engine takes them
//!    ([`Generator`]).
//! 5. `choice` makes text and calls of the tokens that come back, with nothing of a stop string (`told`: and whose probabilities are told with it);
//!    `reply` sends it, whole or as a stream. A client that goes away drops its answers, which cancels them.
//! 6. `record` writes one line a request, and counts it for `metrics`.
//!
//! The crate knows nothing of GPUs, only of an engine. Its tests drive it over real sockets with a generator that makes words by rule.

mod access;
mod choice;
mod config;
mod error;
mod generator;
mod grammars;
mod listen;
mod metrics;
mod openai;
mod openapi;
mod prompt;
mod record;
mod reply;
mod router;
mod told;
mod tools;

pub use config::{Config, Model};
pub use generator::{EngineSlot, Gauge, Generator};
pub use listen::{Handle, Server};
