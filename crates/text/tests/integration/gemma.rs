//! Gemma 3's tokenizer from both file formats. The files are not in the repository: `INDRIK_TEST_GGUF` is a
//! GGUF of Gemma 3, `INDRIK_TEST_TOKENIZER` a folder with tokenizer.json and tokenizer_config.json,
//! `INDRIK_TEST_DATA` a folder with gemma3_tokenizer_vectors.json and wikitext2-test.txt.

use std::time::Instant;

use crate::common::{Random, data, path_from_env, vocabulary};
use text::{DecodeSpecial, EncodeSpecial, Tokenizer};

fn gguf() -> Option<Tokenizer> {
    let (vocabulary, _) = vocabulary(&path_from_env("INDRIK_TEST_GGUF", "a GGUF of Gemma 3")?);
    let start = Instant::now();
    let tokenizer = Tokenizer::from_vocabulary(vocabulary).expect("a real vocabulary");
    eprintln!("vocabulary of the GGUF: {:?}", start.elapsed());
    Some(tokenizer)
}

fn hf() -> Option<Tokenizer> {
    let folder = path_from_env("INDRIK_TEST_TOKENIZER", "a folder with Gemma 3's tokenizer.json")?;
    let start = Instant::now();
    let tokenizer = Tokenizer::from_folder(&folder).expect("a real tokenizer.json");
    eprintln!("tokenizer.json: {:?}", start.elapsed());
    Some(tokenizer)
}

fn both() -> impl Iterator<Item = (&'static str, Tokenizer)> {
    [("GGUF", gguf()), ("tokenizer.json", hf())]
        .into_iter()
        .filter_map(|(name, tokenizer)| Some((name, tokenizer?)))
}

#[derive(serde::Deserialize)]
struct Vector {
    text: String,
    ids: Vec<u32>,
}

#[test]
fn ids_match_the_reference_vectors() {
    let Some(path) = data("gemma3_tokenizer_vectors.json") else { return };
    let vectors: Vec<Vector> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert!(vectors.len() >= 40);
    for (name, tokenizer) in both() {
        for vector in &vectors {
            assert_eq!(
                tokenizer.encode(&vector.text, EncodeSpecial::AsText),
                vector.ids,
                "{name}: {:?}",
                vector.text
            );
            assert_eq!(tokenizer.decode(&vector.ids, DecodeSpecial::Skip), vector.text, "{name}");
        }
    }
}

#[test]
fn wikitext_has_the_reference_token_count() {
    let Some(path) = data("wikitext2-test.txt") else { return };
    let text = std::fs::read_to_string(path).unwrap();
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let mut last: Option<Vec<u32>> = None;
    for (name, tokenizer) in both() {
        let start = Instant::now();
        let ids = tokenizer.encode(text, EncodeSpecial::AsText);
        eprintln!("{name}: {} ids of {} bytes in {:?}", ids.len(), text.len(), start.elapsed());
        // llama.cpp counts 295215, including the beginning-of-text token.
        assert_eq!(ids.len(), 295_214, "{name}");
        assert!(
            tokenizer.decode(&ids, DecodeSpecial::Skip) == text,
            "{name}: decoding does not return the text"
        );
        if let Some(last) = &last {
            assert!(*last == ids, "the two formats differ");
        }
        last = Some(ids);
    }
}

#[test]
fn both_formats_agree_on_random_text() {
    let (Some(one), Some(other)) = (gguf(), hf()) else { return };
    let mut random = Random(0x1234_5678_9abc_def1);
    for _ in 0..20_000 {
        let text = random.text();
        for special in [EncodeSpecial::Parse, EncodeSpecial::AsText] {
            assert_eq!(one.encode(&text, special), other.encode(&text, special), "{special:?} {text:?}");
        }
        let ids = one.encode(&text, EncodeSpecial::AsText);
        assert!(!ids.iter().any(|id| one.is_special(*id)), "{text:?}");
        assert_eq!(one.decode(&ids, DecodeSpecial::Skip), text.replace('▁', " "));
    }
}

#[test]
fn special_tokens_are_found() {
    for (name, tokenizer) in both() {
        assert_eq!(tokenizer.bos(), Some(2), "{name}");
        assert!(
            tokenizer.stop_token_ids().contains(&1) && tokenizer.stop_token_ids().contains(&106),
            "{name}: {:?}",
            tokenizer.stop_token_ids()
        );
        assert_eq!(tokenizer.token_id("<end_of_turn>"), Some(106), "{name}");
        assert_eq!(
            tokenizer.token_id("▁the"),
            tokenizer.encode(" the", EncodeSpecial::AsText).first().copied(),
            "{name}"
        );
        assert_eq!(tokenizer.token_id("<0x0A>"), Some(248), "{name}");
        assert_eq!(tokenizer.token_bytes(248), Some(&b"\n"[..]), "{name}");
        assert_eq!(tokenizer.encode_prompt("<bos>Hello"), [2, 9259], "{name}");
        assert_eq!(tokenizer.encode_prompt("Hello"), [2, 9259], "{name}");
    }
}
