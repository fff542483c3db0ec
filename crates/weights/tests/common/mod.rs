//! A tiny model and a roomy device, for tests that load.
#![allow(dead_code, reason = "not every test binary uses all of it")]

use std::path::Path;

use kernels::selftest::Random;
use weights::{Checkpoint, Tensor, blueprint::Blueprint, plan};

/// A folder as transformers saves it: two layers of random bf16.
pub fn tiny_folder(dir: &Path) {
    tiny_folder_with(dir, 50, false);
}

/// The same with more embedding rows than tokens, or with a head of its own.
pub fn tiny_folder_with(dir: &Path, embedding_rows: usize, own_head: bool) {
    const HIDDEN: usize = 64;
    let mut tensors: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".into(), vec![embedding_rows, HIDDEN]),
        ("model.norm.weight".into(), vec![HIDDEN]),
    ];
    if own_head {
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
    let config = serde_json::json!({
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": HIDDEN,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 32, "vocab_size": 50, "sliding_window": 8, "query_pre_attn_scalar": 32,
        "tie_word_embeddings": !own_head,
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
}

/// All of it on a device that has plenty.
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
    let demand = Blueprint::of(checkpoint).unwrap().demand(&checkpoint.config, 1, 1, 0);
    plan::plan(&memory, &demand).unwrap()
}

/// The rows of a small matrix, straight from the file.
pub fn rows(checkpoint: &Checkpoint, tensor: &Tensor) -> Vec<Vec<f32>> {
    let values = checkpoint.read_vector(tensor).unwrap();
    values.chunks(tensor.shape[1] as usize).map(<[f32]>::to_vec).collect()
}
