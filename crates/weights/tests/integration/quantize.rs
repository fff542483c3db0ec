//! Quantising to a native file, and loading it by copying.

use std::{path::Path, sync::atomic::Ordering};

use crate::common::{place, rows, tiny_folder, tiny_folder_with, tiny_layerwise_folder};
use checkpoint::{Checkpoint, Format, Role, tokenizer::TokenizerData};
use tensor::{STRIP, Scheme, quant};
use weights::{
    Error,
    blueprint::{Blueprint, MatrixId},
    load::load,
    quantize::quantize,
    stream::{Control, Options},
};

/// The expected matrix: each row quantised and dequantised.
fn quantized(rows: &[Vec<f32>], scheme: Scheme) -> Vec<Vec<f32>> {
    rows.iter().map(|row| quant::quantize(row, scheme).unwrap().dequantize()).collect()
}

#[test]
fn quantised_models_load_to_the_expected_matrices() {
    let Some(device) = testkit::cpu_device() else { return };
    let dir = tempfile::tempdir().unwrap();
    tiny_folder(dir.path());
    let original = Checkpoint::open(dir.path()).unwrap();
    for (scheme, worst) in [(Scheme::Int8, 0.01), (Scheme::Int4, 0.12)] {
        let out = dir.path().join(format!("{scheme}.safetensors"));
        let control = Control::default();
        let report = quantize(&original, &out, scheme, &control).unwrap();
        assert_eq!(control.done.load(Ordering::Relaxed), report.bytes_before);
        assert_eq!(report.roles[&Role::Gate].0, 2);
        for (role, (_, rmse)) in &report.roles {
            assert!((1e-4..worst).contains(&rmse.relative()), "{role:?} {scheme}: {}", rmse.relative());
        }

        let checkpoint = Checkpoint::open(&out).unwrap();
        assert_eq!(checkpoint.source.format, Format::Native);
        assert_eq!(checkpoint.config, original.config);
        assert_eq!(Blueprint::new(&checkpoint).unwrap().bytes(), report.bytes_after);
        let header = std::fs::metadata(&out).unwrap().len() - report.bytes_after;
        assert!(header.is_multiple_of(4096) && header <= 16384, "data must be page-aligned: {header}");
        // Slots of a few strips, so that chunks start and end anywhere.
        let options = Options { slot_bytes: 5000, slots: 4, ..Options::default() };
        let (weights, _) =
            load(&device, &checkpoint, &place(&device, &checkpoint), &options, &Control::default()).unwrap();
        let only = |id| weights.by_id(id).next().unwrap().read().unwrap();
        for layer in 0..2 {
            let expected = |role| {
                quantized(&rows(&original, original.inventory.get(Some(layer), role).unwrap()), scheme)
            };
            let qkv = [expected(Role::Query), expected(Role::Key), expected(Role::Value)].concat();
            assert_eq!(only(MatrixId::Qkv(layer)), qkv);
            assert_eq!(only(MatrixId::Down(layer)), expected(Role::Down));
            let gate_up = only(MatrixId::GateUp(layer));
            for (row, (gate, up)) in expected(Role::Gate).iter().zip(&expected(Role::Up)).enumerate() {
                let at = row / STRIP * 2 * STRIP + row % STRIP;
                assert_eq!((&gate_up[at], &gate_up[at + STRIP]), (gate, up), "row {row}");
            }
        }
        let embed = rows(&original, original.inventory.get(None, Role::Embed).unwrap());
        assert_eq!(only(MatrixId::Embedding), quantized(&embed, scheme));
        for (slot, norm) in &weights.norms {
            let tensor = original.inventory.get(slot.layer, slot.role).unwrap();
            let expected: Vec<f32> = original.read_vector(tensor).unwrap().iter().map(|w| w + 1.0).collect();
            assert_eq!(norm.read_vec::<f32>().unwrap(), expected, "norms must be stored as 1 + w");
        }
        let again =
            quantize(&checkpoint, &dir.path().join("twice.safetensors"), scheme, &control).unwrap_err();
        assert!(again.to_string().contains("quantising a quantised model is not supported"), "{again}");
    }
}

#[test]
fn spare_embedding_rows_and_an_untied_head_are_kept() {
    let Some(device) = testkit::cpu_device() else { return };
    let dir = tempfile::tempdir().unwrap();
    tiny_folder_with(dir.path(), 58, true);
    let original = Checkpoint::open(dir.path()).unwrap();
    let out = dir.path().join("out.safetensors");
    quantize(&original, &out, Scheme::Int8, &Control::default()).unwrap();
    let checkpoint = Checkpoint::open(&out).unwrap();
    assert!(!checkpoint.config.tie_embeddings);
    let placement = place(&device, &checkpoint);
    let (weights, _) =
        load(&device, &checkpoint, &placement, &Options::default(), &Control::default()).unwrap();
    let head = rows(&original, original.inventory.get(None, Role::Head).unwrap());
    assert_eq!(head.len(), 58);
    assert_eq!(weights.by_id(MatrixId::Head).next().unwrap().read().unwrap(), quantized(&head, Scheme::Int8));
}

