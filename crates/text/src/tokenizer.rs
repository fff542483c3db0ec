//! The tokenizer: text to token ids and back, independent of the file format it came from.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use crate::Detokenizer;
use crate::fim::FimTokens;
use crate::marks::Controls;
use crate::merge::{Merger, Symbol};
use crate::pieces::{Class, NONE, Pieces};
use crate::pretokens::Pretokens;
use crate::specials::{Span, Specials};
use crate::vocabulary::{METASPACE, byte_token};
use crate::wordpiece::WordPiece;

/// How encoding treats the names of control tokens in text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeSpecial {
    /// As control tokens: for the output of a chat template.
    Parse,
    /// As plain text: for untrusted input. The result contains no control tokens.
    AsText,
}

/// How decoding treats control tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeSpecial {
    /// Write their names.
    Keep,
    /// Omit them.
    Skip,
}

/// How adjacent symbols are merged.
pub(crate) enum Model {
    /// Any pair whose text is a token. Holds the rank of each token, derived from its score.
    Scores(Vec<u32>),
    /// The pairs of a merge list, over characters.
    Pairs {
        /// (left, right) → (rank, merged).
        pairs: HashMap<u64, (u32, u32)>,
        /// Whether runs of line breaks are separate from other text, and whole if they are tokens.
        newline_runs: bool,
    },
    /// The pairs of a merge list, over the bytes of pre-tokenised words.
    Words {
        /// (left, right) → (rank, merged).
        pairs: HashMap<u64, (u32, u32)>,
        /// Splits text into words.
        words: Pretokens,
        /// Whether text is normalised to NFC first.
        nfc: bool,
    },
    /// No merges: the longest tokens that words start with.
    WordPiece(WordPiece),
}

/// The special tokens around a text that is embedded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TextTemplate {
    pub(crate) before: Vec<u32>,
    pub(crate) after: Vec<u32>,
}

/// A text as an embedding model takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedText {
    /// Its tokens, with the special ones around them.
    pub ids: Vec<u32>,
    /// Number of tokens before truncation.
    pub full_length: usize,
}

impl EncodedText {
    /// Whether the end of the text is missing.
    pub fn is_truncated(&self) -> bool {
        self.full_length > self.ids.len()
    }
}

pub(crate) struct Inner {
    pub(crate) pieces: Pieces,
    pub(crate) model: Model,
    /// Tokens that are matched in any text: user-defined ones.
    pub(crate) as_text: Specials,
    /// User-defined and control tokens.
    pub(crate) parsed: Specials,
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) unknown: Option<u32>,
    pub(crate) stop_token_ids: Vec<u32>,
    pub(crate) suppressed_token_ids: Vec<u32>,
    pub(crate) fim: Option<FimTokens>,
    pub(crate) add_bos: bool,
    pub(crate) space_prefix: bool,
    /// Whether the vocabulary writes spaces as U+2581.
    pub(crate) metaspace: bool,
    /// Whether adjacent unknown characters become a single unknown token.
    pub(crate) fuse_unknown: bool,
    pub(crate) template: TextTemplate,
}

/// Maximum bytes merged at once, since symbols use 32-bit offsets. Longer text is merged in chunks.
const MAX_MERGE_BYTES: usize = 1 << 30;

