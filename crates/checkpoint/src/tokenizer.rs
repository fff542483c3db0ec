//! The tokenizer data of a checkpoint, extracted but not interpreted; the `text` crate builds the tokenizer.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    gguf,
};

/// Tokenizer data as stored in a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenizerData {
    /// The vocabulary from GGUF metadata.
    Gguf(Box<Vocabulary>),
    /// The files of a Hugging Face folder.
    HuggingFace {
        /// `tokenizer.json`.
        tokenizer: String,
        /// `tokenizer_config.json`.
        config: Option<String>,
        /// `chat_template.jinja`, if it is a separate file.
        chat_template: Option<String>,
    },
}

/// `tokenizer.ggml.*` and `tokenizer.chat_template`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Vocabulary {
    /// Tokenizer model: `llama`, `gpt2`, …
    pub model: String,
    /// Pre-tokenizer.
    pub pre: Option<String>,
    /// Text of each token.
    pub tokens: Vec<String>,
    /// Score of each token; may be empty.
    pub scores: Vec<f32>,
    /// Type of each token; may be empty.
    pub types: Vec<i32>,
    /// BPE merges in order of priority.
    pub merges: Vec<String>,
    /// Beginning-of-sequence token.
    pub bos: Option<u32>,
    /// End-of-sequence token.
    pub eos: Option<u32>,
    /// End-of-turn token.
    pub eot: Option<u32>,
    /// Token after a text (BERT).
    #[serde(default)]
    pub separator: Option<u32>,
    /// Unknown token.
    pub unknown: Option<u32>,
    /// Padding token.
    pub pad: Option<u32>,
    /// Tokens for filling in the middle.
    #[serde(default)]
    pub fim: FimIds,
    /// Tokens that are never sampled.
    #[serde(default)]
    pub suppressed: Vec<u32>,
    /// Whether prompts start with `bos`.
    pub add_bos: Option<bool>,
    /// Whether texts end with `eos`.
    #[serde(default)]
    pub add_eos: Option<bool>,
    /// Whether a space is prepended to the text.
    pub add_space_prefix: Option<bool>,
    /// The chat template.
    pub chat_template: Option<String>,
}

/// Tokens for filling in the middle (FIM), as far as the file names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FimIds {
    /// Starts the prefix.
    pub prefix: Option<u32>,
    /// Starts the suffix.
    pub suffix: Option<u32>,
    /// Starts the text in the middle.
    pub middle: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// Starts a repository.
    pub repository: Option<u32>,
    /// Starts the next file of a repository.
    pub separator: Option<u32>,
}

/// Maximum bytes of a tokenizer file: Gemma's tokenizer.json has 33 MB.
const MAX_FILE: u64 = 96 << 20;

pub(crate) fn from_folder(path: &Path) -> Result<Option<TokenizerData>> {
    let text = |name: &str| -> Result<Option<String>> {
        let file = path.join(name);
        let Ok(metadata) = file.metadata() else { return Ok(None) };
        if metadata.len() > MAX_FILE {
            let reason = format!("has {} bytes, but the limit is {MAX_FILE}", metadata.len());
            return Err(Error::invalid(&file, reason));
        }
        std::fs::read_to_string(&file).map(Some).map_err(|error| Error::io(&file, error))
    };
    let Some(tokenizer) = text("tokenizer.json")? else { return Ok(None) };
    let (config, chat_template) = (text("tokenizer_config.json")?, text("chat_template.jinja")?);
    Ok(Some(TokenizerData::HuggingFace { tokenizer, config, chat_template }))
}

