//! Byte-level BPE compared with Hugging Face's tokenizers on difficult texts, from fixtures of
//! `scripts/make_bpe_fixtures.py`. Uses a small vocabulary whose tokens cross every boundary of the patterns,
//! from tokenizer.json and from a GGUF; the vocabularies and templates of real models (`INDRIK_TEST_SMOLLM2`,
//! `INDRIK_TEST_QWEN`); and llama.cpp's ids of prompts (`INDRIK_TEST_DATA`). `INDRIK_TEST_BPE_FUZZ` is a file
//! of random texts written by the same script, and `INDRIK_TEST_TEKKEN` one with Mistral's vocabulary.

use std::{collections::BTreeMap, path::Path, sync::LazyLock};

use crate::common::{cpu_time, data, path_from_env, vocabulary};
use proptest::prelude::*;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use text::{
    ChatTemplate, DecodeSpecial, Detokenizer, EncodeSpecial, Message, Tokenizer, Vocabulary, VocabularyKind,
};

/// Ids with control tokens parsed and, if different, ids with everything as text.
type Ids = Vec<Vec<u32>>;

#[derive(Deserialize)]
struct Own {
    texts: Vec<String>,
    vocab: BTreeMap<String, u32>,
    merges: Vec<(String, String)>,
    control: Vec<String>,
    kinds: BTreeMap<String, Family>,
}

#[derive(Deserialize)]
struct Family {
    pre_tokenizer: Value,
    normalizer: Value,
    ignore_merges: bool,
    ids: Vec<Ids>,
    /// Without the normaliser, if it has one.
    plain: Option<Vec<Ids>>,
    decoded: Vec<(Vec<u32>, String)>,
}

#[derive(Deserialize)]
struct Real {
    ids: Vec<Ids>,
    decoded: Vec<(Vec<u32>, String)>,
    conversations: Vec<Vec<Turn>>,
    rendered: Vec<Rendered>,
}

#[derive(Deserialize)]
struct Turn {
    role: String,
    content: String,
}

#[derive(Deserialize)]
struct Rendered {
    prompt: bool,
    text: String,
}

fn read<T: DeserializeOwned>(path: &Path) -> T {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn fixture<T: DeserializeOwned>(name: &str) -> T {
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name))
}

static OWN: LazyLock<Own> = LazyLock::new(|| fixture("bpe.json"));
static TOKENIZERS: LazyLock<BTreeMap<String, (Tokenizer, Tokenizer)>> = LazyLock::new(|| {
    OWN.kinds.keys().map(|kind| (kind.clone(), (from_json(kind), from_gguf(kind)))).collect()
});

fn from_json(kind: &str) -> Tokenizer {
    let family = &OWN.kinds[kind];
    let added = |name: &String| json!({ "id": OWN.vocab[name], "content": name, "special": true, "normalized": false });
    let file = json!({
        "added_tokens": OWN.control.iter().map(added).collect::<Vec<_>>(),
        "normalizer": family.normalizer, "pre_tokenizer": family.pre_tokenizer,
        "model": { "type": "BPE", "ignore_merges": family.ignore_merges, "vocab": OWN.vocab, "merges": OWN.merges },
    });
    Tokenizer::from_hf(&serde_json::to_vec(&file).unwrap(), None).unwrap()
}

fn from_gguf(kind: &str) -> Tokenizer {
    let mut vocabulary = Vocabulary::new(VocabularyKind::Bpe);
    vocabulary.tokens = vec![String::new(); OWN.vocab.len()];
    for (token, id) in &OWN.vocab {
        vocabulary.tokens[*id as usize] = token.clone();
    }
    let class = |token| if OWN.control.contains(token) { 3 } else { 1 };
    vocabulary.token_types = vocabulary.tokens.iter().map(class).collect();
    vocabulary.merges = OWN.merges.iter().map(|(left, right)| format!("{left} {right}")).collect();
    vocabulary.pre = Some(kind.to_owned());
    Tokenizer::from_vocabulary(vocabulary).unwrap()
}

