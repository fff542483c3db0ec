//! Text in and out.
//!
//! 1. A [`Tokenizer`] turns text into token ids. It is made from a GGUF's metadata ([`Vocabulary`]) or from Hugging
//!    Face's `tokenizer.json`; the two give the same ids for the same model. There is one exception: where `tokenizer.json` says that
//!    text is normalised (Qwen's does: NFC), it is, but a GGUF cannot say so, and llama.cpp, that format's reference, takes
//!    text as it is. Each format follows its own reference; texts as people write them are in NFC already.
//! 2. A [`ChatTemplate`] turns a conversation into the text that the model was trained on.
//! 3. A [`Detokenizer`] turns ids back into text as they come, never half a character.
//! 4. A [`StopMatcher`] holds text back while it may still become a stop string.
//! 5. A [`ToolCallParser`] finds the calls of tools in it, in the form that the model's template has ([`ChatTemplate::tool_support`]).
//! 6. A [`TokenConstraint`] says which tokens may come next, where an answer must look a certain way; the crate `grammar` makes them.
//!
//! Everything here reads files and prompts from strangers: whatever they hold, the result is an error or a text, never
//! a panic, and time grows no faster than n log n.

mod chat;
mod clock;
mod constraint;
mod detokenizer;
mod error;
pub mod hf;
mod marks;
mod merge;
mod message;
mod pieces;
mod pretokens;
mod specials;
mod stop;
mod tokenizer;
mod tool_calls;
mod tool_support;
mod vocabulary;

pub use chat::ChatTemplate;
pub use constraint::TokenConstraint;
pub use detokenizer::Detokenizer;
pub use error::{Error, Result};
pub use message::{Message, Tool, ToolCall};
pub use stop::StopMatcher;
pub use tokenizer::{DecodeSpecial, EncodeSpecial, Tokenizer};
pub use tool_calls::{ToolCallEvent, ToolCallFormat, ToolCallParser};
pub use tool_support::ToolSupport;
pub use vocabulary::{Vocabulary, VocabularyKind};
