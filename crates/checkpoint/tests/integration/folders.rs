//! Hugging Face folders as transformers saves them, damaged and malicious folders, and layerwise-quantised
//! folders.

use std::fs;
use std::path::{Path, PathBuf};

use checkpoint::{
    Config, Error, Format, Role, Tensor, complete,
    folder::{self, Folder},
    layerwise,
};
use serde_json::{Value, json};
use tensor::Encoding;

const INDEX: &str = "model.safetensors.index.json";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hf").join(name)
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn config(folder: &Folder) -> Config {
    Config::from_hf(&folder.config_path(), &folder.config).unwrap()
}

/// A copy of a fixture, to be modified.
fn copy(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let from = entry.unwrap().path();
        fs::copy(&from, folder.path().join(from.file_name().unwrap())).unwrap();
    }
    folder
}

/// A copy of the sharded fixture with a modified index.
fn with_index(change: impl FnOnce(&mut serde_json::Map<String, Value>)) -> tempfile::TempDir {
    let folder = copy("sharded");
    let path = folder.path().join(INDEX);
    let mut index = read_json(&path);
    change(index["weight_map"].as_object_mut().unwrap());
    fs::write(path, index.to_string()).unwrap();
    folder
}

#[track_caller]
fn assert_contains(error: impl ToString, part: &str) {
    let text = error.to_string();
    assert!(text.contains(part), "'{part}' is not in: {text}");
}

#[track_caller]
fn assert_rejected(folder: &tempfile::TempDir, part: &str) {
    assert_contains(folder::open(folder.path()).expect_err("invalid folder was accepted"), part);
}

#[test]
fn single_file_folder_is_read() {
    let folder = folder::open(&fixture("text")).unwrap();
    assert_eq!(folder.source.format, Format::HuggingFace);
    assert_eq!(folder.source.files, [fixture("text/model.safetensors")]);
    assert!(folder.has_generation_config && !folder.has_tokenizer && folder.skipped.is_empty());
    let inventory = complete::check(&config(&folder), &folder.source).unwrap();
    assert_eq!(inventory.iter().count(), 2 + 6 * 13);
    let down = inventory.get(Some(5), Role::Down).unwrap();
    assert_eq!((&down.shape[..], down.encoding), (&[16, 24][..], Encoding::Bf16));
    assert_eq!(down.data.len, 16 * 24 * 2);
    assert_eq!(inventory.head().unwrap().name, "model.embed_tokens.weight");
    assert!(inventory.images.is_empty());
}

/// The bytes of a tensor.
fn bytes(folder: &Folder, tensor: &Tensor) -> Vec<u8> {
    let file = fs::read(&folder.source.files[tensor.data.file]).unwrap();
    file[tensor.data.offset as usize..][..tensor.data.len as usize].to_vec()
}

#[test]
fn shards_are_read_like_a_single_file() {
    let one = folder::open(&fixture("text")).unwrap();
    let many = folder::open(&fixture("sharded")).unwrap();
    assert_eq!(many.source.files.len(), 3);
    let one_inventory = complete::check(&config(&one), &one.source).unwrap();
    let many_inventory = complete::check(&config(&many), &many.source).unwrap();
    assert_eq!(one_inventory.iter().count(), many_inventory.iter().count());
    for ((slot, a), (other, b)) in one_inventory.iter().zip(many_inventory.iter()) {
        assert_eq!((slot, &a.name, &a.shape), (other, &b.name, &b.shape));
        assert_eq!(bytes(&one, a), bytes(&many, b), "{}", a.name);
    }
}

#[test]
fn both_multimodal_namings_give_the_same_tensors() {
    let older = folder::open(&fixture("multimodal_older")).unwrap();
    let newer = folder::open(&fixture("multimodal_newer")).unwrap();
    let older_inventory = complete::check(&config(&older), &older.source).unwrap();
    let newer_inventory = complete::check(&config(&newer), &newer.source).unwrap();
    // Two layers of 16 tensors, 5 of embeddings and norm, 11 of the pooling head, 2 of the projector.
    assert_eq!((older_inventory.images.len(), newer_inventory.images.len()), (50, 50));
    for ((slot, a), (other, b)) in older_inventory.iter().zip(newer_inventory.iter()) {
        assert_ne!(a.name, b.name);
        assert_eq!((slot, bytes(&older, a)), (other, bytes(&newer, b)), "{}", a.name);
    }
}