fn check(what: &str, tokenizer: &Tokenizer, texts: &[String], expected: &[Ids]) {
    assert!(!texts.is_empty() && texts.len() == expected.len());
    for (text, ids) in texts.iter().zip(expected) {
        assert_eq!(tokenizer.encode(text, EncodeSpecial::Parse), ids[0], "{what}: {text:?}");
        assert_eq!(
            &tokenizer.encode(text, EncodeSpecial::AsText),
            ids.last().unwrap(),
            "{what}, as text: {text:?}"
        );
    }
}

#[test]
fn both_formats_match_hugging_face_on_the_test_vocabulary() {
    assert_eq!(OWN.kinds.len(), 5);
    for (kind, family) in &OWN.kinds {
        let (hf, gguf) = &TOKENIZERS[kind];
        check(&format!("{kind}, tokenizer.json"), hf, &OWN.texts, &family.ids);
        check(&format!("{kind}, GGUF"), gguf, &OWN.texts, family.plain.as_ref().unwrap_or(&family.ids));
        for (ids, text) in &family.decoded {
            assert_eq!(&hf.decode(ids, DecodeSpecial::Skip), text, "{kind}: {ids:?}");
        }
    }
    // The fixture distinguishes the patterns, and normalised from plain text.
    let differ = |one: &str, other: &str| OWN.kinds[one].ids != OWN.kinds[other].ids;
    assert!(differ("gpt-2", "smollm") && differ("qwen2", "llama-bpe") && differ("gpt-2", "llama-bpe"));
    assert!(differ("tekken", "qwen2") && differ("tekken", "llama-bpe"));
    assert!(OWN.kinds["qwen2"].plain.as_ref().is_some_and(|plain| *plain != OWN.kinds["qwen2"].ids));
}

#[test]
fn well_known_stop_tokens_are_recognised_regardless_of_their_type() {
    let names = ["<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>"];
    for class in [1, 3, 4, 5] {
        let mut vocabulary = Vocabulary::new(VocabularyKind::Bpe);
        vocabulary.tokens = ["a", "</s>"].into_iter().chain(names).map(str::to_owned).collect();
        vocabulary.token_types = vec![1, 1, class, class, class, class, class];
        vocabulary.eos = Some(2);
        let tokenizer = Tokenizer::from_vocabulary(vocabulary).unwrap();
        let mut stop_ids = tokenizer.stop_token_ids().to_vec();
        stop_ids.sort_unstable();
        assert_eq!(stop_ids, [2, 3, 4, 5, 6], "type {class}");
        // Written as text, they are not stop tokens.
        assert!(tokenizer.encode("<|im_end|>", EncodeSpecial::AsText).iter().all(|id| *id < 2));
        assert_eq!(tokenizer.encode("<|im_end|>", EncodeSpecial::Parse), [2]);
    }
}

#[test]
fn tokens_matched_in_normalised_text_are_rejected() {
    let file = |normalized: bool| {
        json!({
            "added_tokens": [{ "id": 1, "content": "<|x|>", "special": true, "normalized": normalized }],
            "normalizer": { "type": "NFC" }, "pre_tokenizer": OWN.kinds["qwen2"].pre_tokenizer,
            "model": { "type": "BPE", "vocab": { "a": 0 } },
        })
    };
    let open = |normalized| Tokenizer::from_hf(&serde_json::to_vec(&file(normalized)).unwrap(), None);
    assert!(open(false).is_ok());
    let error = open(true).unwrap_err().to_string();
    assert!(error.contains("'<|x|>'"), "{error}");
}

/// A model's tokenizer and chat template, and their expected output.
fn real(variable: &str, what: &str, name: &str) -> Option<(Tokenizer, ChatTemplate, Real)> {
    let (vocabulary, template) = vocabulary(&path_from_env(variable, what)?);
    let tokenizer = Tokenizer::from_vocabulary(vocabulary).unwrap();
    let name_of = |id: Option<u32>| tokenizer.token_name(id.unwrap()).unwrap().into_owned();
    let template =
        ChatTemplate::new(&template.unwrap(), &name_of(tokenizer.bos()), &name_of(tokenizer.eos())).unwrap();
    Some((tokenizer, template, fixture(name)))
}

