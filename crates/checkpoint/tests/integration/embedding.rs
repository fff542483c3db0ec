//! Embedding models that are incomplete, unsupported or malicious.

use std::{
    fs,
    path::{Path, PathBuf},
};

use checkpoint::{Checkpoint, EmbeddingCheckpoint, ModelKind, Pooling};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/embeddings").join(name)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() { copy(&path, &target) } else { fs::copy(&path, &target).map(drop).unwrap() }
    }
}

/// The error of a copy of a fixture in which one file has been changed.
fn error(name: &str, file: &str, change: impl Fn(String) -> String) -> String {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixture(name), folder.path());
    let path = folder.path().join(file);
    fs::write(&path, change(fs::read_to_string(&path).unwrap())).unwrap();
    EmbeddingCheckpoint::open(folder.path()).expect_err("an error").to_string()
}

#[test]
fn errors_name_what_is_missing() {
    let more = error("bert_mean", "config.json", |json| {
        json.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3")
    });
    assert!(more.contains("not a complete bert model: 16 problems"), "{more}");
    assert!(
        more.contains("missing: encoder.layer.2.attention.self.query.weight, expected [32, 32]"),
        "{more}"
    );
    let wide = error("bert_mean", "config.json", |json| {
        json.replace("\"intermediate_size\": 64", "\"intermediate_size\": 60")
    });
    assert!(wide.contains("wrong shape: encoder.layer.0.intermediate.dense.weight"), "{wide}");
    let layers = error("qwen3_embedding", "config.json", |json| {
        json.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1")
    });
    assert!(layers.contains("model.layers.1."), "{layers}");
    let dense = error("embeddinggemma", "modules.json", |json| json.replace("2_Dense", "3_Dense"));
    assert!(dense.contains("32 values come from before it"), "{dense}");
}

#[test]
fn unsupported_settings_are_named() {
    let cases = [
        ("config.json", "\"gelu\"", "\"relu\"", "hidden_act = 'relu'"),
        (
            "config.json",
            "\"num_attention_heads\": 2",
            "\"num_attention_heads\": 3",
            "num_attention_heads is 3",
        ),
        ("modules.json", "models.Pooling", "models.WeightedLayerPooling", "WeightedLayerPooling"),
        ("modules.json", "1_Pooling", "../1_Pooling", "has a module in"),
        ("modules.json", "[", "{", "is invalid"),
        ("1_Pooling/config.json", "mean_tokens", "max_tokens", "pooling modes"),
        ("1_Pooling/config.json", "{", "{\"include_prompt\": false,", "without the prompt"),
        ("sentence_bert_config.json", "100", "-1", "max_seq_length"),
    ];
    for (file, from, to, with) in cases {
        let error = error("bert_mean", file, |text| text.replacen(from, to, 1));
        assert!(error.contains(with) && error.contains(file.rsplit('/').next().unwrap()), "{file}: {error}");
    }
    let bias = error("embeddinggemma", "2_Dense/config.json", |json| json.replace("false", "true"));
    assert!(bias.contains("a bias is not supported"), "{bias}");
    let tanh = error("embeddinggemma", "2_Dense/config.json", |json| json.replace("Identity", "Tanh"));
    assert!(tanh.contains("Tanh"), "{tanh}");
    let family = error("qwen3_embedding", "config.json", |json| json.replace("\"qwen3\"", "\"qwen2\""));
    assert!(family.contains("Qwen 2") || family.contains("unknown"), "{family}");
}

#[test]
fn an_encoder_alone_is_pooled_by_the_mean() {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixture("bert_cls"), folder.path());
    fs::remove_file(folder.path().join("modules.json")).unwrap();
    let checkpoint = EmbeddingCheckpoint::open(folder.path()).unwrap();
    assert_eq!((checkpoint.config.pooling, checkpoint.config.normalize), (Pooling::Mean, true));
    assert_eq!(ModelKind::of(folder.path()).unwrap(), ModelKind::Embedding);
    assert!(Checkpoint::open(folder.path()).unwrap_err().to_string().contains("embedding model"));
}
