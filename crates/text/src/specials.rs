//! Tokens that are cut out of the text before anything else: control tokens (where wanted) and user-defined ones.
//!
//! The leftmost match wins, the longest at the same place. One pass of an automaton finds them, so a text full of near
//! misses costs no more than any other.

use aho_corasick::{AhoCorasick, MatchKind};

use crate::error::{Result, invalid};

/// Finds a set of tokens in text.
pub(crate) struct Specials {
    automaton: Option<AhoCorasick>,
    ids: Vec<u32>,
}

/// A part of a text.
#[derive(Debug, PartialEq)]
pub(crate) enum Part<'a> {
    /// Text to tokenize.
    Text(&'a str),
    /// A token that stands in the text as such.
    Token(u32),
}

impl Specials {
    /// From tokens as they are written in text. Of two that are written alike the first counts.
    pub(crate) fn new(tokens: &[(Vec<u8>, u32)]) -> Result<Specials> {
        let tokens: Vec<_> = tokens.iter().filter(|(text, _)| !text.is_empty()).collect();
        let automaton = if tokens.is_empty() {
            None
        } else {
            let build = AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .build(tokens.iter().map(|t| &t.0));
            Some(build.map_err(|e| invalid(format!("its special tokens are too many or too long: {e}")))?)
        };
        Ok(Specials { automaton, ids: tokens.iter().map(|t| t.1).collect() })
    }

    /// Calls `each` with the parts of a text, in order; no part is empty.
    pub(crate) fn split<'a>(&self, text: &'a str, mut each: impl FnMut(Part<'a>)) {
        let mut from = 0;
        for found in self.automaton.iter().flat_map(|automaton| automaton.find_iter(text)) {
            if found.start() > from {
                each(Part::Text(&text[from..found.start()]));
            }
            each(Part::Token(self.ids[found.pattern().as_usize()]));
            from = found.end();
        }
        if from < text.len() {
            each(Part::Text(&text[from..]));
        }
    }
}

/// Names of control tokens that end a turn or a text, in the families that are in use. Files name one end only, chat
/// models stop at others too.
pub(crate) const END_NAMES: &[&str] = &[
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
];

/// Whether a token ends a turn or a text whatever its file calls it. Names that could be text as well, as `</s>` in HTML,
/// are left to the file.
pub(crate) fn ends_by_its_name(token: &str) -> bool {
    END_NAMES.contains(&token) && looks_special(token)
}

/// Whether a token that a file does not call special is control nonetheless: place holders are never content. GGUF
/// converters decide so too, and both sources must agree.
pub(crate) fn looks_special(token: &str) -> bool {
    let between = |start: &str, end: &str| {
        token.len() > start.len() + end.len() && token.starts_with(start) && token.ends_with(end)
    };
    matches!(token, "<pad>" | "<mask>")
        || between("<unused", ">")
        || between("<|", "|>")
        || between("<｜", "｜>")
}
