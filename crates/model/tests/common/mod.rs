//! Fixtures made by scripts/make_logit_fixtures.py, and runners for them; for tests of this crate and of
//! crates that use it.
#![allow(dead_code, reason = "not every test uses everything")]

pub mod generate;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use checkpoint::{Checkpoint, Config};
use gpu::Device;
use model::{KvScheme, Limits, Model, Runner};
use serde_json::Value;
use weights::{
    blueprint::{Blueprint, Reservation},
    plan::{self, HeapInfo, Margin, Memory, Placement},
    stream::{Control, Options},
};

/// One model of the fixtures, with the logits that transformers computes.
pub struct Fixture {
    pub name: &'static str,
    pub path: PathBuf,
    pub reference: Value,
    pub ids: Vec<u32>,
    /// Positions whose logits are in the fixture.
    pub positions: Vec<usize>,
    pub vocab: usize,
    pub logits: Vec<f32>,
}

/// All fixtures, by family.
pub const NAMES: [&str; 41] = [
    "default_pattern",
    "head256",
    "untied_long",
    "multimodal_newer",
    "multimodal_older",
    "gguf_f16",
    "gguf_q8_0",
    "gguf_q4_0",
    "llama_tied",
    "llama_llama3",
    "llama_linear",
    "llama_gguf_f16",
    "llama_gguf_q8_0",
    "llama_gguf_q4_0",
    "llama_gguf_q4_1",
    "llama_gguf_llama3",
    "qwen2_tied",
    "qwen2_untied",
    "qwen2_gguf_f16",
    "qwen2_gguf_q8_0",
    "qwen3",
    "qwen3_gguf_q8_0",
    "qwen3moe",
    "qwen3moe_fused",
    "qwen3moe_gguf_q8_0",
    "qwen3moe_gguf_f16",
    "gemma4_text",
    "gemma4_head512",
    "gemma4_dense",
    "gemma4_ple",
    "gemma4_moe",
    "gemma4_unified",
    "gemma4_gguf_f16",
    "gemma4_ple_gguf_q8_0",
    "gemma4_moe_gguf_f16",
    "gemma4_moe_gguf_q8_0",
    "mistral",
    "ministral3",
    "ministral3_multimodal",
    "ministral3_gguf_f16",
    "ministral3_gguf_q8_0",
];

/// Fixtures with integer weights, of each scheme and family; all have greedy text.
pub const QUANTISED: [&str; 9] = [
    "gguf_q8_0",
    "gguf_q4_0",
    "llama_gguf_q4_1",
    "qwen2_gguf_q8_0",
    "qwen3_gguf_q8_0",
    "qwen3moe_gguf_q8_0",
    "gemma4_moe_gguf_q8_0",
    "gemma4_ple_gguf_q8_0",
    "ministral3_gguf_q8_0",
];

/// One fixture per family, for tests that depend on little else.
pub const FAMILIES: [&str; 8] = [
    "gguf_q8_0",
    "llama_gguf_q8_0",
    "qwen2_gguf_q8_0",
    "qwen3_gguf_q8_0",
    "qwen3moe_gguf_q8_0",
    "gemma4_moe_gguf_q8_0",
    "gemma4_ple_gguf_q8_0",
    "ministral3_gguf_q8_0",
];

/// Fixtures of the batch-invariance tests, with the KV scheme that each is tested with. The last ones add families
/// whose kernels the first ones have.
const REPRODUCIBLE: [(&str, KvScheme); 9] = [
    ("gguf_q8_0", KvScheme::F16),
    ("untied_long", KvScheme::F16),
    ("llama_gguf_q4_1", KvScheme::Int8),
    ("gemma4_moe_gguf_q8_0", KvScheme::F16),
    ("gemma4_ple_gguf_q8_0", KvScheme::Int8),
    ("gguf_q4_0", KvScheme::Int8),
    ("qwen2_gguf_q8_0", KvScheme::F16),
    ("qwen3_gguf_q8_0", KvScheme::F16),
    ("qwen3moe_gguf_q8_0", KvScheme::F16),
];

/// The fixtures of [`REPRODUCIBLE`] to test now.
pub fn reproducible() -> &'static [(&'static str, KvScheme)] {
    if testkit::exhaustive() { &REPRODUCIBLE } else { &REPRODUCIBLE[..5] }
}

