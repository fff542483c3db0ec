//! SentencePiece BPE and incremental decoding, on a small test vocabulary.

use crate::common::{id, small};
use proptest::prelude::*;
use text::{DecodeSpecial, Detokenizer, EncodeSpecial, Tokenizer};

fn tokenizer() -> Tokenizer {
    Tokenizer::from_vocabulary(small()).expect("a valid vocabulary")
}

fn ids(names: &[&str]) -> Vec<u32> {
    names.iter().map(|name| id(name)).collect()
}

fn text(input: &str) -> Vec<u32> {
    tokenizer().encode(input, EncodeSpecial::AsText)
}

#[test]
fn the_best_score_merges_first() {
    // "▁t" (best) leaves "he", and the two merge to "▁the"; without a space "he" scores better than "th".
    assert_eq!(text(" the"), ids(&["▁the"]));
    assert_eq!(text("the"), ids(&["t", "he"]));
    assert_eq!(text("th"), ids(&["th"]));
    assert_eq!(text("a the"), ids(&["a", "▁the"]));
}

#[test]
fn equal_scores_merge_from_the_left() {
    // Pairs merge first, from the left, then each pair with the next.
    assert_eq!(text("aaa"), ids(&["aaa"]));
    assert_eq!(text("aaaa"), ids(&["aa", "aa"]));
    assert_eq!(text("aaaaa"), ids(&["aa", "aaa"]));
}

#[test]
fn unknown_characters_become_byte_tokens() {
    assert_eq!(text("é€"), ids(&["é", "<0xE2>", "<0x82>", "<0xAC>"]));
    let mut vocabulary = small();
    vocabulary.token_types.iter_mut().filter(|kind| **kind == 6).for_each(|kind| *kind = 1);
    let without_bytes = Tokenizer::from_vocabulary(vocabulary.clone()).unwrap();
    assert_eq!(without_bytes.encode("a€€a€", EncodeSpecial::AsText), ids(&["a", "<unk>", "a", "<unk>"]));
    vocabulary.unknown = None;
    let without_either = Tokenizer::from_vocabulary(vocabulary).unwrap();
    assert_eq!(without_either.encode("a€a", EncodeSpecial::AsText), ids(&["a", "a"]));
}

#[test]
fn control_tokens_are_parsed_only_on_request() {
    assert_eq!(
        tokenizer().encode("<s>a<end_of_turn>\n", EncodeSpecial::Parse),
        ids(&["<s>", "a", "<end_of_turn>", "\n"])
    );
    assert_eq!(text("<s>\n"), ids(&["<", "s", ">", "\n"]));
}

#[test]
fn a_prompt_has_one_beginning_of_text_token() {
    for prompt in ["a", "<s>a", "<s><s>a"] {
        assert_eq!(tokenizer().encode_prompt(prompt), ids(&["<s>", "a"]), "{prompt}");
    }
    assert_eq!(tokenizer().encode_prompt("a<s>"), ids(&["<s>", "a", "<s>"]));
    assert_eq!(tokenizer().encode_prompt(""), ids(&["<s>"]));
    let mut vocabulary = small();
    vocabulary.add_bos = false;
    assert_eq!(Tokenizer::from_vocabulary(vocabulary).unwrap().encode_prompt("<s>a"), ids(&["<s>", "a"]));
}

#[test]
fn the_added_leading_space_is_removed_when_decoding() {
    let mut vocabulary = small();
    vocabulary.add_space_prefix = true;
    let tokenizer = Tokenizer::from_vocabulary(vocabulary).unwrap();
    let encoded = tokenizer.encode("the<s>the\nhe", EncodeSpecial::Parse);
    assert_eq!(encoded, ids(&["▁the", "<s>", "▁the", "\n", "▁", "he"]));
    // Only the first space was added by the tokenizer.
    assert_eq!(tokenizer.decode(&encoded, DecodeSpecial::Skip), "the the\n he");
    assert!(tokenizer.encode("", EncodeSpecial::Parse).is_empty());
}

#[test]
fn tokens_are_found_by_name() {
    let tokenizer = tokenizer();
    assert_eq!(tokenizer.vocab_size(), small().tokens.len());
    assert_eq!(tokenizer.stop_token_ids(), ids(&["</s>", "<end_of_turn>"]));
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)));
    assert_eq!(tokenizer.token_id("▁the"), Some(id("▁the")));
    assert_eq!(tokenizer.token_id("<0xE2>"), Some(id("<0xE2>")));
    assert_eq!(tokenizer.token_id("nothing"), None);
    assert_eq!(tokenizer.token_bytes(id("▁the")), Some(&b" the"[..]));
    assert_eq!(tokenizer.token_bytes(id("<0xE2>")), Some(&[0xe2][..]));
    assert_eq!(tokenizer.token_bytes(u32::MAX), None);
    assert!(tokenizer.is_special(id("<s>")) && tokenizer.is_special(id("<unk>")));
    assert!(
        !tokenizer.is_special(id("\n")) && !tokenizer.is_special(id("a")) && !tokenizer.is_special(u32::MAX)
    );
}

