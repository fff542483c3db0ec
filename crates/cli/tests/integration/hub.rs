//! `indrik pull`, `search`, `import`, `models` and `rm` against a hub in this process.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::common::{indrik, json, stderr, stdout};
use store::testing::{Access, FakeHub, FakeRepository, Fault};

fn fixture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures");
    fs::read(folder.join(name)).unwrap()
}

fn q8_0() -> Vec<u8> {
    fixture("gguf_q8_0/model.gguf")
}

fn q4_0() -> Vec<u8> {
    fixture("gguf_q4_0/model.gguf")
}

struct Rig {
    hub: FakeHub,
    folder: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        let hub = FakeHub::start();
        let files = [("Tiny-Q4_0.gguf", q4_0()), ("Tiny-Q8_0.gguf", q8_0()), ("README.md", b"tiny".to_vec())];
        let repository = FakeRepository::new(&files);
        hub.put("tiny/Tiny-GGUF", FakeRepository { licence: Some("apache-2.0".into()), ..repository });
        Self { hub, folder: tempfile::tempdir().unwrap() }
    }

    fn models(&self) -> PathBuf {
        self.folder.path().join("models")
    }

    /// The environment of a user of this hub.
    fn environment(&self, command: &mut Command) {
        for name in [
            "ALL_PROXY",
            "all_proxy",
            "HTTPS_PROXY",
            "https_proxy",
            "HTTP_PROXY",
            "http_proxy",
            "HF_TOKEN",
            "HF_HOME",
            "HF_HUB_CACHE",
            "HUGGINGFACE_HUB_CACHE",
            "HF_TOKEN_PATH",
            "HUGGING_FACE_HUB_TOKEN",
            "XDG_CACHE_HOME",
        ] {
            command.env_remove(name);
        }
        command
            .env("HOME", self.folder.path())
            .env("INDRIK_MODELS_DIR", self.models())
            .env("HF_ENDPOINT", &self.hub.server.url)
            .env("PIP_INDEX_URL", format!("{}/simple", self.hub.server.url));
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = indrik(arguments);
        self.environment(&mut command);
        command.output().unwrap()
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> Output {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        output
    }

    /// The message of a command that fails, in one line, before a byte of weights is downloaded.
    #[track_caller]
    fn refused(&self, arguments: &[&str]) -> String {
        self.hub.storage.all_requests();
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", stdout(&output));
        let text = stderr(&output);
        let message = text.lines().find(|line| line.starts_with("indrik: ")).expect("a message");
        let downloaded: u64 =
            self.hub.storage.all_requests().iter().map(|request| range_len(&request.headers["range"])).sum();
        assert!(downloaded <= 64 << 10, "{downloaded} bytes were downloaded");
        assert!(!self.models().exists() || fs::read_dir(self.models()).unwrap().count() == 0);
        message.to_string()
    }
}

fn range_len(range: &str) -> u64 {
    let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
    last.parse::<u64>().unwrap() - first.parse::<u64>().unwrap() + 1
}

#[test]
fn a_repository_is_pulled_with_an_explained_choice() {
    let rig = Rig::new();
    let planned = json(&rig.ok(&["pull", "hf.co/tiny/Tiny-GGUF", "--dry-run", "--json"]));
    assert_eq!((&planned["name"], &planned["quant"]), (&"tiny".into(), &"Q8_0".into()));
    assert_eq!(planned["choice"]["chosen"], "Q8_0");
    let candidates = planned["choice"]["candidates"].as_array().unwrap();
    assert_eq!(candidates.len(), 2);
    assert!(candidates[0]["exact"].as_bool().unwrap() && candidates[0]["kv_bytes"].as_u64().unwrap() > 0);
    assert!(!rig.models().exists(), "a dry run writes nothing");

    let output = rig.ok(&["pull", "hf.co/tiny/Tiny-GGUF"]);
    let (explained, result) = (stderr(&output), stdout(&output));
    assert!(explained.contains("| Q8_0 ") && explained.contains("chosen: fits"), "{explained}");
    assert!(explained.contains("Licence: apache-2.0"), "{explained}");
    assert!(
        result.contains("checksum verified") && result.contains("Next: indrik chat -m tiny\n"),
        "{result}"
    );
    assert_eq!(fs::read(rig.models().join("tiny.gguf")).unwrap(), q8_0());

    // A second pull asks nobody.
    rig.hub.server.all_requests();
    let again = json(&rig.ok(&["pull", "hf.co/tiny/Tiny-GGUF", "--json"]));
    assert_eq!(again["already_present"], true);
    assert!(rig.hub.server.all_requests().is_empty());
    let verified = stdout(&rig.ok(&["pull", "hf.co/tiny/Tiny-GGUF", "--verify"]));
    assert!(verified.contains("already downloaded, checksum verified"), "{verified}");

    // Another quantisation is another model.
    let other = json(&rig.ok(&["pull", "hf.co/tiny/Tiny-GGUF:q4_0", "--json"]));
    assert_eq!((&other["name"], &other["quant"]), (&"tiny-q4_0".into(), &"Q4_0".into()));
    let listed = json(&rig.ok(&["models", "--json"]));
    let names: Vec<&str> =
        listed["models"].as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["tiny", "tiny-q4_0"]);
    for model in listed["models"].as_array().unwrap() {
        assert!(model["problem"].is_null(), "{model}");
    }
    let inspected = json(&rig.ok(&["inspect", "hf.co/tiny/Tiny-GGUF:Q4_0", "--json"]));
    assert!(inspected["path"].as_str().unwrap().ends_with("tiny-q4_0.gguf"));
    rig.ok(&["rm", "tiny", "--yes"]);
    assert!(!rig.models().join("tiny.gguf").exists() && !rig.models().join("tiny.json").exists());
}

