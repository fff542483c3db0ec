//! A model's vocabulary as a tree of bytes.

use std::collections::HashMap;

use text::Tokenizer;
use toktrie::{TokRxInfo, TokTrie};

use crate::{Error, Result};

/// The tokens that are text, by their bytes. Control tokens have none here, so that no grammar allows them; `ends` are allowed by
/// themselves where an answer may end.
pub(crate) fn trie(tokenizer: &Tokenizer, vocab: u32, ends: &[u32]) -> Result<TokTrie> {
    let wrong = |text: String| Err(Error::Vocabulary(text));
    let Some(first) = ends.first() else {
        return wrong("no token ends an answer, so none could be ended by a grammar".into());
    };
    if let Some(end) = ends.iter().find(|end| **end >= vocab) {
        return wrong(format!("token {end} ends an answer, but there are {vocab} tokens"));
    }
    let mut words = vec![Vec::new(); vocab as usize];
    let mut of_bytes: HashMap<&[u8], u32> = HashMap::new();
    let text = (0..vocab).filter(|id| !tokenizer.is_special(*id) && !ends.contains(id));
    for (id, bytes) in text.filter_map(|id| Some((id, tokenizer.token_bytes(id)?))) {
        // No text has this byte, and the tree has another use for it.
        if bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER) {
            continue;
        }
        // Two may stand for the same bytes: a letter and its byte. A model writes the letter.
        match of_bytes.get(bytes) {
            Some(other) if tokenizer.is_byte(id) || !tokenizer.is_byte(*other) => continue,
            Some(other) => words[*other as usize].clear(),
            None => {}
        }
        of_bytes.insert(bytes, id);
        words[id as usize] = bytes.to_vec();
    }
    if of_bytes.is_empty() {
        return wrong("none of its tokens is text".into());
    }
    Ok(TokTrie::from(&TokRxInfo::new(vocab, *first), &words).with_eos_tokens(ends))
}
