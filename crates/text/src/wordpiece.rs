//! WordPiece, the tokenizer of BERT: text is normalised, split at white space and punctuation, and each word becomes its
//! longest prefix in the vocabulary, then the longest prefix of the rest, and so on.
//!
//! | vocabulary | start of a word | continuation |
//! |---|---|---|
//! | tokenizer.json | `hello` | `##ing` |
//! | GGUF | `▁hello` | `ing` |
//!
//! Here a token's bytes have a space at the start of a word and nothing before a continuation, as SentencePiece's have.

use std::sync::LazyLock;

use serde_json::Value;
use unicode_normalization::UnicodeNormalization;

use crate::error::{Result, invalid, unsupported};
use crate::pieces::{Class, Pieces};
use crate::vocabulary::METASPACE;

/// Words of more characters are unknown, where tokenizer.json has no other limit.
const MAX_WORD_CHARS: usize = 100;

/// Prefix of continuations in tokenizer.json.
pub(crate) const CONTINUATION: &str = "##";

/// Splits words into tokens.
pub(crate) struct WordPiece {
    pub normalizer: Normalizer,
    /// Longer words, in characters, are unknown.
    pub max_word_chars: usize,
}

/// How text is changed before it is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Normalizer {
    /// Removes control characters, and makes all white space spaces.
    pub clean_text: bool,
    /// Makes each CJK ideograph a word.
    pub split_ideographs: bool,
    /// Removes accents: non-spacing marks after decomposition.
    pub strip_accents: bool,
    pub lowercase: bool,
}

impl Normalizer {
    /// That of uncased models, which llama.cpp uses for all GGUF files.
    pub const UNCASED: Normalizer =
        Normalizer { clean_text: true, split_ideographs: true, strip_accents: true, lowercase: true };

    /// Reads the `normalizer` of tokenizer.json.
    pub fn from_hf(json: &Value) -> Result<Self> {
        if json["type"] != "BertNormalizer" {
            let text: String = json.to_string().chars().take(200).collect();
            return Err(unsupported(format!(
                "tokenizer.json: normalizer {text} is not supported with WordPiece, only BertNormalizer"
            )));
        }
        let flag = |key: &str| json[key].as_bool().unwrap_or(true);
        let lowercase = flag("lowercase");
        Ok(Self {
            clean_text: flag("clean_text"),
            split_ideographs: flag("handle_chinese_chars"),
            // By default accents go with capitals.
            strip_accents: json["strip_accents"].as_bool().unwrap_or(lowercase),
            lowercase,
        })
    }

    fn apply(self, text: &str) -> String {
        let cleaned = text.chars().filter(|c| !self.clean_text || !is_removed(*c));
        let spaced = cleaned.map(|c| if self.clean_text && c.is_whitespace() { ' ' } else { c });
        let split = spaced.flat_map(|c| {
            let space = (self.split_ideographs && is_ideograph(c)).then_some(' ');
            space.into_iter().chain([c]).chain(space)
        });
        let mut out = String::with_capacity(text.len());
        let mut push = |c: char| match self.lowercase {
            true => out.extend(c.to_lowercase()),
            false => out.push(c),
        };
        match self.strip_accents {
            true => split.nfd().filter(|c| !NON_SPACING.contains(*c)).for_each(&mut push),
            false => split.for_each(&mut push),
        }
        out
    }
}

impl WordPiece {
    /// From the settings of tokenizer.json: its normalizer, its pre-tokenizer and the limit of its model.
    pub fn from_hf(normalizer: &Value, pre_tokenizer: &Value, max_word_chars: Option<usize>) -> Result<Self> {
        if pre_tokenizer["type"] != "BertPreTokenizer" {
            let text: String = pre_tokenizer.to_string().chars().take(200).collect();
            return Err(unsupported(format!(
                "tokenizer.json: pre-tokenizer {text} is not supported with WordPiece, only BertPreTokenizer"
            )));
        }
        let normalizer = Normalizer::from_hf(normalizer)?;
        Ok(Self { normalizer, max_word_chars: max_word_chars.unwrap_or(MAX_WORD_CHARS) })
    }

    /// The tokenizer of GGUF files, which have no settings.
    pub fn uncased() -> Self {
        Self { normalizer: Normalizer::UNCASED, max_word_chars: MAX_WORD_CHARS }
    }

    /// Appends the tokens of text without special tokens.
    pub fn encode(&self, text: &str, pieces: &Pieces, unknown: Option<u32>, ids: &mut Vec<u32>) {
        let mut word_bytes = String::new();
        for words in self.normalizer.apply(text).split(char::is_whitespace) {
            for word in split_punctuation(words) {
                word_bytes.clear();
                word_bytes.push(' ');
                word_bytes.push_str(word);
                let before = ids.len();
                let fits = word.chars().nth(self.max_word_chars).is_none();
                if !fits || !encode_word(&word_bytes, pieces, ids) {
                    ids.truncate(before);
                    ids.extend(unknown);
                }
            }
        }
    }
}

