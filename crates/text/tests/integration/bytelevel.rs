//! Byte-level BPE, on a small test vocabulary and on SmolLM2's (`INDRIK_TEST_SMOLLM2`: a GGUF).

use crate::common::{Random, path_from_env, vocabulary};
use proptest::prelude::*;
use text::{DecodeSpecial, Detokenizer, EncodeSpecial, Tokenizer, Vocabulary, VocabularyKind};

/// GPT-2's character for a byte.
fn letter(byte: u8) -> char {
    let plain = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let code = if plain(&byte) { byte as u32 } else { 256 + (0..byte).filter(|b| !plain(b)).count() as u32 };
    char::from_u32(code).expect("a letter")
}

/// Ids: 0 `<|endoftext|>`, 1 `<|im_end|>`, then the bytes, then the merged tokens.
fn small(pre: &str) -> Vocabulary {
    let mut vocabulary = Vocabulary::new(VocabularyKind::Bpe);
    vocabulary.tokens = vec!["<|endoftext|>".into(), "<|im_end|>".into()];
    vocabulary.tokens.extend((0..=255).map(|byte| letter(byte).to_string()));
    for merge in ["Ġ t", "h e", "Ġt he", "1 2", "12 3", "Ġ Ġ", "Ċ Ċ", "l l", "' ll"] {
        vocabulary.merges.push(merge.to_owned());
        vocabulary.tokens.push(merge.replace(' ', ""));
    }
    // A word that no merge produces.
    vocabulary.tokens.push("Ġwhole".into());
    vocabulary.token_types =
        vocabulary.tokens.iter().map(|token| if token.starts_with("<|") { 3 } else { 1 }).collect();
    vocabulary.pre = Some(pre.to_owned());
    vocabulary.eos = Some(1);
    vocabulary
}

fn tokenizer(pre: &str) -> Tokenizer {
    Tokenizer::from_vocabulary(small(pre)).expect("a valid vocabulary")
}

/// The text of each token.
fn pieces(pre: &str, text: &str) -> Vec<String> {
    let tokenizer = tokenizer(pre);
    let ids = tokenizer.encode(text, EncodeSpecial::AsText);
    ids.iter()
        .map(|id| String::from_utf8_lossy(tokenizer.token_bytes(*id).expect("a token")).into_owned())
        .collect()
}

#[test]
fn merges_apply_in_list_order() {
    assert_eq!(pieces("gpt-2", " the the"), [" the", " the"]);
    assert_eq!(pieces("gpt-2", "the"), ["t", "he"]);
    assert_eq!(pieces("gpt-2", "é"), ["\u{fffd}", "\u{fffd}"]);
}

#[test]
fn words_are_split_by_the_pattern() {
    // The last space belongs to the following word, if there is one.
    assert_eq!(pieces("gpt-2", "x   the"), ["x", "  ", " the"]);
    assert_eq!(pieces("gpt-2", "x  "), ["x", "  "]);
    assert_eq!(pieces("gpt-2", "123"), ["123"]);
    assert_eq!(pieces("llama-bpe", "1231"), ["123", "1"]);
    assert_eq!(pieces("qwen2", "123"), ["1", "2", "3"]);
    assert_eq!(pieces("smollm", "123"), ["1", "2", "3"]);
    // Digits are split off before the pattern applies, so the spaces before them are at the end of a text.
    assert_eq!(pieces("smollm", "  1"), ["  ", "1"]);
    assert_eq!(pieces("gpt-2", "  1"), [" ", " ", "1"]);
    // Newer patterns keep line breaks together.
    assert_eq!(pieces("qwen2", "\n\nx"), ["\n\n", "x"]);
    assert_eq!(pieces("gpt-2", "\n\nx"), ["\n", "\n", "x"]);
    // Contractions; newer patterns ignore case.
    assert_eq!(pieces("gpt-2", "x'll"), ["x", "'ll"]);
}

