//! Log probabilities in the formats of the two endpoints.

use std::collections::BTreeMap;

use serde::Serialize;
use text::Tokenizer;
use utoipa::ToSchema;

use crate::emitted::{EmittedToken, MIN_LOGPROB, clamp};

/// Maximum of `top_logprobs` in a chat.
pub(crate) const MAX_CHAT_LOGPROBS: u32 = 20;

/// Maximum of `logprobs` in `/v1/completions`.
pub(crate) const MAX_TEXT_LOGPROBS: u32 = 5;

/// Log probabilities of a chat completion's tokens.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatLogprobs {
    content: Vec<TokenLogprob>,
    /// Always null.
    #[schema(required)]
    refusal: Option<()>,
}

/// A generated token and the most probable tokens at its position.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct TokenLogprob {
    #[serde(flatten)]
    token: Logprob,
    /// The most probable tokens, as many as requested, in descending order.
    top_logprobs: Vec<Logprob>,
}

/// A token and its log probability.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Logprob {
    /// Text of the token. Bytes that are not a complete character are written as `\xf0`.
    token: String,
    logprob: f32,
    /// Bytes of the token. Concatenated over all tokens, they are the text. Null for control tokens.
    #[schema(required)]
    bytes: Option<Vec<u8>>,
}

/// Log probabilities of a text completion's tokens, in four lists of the same length.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct TextLogprobs {
    tokens: Vec<String>,
    /// Null for the first token of an echoed prompt.
    token_logprobs: Vec<Option<f32>>,
    /// The most probable tokens at each position, and the one in the text. Null for the first token of an echoed
    /// prompt.
    top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
    /// Offset of each token in the choice's text, in characters.
    text_offset: Vec<usize>,
}

impl Logprob {
    fn new(id: u32, logprob: f32, tokenizer: &Tokenizer) -> Logprob {
        let bytes = tokenizer.token_bytes(id).filter(|_| !tokenizer.is_special(id));
        Logprob {
            token: token_text(id, tokenizer),
            logprob: clamp(logprob),
            bytes: bytes.map(<[u8]>::to_vec),
        }
    }
}

impl TokenLogprob {
    pub(crate) fn new(token: &EmittedToken, tokenizer: &Tokenizer) -> TokenLogprob {
        let logprob = |(id, logprob): &(u32, f32)| Logprob::new(*id, *logprob, tokenizer);
        TokenLogprob {
            // Chats do not echo their prompt, so every token has one.
            token: logprob(&(token.id, token.logprob.unwrap_or(MIN_LOGPROB))),
            top_logprobs: token.top.iter().map(logprob).collect(),
        }
    }

    /// With empty instead of null `bytes`.
    pub(crate) fn with_bytes(mut self) -> TokenLogprob {
        for logprob in self.top_logprobs.iter_mut().chain([&mut self.token]) {
            logprob.bytes.get_or_insert_default();
        }
        self
    }
}

impl ChatLogprobs {
    pub(crate) fn new(tokens: &[EmittedToken], tokenizer: &Tokenizer) -> ChatLogprobs {
        let content = tokens.iter().map(|token| TokenLogprob::new(token, tokenizer)).collect();
        ChatLogprobs { content, refusal: None }
    }
}

impl TextLogprobs {
    pub(crate) fn new(tokens: &[EmittedToken], tokenizer: &Tokenizer) -> TextLogprobs {
        let mut lists = TextLogprobs::default();
        for EmittedToken { id, logprob, top, offset } in tokens {
            let top_logprobs = logprob.map(|logprob| {
                let mut reported = BTreeMap::new();
                for (id, logprob) in [(*id, logprob)].iter().chain(top) {
                    // Different tokens may have the same text: the more probable one is reported.
                    let known = reported.entry(token_text(*id, tokenizer)).or_insert(MIN_LOGPROB);
                    *known = known.max(clamp(*logprob));
                }
                reported
            });
            lists.tokens.push(token_text(*id, tokenizer));
            lists.token_logprobs.push(logprob.map(clamp));
            lists.top_logprobs.push(top_logprobs);
            lists.text_offset.push(*offset);
        }
        lists
    }
}

/// Text of a token; bytes that are not a complete character are written as `\xf0`, and a token that the tokenizer
/// does not have as `<id>`.
pub(crate) fn token_text(id: u32, tokenizer: &Tokenizer) -> String {
    let Some(bytes) = tokenizer.token_bytes(id) else { return format!("<{id}>") };
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}