#[test]
fn non_finite_scales_in_native_files_are_reported() {
    let Some(device) = testkit::cpu_device() else { return };
    let dir = tempfile::tempdir().unwrap();
    tiny_folder(dir.path());
    let out = dir.path().join("out.safetensors");
    quantize(&Checkpoint::open(dir.path()).unwrap(), &out, Scheme::Int8, &Control::default()).unwrap();
    let checkpoint = Checkpoint::open(&out).unwrap();
    let scales = checkpoint.inventory.get(Some(1), Role::Up).unwrap().scales.unwrap();
    let mut content = std::fs::read(&out).unwrap();
    let at = scales.offset as usize + 40;
    content[at..at + 2].copy_from_slice(&half::f16::NAN.to_le_bytes());
    std::fs::write(&out, content).unwrap();
    let placement = place(&device, &checkpoint);
    let Err(error) = load(&device, &checkpoint, &placement, &Options::default(), &Control::default()) else {
        panic!("damaged file was accepted")
    };
    assert!(
        error.to_string().contains("layers.1.mlp.up_proj.weight': a scale at or after row 0 is not"),
        "{error}"
    );
    assert_eq!(device.allocated_bytes(gpu::Lifetime::Weights), 0);
}

#[test]
fn layerwise_folders_can_be_quantised() {
    let dir = tempfile::tempdir().unwrap();
    tiny_layerwise_folder(dir.path());
    let original = Checkpoint::open(dir.path()).unwrap();
    let out = dir.path().join("out.safetensors");
    let report = quantize(&original, &out, Scheme::Int8, &Control::default()).unwrap();
    for (role, (_, rmse)) in &report.roles {
        assert!(rmse.relative() < 0.01, "{role:?}: {}", rmse.relative());
    }
    Checkpoint::open(&out).unwrap();
}

fn files(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

#[test]
fn failed_quantisation_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    tiny_folder(dir.path());
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let before = files(dir.path());
    let out = dir.path().join("out.safetensors");
    let control = Control::default();
    control.cancel.store(true, Ordering::Relaxed);
    assert!(matches!(quantize(&checkpoint, &out, Scheme::Int8, &control), Err(Error::Cancelled)));
    assert_eq!(files(dir.path()), before);

    let weights = dir.path().join("model.safetensors");
    let content = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &content[..content.len() - 100]).unwrap();
    let error = quantize(&checkpoint, &out, Scheme::Int8, &Control::default()).unwrap_err();
    assert!(matches!(error, Error::Checkpoint(checkpoint::Error::Read { .. })), "{error}");
    assert_eq!(files(dir.path()), before);

    let mut damaged = content.clone();
    let last = damaged.len() - 1;
    // All exponent bits set: NaN.
    damaged[last] = 0x7f;
    damaged[last - 1] = 0xff;
    std::fs::write(&weights, damaged).unwrap();
    let error = quantize(&checkpoint, &out, Scheme::Int4, &Control::default()).unwrap_err().to_string();
    assert!(error.contains("model.safetensors: tensor '"), "{error}");
    assert_eq!(files(dir.path()), before);
}

#[test]
fn tokenizer_and_embedding_factor_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    tiny_folder(dir.path());
    let original = Checkpoint::open(dir.path()).unwrap();
    // transformers rounds the factor to the dtype of the embeddings, bf16 here.
    let factor = original.config.embedding_factor;
    assert_eq!(factor, half::bf16::from_f32((original.config.hidden as f32).sqrt()).to_f32());
    assert_eq!(original.tokenizer_data().unwrap(), None);
    std::fs::write(dir.path().join("tokenizer.json"), "{\"é\": 1}").unwrap();
    std::fs::write(dir.path().join("chat_template.jinja"), "{{ x }}").unwrap();
    let out = dir.path().join("out.safetensors");
    quantize(&original, &out, Scheme::Int8, &Control::default()).unwrap();
    let written = Checkpoint::open(&out).unwrap();
    assert_eq!(written.config.embedding_factor, factor);
    let expected = TokenizerData::HuggingFace {
        tokenizer: "{\"é\": 1}".into(),
        config: None,
        chat_template: Some("{{ x }}".into()),
    };
    assert_eq!(written.tokenizer_data().unwrap(), Some(expected));
}

#[test]
fn tampered_native_files_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    tiny_folder(dir.path());
    let out = dir.path().join("out.safetensors");
    quantize(&Checkpoint::open(dir.path()).unwrap(), &out, Scheme::Int8, &Control::default()).unwrap();
    let content = std::fs::read(&out).unwrap();
    let text = String::from_utf8_lossy(&content[8..4096]).into_owned();
    assert!(text.contains("indrik.version"));
    let with = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let mut changed = content.clone();
        let found = changed.windows(from.len()).position(|window| window == from.as_bytes()).expect(from);
        changed[found..found + to.len()].copy_from_slice(to.as_bytes());
        let path = dir.path().join("changed.safetensors");
        std::fs::write(&path, changed).unwrap();
        Checkpoint::open(&path).unwrap_err().to_string()
    };
    let error = with("\"indrik.version\":\"2\"", "\"indrik.version\":\"7\"");
    assert!(error.contains("version \"7\"") && error.contains("quantize the model again"), "{error}");
    let error = with("indrik.matrices", "indrik.matricez");
    assert!(error.contains("has no indrik.matrices"), "{error}");
    let error = with("\\\"rows\\\":96", "\\\"rows\\\":90");
    assert!(error.contains("needs") || error.contains("90"), "{error}");
    // Floats have no scales: a scale entry, even an empty one, makes the file invalid.
    let error = with("\\\"int8\\\"", "\\\"bf16\\\"");
    assert!(error.contains("bytes of"), "{error}");
    let error = with("\\\"heads\\\":2", "\\\"heads\\\":0");
    assert!(error.contains("no model has"), "{error}");

    let error = Checkpoint::open(&dir.path().join("model.safetensors")).unwrap_err().to_string();
    assert!(error.contains("pass its folder"), "{error}");
}