#[test]
fn llama3_uses_whole_words_without_merging() {
    assert_eq!(pieces("llama-bpe", " whole"), [" whole"]);
    assert_eq!(pieces("qwen2", " whole").len(), 6);
}

#[test]
fn control_tokens_are_parsed_only_on_request() {
    let tokenizer = tokenizer("gpt-2");
    assert_eq!(tokenizer.encode("<|im_end|>", EncodeSpecial::Parse), [1]);
    assert!(tokenizer.encode("<|im_end|>", EncodeSpecial::AsText).len() > 1);
    assert_eq!(tokenizer.stop_token_ids(), [1, 0]);
    assert_eq!(tokenizer.encode_prompt("x"), tokenizer.encode("x", EncodeSpecial::AsText));
}

#[test]
fn errors_name_the_unsupported_pattern() {
    let error = Tokenizer::from_vocabulary(small("chameleon")).unwrap_err().to_string();
    assert!(error.contains("'chameleon'") && error.contains("llama-bpe"), "{error}");
}

#[test]
fn missing_bytes_are_dropped() {
    let mut vocabulary = small("gpt-2");
    vocabulary.tokens[2 + usize::from(b'x')] = "replaced".into();
    let tokenizer = Tokenizer::from_vocabulary(vocabulary).unwrap();
    assert_eq!(tokenizer.decode(&tokenizer.encode("axb", EncodeSpecial::AsText), DecodeSpecial::Skip), "ab");
}

#[test]
fn smollm2_matches_hugging_face() {
    let Some(path) = path_from_env("INDRIK_TEST_SMOLLM2", "a GGUF of SmolLM2") else { return };
    let tokenizer = Tokenizer::from_vocabulary(vocabulary(&path).0).unwrap();
    assert_eq!(tokenizer.stop_token_ids(), [2, 0]);
    // Expected ids from Hugging Face's tokenizers library.
    let known: [(&str, &[u32]); 3] = [
        (
            "<|im_start|>user\nWhat's  the year 2024?<|im_end|>\n",
            &[1, 4093, 198, 1780, 506, 216, 260, 713, 216, 34, 32, 34, 36, 47, 2, 198],
        ),
        (
            "नमस्ते 世界 🦙\t\t x",
            &[
                30658, 35090, 38770, 16525, 26293, 30581, 216, 7906, 240, 178, 239, 230, 15107, 116, 243,
                1656, 1792,
            ],
        ),
        (
            "def f(x):\n    return x  ** 12\n\n",
            &[1604, 275, 24, 104, 727, 472, 1003, 1792, 216, 1903, 216, 33, 34, 1116],
        ),
    ];
    for (text, ids) in known {
        assert_eq!(tokenizer.encode(text, EncodeSpecial::Parse), ids, "{text:?}");
    }
    let mut random = Random(99);
    for _ in 0..2000 {
        // The vocabulary lacks a few bytes: control characters, and planes without scripts.
        let known = |c: &char| *c < '\u{10000}' && (*c >= ' ' || "\n\t".contains(*c));
        let text: String = random.text().chars().filter(known).collect();
        let ids = tokenizer.encode(&text, EncodeSpecial::AsText);
        assert_eq!(tokenizer.decode(&ids, DecodeSpecial::Skip), text);
    }
}

proptest! {
    #[test]
    fn decoding_returns_the_encoded_text(text in r"(\PC|[ the12'\n]){0,40}", pre in 0..4usize) {
        let tokenizer = tokenizer(["gpt-2", "smollm", "qwen2", "llama-bpe"][pre]);
        let ids = tokenizer.encode(&text, EncodeSpecial::AsText);
        prop_assert_eq!(&tokenizer.decode(&ids, DecodeSpecial::Skip), &text);
        let mut stream = Detokenizer::new(&tokenizer, DecodeSpecial::Skip);
        let streamed: String = ids.iter().map(|id| stream.push(*id)).collect();
        prop_assert_eq!(streamed + &stream.finish(), text);
    }
}