/// Converts text to token ids and back. Cheap to clone.
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

    /// Encodes text, without a beginning-of-text token. Bytes that the vocabulary cannot represent become the
    /// unknown token, or are dropped if there is none.
    pub fn encode(&self, text: &str, special: EncodeSpecial) -> Vec<u32> {
        let mut ids = Vec::new();
        self.encode_into(text, special, None, false, &mut ids);
        ids
    }

    /// Encodes text for an embedding model, with the special tokens that its files prescribe. Of a text with more than
    /// `max_tokens` tokens the end is cut off, but not the special tokens after it. Names of control tokens are text.
    pub fn encode_for_embedding(&self, text: &str, max_tokens: usize) -> EncodedText {
        let TextTemplate { before, after } = &self.0.template;
        let mut ids = before.clone();
        self.encode_into(text, EncodeSpecial::AsText, None, false, &mut ids);
        let full_length = ids.len() + after.len();
        ids.truncate(max_tokens.saturating_sub(after.len()));
        ids.extend(after.iter().take(max_tokens));
        EncodedText { ids, full_length }
    }

    /// Encodes text that continues other text: without the space that SentencePiece adds at the start.
    pub(crate) fn encode_continuation(&self, text: &str, special: EncodeSpecial) -> Vec<u32> {
        let mut ids = Vec::new();
        self.encode_into(text, special, None, true, &mut ids);
        ids
    }

    /// Encodes a prompt: control tokens are parsed, and the beginning-of-text token comes first exactly once,
    /// even if the text (from a chat template) already starts with it. Models that do not use one get none.
    pub fn encode_prompt(&self, text: &str) -> Vec<u32> {
        self.encode_marked(text, None)
    }

    /// [`encode_prompt`](Self::encode_prompt) for text in which `mark` breaks up the names of control tokens
    /// that did not come from the template ([`Marks`](crate::marks::Marks)). Those are encoded as text, and
    /// the marks are removed.
    pub(crate) fn encode_marked(&self, text: &str, mark: Option<char>) -> Vec<u32> {
        let mut ids: Vec<u32> = self.0.bos.filter(|_| self.0.add_bos).into_iter().collect();
        let added_bos = !ids.is_empty();
        self.encode_into(text, EncodeSpecial::Parse, mark, false, &mut ids);
        if added_bos {
            let repeated = ids[1..].iter().take_while(|id| **id == ids[0]).count();
            ids.drain(1..1 + repeated);
        }
        ids
    }

    /// [`encode_marked`](Self::encode_marked) for text that follows an image: without a beginning-of-text token.
    pub(crate) fn encode_marked_rest(&self, text: &str, mark: Option<char>) -> Vec<u32> {
        let mut ids = Vec::new();
        self.encode_into(text, EncodeSpecial::Parse, mark, true, &mut ids);
        ids
    }

    /// `after_text`: whether the text continues other text.
    fn encode_into(
        &self,
        text: &str,
        special: EncodeSpecial,
        mark: Option<char>,
        mut after_text: bool,
        ids: &mut Vec<u32>,
    ) {
        let inner = &*self.0;
        let specials = match special {
            EncodeSpecial::Parse => &inner.parsed,
            EncodeSpecial::AsText => &inner.as_text,
        };
        let mut merger = Merger::default();
        let mut add = |span: Span<'_>| match span {
            Span::Token(id) => {
                after_text = false;
                ids.push(id);
            }
            Span::Text(text) => {
                inner.encode_text(text, inner.space_prefix && !after_text, &mut merger, ids);
                after_text = true;
            }
        };
        specials.split(text, |span| match (span, mark) {
            // Marked text was not parsed for control tokens; user-defined tokens are matched in it now.
            (Span::Text(text), Some(mark)) if text.contains(mark) => {
                inner.as_text.split(&text.replace(mark, ""), &mut add);
            }
            (span, _) => add(span),
        });
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.0
    }

    /// The names of control tokens.
    pub(crate) fn controls(&self) -> &Controls {
        &self.1
    }

    /// Decodes ids. Invalid UTF-8 is replaced, and ids outside the vocabulary are ignored.
    pub fn decode(&self, ids: &[u32], special: DecodeSpecial) -> String {
        let mut stream = Detokenizer::new(self, special);
        let mut text = String::new();
        for id in ids {
            stream.push_to(*id, &mut text);
        }
        stream.finish_to(&mut text);
        text
    }

    /// The bytes of a token: spaces for U+2581, one byte for a byte token, the name for a control token. They
    /// need not be valid UTF-8.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.0.pieces.get(id)
    }

    /// Number of tokens in the vocabulary. A model may have more logits.
    pub fn vocab_size(&self) -> usize {
        self.0.pieces.len()
    }

    /// The id of a token by its name in the vocabulary (`▁the`, `<0x0A>`, `<bos>`), or by its text in a
    /// byte-level vocabulary.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        let pieces = &self.0.pieces;
        let byte =
            || Some(pieces.bytes[byte_token(token)? as usize]).filter(|id| self.0.metaspace && *id != NONE);
        let text = || if self.0.metaspace { pieces.find(metaspace_to_space(token).as_bytes()) } else { None };
        byte().or_else(|| pieces.find(token.as_bytes())).or_else(text)
    }

    /// Whether a token is a control token or the unknown token, rather than text.
    pub fn is_special(&self, id: u32) -> bool {
        self.0.pieces.class(id).is_some_and(Class::is_special)
    }

    /// Whether a token is a byte-fallback token.
    pub fn is_byte(&self, id: u32) -> bool {
        self.0.pieces.class(id) == Some(Class::Byte)
    }

    /// The beginning-of-text token, whether or not prompts use it.
    pub fn bos(&self) -> Option<u32> {
        self.0.bos
    }

    /// Whether prompts start with [`Tokenizer::bos`].
    pub fn adds_bos(&self) -> bool {
        self.0.add_bos
    }

    /// The end-of-text token named by the file.
    pub fn eos(&self) -> Option<u32> {
        self.0.eos
    }

    /// All tokens that end a completion: the one named by the file, and well-known end-of-turn and
    /// end-of-text tokens.
    pub fn stop_token_ids(&self) -> &[u32] {
        &self.0.stop_token_ids
    }

    /// Tokens that must never be sampled, as named by the file.
    pub fn suppressed_token_ids(&self) -> &[u32] {
        &self.0.suppressed_token_ids
    }

    /// The name of a token, such as `<bos>`, for templates.
    pub fn token_name(&self, id: u32) -> Option<Cow<'_, str>> {
        self.0.pieces.get(id).map(String::from_utf8_lossy)
    }

    /// Whether encoding adds a leading space, which decoding must remove.
    pub(crate) fn space_prefix(&self) -> bool {
        self.0.space_prefix
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("stop_token_ids", &self.stop_token_ids())
            .finish_non_exhaustive()
    }
}