#[test]
fn decoding_keeps_or_skips_control_tokens() {
    let encoded = ids(&["<s>", "▁the", "<0xE2>", "<0x82>", "<0xAC>", "<end_of_turn>"]);
    assert_eq!(tokenizer().decode(&encoded, DecodeSpecial::Skip), " the€");
    assert_eq!(tokenizer().decode(&encoded, DecodeSpecial::Keep), "<s> the€<end_of_turn>");
    assert_eq!(tokenizer().decode(&[u32::MAX, id("a")], DecodeSpecial::Keep), "a");
}

#[test]
fn incomplete_characters_are_held_back() {
    let mut stream = Detokenizer::new(&tokenizer(), DecodeSpecial::Skip);
    let pushed: Vec<String> = ids(&["a", "<0xE2>", "<0x82>", "<0xAC>", "<0xE2>", "a"])
        .into_iter()
        .map(|id| stream.push(id))
        .collect();
    assert_eq!(pushed, ["a", "", "", "€", "", "\u{fffd}a"]);
    stream.push(id("<0xF0>"));
    assert_eq!(stream.finish(), "\u{fffd}");
}

/// Ids of [`small`], half of them bytes, some outside the vocabulary.
fn any_ids() -> impl Strategy<Value = Vec<u32>> {
    let count = small().tokens.len() as u32;
    proptest::collection::vec(
        prop_oneof![0..count + 3, 5..261u32, Just(id("<0xF0>")), Just(id("<0x9F>")), Just(id("<0xED>"))],
        0..40,
    )
}

proptest! {
    #[test]
    fn streaming_matches_decoding(ids in any_ids(), prefix: bool) {
        let mut vocabulary = small();
        vocabulary.add_space_prefix = prefix;
        let tokenizer = Tokenizer::from_vocabulary(vocabulary).unwrap();
        let mut bytes: Vec<u8> = ids.iter().filter(|id| !tokenizer.is_special(**id)).flat_map(|id| tokenizer.token_bytes(*id).unwrap_or_default()).copied().collect();
        if prefix && bytes.first() == Some(&b' ') {
            bytes.remove(0);
        }
        let expected = String::from_utf8_lossy(&bytes);
        prop_assert_eq!(&tokenizer.decode(&ids, DecodeSpecial::Skip), &expected);
        let mut stream = Detokenizer::new(&tokenizer, DecodeSpecial::Skip);
        let mut text: String = ids.iter().map(|id| stream.push(*id)).collect();
        text.push_str(&stream.finish());
        prop_assert_eq!(&text, &expected);
    }

    #[test]
    fn decoding_returns_the_encoded_text(text in r"(\PC|[ ath\n<s>é]|[\x00-\x20]){0,60}") {
        let tokenizer = tokenizer();
        let ids = tokenizer.encode(&text, EncodeSpecial::AsText);
        prop_assert!(!ids.iter().any(|id| tokenizer.is_special(*id)));
        prop_assert_eq!(tokenizer.decode(&ids, DecodeSpecial::Skip), text.replace('▁', " "));
    }

    /// Compares with a naive implementation: merge the best pair, leftmost among equals, until none is left.
    #[test]
    fn merging_matches_a_naive_implementation(text in "[ ahte]{0,40}") {
        let vocabulary = small();
        let find = |text: &str| vocabulary.tokens.iter().position(|token| *token == text);
        let mut symbols: Vec<String> = text.replace(' ', "▁").chars().map(String::from).collect();
        loop {
            let pairs = symbols.windows(2).enumerate().filter_map(|(at, pair)| Some((find(&pair.concat())?, at)));
            let Some((_, at)) = pairs.min() else { break };
            let right = symbols.remove(at + 1);
            symbols[at].push_str(&right);
        }
        let plain: Vec<u32> = symbols.iter().filter_map(|symbol| find(symbol)).map(|id| id as u32).collect();
        prop_assert_eq!(Tokenizer::from_vocabulary(small()).unwrap().encode(&text, EncodeSpecial::AsText), plain);
    }
}
