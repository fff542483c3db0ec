//! `indrik inspect` on folders saved by transformers, on Gemma 3 270M if available, and on invalid files.

use std::path::{Path, PathBuf};

use crate::common::{indrik, json, stderr, stdout};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../checkpoint/tests/fixtures/hf").join(name)
}

#[test]
fn a_folder_saved_by_transformers_is_described() {
    let folder = fixture("text");
    let output = indrik(&["inspect", folder.to_str().unwrap(), "--json"]).output().unwrap();
    let result = json(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(result["format"], "hugging_face");
    assert_eq!(result["config"]["architecture"], "gemma3");
    assert_eq!(result["config"]["hidden"], 16);
    assert!(result["parameters"].as_u64().unwrap() > 1000);
    assert_eq!(result["encodings"]["bf16"]["scheme"], "bf16");
    let text = stdout(&indrik(&["inspect", folder.to_str().unwrap(), "--tensors"]).output().unwrap());
    assert!(text.contains("model.layers.0.self_attn.q_proj.weight") || text.contains("q_proj"), "{text}");
}

#[test]
fn layers_that_differ_are_described() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures/gemma4_ple");
    let text = stdout(&indrik(&["inspect", folder.to_str().unwrap()]).output().unwrap());
    for line in [
        "full-attention layers: of dimension 64, 1 KV heads",
        "the last 3 layers share keys and values of earlier ones",
        "embeddings of width 64;",
    ] {
        assert!(text.contains(line), "'{line}' is not in: {text}");
    }
}

#[test]
fn image_encoders_are_described() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures");
    for (name, line) in [
        ("gemma3_vision_gguf", "images   16 × 16 pixels, 4 tokens each: 2 layers of width 32"),
        ("gemma4_vision_gguf", "images   of any shape, up to 10 tokens each: 2 layers of width 48"),
        (
            "gemma4_vision_unified_gguf",
            "images   of any shape, up to 12 tokens each: a projection of pixels, no layers",
        ),
    ] {
        let file = fixtures.join(name).join("model.gguf");
        let text = stdout(&indrik(&["inspect", file.to_str().unwrap()]).output().unwrap());
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn inspect_works_without_a_gpu() {
    let folder = fixture("text");
    let missing = "/nonexistent/driver.json";
    let output = indrik(&["inspect", folder.to_str().unwrap()])
        .env("VK_DRIVER_FILES", missing)
        .env("VK_ICD_FILENAMES", missing)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("No usable Vulkan device"), "{}", stdout(&output));
}

#[test]
fn gemma3_270m_is_described() {
    let Some(path) = std::env::var_os("INDRIK_TEST_GGUF") else {
        eprintln!("test skipped: INDRIK_TEST_GGUF is not set to a GGUF of Gemma 3 270M");
        return;
    };
    let result = json(&indrik(&["inspect", "--json"]).arg(path).output().unwrap());
    assert_eq!(
        (result["config"]["layers"].as_u64(), result["config"]["hidden"].as_u64()),
        (Some(18), Some(640))
    );
    assert_eq!(result["tensors"].as_array().unwrap().len(), 236);
    assert_eq!(result["encodings"]["q4_k"]["scheme"], "int4_min");
}

#[test]
fn invalid_files_give_a_one_line_error() {
    let (dir, empty) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let write = |name: &str, content: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    let cases = [
        (PathBuf::from("/nonexistent/model.gguf"), "is not a file and not a known model"),
        (write("empty.gguf", b""), "empty.gguf"),
        (write("text.gguf", b"this is a letter, not a model"), "text.gguf"),
        (write("cut.gguf", b"GGUF\x03\0\0\0\x05\0\0\0\0\0\0\0"), "cut.gguf"),
        (dir.path().to_path_buf(), "pass the file instead of the folder"),
        (empty.path().to_path_buf(), "model.safetensors"),
    ];
    for (path, expected) in cases {
        let output = indrik(&["inspect"]).arg(&path).output().unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{}: {text}", path.display());
        assert!(text.starts_with("indrik: ") && text.contains(expected), "{}: {text}", path.display());
        assert!(!text.contains("panicked"), "{text}");
    }
}
