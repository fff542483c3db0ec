//! Probabilities of tokens, as each of the two kinds of completion tells them.

use std::collections::BTreeMap;

use serde::Serialize;
use text::Tokenizer;
use utoipa::ToSchema;

use crate::told::Told;

/// The most that `top_logprobs` of a chat may ask for.
pub(crate) const CHAT_MOST: u32 = 20;

/// The most that `logprobs` of a text may ask for.
pub(crate) const TEXT_MOST: u32 = 5;

/// JSON has no infinity: what has no probability at all is told by OpenAI's number for it.
const NEVER: f32 = -9999.0;

/// Probabilities of the assistant's tokens.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatLogprobs {
    content: Vec<TokenLogprob>,
    /// Always null.
    #[schema(required)]
    refusal: Option<()>,
}

/// A token, and those that were the most probable in its place.
#[derive(Debug, Serialize, ToSchema)]
struct TokenLogprob {
    #[serde(flatten)]
    token: OneLogprob,
    /// As many as were asked for, the most probable first.
    top_logprobs: Vec<OneLogprob>,
}

/// A token with the logarithm of the probability that the model gave it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OneLogprob {
    /// Its text. Bytes that are no whole character are written as in `\xf0`.
    token: String,
    logprob: f32,
    /// Its bytes; those of all tokens in a row are the text. Null for control tokens, which have none.
    #[schema(required)]
    bytes: Option<Vec<u8>>,
}

/// Probabilities of a continued text's tokens; the four lists are of one length.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct TextLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    /// The most probable tokens in each place, and the one that was chosen.
    top_logprobs: Vec<BTreeMap<String, f32>>,
    /// Where the text of each begins, in characters of the choice's text.
    text_offset: Vec<usize>,
}

impl OneLogprob {
    fn new(id: u32, logprob: f32, tokenizer: &Tokenizer) -> OneLogprob {
        let bytes = tokenizer.token_bytes(id).filter(|_| !tokenizer.is_special(id));
        OneLogprob { token: name(id, tokenizer), logprob: finite(logprob), bytes: bytes.map(<[u8]>::to_vec) }
    }
}

impl ChatLogprobs {
    pub(crate) fn new(told: &[Told], tokenizer: &Tokenizer) -> ChatLogprobs {
        let one = |(id, logprob): &(u32, f32)| OneLogprob::new(*id, *logprob, tokenizer);
        let token = |told: &Told| TokenLogprob {
            token: one(&(told.id, told.logprob)),
            top_logprobs: told.top.iter().map(one).collect(),
        };
        ChatLogprobs { content: told.iter().map(token).collect(), refusal: None }
    }
}

impl TextLogprobs {
    pub(crate) fn new(told: &[Told], tokenizer: &Tokenizer) -> TextLogprobs {
        let mut all = TextLogprobs::default();
        for Told { id, logprob, top, offset } in told {
            let mut tops = BTreeMap::new();
            for (id, logprob) in [(*id, *logprob)].iter().chain(top) {
                // Two tokens may have one text: the more probable counts.
                let known = tops.entry(name(*id, tokenizer)).or_insert(NEVER);
                *known = known.max(finite(*logprob));
            }
            all.tokens.push(name(*id, tokenizer));
            all.token_logprobs.push(finite(*logprob));
            all.top_logprobs.push(tops);
            all.text_offset.push(*offset);
        }
        all
    }
}

fn finite(logprob: f32) -> f32 {
    // A number that is none is the second of two here.
    logprob.max(NEVER)
}

/// A token's text, with bytes that are no whole character as in `\xf0`. A model may have tokens that its tokenizer does not know.
fn name(id: u32, tokenizer: &Tokenizer) -> String {
    let Some(bytes) = tokenizer.token_bytes(id) else { return format!("<{id}>") };
    let mut name = String::new();
    for chunk in bytes.utf8_chunks() {
        name.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| name.push_str(&format!("\\x{byte:02x}")));
    }
    name
}
