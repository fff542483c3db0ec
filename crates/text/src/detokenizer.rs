//! Incremental detokenisation.
//!
//! A character may span several tokens (byte tokens, byte-level BPE). Up to three bytes that may still become
//! a character are held back. Invalid bytes are replaced as `String::from_utf8_lossy` would for the
//! complete text.

use crate::tokenizer::{DecodeSpecial, Tokenizer};

/// Decodes ids one by one. The results of `push` and `finish`, concatenated, equal [`Tokenizer::decode`] of
/// all ids.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    special: DecodeSpecial,
    /// Control tokens that are written even with [`DecodeSpecial::Skip`].
    keep: Vec<u32>,
    /// The start of an incomplete character.
    held: Vec<u8>,
    /// Whether the next leading space was added by the tokenizer.
    drop_space: bool,
}

impl Detokenizer {
    /// A detokenizer for one sequence of ids.
    pub fn new(tokenizer: &Tokenizer, special: DecodeSpecial) -> Detokenizer {
        Detokenizer {
            drop_space: tokenizer.space_prefix(),
            tokenizer: tokenizer.clone(),
            special,
            keep: Vec::new(),
            held: Vec::new(),
        }
    }

    /// The same detokenizer, which writes the names of these control tokens even with
    /// [`DecodeSpecial::Skip`].
    pub fn keeping(self, ids: impl IntoIterator<Item = u32>) -> Detokenizer {
        Detokenizer { keep: ids.into_iter().collect(), ..self }
    }

    /// Adds an id and returns the text that it completes, which may be empty.
    pub fn push(&mut self, id: u32) -> String {
        let mut text = String::new();
        self.push_to(id, &mut text);
        text
    }

    /// [`Detokenizer::push`], appending to existing text.
    pub fn push_to(&mut self, id: u32, text: &mut String) {
        let special = self.tokenizer.is_special(id);
        if special && self.special == DecodeSpecial::Skip && !self.keep.contains(&id) {
            return;
        }
        let mut bytes = self.tokenizer.token_bytes(id).unwrap_or_default();
        if !special && !bytes.is_empty() && std::mem::take(&mut self.drop_space) {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.held.extend_from_slice(bytes);
        let complete = self.held.len() - incomplete_tail(&self.held);
        text.push_str(&String::from_utf8_lossy(&self.held[..complete]));
        self.held.drain(..complete);
    }

    /// Ends the sequence and returns the text of the bytes held back: one replacement character, or nothing.
    pub fn finish(mut self) -> String {
        let mut text = String::new();
        self.finish_to(&mut text);
        text
    }

    /// [`Detokenizer::finish`], appending to existing text. The next id starts a new sequence.
    pub fn finish_to(&mut self, text: &mut String) {
        text.push_str(&String::from_utf8_lossy(&self.held));
        self.held.clear();
        self.drop_space = self.tokenizer.space_prefix();
    }
}

/// Number of bytes at the end that are the start of an incomplete character.
fn incomplete_tail(bytes: &[u8]) -> usize {
    // A character has at most four bytes, so an incomplete one starts within the last three.
    for length in 1..=bytes.len().min(3) {
        let tail = &bytes[bytes.len() - length..];
        if tail[0] & 0xc0 == 0x80 {
            continue;
        }
        let error = std::str::from_utf8(tail).err();
        return if error.is_some_and(|e| e.valid_up_to() == 0 && e.error_len().is_none()) {
            length
        } else {
            0
        };
    }
    0
}