#[test]
fn missing_folder() {
    assert_contains(folder::open(Path::new("/nonexistent")).unwrap_err(), "/nonexistent: ");
    assert_contains(folder::open(&fixture("text/config.json")).unwrap_err(), "is not a folder");
}

#[test]
fn missing_weights() {
    let folder = copy("text");
    fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    assert_rejected(&folder, "has neither model.safetensors nor model.safetensors.index.json");
    fs::write(folder.path().join("pytorch_model.bin"), "").unwrap();
    assert_rejected(&folder, "a model saved with pickle is not supported");
    fs::write(folder.path().join("model-00001-of-00012_layer_3.safetensors"), "").unwrap();
    assert_rejected(&folder, "a layerwise-quantised folder");
    fs::write(folder.path().join("model.gguf"), "").unwrap();
    assert_rejected(&folder, "pass the file instead of the folder");
}

#[test]
fn missing_config() {
    let folder = copy("text");
    fs::remove_file(folder.path().join("config.json")).unwrap();
    assert_rejected(&folder, "has no config.json");
}

#[test]
fn invalid_or_oversized_config() {
    let folder = copy("text");
    fs::write(folder.path().join("config.json"), "{]").unwrap();
    assert_rejected(&folder, "config.json: is invalid");
    fs::write(folder.path().join("config.json"), "[".repeat(500_000)).unwrap();
    assert_rejected(&folder, "recursion limit");
    fs::write(folder.path().join("config.json"), b"{\"\xff\":1}").unwrap();
    assert_rejected(&folder, "config.json: is not valid UTF-8 at byte 2");
    fs::write(folder.path().join("config.json"), " ".repeat(2 << 20)).unwrap();
    assert_rejected(&folder, "config.json: is larger than the limit of 1048576 bytes");
}

#[test]
fn unsupported_quantisation() {
    let folder = copy("text");
    let path = folder.path().join("config.json");
    let mut config = read_json(&path);
    config["quantization_config"] = json!({"quant_method": "gptq", "bits": 4});
    fs::write(path, config.to_string()).unwrap();
    assert_rejected(&folder, "the quantisation 'gptq' is not supported");
}

#[test]
fn broken_link() {
    let folder = copy("text");
    let path = folder.path().join("model.safetensors");
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("../blobs/gone", &path).unwrap();
    assert_rejected(&folder, "model.safetensors: No such file");
}

#[test]
fn links_into_the_hub_cache_are_followed() {
    let (folder, blobs) = (copy("text"), tempfile::tempdir().unwrap());
    let (path, blob) = (folder.path().join("model.safetensors"), blobs.path().join("a5fd"));
    fs::rename(&path, &blob)
        .or_else(|_| fs::copy(&path, &blob).and_then(|_| fs::remove_file(&path)))
        .unwrap();
    std::os::unix::fs::symlink(blob, &path).unwrap();
    assert_eq!(folder::open(folder.path()).unwrap().source.files, [path]);
}

#[test]
fn index_with_paths_outside_the_folder() {
    for shard in ["../../etc/passwd", "/etc/passwd", "a\\b.safetensors", "..safetensors"] {
        let folder = with_index(|map| drop(map.insert("x".to_string(), json!(shard))));
        assert_rejected(&folder, "lists a shard that is not a plain file name");
    }
    assert_rejected(
        &with_index(|map| drop(map.insert("x".to_string(), json!("config.json")))),
        "not a .safetensors file",
    );
}

#[test]
fn index_that_lists_itself() {
    assert_rejected(
        &with_index(|map| drop(map.insert("x".to_string(), json!(INDEX)))),
        "lists itself as a shard",
    );
}

