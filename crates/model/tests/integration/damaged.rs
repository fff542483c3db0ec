//! Files of models with experts and per-layer embeddings that do not fit their config: refused by name.

use std::{fs, path::Path};

use crate::common::{Fixture, try_load};
use checkpoint::Checkpoint;
use serde_json::{Value, json};

/// A copy of a fixture with a changed config and a changed safetensors file: its header and its data.
fn changed(name: &'static str, change: impl Fn(&mut Value, &mut Value, &mut [u8])) -> tempfile::TempDir {
    let fixture = Fixture::open(name);
    let folder = tempfile::tempdir().unwrap();
    let mut config = serde_json::from_slice(&fs::read(fixture.path.join("config.json")).unwrap()).unwrap();
    let mut file = fs::read(fixture.path.join("model.safetensors")).unwrap();
    let start = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut header = serde_json::from_slice(&file[8..start]).unwrap();
    change(&mut config, &mut header, &mut file[start..]);
    let mut header = serde_json::to_vec(&header).unwrap();
    header.resize(header.len().next_multiple_of(8), b' ');
    let written = [&(header.len() as u64).to_le_bytes()[..], &header, &file[start..]].concat();
    fs::write(folder.path().join("config.json"), serde_json::to_vec(&config).unwrap()).unwrap();
    fs::write(folder.path().join("model.safetensors"), written).unwrap();
    folder
}

fn named(header: &Value, end: &str) -> String {
    header.as_object().unwrap().keys().find(|name| name.ends_with(end)).unwrap().clone()
}

#[track_caller]
fn assert_refused(folder: &Path, parts: &[&str]) {
    let error = Checkpoint::open(folder).expect_err("a damaged file was accepted").to_string();
    for part in parts {
        assert!(error.contains(part), "'{part}' is not in: {error}");
    }
}

#[test]
fn a_file_without_its_per_layer_table_is_refused() {
    for end in ["embed_tokens_per_layer.weight", "layers.3.per_layer_input_gate.weight"] {
        let folder = changed("gemma4_ple", |_, header, _| {
            let name = named(header, end);
            let tensors = header.as_object_mut().unwrap();
            let tensor = tensors.remove(&name).unwrap();
            tensors.insert("other.weight".into(), tensor);
        });
        assert_refused(folder.path(), &[end, "missing"]);
    }
}

#[test]
fn experts_that_disagree_with_the_config_are_refused() {
    let text = |config: &mut Value, key: &str, value: u32| config["text_config"][key] = json!(value);
    let folder = changed("gemma4_moe", |config, _, _| text(config, "num_experts", 4));
    assert_refused(folder.path(), &["layers.0.experts.gate_up_proj", "router.proj.weight"]);
    let folder = changed("gemma4_moe", |config, _, _| text(config, "moe_intermediate_size", 64));
    assert_refused(folder.path(), &["layers.0.experts.down_proj"]);
    let folder = changed("gemma4_moe", |config, _, _| text(config, "top_k_experts", 9));
    assert_refused(folder.path(), &["top_k_experts is 9, but num_experts is only 8"]);
    let folder = changed("gemma4_ple", |config, _, _| text(config, "num_kv_shared_layers", 7));
    assert_refused(folder.path(), &["num_kv_shared_layers is 7", "attention span"]);
}

#[test]
fn nan_in_a_router_is_refused() {
    let Some(device) = testkit::cpu_device() else { return };
    let folder = changed("gemma4_moe", |_, header, data| {
        let offsets = &header[named(header, "layers.1.router.proj.weight")]["data_offsets"];
        let first = offsets[0].as_u64().unwrap() as usize;
        data[first + 10..first + 12].copy_from_slice(&0x7fc0_u16.to_le_bytes());
    });
    let error = try_load(&device, folder.path()).err().expect("NaN was accepted").to_string();
    assert!(
        error.contains("layers.1.router.proj.weight") && error.contains("value 5 is not finite"),
        "{error}"
    );
}
