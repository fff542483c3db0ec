//! Loading a 4 GB model takes at most 512 MiB beyond the GPU buffers (which a CPU driver allocates in the
//! same process).

mod common;

use std::{fs::File, io::Write, path::Path};

use checkpoint::Checkpoint;
use gpu::Lifetime;
use weights::{
    load::load,
    stream::{Control, Options},
};

/// A value of /proc/self/status, in bytes.
fn status(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// A Gemma 3 model with the widths of the 4B and 16 layers, in bf16. Its file is sparse: the zeros take no
/// disk space, but the page cache holds them like any other data.
fn generate(dir: &Path) {
    const HIDDEN: u64 = 2560;
    const LAYERS: u64 = 16;
    let mut tensors: Vec<(String, Vec<u64>)> = vec![
        ("model.embed_tokens.weight".into(), vec![262_144, HIDDEN]),
        ("model.norm.weight".into(), vec![HIDDEN]),
    ];
    for layer in 0..LAYERS {
        let mut add = |name: &str, shape: &[u64]| {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), shape.to_vec()))
        };
        add("self_attn.q_proj", &[2048, HIDDEN]);
        add("self_attn.k_proj", &[1024, HIDDEN]);
        add("self_attn.v_proj", &[1024, HIDDEN]);
        add("self_attn.o_proj", &[HIDDEN, 2048]);
        add("self_attn.q_norm", &[256]);
        add("self_attn.k_norm", &[256]);
        add("mlp.gate_proj", &[10240, HIDDEN]);
        add("mlp.up_proj", &[10240, HIDDEN]);
        add("mlp.down_proj", &[HIDDEN, 10240]);
        for norm in ["input", "post_attention", "pre_feedforward", "post_feedforward"] {
            add(&format!("{norm}_layernorm"), &[HIDDEN]);
        }
    }
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, shape) in tensors {
        let begin = end;
        end += shape.iter().product::<u64>() * 2;
        header.insert(
            name,
            serde_json::json!({ "dtype": "BF16", "shape": shape, "data_offsets": [begin, end] }),
        );
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = File::create(dir.join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(&header).unwrap();
    file.set_len(8 + header.len() as u64 + end).unwrap();
    let config = serde_json::json!({
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": HIDDEN,
        "intermediate_size": 10240, "num_hidden_layers": LAYERS, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_144,
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
}

// The only test of this binary, since the peak is measured per process.
#[test]
fn loading_a_4_gb_model_takes_at_most_512_mib_beyond_its_buffers() {
    let Some(device) = testkit::cpu_device() else { return };
    let dir = tempfile::tempdir().unwrap();
    generate(dir.path());
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let placement = common::place(&device, &checkpoint);
    let before = status("VmRSS");
    let (weights, stats) =
        load(&device, &checkpoint, &placement, &Options::default(), &Control::default()).unwrap();

    assert!(stats.bytes > 4_000_000_000, "the model has only {} bytes", stats.bytes);
    let buffers = weights.bytes();
    let extra = status("VmHWM").saturating_sub(before + buffers);
    println!(
        "{} loaded in {:.1} s, peak extra {}",
        gpu::format_bytes(stats.bytes),
        stats.seconds,
        gpu::format_bytes(extra)
    );
    // The device memory is hardly more than the matrices need.
    let taken = device.allocated_bytes(Lifetime::Weights);
    assert!(
        taken <= buffers + buffers / 20,
        "{} allocated for {}",
        gpu::format_bytes(taken),
        gpu::format_bytes(buffers)
    );
    // The measurement must at least see the staging ring.
    assert!(extra >= 16 << 20, "only {} beyond the buffers: less than one slot", gpu::format_bytes(extra));
    assert!(extra <= 512 << 20, "{} beyond the buffers", gpu::format_bytes(extra));
}
