//! `embed` with a tiny model, its errors, and other commands with an embedding model.

use std::{
    io::Write,
    path::Path,
    process::{Output, Stdio},
};

use crate::common::{indrik, json, stderr, stdout};
use serde_json::Value;

fn tiny() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/embeddings/bert_mean").display().to_string()
}

fn has_device() -> bool {
    let found = indrik(&["devices"]).output().unwrap().status.success();
    if !found {
        testkit::missing("a Vulkan device");
    }
    found
}

fn embed(arguments: &[&str]) -> Output {
    indrik(&[&["embed", "-m", &tiny()], arguments].concat()).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn texts_become_vectors_in_every_format() {
    if !has_device() {
        return;
    }
    let report = json(&embed(&["the cat sat", "hello", "--json"]));
    assert_eq!(
        (&report["dimensions"], &report["usage"]["total_tokens"]),
        (&Value::from(32), &Value::from(8))
    );
    let vector = |index: usize| -> Vec<f32> {
        serde_json::from_value(report["data"][index]["embedding"].clone()).unwrap()
    };
    assert_eq!((vector(0).len(), report["data"][0]["tokens"].as_u64()), (32, Some(5)));

    // One JSON list per line, from a file, from standard input.
    let folder = tempfile::tempdir().unwrap();
    let (lines, output) = (folder.path().join("lines"), folder.path().join("vectors.f32"));
    std::fs::write(&lines, "the cat sat\nhello\n").unwrap();
    let printed = embed(&["--file", lines.to_str().unwrap()]);
    let printed: Vec<Vec<f32>> =
        stdout(&printed).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(printed, [vector(0), vector(1)]);
    let mut child = indrik(&["embed", "-m", &tiny(), "-", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"the cat sat\nhello").unwrap();
    let read = json(&child.wait_with_output().unwrap());
    assert_eq!(read["data"], report["data"]);

    let written = embed(&["hello", "--dimensions", "8", "--output", output.to_str().unwrap()]);
    assert!(written.status.success() && stdout(&written).is_empty(), "{}", stderr(&written));
    assert!(stderr(&written).contains("1 text, 3 tokens, 8 dimensions"), "{}", stderr(&written));
    assert_eq!(std::fs::read(&output).unwrap().len(), 8 * 4);
}

#[test]
fn errors_say_what_to_do() {
    let fails = |arguments: &[&str], with: &[&str]| {
        let output = embed(arguments);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(with.iter().all(|part| text.contains(part)), "{text}");
    };
    fails(&[], &["no text", "--file"]);
    fails(&["--file", "no-such-file"], &["no-such-file"]);
    let generative =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures/gguf_q8_0/model.gguf");
    let output = indrik(&["embed", "-m", generative.to_str().unwrap(), "hello"]).output().unwrap();
    assert!(stderr(&output).contains("not an embedding model"), "{}", stderr(&output));
    for command in [["generate", "-p", "hello"], ["chat", "-p", "hello"]] {
        let output = indrik(&[&command[..], &["-m", &tiny()]].concat()).output().unwrap();
        let text = stderr(&output);
        assert!(output.status.code() == Some(1) && text.contains("indrik embed"), "{command:?}: {text}");
    }
    if !has_device() {
        return;
    }
    fails(&["hello", "--dimensions", "33"], &["33 dimensions", "1 to 32"]);
    fails(&["hello", "--dimensions", "0"], &["0 dimensions"]);
    fails(&["hello", "--prompt", "query"], &["no prompt 'query'"]);
    fails(&["hello", "the cat sat on", "-c", "5"], &["text 2 has 6 tokens", "--truncate"]);
    fails(&["hello", "-c", "101"], &["at most 100"]);
    let cut = json(&embed(&["the cat sat on", "-c", "5", "--truncate", "--json"]));
    assert_eq!(cut["data"][0]["truncated"], true);
}

#[test]
fn an_embedding_model_is_listed_inspected_and_imported() {
    let store = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output = indrik(arguments).env("INDRIK_MODELS_DIR", store.path()).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        output
    };
    let imported = stdout(&run(&["import", &tiny(), "--name", "tiny"]));
    assert!(imported.contains("Next: indrik embed -m tiny"), "{imported}");
    assert!(store.path().join("tiny/1_Pooling/config.json").is_file());
    let listed = json(&run(&["models", "--json"]));
    assert!(
        listed.to_string().contains("\"bert\"") && !listed.to_string().contains("\"problem\":\""),
        "{listed}"
    );
    let text = stdout(&run(&["inspect", "tiny"]));
    assert!(text.contains("embedding model") && text.contains("pooling: mean, 32 dimensions"), "{text}");
    assert_eq!(json(&run(&["inspect", "tiny", "--json"]))["kind"], "embedding");
}