fn smollm2() -> Option<(Tokenizer, ChatTemplate, Real)> {
    real("INDRIK_TEST_SMOLLM2", "a GGUF of SmolLM2 135M Instruct", "smollm2.json")
}

fn qwen() -> Option<(Tokenizer, ChatTemplate, Real)> {
    real("INDRIK_TEST_QWEN", "a GGUF of Qwen2.5-Coder 1.5B Instruct", "qwen2.5.json")
}

fn check_real(what: &str, tokenizer: &Tokenizer, template: &ChatTemplate, real: &Real) {
    check(what, tokenizer, &OWN.texts, &real.ids);
    for (ids, text) in &real.decoded {
        assert_eq!(&tokenizer.decode(ids, DecodeSpecial::Skip), text, "{what}: {ids:?}");
    }
    let mut rendered = real.rendered.iter();
    for conversation in &real.conversations {
        let conversation: Vec<Message> =
            conversation.iter().map(|turn| Message::new(&turn.role, &turn.content)).collect();
        for expected in rendered.by_ref().take(2) {
            let text = template.render(&conversation, expected.prompt).unwrap();
            assert_eq!(text, expected.text, "{what}: {conversation:?}");
        }
    }
    assert!(rendered.next().is_none() && real.conversations.len() >= 8);
}

/// Prompts and llama.cpp's ids.
fn check_reference(tokenizer: &Tokenizer, name: &str) {
    #[derive(Deserialize)]
    struct Reference {
        cases: Vec<Case>,
    }
    #[derive(Deserialize)]
    struct Case {
        prompt: String,
        input: Vec<u32>,
    }
    let Some(path) = data(name) else { return };
    let reference: Reference = read(&path);
    assert!(!reference.cases.is_empty());
    for case in &reference.cases {
        assert_eq!(tokenizer.encode_prompt(&case.prompt), case.input, "{:?}", case.prompt);
    }
}

#[test]
fn smollm2_matches_hugging_face_and_llama_cpp() {
    let Some((tokenizer, template, real)) = smollm2() else { return };
    check_real("SmolLM2", &tokenizer, &template, &real);
    check_reference(&tokenizer, "smollm2_reference.json");
    assert_eq!(tokenizer.stop_token_ids(), [2, 0]);
    let greeting = template.render(&[Message::new("user", "Hi")], true).unwrap();
    assert!(
        greeting.starts_with("<|im_start|>system\nYou are a helpful AI assistant named SmolLM"),
        "{greeting}"
    );
}

#[test]
fn qwen_matches_hugging_face_and_llama_cpp() {
    let Some((tokenizer, template, real)) = qwen() else { return };
    check_real("Qwen", &tokenizer, &template, &real);
    check_reference(&tokenizer, "qwen15_reference.json");
    let name = |id: &u32| tokenizer.token_name(*id).unwrap().into_owned();
    assert_eq!(
        tokenizer.stop_token_ids().iter().map(name).collect::<Vec<_>>(),
        ["<|im_end|>", "<|endoftext|>"]
    );
    assert!(!tokenizer.adds_bos());
}

#[test]
fn mistral_matches_its_own_tokenizer() {
    #[derive(Deserialize)]
    struct Tekken {
        texts: Vec<String>,
        tokens: Vec<String>,
        /// Number of control tokens, which come first.
        control: usize,
        merges: Vec<String>,
        ids: Vec<Vec<u32>>,
    }
    let what = "the output of make_bpe_fixtures.py --tekken";
    let Some(path) = path_from_env("INDRIK_TEST_TEKKEN", what) else { return };
    let tekken: Tekken = read(&path);
    let mut vocabulary = Vocabulary::new(VocabularyKind::Bpe);
    vocabulary.token_types =
        (0..tekken.tokens.len()).map(|id| if id < tekken.control { 3 } else { 1 }).collect();
    (vocabulary.tokens, vocabulary.merges) = (tekken.tokens, tekken.merges);
    vocabulary.pre = Some("tekken".to_owned());
    let tokenizer = Tokenizer::from_vocabulary(vocabulary).unwrap();
    assert!(tekken.texts.len() > 3000);
    for (text, ids) in tekken.texts.iter().zip(&tekken.ids) {
        assert_eq!(&tokenizer.encode(text, EncodeSpecial::AsText), ids, "{text:?}");
    }
}

