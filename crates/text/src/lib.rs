//! Text processing: tokenizers, chat templates, incremental detokenisation, stop strings, tool calls.
//!
//! 1. A [`Tokenizer`] turns text into token ids. It is built from a GGUF's metadata ([`Vocabulary`]) or from
//!    Hugging Face's `tokenizer.json`; both give the same ids for the same model, with one exception. If
//!    `tokenizer.json` specifies Unicode normalisation (Qwen's does: NFC), text is normalised. A GGUF has no
//!    such key, and llama.cpp, the reference for that format, does not normalise. Each format follows its own
//!    reference; text that people write is almost always NFC already.
//! 2. A [`ChatTemplate`] turns a conversation into the prompt format that the model was trained on.
//! 3. A [`Detokenizer`] turns ids back into text one by one, never splitting a character.
//! 4. A [`StopMatcher`] holds text back while it may still become a stop string.
//! 5. A [`ToolCallParser`] extracts tool calls from the text, in the format of the model's template
//!    ([`ChatTemplate::tool_support`]).
//! 6. A [`ThinkingParser`] separates what the model thinks from its answer
//!    ([`ChatTemplate::thinking_format`]).
//! 7. A [`TokenConstraint`] restricts the next token, for structured output; the `grammar` crate implements
//!    it.
//!
//! All inputs are untrusted files and prompts: any content gives a result or an error, never a panic, and the
//! run time is at most O(n log n).
//!
//! ```
//! use text::{DecodeSpecial, EncodeSpecial, Tokenizer, Vocabulary, VocabularyKind};
//!
//! let mut vocabulary = Vocabulary::new(VocabularyKind::SentencePiece);
//! vocabulary.tokens = ["<unk>", "</s>", "▁", "h", "i", "hi", "▁hi"].map(String::from).to_vec();
//! vocabulary.token_types = vec![2, 3, 1, 1, 1, 1, 1];
//! vocabulary.scores = vec![0.0, 0.0, -5.0, -4.0, -3.0, -2.0, -1.0];
//! (vocabulary.unknown, vocabulary.eos) = (Some(0), Some(1));
//! let tokenizer = Tokenizer::from_vocabulary(vocabulary)?;
//!
//! let ids = tokenizer.encode("hi hi", EncodeSpecial::AsText);
//! assert_eq!(ids, [5, 6]);
//! assert_eq!(tokenizer.decode(&ids, DecodeSpecial::Skip), "hi hi");
//! assert_eq!(tokenizer.stop_token_ids(), [1]);
//! # Ok::<(), text::Error>(())
//! ```

mod chat;
mod clock;
mod constraint;
mod detokenizer;
mod error;
mod fim;
pub mod hf;
mod images;
mod marks;
mod merge;
mod message;
mod pieces;
mod pretokens;
mod specials;
mod stop;
mod thinking;
mod tokenizer;
mod tool_arguments;
mod tool_calls;
mod tool_support;
mod turns;
mod vocabulary;
mod wordpiece;

pub use chat::{ChatTemplate, PromptEnd, PromptOptions, TEMPLATE_VARIABLES, Variables, set_thinking};
pub use constraint::TokenConstraint;
pub use detokenizer::Detokenizer;
pub use error::{Error, Result};
pub use fim::{FimIds, FimTokens};
pub use message::{Content, Message, Part, Tool, ToolCall};
pub use pretokens::check_pretokenizer;
pub use stop::StopMatcher;
pub use thinking::{ThinkingConstraint, ThinkingEvent, ThinkingFormat, ThinkingParser};
pub use tokenizer::{DecodeSpecial, EncodeSpecial, EncodedText, Tokenizer};
pub use tool_arguments::is_text;
pub use tool_calls::{CallSyntax, ToolCallEvent, ToolCallFormat, ToolCallParser};
pub use tool_support::ToolSupport;
pub use vocabulary::{Vocabulary, VocabularyKind};
