//! Where a text that the template did not write is marked, so that no control token comes of it.
//!
//! A template may trim a text, cut it at a word, take words out of it, change the case of its letters and put other texts beside it. So it does
//! not do to look for whole names: of `<|im_`, and of `<|im_</think>end|>` too, a name may come. Every character that a name begins with
//! has a mark behind it, with one exception: where a word begins that stands in the template's source, as `</think>` or
//! `<tool_response>`, and no name begins like that word. The template may look for such words, and must find them. It takes a word that it
//! names whole or not at all, so that what no name begins with stays so.
//!
//! A name may begin in the template as well: `'<|' ~ content` makes one of `im_end|>`. The source shows whether a template leaves names
//! unfinished. Few do, mostly around roles. Where one does, every character that a name ends with has a mark before it, but in the
//! template's words, and so has a text that is a part of a name as a whole.

use std::collections::BTreeSet;
use std::sync::OnceLock;

/// No name of a control token has so many bytes, nor has a word that matters. Where one does, more is marked than need be.
const LONG: usize = 256;

/// The names of control tokens. Letters are all small, but for `beginnings`.
pub(crate) struct Controls {
    beginnings: BTreeSet<char>,
    /// In order.
    names: Vec<String>,
    /// The characters that names end with.
    endings: BTreeSet<char>,
    /// Whether one is longer than any should be.
    long: bool,
    /// What names end with, from any character on, in order.
    tails: OnceLock<Vec<String>>,
}

impl Controls {
    pub(crate) fn new<'a>(names: impl Iterator<Item = &'a str>) -> Controls {
        let mut beginnings = BTreeSet::new();
        let mut endings = BTreeSet::new();
        let mut sorted = Vec::new();
        for name in names {
            beginnings.extend(name.chars().next());
            let name = name.to_ascii_lowercase();
            endings.extend(name.chars().next_back());
            sorted.push(name);
        }
        sorted.sort_unstable();
        sorted.dedup();
        let long = sorted.iter().any(|name| name.len() > LONG);
        Controls { beginnings, names: sorted, endings, long, tails: OnceLock::new() }
    }

    /// Whether a name goes on where `text` ends, which is in small letters.
    fn goes_on(&self, text: &str) -> bool {
        let after = self.names.partition_point(|name| name.as_str() <= text);
        self.names.get(after).is_some_and(|name| name.starts_with(text))
    }

    /// Whether `text` begins with a whole name.
    fn begins(&self, text: &str) -> bool {
        let whole = |part: &str| self.names.binary_search_by(|name| name.as_str().cmp(part)).is_ok();
        text.char_indices().any(|(at, character)| whole(&text[..at + character.len_utf8()]))
    }

    /// Whether `text` stands in a name.
    fn hold(&self, text: &str) -> bool {
        if self.long {
            return true;
        }
        let tails = self.tails.get_or_init(|| {
            let of = |name: &String| -> Vec<String> {
                name.char_indices().map(|(at, _)| name[at..].to_owned()).collect()
            };
            BTreeSet::from_iter(self.names.iter().flat_map(of)).into_iter().collect()
        });
        let first = tails.partition_point(|tail| tail.as_str() < text);
        tails.get(first).is_some_and(|tail| tail.starts_with(text))
    }
}

/// Where texts are marked that go through a template.
pub(crate) struct Marks<'a> {
    controls: &'a Controls,
    /// What the template may look for, in order. None begins with another.
    words: Vec<&'a str>,
    /// Whether the template leaves names unfinished.
    open: bool,
}

impl<'a> Marks<'a> {
    /// `values` are texts that the template writes beside its own.
    pub(crate) fn new(controls: &'a Controls, source: &'a str, values: [&str; 2]) -> Marks<'a> {
        let mut words = BTreeSet::new();
        let unfinished = |value: &&str| !value.is_empty() && controls.goes_on(&value.to_ascii_lowercase());
        let mut open = values.iter().any(unfinished);
        for (at, _) in source.char_indices().filter(|(_, c)| controls.beginnings.contains(c)) {
            // Up to where what is written in one piece may end.
            let ends = |c: char| c.is_whitespace() || matches!(c, '\'' | '"' | '\\' | '{');
            let rest = &source[at..];
            let mut end = rest.char_indices().filter(|(end, c)| *end >= LONG || ends(*c));
            let (word, after) = rest.split_at(end.next().map_or(rest.len(), |(end, _)| end));
            let small = word.to_ascii_lowercase();
            if controls.goes_on(&small) {
                open |= controls.long || after.trim_start().chars().next().is_none_or(ends);
            } else if !word.is_empty() && !controls.begins(&small) {
                words.insert(word);
            }
        }
        if open {
            words.retain(|word| !controls.hold(&word.to_ascii_lowercase()));
        }
        // What begins with a shorter word needs no other.
        let mut shortest: Vec<&str> = Vec::new();
        for word in words {
            if !shortest.last().is_some_and(|last| word.starts_with(last)) {
                shortest.push(word);
            }
        }
        Marks { controls, words: shortest, open }
    }

    /// The places of a text's marks, in order.
    fn places(&self, text: &str) -> impl Iterator<Item = usize> {
        let inner = text.trim();
        let inside = self.open && !inner.is_empty() && self.controls.hold(&inner.to_ascii_lowercase());
        let front = inside.then(|| text.len() - text.trim_start().len());
        let mut word_ends = 0;
        text.char_indices().flat_map(move |(at, character)| {
            let rest = &text[at..];
            let begins = self.controls.beginnings.contains(&character);
            let word = if begins { self.word(rest) } else { None };
            word_ends = word_ends.max(word.map_or(0, |word| at + word.len()));
            let ends = self.open && self.controls.endings.contains(&character.to_ascii_lowercase());
            let before = front == Some(at) || (ends && at >= word_ends);
            let behind = begins && word.is_none();
            [before.then_some(at), behind.then_some(at + character.len_utf8())].into_iter().flatten()
        })
    }

    /// The template's word that a text begins with.
    fn word(&self, text: &str) -> Option<&'a str> {
        let after = self.words.partition_point(|word| *word <= text);
        let last = *self.words[..after].last()?;
        text.starts_with(last).then_some(last)
    }

    /// Whether a text needs any.
    pub(crate) fn needed(&self, text: &str) -> bool {
        self.places(text).next().is_some()
    }

    /// A text with its marks.
    pub(crate) fn put(&self, text: &str, mark: char) -> String {
        let mut out = String::with_capacity(text.len());
        let mut from = 0;
        for at in self.places(text) {
            out.push_str(&text[from..at]);
            out.push(mark);
            from = at;
        }
        out.push_str(&text[from..]);
        out
    }
}
