//! Building a tokenizer from a GGUF's metadata, the values of `tokenizer.ggml.*`.

use std::collections::HashMap;

use crate::error::{Result, invalid};
use crate::fim::{FimIds, FimTokens};
use crate::images;
use crate::merge::rank_of_score;
use crate::pieces::{Class, Pieces};
use crate::pretokens::Pretokens;
use crate::specials::{STOP_TOKEN_NAMES, Specials, is_delimiter, is_stop_token_name};
use crate::tokenizer::{Inner, Model, TextTemplate, Tokenizer};
use crate::wordpiece::{self, WordPiece};

/// The tokenizer algorithm: `tokenizer.ggml.model`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VocabularyKind {
    /// `llama`: SentencePiece BPE. Characters are merged by score; unknown characters become bytes.
    SentencePiece,
    /// `gpt2`: byte-level BPE. The bytes of words are merged in the order of a merge list.
    Bpe,
    /// `gemma4`: BPE over characters, with U+2581 for spaces. The characters of lines are merged in the order of
    /// a merge list; unknown characters become bytes.
    Gemma4,
    /// `bert`: WordPiece, uncased. Tokens start with U+2581 at the start of a word.
    WordPiece,
}

/// The metadata `tokenizer.ggml.*` of a GGUF.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    /// `model`.
    pub kind: VocabularyKind,
    /// `tokens`, in the order of their ids.
    pub tokens: Vec<String>,
    /// `scores`: one per token for [`VocabularyKind::SentencePiece`]; not used by [`VocabularyKind::Bpe`].
    pub scores: Vec<f32>,
    /// `token_type`: one per token, or empty if all tokens are text.
    pub token_types: Vec<i32>,
    /// `merges`: "left right", best first, for [`VocabularyKind::Bpe`] and [`VocabularyKind::Gemma4`]; not used
    /// by [`VocabularyKind::SentencePiece`].
    pub merges: Vec<String>,
    /// `pre`: the pre-tokenizer of [`VocabularyKind::Bpe`].
    pub pre: Option<String>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `eot_token_id`: end of turn.
    pub eot: Option<u32>,
    /// `seperator_token_id`, as converters spell it: the token after a text in BERT.
    pub separator: Option<u32>,
    /// `unknown_token_id`.
    pub unknown: Option<u32>,
    /// `padding_token_id`.
    pub pad: Option<u32>,
    /// `fim_*_token_id`.
    pub fim: FimIds,
    /// `suppress_tokens`: never sampled.
    pub suppressed: Vec<u32>,
    /// `add_bos_token`: whether a prompt starts with `bos`.
    pub add_bos: bool,
    /// `add_eos_token`: whether a text that is embedded ends with `eos`.
    pub add_eos: bool,
    /// `add_space_prefix`: whether a space is prepended to text. If the file has no value, callers use true
    /// for SentencePiece and false for BPE.
    pub add_space_prefix: bool,
}

impl Vocabulary {
    /// An empty vocabulary.
    pub fn new(kind: VocabularyKind) -> Vocabulary {
        Vocabulary {
            kind,
            tokens: Vec::new(),
            scores: Vec::new(),
            token_types: Vec::new(),
            merges: Vec::new(),
            pre: None,
            bos: None,
            eos: None,
            eot: None,
            separator: None,
            unknown: None,
            pad: None,
            fim: FimIds::default(),
            suppressed: Vec::new(),
            add_bos: false,
            add_eos: false,
            add_space_prefix: false,
        }
    }

    /// Validates lengths and ids.
    fn check(&self) -> Result<()> {
        let count = self.tokens.len();
        let lengths = [
            ("scores", self.scores.len(), self.kind == VocabularyKind::SentencePiece),
            ("token types", self.token_types.len(), false),
        ];
        for (what, length, needed) in lengths {
            if length != count && (length > 0 || needed) {
                return Err(invalid(format!("{length} {what} for {count} tokens: the file is damaged")));
            }
        }
        let ids = [
            ("bos", self.bos),
            ("eos", self.eos),
            ("eot", self.eot),
            ("separator", self.separator),
            ("unknown", self.unknown),
            ("padding", self.pad),
        ];
        for (what, id) in ids.into_iter().chain(self.fim.named()) {
            if let Some(id) = id.filter(|&id| id as usize >= count) {
                return Err(invalid(format!("the {what} token is {id}, but there are {count} tokens")));
            }
        }
        if let Some(id) = self.suppressed.iter().find(|id| **id as usize >= count) {
            return Err(invalid(format!("token {id} is suppressed, but there are {count} tokens")));
        }
        if self.suppressed.len() > MAX_SUPPRESSED {
            let found = self.suppressed.len();
            return Err(invalid(format!("{found} tokens are suppressed; the limit is {MAX_SUPPRESSED}")));
        }
        Ok(())
    }

