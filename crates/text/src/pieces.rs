//! The bytes of every token, and lookup of tokens by bytes.
//!
//! All bytes are in one arena; the index is a hash table of ids that compares with the arena. A vocabulary of
//! 262,144 tokens then costs a handful of allocations, and a lookup none. The hash is the standard library's
//! keyed one, so that a file cannot contain tokens chosen to collide.

use std::hash::{BuildHasher, RandomState};

use crate::error::{Result, invalid};

/// Placeholder for the id of a token that does not exist.
pub(crate) const NONE: u32 = u32::MAX;

/// Maximum vocabulary size. It bounds the allocation that a malicious id can cause.
pub(crate) const MAX_TOKENS: usize = 1 << 22;

/// Token class, numbered as in GGUF's `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Text.
    Normal,
    /// The unknown token, for text that is not in the vocabulary.
    Unknown,
    /// A control token, not text.
    Control,
    /// Text that is always matched as one token.
    UserDefined,
    /// One raw byte.
    Byte,
}

impl Class {
    /// From GGUF's number. Other values (undefined, unused) count as text.
    pub(crate) fn from_gguf(number: i32) -> Class {
        match number {
            2 => Class::Unknown,
            3 => Class::Control,
            4 => Class::UserDefined,
            6 => Class::Byte,
            _ => Class::Normal,
        }
    }

    pub(crate) fn is_special(self) -> bool {
        matches!(self, Class::Control | Class::Unknown)
    }

    /// Whether plain text may become this token. Control tokens never come from plain text.
    pub(crate) fn is_text(self) -> bool {
        matches!(self, Class::Normal | Class::UserDefined)
    }
}

/// A slot of the hash table.
#[derive(Clone, Copy)]
struct Slot {
    key: u64,
    /// [`NONE`] in a free slot.
    id: u32,
}

/// Tokens up to this length are their own key, so that most lookups do not access the arena.
const SHORT: usize = 7;

/// The bytes and class of every token; see the module documentation.
pub(crate) struct Pieces {
    arena: Vec<u8>,
    /// End offset of each token in the arena; it starts at the end of its predecessor.
    ends: Vec<u32>,
    classes: Vec<Class>,
    /// Open addressing with linear probing; a power of two of slots, at most half of them used.
    table: Vec<Slot>,
    hasher: RandomState,
    /// The token of each byte, or [`NONE`].
    pub(crate) bytes: Box<[u32; 256]>,
    /// Length of the longest text token; longer strings need no lookup.
    max_len: usize,
}

impl Pieces {
    /// Builds the index from tokens in id order. `raw` appends the bytes of a token to the arena.
    pub(crate) fn new<T>(
        tokens: &[T],
        class: impl Fn(usize) -> Class,
        mut raw: impl FnMut(&T, Class, &mut Vec<u8>) -> Result<()>,
    ) -> Result<Pieces> {
        if tokens.is_empty() {
            return Err(invalid("the vocabulary is empty"));
        }
        if tokens.len() > MAX_TOKENS {
            return Err(invalid(format!("{} tokens exceed the limit of {MAX_TOKENS}", tokens.len())));
        }
        let mut pieces = Pieces {
            arena: Vec::with_capacity(tokens.len() * 8),
            ends: Vec::with_capacity(tokens.len()),
            classes: Vec::with_capacity(tokens.len()),
            table: vec![Slot { key: 0, id: NONE }; (tokens.len() * 2).next_power_of_two()],
            hasher: RandomState::new(),
            bytes: Box::new([NONE; 256]),
            max_len: 0,
        };
        for (id, token) in tokens.iter().enumerate() {
            let class = class(id);
            raw(token, class, &mut pieces.arena)?;
            let end = u32::try_from(pieces.arena.len())
                .map_err(|_| invalid("its tokens have more than 4 GiB of text"))?;
            pieces.ends.push(end);
            pieces.classes.push(class);
            pieces.insert(id as u32);
        }
        Ok(pieces)
    }

    fn insert(&mut self, id: u32) {
        let bytes = self.get(id).unwrap_or_default();
        let class = self.classes[id as usize];
        if class == Class::Byte {
            if let [byte] = *bytes
                && self.bytes[byte as usize] == NONE
            {
                self.bytes[byte as usize] = id;
            }
            return;
        }
        if bytes.is_empty() {
            return;
        }
        let length = bytes.len();
        let (slot, key) = self.slot(bytes);
        // A duplicate keeps its first id, but text takes precedence over control: text must not become a
        // control token.
        let old = self.table[slot].id;
        if old == NONE || (class.is_text() && !self.classes[old as usize].is_text()) {
            self.table[slot] = Slot { key, id };
        }
        if class.is_text() {
            self.max_len = self.max_len.max(length);
        }
    }

    /// The slot that contains these bytes, or the free slot for them, and their key.
    fn slot(&self, bytes: &[u8]) -> (usize, u64) {
        let mask = self.table.len() - 1;
        let short = bytes.len() <= SHORT;
        let (hash, key) = if short {
            let mut key = [0; 8];
            key[..bytes.len()].copy_from_slice(bytes);
            key[SHORT] = bytes.len() as u8;
            let key = u64::from_le_bytes(key);
            (self.hasher.hash_one(key), key)
        } else {
            let hash = self.hasher.hash_one(bytes);
            // The last byte of a short key is its length, never 0xff.
            (hash, hash | 0xff << 56)
        };
        let mut slot = hash as usize & mask;
        loop {
            let entry = self.table[slot];
            if entry.id == NONE || (entry.key == key && (short || self.get(entry.id) == Some(bytes))) {
                return (slot, key);
            }
            slot = (slot + 1) & mask;
        }
    }

    /// For byte-level vocabularies: uses the single-byte text tokens as byte tokens.
    pub(crate) fn use_text_as_bytes(&mut self) {
        let bytes = std::array::from_fn(|byte| self.find_text(&[byte as u8]).unwrap_or(NONE));
        *self.bytes = bytes;
    }

    /// Number of tokens.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of a token.
    pub(crate) fn get(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.ends.get(id)? as usize;
        let start = if id == 0 { 0 } else { self.ends[id - 1] as usize };
        Some(&self.arena[start..end])
    }

    /// The class of a token.
    pub(crate) fn class(&self, id: u32) -> Option<Class> {
        self.classes.get(id as usize).copied()
    }

    /// The token with these bytes, of any class except [`Class::Byte`].
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<u32> {
        Some(self.table[self.slot(bytes).0].id).filter(|&id| id != NONE)
    }

    /// The token with these bytes, if plain text may become it.
    pub(crate) fn find_text(&self, bytes: &[u8]) -> Option<u32> {
        if bytes.len() > self.max_len {
            return None;
        }
        self.find(bytes).filter(|&id| self.classes[id as usize].is_text())
    }

    /// All tokens of a class with their bytes.
    pub(crate) fn with_class(&self, class: Class) -> impl Iterator<Item = (u32, &[u8])> {
        let all = self.classes.iter().enumerate().filter(move |(_, c)| **c == class);
        all.filter_map(|(id, _)| Some((id as u32, self.get(id as u32)?)))
    }
}
