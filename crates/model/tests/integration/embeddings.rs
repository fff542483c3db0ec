//! Tiny embedding models compared with transformers in float64: fixtures of `scripts/make_embedding_fixtures.py`.

use std::path::{Path, PathBuf};

use checkpoint::{Checkpoint, EmbeddingCheckpoint, Error as FileError, ModelKind, Pooling};
use gpu::{Device, Lifetime, Memory};
use model::{Activations, Error, TextEncoder, TextLimits};
use serde::Deserialize;
use weights::stream::{Control, Options};

const NAMES: [&str; 9] = [
    "bert_mean",
    "bert_cls",
    "bert_gguf_f16",
    "bert_gguf_q8_0",
    "embeddinggemma",
    "embeddinggemma_gguf_q8_0",
    "qwen3_embedding",
    "qwen3_embedding_prefixed",
    "qwen3_embedding_gguf_f16",
];

#[derive(Deserialize)]
pub struct Reference {
    pub texts: Vec<Vec<u32>>,
    vectors: Vec<Vec<f32>>,
    normalized: bool,
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/embeddings").join(name)
}

fn path(name: &str) -> PathBuf {
    let file = folder(name).join("model.gguf");
    if file.is_file() { file } else { folder(name) }
}

pub fn reference(name: &str) -> Reference {
    let text = std::fs::read_to_string(folder(name).join("reference.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Small buffers, so that texts of the fixtures take several batches and buckets.
pub fn load(device: &Device, name: &str) -> TextEncoder {
    let checkpoint = EmbeddingCheckpoint::open(&path(name)).unwrap();
    let limits = TextLimits { max_rows: 80, ..TextLimits::new(&checkpoint.config, Some(75)).unwrap() };
    let (options, control) = (Options::default(), Control::default());
    TextEncoder::load(device, &checkpoint, limits, Memory::Device, &options, &control).unwrap().0
}

pub fn encode(encoder: &mut TextEncoder, texts: &[Vec<u32>]) -> Vec<Vec<f32>> {
    let texts: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
    encoder.encode(&texts, &mut |_| true).unwrap()
}

fn normalized(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    vector.iter().map(|value| value / length).collect()
}

/// The largest difference between vectors, as a fraction of the length of the reference's.
pub fn difference(got: &[f32], want: &[f32]) -> f32 {
    let length = want.iter().map(|value| value * value).sum::<f32>().sqrt();
    got.iter().zip(want).map(|(got, want)| (got - want).abs() / length).fold(0.0, f32::max)
}

#[test]
fn vectors_are_those_of_transformers() {
    let Some(device) = testkit::cpu_device() else { return };
    for name in NAMES {
        let reference = reference(name);
        let mut encoder = load(&device, name);
        let vectors = encode(&mut encoder, &reference.texts);
        for (text, (got, want)) in vectors.iter().zip(&reference.vectors).enumerate() {
            let got = if reference.normalized { normalized(got) } else { got.clone() };
            let difference = difference(&got, want);
            assert!(difference < 1e-4, "{name}, text {text}: differs by {difference}");
        }
        assert_eq!(encoder.config().normalize, reference.normalized, "{name}");
    }
    device.assert_no_messages();
}

#[test]
fn emulated_matrix_units_give_almost_the_same() {
    let Some(device) = testkit::cpu_device() else { return };
    for name in ["bert_mean", "embeddinggemma", "qwen3_embedding_gguf_f16"] {
        let reference = reference(name);
        let mut encoder = load(&device, name).with_emulated_matrix_units().unwrap();
        let expected = if name == "bert_mean" { None } else { Some(Activations::F16) };
        assert!(expected.is_none_or(|expected| encoder.activations() == expected), "{name}");
        let vectors = encode(&mut encoder, &reference.texts);
        for (got, want) in vectors.iter().zip(&reference.vectors) {
            let cosine: f32 =
                normalized(got).iter().zip(normalized(want)).map(|(got, want)| got * want).sum();
            assert!(cosine > 0.9999, "{name}: {cosine}");
        }
    }
}

#[test]
fn a_text_has_the_same_vector_alone_and_in_any_batch() {
    let Some(device) = testkit::cpu_device() else { return };
    for name in ["bert_mean", "embeddinggemma", "qwen3_embedding"] {
        let texts = reference(name).texts;
        let mut encoder = load(&device, name);
        let together = encode(&mut encoder, &texts);
        for (text, want) in texts.iter().zip(&together) {
            let alone = encode(&mut encoder, std::slice::from_ref(text));
            assert!(difference(&alone[0], want) < 1e-6, "{name}, {} tokens", text.len());
        }
        // More texts than a batch has, and another order.
        let many: Vec<Vec<u32>> =
            texts.iter().rev().cycle().take(90).map(|text| text[..text.len().min(3)].to_vec()).collect();
        let vectors = encode(&mut encoder, &many);
        assert_eq!(vectors.len(), 90);
        assert!(difference(&vectors[7], &vectors[0]) < 1e-6 && difference(&vectors[89], &vectors[5]) < 1e-6);
    }
}

#[test]
fn bad_tokens_and_cancellation_are_errors() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut encoder = load(&device, "bert_cls");
    let mut fails = |text: &[u32]| encoder.encode(&[&[1], text], &mut |_| true).unwrap_err();
    assert!(matches!(fails(&[]), Error::EmptyPrompt));
    assert!(matches!(fails(&[3, 96]), Error::UnknownToken { token: 96, vocab: 96 }));
    assert!(fails(&[1; 76]).to_string().contains("76 tokens"));
    assert!(matches!(encoder.encode(&[&[1]], &mut |_| false), Err(Error::Cancelled)));
    assert!(encoder.encode(&[], &mut |_| true).unwrap().is_empty());
    let mut calls = vec![];
    encoder
        .encode(&[&[1], &[2; 70], &[3; 60]], &mut |done| {
            calls.push(done);
            true
        })
        .unwrap();
    assert!(calls.is_sorted() && calls.first() == Some(&0) && calls.last() == Some(&3), "{calls:?}");
}

#[test]
fn buffers_are_no_larger_than_planned() {
    let Some(device) = testkit::cpu_device() else { return };
    for name in NAMES {
        let checkpoint = EmbeddingCheckpoint::open(&path(name)).unwrap();
        let before = device.allocated_bytes(Lifetime::Scratch);
        let encoder = load(&device, name);
        let planned = encoder.limits().scratch_bytes(&checkpoint.config);
        let used = device.allocated_bytes(Lifetime::Scratch) - before;
        assert!(used <= planned, "{name}: {used} bytes, but {planned} were planned");
    }
}

#[test]
fn files_say_how_texts_are_encoded() {
    let open = |name| EmbeddingCheckpoint::open(&path(name)).unwrap();
    let [bert, gemma, qwen] = ["bert_cls", "embeddinggemma", "qwen3_embedding"].map(open);
    assert_eq!(
        [&bert, &gemma, &qwen].map(|model| model.config.pooling),
        [Pooling::Cls, Pooling::Mean, Pooling::Last]
    );
    assert_eq!([&bert, &gemma, &qwen].map(|model| model.config.max_tokens), [100, 128, 128]);
    assert_eq!((gemma.config.dimensions(), &gemma.config.dense[..]), (48, &[96, 48][..]));
    assert!(gemma.config.is_bidirectional() && bert.config.is_bidirectional());
    assert!(!qwen.config.is_bidirectional());
    assert_eq!(qwen.prompts.by_name["query"], "find: ");
    assert!(TextLimits::new(&bert.config, Some(101)).unwrap_err().to_string().contains("at most 100"));
}

#[test]
fn models_that_embed_are_told_from_models_that_generate() {
    for name in NAMES {
        assert_eq!(ModelKind::of(&path(name)).unwrap(), ModelKind::Embedding, "{name}");
        let error = Checkpoint::open(&path(name)).unwrap_err();
        assert!(matches!(error, FileError::IsEmbeddingModel { .. }), "{name}: {error}");
        assert!(error.to_string().contains("indrik embed"), "{error}");
    }
    for name in ["qwen3", "gguf_q8_0", "qwen3_gguf_q8_0"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        let path = if path.join("model.gguf").is_file() { path.join("model.gguf") } else { path };
        assert_eq!(ModelKind::of(&path).unwrap(), ModelKind::Generative, "{name}");
        let error = EmbeddingCheckpoint::open(&path).unwrap_err();
        assert!(matches!(error, FileError::IsGenerativeModel { .. }), "{name}: {error}");
    }
}