#[test]
fn random_texts_match_hugging_face() {
    #[derive(Deserialize)]
    struct Fuzz {
        texts: Vec<String>,
        own: BTreeMap<String, Vec<Ids>>,
        real: BTreeMap<String, Vec<Ids>>,
    }
    let Some(path) = path_from_env("INDRIK_TEST_BPE_FUZZ", "the output of make_bpe_fixtures.py --fuzz")
    else {
        return;
    };
    let fuzz: Fuzz = read(&path);
    for (kind, expected) in &fuzz.own {
        check(kind, &TOKENIZERS[kind].0, &fuzz.texts, expected);
    }
    for (name, found) in [("smollm2", smollm2()), ("qwen2.5", qwen())] {
        if let Some((tokenizer, _, _)) = found {
            check(name, &tokenizer, &fuzz.texts, &fuzz.real[name]);
        }
    }
}

/// Repetitive text takes at most a small multiple of the time of prose, so nothing is quadratic. Prints the
/// speed.
#[test]
#[ignore = "measures time: `make soak` runs it"]
fn long_texts_take_linear_time() {
    const LONG: usize = 256 << 10;
    let Some(path) = data("wikitext2-test.txt") else { return };
    let prose_text: String = std::fs::read_to_string(path).unwrap().chars().take(LONG).collect();
    let units = [" ", "\n", "a", "1", "'s", "🦙", "👨‍👩‍👧", "e\u{301}", "\u{323}\u{301}", "<|im_end"];
    let texts: Vec<(&str, String)> =
        units.iter().map(|unit| (*unit, unit.repeat(LONG / unit.len()))).collect();
    let own = ["qwen2"].map(|kind| (kind, TOKENIZERS[kind].0.clone()));
    let real = [("SmolLM2", smollm2()), ("Qwen", qwen())].map(|(name, real)| Some((name, real?.0)));
    for (name, tokenizer) in own.into_iter().chain(real.into_iter().flatten()) {
        let time = |what: &str, text: &str| {
            let start = cpu_time();
            let ids = tokenizer.encode(text, EncodeSpecial::Parse);
            let took = cpu_time() - start;
            let speed = text.len() as f64 / took.as_secs_f64() / 1e6;
            eprintln!("{name}: {what}: {} ids of {} bytes, {speed:.1} MB/s", ids.len(), text.len());
            took
        };
        let prose = time("prose", &prose_text);
        for (unit, text) in &texts {
            let took = time(&format!("{unit:?}"), text);
            assert!(took < prose * 20, "{name}: {unit:?} took {took:?}, prose {prose:?}");
        }
    }
}

proptest! {
    /// Decoding returns the encoded text, normalised if the file specifies it.
    #[test]
    fn decoding_returns_the_encoded_text(pieces in proptest::collection::vec((0..OWN.texts.len(), any::<char>(), 0..9usize), 0..6)) {
        let mut text = String::new();
        for (at, other, length) in pieces {
            text.extend(OWN.texts[at].chars().take(length));
            text.push(other);
        }
        for (kind, (hf, gguf)) in TOKENIZERS.iter() {
            let ids = gguf.encode(&text, EncodeSpecial::AsText);
            prop_assert_eq!(&gguf.decode(&ids, DecodeSpecial::Keep), &text, "{}", kind);
            let mut stream = Detokenizer::new(gguf, DecodeSpecial::Skip);
            let streamed: String = ids.iter().map(|id| stream.push(*id)).collect();
            prop_assert_eq!(&(streamed + &stream.finish()), &text, "{}", kind);
            let normal = hf.decode(&hf.encode(&text, EncodeSpecial::AsText), DecodeSpecial::Skip);
            prop_assert!(normal == text || kind == "qwen2");
            // Normalised text stays normalised.
            let again = hf.decode(&hf.encode(&normal, EncodeSpecial::AsText), DecodeSpecial::Skip);
            prop_assert_eq!(again, normal, "{}", kind);
        }
    }
}