#[test]
fn names_files_revisions_and_updates() {
    let rig = Rig::new();
    let url = format!("{}/tiny/Tiny-GGUF/blob/main/Tiny-Q4_0.gguf", rig.hub.server.url);
    let pulled = json(&rig.ok(&["pull", &url, "--name", "my:tiny", "--json"]));
    assert_eq!((&pulled["name"], &pulled["quant"]), (&"my:tiny".into(), &"Q4_0".into()));
    assert_eq!(fs::read(rig.models().join("my@tiny.gguf")).unwrap(), q4_0());
    let text = stderr(&rig.run(&["pull", "hf.co/tiny/Tiny-GGUF", "--revision", "v9"]));
    assert!(text.contains("has no branch, tag or commit 'v9'"), "{text}");
    for (arguments, part) in [
        (&["pull", url.as_str(), "--quant", "Q8_0"][..], "--quant: this is the address of one file"),
        (&["pull", "https://example.org/m.gguf", "--revision", "x"], "apply to repositories"),
        (&["pull", "hf.co/tiny/Tiny-GGUF", "--mmproj"], "has no image encoder"),
        (&["pull", rig.folder.path().to_str().unwrap()], "`indrik import "),
    ] {
        let text = stderr(&rig.run(arguments));
        assert!(text.contains(part), "{arguments:?}: {text}");
    }
    let text = stderr(&rig.run(&["pull", "hf.co/tiny/Tiny-GGUF", "--name", "my:tiny"]));
    assert!(text.contains("already has another model named 'my:tiny'"), "{text}");

    rig.ok(&["pull", "hf.co/tiny/Tiny-GGUF", "--quant", "Q8_0"]);
    let newer = FakeRepository::new(&[("Tiny-Q8_0.gguf", q4_0())]);
    rig.hub.put("tiny/Tiny-GGUF", FakeRepository { commit: "ab".repeat(20), ..newer });
    let kept = json(&rig.ok(&["pull", "hf.co/tiny/Tiny-GGUF:Q8_0", "--json"]));
    assert_eq!(kept["already_present"], true);
    let updated = json(&rig.ok(&["pull", "hf.co/tiny/Tiny-GGUF:Q8_0", "--update", "--json"]));
    assert_eq!((&updated["already_present"], &updated["commit"]), (&false.into(), &"ab".repeat(20).into()));
}

