//! The tokenizer itself: text to ids and back, whichever file it came from.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use crate::Detokenizer;
use crate::marks::Controls;
use crate::merge::{Merger, Symbol};
use crate::pieces::{Class, NONE, Pieces};
use crate::pretokens::Pretokens;
use crate::specials::{Part, Specials};
use crate::vocabulary::{MARK, byte_token};

/// What to do with the names of control tokens in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeSpecial {
    /// They are those tokens: for text that a chat template made.
    Parse,
    /// They are text like any other: for what a stranger wrote. No control token comes out.
    AsText,
}

/// Which tokens decoding shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeSpecial {
    /// All, control tokens by their names.
    Keep,
    /// Text only.
    Skip,
}

/// How symbols are merged.
pub(crate) enum Model {
    /// Any pair whose text is a token; the rank of each token comes from its score.
    Scores(Vec<u32>),
    /// Pairs of a list, over characters.
    Pairs(HashMap<u64, (u32, u32)>),
    /// Pairs of a list, over the bytes of words.
    Words {
        /// (left, right) → (rank, merged).
        pairs: HashMap<u64, (u32, u32)>,
        /// Where words begin and end.
        words: Pretokens,
        /// Text is brought into Unicode's normal form C first.
        nfc: bool,
    },
}

pub(crate) struct Inner {
    pub(crate) pieces: Pieces,
    pub(crate) model: Model,
    /// Tokens that are cut out of any text.
    pub(crate) as_text: Specials,
    /// Those and the control tokens.
    pub(crate) parsed: Specials,
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) unknown: Option<u32>,
    pub(crate) ends: Vec<u32>,
    pub(crate) add_bos: bool,
    pub(crate) space_prefix: bool,
    /// Spaces are written as U+2581 in the vocabulary.
    pub(crate) marks: bool,
    /// Neighbours that are unknown make one unknown token.
    pub(crate) fuse_unknown: bool,
}

/// Symbols are numbered in 32 bits: a longer text is merged in stretches of this many bytes.
const STRETCH: usize = 1 << 30;

/// Text to token ids and back. A clone shares everything.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>, Arc<Controls>);

impl Tokenizer {
    pub(crate) fn new(inner: Inner) -> Tokenizer {
        let names = (0..inner.pieces.len() as u32)
            .filter(|id| inner.pieces.class(*id).is_some_and(Class::is_special))
            .filter_map(|id| std::str::from_utf8(inner.pieces.get(id)?).ok());
        let controls = Controls::new(names);
        Tokenizer(Arc::new(inner), Arc::new(controls))
    }

    /// The ids of a text, without a beginning-of-text token. Where a byte is neither in the vocabulary nor is there an
    /// unknown token, it is left out.
    pub fn encode(&self, text: &str, special: EncodeSpecial) -> Vec<u32> {
        let mut ids = Vec::new();
        self.encode_into(text, special, None, &mut ids);
        ids
    }

    /// The ids of a prompt: control tokens are parsed, and the beginning-of-text token stands first exactly once, even
    /// where the text (from a chat template) begins with it. Models without one get none.
    pub fn encode_prompt(&self, text: &str) -> Vec<u32> {
        self.encode_marked(text, None)
    }

    /// The same for a text in which `mark` keeps what someone else than the template has written from being the name of a control
    /// token ([`Marks`](crate::marks::Marks)): that is text like any other. The marks are no part of the text.
    pub(crate) fn encode_marked(&self, text: &str, mark: Option<char>) -> Vec<u32> {
        let mut ids: Vec<u32> = self.0.bos.filter(|_| self.0.add_bos).into_iter().collect();
        let own = ids.len();
        self.encode_into(text, EncodeSpecial::Parse, mark, &mut ids);
        if own == 1 {
            let doubled = ids[1..].iter().take_while(|id| **id == ids[0]).count();
            ids.drain(1..1 + doubled);
        }
        ids
    }