/// Replaces U+2581 by spaces.
pub(crate) fn metaspace_to_space(text: &str) -> Cow<'_, str> {
    if text.contains(METASPACE) { Cow::Owned(text.replace(METASPACE, " ")) } else { Cow::Borrowed(text) }
}

/// Normalises text to NFC. The quick check avoids a copy for text that is already normalised.
fn normalized(text: &str) -> Cow<'_, str> {
    match is_nfc_quick(text.chars()) {
        IsNormalized::Yes => Cow::Borrowed(text),
        IsNormalized::No | IsNormalized::Maybe => Cow::Owned(text.nfc().collect()),
    }
}

impl Inner {
    /// Encodes text without special tokens.
    fn encode_text(&self, text: &str, prefix: bool, merger: &mut Merger, ids: &mut Vec<u32>) {
        if let Model::Words { pairs, words, nfc } = &self.model {
            let text = if *nfc { normalized(text) } else { Cow::Borrowed(text) };
            return words.split(&text, |word| self.encode_word(word, pairs, words.whole_words, merger, ids));
        }
        if let Model::WordPiece(model) = &self.model {
            return model.encode(text, &self.pieces, self.unknown, ids);
        }
        // U+2581 in the text is treated as a space. The vocabulary stores tokens with spaces, so that text
        // can be looked up directly.
        let mut text = metaspace_to_space(text);
        if prefix {
            text.to_mut().insert(0, ' ');
        }
        let newline_runs = matches!(self.model, Model::Pairs { newline_runs: true, .. });
        let mut rest = &*text;
        while !rest.is_empty() {
            let mut len = rest.len();
            if newline_runs {
                let is_run = rest.starts_with('\n');
                len = rest.bytes().position(|byte| (byte == b'\n') != is_run).unwrap_or(len);
                if is_run && let Some(id) = self.pieces.find_text(&rest.as_bytes()[..len]) {
                    ids.push(id);
                    rest = &rest[len..];
                    continue;
                }
            }
            let cut = (0..=len.min(MAX_MERGE_BYTES)).rev().find(|at| rest.is_char_boundary(*at));
            let (chunk, after) = rest.split_at(cut.unwrap_or(len));
            self.encode_characters(chunk, merger, ids);
            rest = after;
        }
    }