#[test]
fn shard_that_is_a_link_to_itself() {
    let folder = with_index(|map| drop(map.insert("x".to_string(), json!("loop.safetensors"))));
    std::os::unix::fs::symlink("loop.safetensors", folder.path().join("loop.safetensors")).unwrap();
    assert_rejected(&folder, "lists missing files: loop.safetensors");
}

#[test]
fn one_shard_with_two_names() {
    let folder = with_index(|map| drop(map.insert("x".to_string(), json!("z.safetensors"))));
    let target = "model-00001-of-00003.safetensors";
    std::os::unix::fs::symlink(target, folder.path().join("z.safetensors")).unwrap();
    assert_rejected(
        &folder,
        "lists 'model-00001-of-00003.safetensors' and 'z.safetensors', which are the same file",
    );
}

#[test]
fn missing_shards() {
    let folder = copy("sharded");
    fs::remove_file(folder.path().join("model-00002-of-00003.safetensors")).unwrap();
    assert_rejected(
        &folder,
        "index.json: lists missing files: model-00002-of-00003.safetensors; download them",
    );
}

#[test]
fn truncated_shard() {
    let folder = copy("sharded");
    let path = folder.path().join("model-00002-of-00003.safetensors");
    let file = fs::read(&path).unwrap();
    fs::write(&path, &file[..file.len() - 1]).unwrap();
    assert_rejected(&folder, "model-00002-of-00003.safetensors: tensor '");
}

#[test]
fn tensors_listed_but_missing() {
    let shard = "model-00001-of-00003.safetensors";
    let folder = with_index(|map| {
        (0..7).for_each(|number| drop(map.insert(format!("ghost.{number}"), json!(shard))));
    });
    assert_rejected(
        &folder,
        "lists tensors that are not in its files: ghost.0 in model-00001-of-00003.safetensors",
    );
    assert_rejected(&folder, "and 2 more");
}

#[test]
fn tensors_present_but_not_listed() {
    let folder = with_index(|map| drop(map.remove("model.norm.weight").unwrap()));
    assert_rejected(&folder, "does not list tensors that are in its files: model.norm.weight in model-00003");
}

#[test]
fn tensors_in_a_different_shard_than_listed() {
    let folder = with_index(|map| map["model.norm.weight"] = json!("model-00001-of-00003.safetensors"));
    assert_rejected(
        &folder,
        "tensor 'model.norm.weight': is in this file, but model.safetensors.index.json lists it in",
    );
}

#[test]
fn malformed_index() {
    let folder = copy("sharded");
    let path = folder.path().join(INDEX);
    for (text, part) in [
        ("[]", "expected an object with weight_map"),
        ("{}", "missing field `weight_map`"),
        (r#"{"weight_map":[]}"#, "expected weight_map, an object of strings"),
        (r#"{"weight_map":{"a":1}}"#, "expected a string"),
        (r#"{"weight_map":{"a":"x.safetensors","a":"y.safetensors"}}"#, "weight_map has duplicate key 'a'"),
        (r#"{"weight_map":{},"weight_map":{}}"#, "duplicate weight_map"),
    ] {
        fs::write(&path, text).unwrap();
        assert_rejected(&folder, part);
    }
    let shards: Value = (0..1025).map(|n| (n.to_string(), json!(format!("{n}.safetensors")))).collect();
    fs::write(&path, json!({ "weight_map": shards }).to_string()).unwrap();
    assert_rejected(&folder, "lists 1025 shards, but the limit is 1024");
    fs::write(&path, " ".repeat((4 << 20) + 1)).unwrap();
    assert_rejected(&folder, "index.json: is larger than the limit of 4194304 bytes");
}

#[test]
fn wrong_total_size_is_ignored() {
    let folder = copy("sharded");
    let path = folder.path().join(INDEX);
    let mut index = read_json(&path);
    index["metadata"]["total_size"] = json!(1);
    fs::write(path, index.to_string()).unwrap();
    assert!(folder::open(folder.path()).is_ok());
}

/// A tensor to write: name, dtype, shape.
type TestTensor<'a> = (&'a str, &'a str, Vec<u64>);

fn write(path: &Path, metadata: Value, tensors: &[TestTensor]) {
    let mut header = json!({ "__metadata__": metadata });
    let mut end = 0;
    for (name, dtype, shape) in tensors {
        let width = if ["I8", "U8"].contains(dtype) {
            1
        } else if *dtype == "F32" {
            4
        } else {
            2
        };
        let begin = end;
        end += shape.iter().product::<u64>() * width;
        header[name] = json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]});
    }
    let header = header.to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.into_bytes());
    bytes.resize(bytes.len() + end as usize, 0);
    fs::write(path, bytes).unwrap();
}

