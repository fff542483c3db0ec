//! Building a tokenizer from Hugging Face's `tokenizer.json` and `tokenizer_config.json`.
//!
//! The two kinds of BPE that language models use are supported: over characters, with U+2581 for spaces and
//! byte fallback (Gemma), and over bytes (GPT-2 and its descendants). Any other setting is either known to
//! have no effect or rejected, never ignored: almost correct ids are worse than an error.

use std::borrow::Cow;
use std::path::Path;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::error::{Error, Result, invalid, unsupported};
use crate::fim::{FimIds, FimTokens};
use crate::pieces::{Class, MAX_TOKENS, Pieces};
use crate::pretokens::Pretokens;
use crate::specials::{Specials, is_stop_token_name, looks_special};
use crate::tokenizer::{Inner, Model, TextTemplate, Tokenizer};
use crate::vocabulary::{ByteLetters, METASPACE, byte_token, pairs, raw_bytes, stop_token_ids};
use crate::wordpiece::{self, WordPiece};

/// The settings of `tokenizer_config.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenizerConfig {
    /// Name of the beginning-of-text token.
    pub bos_token: Option<String>,
    /// Name of the end-of-text token.
    pub eos_token: Option<String>,
    /// Whether prompts start with `bos_token`, if specified.
    pub add_bos_token: Option<bool>,
    /// Whether texts end with `eos_token`, if specified; only embedding models use it.
    pub add_eos_token: Option<bool>,
    /// The chat template; of several, the one named `default`.
    pub chat_template: Option<String>,
}

impl TokenizerConfig {
    /// Parses the file's content.
    pub fn parse(json: &[u8]) -> Result<TokenizerConfig> {
        let json: Value =
            serde_json::from_slice(json).map_err(|e| invalid(format!("tokenizer_config.json: {e}")))?;
        // A token is a string, or an object with its content.
        let name = |key: &str| Some(json[key].as_str().or(json[key]["content"].as_str())?.to_owned());
        let template = match &json["chat_template"] {
            Value::Array(several) => {
                several.iter().find(|t| t["name"] == "default").and_then(|t| t["template"].as_str())
            }
            one => one.as_str(),
        };
        Ok(TokenizerConfig {
            bos_token: name("bos_token"),
            eos_token: name("eos_token"),
            add_bos_token: json["add_bos_token"].as_bool(),
            add_eos_token: json["add_eos_token"].as_bool(),
            chat_template: template.map(str::to_owned),
        })
    }
}

#[derive(Deserialize)]
struct File<'a> {
    #[serde(borrow, default)]
    added_tokens: Vec<Added<'a>>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(borrow)]
    model: Bpe<'a>,
}

#[derive(Deserialize)]
struct Added<'a> {
    id: u32,
    #[serde(borrow)]
    content: Cow<'a, str>,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    /// Whether the token is matched in normalised text. The default is true for tokens that are not special.
    #[serde(default)]
    normalized: Option<bool>,
}

#[derive(Deserialize)]
struct Bpe<'a> {
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    dropout: Option<f32>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    #[serde(default)]
    max_input_chars_per_word: Option<usize>,
    #[serde(borrow)]
    vocab: Vocab<'a>,
    #[serde(borrow, default)]
    merges: Vec<Merge<'a>>,
}

/// Tokens and ids in file order. A map would hash every name needlessly.
struct Vocab<'a>(Vec<(Cow<'a, str>, u32)>);

