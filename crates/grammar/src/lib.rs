//! Structured output: JSON schemas, tool calls, regular expressions, Lark and GBNF grammars as token masks.
//!
//! 1. A [`GrammarCompiler`] holds a model's vocabulary as a prefix tree; create one per model.
//! 2. It compiles a schema, a set of tools, a regular expression or a grammar into a [`Grammar`].
//!    Invalid input is an error with the reason. Schemas come from untrusted clients: the work is bounded,
//!    and schemas that would exceed the bounds are rejected.
//! 3. A [`Matcher`] follows one completion token by token. It implements [`text::TokenConstraint`], the
//!    interface that the engine's sampler uses.
//!
//! The automata are llguidance's. This crate defines the bytes of each token, the tokens that are never text,
//! the white space that JSON output may contain, and the work that a grammar may cause.
//!
//! ```
//! use text::{Tokenizer, Vocabulary, VocabularyKind};
//!
//! // A vocabulary of 256 byte tokens and a stop token.
//! let mut vocabulary = Vocabulary::new(VocabularyKind::SentencePiece);
//! vocabulary.tokens = (0..256).map(|byte| format!("<0x{byte:02X}>")).chain(["</s>".into()]).collect();
//! vocabulary.token_types = (0..256).map(|_| 6).chain([3]).collect();
//! vocabulary.scores = vec![0.0; 257];
//! let tokenizer = Tokenizer::from_vocabulary(vocabulary)?;
//!
//! let compiler = grammar::GrammarCompiler::new(&tokenizer, 257, &[256])?;
//! let grammar = compiler.json_schema(&serde_json::json!({ "enum": ["yes", "no"] }))?;
//! let mut matcher = grammar.matcher();
//! for byte in b"\"no\"" {
//!     matcher.accept(u32::from(*byte))?;
//! }
//! assert!(matcher.is_finished());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod gbnf;
mod limits;
mod matcher;
mod notation;
mod schema;
mod tool_calls;
mod vocabulary;

#[cfg(test)]
mod tests;

use std::{sync::Arc, thread};

use llguidance::{
    ParserFactory, TokenParser,
    api::TopLevelGrammar,
    earley::SlicedBiasComputer,
    toktrie::{InferenceCapabilities, TokEnv},
};
use serde_json::Value;
use text::Tokenizer;

pub use error::{Error, Result};
pub use matcher::Matcher;
pub use schema::SCHEMA;
pub use tool_calls::{NonCallOutput, ToolCallGrammar, ToolSpec};

/// Compiles grammars for one model. Cheap to clone.
#[derive(Clone)]
pub struct GrammarCompiler(Arc<ParserFactory>);

impl GrammarCompiler {
    /// A compiler for a model with `vocab_size` logits; the tokenizer may have fewer tokens. Takes a fraction
    /// of a second for a large vocabulary.
    pub fn new(tokenizer: &Tokenizer, vocab_size: u32, stop_token_ids: &[u32]) -> Result<Self> {
        let trie = vocabulary::trie(tokenizer, vocab_size, stop_token_ids)?;
        // An approximate environment has no tokenizer of its own: the model decides how forced text is
        // tokenised.
        let environment: TokEnv = Arc::new(toktrie::ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::json_slices();
        let factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices);
        let mut factory = factory.map_err(|error| Error::Vocabulary(error.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = limits::parser();
        Ok(Self(Arc::new(factory)))
    }

    /// JSON that matches a schema.
    pub fn json_schema(&self, schema: &Value) -> Result<Grammar> {
        let schema = schema::prepare(schema)?;
        self.compile(SCHEMA, TopLevelGrammar::from_json_schema(schema))
    }

    /// Any JSON object.
    pub fn json_object(&self) -> Result<Grammar> {
        self.json_schema(&serde_json::json!({ "type": "object" }))
    }

    /// Text that a regular expression matches from start to end, in the syntax of Rust's `regex` crate.
    pub fn regex(&self, pattern: &str) -> Result<Grammar> {
        limits::check_length("the regular expression", pattern)?;
        self.compile("the regular expression", TopLevelGrammar::from_regex(pattern))
    }

    /// Text of a grammar: in llguidance's dialect of Lark, or in llama.cpp's GBNF, which defines rules with `::=`.
    pub fn grammar(&self, grammar: &str) -> Result<Grammar> {
        const SUBJECT: &str = "the grammar";
        limits::check_length(SUBJECT, grammar)?;
        let lark = match gbnf::is_gbnf(grammar) {
            true => gbnf::to_lark(grammar).map_err(|reason| Error::invalid(SUBJECT, &reason))?,
            false => grammar.to_owned(),
        };
        self.compile(SUBJECT, TopLevelGrammar::from_lark(lark))
    }

    /// One of several texts.
    pub fn choice(&self, choices: &[String]) -> Result<Grammar> {
        const SUBJECT: &str = "the list of choices";
        let escape = |choice: &String| choice.chars().map(|c| format!("\\u{{{:X}}}", u32::from(c))).collect();
        let choices: Vec<String> = choices.iter().map(escape).collect();
        let pattern = choices.join("|");
        limits::check_length(SUBJECT, &pattern)?;
        self.compile(SUBJECT, TopLevelGrammar::from_regex(&pattern))
    }

    fn compile(&self, subject: &'static str, grammar: TopLevelGrammar) -> Result<Grammar> {
        // llguidance compiles schemas recursively: nesting within the limits needs more stack than threads
        // usually have.
        let compiled = thread::scope(|scope| {
            let work = || {
                let mut parser = self.0.create_parser(grammar)?;
                parser.start_without_prompt();
                Ok(parser)
            };
            let builder = thread::Builder::new().name("grammar".into()).stack_size(limits::STACK_SIZE);
            let thread = builder.spawn_scoped(scope, work).map_err(|error| error.to_string())?;
            let compiled: Result<TokenParser, String> = match thread.join() {
                Ok(compiled) => {
                    compiled.map_err(|error: Box<dyn std::error::Error + Send + Sync>| error.to_string())
                }
                Err(_) => Err("it could not be compiled".into()),
            };
            compiled
        });
        let parser = compiled.map_err(|text| Error::invalid(subject, &text))?;
        Ok(Grammar { subject, parser })
    }
}

impl std::fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarCompiler").finish_non_exhaustive()
    }
}

/// A compiled grammar, shared by any number of completions.
pub struct Grammar {
    subject: &'static str,
    parser: TokenParser,
}

impl Grammar {
    /// A matcher at the start of a completion.
    pub fn matcher(&self) -> Matcher {
        Matcher::new(self.subject, self.parser.deep_clone())
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").field("subject", &self.subject).finish_non_exhaustive()
    }
}
