//! Pre-tokenisation: splitting text into words before byte-level BPE merges them.
//!
//! The patterns belong to a model's definition and are identified by name. They all end in `\s+(?!\S)|\s+`:
//! the last white-space character belongs to the following word. Regular expressions without look-ahead run
//! in linear time. So white space is a separate pattern here, and its last character is given back
//! afterwards.

use regex_automata::meta::Regex;
use regex_automata::{Anchored, Input};

use crate::error::{Result, unsupported};

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+";
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
);
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
);
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
);
const SPACES: &str = r"\s+";
const SPACES_INDEX: usize = 1;

/// Fails if the pre-tokenizer with the name in a GGUF's `tokenizer.ggml.pre` is not supported: lets a caller
/// know before it has the whole file.
pub fn check_pretokenizer(name: Option<&str>) -> Result<()> {
    Pretokens::by_name(name).map(drop)
}

/// A pre-tokenizer.
pub(crate) struct Pretokens {
    words: Regex,
    /// Whether every numeric character is a word of its own.
    digits: bool,
    /// Whether a word that is in the vocabulary becomes that token without merging.
    pub(crate) whole_words: bool,
}

impl Pretokens {
    /// The pre-tokenizer with the name in a GGUF's `tokenizer.ggml.pre`; GPT-2's by default.
    pub(crate) fn by_name(name: Option<&str>) -> Result<Pretokens> {
        let (pattern, digits, whole_words) = match name.unwrap_or("gpt-2") {
            "gpt-2" | "gpt2" | "default" => (GPT2, false, false),
            "smollm" => (GPT2, true, false),
            // deepseek-r1-qwen: Qwen models that DeepSeek fine-tuned.
            "qwen2" | "deepseek-r1-qwen" => (QWEN2, false, false),
            "llama-bpe" | "llama3" | "llama-v3" => (LLAMA3, false, true),
            "tekken" => (TEKKEN, false, true),
            other => {
                return Err(unsupported(format!(
                    "pre-tokenizer '{other}' is not supported (supported: gpt-2, smollm, qwen2, llama-bpe, tekken)"
                )));
            }
        };
        Pretokens::new(pattern, digits, whole_words)
    }

    /// The pre-tokenizer with the regular expression in a `tokenizer.json`, including its look-ahead.
    pub(crate) fn by_pattern(pattern: &str) -> Result<Pretokens> {
        let known = [GPT2, QWEN2, LLAMA3, TEKKEN];
        let head =
            pattern.strip_suffix(r"|\s+(?!\S)|\s+").and_then(|head| known.into_iter().find(|k| *k == head));
        match head {
            Some(head) => Pretokens::new(head, false, false),
            None => Err(unsupported(format!(
                "the pre-tokenizer pattern '{pattern}' is not supported (supported: those of GPT-2, Qwen 2, Llama 3 and Mistral)"
            ))),
        }
    }

    /// Sets whether a word that is in the vocabulary becomes that token without merging.
    pub(crate) fn whole_words(self, whole_words: bool) -> Pretokens {
        Pretokens { whole_words, ..self }
    }

    fn new(pattern: &str, digits: bool, whole_words: bool) -> Result<Pretokens> {
        let words = Regex::new_many(&[pattern, SPACES]).map_err(|e| unsupported(e.to_string()))?;
        Ok(Pretokens { words, digits, whole_words })
    }

    /// Calls `each` with every word. The words concatenated are the text.
    pub(crate) fn split<'a>(&self, text: &'a str, mut each: impl FnMut(&'a str)) {
        if !self.digits {
            return self.words(text, &mut each);
        }
        let mut from = 0;
        for (at, digit) in text.char_indices().filter(|(_, c)| c.is_numeric()) {
            self.words(&text[from..at], &mut each);
            from = at + digit.len_utf8();
            each(&text[at..from]);
        }
        self.words(&text[from..], &mut each);
    }

    fn words<'a>(&self, text: &'a str, each: &mut impl FnMut(&'a str)) {
        let mut from = 0;
        while from < text.len() {
            let input = Input::new(text).range(from..).anchored(Anchored::Yes);
            let found = self.words.find(input);
            let mut to = match &found {
                Some(found) if found.end() > from => found.end(),
                // Every pattern covers every character. As a safeguard, an uncovered character is a word of
                // its own.
                _ => from + text[from..].chars().next().map_or(1, char::len_utf8),
            };
            if to < text.len() && found.is_some_and(|f| f.pattern().as_usize() == SPACES_INDEX) {
                let last = text[from..to].chars().next_back().map_or(0, char::len_utf8);
                if to - last > from {
                    to -= last;
                }
            }
            each(&text[from..to]);
            from = to;
        }
    }
}