    fn class(&self, id: usize) -> Class {
        // A file without types still identifies control tokens by role.
        let roles = [self.bos, self.eos, self.eot, self.separator, self.pad];
        let has_role = || roles.contains(&Some(id as u32));
        match self.token_types.get(id) {
            // Some files mark the end-of-turn token as text.
            Some(_) if is_stop_token_name(&self.tokens[id]) => Class::Control,
            // Converters mark the delimiters of thoughts and tool calls as text, so that they are visible. As in
            // tokenizer.json they are control tokens: the text of messages must not contain them.
            Some(4) if self.kind == VocabularyKind::Gemma4 && is_delimiter(&self.tokens[id]) => {
                Class::Control
            }
            // Some files mark these as text, too.
            Some(1 | 4) if images::is_delimiter(&self.tokens[id]) => Class::Control,
            Some(&number) => Class::from_gguf(number),
            None if is_stop_token_name(&self.tokens[id]) => Class::Control,
            None if has_role() => Class::Control,
            None if self.unknown == Some(id as u32) => Class::Unknown,
            None if byte_token(&self.tokens[id]).is_some() && self.kind != VocabularyKind::Bpe => Class::Byte,
            None => Class::Normal,
        }
    }
}

impl Tokenizer {
    /// Builds a tokenizer from a GGUF's metadata.
    pub fn from_vocabulary(vocabulary: Vocabulary) -> Result<Tokenizer> {
        vocabulary.check()?;
        let metaspace = vocabulary.kind != VocabularyKind::Bpe;
        let word_piece = vocabulary.kind == VocabularyKind::WordPiece;
        let letters = ByteLetters::new();
        let class = |id| vocabulary.class(id);
        let mut pieces = Pieces::new(&vocabulary.tokens, class, |token, class, arena| {
            if word_piece {
                wordpiece::gguf_bytes(token, class, arena);
                return Ok(());
            }
            raw_bytes(token, class, if metaspace { None } else { Some(&letters) }, arena)
        })?;
        if !metaspace {
            pieces.use_text_as_bytes();
        }
        let halves = vocabulary.merges.iter().map(|merge| merge.split_once(' ').unwrap_or((merge, "")));
        let model = match vocabulary.kind {
            VocabularyKind::SentencePiece => Model::Scores(ranks(&pieces, &vocabulary.scores)),
            VocabularyKind::Gemma4 => {
                Model::Pairs { pairs: pairs(&pieces, halves, None)?, newline_runs: true }
            }
            VocabularyKind::WordPiece => {
                wordpiece::unknown(vocabulary.unknown)?;
                Model::WordPiece(WordPiece::uncased())
            }
            VocabularyKind::Bpe => Model::Words {
                pairs: pairs(&pieces, halves, Some(&letters))?,
                words: Pretokens::by_name(vocabulary.pre.as_deref())?,
                // A GGUF has no key for normalisation, and llama.cpp does not normalise.
                nfc: false,
            },
        };
        let tokens_of = |class| pieces.with_class(class).map(|(id, bytes)| (bytes.to_vec(), id));
        let always: Vec<_> = tokens_of(Class::UserDefined)
            .map(|(bytes, id)| {
                (if metaspace && is_space_run(&bytes) { metaspaces(&bytes) } else { bytes }, id)
            })
            .collect();
        let mut parsed = always.clone();
        parsed.extend(tokens_of(Class::Control).chain(tokens_of(Class::Unknown)));
        let stop_token_ids = stop_token_ids(&pieces, [vocabulary.eos, vocabulary.eot]);
        // llama.cpp puts both around every text of BERT, whatever the flags say.
        let template = TextTemplate {
            before: vocabulary.bos.filter(|_| vocabulary.add_bos || word_piece).into_iter().collect(),
            after: match word_piece {
                true => vocabulary.separator.or(vocabulary.eos).into_iter().collect(),
                false => vocabulary.eos.filter(|_| vocabulary.add_eos).into_iter().collect(),
            },
        };
        Ok(Tokenizer::new(Inner {
            model,
            as_text: Specials::new(&always)?,
            parsed: Specials::new(&parsed)?,
            stop_token_ids,
            fim: FimTokens::find(&pieces, &vocabulary.fim),
            suppressed_token_ids: vocabulary.suppressed,
            bos: vocabulary.bos,
            eos: vocabulary.eos,
            // Byte-level vocabularies normally have all bytes; missing ones are dropped.
            unknown: vocabulary.unknown.filter(|_| metaspace),
            add_bos: vocabulary.add_bos,
            space_prefix: metaspace && vocabulary.add_space_prefix,
            metaspace,
            fuse_unknown: true,
            template,
            pieces,
        }))
    }
}

/// Maximum number of suppressed tokens: half of the sampler's logit biases, which ban them.
const MAX_SUPPRESSED: usize = 256;

/// The character that SentencePiece writes for a space, called metaspace in Hugging Face's tokenizers.
pub(crate) const METASPACE: char = '▁';

/// The merge rank of each token. Runs of spaces are user-defined tokens without meaningful scores. They rank
/// before all others, longest first, which gives the longest runs from the left, as in the merge list of
/// tokenizer.json.
fn ranks(pieces: &Pieces, scores: &[f32]) -> Vec<u32> {
    let mut ranks: Vec<u32> = scores.iter().map(|score| rank_of_score(*score)).collect();
    for (id, bytes) in pieces.with_class(Class::UserDefined).filter(|(_, bytes)| is_space_run(bytes)) {
        ranks[id as usize] = BEFORE_SCORES.saturating_sub(bytes.len() as u32);
    }
    ranks
}

