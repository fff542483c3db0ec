//! How much work a grammar may be: schemas that explode are refused, in bounded time and memory.

use llguidance::api::ParserLimits;

use crate::{Error, Result};

/// Longest text of a schema, an expression or a grammar, in bytes. Those of large interfaces have some ten thousand.
pub(crate) const BYTES: usize = 256 << 10;

/// Deepest nesting of a schema, as of any JSON that serde_json reads.
pub(crate) const DEPTH: usize = 128;

/// Largest common multiple of all that numbers of a schema must be multiples of, without their power of ten. It is the size of an
/// automaton, which nothing else bounds: 10 µs each.
pub(crate) const MULTIPLE: u64 = 20_000;

/// Stack for compiling. It is taken only as far as it is used.
pub(crate) const STACK: usize = 256 << 20;

/// What the automata may use. The speeds are llguidance's own figures.
pub(crate) fn parser() -> ParserLimits {
    ParserLimits {
        // About 20 ms of building expressions.
        initial_lexer_fuel: 1_000_000,
        // About 15 ms and 3 ms for one mask.
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_items_in_row: 2_000,
        // 1 to 2 KiB each: some 100 MiB at worst.
        max_lexer_states: 50_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

/// Whether a text is short enough.
pub(crate) fn length(what: &'static str, text: &str) -> Result<()> {
    match text.len() {
        0..=BYTES => Ok(()),
        bytes => Err(Error::refused(what, &format!("it has {bytes} bytes; at most {BYTES} are possible"))),
    }
}