    fn encode_into(&self, text: &str, special: EncodeSpecial, mark: Option<char>, ids: &mut Vec<u32>) {
        let inner = &*self.0;
        let specials = match special {
            EncodeSpecial::Parse => &inner.parsed,
            EncodeSpecial::AsText => &inner.as_text,
        };
        let mut merger = Merger::default();
        let mut after_text = false;
        let mut add = |part: Part<'_>| match part {
            Part::Token(id) => {
                after_text = false;
                ids.push(id);
            }
            Part::Text(text) => {
                inner.text(text, inner.space_prefix && !after_text, &mut merger, ids);
                after_text = true;
            }
        };
        specials.split(text, |part| match (part, mark) {
            // What the marks kept from being parsed is text; tokens that stand in any text are found in it now.
            (Part::Text(text), Some(mark)) if text.contains(mark) => {
                inner.as_text.split(&text.replace(mark, ""), &mut add);
            }
            (part, _) => add(part),
        });
    }

    /// The names of control tokens.
    pub(crate) fn controls(&self) -> &Controls {
        &self.1
    }

    /// The text of ids, bytes that are no UTF-8 replaced. Ids outside the vocabulary have no text.
    pub fn decode(&self, ids: &[u32], shown: DecodeSpecial) -> String {
        let mut stream = Detokenizer::new(self, shown);
        let mut text = String::new();
        for id in ids {
            stream.push_to(*id, &mut text);
        }
        stream.finish_to(&mut text);
        text
    }

    /// The raw bytes that a token stands for: a space for its mark, one byte for a byte token, the name of a control
    /// token. They need not be whole characters.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.0.pieces.get(id)
    }

    /// How many tokens the vocabulary has. A model may have more rows than this.
    pub fn vocab_size(&self) -> usize {
        self.0.pieces.len()
    }

    /// The id of a token, by its name in the vocabulary (`▁the`, `<0x0A>`, `<bos>`); for byte-level vocabularies by its
    /// own text.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        let pieces = &self.0.pieces;
        let byte =
            || Some(pieces.bytes[byte_token(token)? as usize]).filter(|id| self.0.marks && *id != NONE);
        let text = || if self.0.marks { pieces.find(text_of_marks(token).as_bytes()) } else { None };
        byte().or_else(|| pieces.find(token.as_bytes())).or_else(text)
    }

    /// Whether a token is control (or the unknown token) and no text.
    pub fn is_special(&self, id: u32) -> bool {
        self.0.pieces.class(id).is_some_and(Class::is_special)
    }

    /// Whether a token is one raw byte, for text that the vocabulary has no other token for.
    pub fn is_byte(&self, id: u32) -> bool {
        self.0.pieces.class(id) == Some(Class::Byte)
    }

    /// The beginning-of-text token, whether or not prompts start with it.
    pub fn bos(&self) -> Option<u32> {
        self.0.bos
    }

    /// Whether prompts start with [`Tokenizer::bos`].
    pub fn adds_bos(&self) -> bool {
        self.0.add_bos
    }

    /// The end-of-text token that the file names.
    pub fn eos(&self) -> Option<u32> {
        self.0.eos
    }

    /// All tokens that end a generation: the one that the file names and the ends of turns and texts known by name.
    pub fn stop_token_ids(&self) -> &[u32] {
        &self.0.ends
    }

    /// The name of a token that is text or control, for templates: `<bos>`.
    pub fn token_name(&self, id: u32) -> Option<Cow<'_, str>> {
        self.0.pieces.get(id).map(String::from_utf8_lossy)
    }

    /// Whether the first space of a decoded text was not written by anyone.
    pub(crate) fn space_prefix(&self) -> bool {
        self.0.space_prefix
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("ends", &self.stop_token_ids())
            .finish_non_exhaustive()
    }
}

/// A text with the marks of spaces turned into spaces.
pub(crate) fn text_of_marks(text: &str) -> Cow<'_, str> {
    if text.contains(MARK) { Cow::Owned(text.replace(MARK, " ")) } else { Cow::Borrowed(text) }
}

/// A text in Unicode's normal form C. Most are already, which a look at each character tells.
fn normalized(text: &str) -> Cow<'_, str> {
    match is_nfc_quick(text.chars()) {
        IsNormalized::Yes => Cow::Borrowed(text),
        IsNormalized::No | IsNormalized::Maybe => Cow::Owned(text.nfc().collect()),
    }
}

