//! Folders as transformers saves them, as they arrive damaged, and as the system that Indrik replaces wrote them.

use std::fs;
use std::path::{Path, PathBuf};

use checkpoint::Config;
use checkpoint::Error;
use checkpoint::Role;
use checkpoint::complete;
use checkpoint::folder::{self, Folder};
use checkpoint::layerwise;
use checkpoint::{Format, Tensor};
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

/// A copy of a fixture, to be damaged.
fn copy(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let from = entry.unwrap().path();
        fs::copy(&from, folder.path().join(from.file_name().unwrap())).unwrap();
    }
    folder
}

/// A copy of the sharded fixture whose index was changed.
fn with_index(change: impl FnOnce(&mut serde_json::Map<String, Value>)) -> tempfile::TempDir {
    let folder = copy("sharded");
    let path = folder.path().join(INDEX);
    let mut index = read_json(&path);
    change(index["weight_map"].as_object_mut().unwrap());
    fs::write(path, index.to_string()).unwrap();
    folder
}

#[track_caller]
fn says(error: impl ToString, part: &str) {
    let text = error.to_string();
    assert!(text.contains(part), "'{text}' does not say '{part}'");
}

#[track_caller]
fn refused(folder: &tempfile::TempDir, part: &str) {
    says(folder::open(folder.path()).expect_err("a hostile folder was taken"), part);
}

