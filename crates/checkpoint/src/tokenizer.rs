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
    /// Unknown token.
    pub unknown: Option<u32>,
    /// Padding token.
    pub pad: Option<u32>,
    /// Whether prompts start with `bos`.
    pub add_bos: Option<bool>,
    /// Whether a space is prepended to the text.
    pub add_space_prefix: Option<bool>,
    /// The chat template.
    pub chat_template: Option<String>,
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
    let flag = |name: &str| metadata.optional(&key(name), |metadata, key| metadata.bool(key));
    let text = |key: &str| metadata.optional(key, |metadata, key| metadata.str(key).map(str::to_string));
    let scores = metadata.optional(&key("scores"), |metadata, key| metadata.array_f32(key))?;
    let types = metadata.optional(&key("token_type"), |metadata, key| metadata.array_i32(key))?;
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
        unknown: id("unknown_token_id")?,
        pad: id("padding_token_id")?,
        add_bos: flag("add_bos_token")?,
        add_space_prefix: flag("add_space_prefix")?,
        chat_template: text("tokenizer.chat_template")?,
    }))))
}