#[test]
fn unsupported_dtype_is_an_error_only_for_text_tensors() {
    let folder = copy("text");
    let path = folder.path().join("model.safetensors");
    let name = "model.layers.0.self_attn.q_proj.weight";
    write(&path, json!({}), &[("position_ids", "I64", vec![4]), ("vision_tower.head.probe", "I64", vec![1])]);
    let opened = folder::open(folder.path()).unwrap();
    assert_eq!((opened.source.tensors.len(), opened.skipped.len()), (0, 2));
    write(&path, json!({}), &[(name, "I64", vec![4])]);
    assert_rejected(
        &folder,
        "tensor 'model.layers.0.self_attn.q_proj.weight': values of type 'I64' are not supported",
    );
    write(&path, json!({}), &[(name, "I8", vec![4])]);
    assert_rejected(&folder, "I8 values without a quantisation scheme");
}

const Q: &str = "language_model.model.layers.3.self_attn.q_proj.weight";
const GATE: &str = "language_model.model.layers.3.mlp.gate_proj.weight";
const NORM: &str = "language_model.model.norm.weight";
const VISION: &str = "vision_tower.vision_model.encoder.layers.3.self_attn.q_proj.weight";

/// A folder in which layer 3 spans two files, with scales of the given dtype and shape.
fn layerwise_folder(scale: &str, gate_scales: &[u64]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(fixture("multimodal_older/config.json"), folder.path().join("config.json")).unwrap();
    let (q, gate) = (format!("{Q}_scale"), format!("{GATE}_scale"));
    let (norm, vision) = (format!("{NORM}_scale"), format!("{VISION}_scale"));
    write(
        &folder.path().join("model-00001-of-00002_layer_3.safetensors"),
        json!({Q: "int8_symmetric", VISION: "int8_symmetric"}),
        &[
            (Q, "I8", vec![24, 16]),
            (&q, scale, vec![]),
            (VISION, "I8", vec![8, 8]),
            (&vision, scale, vec![1]),
        ],
    );
    write(
        &folder.path().join("model-00002-of-00002_layer_3.safetensors"),
        json!({GATE: "int4_grouped"}),
        &[(GATE, "I8", vec![24, 16]), (&gate, scale, gate_scales.to_vec())],
    );
    write(
        &folder.path().join("model-00002-of-00002_shared.safetensors"),
        json!({NORM: "int8_asymmetric"}),
        &[(NORM, "U8", vec![16]), (&norm, scale, vec![2]), ("lm_head.weight", "BF16", vec![96, 16])],
    );
    folder
}

#[test]
fn layerwise_folder_is_read() {
    let folder = layerwise_folder("F32", &[3]);
    assert!(layerwise::detect(folder.path()).unwrap());
    assert!(!layerwise::detect(&fixture("text")).unwrap());
    let opened = layerwise::open(folder.path()).unwrap();
    assert_eq!((opened.source.format, opened.source.files.len()), (Format::Layerwise, 3));
    let find = |name: &str| opened.source.tensors.iter().find(|tensor| tensor.name == name).unwrap();
    let data = |name: &str| (find(name).data.file, find(name).data.len);
    assert_eq!((data(Q), data(GATE), data(NORM)), ((0, 24 * 16), (2, 24 * 16), (1, 16)));
    let scales = |name: &str| find(name).scales.map(|span| (span.file, span.len));
    assert_eq!((find(Q).encoding, scales(Q)), (Encoding::Int8Symmetric, Some((0, 4))));
    assert_eq!((find(GATE).encoding, scales(GATE)), (Encoding::Int4Grouped, Some((2, 12))));
    assert_eq!((find(NORM).encoding, scales(NORM)), (Encoding::Int8Asymmetric, Some((1, 8))));
    assert_eq!((find("lm_head.weight").encoding, scales("lm_head.weight")), (Encoding::Bf16, None));
    assert_eq!(opened.source.tensors.len(), 5, "scales must not be listed as tensors");
    let incomplete = complete::check(&config(&opened), &opened.source).unwrap_err().to_string();
    assert_contains(
        incomplete,
        "missing: language_model.model.layers.0.input_layernorm.weight, expected [16]",
    );
}