/// Ranks below this are lower than those of any finite score.
const BEFORE_SCORES: u32 = 1 << 23;

fn is_space_run(bytes: &[u8]) -> bool {
    bytes.len() > 1 && bytes.iter().all(|byte| *byte == b' ')
}

/// A run of spaces written with U+2581.
fn metaspaces(run: &[u8]) -> Vec<u8> {
    METASPACE.to_string().repeat(run.len()).into_bytes()
}

/// Ranks and merged tokens of the pairs in a merge list.
pub(crate) fn pairs<'a>(
    pieces: &Pieces,
    merges: impl Iterator<Item = (&'a str, &'a str)>,
    letters: Option<&ByteLetters>,
) -> Result<HashMap<u64, (u32, u32)>> {
    let mut pairs = HashMap::with_capacity(merges.size_hint().0);
    let mut bytes = Vec::new();
    let mut last = 0u32;
    for (rank, (left, right)) in merges.enumerate() {
        bytes.clear();
        raw_bytes(left, Class::Normal, letters, &mut bytes)?;
        let cut = bytes.len();
        raw_bytes(right, Class::Normal, letters, &mut bytes)?;
        // Merge lists group the pairs of a token and mostly follow the order of ids, so the last id and the
        // next are likely.
        let guess = [last, last.wrapping_add(1)].into_iter().find(|id| pieces.get(*id) == Some(&bytes));
        let guess = guess.filter(|id| pieces.class(*id).is_some_and(Class::is_text));
        let found = (
            pieces.find_text(&bytes[..cut]),
            pieces.find_text(&bytes[cut..]),
            guess.or_else(|| pieces.find_text(&bytes)),
        );
        let (Some(l), Some(r), Some(merged)) = found else {
            return Err(invalid(format!(
                "merge {rank} ('{left}' with '{right}') refers to text that is not a token"
            )));
        };
        last = merged;
        pairs.entry(u64::from(l) << 32 | u64::from(r)).or_insert((rank as u32, merged));
    }
    Ok(pairs)
}

/// All tokens that end a completion: those named by the file, and control tokens with well-known names.
pub(crate) fn stop_token_ids(pieces: &Pieces, named: [Option<u32>; 2]) -> Vec<u32> {
    let known = STOP_TOKEN_NAMES.iter().filter_map(|name| pieces.find(name.as_bytes()));
    let special = known.filter(|id| pieces.class(*id).is_some_and(Class::is_special));
    let mut ids: Vec<u32> = named.into_iter().flatten().chain(special).collect();
    let mut seen = std::collections::HashSet::new();
    ids.retain(|id| seen.insert(*id));
    ids
}

/// Appends the bytes of a token. `letters` is `Some` for byte-level vocabularies.
pub(crate) fn raw_bytes(
    token: &str,
    class: Class,
    letters: Option<&ByteLetters>,
    out: &mut Vec<u8>,
) -> Result<()> {
    match (class, letters) {
        (Class::Byte, None) => match byte_token(token) {
            Some(byte) => out.push(byte),
            None => {
                return Err(invalid(format!(
                    "'{token}' has the type of a byte token but is not of the form <0x00>"
                )));
            }
        },
        (Class::Normal, Some(letters)) => letters.bytes(token, out),
        (Class::Normal | Class::UserDefined, None) => {
            for (i, part) in token.split(METASPACE).enumerate() {
                out.extend_from_slice(if i > 0 { b" " } else { b"" });
                out.extend_from_slice(part.as_bytes());
            }
        }
        _ => out.extend_from_slice(token.as_bytes()),
    }
    Ok(())
}

/// The value of a byte token such as `<0x0A>`.
pub(crate) fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let hex = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    u8::from_str_radix(digits, 16).ok().filter(|_| hex)
}

/// GPT-2's byte-to-character mapping, which makes tokens printable. Printable bytes map to themselves, the
/// others to U+0100 and up.
pub(crate) struct ByteLetters(HashMap<char, u8>);

impl ByteLetters {
    pub(crate) fn new() -> ByteLetters {
        let plain = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let mut other = 0x100u32..;
        let letter = |byte: u8| {
            let code = if plain(byte) { u32::from(byte) } else { other.next().unwrap_or_default() };
            (char::from_u32(code).unwrap_or_default(), byte)
        };
        ByteLetters((0..=255).map(letter).collect())
    }

    /// Appends the bytes of a token. A token with a character outside the mapping is its own text.
    fn bytes(&self, token: &str, out: &mut Vec<u8>) {
        let start = out.len();
        for letter in token.chars() {
            match self.0.get(&letter) {
                Some(byte) => out.push(*byte),
                None => {
                    out.truncate(start);
                    return out.extend_from_slice(token.as_bytes());
                }
            }
        }
    }
}