#[test]
fn models_that_cannot_run_are_refused_before_the_download() {
    let rig = Rig::new();
    let put = |name: &str, files: &[(&str, Vec<u8>)]| rig.hub.put(name, FakeRepository::new(files));
    // The first mention of the family is the value of general.architecture.
    let mut unsupported = q8_0();
    let at = unsupported.windows(6).position(|bytes| bytes == b"gemma3").unwrap();
    unsupported[at..at + 6].copy_from_slice(b"mamba2");
    put("a/mamba", &[("m-Q8_0.gguf", unsupported)]);
    put("a/empty", &[("README.md", b"nothing".to_vec())]);
    put("a/pickle", &[("config.json", b"{}".to_vec()), ("pytorch_model.bin", vec![0; 10])]);
    put("a/tiny-quants", &[("m-IQ2_XS.gguf", vec![0; 10]), ("m-Q3_K_M.gguf", vec![0; 10])]);
    put("a/parts", &[("m-Q8_0-00001-of-00003.gguf", vec![0; 10])]);
    put("a/truncated", &[("m-Q8_0.gguf", q8_0()[..3000].to_vec())]);
    put("a/not-gguf", &[("m-Q8_0.gguf", b"<html>".repeat(100))]);
    let gated = FakeRepository::new(&[("m-Q8_0.gguf", q8_0())]);
    rig.hub.put("a/gated", FakeRepository { access: Access::Gated, ..gated });
    for (repository, part) in [
        ("a/mamba", "the architecture 'mamba2' is not supported"),
        ("a/empty", "has neither GGUF files nor config.json"),
        ("a/pickle", "has neither GGUF files nor config.json"),
        ("a/tiny-quants", "its quantisations are not supported (IQ2_XS, Q3_K_M)"),
        ("a/parts", "parts of m-Q8_0-00001-of-00003.gguf are missing"),
        ("a/truncated", "truncated or damaged"),
        ("a/not-gguf", "not a GGUF file"),
        ("a/gated", "click \"Agree and access repository\""),
        ("a/none", "there is no such repository"),
        ("tiny/Tiny-GGUF:Q6_K", "has no Q6_K file; it has Q4_0, Q8_0"),
    ] {
        let message = rig.refused(&["pull", &format!("hf.co/{repository}")]);
        assert!(message.contains(part), "{repository}: {message}");
    }
    rig.hub.api_fault(Fault::WebPage);
    let message = rig.refused(&["pull", "hf.co/tiny/Tiny-GGUF"]);
    assert!(message.contains("web page instead of JSON"), "{message}");
}

#[test]
fn a_catalogue_model_comes_from_the_first_repository_that_has_it() {
    let rig = Rig::new();
    rig.hub.put("ggml-org/gemma-3-1b-it-GGUF", FakeRepository::new(&[("gemma-3-1b-it-Q8_0.gguf", q8_0())]));
    let output = rig.ok(&["pull", "gemma3:1b", "--json"]);
    let pulled = json(&output);
    assert_eq!((&pulled["name"], &pulled["licence"]), (&"gemma3:1b".into(), &"Gemma Terms of Use".into()));
    assert_eq!(pulled["title"], "Gemma 3 1B Instruct");
    assert!(stderr(&output).contains("skipped: "), "the other repository is missing: {}", stderr(&output));
    assert!(pulled["source"].as_str().unwrap().contains("ggml-org/gemma-3-1b-it-GGUF"));
    // Found under every spelling.
    for name in ["gemma3:1b", "gemma3:1b-it", "Gemma3:1B"] {
        let inspected = json(&rig.ok(&["inspect", name, "--json"]));
        assert!(inspected["path"].as_str().unwrap().ends_with("gemma3@1b.gguf"), "{name}");
    }
    let text = stderr(&rig.run(&["inspect", "gemma3:4b"]));
    assert!(text.contains("`indrik pull gemma3:4b`"), "{text}");
    let list = json(&rig.ok(&["search", "gemma3:1b", "--json"]));
    let entry = list.as_array().unwrap().iter().find(|entry| entry["name"] == "gemma3:1b").unwrap();
    assert!(entry["path"].as_str().unwrap().ends_with("gemma3@1b.gguf"));
    assert!(entry["memory_4_bit"].as_u64() < entry["memory_8_bit"].as_u64());
}

