//! `indrik pull` without a network: output and exit codes.

use std::{net::TcpListener, process::Command};

use crate::common::{indrik, json, stderr, stdout};

/// The command with its own store and unreachable sources.
fn pull(folder: &std::path::Path, arguments: &[&str]) -> Command {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = indrik(&["pull"]);
    command.args(arguments).env("INDRIK_MODELS_DIR", folder);
    for name in ["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"] {
        command.env_remove(name);
    }
    command
        .env("HF_ENDPOINT", format!("http://{port}"))
        .env("PIP_INDEX_URL", format!("http://{port}/simple"));
    command
}

#[test]
fn usage_errors_and_unknown_names_have_different_exit_codes() {
    let folder = tempfile::tempdir().unwrap();
    let output = pull(folder.path(), &["--help"]).output().unwrap();
    assert!(output.status.success() && stdout(&output).contains("Examples: indrik pull smollm2"));

    for invalid in [&[][..], &["--list", "gemma3"], &["a", "b"], &["--no-such"]] {
        assert_eq!(pull(folder.path(), invalid).output().unwrap().status.code(), Some(2), "{invalid:?}");
    }
    for unknown in ["gemma9:1t", "../../etc/passwd", ""] {
        let output = pull(folder.path(), &[unknown]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let text = stderr(&output);
        assert!(
            text.contains("known names: gemma3, gemma4, llama3.1") && text.contains("`indrik search`"),
            "{text}"
        );
    }
    for (typed, meant) in
        [("gema3:27b", "gemma3:27b"), ("lama3.1:8b", "llama3.1:8b"), ("smolm2", "smollm2:135m")]
    {
        let output = pull(folder.path(), &[typed]).output().unwrap();
        assert!(stderr(&output).contains(&format!("did you mean {meant}")), "{}", stderr(&output));
    }
    let output = pull(folder.path(), &["gemma3:27b", "--quant", "tiny"]).output().unwrap();
    assert!(stderr(&output).contains("--quant tiny: not a quantisation"), "{}", stderr(&output));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was written");
}

#[test]
fn the_list_shows_which_models_are_downloaded() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("smollm2@135m.gguf"), "x").unwrap();
    let output = pull(folder.path(), &["--list", "--json"]).output().unwrap();
    let list = json(&output);
    let entry =
        |name: &str| list.as_array().unwrap().iter().find(|entry| entry["name"] == name).unwrap().clone();
    assert_eq!(entry("gemma3:270m")["bytes"], 253_113_024);
    assert!(entry("gemma3:270m")["path"].is_null());
    assert_eq!(
        (&entry("gemma3:270m")["chat"], &entry("smollm2:135m")["chat"]),
        (&false.into(), &true.into())
    );
    assert!(entry("smollm2:135m")["path"].as_str().unwrap().ends_with("smollm2@135m.gguf"));
    let text = stdout(&pull(folder.path(), &["--list"]).output().unwrap());
    assert!(text.contains("| gemma3:270m ") && text.contains("Gemma Terms of Use"), "{text}");
}

#[test]
fn the_suggested_next_command_fits_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let list = json(&pull(folder.path(), &["--list", "--json"]).output().unwrap());
    for (name, stem, next) in [
        ("gemma3:270m", "gemma3@270m", "Next: indrik generate -m gemma3:270m -p"),
        ("smollm2:135m", "smollm2@135m", "Next: indrik chat -m smollm2:135m\n"),
        ("qwen2.5-coder:1.5b", "qwen2.5-coder@1.5b", "Next: indrik chat -m qwen2.5-coder:1.5b\n"),
    ] {
        // A sparse file of the right size with a matching record counts as downloaded.
        let entry = list.as_array().unwrap().iter().find(|entry| entry["name"] == name).unwrap();
        let file = std::fs::File::create(folder.path().join(format!("{stem}.gguf"))).unwrap();
        file.set_len(entry["bytes"].as_u64().unwrap()).unwrap();
        let mut record = entry.clone();
        record["source"] = "a test".into();
        record["date"] = "2026-01-02T03:04:05Z".into();
        std::fs::write(folder.path().join(format!("{stem}.json")), record.to_string()).unwrap();
        let output = pull(folder.path(), &[name]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let text = stdout(&output);
        assert!(text.contains("already downloaded on 2026-01-02") && text.contains(next), "{text}");
    }
}

#[test]
fn a_pull_shows_the_licence_first_and_every_source_that_failed() {
    let folder = tempfile::tempdir().unwrap();
    let output = pull(folder.path(), &["gemma3"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    let terms = text.find("https://ai.google.dev/gemma/terms").expect("the licence");
    let accept = text.find("By downloading you accept these terms").expect("the notice");
    let source = text.find("From http://127.0.0.1").expect("the first source");
    assert!(terms < accept && accept < source, "{text}");
    assert_eq!(text.matches("skipped: network error").count(), 2, "{text}");
    assert!(text.contains("gemma3:270m could not be pulled"), "{text}");
    assert_eq!(stdout(&output), "", "nothing is printed on standard output");
}
