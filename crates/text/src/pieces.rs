//! The bytes of every token, and the way back from bytes to a token.
//!
//! All bytes lie in one arena; the index is a table of ids that compares with the arena. A vocabulary of 262144 tokens
//! then costs a handful of allocations, and a lookup none. The hash is the standard library's keyed one: a file
//! cannot choose tokens that collide.

use std::hash::{BuildHasher, RandomState};

use crate::error::{Result, invalid};

/// No token.
pub(crate) const NONE: u32 = u32::MAX;

/// More tokens than any vocabulary has. It bounds what a hostile id can make us allocate.
pub(crate) const MAX_TOKENS: usize = 1 << 22;

/// What a token is for, as GGUF's `tokenizer.ggml.token_type` numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// A piece of text.
    Normal,
    /// Stands for text that is not in the vocabulary.
    Unknown,
    /// Steers the model and is no text.
    Control,
    /// Text that is always one token, whatever stands beside it.
    UserDefined,
    /// One raw byte.
    Byte,
}

impl Class {
    /// From GGUF's number. Kinds that nobody writes (undefined, unused) are text.
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

    /// Whether merging may produce it. Control tokens never come from plain text.
    pub(crate) fn is_text(self) -> bool {
        matches!(self, Class::Normal | Class::UserDefined)
    }
}

/// A place of the index.
#[derive(Clone, Copy)]
struct Place {
    key: u64,
    /// [`NONE`] where the place is free.
    id: u32,
}

/// Tokens up to this length are their own key: most lookups then end in the table, without a look at the arena.
const SHORT: usize = 7;

/// Every token's bytes and class. See the module.
pub(crate) struct Pieces {
    arena: Vec<u8>,
    /// Where token i ends; it begins where its predecessor ends.
    ends: Vec<u32>,
    classes: Vec<Class>,
    /// Open addressing with linear steps, a power of two of places, at most half of them taken.
    table: Vec<Place>,
    hasher: RandomState,
    /// The token of each raw byte, or [`NONE`].
    pub(crate) bytes: Box<[u32; 256]>,
    /// The longest text token: no longer string needs to be looked up.
    longest: usize,
}

impl Pieces {
    /// From tokens in the order of their ids. `raw` turns a token into its bytes, appended to the arena.
    pub(crate) fn new<T>(
        tokens: &[T],
        class: impl Fn(usize) -> Class,
        mut raw: impl FnMut(&T, Class, &mut Vec<u8>) -> Result<()>,
    ) -> Result<Pieces> {
        if tokens.is_empty() {
            return Err(invalid("the vocabulary is empty"));
        }
        if tokens.len() > MAX_TOKENS {
            return Err(invalid(format!("{} tokens, more than the limit of {MAX_TOKENS}", tokens.len())));
        }
        let mut pieces = Pieces {
            arena: Vec::with_capacity(tokens.len() * 8),
            ends: Vec::with_capacity(tokens.len()),
            classes: Vec::with_capacity(tokens.len()),
            table: vec![Place { key: 0, id: NONE }; (tokens.len() * 2).next_power_of_two()],
            hasher: RandomState::new(),
            bytes: Box::new([NONE; 256]),
            longest: 0,
        };
        for (id, token) in tokens.iter().enumerate() {
            let class = class(id);
            raw(token, class, &mut pieces.arena)?;
            let end =
                u32::try_from(pieces.arena.len()).map_err(|_| invalid("its tokens fill more than 4 GiB"))?;
            pieces.ends.push(end);
            pieces.classes.push(class);
            pieces.enter(id as u32);
        }
        Ok(pieces)
    }

    fn enter(&mut self, id: u32) {
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
        let (place, key) = self.place(bytes);
        // A token that occurs twice keeps its first id, but text wins over control: text must not become control.
        let old = self.table[place].id;
        if old == NONE || (class.is_text() && !self.classes[old as usize].is_text()) {
            self.table[place] = Place { key, id };
        }
        if class.is_text() {
            self.longest = self.longest.max(length);
        }
    }

    /// Where the table holds these bytes, or would, and their key.
    fn place(&self, bytes: &[u8]) -> (usize, u64) {
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
            // No short token has this in its last byte.
            (hash, hash | 0xff << 56)
        };
        let mut place = hash as usize & mask;
        loop {
            let here = self.table[place];
            if here.id == NONE || (here.key == key && (short || self.get(here.id) == Some(bytes))) {
                return (place, key);
            }
            place = (place + 1) & mask;
        }
    }

    /// For byte-level vocabularies, whose bytes are text tokens: makes those the tokens of raw bytes.
    pub(crate) fn spell_bytes(&mut self) {
        let bytes = std::array::from_fn(|byte| self.find_text(&[byte as u8]).unwrap_or(NONE));
        *self.bytes = bytes;
    }

    /// How many tokens there are.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// A token's bytes.
    pub(crate) fn get(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.ends.get(id)? as usize;
        let start = if id == 0 { 0 } else { self.ends[id - 1] as usize };
        Some(&self.arena[start..end])
    }

    /// A token's class.
    pub(crate) fn class(&self, id: u32) -> Option<Class> {
        self.classes.get(id as usize).copied()
    }

    /// The token of these bytes, of any class but byte.
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<u32> {
        Some(self.table[self.place(bytes).0].id).filter(|&id| id != NONE)
    }

    /// The token of this text, if plain text may become it.
    pub(crate) fn find_text(&self, bytes: &[u8]) -> Option<u32> {
        if bytes.len() > self.longest {
            return None;
        }
        self.find(bytes).filter(|&id| self.classes[id as usize].is_text())
    }

    /// All tokens of a class, with their bytes.
    pub(crate) fn of_class(&self, class: Class) -> impl Iterator<Item = (u32, &[u8])> {
        let all = self.classes.iter().enumerate().filter(move |(_, c)| **c == class);
        all.filter_map(|(id, _)| Some((id as u32, self.get(id as u32)?)))
    }
}
