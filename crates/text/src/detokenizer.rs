//! Ids to text as they come.
//!
//! A character may be spread over several tokens (byte tokens, byte-level BPE). Bytes that may still become a character
//! are held back, at most three; those that cannot are replaced as `String::from_utf8_lossy` would over the whole.

use crate::tokenizer::{DecodeSpecial, Tokenizer};

/// Turns ids into text, one by one. What `push` and `finish` return, joined, is what [`Tokenizer::decode`] makes of all.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    shown: DecodeSpecial,
    /// Control tokens that are shown in any case.
    also: Vec<u32>,
    /// Bytes that are the start of a character.
    held: Vec<u8>,
    /// The next space was put there by the tokenizer.
    drop_space: bool,
}

impl Detokenizer {
    /// For one sequence of ids.
    pub fn new(tokenizer: &Tokenizer, shown: DecodeSpecial) -> Detokenizer {
        Detokenizer {
            drop_space: tokenizer.space_prefix(),
            tokenizer: tokenizer.clone(),
            shown,
            also: Vec::new(),
            held: Vec::new(),
        }
    }

    /// The same, but these control tokens are shown in any case.
    pub fn keeping(self, also: impl IntoIterator<Item = u32>) -> Detokenizer {
        Detokenizer { also: also.into_iter().collect(), ..self }
    }

    /// The text that this id completes: often one word, sometimes none.
    pub fn push(&mut self, id: u32) -> String {
        let mut text = String::new();
        self.push_to(id, &mut text);
        text
    }

    /// [`Detokenizer::push`] into a text that is there already.
    pub fn push_to(&mut self, id: u32, text: &mut String) {
        let special = self.tokenizer.is_special(id);
        if special && self.shown == DecodeSpecial::Skip && !self.also.contains(&id) {
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

    /// What is still held back: one replacement character, or nothing.
    pub fn finish(mut self) -> String {
        let mut text = String::new();
        self.finish_to(&mut text);
        text
    }

    /// [`Detokenizer::finish`] into a text that is there already. The next id starts a new text.
    pub fn finish_to(&mut self, text: &mut String) {
        text.push_str(&String::from_utf8_lossy(&self.held));
        self.held.clear();
        self.drop_space = self.tokenizer.space_prefix();
    }
}

/// How many bytes at the end are the start of a character that may still be completed.
fn incomplete_tail(bytes: &[u8]) -> usize {
    // A character has four bytes at most: look at the last three, where its first byte would be.
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