    fn encode_characters(&self, text: &str, merger: &mut Merger, ids: &mut Vec<u32>) {
        merger.clear();
        let mut buffer = [0; 4];
        for (start, character) in text.char_indices() {
            let bytes = character.encode_utf8(&mut buffer).as_bytes();
            match self.pieces.find_text(bytes) {
                Some(id) => merger.push(start, bytes.len(), id),
                // Merge lists may contain byte tokens, so bytes are separate symbols from the start.
                None if matches!(self.model, Model::Pairs { .. }) && self.has_bytes(bytes) => {
                    for (i, byte) in bytes.iter().enumerate() {
                        merger.push(start + i, 1, self.pieces.bytes[*byte as usize]);
                    }
                }
                None if matches!(self.model, Model::Pairs { .. }) && self.unknown.is_none() => {}
                None => merger.push(start, bytes.len(), NONE),
            }
        }
        match &self.model {
            Model::Scores(ranks) => merger.run(|left, right| {
                let id = self.pieces.find_text(&text.as_bytes()[span(left, right)])?;
                Some((ranks[id as usize], id))
            }),
            Model::Pairs { pairs, .. } | Model::Words { pairs, .. } => {
                merger.run(|left, right| pair(pairs, left, right))
            }
            Model::WordPiece(_) => unreachable!("words are not merged"),
        }
        self.emit(text.as_bytes(), merger, ids);
    }

    fn encode_word(
        &self,
        word: &str,
        pairs: &HashMap<u64, (u32, u32)>,
        whole_words: bool,
        merger: &mut Merger,
        ids: &mut Vec<u32>,
    ) {
        if whole_words && let Some(id) = self.pieces.find_text(word.as_bytes()) {
            return ids.push(id);
        }
        for chunk in word.as_bytes().chunks(MAX_MERGE_BYTES) {
            merger.clear();
            for (start, byte) in chunk.iter().enumerate() {
                let id = self.pieces.bytes[*byte as usize];
                // Dropped before merging, as Hugging Face does, so that its neighbours can merge.
                if id != NONE || self.unknown.is_some() {
                    merger.push(start, 1, id);
                }
            }
            merger.run(|left, right| pair(pairs, left, right));
            self.emit(chunk, merger, ids);
        }
    }

    fn has_bytes(&self, bytes: &[u8]) -> bool {
        bytes.iter().all(|byte| self.pieces.bytes[*byte as usize] != NONE)
    }

    /// Appends the tokens of merged symbols. Symbols that are not in the vocabulary become byte tokens or the
    /// unknown token.
    fn emit(&self, text: &[u8], merger: &Merger, ids: &mut Vec<u32>) {
        let mut was_unknown = false;
        for symbol in merger.symbols() {
            let bytes = &text[symbol.start as usize..][..symbol.len as usize];
            let representable = symbol.id != NONE || self.has_bytes(bytes);
            if symbol.id != NONE {
                ids.push(symbol.id);
            } else if representable {
                ids.extend(bytes.iter().map(|byte| self.pieces.bytes[*byte as usize]));
            } else if !(was_unknown && self.fuse_unknown) {
                ids.extend(self.unknown);
            }
            was_unknown = !representable;
        }
    }
}

fn span(left: &Symbol, right: &Symbol) -> std::ops::Range<usize> {
    left.start as usize..(right.start + right.len) as usize
}

fn pair(pairs: &HashMap<u64, (u32, u32)>, left: &Symbol, right: &Symbol) -> Option<(u32, u32)> {
    pairs.get(&(u64::from(left.id) << 32 | u64::from(right.id))).copied()
}
