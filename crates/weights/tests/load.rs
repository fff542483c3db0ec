//! Whole checkpoints into GPU memory on Mesa's CPU driver: each matrix holds its tensors' rows where they belong.

use std::path::Path;

use kernels::{STRIP, selftest::Random};
use weights::{
    Checkpoint, Tensor,
    blueprint::{Blueprint, Place},
    load::load,
    names::Role,
    plan,
    stream::{Control, Options},
};

/// A folder as transformers saves it: two layers of random bf16.
fn tiny_folder(dir: &Path) {
    const HIDDEN: usize = 64;
    let mut tensors: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".into(), vec![50, HIDDEN]),
        ("model.norm.weight".into(), vec![HIDDEN]),
    ];
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
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
}

/// All of it on a device that has plenty.
fn place(device: &gpu::Device, checkpoint: &Checkpoint) -> plan::Placement {
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

fn rows(checkpoint: &Checkpoint, tensor: &Tensor) -> Vec<Vec<f32>> {
    let values = checkpoint.read_vector(tensor).unwrap();
    values.chunks(tensor.shape[1] as usize).map(<[f32]>::to_vec).collect()
}

#[test]
fn rows_of_a_folder_are_where_they_belong() {
    let Some(device) = testkit::cpu_device() else { return };
    let dir = tempfile::tempdir().unwrap();
    tiny_folder(dir.path());
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let (weights, stats) =
        load(&device, &checkpoint, &place(&device, &checkpoint), &Options::default(), &Control::default())
            .unwrap();
    assert!(stats.bytes > 0);
    let only = |place| {
        let [matrix] = weights.of(place).collect::<Vec<_>>()[..] else {
            panic!("one encoding makes one matrix")
        };
        matrix.read().unwrap()
    };
    for layer in 0..2 {
        let tensor = |role| rows(&checkpoint, checkpoint.inventory.get(Some(layer), role).unwrap());
        let expected = [tensor(Role::Query), tensor(Role::Key), tensor(Role::Value)].concat();
        assert_eq!(only(Place::Qkv(layer)), expected, "QKV of layer {layer}");
        assert_eq!(only(Place::Down(layer)), tensor(Role::Down));
        assert_eq!(only(Place::Output(layer)), tensor(Role::Output));
        let gate_up = only(Place::GateUp(layer));
        for (row, (gate, up)) in tensor(Role::Gate).iter().zip(&tensor(Role::Up)).enumerate() {
            let at = row / STRIP * 2 * STRIP + row % STRIP;
            assert_eq!(&gate_up[at], gate, "gate row {row}");
            assert_eq!(&gate_up[at + STRIP], up, "up row {row}");
        }
    }
    let embed = checkpoint.inventory.get(None, Role::Embed).unwrap();
    assert_eq!(only(Place::Embedding), rows(&checkpoint, embed));
    assert_eq!(weights.of(Place::Head).count(), 0, "the embeddings are the head");
    assert_eq!(weights.norms.len(), 1 + 2 * 6);
    for (slot, norm) in &weights.norms {
        let tensor = checkpoint.inventory.get(slot.layer, slot.role).unwrap();
        let expected: Vec<f32> = checkpoint.read_vector(tensor).unwrap().iter().map(|w| w + 1.0).collect();
        assert_eq!(norm.read_vec::<f32>().unwrap(), expected, "{}", tensor.name);
    }
    drop(weights);
    assert_eq!(device.in_use(gpu::Lifetime::Weights), 0);
}

#[test]
fn the_real_270m_loads() {
    let Some(path) = std::env::var_os("INDRIK_TEST_GGUF") else {
        eprintln!("not tested: INDRIK_TEST_GGUF does not name a Gemma 3 GGUF");
        return;
    };
    let Some(device) = testkit::cpu_device() else { return };
    let checkpoint = Checkpoint::open(Path::new(&path)).unwrap();
    let (weights, _) =
        load(&device, &checkpoint, &place(&device, &checkpoint), &Options::default(), &Control::default())
            .unwrap();
    for layer in [0, 17] {
        let tensor = checkpoint.inventory.get(Some(layer), Role::Down).unwrap();
        let (_, exactness) = weights::quant::scheme_for(tensor.encoding);
        let got = weights.of(Place::Down(layer)).next().unwrap().read().unwrap();
        for (got, want) in got.iter().zip(rows(&checkpoint, tensor)) {
            for (got, want) in got.chunks(32).zip(want.chunks(32)) {
                let largest = want.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
                for (got, want) in got.iter().zip(want) {
                    assert!(
                        (got - want).abs() <= exactness.bound(largest),
                        "{got} for {want} in {}",
                        tensor.name
                    );
                }
            }
        }
    }
}
