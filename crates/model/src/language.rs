//! The tokenizer and the chat template of a checkpoint, and how it takes images.

use checkpoint::{
    Architecture, Checkpoint, EmbeddingCheckpoint,
    tokenizer::{TokenizerData, Vocabulary},
};
use text::{ChatTemplate, Tokenizer, VocabularyKind};

use crate::{Error, ImageProcessor, Result};

/// Why a model takes no images.
const NO_ENCODER: &str =
    "the model has no image encoder (if it was published with one, `indrik pull --mmproj` adds it)";

/// A model's tokenizer and chat template.
pub struct Language {
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// Chat template; `None` where neither the model nor its family has one.
    pub template: Option<ChatTemplate>,
    /// Whether the template came with the model; otherwise it is its family's.
    pub own_template: bool,
    /// Stop tokens.
    pub stop_token_ids: Vec<u32>,
    /// How pictures become images of a prompt; or why the model takes none, as a clause: "the model has no image encoder".
    pub images: Result<ImageProcessor, String>,
}

impl Language {
    /// Reads both from a checkpoint; an error if it has no tokenizer.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self> {
        let path = checkpoint.path.display().to_string();
        let wrong = |reason: text::Error| Error::Text { path: path.clone(), reason };
        let data = checkpoint.tokenizer_data()?.ok_or_else(|| Error::NoTokenizer { path: path.clone() })?;
        let (tokenizer, template) = from_data(data).map_err(wrong)?;
        let name =
            |id: Option<u32>| id.and_then(|id| tokenizer.token_name(id)).unwrap_or_default().into_owned();
        let (bos, eos) = (name(tokenizer.bos()), name(tokenizer.eos()));
        let own_template = template.is_some();
        let template = match (template, checkpoint.config.architecture) {
            (Some(source), _) => Some(ChatTemplate::new(&source, &bos, &eos).map_err(wrong)?),
            (None, Architecture::Gemma3) => Some(ChatTemplate::gemma3()),
            // Without a template these are not chat models, or each has its own format.
            (
                None,
                Architecture::Gemma4
                | Architecture::Llama
                | Architecture::Mistral
                | Architecture::Ministral3
                | Architecture::Qwen2
                | Architecture::Qwen3
                | Architecture::Qwen3Moe,
            ) => None,
        };
        let mut stop_token_ids = [tokenizer.stop_token_ids(), &checkpoint.config.eos].concat();
        stop_token_ids.sort_unstable();
        stop_token_ids.dedup();
        // A file that cannot be used must not keep the language model from being used.
        let images = match checkpoint.vision() {
            Ok(Some(vision)) => Ok(ImageProcessor::new(&vision.config)),
            Ok(None) => Err(NO_ENCODER.to_owned()),
            Err(error) => Err(error.to_string()),
        };
        Ok(Self { tokenizer, template, own_template, stop_token_ids, images })
    }
}

/// The tokenizer of an embedding model; an error if it has none.
pub fn embedding_tokenizer(checkpoint: &EmbeddingCheckpoint) -> Result<Tokenizer> {
    let path = checkpoint.path.display().to_string();
    let data = checkpoint.tokenizer_data()?.ok_or_else(|| Error::NoTokenizer { path: path.clone() })?;
    let (tokenizer, _) = from_data(data).map_err(|reason| Error::Text { path, reason })?;
    Ok(tokenizer)
}

/// The tokenizer, and the chat template if there is one.
fn from_data(data: TokenizerData) -> text::Result<(Tokenizer, Option<String>)> {
    match data {
        TokenizerData::Gguf(vocabulary) => from_vocabulary(*vocabulary),
        TokenizerData::HuggingFace { tokenizer, config, chat_template } => {
            let parsed = config.as_deref().map(|config| text::hf::TokenizerConfig::parse(config.as_bytes()));
            let parsed = parsed.transpose()?;
            let template = chat_template.or_else(|| parsed?.chat_template);
            let config = config.as_deref().map(str::as_bytes);
            Ok((Tokenizer::from_hf(tokenizer.as_bytes(), config)?, template))
        }
    }
}

fn from_vocabulary(data: Vocabulary) -> text::Result<(Tokenizer, Option<String>)> {
    let kind = match data.model.as_str() {
        "llama" => VocabularyKind::SentencePiece,
        "gpt2" => VocabularyKind::Bpe,
        "gemma4" => VocabularyKind::Gemma4,
        "bert" => VocabularyKind::WordPiece,
        other => {
            let other: String = other.chars().take(64).collect();
            let text = format!(
                "tokenizer model '{}' is not supported: only llama, gpt2, gemma4 and bert are",
                other.escape_debug()
            );
            return Err(text::Error::Unsupported(text));
        }
    };
    let has_bos = ["llama3", "llama-v3", "llama-bpe", "tekken"];
    let has_bos = data.pre.as_deref().is_some_and(|pre| has_bos.contains(&pre));
    // Gemma 4 needs one, and no prefix, whatever its file says.
    let gemma4 = kind == VocabularyKind::Gemma4;
    let vocabulary = text::Vocabulary {
        tokens: data.tokens,
        scores: data.scores,
        token_types: data.types,
        merges: data.merges,
        pre: data.pre,
        bos: data.bos,
        eos: data.eos,
        eot: data.eot,
        separator: data.separator,
        unknown: data.unknown,
        pad: data.pad,
        fim: text::FimIds {
            prefix: data.fim.prefix,
            suffix: data.fim.suffix,
            middle: data.fim.middle,
            pad: data.fim.pad,
            repository: data.fim.repository,
            separator: data.fim.separator,
        },
        // llama.cpp's defaults where a file has no such key.
        add_bos: gemma4 || data.add_bos.unwrap_or(kind == VocabularyKind::SentencePiece || has_bos),
        add_eos: data.add_eos.unwrap_or(false),
        add_space_prefix: !gemma4 && data.add_space_prefix.unwrap_or(kind == VocabularyKind::SentencePiece),
        suppressed: data.suppressed,
        ..text::Vocabulary::new(kind)
    };
    Ok((Tokenizer::from_vocabulary(vocabulary)?, data.chat_template))
}
