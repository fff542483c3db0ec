//! Tokens that are matched in text before anything else: user-defined tokens and, if requested, control
//! tokens.
//!
//! The leftmost match wins; at the same position the longest. A single pass of an automaton finds all
//! matches, so text full of near misses costs no more than any other.

use aho_corasick::{AhoCorasick, MatchKind};

use crate::error::{Result, invalid};

/// Finds special tokens in text.
pub(crate) struct Specials {
    automaton: Option<AhoCorasick>,
    ids: Vec<u32>,
}

/// A span of text.
#[derive(Debug, PartialEq)]
pub(crate) enum Span<'a> {
    /// Text to tokenise.
    Text(&'a str),
    /// A special token.
    Token(u32),
}

impl Specials {
    /// From the text and id of each token. Of duplicates the first is used.
    pub(crate) fn new(tokens: &[(Vec<u8>, u32)]) -> Result<Specials> {
        let tokens: Vec<_> = tokens.iter().filter(|(text, _)| !text.is_empty()).collect();
        let automaton = if tokens.is_empty() {
            None
        } else {
            let build = AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .build(tokens.iter().map(|t| &t.0));
            Some(build.map_err(|e| invalid(format!("it has too many or too long special tokens: {e}")))?)
        };
        Ok(Specials { automaton, ids: tokens.iter().map(|t| t.1).collect() })
    }

    /// Calls `each` with every span in order. No span is empty.
    pub(crate) fn split<'a>(&self, text: &'a str, mut each: impl FnMut(Span<'a>)) {
        let mut from = 0;
        for found in self.automaton.iter().flat_map(|automaton| automaton.find_iter(text)) {
            if found.start() > from {
                each(Span::Text(&text[from..found.start()]));
            }
            each(Span::Token(self.ids[found.pattern().as_usize()]));
            from = found.end();
        }
        if from < text.len() {
            each(Span::Text(&text[from..]));
        }
    }
}

/// Names of end-of-turn and end-of-text tokens of common model families. Files name only one such token, but
/// chat models also stop at others.
pub(crate) const STOP_TOKEN_NAMES: &[&str] = &[
    "<end_of_turn>",
    "<eos>",
    "</s>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end_of_turn|>",
    "<EOT>",
    "<｜end▁of▁sentence｜>",
    "<turn|>",
    "<|tool_response>",
];

/// Whether a token is a stop token regardless of its type in the file. Names that could also be text, such as
/// `</s>` in HTML, depend on the file.
pub(crate) fn is_stop_token_name(token: &str) -> bool {
    STOP_TOKEN_NAMES.contains(&token) && (looks_special(token) || is_delimiter(token))
}

/// Whether a token has the form of Gemma 4's delimiters, such as `<|turn>` and `<turn|>`.
pub(crate) fn is_delimiter(token: &str) -> bool {
    let inner = token.strip_prefix('<').and_then(|token| token.strip_suffix('>'));
    inner.is_some_and(|inner| inner.len() > 1 && (inner.starts_with('|') || inner.ends_with('|')))
}

/// Whether a token is a control token even if the file does not mark it as special, such as a placeholder.
/// GGUF converters use the same rule, and both formats must agree.
pub(crate) fn looks_special(token: &str) -> bool {
    let between = |start: &str, end: &str| {
        token.len() > start.len() + end.len() && token.starts_with(start) && token.ends_with(end)
    };
    matches!(token, "<pad>" | "<mask>")
        || between("<unused", ">")
        || between("<|", "|>")
        || between("<｜", "｜>")
}
