//! The real SmolLM2 135M and Qwen2.5-Coder 1.5B against llama.cpp with the same weights in f32.
//!
//! Runs if INDRIK_TEST_SMOLLM2 and INDRIK_TEST_QWEN name their files, and INDRIK_TEST_DATA the folder of the
//! references.

use std::{path::Path, sync::Arc};

use crate::common::load;
use crate::reference::{Case, cases, data, file, greedy, large_file};
use checkpoint::Checkpoint;
use model::{Model, language::Language};

/// The model and its cases, after checking that their prompts have the reference's tokens.
fn open(device: &gpu::Device, path: &Path, reference: &Path) -> (Arc<Model>, Vec<Case>) {
    let language = Language::from_checkpoint(&Checkpoint::open(path).unwrap()).unwrap();
    let cases = cases(&std::fs::read_to_string(reference).unwrap());
    assert!(!cases.is_empty());
    for case in &cases {
        assert_eq!(language.tokenizer.encode_prompt(&case.prompt), case.ids, "{:?}", case.end());
        let end = language.tokenizer.token_id("<|im_end|>").unwrap();
        assert!(language.stop_token_ids.contains(&end), "{:?}", language.stop_token_ids);
    }
    (load(device, path), cases)
}

#[test]
fn smollm2_matches_the_reference() {
    let Some(path) = file("INDRIK_TEST_SMOLLM2", "SmolLM2 135M") else { return };
    let Some(reference) = data("smollm2_reference.json") else { return };
    let Some(device) = testkit::cpu_device_plain() else { return };
    let (model, cases) = open(&device, &path, &reference);
    for case in &cases {
        case.assert_steps(&model);
        case.assert_same("alone", &greedy(&model, 64, &case.ids, case.tokens.len()));
    }
}

/// Ten times as large: part of the first completion, and the ends of the other prompts.
#[test]
fn qwen_matches_the_reference() {
    let Some(path) = large_file("INDRIK_TEST_QWEN", "Qwen2.5-Coder 1.5B") else { return };
    let Some(reference) = data("qwen15_reference.json") else { return };
    let Some(device) = testkit::cpu_device_plain() else { return };
    let (model, cases) = open(&device, &path, &reference);
    cases[0].first(16).assert_steps(&model);
    for case in &cases[1..] {
        case.first(1).assert_steps(&model);
    }
    cases[0].first(3).assert_same("alone", &greedy(&model, 64, &cases[0].ids, 3));
}
