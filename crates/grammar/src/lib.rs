//! What an answer must look like: JSON by a schema, calls of tools, a regular expression, or a grammar, as masks of the tokens that may come next.
//!
//! 1. [`Grammars`] knows a model's vocabulary; there is one a model.
//! 2. It makes a [`Grammar`] of what a request asks for, or says what is wrong with that. Schemas come from strangers: whatever they
//!    hold, the work is bounded (`limits`), and what would take more is refused with a message.
//! 3. A [`Matcher`] follows one answer, token by token. It is a [`text::Guide`].
//!
//! The automata are llguidance's. This crate decides what they are told: which bytes each token stands for, which tokens are never text,
//! how much white space an answer may have.

mod calls;
mod error;
mod limits;
mod matcher;
mod schema;
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

pub use calls::{Callable, Calls, Otherwise};
pub use error::{Error, Result};
pub use matcher::Matcher;
pub use schema::SCHEMA;

/// What makes grammars for one model.
#[derive(Clone)]
pub struct Grammars(Arc<ParserFactory>);

impl Grammars {
    /// For a model whose logits are for `vocab` tokens, of which the tokenizer may know fewer, and whose answers end with one of `ends`.
    /// Takes part of a second for a large vocabulary.
    pub fn new(tokenizer: &Tokenizer, vocab: u32, ends: &[u32]) -> Result<Self> {
        let trie = vocabulary::trie(tokenizer, vocab, ends)?;
        // Without a tokenizer of its own, llguidance leaves it to the model how to cut text that is certain into tokens.
        let environment: TokEnv = Arc::new(toktrie::ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::json_slices();
        let factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices);
        let mut factory = factory.map_err(|error| Error::Vocabulary(error.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = limits::parser();
        Ok(Self(Arc::new(factory)))
    }

    /// JSON that a schema allows.
    pub fn json_schema(&self, schema: &Value) -> Result<Grammar> {
        let schema = schema::prepared(schema)?;
        self.compile(SCHEMA, TopLevelGrammar::from_json_schema(schema))
    }

    /// Any JSON object.
    pub fn json_object(&self) -> Result<Grammar> {
        self.json_schema(&serde_json::json!({ "type": "object" }))
    }

    /// Text that a regular expression matches as a whole, in the syntax of Rust's crate `regex`.
    pub fn regex(&self, pattern: &str) -> Result<Grammar> {
        limits::length("the regular expression", pattern)?;
        self.compile("the regular expression", TopLevelGrammar::from_regex(pattern))
    }

    /// Text of a grammar in llguidance's dialect of Lark.
    pub fn lark(&self, grammar: &str) -> Result<Grammar> {
        limits::length("the grammar", grammar)?;
        self.compile("the grammar", TopLevelGrammar::from_lark(grammar.to_string()))
    }

    fn compile(&self, what: &'static str, grammar: TopLevelGrammar) -> Result<Grammar> {
        // Schemas are walked by recursion: nesting within the limits needs more stack than threads usually have.
        let compiled = thread::scope(|scope| {
            let work = || {
                let mut parser = self.0.create_parser(grammar)?;
                parser.start_without_prompt();
                Ok(parser)
            };
            let builder = thread::Builder::new().name("grammar".into()).stack_size(limits::STACK);
            let thread = builder.spawn_scoped(scope, work).map_err(|error| error.to_string())?;
            let compiled: Result<TokenParser, String> = match thread.join() {
                Ok(compiled) => {
                    compiled.map_err(|error: Box<dyn std::error::Error + Send + Sync>| error.to_string())
                }
                Err(_) => Err("it could not be compiled".into()),
            };
            compiled
        });
        let parser = compiled.map_err(|text| Error::refused(what, &text))?;
        Ok(Grammar { what, parser })
    }
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

/// What answers must look like. It serves any number of them.
pub struct Grammar {
    what: &'static str,
    parser: TokenParser,
}

impl Grammar {
    /// Follows an answer from its first token on.
    pub fn matcher(&self) -> Matcher {
        Matcher::new(self.what, self.parser.deep_clone())
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").field("what", &self.what).finish_non_exhaustive()
    }
}
