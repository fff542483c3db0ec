//! Prevents untrusted text from becoming control tokens.
//!
//! A template may trim a text, cut it at a word, remove words from it, change its case and put other texts
//! next to it. So searching for complete names is not enough: `<|im_`, and also `<|im_</think>end|>`, may
//! become a name. Therefore a mark (a private-use character) is inserted after every character that starts a
//! name. The one exception is a word that occurs in the template's source, such as `</think>` or
//! `<tool_response>`, if no name starts like it. The template may search for such words and must find them.
//! It keeps or removes such a word as a unit, so an unmarked word never becomes the start of a name.
//!
//! A name may also start in the template: `'<|' ~ content` makes one of `im_end|>`. The source shows whether
//! a template leaves names incomplete; few do, mostly around roles. If it does, a mark is also inserted
//! before every character that ends a name, except in the template's words, and before a text that is
//! itself part of a name.

use std::collections::BTreeSet;
use std::sync::OnceLock;

/// Maximum length in bytes of names and of words that are handled exactly. For longer ones, more is marked
/// than necessary.
const MAX_EXACT_LEN: usize = 256;

/// The names of control tokens, in lower case except for `first_chars`.
pub(crate) struct Controls {
    /// First characters of names, in their original case.
    first_chars: BTreeSet<char>,
    /// Sorted.
    names: Vec<String>,
    /// Last characters of names.
    last_chars: BTreeSet<char>,
    /// Whether a name is longer than [`MAX_EXACT_LEN`].
    has_long: bool,
    /// All suffixes of names, sorted.
    suffixes: OnceLock<Vec<String>>,
}

impl Controls {
    pub(crate) fn new<'a>(names: impl Iterator<Item = &'a str>) -> Controls {
        let mut first_chars = BTreeSet::new();
        let mut last_chars = BTreeSet::new();
        let mut sorted = Vec::new();
        for name in names {
            first_chars.extend(name.chars().next());
            let name = name.to_ascii_lowercase();
            last_chars.extend(name.chars().next_back());
            sorted.push(name);
        }
        sorted.sort_unstable();
        sorted.dedup();
        let has_long = sorted.iter().any(|name| name.len() > MAX_EXACT_LEN);
        Controls { first_chars, names: sorted, last_chars, has_long, suffixes: OnceLock::new() }
    }

    /// Whether `text`, in lower case, is a proper prefix of a name.
    fn is_prefix(&self, text: &str) -> bool {
        let after = self.names.partition_point(|name| name.as_str() <= text);
        self.names.get(after).is_some_and(|name| name.starts_with(text))
    }

    /// Whether `text` starts with a complete name.
    fn starts_with_name(&self, text: &str) -> bool {
        let is_name = |part: &str| self.names.binary_search_by(|name| name.as_str().cmp(part)).is_ok();
        text.char_indices().any(|(at, character)| is_name(&text[..at + character.len_utf8()]))
    }

    /// Whether `text` occurs in a name.
    fn any_contains(&self, text: &str) -> bool {
        if self.has_long {
            return true;
        }
        let suffixes = self.suffixes.get_or_init(|| {
            let suffixes_of = |name: &String| -> Vec<String> {
                name.char_indices().map(|(at, _)| name[at..].to_owned()).collect()
            };
            BTreeSet::from_iter(self.names.iter().flat_map(suffixes_of)).into_iter().collect()
        });
        let first = suffixes.partition_point(|suffix| suffix.as_str() < text);
        suffixes.get(first).is_some_and(|suffix| suffix.starts_with(text))
    }
}

/// Inserts marks into the texts that a template renders.
pub(crate) struct Marks<'a> {
    controls: &'a Controls,
    /// Words that the template may search for, sorted. None is a prefix of another.
    words: Vec<&'a str>,
    /// Whether the template leaves names incomplete.
    has_incomplete: bool,
}

impl<'a> Marks<'a> {
    /// `values` are variables that the template writes: the names of the bos and eos tokens.
    pub(crate) fn new(controls: &'a Controls, source: &'a str, values: [&str; 2]) -> Marks<'a> {
        let mut words = BTreeSet::new();
        let is_incomplete =
            |value: &&str| !value.is_empty() && controls.is_prefix(&value.to_ascii_lowercase());
        let mut has_incomplete = values.iter().any(is_incomplete);
        for (at, _) in source.char_indices().filter(|(_, c)| controls.first_chars.contains(c)) {
            // A word ends at white space, a quote, a backslash or a brace.
            let ends = |c: char| c.is_whitespace() || matches!(c, '\'' | '"' | '\\' | '{');
            let rest = &source[at..];
            let mut end = rest.char_indices().filter(|(end, c)| *end >= MAX_EXACT_LEN || ends(*c));
            let (word, after) = rest.split_at(end.next().map_or(rest.len(), |(end, _)| end));
            let lower = word.to_ascii_lowercase();
            if controls.is_prefix(&lower) {
                has_incomplete |= controls.has_long || after.trim_start().chars().next().is_none_or(ends);
            } else if !word.is_empty() && !controls.starts_with_name(&lower) {
                words.insert(word);
            }
        }
        if has_incomplete {
            words.retain(|word| !controls.any_contains(&word.to_ascii_lowercase()));
        }
        // A word that starts with a shorter one is redundant.
        let mut shortest: Vec<&str> = Vec::new();
        for word in words {
            if !shortest.last().is_some_and(|last| word.starts_with(last)) {
                shortest.push(word);
            }
        }
        Marks { controls, words: shortest, has_incomplete }
    }

    /// The positions of marks in a text, in order.
    fn positions(&self, text: &str) -> impl Iterator<Item = usize> {
        let inner = text.trim();
        let within_name = self.has_incomplete
            && !inner.is_empty()
            && self.controls.any_contains(&inner.to_ascii_lowercase());
        let front = within_name.then(|| text.len() - text.trim_start().len());
        let mut word_end = 0;
        text.char_indices().flat_map(move |(at, character)| {
            let rest = &text[at..];
            let starts = self.controls.first_chars.contains(&character);
            let word = if starts { self.word(rest) } else { None };
            word_end = word_end.max(word.map_or(0, |word| at + word.len()));
            let ends =
                self.has_incomplete && self.controls.last_chars.contains(&character.to_ascii_lowercase());
            let before = front == Some(at) || (ends && at >= word_end);
            let after = starts && word.is_none();
            [before.then_some(at), after.then_some(at + character.len_utf8())].into_iter().flatten()
        })
    }

    /// The template's word that a text starts with.
    fn word(&self, text: &str) -> Option<&'a str> {
        let after = self.words.partition_point(|word| *word <= text);
        let last = *self.words[..after].last()?;
        text.starts_with(last).then_some(last)
    }

    /// Whether a text needs marks.
    pub(crate) fn needed(&self, text: &str) -> bool {
        self.positions(text).next().is_some()
    }

    /// Inserts marks into a text.
    pub(crate) fn insert(&self, text: &str, mark: char) -> String {
        let mut out = String::with_capacity(text.len());
        let mut from = 0;
        for at in self.positions(text) {
            out.push_str(&text[from..at]);
            out.push(mark);
            from = at;
        }
        out.push_str(&text[from..]);
        out
    }
}
