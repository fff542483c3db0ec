//! WordPiece, and the special tokens around texts that are embedded, compared with Hugging Face's tokenizers on difficult
//! texts, from a fixture of `scripts/make_embedding_fixtures.py`.

use std::{collections::BTreeMap, sync::LazyLock};

use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};
use text::{DecodeSpecial, EncodeSpecial, Tokenizer, Vocabulary, VocabularyKind};

#[derive(Deserialize)]
struct Fixture {
    vocabulary: Vec<String>,
    texts: Vec<String>,
    kinds: BTreeMap<String, Kind>,
    tokenizer: Value,
    templates: Vec<Template>,
}

#[derive(Deserialize)]
struct Kind {
    normalizer: Value,
    /// With the special tokens around each text.
    ids: Vec<Vec<u32>>,
}

#[derive(Deserialize)]
struct Template {
    tokenizer: Value,
    config: Value,
    texts: Vec<String>,
    ids: Vec<Vec<u32>>,
}

static FIXTURE: LazyLock<Fixture> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../fixtures/embedding_texts.json")).expect("the fixture")
});

fn from_json(tokenizer: &Value, config: &Value) -> text::Result<Tokenizer> {
    Tokenizer::from_hf(tokenizer.to_string().as_bytes(), Some(config.to_string().as_bytes()))
}

/// The vocabulary as llama.cpp's converter writes it.
fn gguf() -> Vocabulary {
    let names = &FIXTURE.vocabulary;
    let is_special = |name: &str| name.starts_with('[') && name.len() > 1 && name.ends_with(']');
    let stored = |name: &String| match name.strip_prefix("##") {
        _ if is_special(name) => name.clone(),
        Some(rest) => rest.to_owned(),
        None => format!("▁{name}"),
    };
    let id = |name: &str| names.iter().position(|known| known == name).map(|id| id as u32);
    Vocabulary {
        tokens: names.iter().map(stored).collect(),
        token_types: names.iter().map(|name| if is_special(name) { 3 } else { 1 }).collect(),
        unknown: id("[UNK]"),
        bos: id("[CLS]"),
        eos: id("[SEP]"),
        separator: id("[SEP]"),
        pad: id("[PAD]"),
        ..Vocabulary::new(VocabularyKind::WordPiece)
    }
}

#[test]
fn ids_are_those_of_the_reference() {
    for (name, kind) in &FIXTURE.kinds {
        let mut json = FIXTURE.tokenizer.clone();
        json["normalizer"] = kind.normalizer.clone();
        let tokenizer = from_json(&json, &json!({})).unwrap();
        for (text, want) in FIXTURE.texts.iter().zip(&kind.ids) {
            // The reference parses names of special tokens in the text.
            let got = tokenizer.encode(text, EncodeSpecial::Parse);
            assert_eq!(got, want[1..want.len() - 1], "{name}: {text:?}");
            if !text.contains('[') {
                assert_eq!(tokenizer.encode_for_embedding(text, 512).ids, *want, "{name}: {text:?}");
            }
        }
    }
}

#[test]
fn gguf_gives_the_same_ids_as_an_uncased_model() {
    let tokenizer = Tokenizer::from_vocabulary(gguf()).unwrap();
    for (text, want) in FIXTURE.texts.iter().zip(&FIXTURE.kinds["uncased"].ids) {
        assert_eq!(tokenizer.encode(text, EncodeSpecial::Parse), want[1..want.len() - 1], "{text:?}");
        if !text.contains('[') {
            assert_eq!(tokenizer.encode_for_embedding(text, 512).ids, *want, "{text:?}");
        }
    }
    let ids = tokenizer.encode("The cat, running", EncodeSpecial::AsText);
    assert_eq!(tokenizer.decode(&ids, DecodeSpecial::Skip).trim(), "the cat , running");
}

#[test]
fn names_of_special_tokens_are_text() {
    let tokenizer = from_json(&FIXTURE.tokenizer, &json!({})).unwrap();
    let special = tokenizer.encode("[SEP]", EncodeSpecial::Parse);
    let encoded = tokenizer.encode_for_embedding("[SEP]", 512).ids;
    assert_eq!(
        encoded.iter().filter(|id| special.contains(id)).count(),
        1,
        "only the one at the end: {encoded:?}"
    );
}

#[test]
fn special_tokens_surround_texts_as_the_files_say() {
    for template in &FIXTURE.templates {
        let tokenizer = from_json(&template.tokenizer, &template.config).unwrap();
        for (text, want) in template.texts.iter().zip(&template.ids) {
            assert_eq!(tokenizer.encode_for_embedding(text, 512).ids, *want, "{text:?}");
        }
    }
}

#[test]
fn long_texts_lose_their_end_but_not_the_last_special_token() {
    let tokenizer = from_json(&FIXTURE.tokenizer, &json!({})).unwrap();
    let whole = tokenizer.encode_for_embedding("the cat sat on the mat", 8);
    assert_eq!((whole.ids.len(), whole.full_length, whole.is_truncated()), (8, 8, false));
    let cut = tokenizer.encode_for_embedding("the cat sat on the mat", 7);
    assert_eq!((&cut.ids[..6], cut.ids[6]), (&whole.ids[..6], whole.ids[7]));
    assert!(cut.is_truncated() && cut.full_length == 8);
    for max in 0..3 {
        assert_eq!(tokenizer.encode_for_embedding("the cat", max).ids.len(), max);
    }
}

#[test]
fn unsupported_settings_are_rejected() {
    let rejected = |change: &dyn Fn(&mut Value), with: &str| {
        let mut json = FIXTURE.tokenizer.clone();
        change(&mut json);
        let error = from_json(&json, &json!({})).unwrap_err().to_string();
        assert!(error.contains(with), "{error}, expected {with}");
    };
    rejected(&|json| json["normalizer"] = json!({ "type": "NFKC" }), "only BertNormalizer");
    rejected(&|json| json["pre_tokenizer"] = json!({ "type": "Whitespace" }), "only BertPreTokenizer");
    rejected(&|json| json["model"]["continuing_subword_prefix"] = json!("@@"), "'@@'");
    rejected(&|json| json["model"]["unk_token"] = json!("[NONE]"), "unknown token");
    let no_unknown = Vocabulary { unknown: None, ..gguf() };
    assert!(Tokenizer::from_vocabulary(no_unknown).unwrap_err().to_string().contains("unknown token"));
}

proptest! {
    #[test]
    fn any_text_becomes_tokens_of_the_vocabulary(text in "\\PC{0,80}") {
        let tokenizer = Tokenizer::from_vocabulary(gguf()).unwrap();
        let encoded = tokenizer.encode_for_embedding(&text, 20);
        prop_assert!(encoded.ids.len() >= 2 && encoded.ids.len() <= 20);
        prop_assert!(encoded.ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()));
    }
}
