//! Gemma 4's tokenizer from both file formats, compared with Hugging Face's tokenizers on a small vocabulary
//! (`scripts/make_bpe_fixtures.py`) and with a real file (`INDRIK_TEST_GEMMA4`: a GGUF).

use std::{collections::BTreeMap, sync::LazyLock};

use crate::common::{Random, path_from_env, vocabulary};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};
use text::{DecodeSpecial, Detokenizer, EncodeSpecial, Tokenizer, Vocabulary, VocabularyKind};

#[derive(Deserialize)]
struct Fixture {
    texts: Vec<String>,
    /// A tokenizer.json.
    file: Value,
    /// Ids with control tokens parsed and, if different, ids with everything as text.
    ids: Vec<Vec<Vec<u32>>>,
}

static FIXTURE: LazyLock<Fixture> = LazyLock::new(|| {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/gemma4.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
});

/// Delimiters that converters mark as user-defined tokens, so that they are visible.
const VISIBLE: [&str; 7] = [
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|\"|>",
    "<|channel>",
    "<channel|>",
];

/// The vocabulary as a converter writes it.
fn gguf() -> Vocabulary {
    let model = &FIXTURE.file["model"];
    let vocab: BTreeMap<String, u32> = serde_json::from_value(model["vocab"].clone()).unwrap();
    let merges: Vec<(String, String)> = serde_json::from_value(model["merges"].clone()).unwrap();
    let mut vocabulary = Vocabulary::new(VocabularyKind::Gemma4);
    vocabulary.tokens = vec![String::new(); vocab.len()];
    for (token, id) in &vocab {
        vocabulary.tokens[*id as usize] = token.clone();
    }
    let controls: Vec<&str> = FIXTURE.file["added_tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|added| added["content"].as_str().unwrap())
        .collect();
    let class = |token: &String| match token.as_str() {
        "<unk>" => 2,
        token if VISIBLE.contains(&token) => 4,
        token if controls.contains(&token) => 3,
        token if token.starts_with("<0x") && token.len() == 6 => 6,
        _ => 1,
    };
    vocabulary.token_types = vocabulary.tokens.iter().map(class).collect();
    vocabulary.merges = merges.iter().map(|(left, right)| format!("{left} {right}")).collect();
    (vocabulary.pad, vocabulary.eos, vocabulary.bos, vocabulary.unknown) =
        (Some(0), Some(1), Some(2), Some(3));
    vocabulary.add_bos = true;
    vocabulary
}

static TOKENIZERS: LazyLock<[Tokenizer; 2]> = LazyLock::new(|| {
    let config = json!({ "bos_token": "<bos>", "eos_token": "<turn|>" });
    let file = serde_json::to_vec(&FIXTURE.file).unwrap();
    let hf = Tokenizer::from_hf(&file, Some(&serde_json::to_vec(&config).unwrap())).unwrap();
    [hf, Tokenizer::from_vocabulary(gguf()).unwrap()]
});

#[test]
fn both_formats_match_hugging_face() {
    assert!(FIXTURE.texts.len() > 100 && FIXTURE.texts.len() == FIXTURE.ids.len());
    for (name, tokenizer) in ["tokenizer.json", "GGUF"].into_iter().zip(&*TOKENIZERS) {
        for (text, ids) in FIXTURE.texts.iter().zip(&FIXTURE.ids) {
            assert_eq!(tokenizer.encode(text, EncodeSpecial::Parse), ids[0], "{name}: {text:?}");
            let as_text = tokenizer.encode(text, EncodeSpecial::AsText);
            assert_eq!(&as_text, ids.last().unwrap(), "{name}, as text: {text:?}");
            // U+2581 becomes a space.
            let decoded = tokenizer.decode(&as_text, DecodeSpecial::Skip);
            assert_eq!(decoded, text.replace('▁', " "), "{name}");
        }
        // The beginning-of-text token comes first once.
        for text in ["<bos>x", "x"] {
            let ids = tokenizer.encode_prompt(text);
            assert_eq!((ids[0], ids.len()), (2, 2), "{name}: {ids:?}");
        }
    }
}

#[test]
fn a_run_of_line_breaks_is_one_token_if_the_vocabulary_has_it() {
    let tokenizer = &TOKENIZERS[1];
    let run = |count: usize| tokenizer.encode(&"\n".repeat(count), EncodeSpecial::AsText);
    for count in 1..=9 {
        assert_eq!(run(count), [tokenizer.token_id(&"\n".repeat(count)).unwrap()]);
    }
    assert_eq!(run(10).len(), 2);
    // Even if no merge makes it.
    let mut vocabulary = gguf();
    vocabulary.merges.retain(|merge| !merge.contains('\n'));
    let unmerged = Tokenizer::from_vocabulary(vocabulary).unwrap();
    assert_eq!(unmerged.encode("\n\n\n", EncodeSpecial::AsText), run(3));
    assert_eq!(unmerged.encode(&"\n".repeat(10), EncodeSpecial::AsText).len(), 10);
}

#[test]
fn turns_and_tool_calls_end_a_completion() {
    for tokenizer in &*TOKENIZERS {
        let mut names: Vec<_> =
            tokenizer.stop_token_ids().iter().map(|id| tokenizer.token_name(*id).unwrap()).collect();
        names.sort_unstable();
        assert_eq!(names, ["<eos>", "<turn|>", "<|tool_response>"]);
        // The delimiters are control tokens in both formats: text never becomes one.
        for name in VISIBLE {
            let id = tokenizer.token_id(name).unwrap();
            assert!(tokenizer.is_special(id), "{name}");
            assert_eq!(tokenizer.encode(name, EncodeSpecial::Parse), [id]);
            assert!(!tokenizer.encode(name, EncodeSpecial::AsText).contains(&id), "{name}");
        }
    }
}

#[test]
fn suppressed_tokens_must_exist() {
    let with = |suppressed: Vec<u32>| Tokenizer::from_vocabulary(Vocabulary { suppressed, ..gguf() });
    assert_eq!(with(vec![5, 3]).unwrap().suppressed_token_ids(), [5, 3]);
    let count = gguf().tokens.len() as u32;
    for (suppressed, reason) in [(vec![1, count], "is suppressed"), (vec![0; 257], "the limit is 256")] {
        let error = with(suppressed).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn damaged_vocabularies_are_rejected() {
    let mut unknown = gguf();
    unknown.merges.push("nosuchtoken x".to_owned());
    let mut whole = gguf();
    whole.merges.push("x".to_owned());
    let mut byte = gguf();
    let first = byte.tokens.iter().position(|token| token == "<0x00>").unwrap();
    byte.tokens[first] = "<0xZZ>".to_owned();
    for vocabulary in [unknown, whole, byte] {
        assert!(Tokenizer::from_vocabulary(vocabulary).is_err());
    }
}

#[test]
fn a_real_file_encodes_and_decodes() {
    let Some(path) = path_from_env("INDRIK_TEST_GEMMA4", "a GGUF of Gemma 4") else { return };
    let (vocabulary, _) = vocabulary(&path);
    assert_eq!(vocabulary.kind, VocabularyKind::Gemma4);
    let tokenizer = Tokenizer::from_vocabulary(vocabulary).unwrap();
    let mut stops = tokenizer.stop_token_ids().to_vec();
    stops.sort_unstable();
    assert_eq!(stops, [1, 50, 106]);
    assert_eq!(tokenizer.encode("\n\n\n", EncodeSpecial::AsText), [109]);
    assert_eq!(tokenizer.encode("<|turn>", EncodeSpecial::Parse), [105]);
    // Texts and llama.cpp's ids, beside its file with the vocabulary only.
    let beside = |extension: &str| std::fs::read_to_string(format!("{}.{extension}", path.display())).ok();
    if let Some((texts, ids)) = beside("inp").zip(beside("out")) {
        let texts = texts.strip_suffix("\n__ggml_vocab_test__\n").unwrap_or(&texts);
        for (text, ids) in texts.split("\n__ggml_vocab_test__\n").zip(ids.lines()) {
            let ids: Vec<u32> = ids.split_whitespace().map(|id| id.parse().unwrap()).collect();
            assert_eq!(tokenizer.encode(text, EncodeSpecial::AsText), ids, "{text:?}");
        }
    }
    let mut random = Random(1);
    for _ in 0..2000 {
        let text = random.text();
        let ids = tokenizer.encode(&text, EncodeSpecial::AsText);
        assert_eq!(tokenizer.decode(&ids, DecodeSpecial::Keep), text.replace('▁', " "));
    }
}

proptest! {
    #[test]
    fn decoding_returns_the_encoded_text(pieces in proptest::collection::vec((0..FIXTURE.texts.len(), any::<char>(), 0..9usize), 0..6)) {
        let mut text = String::new();
        for (at, other, length) in pieces {
            text.extend(FIXTURE.texts[at].chars().take(length));
            text.push(other);
        }
        let [hf, gguf] = &*TOKENIZERS;
        let ids = gguf.encode(&text, EncodeSpecial::AsText);
        prop_assert_eq!(&ids, &hf.encode(&text, EncodeSpecial::AsText));
        let expected = text.replace('▁', " ");
        let mut stream = Detokenizer::new(gguf, DecodeSpecial::Skip);
        let streamed: String = ids.iter().map(|id| stream.push(*id)).collect();
        prop_assert_eq!(streamed + &stream.finish(), expected);
    }
}