impl Fixture {
    pub fn open(name: &'static str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures").join(name);
        let text = std::fs::read_to_string(folder.join("reference.json")).unwrap();
        let reference: Value = serde_json::from_str(&text).unwrap();
        let list = |key: &str| -> Vec<u32> {
            reference[key].as_array().unwrap().iter().map(|value| value.as_u64().unwrap() as u32).collect()
        };
        let (ids, positions) = (list("ids"), list("positions").into_iter().map(|row| row as usize).collect());
        let bytes = std::fs::read(folder.join("logits.bin")).unwrap();
        let logits = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let gguf = folder.join("model.gguf");
        let path = if gguf.is_file() { gguf } else { folder };
        let vocab = reference["vocab"].as_u64().unwrap() as usize;
        Self { name, path, ids, positions, vocab, logits, reference }
    }

    /// The reference's logits of one of `positions`.
    pub fn row(&self, index: usize) -> &[f32] {
        &self.logits[index * self.vocab..(index + 1) * self.vocab]
    }

    pub fn largest(&self) -> f32 {
        self.logits.iter().fold(0.0, |largest, value| value.abs().max(largest))
    }

    pub fn list(&self, key: &str) -> Vec<u32> {
        self.reference[key].as_array().unwrap().iter().map(|value| value.as_u64().unwrap() as u32).collect()
    }
}

/// A model small enough for contexts so long that attention has KV splits: of `layers` layers, each `pattern`-th one
/// without a sliding window.
pub fn long_config(layers: u32, pattern: u32) -> Config {
    let config = serde_json::json!({
        "model_type": "gemma3_text", "num_hidden_layers": layers, "hidden_size": 128, "intermediate_size": 256,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "query_pre_attn_scalar": 64,
        "sliding_window": 512, "sliding_window_pattern": pattern, "max_position_embeddings": 4096,
        "vocab_size": 512, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
    });
    Config::from_hf("long".as_ref(), &config).unwrap()
}

/// Limits for tiny models, with pages so small that sliding windows move past them.
pub fn limits(sequences: u32, context: u32, chunk: u32) -> Limits {
    Limits {
        max_sequences: sequences,
        context_length: context,
        prefill_chunk: chunk,
        page_size: 4,
        kv_scheme: KvScheme::F16,
        max_pages: None,
        prefix_cache: true,
        image_tokens: 0,
    }
}

pub fn load(device: &Device, path: &Path) -> Arc<Model> {
    Arc::new(load_alone(device, path))
}

/// The same model, not shared yet, so that tests can change its code paths.
pub fn load_alone(device: &Device, path: &Path) -> Model {
    try_load(device, path).unwrap()
}

/// The same for files whose weights may be refused.
pub fn try_load(device: &Device, path: &Path) -> model::Result<Model> {
    let checkpoint = Checkpoint::open(path).unwrap();
    let placement = placement(device, &checkpoint);
    let options = Options { slot_bytes: 1 << 20, slots: 2, threads: 1, ..Options::default() };
    let (model, _) = Model::load(device, &checkpoint, &placement, &options, &Control::default())?;
    Ok(model)
}

/// Where the weights of a tiny model go.
pub fn placement(device: &Device, checkpoint: &Checkpoint) -> Placement {
    let blueprint = Blueprint::new(checkpoint).unwrap();
    let heap = HeapInfo { size: 8 << 30, budget: None, used: 0, device_local: true, host_visible: true };
    let memory = Memory {
        heaps: vec![heap],
        unified: true,
        max_allocation: device.caps().max_allocation,
        available: None,
        margin: Margin::default(),
        gtt: None,
    };
    plan::plan(&memory, &blueprint.demand(&checkpoint.config, &Reservation::WEIGHTS_ONLY)).unwrap()
}

/// Logits of every position, prefilled in chunks.
pub fn all_logits(model: &Arc<Model>, ids: &[u32], chunk: u32, kv: KvScheme) -> Vec<Vec<f32>> {
    let limits = Limits { kv_scheme: kv, ..limits(1, ids.len() as u32, chunk) };
    let mut runner = Runner::new(model.clone(), limits).unwrap();
    let mut sequence = runner.start().unwrap();
    let mut rows = Vec::new();
    runner
        .logits(&mut sequence, ids, |row| {
            rows.push(row.to_vec());
            Ok(())
        })
        .unwrap();
    rows
}

/// The Kullback–Leibler divergence of two rows of logits, in nats.
pub fn divergence(expected: &[f32], logits: &[f32]) -> f64 {
    let log_sum = |logits: &[f32]| {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
        f64::from(largest) + sum.ln()
    };
    let (expected_sum, logits_sum) = (log_sum(expected), log_sum(logits));
    let terms = expected.iter().zip(logits).map(|(p, q)| {
        let (p, q) = (f64::from(*p) - expected_sum, f64::from(*q) - logits_sum);
        p.exp() * (p - q)
    });
    terms.sum()
}

/// The largest difference between two rows of logits.
pub fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    // NaN must not count as small.
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |largest, value| if value > largest || value.is_nan() { value } else { largest })
}
