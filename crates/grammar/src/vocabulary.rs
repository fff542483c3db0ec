//! A model's vocabulary as llguidance's prefix tree over bytes.

use std::collections::HashMap;

use text::Tokenizer;
use toktrie::{TokRxInfo, TokTrie};

use crate::{Error, Result};

/// The prefix tree of all text tokens. Control tokens are left empty, so that no grammar allows them.
/// `stop_token_ids` are allowed only where a completion may end.
pub(crate) fn trie(tokenizer: &Tokenizer, vocab_size: u32, stop_token_ids: &[u32]) -> Result<TokTrie> {
    let invalid = |text: String| Err(Error::Vocabulary(text));
    let Some(first) = stop_token_ids.first() else {
        return invalid("there is no stop token, so a grammar could not end a completion".into());
    };
    if let Some(stop) = stop_token_ids.iter().find(|stop| **stop >= vocab_size) {
        return invalid(format!("stop token {stop} is outside the vocabulary of {vocab_size} tokens"));
    }
    let mut words = vec![Vec::new(); vocab_size as usize];
    let mut token_by_bytes: HashMap<&[u8], u32> = HashMap::new();
    let text = (0..vocab_size).filter(|id| !tokenizer.is_special(*id) && !stop_token_ids.contains(id));
    for (id, bytes) in text.filter_map(|id| Some((id, tokenizer.token_bytes(id)?))) {
        // toktrie reserves this byte, which is invalid in UTF-8.
        if bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER) {
            continue;
        }
        // A character and its byte-fallback token may have the same bytes. Models write the character.
        match token_by_bytes.get(bytes) {
            Some(other) if tokenizer.is_byte(id) || !tokenizer.is_byte(*other) => continue,
            Some(other) => words[*other as usize].clear(),
            None => {}
        }
        token_by_bytes.insert(bytes, id);
        words[id as usize] = bytes.to_vec();
    }
    if token_by_bytes.is_empty() {
        return invalid("it has no text tokens".into());
    }
    Ok(TokTrie::from(&TokRxInfo::new(vocab_size, *first), &words).with_eos_tokens(stop_token_ids))
}
