//! A tiny model and a device with ample memory, for tests that load weights.
#![allow(dead_code, reason = "not every test binary uses all of it")]

use std::path::Path;

use checkpoint::{Checkpoint, Tensor};
use kernels::selftest::Random;
use weights::{
    blueprint::{Blueprint, Reservation},
    plan,
};

const HIDDEN: usize = 64;

/// A folder as transformers saves it: two layers of random bf16.
pub fn tiny_folder(dir: &Path) {
    tiny_folder_with(dir, 50, false);
}

/// The same with more embedding rows than tokens, or with an untied head.
pub fn tiny_folder_with(dir: &Path, embedding_rows: usize, untied: bool) {
    let tensors = tiny_tensors(embedding_rows, untied);
    let mut random = Random::new(3);
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape) in tensors {
        let begin = data.len();
        for _ in 0..shape.iter().product::<usize>() {
            data.extend_from_slice(&half::bf16::from_f32(random.signed()).to_le_bytes());
        }
        let entry =
            serde_json::json!({ "dtype": "BF16", "shape": shape, "data_offsets": [begin, data.len()] });
        header.insert(name, entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let file = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    std::fs::write(dir.join("model.safetensors"), file).unwrap();
    tiny_config(dir, untied);
}

fn tiny_config(dir: &Path, untied: bool) {
    let config = serde_json::json!({
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": HIDDEN,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 32, "vocab_size": 50, "sliding_window": 8, "query_pre_attn_scalar": 32,
        "tie_word_embeddings": !untied,
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
}

/// Names and shapes of the tiny model.
fn tiny_tensors(embedding_rows: usize, untied: bool) -> Vec<(String, Vec<usize>)> {
    let mut tensors: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".into(), vec![embedding_rows, HIDDEN]),
        ("model.norm.weight".into(), vec![HIDDEN]),
    ];
    if untied {
        tensors.push(("lm_head.weight".into(), vec![embedding_rows, HIDDEN]));
    }
    for layer in 0..2 {
        let mut add = |name: &str, shape: &[usize]| {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), shape.to_vec()));
        };
        add("self_attn.q_proj", &[64, HIDDEN]);
        add("self_attn.k_proj", &[32, HIDDEN]);
        add("self_attn.v_proj", &[32, HIDDEN]);
        add("self_attn.o_proj", &[HIDDEN, 64]);
        add("self_attn.q_norm", &[32]);
        add("self_attn.k_norm", &[32]);
        add("mlp.gate_proj", &[96, HIDDEN]);
        add("mlp.up_proj", &[96, HIDDEN]);
        add("mlp.down_proj", &[HIDDEN, 96]);
        for norm in ["input", "post_attention", "pre_feedforward", "post_feedforward"] {
            add(&format!("{norm}_layernorm"), &[HIDDEN]);
        }
    }
    tensors
}

/// The same model as a layerwise-quantised folder: attention in int8_symmetric, feed-forward in int4_grouped,
/// the rest in int8_asymmetric.
pub fn tiny_layerwise_folder(dir: &Path) {
    tiny_config(dir, false);
    let mut random = Random::new(4);
    let tensors = tiny_tensors(50, false);
    for part in ["layer_0", "layer_1", "shared"] {
        let in_part = |name: &str| match part {
            "shared" => !name.contains(".layers."),
            layer => name.contains(&format!(".layers.{}.", &layer[6..])),
        };
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        let mut schemes = serde_json::Map::new();
        for (name, shape) in tensors.iter().filter(|(name, _)| in_part(name)) {
            let values = shape.iter().product::<usize>();
            let (scheme, dtype, bytes, scales): (_, _, Vec<u8>, Vec<f32>) = match () {
                () if name.contains("self_attn") => {
                    ("int8_symmetric", "I8", (0..values).map(|_| random.bits() as u8).collect(), vec![0.01])
                }
                () if name.contains(".mlp.") => {
                    let bytes = (0..values).map(|_| random.integer(-7, 7) as i8 as u8).collect();
                    let scales = (0..values.div_ceil(128)).map(|_| 0.02 * (1.5 + random.signed())).collect();
                    ("int4_grouped", "I8", bytes, scales)
                }
                () => (
                    "int8_asymmetric",
                    "U8",
                    (0..values).map(|_| random.bits() as u8).collect(),
                    vec![0.02, 120.0],
                ),
            };
            schemes.insert(name.clone(), scheme.into());
            let mut add = |name: String, dtype: &str, shape: serde_json::Value, bytes: &[u8]| {
                let begin = data.len();
                data.extend_from_slice(bytes);
                let entry = serde_json::json!({ "dtype": dtype, "shape": shape, "data_offsets": [begin, data.len()] });
                header.insert(name, entry);
            };
            // Scales first, so that they stay word-aligned.
            let words: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
            add(format!("{name}_scale"), "F32", serde_json::json!([scales.len()]), &words);
            add(name.clone(), dtype, serde_json::json!(shape), &bytes);
        }
        header.insert("__metadata__".into(), schemes.into());
        let header = serde_json::to_vec(&header).unwrap();
        let file = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
        std::fs::write(dir.join(format!("model-00001-of-00001_{part}.safetensors")), file).unwrap();
    }
}

/// A placement on a device with ample memory.
pub fn place(device: &gpu::Device, checkpoint: &Checkpoint) -> plan::Placement {
    let memory = plan::Memory {
        heaps: vec![plan::HeapInfo {
            size: 8 << 30,
            budget: None,
            used: 0,
            device_local: true,
            host_visible: true,
        }],
        unified: true,
        max_allocation: device.caps().max_allocation,
        available: None,
        margin: plan::Margin::default(),
        gtt: None,
    };
    let demand = Blueprint::new(checkpoint).unwrap().demand(&checkpoint.config, &Reservation::WEIGHTS_ONLY);
    plan::plan(&memory, &demand).unwrap()
}

/// The rows of a small matrix, decoded from the file.
pub fn rows(checkpoint: &Checkpoint, tensor: &Tensor) -> Vec<Vec<f32>> {
    let values = checkpoint.read_vector(tensor).unwrap();
    values.chunks(tensor.shape[1] as usize).map(<[f32]>::to_vec).collect()
}
