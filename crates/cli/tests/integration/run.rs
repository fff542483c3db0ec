//! `indrik run`, and `indrik chat` without a model, against a hub in this process.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use crate::common::{indrik, served::has_device, stderr, stdout};
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

    fn run(&self, arguments: &[&str]) -> Output {
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
            .stdin(std::process::Stdio::null());
        command.output().unwrap()
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
