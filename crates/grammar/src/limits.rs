//! Limits on the work that a grammar may cause. Grammars beyond them are rejected in bounded time and memory.

use llguidance::api::ParserLimits;

use crate::{Error, Result};

/// Maximum length of a schema, regular expression or grammar, in bytes. Schemas of large APIs have about
/// ten thousand.
pub(crate) const MAX_BYTES: usize = 256 << 10;

/// Maximum nesting depth of a schema: that of serde_json's parser.
pub(crate) const MAX_DEPTH: usize = 128;

/// Maximum least common multiple of all `multipleOf` values of a schema, without powers of ten. It is the
/// number of states of an automaton that nothing else bounds; each state takes 10 µs.
pub(crate) const MAX_MULTIPLE: u64 = 20_000;

/// Stack size of the compiling thread. Pages are committed only when used.
pub(crate) const STACK_SIZE: usize = 256 << 20;

/// Limits of llguidance's automata. The timings are llguidance's own figures.
pub(crate) fn parser() -> ParserLimits {
    ParserLimits {
        // About 20 ms for building expressions.
        initial_lexer_fuel: 1_000_000,
        // About 15 ms (lexer) and 3 ms (parser) per mask.
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_items_in_row: 2_000,
        // 1 to 2 KiB per state: about 100 MiB at worst.
        max_lexer_states: 50_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

/// Rejects text longer than [`MAX_BYTES`].
pub(crate) fn check_length(subject: &'static str, text: &str) -> Result<()> {
    match text.len() {
        0..=MAX_BYTES => Ok(()),
        bytes => Err(Error::invalid(subject, &format!("it has {bytes} bytes; the maximum is {MAX_BYTES}"))),
    }
}