impl Inner {
    /// Tokenizes text that holds no special token.
    fn text(&self, text: &str, prefix: bool, merger: &mut Merger, ids: &mut Vec<u32>) {
        if let Model::Words { pairs, words, nfc } = &self.model {
            let text = if *nfc { normalized(text) } else { Cow::Borrowed(text) };
            return words.split(&text, |word| self.word(word, pairs, words.whole_words, merger, ids));
        }
        // A mark in the text is a space like any other. Tokens are kept with spaces for marks, so that text is looked up
        // as it is.
        let mut text = text_of_marks(text);
        if prefix {
            text.to_mut().insert(0, ' ');
        }
        let mut rest = &*text;
        while !rest.is_empty() {
            let cut = (0..=rest.len().min(STRETCH)).rev().find(|at| rest.is_char_boundary(*at));
            let (stretch, after) = rest.split_at(cut.unwrap_or(rest.len()));
            self.characters(stretch, merger, ids);
            rest = after;
        }
    }

    fn characters(&self, text: &str, merger: &mut Merger, ids: &mut Vec<u32>) {
        merger.clear();
        let mut letter = [0; 4];
        for (start, character) in text.char_indices() {
            let bytes = character.encode_utf8(&mut letter).as_bytes();
            match self.pieces.find_text(bytes) {
                Some(id) => merger.push(start, bytes.len(), id),
                // Pairs of a list may name byte tokens, so those are symbols from the start.
                None if matches!(self.model, Model::Pairs(_)) && self.has_bytes(bytes) => {
                    for (i, byte) in bytes.iter().enumerate() {
                        merger.push(start + i, 1, self.pieces.bytes[*byte as usize]);
                    }
                }
                None if matches!(self.model, Model::Pairs(_)) && self.unknown.is_none() => {}
                None => merger.push(start, bytes.len(), NONE),
            }
        }
        match &self.model {
            Model::Scores(ranks) => merger.run(|left, right| {
                let id = self.pieces.find_text(&text.as_bytes()[span(left, right)])?;
                Some((ranks[id as usize], id))
            }),
            Model::Pairs(pairs) | Model::Words { pairs, .. } => {
                merger.run(|left, right| pair(pairs, left, right))
            }
        }
        self.emit(text.as_bytes(), merger, ids);
    }

    fn word(
        &self,
        word: &str,
        pairs: &HashMap<u64, (u32, u32)>,
        whole: bool,
        merger: &mut Merger,
        ids: &mut Vec<u32>,
    ) {
        if whole && let Some(id) = self.pieces.find_text(word.as_bytes()) {
            return ids.push(id);
        }
        for stretch in word.as_bytes().chunks(STRETCH) {
            merger.clear();
            for (start, byte) in stretch.iter().enumerate() {
                let id = self.pieces.bytes[*byte as usize];
                // Left out before merging, not after: its neighbours then may merge. Hugging Face's do.
                if id != NONE || self.unknown.is_some() {
                    merger.push(start, 1, id);
                }
            }
            merger.run(|left, right| pair(pairs, left, right));
            self.emit(stretch, merger, ids);
        }
    }

    fn has_bytes(&self, bytes: &[u8]) -> bool {
        bytes.iter().all(|byte| self.pieces.bytes[*byte as usize] != NONE)
    }

    /// Appends the tokens of merged symbols; what the vocabulary lacks is spelled in bytes or becomes the unknown token.
    fn emit(&self, text: &[u8], merger: &Merger, ids: &mut Vec<u32>) {
        let mut was_unknown = false;
        for symbol in merger.symbols() {
            let bytes = &text[symbol.start as usize..][..symbol.len as usize];
            let spelled = symbol.id != NONE || self.has_bytes(bytes);
            if symbol.id != NONE {
                ids.push(symbol.id);
            } else if spelled {
                ids.extend(bytes.iter().map(|byte| self.pieces.bytes[*byte as usize]));
            } else if !(was_unknown && self.fuse_unknown) {
                ids.extend(self.unknown);
            }
            was_unknown = !spelled;
        }
    }
}

fn span(left: &Symbol, right: &Symbol) -> std::ops::Range<usize> {
    left.start as usize..(right.start + right.len) as usize
}

fn pair(pairs: &HashMap<u64, (u32, u32)>, left: &Symbol, right: &Symbol) -> Option<(u32, u32)> {
    pairs.get(&(u64::from(left.id) << 32 | u64::from(right.id))).copied()
}