/// Appends the tokens of a word, which starts with a space; false if no token fits at some place.
fn encode_word(word: &str, pieces: &Pieces, ids: &mut Vec<u32>) -> bool {
    let mut rest = word;
    // A space alone is no start of a word.
    let mut shortest = 2;
    while !rest.is_empty() {
        let ends = (shortest..=rest.len()).rev().filter(|end| rest.is_char_boundary(*end));
        let Some((end, id)) =
            ends.into_iter().find_map(|end| Some((end, pieces.find_text(&rest.as_bytes()[..end])?)))
        else {
            return false;
        };
        ids.push(id);
        rest = &rest[end..];
        shortest = 1;
    }
    true
}

/// The pieces of a text without white space: each punctuation character, and what is between them.
fn split_punctuation(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(is_punctuation).flat_map(|part| {
        let at = part
            .char_indices()
            .next_back()
            .filter(|(_, c)| is_punctuation(*c))
            .map_or(part.len(), |(at, _)| at);
        let (word, mark) = part.split_at(at);
        [word, mark].into_iter().filter(|part| !part.is_empty())
    })
}

/// Appends the bytes of a token of tokenizer.json.
pub(crate) fn hf_bytes(token: &str, class: Class, out: &mut Vec<u8>) {
    match token.strip_prefix(CONTINUATION).filter(|rest| !rest.is_empty()) {
        _ if class != Class::Normal || token.is_empty() => out.extend_from_slice(token.as_bytes()),
        Some(continuation) => out.extend_from_slice(continuation.as_bytes()),
        None => {
            out.push(b' ');
            out.extend_from_slice(token.as_bytes());
        }
    }
}

/// Appends the bytes of a token of a GGUF file.
pub(crate) fn gguf_bytes(token: &str, class: Class, out: &mut Vec<u8>) {
    match token.strip_prefix(METASPACE) {
        Some(start) if class == Class::Normal => {
            out.push(b' ');
            out.extend_from_slice(start.as_bytes());
        }
        _ => out.extend_from_slice(token.as_bytes()),
    }
}

/// Rejects a model whose continuations are marked otherwise.
pub(crate) fn check_continuation(prefix: Option<&str>) -> Result<()> {
    match prefix {
        None | Some(CONTINUATION) => Ok(()),
        Some(other) => {
            let other: String = other.chars().take(64).collect();
            Err(unsupported(format!(
                "tokenizer.json: continuing_subword_prefix '{}' is not supported, only '{CONTINUATION}'",
                other.escape_debug()
            )))
        }
    }
}

/// The unknown token, without which words cannot be encoded.
pub(crate) fn unknown(found: Option<u32>) -> Result<Option<u32>> {
    found.map(Some).ok_or_else(|| invalid("it has no unknown token, which WordPiece needs"))
}

/// Characters that cleaning removes.
fn is_removed(c: char) -> bool {
    matches!(c, '\0' | '\u{fffd}') || !matches!(c, '\t' | '\n' | '\r') && OTHER.contains(c)
}

fn is_punctuation(c: char) -> bool {
    c.is_ascii_punctuation() || !c.is_ascii() && PUNCTUATION.contains(c)
}

/// Whether a character is in one of the blocks of CJK ideographs.
fn is_ideograph(c: char) -> bool {
    matches!(
        u32::from(c),
        0x3400..=0x4dbf
            | 0x4e00..=0x9fff
            | 0xf900..=0xfaff
            | 0x2_0000..=0x2_a6df
            | 0x2_a700..=0x2_b73f
            | 0x2_b740..=0x2_b81f
            | 0x2_b920..=0x2_ceaf
            | 0x2_f800..=0x2_fa1f
    )
}

static PUNCTUATION: LazyLock<Category> = LazyLock::new(|| Category::new(r"\p{P}"));
static NON_SPACING: LazyLock<Category> = LazyLock::new(|| Category::new(r"\p{Mn}"));
/// Controls, formats and private use; not the unassigned.
static OTHER: LazyLock<Category> = LazyLock::new(|| Category::new(r"[\p{Cc}\p{Cf}\p{Co}]"));

/// A set of characters, as sorted ranges.
struct Category(Vec<(char, char)>);

impl Category {
    /// `pattern` is a character class.
    fn new(pattern: &str) -> Self {
        let hir = regex_syntax::parse(pattern).expect("a valid class");
        let regex_syntax::hir::HirKind::Class(regex_syntax::hir::Class::Unicode(class)) = hir.kind() else {
            unreachable!("{pattern} is a class of characters")
        };
        Self(class.ranges().iter().map(|range| (range.start(), range.end())).collect())
    }

    fn contains(&self, c: char) -> bool {
        let after = self.0.partition_point(|range| range.0 <= c);
        after > 0 && self.0[after - 1].1 >= c
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn punctuation_is_split_off() {
        let split = |text| split_punctuation(text).collect::<Vec<_>>();
        assert_eq!(split("don't!!"), ["don", "'", "t", "!", "!"]);
        assert_eq!(split("…a，b"), ["…", "a", "，", "b"]);
        assert!(split("").is_empty());
    }

    #[test]
    fn normalisation_follows_its_settings() {
        let cased = Normalizer { strip_accents: false, lowercase: false, ..Normalizer::UNCASED };
        assert_eq!(Normalizer::UNCASED.apply("Çé\u{200d}\u{0}A\tB"), "cea b");
        assert_eq!(cased.apply("Çé漢B"), "Çé 漢 B");
        let none = Normalizer { clean_text: false, split_ideographs: false, ..cased };
        assert_eq!(none.apply("a\u{0}\t漢"), "a\u{0}\t漢");
    }
}
