//! Embedding models through the library: a tiny one, and the published all-MiniLM-L6-v2 against sentence-transformers.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use indrik::{EmbedOptions, EmbeddingFiles, EmbeddingModel, EmbeddingOptions, Error, ModelFiles};

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/embeddings").join(name);
    path.to_str().unwrap().to_owned()
}

fn open(name: &str, max_tokens: Option<u32>) -> Option<EmbeddingModel> {
    testkit::cpu_device()?;
    let options = EmbeddingOptions { max_tokens, ..EmbeddingOptions::default() };
    Some(EmbeddingModel::open(&fixture(name), options).unwrap())
}

fn length(vector: &[f32]) -> f32 {
    vector.iter().map(|value| value * value).sum::<f32>().sqrt()
}

fn cosine(one: &[f32], other: &[f32]) -> f32 {
    one.iter().zip(other).map(|(one, other)| one * other).sum::<f32>() / (length(one) * length(other))
}

#[test]
fn texts_become_vectors_of_length_one() {
    let Some(model) = open("bert_mean", None) else { return };
    let texts = ["the cat sat on the mat", "", "🦀", "The Cat SAT on the mat"];
    let embeddings = model.embed(&texts, &EmbedOptions::default()).unwrap();
    assert!(
        embeddings.iter().all(|text| text.vector.len() == 32 && (length(&text.vector) - 1.0).abs() < 1e-6)
    );
    // Special tokens alone, and an unknown one.
    assert_eq!(embeddings.iter().map(|text| text.tokens).collect::<Vec<_>>(), [8, 2, 3, 8]);
    assert!(cosine(&embeddings[0].vector, &embeddings[3].vector) > 0.999_999);
    assert!(cosine(&embeddings[0].vector, &embeddings[1].vector) < 0.999);
    assert!(model.embed(&[], &EmbedOptions::default()).unwrap().is_empty());
    // Not normalised where the model is not.
    let plain = open("bert_cls", None).unwrap().embed(&["the cat"], &EmbedOptions::default()).unwrap();
    assert!((length(&plain[0].vector) - 1.0).abs() > 0.01);
}

#[test]
fn fewer_dimensions_are_the_first_ones_scaled() {
    let Some(model) = open("bert_mean", None) else { return };
    let embed = |dimensions| {
        model
            .embed(&["the cat"], &EmbedOptions { dimensions, ..EmbedOptions::default() })
            .map(|mut all| all.remove(0).vector)
    };
    let (all, some) = (embed(None).unwrap(), embed(Some(8)).unwrap());
    assert!(some.len() == 8 && (length(&some) - 1.0).abs() < 1e-6 && cosine(&some, &all[..8]) > 0.999_999);
    assert_eq!(embed(Some(32)).unwrap(), all);
    for dimensions in [0, 33] {
        let error = embed(Some(dimensions)).unwrap_err().to_string();
        assert!(error.contains(&format!("{dimensions} dimensions")) && error.contains("1 to 32"), "{error}");
    }
}

#[test]
fn long_texts_are_truncated_only_on_request() {
    let Some(model) = open("bert_mean", Some(7)) else { return };
    let texts = ["the cat", "the cat sat on the mat"];
    let error = model.embed(&texts, &EmbedOptions::default()).unwrap_err();
    assert!(matches!(error, Error::TextTooLong { number: 2, tokens: 8, max_tokens: 7 }), "{error}");
    let truncate = EmbedOptions { truncate: true, ..EmbedOptions::default() };
    let embeddings = model.embed(&texts, &truncate).unwrap();
    let lengths: Vec<_> = embeddings.iter().map(|text| (text.tokens, text.truncated)).collect();
    assert_eq!(lengths, [(4, false), (7, true)]);
    let shorter = model.embed(&["the cat sat on the"], &truncate).unwrap();
    assert!(cosine(&shorter[0].vector, &embeddings[1].vector) > 0.999_999);
    let error = EmbeddingModel::open(
        &fixture("bert_mean"),
        EmbeddingOptions { max_tokens: Some(101), ..EmbeddingOptions::default() },
    );
    assert!(error.err().unwrap().to_string().contains("at most 100"));
}

#[test]
fn models_of_the_other_kind_are_rejected_with_advice() {
    let generative = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures/llama_tied");
    let error = EmbeddingFiles::open(generative.to_str().unwrap()).err().unwrap().to_string();
    assert!(error.contains("generates text") && error.contains("all-minilm"), "{error}");
    let error = ModelFiles::open(&fixture("bert_mean")).err().unwrap().to_string();
    assert!(error.contains("embedding model") && error.contains("indrik embed"), "{error}");
    let files = EmbeddingFiles::open(&fixture("bert_mean")).unwrap();
    assert!(files.prompts().by_name.is_empty() && files.config().dimensions() == 32);
    // A model without a tokenizer is no use.
    let error = EmbeddingFiles::open(&fixture("qwen3_embedding")).err().unwrap().to_string();
    assert!(error.contains("tokenizer"), "{error}");
}

#[test]
fn prompts_are_chosen_by_name() {
    let Some(model) = open("bert_mean", None) else { return };
    let options = EmbedOptions { prompt: Some("query".into()), ..EmbedOptions::default() };
    let error = model.embed(&["the cat"], &options).unwrap_err();
    assert!(
        matches!(error, Error::UnknownPrompt { .. }) && error.to_string().contains("none at all"),
        "{error}"
    );
}

#[test]
fn threads_share_a_model() {
    let Some(model) = open("bert_mean", None) else { return };
    let model = Arc::new(model);
    let want = model.embed(&["the cat"], &EmbedOptions::default()).unwrap();
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let model = model.clone();
            std::thread::spawn(move || model.embed(&["the cat"], &EmbedOptions::default()).unwrap())
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), want);
    }
    let cancelled = model.embed_with(&["the cat"], &EmbedOptions::default(), &mut |_| false).unwrap_err();
    assert!(matches!(cancelled, Error::Model(model::Error::Cancelled)), "{cancelled}");
}

/// The published model: INDRIK_TEST_MINILM names its folder.
#[test]
fn minilm_matches_sentence_transformers() {
    let Some(path) = std::env::var_os("INDRIK_TEST_MINILM").map(PathBuf::from) else {
        testkit::missing("all-MiniLM-L6-v2: INDRIK_TEST_MINILM names its folder");
        return;
    };
    if testkit::cpu_device_plain().is_none() {
        return;
    }
    let texts: Vec<String> = serde_json::from_str(include_str!("data/minilm_texts.json")).unwrap();
    let (halves, _) = include_bytes!("data/minilm_vectors.f16").as_chunks::<2>();
    let values: Vec<f32> = halves.iter().map(|bytes| half::f16::from_le_bytes(*bytes).to_f32()).collect();
    let options = EmbeddingOptions { step_timeout: Duration::from_secs(600), ..EmbeddingOptions::default() };
    let model = EmbeddingModel::open(path.to_str().unwrap(), options).unwrap();
    assert_eq!((model.config().dimensions(), model.max_tokens()), (384, 256));
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let options = EmbedOptions { truncate: true, ..EmbedOptions::default() };
    let embeddings = model.embed(&texts, &options).unwrap();
    assert_eq!(embeddings.len(), 200);
    assert!(embeddings.iter().any(|text| text.truncated && text.tokens == 256));
    for (index, (embedding, want)) in embeddings.iter().zip(values.chunks(384)).enumerate() {
        let cosine = cosine(&embedding.vector, want);
        assert!(cosine > 0.9999, "{cosine} for {:?}", texts[index]);
    }
}
