//! `indrik run`, `indrik chat` without a model, and pulls by clients of a server, against a hub in this process.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

use crate::common::{
    indrik,
    served::{Served, has_device},
    stderr, stdout,
};
use serde_json::{Value, json};
use store::testing::{FakeHub, FakeRepository};

/// A hub with one tiny model, and an empty store.
struct Rig {
    hub: FakeHub,
    folder: tempfile::TempDir,
}

const MODEL: &str = "hf.co/tiny/Llama-GGUF";

impl Rig {
    fn new() -> Self {
        let hub = FakeHub::start();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures");
        let file = fs::read(fixtures.join("llama_gguf_q8_0/model.gguf")).unwrap();
        hub.put("tiny/Llama-GGUF", FakeRepository::new(&[("Llama-Q8_0.gguf", file)]));
        Self { hub, folder: tempfile::tempdir().unwrap() }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command: Command = indrik(arguments);
        for name in
            ["ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy", "HF_TOKEN", "HF_HOME", "HF_HUB_CACHE"]
        {
            command.env_remove(name);
        }
        command
            .env("HOME", self.folder.path())
            .env("INDRIK_MODELS_DIR", self.folder.path().join("models"))
            .env("HF_ENDPOINT", &self.hub.server.url)
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }
}

/// One short reply, the same in every run.
const CHAT: [&str; 6] = ["-p", "hello", "-n", "3", "-t", "0"];

#[test]
fn a_model_is_pulled_once_and_then_chats() {
    if !has_device() {
        return;
    }
    let rig = Rig::new();
    let first = rig.run(&[&["run", MODEL], &CHAT[..]].concat());
    assert!(first.status.success(), "{}", stderr(&first));
    assert!(stderr(&first).contains("pulled in"), "{}", stderr(&first));
    let reply = stdout(&first);
    assert!(!reply.trim().is_empty());
    // From the store, without the hub.
    let name = fs::read_dir(rig.folder.path().join("models"))
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.strip_suffix(".gguf").map(str::to_string))
        .next()
        .expect("a model in the store");
    rig.hub.server.all_requests();
    for arguments in [&["run", MODEL][..], &["run", &name], &["chat"]] {
        let again = rig.run(&[arguments, &CHAT[..]].concat());
        assert!(again.status.success(), "{arguments:?}: {}", stderr(&again));
        assert_eq!(stdout(&again), reply, "{arguments:?}");
    }
    assert_eq!(rig.hub.server.all_requests().len(), 0, "the hub was asked again");
}

#[test]
fn without_a_model_the_store_is_offered() {
    let rig = Rig::new();
    let models = rig.folder.path().join("models");
    let empty = rig.run(&["chat"]);
    assert_eq!(empty.status.code(), Some(1));
    assert!(stderr(&empty).contains("indrik run smollm2"), "{}", stderr(&empty));
    fs::create_dir_all(&models).unwrap();
    fs::write(models.join("one.gguf"), "").unwrap();
    fs::write(models.join("two.gguf"), "").unwrap();
    let several = rig.run(&["chat"]);
    assert_eq!(several.status.code(), Some(1));
    assert!(stderr(&several).contains("-m; in the store: one, two"), "{}", stderr(&several));
}

#[test]
fn unknown_models_are_refused() {
    let rig = Rig::new();
    for (model, expected) in [("smolm2", "smollm2"), ("hf.co/tiny/Nothing", "no such repository")] {
        let output = rig.run(&["run", model]);
        assert_eq!(output.status.code(), Some(1), "{model}");
        assert!(stderr(&output).contains(expected), "{model}: {}", stderr(&output));
    }
}

#[test]
fn clients_pull_use_and_delete_models() {
    if !has_device() {
        return;
    }
    let rig = Rig::new();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures");
    let file = fs::read(fixtures.join("gguf_q8_0/model.gguf")).unwrap();
    rig.hub.put("tiny/Gemma-GGUF", FakeRepository::new(&[("Gemma-Q8_0.gguf", file.clone())]));
    assert!(rig.run(&["pull", MODEL]).status.success());
    let mut command = rig.command(&["serve", "--port", "0", "--json", "--context", "128"]);
    command.env("INDRIK_QUEUE_TIMEOUT", "1h").env("INDRIK_LOAD_TIMEOUT", "1h");
    let server = Served::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let names = || {
        let tags: Value = serde_json::from_str(&server.request("GET", "/api/tags", "").1).unwrap();
        let models = tags["models"].as_array().unwrap().clone();
        models.iter().map(|model| model["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(), ["llama"]);

    let pull = |body: Value| {
        let (status, text) = server.request("POST", "/api/pull", &body.to_string());
        // Lines in chunks: sizes are on lines of their own.
        let lines = text.lines().filter(|line| line.starts_with('{'));
        (status, lines.map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>())
    };
    let (status, lines) = pull(json!({ "model": "hf.co/tiny/Gemma-GGUF" }));
    assert_eq!((status, &lines.last().unwrap()["status"]), (200, &json!("success")), "{lines:?}");
    let bytes: Vec<u64> = lines.iter().filter_map(|line| line["completed"].as_u64()).collect();
    assert!(bytes.is_sorted() && bytes.last() == Some(&(file.len() as u64)), "{lines:?}");
    assert!(lines.iter().any(|line| line["status"] == "verifying sha256 digest"), "{lines:?}");
    assert_eq!(names(), ["gemma", "llama"]);
    assert_eq!(fs::read(rig.folder.path().join("models/gemma.gguf")).unwrap(), file);
    // It is served without a restart.
    let body = json!({ "model": "gemma", "prompt": "the", "stream": false, "options": { "num_predict": 2 } });
    let (status, text) = server.request("POST", "/api/generate", &body.to_string());
    assert_eq!(status, 200, "{text}");

    // An error after the head of a stream is its last line.
    for (name, expected) in [
        ("hf.co/tiny/Nothing", "no such repository"),
        ("https://example.com/model.gguf", "cannot be pulled through the API"),
    ] {
        let (_, lines) = pull(json!({ "model": name }));
        assert!(lines.last().unwrap()["error"].as_str().unwrap().contains(expected), "{lines:?}");
        let (status, lines) = pull(json!({ "model": name, "stream": false }));
        assert!(status >= 400, "{lines:?}");
        assert!(lines[0]["error"].as_str().unwrap().contains(expected), "{lines:?}");
    }
    let delete = || server.request("DELETE", "/api/delete", &json!({ "model": "gemma" }).to_string()).0;
    assert_eq!((delete(), names()), (200, vec!["llama".to_owned()]));
    assert_eq!(delete(), 404);
    assert!(!rig.folder.path().join("models/gemma.gguf").exists());
}