pub(crate) fn from_gguf(path: &Path) -> Result<Option<TokenizerData>> {
    let metadata = gguf::open(path)?.metadata;
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    if metadata.get(&key("tokens")).is_none() {
        return Ok(None);
    }
    let strings = |name: &str| -> Result<Vec<String>> {
        let list = metadata.optional(&key(name), |metadata, key| metadata.array_str(key))?;
        Ok(list.map_or(vec![], |list| list.iter().map(str::to_string).collect()))
    };
    let id = |name: &str| metadata.optional(&key(name), |metadata, key| metadata.u32(key));
    // The second name is that of older files.
    let fim_id = |name: &str, older: &str| Ok::<_, Error>(id(name)?.or(id(older)?));
    let flag = |name: &str| metadata.optional(&key(name), |metadata, key| metadata.bool(key));
    let text = |key: &str| metadata.optional(key, |metadata, key| metadata.str(key).map(str::to_string));
    let scores = metadata.optional(&key("scores"), |metadata, key| metadata.array_f32(key))?;
    let types = metadata.optional(&key("token_type"), |metadata, key| metadata.array_i32(key))?;
    let suppressed = metadata.optional(&key("suppress_tokens"), |metadata, key| metadata.array_u32(key))?;
    Ok(Some(TokenizerData::Gguf(Box::new(Vocabulary {
        model: text(&key("model"))?.unwrap_or_default(),
        pre: text(&key("pre"))?,
        tokens: strings("tokens")?,
        scores: scores.map_or(vec![], |scores| scores.into_owned()),
        types: types.map_or(vec![], |types| types.into_owned()),
        merges: strings("merges")?,
        bos: id("bos_token_id")?,
        eos: id("eos_token_id")?,
        eot: id("eot_token_id")?,
        // The converters' spelling.
        separator: id("seperator_token_id")?,
        unknown: id("unknown_token_id")?,
        pad: id("padding_token_id")?,
        fim: FimIds {
            prefix: fim_id("fim_pre_token_id", "prefix_token_id")?,
            suffix: fim_id("fim_suf_token_id", "suffix_token_id")?,
            middle: fim_id("fim_mid_token_id", "middle_token_id")?,
            pad: id("fim_pad_token_id")?,
            repository: id("fim_rep_token_id")?,
            separator: id("fim_sep_token_id")?,
        },
        suppressed: suppressed.map_or(vec![], |ids| ids.into_owned()),
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_space_prefix: flag("add_space_prefix")?,
        chat_template: text("tokenizer.chat_template")?,
    }))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A GGUF without tensors that has two tokens and these ids.
    fn vocabulary(ids: &[(&str, u32)]) -> Vocabulary {
        let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
        let mut file = [&b"GGUF"[..], &3_u32.to_le_bytes(), &0_u64.to_le_bytes()].concat();
        file.extend((ids.len() as u64 + 1).to_le_bytes());
        file.extend(text("tokenizer.ggml.tokens"));
        // An array of strings.
        file.extend([&9_u32.to_le_bytes()[..], &8_u32.to_le_bytes(), &2_u64.to_le_bytes()].concat());
        file.extend([text("a"), text("b")].concat());
        for (name, id) in ids {
            file.extend(text(&format!("tokenizer.ggml.{name}")));
            file.extend([4_u32.to_le_bytes(), id.to_le_bytes()].concat());
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, file).unwrap();
        match from_gguf(&path).unwrap() {
            Some(TokenizerData::Gguf(vocabulary)) => *vocabulary,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn fim_tokens_have_two_generations_of_names() {
        let newer = [("fim_pre_token_id", 5), ("fim_suf_token_id", 6), ("fim_mid_token_id", 7)];
        let older = [("prefix_token_id", 1), ("suffix_token_id", 2), ("middle_token_id", 3)];
        let ids = |ids: &[(&str, u32)]| {
            let fim = vocabulary(ids).fim;
            [fim.prefix, fim.suffix, fim.middle]
        };
        assert_eq!(ids(&older), [Some(1), Some(2), Some(3)]);
        assert_eq!(ids(&newer), [Some(5), Some(6), Some(7)]);
        assert_eq!(ids(&[older, newer].concat()), [Some(5), Some(6), Some(7)]);
        assert_eq!(vocabulary(&[("fim_sep_token_id", 8)]).fim.separator, Some(8));
        // Files of earlier versions have no such tokens.
        let mut json = serde_json::to_value(vocabulary(&[])).unwrap();
        json.as_object_mut().unwrap().remove("fim").unwrap();
        assert_eq!(serde_json::from_value::<Vocabulary>(json).unwrap(), vocabulary(&[]));
    }
}