/// A string, borrowed from the file if it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A merge: `["a", "b"]` or, in older files, `"a b"`.
struct Merge<'a>(Cow<'a, str>, Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Vocab<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Vocab<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a map from tokens to ids")
            }

            fn visit_map<M: serde::de::MapAccess<'de>>(self, mut map: M) -> Result<Vocab<'de>, M::Error> {
                let mut entries = Vec::new();
                while let Some((token, id)) = map.next_entry::<Text, u32>()? {
                    entries.push((token.0, id));
                }
                Ok(Vocab(entries))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Merge<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Merge<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a pair of tokens")
            }

            fn visit_seq<S: serde::de::SeqAccess<'de>>(self, mut seq: S) -> Result<Merge<'de>, S::Error> {
                let short = || serde::de::Error::custom("a merge needs two tokens");
                let left = seq.next_element::<Text>()?.ok_or_else(short)?;
                let right = seq.next_element::<Text>()?.ok_or_else(short)?;
                Ok(Merge(left.0, right.0))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Merge<'de>, E> {
                let (left, right) =
                    text.split_once(' ').ok_or_else(|| E::custom("a merge needs two tokens"))?;
                Ok(Merge(left.to_owned().into(), right.to_owned().into()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// How text is split into symbols.
enum Scheme {
    /// Characters, with U+2581 for spaces.
    Metaspace { prefix: bool },
    /// The bytes of words.
    Words { words: Pretokens, nfc: bool },
    /// Words, longest prefix first.
    WordPiece(WordPiece),
}

impl Tokenizer {
    /// Reads `tokenizer.json` and, if present, `tokenizer_config.json` from a model's folder.
    pub fn from_folder(folder: &Path) -> Result<Tokenizer> {
        let read = |name: &str| {
            let path = folder.join(name);
            std::fs::read(&path).map_err(|source| Error::Io { path, source })
        };
        let config = match read("tokenizer_config.json") {
            Ok(json) => Some(json),
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        Tokenizer::from_hf(&read("tokenizer.json")?, config.as_deref())
    }

    /// Builds a tokenizer from the contents of `tokenizer.json` and, if present, `tokenizer_config.json`.
    pub fn from_hf(tokenizer: &[u8], config: Option<&[u8]>) -> Result<Tokenizer> {
        let config = config.map(TokenizerConfig::parse).transpose()?.unwrap_or_default();
        let file = std::str::from_utf8(tokenizer).map_err(|e| invalid(format!("tokenizer.json: {e}")))?;
        let file: File = serde_json::from_str(file).map_err(|e| invalid(format!("tokenizer.json: {e}")))?;
        build(&file, &config)
    }
}

fn build(file: &File, config: &TokenizerConfig) -> Result<Tokenizer> {
    let model = &file.model;
    reject_unsupported(file)?;
    let scheme = scheme(file)?;
    let letters = ByteLetters::new();
    let alphabet = matches!(scheme, Scheme::Words { .. }).then_some(&letters);
    let word_piece = matches!(scheme, Scheme::WordPiece(_));
    let (tokens, classes) = tokens(file)?;
    let mut pieces = Pieces::new(
        &tokens,
        |id| classes[id],
        |token, class, arena| match word_piece {
            true => {
                wordpiece::hf_bytes(token, class, arena);
                Ok(())
            }
            false => raw_bytes(token, class, alphabet, arena),
        },
    )?;
    let merges = model.merges.iter().map(|Merge(left, right)| (&**left, &**right));
    let pairs = pairs(&pieces, merges, alphabet)?;
    let (built, prefix) = match scheme {
        Scheme::Metaspace { prefix } => (Model::Pairs { pairs, newline_runs: false }, prefix),
        Scheme::Words { words, nfc } => {
            pieces.use_text_as_bytes();
            (Model::Words { pairs, words, nfc }, false)
        }
        Scheme::WordPiece(model) => (Model::WordPiece(model), false),
    };
    let id = |name: &Option<String>| pieces.find(name.as_deref()?.as_bytes());
    let first = first_special(&file.post_processor);
    let bos = id(&config.bos_token).or_else(|| id(&first)).or_else(|| id(&Some("<bos>".into())));
    let eos = id(&config.eos_token).or_else(|| id(&Some("<eos>".into())));
    let is_gemma4 = alphabet.is_none() && id(&Some("<|turn>".into())).is_some();
    let mut unknown = id(&model.unk_token);
    if word_piece {
        unknown = wordpiece::unknown(unknown)?;
    }
    let specials = |control: bool| {
        let wanted = |added: &&Added| control || classes[added.id as usize] == Class::UserDefined;
        let wanted = file.added_tokens.iter().filter(wanted);
        Specials::new(&wanted.map(|added| (added.content.as_bytes().to_vec(), added.id)).collect::<Vec<_>>())
    };
    Ok(Tokenizer::new(Inner {
        model: built,
        as_text: specials(false)?,
        parsed: specials(true)?,
        stop_token_ids: stop_token_ids(&pieces, [eos, None]),
        fim: FimTokens::find(&pieces, &FimIds::default()),
        suppressed_token_ids: Vec::new(),
        bos,
        eos,
        unknown,
        // Gemma 4 needs one, whatever its files say.
        add_bos: is_gemma4 || config.add_bos_token.unwrap_or(first.is_some()),
        space_prefix: prefix,
        metaspace: alphabet.is_none(),
        fuse_unknown: model.fuse_unk,
        template: text_template(&file.post_processor, config, [bos, eos], &pieces),
        pieces,
    }))
}

/// Rejects unsupported settings that would change ids.
fn reject_unsupported(file: &File) -> Result<()> {
    let model = &file.model;
    if model.kind.as_deref() == Some(WORD_PIECE) {
        return wordpiece::check_continuation(model.continuing_subword_prefix.as_deref());
    }
    if model.kind.as_deref().is_some_and(|kind| kind != "BPE") {
        return Err(unsupported(format!(
            "models of type '{}' are not supported, only BPE and {WORD_PIECE}",
            model.kind.as_deref().unwrap_or_default()
        )));
    }
    let set = |option: &Option<String>| option.as_deref().is_some_and(|text| !text.is_empty());
    let unsupported_settings = [
        ("dropout", model.dropout.is_some_and(|p| p != 0.0)),
        ("continuing_subword_prefix", set(&model.continuing_subword_prefix)),
        ("end_of_word_suffix", set(&model.end_of_word_suffix)),
        (
            "an added token with lstrip, rstrip or single_word",
            file.added_tokens.iter().any(|a| a.lstrip || a.rstrip || a.single_word),
        ),
    ];
    match unsupported_settings.iter().find(|(_, used)| *used) {
        Some((what, _)) => Err(unsupported(format!("tokenizer.json uses {what}, which is not supported"))),
        None => Ok(()),
    }
}

/// All tokens by id, including added ones, and their classes. Unused ids have no text.
fn tokens<'a>(file: &'a File) -> Result<(Vec<&'a str>, Vec<Class>)> {
    let vocab = file.model.vocab.0.iter().map(|(token, id)| (&**token, *id));
    let added = file.added_tokens.iter().map(|added| (&*added.content, added.id));
    let count = vocab.clone().chain(added.clone()).map(|(_, id)| id as usize + 1).max().unwrap_or(0);
    if count > MAX_TOKENS {
        return Err(invalid(format!("token id {} is above the limit of {MAX_TOKENS}", count - 1)));
    }
    let mut tokens = vec![""; count];
    let mut classes = vec![Class::Normal; count];
    for (token, id) in vocab.chain(added) {
        let here = &mut tokens[id as usize];
        if !here.is_empty() && *here != token {
            return Err(invalid(format!("'{here}' and '{token}' have the same id {id}")));
        }
        *here = token;
        if file.model.byte_fallback && byte_token(token).is_some() {
            classes[id as usize] = Class::Byte;
        } else if is_stop_token_name(token) {
            classes[id as usize] = Class::Control;
        }
    }
    for added in &file.added_tokens {
        let control = added.special || looks_special(&added.content);
        classes[added.id as usize] = if control { Class::Control } else { Class::UserDefined };
    }
    Ok((tokens, classes))
}

/// The scheme that the normalizer and pre-tokenizer define.
fn scheme(file: &File) -> Result<Scheme> {
    let (normalizer, pre) = (&file.normalizer, &file.pre_tokenizer);
    if file.model.kind.as_deref() == Some(WORD_PIECE) {
        return WordPiece::from_hf(normalizer, pre, file.model.max_input_chars_per_word)
            .map(Scheme::WordPiece);
    }
    let reject = |what: &str, setting: &Value| {
        let text: String = setting.to_string().chars().take(200).collect();
        unsupported(format!("tokenizer.json: {what} {text} is not supported; try a GGUF file of the model"))
    };
    let metaspace = METASPACE.to_string();
    let replaces_spaces = |step: &Value| {
        step["type"] == "Replace"
            && step["pattern"]["String"] == " "
            && step["content"].as_str() == Some(&*metaspace)
    };
    let prepends = |step: &Value| step["type"] == "Prepend" && step["prepend"].as_str() == Some(&*metaspace);
    let prefix = match normalizer["normalizers"].as_array().map(Vec::as_slice) {
        Some([first, second]) if prepends(first) && replaces_spaces(second) => Some(true),
        None if replaces_spaces(normalizer) => Some(false),
        _ => None,
    };
    if let Some(prefix) = prefix {
        // After spaces are replaced, splitting at spaces has no effect.
        let no_effect = pre.is_null() || pre["type"] == "Split" && pre["pattern"]["String"] == " ";
        return if no_effect { Ok(Scheme::Metaspace { prefix }) } else { Err(reject("pre-tokenizer", pre)) };
    }
    let nfc = match normalizer["type"].as_str() {
        None if normalizer.is_null() => false,
        Some("NFC") => true,
        _ => return Err(reject("normalizer", normalizer)),
    };
    // Control tokens are matched before normalisation. One that must match normalised text could be at
    // another position.
    let after_normalisation = |added: &&Added| added.normalized.unwrap_or(!added.special);
    if let Some(added) = file.added_tokens.iter().find(after_normalisation).filter(|_| nfc) {
        return Err(unsupported(format!(
            "tokenizer.json: '{}' is matched in normalised text, which is not supported; try a GGUF file of the model",
            added.content
        )));
    }
    let bytes = |step: &Value, regex: bool| {
        step["type"] == "ByteLevel"
            && step["add_prefix_space"] != true
            && step["use_regex"].as_bool().unwrap_or(true) == regex
    };
    let words = match pre["pretokenizers"].as_array().map(Vec::as_slice) {
        None if bytes(pre, true) => Pretokens::by_name(None),
        Some([digits, last])
            if digits["type"] == "Digits" && digits["individual_digits"] == true && bytes(last, true) =>
        {
            Pretokens::by_name(Some("smollm"))
        }
        Some([split, last])
            if split["type"] == "Split"
                && split["behavior"] == "Isolated"
                && split["invert"] != true
                && bytes(last, false) =>
        {
            Pretokens::by_pattern(split["pattern"]["Regex"].as_str().unwrap_or_default())
        }
        _ => return Err(reject("pre-tokenizer", pre)),
    }?;
    Ok(Scheme::Words { words: words.whole_words(file.model.ignore_merges), nfc })
}

/// Type of BERT's tokenizers.
const WORD_PIECE: &str = "WordPiece";

/// The steps of a post-processor, which may be one of several.
fn post_steps(post: &Value) -> &[Value] {
    post["processors"].as_array().map_or(std::slice::from_ref(post), Vec::as_slice)
}

/// The token that the post-processor prepends to text.
fn first_special(post: &Value) -> Option<String> {
    let template = post_steps(post).iter().find(|step| step["type"] == "TemplateProcessing")?;
    Some(template["single"][0]["SpecialToken"]["id"].as_str()?.to_owned())
}

/// The tokens around a text that the post-processor adds, and those that the flags of tokenizer_config.json demand.
fn text_template(
    post: &Value,
    config: &TokenizerConfig,
    [bos, eos]: [Option<u32>; 2],
    pieces: &Pieces,
) -> TextTemplate {
    let mut template = TextTemplate::default();
    for step in post_steps(post) {
        let id = |name: &Value| pieces.find(name.as_str()?.as_bytes());
        match step["type"].as_str() {
            Some("TemplateProcessing") => {
                let parts = step["single"].as_array().map_or(&[][..], Vec::as_slice);
                let text =
                    parts.iter().position(|part| part.get("Sequence").is_some()).unwrap_or(parts.len());
                let ids = |parts: &[Value]| {
                    parts.iter().filter_map(|part| id(&part["SpecialToken"]["id"])).collect()
                };
                template = TextTemplate { before: ids(&parts[..text]), after: ids(&parts[text..]) };
            }
            Some("BertProcessing") => {
                let around = [&step["cls"][0], &step["sep"][0]].map(|name| id(name).into_iter().collect());
                let [before, after] = around;
                template = TextTemplate { before, after };
            }
            _ => {}
        }
    }
    if let Some(bos) = bos.filter(|bos| config.add_bos_token == Some(true) && !template.before.contains(bos))
    {
        template.before.insert(0, bos);
    }
    if let Some(eos) = eos.filter(|eos| config.add_eos_token == Some(true) && !template.after.contains(eos)) {
        template.after.push(eos);
    }
    template
}
