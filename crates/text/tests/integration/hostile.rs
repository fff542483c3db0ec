//! Untrusted files and texts: an error or a result, never a panic, and never quadratic time.

use std::time::Duration;

use crate::common::{cpu_time, id, small};
use proptest::prelude::*;
use text::{DecodeSpecial, EncodeSpecial, Error, Tokenizer, Vocabulary, VocabularyKind, hf};

fn rejected(change: impl FnOnce(&mut Vocabulary)) -> String {
    let mut vocabulary = small();
    change(&mut vocabulary);
    match Tokenizer::from_vocabulary(vocabulary) {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn damaged_vocabularies_are_rejected() {
    assert!(rejected(|v| v.tokens.clear()).contains("277 scores for 0 tokens"));
    assert!(rejected(|v| *v = Vocabulary::new(VocabularyKind::SentencePiece)).contains("empty"));
    assert!(rejected(|v| *v = Vocabulary::new(VocabularyKind::Bpe)).contains("empty"));
    assert!(rejected(|v| v.scores.truncate(3)).contains("3 scores for 277 tokens"));
    assert!(rejected(|v| v.scores.clear()).contains("0 scores"));
    assert!(rejected(|v| v.token_types.push(1)).contains("278 token types for 277 tokens"));
    assert!(rejected(|v| v.bos = Some(277)).contains("bos token is 277"));
    assert!(rejected(|v| v.unknown = Some(u32::MAX)).contains("unknown token"));
    assert!(rejected(|v| v.token_types[0] = 6).contains("'<unk>' has the type of a byte token"));
    assert!(
        rejected(|v| (v.kind, v.merges) = (VocabularyKind::Bpe, vec!["a zz".into()])).contains("merge 0")
    );
    assert!(
        rejected(|v| (v.kind, v.merges) = (VocabularyKind::Bpe, vec!["nospace".into()])).contains("merge 0")
    );
}

#[test]
fn unusual_vocabularies_work() {
    let mut vocabulary = small();
    // Of duplicate tokens the first is used; text takes precedence over a control token with the same bytes.
    vocabulary.tokens[id("th") as usize] = "he".into();
    vocabulary.tokens[id("</s>") as usize] = "a".into();
    vocabulary.scores.fill(f32::NAN);
    vocabulary.tokens[id("aa") as usize].clear();
    let tokenizer = Tokenizer::from_vocabulary(vocabulary).unwrap();
    assert_eq!(tokenizer.encode("a", EncodeSpecial::AsText), [id("a")]);
    assert_eq!(tokenizer.encode("he", EncodeSpecial::AsText), [id("he")]);
    let mut types = small();
    types.token_types.clear();
    let tokenizer = Tokenizer::from_vocabulary(types).unwrap();
    assert!(tokenizer.is_special(1) && tokenizer.is_special(0));
    assert_eq!(tokenizer.encode("€", EncodeSpecial::AsText).len(), 3);
}

/// A small tokenizer.json like Gemma's.
fn json() -> serde_json::Value {
    let mut vocab = serde_json::Map::new();
    for (id, token) in
        ["<bos>", "<eos>", "<unk>", "<end_of_turn>", "\n", "▁", "a", "b", "ab", "▁a", "▁▁"].iter().enumerate()
    {
        vocab.insert((*token).to_owned(), id.into());
    }
    for byte in 0..256 {
        vocab.insert(format!("<0x{byte:02X}>"), (11 + byte).into());
    }
    let added = |id: u32, content: &str, special: bool| serde_json::json!({"id": id, "content": content, "special": special});
    serde_json::json!({
        "added_tokens": [added(0, "<bos>", true), added(1, "<eos>", true), added(2, "<unk>", true), added(3, "<end_of_turn>", true), added(4, "\n", false), added(300, "<mask>", false)],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"},
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<bos>"}}, {"Sequence": {"id": "A"}}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": vocab,
            "merges": [["▁", "▁"], ["a", "b"], "▁ a"]},
    })
}

fn from_json(json: &serde_json::Value) -> Result<Tokenizer, Error> {
    Tokenizer::from_hf(&serde_json::to_vec(json).unwrap(), None)
}

#[test]
fn a_small_tokenizer_json_works() {
    let tokenizer = from_json(&json()).unwrap();
    assert_eq!(tokenizer.encode(" ab a\n  b", EncodeSpecial::AsText), [5, 8, 9, 4, 10, 7]);
    assert_eq!(tokenizer.encode("<mask>é", EncodeSpecial::Parse), [300, 11 + 0xc3, 11 + 0xa9]);
    assert!(!tokenizer.encode("<mask><bos>", EncodeSpecial::AsText).iter().any(|id| [0, 300].contains(id)));
    assert_eq!(tokenizer.encode_prompt("<bos>a"), [0, 6]);
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.vocab_size()), (Some(0), Some(1), 301));
    assert_eq!(tokenizer.stop_token_ids(), [1, 3]);
    assert_eq!(tokenizer.decode(&[9, 11 + 0xc3, 299, 8], DecodeSpecial::Skip), " a\u{fffd}ab");
    let config = br#"{"eos_token": {"content": "<end_of_turn>"}, "add_bos_token": false}"#;
    let tokenizer = Tokenizer::from_hf(&serde_json::to_vec(&json()).unwrap(), Some(config)).unwrap();
    assert_eq!((tokenizer.eos(), tokenizer.adds_bos()), (Some(3), false));
    assert_eq!(tokenizer.encode_prompt("a"), [6]);
}