#[track_caller]
fn assert_layerwise_rejected(folder: &tempfile::TempDir, part: &str) {
    assert_contains(layerwise::open(folder.path()).expect_err("invalid folder was accepted"), part);
}

#[test]
fn missing_or_misshapen_scales() {
    assert_layerwise_rejected(
        &layerwise_folder("F32", &[4]),
        "gate_proj.weight_scale': int4_grouped with shape [24, 16] needs 3 scales",
    );
    assert_layerwise_rejected(&layerwise_folder("F16", &[3]), "scales must be F32, found F16");
    let folder = layerwise_folder("F32", &[3]);
    let path = folder.path().join("model-00002-of-00002_layer_3.safetensors");
    write(&path, json!({GATE: "int4_grouped"}), &[(GATE, "I8", vec![24, 16])]);
    assert_layerwise_rejected(&folder, "tensor 'language_model.model.layers.3.mlp.gate_proj.weight': scales");
    write(&path, json!({}), &[(&format!("{GATE}_scale"), "F32", vec![3])]);
    assert_layerwise_rejected(&folder, "which is in no file");
}

#[test]
fn unknown_missing_or_contradictory_schemes() {
    let folder = layerwise_folder("F32", &[3]);
    let path = folder.path().join("model-00002-of-00002_layer_3.safetensors");
    let scale = format!("{GATE}_scale");
    let tensors = |dtype| [(GATE, dtype, vec![24, 16]), (scale.as_str(), "F32", vec![3])];
    write(&path, json!({GATE: "int2"}), &tensors("I8"));
    assert_layerwise_rejected(&folder, "the scheme 'int2' is not supported");
    write(&path, json!({GATE: "int4_grouped"}), &tensors("U8"));
    assert_layerwise_rejected(&folder, "int4_grouped values must be I8, found U8");
    write(&path, json!({}), &tensors("I8"));
    assert_layerwise_rejected(&folder, "I8 values without a quantisation scheme");
}

#[test]
fn tensor_in_two_layer_files() {
    let folder = layerwise_folder("F32", &[3]);
    write(
        &folder.path().join("model-00002-of-00002_layer_4.safetensors"),
        json!({}),
        &[(NORM, "F32", vec![16])],
    );
    assert_layerwise_rejected(&folder, "tensor 'language_model.model.norm.weight': is also in ");
}

#[test]
fn one_layer_with_two_file_names() {
    let folder = layerwise_folder("F32", &[3]);
    write(&folder.path().join("model-00001-of-00002_layer_03.safetensors"), json!({}), &[]);
    assert_layerwise_rejected(&folder, "for the same layer: remove one");
}

#[test]
fn total_size_of_headers_is_limited() {
    let folder = layerwise_folder("F32", &[3]);
    let long = "x".repeat(3 << 20);
    for layer in [7, 8] {
        let path = folder.path().join(format!("model_layer_{layer}.safetensors"));
        write(&path, json!({"k": long}), &[]);
    }
    assert_layerwise_rejected(&folder, "model_layer_8.safetensors: claims a header of");
}

#[test]
fn folder_without_layer_files() {
    let error = layerwise::open(&fixture("text")).unwrap_err();
    assert!(matches!(error, Error::InvalidFile { .. }), "{error}");
}