#[test]
fn an_interrupted_pull_says_how_to_resume() {
    let rig = Rig::new();
    let part = rig.models().join("mine.part");
    fs::create_dir_all(&part).unwrap();
    let commit = "c0ffee00".repeat(5);
    let pin =
        format!(r#"{{"request":"hf.co/tiny/Tiny-GGUF","repository":"tiny/Tiny-GGUF","commit":"{commit}"}}"#);
    fs::write(part.join("pull.json"), pin).unwrap();
    let text = stdout(&rig.ok(&["models"]));
    assert!(text.contains("`indrik pull hf.co/tiny/Tiny-GGUF --name mine` resumes"), "{text}");
    rig.ok(&["pull", "hf.co/tiny/Tiny-GGUF", "--name", "mine"]);
    let asked = rig.hub.server.all_requests();
    assert!(asked[0].path.ends_with(&format!("/revision/{commit}")), "the same commit: {}", asked[0].path);
    assert_eq!(fs::read(rig.models().join("mine.gguf")).unwrap(), q8_0());
}

/// Bytes that a killed pull has received.
const RECEIVED: usize = 50_000;

/// Starts a pull of the repository and kills it in the middle of the download.
fn kill_pull(rig: &Rig) {
    // The responses for the header are short; the next is the download, which hangs.
    rig.ok(&["pull", "hf.co/tiny/Tiny-GGUF", "--dry-run"]);
    let headers = rig.hub.storage.all_requests().len();
    for _ in 0..headers {
        rig.hub.storage_fault(Fault::Cut(usize::MAX));
    }
    rig.hub.storage_fault(Fault::Stall(RECEIVED));
    let mut command = indrik(&["pull", "hf.co/tiny/Tiny-GGUF"]);
    rig.environment(&mut command);
    let mut pull =
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
    let part = rig.models().join("tiny.part");
    let received = || {
        let files = fs::read_dir(&part).into_iter().flatten().flatten();
        let parts = files.filter(|file| file.path().extension().is_some_and(|extension| extension == "part"));
        parts.map(|file| file.metadata().map_or(0, |found| found.len())).sum::<u64>()
    };
    while received() < RECEIVED as u64 {
        assert!(pull.try_wait().unwrap().is_none(), "the pull ended by itself");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    pull.kill().unwrap();
    pull.wait().unwrap();
    rig.hub.storage.all_requests();
}

#[test]
fn a_killed_pull_resumes_where_it_was() {
    let rig = Rig::new();
    kill_pull(&rig);
    let output = rig.ok(&["pull", "hf.co/tiny/Tiny-GGUF"]);
    assert!(stderr(&output).contains("resuming at "), "{}", stderr(&output));
    assert_eq!(fs::read(rig.models().join("tiny.gguf")).unwrap(), q8_0());
    let ranges: Vec<String> =
        rig.hub.storage.all_requests().iter().map(|request| request.headers["range"].clone()).collect();
    assert!(ranges.contains(&format!("bytes={RECEIVED}-")), "{ranges:?}");
}

#[test]
fn a_resumed_pull_keeps_its_quantisation_even_if_a_better_one_fits_by_now() {
    let rig = Rig::new();
    rig.hub.put("tiny/Tiny-GGUF", FakeRepository::new(&[("Tiny-Q4_0.gguf", q4_0())]));
    kill_pull(&rig);
    let both = FakeRepository::new(&[("Tiny-Q4_0.gguf", q4_0()), ("Tiny-Q8_0.gguf", q8_0())]);
    rig.hub.put("tiny/Tiny-GGUF", both);
    let output = rig.ok(&["pull", "hf.co/tiny/Tiny-GGUF"]);
    assert!(stderr(&output).contains("Continuing the interrupted pull of Q4_0"), "{}", stderr(&output));
    assert_eq!(fs::read(rig.models().join("tiny.gguf")).unwrap(), q4_0());
}

#[test]
fn search_lists_the_catalogue_with_sizes_licences_and_uses() {
    let rig = Rig::new();
    let all = json(&rig.ok(&["search", "--json"]));
    assert!(all.as_array().unwrap().len() >= 30);
    for entry in all.as_array().unwrap() {
        assert!(entry["bytes"].as_u64().unwrap() > 0 && entry["use"].as_str().unwrap().len() > 5, "{entry}");
        assert!(entry["licence_url"].as_str().unwrap().starts_with("https://"), "{entry}");
    }
    let text = stdout(&rig.ok(&["search", "coder"]));
    assert!(text.contains("| qwen2.5-coder:7b") && !text.contains("gemma3"), "{text}");
    assert!(text.contains("Fits: in the usable memory of "), "{text}");
    let none = stdout(&rig.ok(&["search", "zzz"]));
    assert!(none.contains("No model matches 'zzz'") && none.contains("hf.co/OWNER/REPO"), "{none}");
}

#[test]
fn local_files_and_folders_are_imported_if_they_are_models() {
    let rig = Rig::new();
    let file = rig.folder.path().join("Mine-Q8_0.gguf");
    fs::write(&file, q8_0()).unwrap();
    let imported = json(&rig.ok(&["import", file.to_str().unwrap(), "--json"]));
    assert_eq!((&imported["name"], &imported["family"]), (&"mine-q8_0".into(), &"gemma3".into()));
    assert_ne!(imported["placed"], "copy");
    let inspected = json(&rig.ok(&["inspect", "mine-q8_0", "--json"]));
    assert!(inspected["path"].as_str().unwrap().ends_with("mine-q8_0.gguf"));
    let text = stderr(&rig.run(&["import", file.to_str().unwrap()]));
    assert!(text.contains("already has another model named 'mine-q8_0'"), "{text}");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures/head256");
    let text = stdout(&rig.ok(&["import", folder.to_str().unwrap(), "--name", "tiny-folder"]));
    assert!(text.contains("tiny-folder: ") && text.contains("imported ("), "{text}");
    rig.ok(&["inspect", "tiny-folder"]);
    fs::write(rig.folder.path().join("bad.gguf"), "GGUF but no more").unwrap();
    let bad = rig.folder.path().join("bad.gguf");
    assert_eq!(rig.run(&["import", bad.to_str().unwrap()]).status.code(), Some(1));
    assert!(!rig.models().join("bad.gguf").exists());
}