#[test]
fn damaged_json_is_rejected() {
    for text in ["", "{", "null", "[]", "{\"model\": {}}", "{\"model\": {\"vocab\": {\"a\": -1}}}"] {
        assert!(matches!(Tokenizer::from_hf(text.as_bytes(), None), Err(Error::Invalid(_))), "{text}");
    }
    assert!(Tokenizer::from_hf(b"{\"model\": {\"vocab\": {}}}", None).is_err());
    assert!(Tokenizer::from_hf(&[0xff, 0xfe], None).is_err());
    assert!(Tokenizer::from_hf("[".repeat(100_000).as_bytes(), None).is_err());
    assert!(Tokenizer::from_hf(&serde_json::to_vec(&json()).unwrap(), Some(b"{")).is_err());
    assert!(hf::TokenizerConfig::parse(b"[1]").is_ok_and(|config| config == hf::TokenizerConfig::default()));
    type Change = fn(&mut serde_json::Value);
    let changes: [(&str, Change); 10] = [
        ("limit", |j| j["model"]["vocab"]["a"] = 4_000_000_000u32.into()),
        ("limit", |j| j["added_tokens"][0]["id"] = u32::MAX.into()),
        ("same id", |j| j["model"]["vocab"]["a"] = 7.into()),
        ("merge 0", |j| j["model"]["merges"][0][0] = "zz".into()),
        ("merge needs two", |j| j["model"]["merges"][0] = serde_json::json!(["a"])),
        ("'Unigram'", |j| j["model"]["type"] = "Unigram".into()),
        ("dropout", |j| j["model"]["dropout"] = 0.1.into()),
        ("lstrip", |j| j["added_tokens"][0]["lstrip"] = true.into()),
        ("normalizer {\"type\":\"NFKC\"}", |j| j["normalizer"] = serde_json::json!({"type": "NFKC"})),
        ("pre-tokenizer", |j| j["pre_tokenizer"] = serde_json::json!({"type": "Whitespace"})),
    ];
    for (text, change) in changes {
        let mut changed = json();
        change(&mut changed);
        let error = from_json(&changed).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}

/// 30 times the text takes about 40 times as long with n log n, and 900 times with n².
#[test]
#[ignore = "measures time: `make soak` runs it"]
fn repetitive_texts_take_n_log_n_time() {
    let byte_level = {
        let mut vocabulary = Vocabulary::new(VocabularyKind::Bpe);
        vocabulary.tokens = ["a", "aa", "aaaa", "Ġ", "ĠĠ", "<|x|>"].map(String::from).to_vec();
        vocabulary.merges = ["a a", "aa aa", "Ġ Ġ"].map(String::from).to_vec();
        vocabulary.token_types = vec![1, 1, 1, 1, 1, 3];
        Tokenizer::from_vocabulary(vocabulary).unwrap()
    };
    let mut near = small();
    // Every position of "aaaa…" starts a near miss of a long special token.
    near.tokens[id("</s>") as usize] = "a".repeat(5000) + "!";
    for tokenizer in [Tokenizer::from_vocabulary(near).unwrap(), byte_level] {
        for unit in ["a", " ", "<", "\n", "é", "<|x|", "a "] {
            let time = |length: usize| {
                let text = unit.repeat(length / unit.len());
                let start = cpu_time();
                assert!(tokenizer.encode(&text, EncodeSpecial::Parse).len() <= text.len());
                cpu_time() - start
            };
            let (short, long) = (time(10_000), time(300_000));
            assert!(long < short * 250 + Duration::from_millis(200), "{unit:?}: {short:?}, then {long:?}");
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_vocabularies_do_not_panic(
        tokens in proptest::collection::vec("[ab▁ <>|0xA]{0,4}", 0..20),
        scores in proptest::collection::vec(any::<f32>(), 0..20),
        types in proptest::collection::vec(-1..8i32, 0..20),
        merges in proptest::collection::vec("[ab]{0,2} ?[ab]{0,2}", 0..3),
        ids in proptest::collection::vec(proptest::option::of(0..25u32), 4),
        byte_level: bool, aligned: bool, prefix: bool,
        text in "[ab▁ <>|0xA€]{0,30}",
    ) {
        let mut vocabulary = Vocabulary::new(if byte_level { VocabularyKind::Bpe } else { VocabularyKind::SentencePiece });
        vocabulary.scores = scores;
        vocabulary.token_types = types;
        if aligned {
            vocabulary.scores.resize(tokens.len(), 0.0);
            vocabulary.token_types.resize(tokens.len(), 1);
        }
        (vocabulary.tokens, vocabulary.merges, vocabulary.add_space_prefix, vocabulary.add_bos) = (tokens, merges, prefix, prefix);
        (vocabulary.bos, vocabulary.eos, vocabulary.eot, vocabulary.unknown) = (ids[0], ids[1], ids[2], ids[3]);
        if let Ok(tokenizer) = Tokenizer::from_vocabulary(vocabulary) {
            for special in [EncodeSpecial::Parse, EncodeSpecial::AsText] {
                let ids = tokenizer.encode(&text, special);
                prop_assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()));
                tokenizer.decode(&ids, DecodeSpecial::Keep);
            }
            tokenizer.encode_prompt(&text);
        }
    }
}