#[test]
fn one_file() {
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

/// The bytes of a tensor, for comparing two files' worth of the same model.
fn bytes(folder: &Folder, tensor: &Tensor) -> Vec<u8> {
    let file = fs::read(&folder.source.files[tensor.data.file]).unwrap();
    file[tensor.data.offset as usize..][..tensor.data.len as usize].to_vec()
}

#[test]
fn shards_hold_the_same_model_as_one_file() {
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
fn both_multimodal_namings_are_one_model() {
    let older = folder::open(&fixture("multimodal_older")).unwrap();
    let newer = folder::open(&fixture("multimodal_newer")).unwrap();
    let older_inventory = complete::check(&config(&older), &older.source).unwrap();
    let newer_inventory = complete::check(&config(&newer), &newer.source).unwrap();
    // Two layers of 16, embeddings and norm 5, pooling 11, projector 2.
    assert_eq!((older_inventory.images.len(), newer_inventory.images.len()), (50, 50));
    for ((slot, a), (other, b)) in older_inventory.iter().zip(newer_inventory.iter()) {
        assert_ne!(a.name, b.name);
        assert_eq!((slot, bytes(&older, a)), (other, bytes(&newer, b)), "{}", a.name);
    }
}

#[test]
fn no_folder() {
    says(folder::open(Path::new("/nonexistent")).unwrap_err(), "/nonexistent: ");
    says(folder::open(&fixture("text/config.json")).unwrap_err(), "is not a folder");
}

#[test]
fn no_weights() {
    let folder = copy("text");
    fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    refused(&folder, "has neither model.safetensors nor model.safetensors.index.json");
    fs::write(folder.path().join("pytorch_model.bin"), "").unwrap();
    refused(&folder, "a model saved with pickle is not supported");
    fs::write(folder.path().join("model-00001-of-00012_layer_3.safetensors"), "").unwrap();
    refused(&folder, "a folder quantised layer by layer");
    fs::write(folder.path().join("model.gguf"), "").unwrap();
    refused(&folder, "name the file instead of the folder");
}

#[test]
fn no_config() {
    let folder = copy("text");
    fs::remove_file(folder.path().join("config.json")).unwrap();
    refused(&folder, "has no config.json");
}

#[test]
fn a_config_that_is_not_json_or_too_large() {
    let folder = copy("text");
    fs::write(folder.path().join("config.json"), "{]").unwrap();
    refused(&folder, "config.json: is wrong");
    fs::write(folder.path().join("config.json"), "[".repeat(500_000)).unwrap();
    refused(&folder, "recursion limit");
    fs::write(folder.path().join("config.json"), b"{\"\xff\":1}").unwrap();
    refused(&folder, "config.json: is not UTF-8 from byte 2 on");
    fs::write(folder.path().join("config.json"), " ".repeat(2 << 20)).unwrap();
    refused(&folder, "config.json: is larger than the 1048576 bytes");
}

#[test]
fn a_quantisation_that_is_not_ours() {
    let folder = copy("text");
    let path = folder.path().join("config.json");
    let mut config = read_json(&path);
    config["quantization_config"] = json!({"quant_method": "gptq", "bits": 4});
    fs::write(path, config.to_string()).unwrap();
    refused(&folder, "the quantisation 'gptq' is not supported");
}

#[test]
fn a_link_to_nothing() {
    let folder = copy("text");
    let path = folder.path().join("model.safetensors");
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("../blobs/gone", &path).unwrap();
    refused(&folder, "model.safetensors: No such file");
}

#[test]
fn links_are_followed_as_in_the_hub_s_cache() {
    let (folder, blobs) = (copy("text"), tempfile::tempdir().unwrap());
    let (path, blob) = (folder.path().join("model.safetensors"), blobs.path().join("a5fd"));
    fs::rename(&path, &blob)
        .or_else(|_| fs::copy(&path, &blob).and_then(|_| fs::remove_file(&path)))
        .unwrap();
    std::os::unix::fs::symlink(blob, &path).unwrap();
    assert_eq!(folder::open(folder.path()).unwrap().source.files, [path]);
}

#[test]
fn an_index_that_leads_out_of_its_folder() {
    for shard in ["../../etc/passwd", "/etc/passwd", "a\\b.safetensors", "..safetensors"] {
        let folder = with_index(|map| drop(map.insert("x".to_string(), json!(shard))));
        refused(&folder, "lists a shard that is not a plain file name");
    }
    refused(
        &with_index(|map| drop(map.insert("x".to_string(), json!("config.json")))),
        "not a .safetensors file",
    );
}

#[test]
fn an_index_that_lists_itself() {
    refused(&with_index(|map| drop(map.insert("x".to_string(), json!(INDEX)))), "lists itself as a shard");
}

#[test]
fn shards_that_are_links_in_a_circle() {
    let folder = with_index(|map| drop(map.insert("x".to_string(), json!("loop.safetensors"))));
    std::os::unix::fs::symlink("loop.safetensors", folder.path().join("loop.safetensors")).unwrap();
    refused(&folder, "lists files that are not there: loop.safetensors");
}

#[test]
fn one_shard_under_two_names() {
    let folder = with_index(|map| drop(map.insert("x".to_string(), json!("z.safetensors"))));
    let target = "model-00001-of-00003.safetensors";
    std::os::unix::fs::symlink(target, folder.path().join("z.safetensors")).unwrap();
    refused(&folder, "lists 'model-00001-of-00003.safetensors' and 'z.safetensors', which are one file");
}

#[test]
fn shards_that_are_missing() {
    let folder = copy("sharded");
    fs::remove_file(folder.path().join("model-00002-of-00003.safetensors")).unwrap();
    refused(
        &folder,
        "index.json: lists files that are not there: model-00002-of-00003.safetensors; fetch them",
    );
}

#[test]
fn a_shard_cut_short() {
    let folder = copy("sharded");
    let path = folder.path().join("model-00002-of-00003.safetensors");
    let file = fs::read(&path).unwrap();
    fs::write(&path, &file[..file.len() - 1]).unwrap();
    refused(&folder, "model-00002-of-00003.safetensors: tensor '");
}

#[test]
fn tensors_listed_and_absent() {
    let shard = "model-00001-of-00003.safetensors";
    let folder = with_index(|map| {
        (0..7).for_each(|number| drop(map.insert(format!("ghost.{number}"), json!(shard))));
    });
    refused(&folder, "lists tensors that are not in its files: ghost.0 in model-00001-of-00003.safetensors");
    refused(&folder, "and 2 more");
}

#[test]
fn tensors_there_and_not_listed() {
    let folder = with_index(|map| drop(map.remove("model.norm.weight").unwrap()));
    refused(&folder, "does not list tensors that are in its files: model.norm.weight in model-00003");
}

#[test]
fn tensors_in_another_shard_than_listed() {
    let folder = with_index(|map| map["model.norm.weight"] = json!("model-00001-of-00003.safetensors"));
    refused(&folder, "tensor 'model.norm.weight': is in this file, but model.safetensors.index.json says");
}

#[test]
fn an_index_of_the_wrong_shape() {
    let folder = copy("sharded");
    let path = folder.path().join(INDEX);
    for (text, part) in [
        ("[]", "expected an object with weight_map"),
        ("{}", "missing field `weight_map`"),
        (r#"{"weight_map":[]}"#, "expected weight_map, an object of strings"),
        (r#"{"weight_map":{"a":1}}"#, "expected a string"),
        (r#"{"weight_map":{"a":"x.safetensors","a":"y.safetensors"}}"#, "weight_map has 'a' twice"),
        (r#"{"weight_map":{},"weight_map":{}}"#, "weight_map is there twice"),
    ] {
        fs::write(&path, text).unwrap();
        refused(&folder, part);
    }
    let shards: Value = (0..1025).map(|n| (n.to_string(), json!(format!("{n}.safetensors")))).collect();
    fs::write(&path, json!({ "weight_map": shards }).to_string()).unwrap();
    refused(&folder, "lists 1025 shards, more than 1024");
    fs::write(&path, " ".repeat((4 << 20) + 1)).unwrap();
    refused(&folder, "index.json: is larger than the 4194304 bytes");
}

#[test]
fn a_wrong_total_size_is_no_fault() {
    let folder = copy("sharded");
    let path = folder.path().join(INDEX);
    let mut index = read_json(&path);
    index["metadata"]["total_size"] = json!(1);
    fs::write(path, index.to_string()).unwrap();
    assert!(folder::open(folder.path()).is_ok());
}

/// A tensor to be written: name, type, shape.
type Written<'a> = (&'a str, &'a str, Vec<u64>);

fn write(path: &Path, metadata: Value, tensors: &[Written]) {
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
fn a_type_that_is_not_read_matters_only_where_it_is_used() {
    let folder = copy("text");
    let path = folder.path().join("model.safetensors");
    let name = "model.layers.0.self_attn.q_proj.weight";
    write(&path, json!({}), &[("position_ids", "I64", vec![4]), ("vision_tower.head.probe", "I64", vec![1])]);
    let opened = folder::open(folder.path()).unwrap();
    assert_eq!((opened.source.tensors.len(), opened.skipped.len()), (0, 2));
    write(&path, json!({}), &[(name, "I64", vec![4])]);
    refused(
        &folder,
        "tensor 'model.layers.0.self_attn.q_proj.weight': values of type 'I64' are not supported",
    );
    write(&path, json!({}), &[(name, "I8", vec![4])]);
    refused(&folder, "I8 values with nothing that says how they were quantised");
}

const Q: &str = "language_model.model.layers.3.self_attn.q_proj.weight";
const GATE: &str = "language_model.model.layers.3.mlp.gate_proj.weight";
const NORM: &str = "language_model.model.norm.weight";
const VISION: &str = "vision_tower.vision_model.encoder.layers.3.self_attn.q_proj.weight";

/// A folder in which layer 3 spans two files, with scales of the given type and shapes.
fn layered(scale: &str, gate_scales: &[u64]) -> tempfile::TempDir {
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
fn layer_by_layer() {
    let folder = layered("F32", &[3]);
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
    assert_eq!(opened.source.tensors.len(), 5, "scales are no tensors of their own");
    let incomplete = complete::check(&config(&opened), &opened.source).unwrap_err().to_string();
    says(incomplete, "missing: language_model.model.layers.0.input_layernorm.weight, expected [16]");
}

#[track_caller]
fn refused_layers(folder: &tempfile::TempDir, part: &str) {
    says(layerwise::open(folder.path()).expect_err("a wrong folder was taken"), part);
}

#[test]
fn scales_missing_or_misshapen() {
    refused_layers(
        &layered("F32", &[4]),
        "gate_proj.weight_scale': int4_grouped with a shape of [24, 16] has 3 scales",
    );
    refused_layers(&layered("F16", &[3]), "scales should be F32, not F16");
    let folder = layered("F32", &[3]);
    let path = folder.path().join("model-00002-of-00002_layer_3.safetensors");
    write(&path, json!({GATE: "int4_grouped"}), &[(GATE, "I8", vec![24, 16])]);
    refused_layers(&folder, "tensor 'language_model.model.layers.3.mlp.gate_proj.weight': its scales");
    write(&path, json!({}), &[(&format!("{GATE}_scale"), "F32", vec![3])]);
    refused_layers(&folder, "which no file holds");
}

#[test]
fn schemes_that_are_unknown_or_absent_or_contradicted() {
    let folder = layered("F32", &[3]);
    let path = folder.path().join("model-00002-of-00002_layer_3.safetensors");
    let scale = format!("{GATE}_scale");
    let tensors = |dtype| [(GATE, dtype, vec![24, 16]), (scale.as_str(), "F32", vec![3])];
    write(&path, json!({GATE: "int2"}), &tensors("I8"));
    refused_layers(&folder, "the scheme 'int2' is not supported");
    write(&path, json!({GATE: "int4_grouped"}), &tensors("U8"));
    refused_layers(&folder, "int4_grouped values should be I8, not U8");
    write(&path, json!({}), &tensors("I8"));
    refused_layers(&folder, "I8 values with nothing that says how they were quantised");
}

#[test]
fn a_tensor_in_two_layer_files() {
    let folder = layered("F32", &[3]);
    write(
        &folder.path().join("model-00002-of-00002_layer_4.safetensors"),
        json!({}),
        &[(NORM, "F32", vec![16])],
    );
    refused_layers(&folder, "tensor 'language_model.model.norm.weight': is in ");
}

#[test]
fn one_layer_under_two_numbers() {
    let folder = layered("F32", &[3]);
    write(&folder.path().join("model-00001-of-00002_layer_03.safetensors"), json!({}), &[]);
    refused_layers(&folder, "which is the layer's file?");
}

#[test]
fn all_headers_together_are_bounded() {
    let folder = layered("F32", &[3]);
    let long = "x".repeat(3 << 20);
    for layer in [7, 8] {
        let path = folder.path().join(format!("model_layer_{layer}.safetensors"));
        write(&path, json!({"k": long}), &[]);
    }
    refused_layers(&folder, "model_layer_8.safetensors: claims a header of");
}

#[test]
fn no_layers() {
    let error = layerwise::open(&fixture("text")).unwrap_err();
    assert!(matches!(error, Error::InvalidFile { .. }), "{error}");
}
