//! `generate`, `chat`, `eval` and `bench` with a tiny model, and invalid prompts.

use std::{
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::common::{indrik, json, stderr, stdout};
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures").join(name)
}

/// A GGUF with a tokenizer.
fn tiny() -> String {
    fixture("gguf_q8_0/model.gguf").display().to_string()
}

fn reference() -> Value {
    let text = std::fs::read_to_string(fixture("gguf_q8_0/reference.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn ids(reference: &Value) -> String {
    let ids: Vec<String> = reference["ids"].as_array().unwrap().iter().map(Value::to_string).collect();
    ids.join(",")
}

fn has_device() -> bool {
    let found = indrik(&["devices"]).output().unwrap().status.success();
    if !found {
        testkit::missing("a Vulkan device");
    }
    found
}

#[test]
fn generate_matches_the_reference() {
    if !has_device() {
        return;
    }
    let reference = reference();
    let text = reference["text"].as_str().unwrap();
    // Rows of rejected drafts are read back, too.
    let arguments = ["generate", "-m", &tiny(), "-p", text, "-n", "12", "--speculate", "off", "--json"];
    let output = indrik(&arguments).output().unwrap();
    let printed = json(&output);
    assert_eq!(printed["prompt_ids"], reference["ids"], "{}", stderr(&output));
    assert_eq!(printed["tokens"], reference["greedy"]);
    assert_eq!(printed["text"], reference["greedy_text"]);
    assert_eq!(printed["finish"], "length");
    let speed = &printed["speed"];
    assert_eq!((&speed["prompt_tokens"], &speed["decode_tokens"]), (&34.into(), &11.into()));
    let speeds = ["prompt_tokens_per_s", "decode_tokens_per_s", "bytes_per_token", "roofline_percent"];
    for key in speeds.into_iter().chain(["setup_seconds", "pipelines_seconds", "recording_seconds"]) {
        assert!(speed[key].as_f64().unwrap() > 0.0, "{key}: {speed}");
    }
    assert_eq!(speed["read_back_bytes_per_token"], 16.0);

    // The same from ids, without JSON; and from standard input, with a stop string that spans tokens.
    let greedy = reference["greedy_text"].as_str().unwrap();
    let output =
        indrik(&["generate", "-m", &tiny(), "--ids", &ids(&reference), "-n", "12"]).output().unwrap();
    assert_eq!(stdout(&output).trim_end_matches('\n'), greedy);
    assert!(stderr(&output).contains("tok/s"), "{}", stderr(&output));
    let mut child = indrik(&["generate", "-m", &tiny(), "-n", "12", "--stop", "r c", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(format!("{text}\n").as_bytes()).unwrap();
    let printed = json(&child.wait_with_output().unwrap());
    assert_eq!(printed["prompt_ids"], reference["ids"], "the trailing newline is not part of the prompt");
    assert_eq!(printed["text"].as_str().unwrap(), greedy.split("r c").next().unwrap());
    assert_eq!(printed["finish"], "stop");
}

#[test]
fn drafts_do_not_change_the_output() {
    if !has_device() {
        return;
    }
    let text = "one two three four one two three four one two three";
    for sampling in [&["--temperature", "0"][..], &["--temperature", "1", "--seed", "3"]] {
        let generated = |when: &str| {
            let arguments =
                ["generate", "-m", &tiny(), "-p", text, "-n", "90", "--speculate", when, "--json"];
            let printed = json(&indrik(&[&arguments[..], sampling].concat()).output().unwrap());
            let speed = &printed["speed"];
            let [drafted, accepted] =
                ["drafted_tokens", "accepted_tokens"].map(|key| speed[key].as_u64().unwrap());
            assert!(accepted <= drafted && (when != "off" || drafted == 0), "{speed}");
            assert!(speed["tokens_per_step"].as_f64().unwrap() >= 1.0, "{speed}");
            printed["tokens"].clone()
        };
        assert_eq!(generated("auto"), generated("off"));
    }
    let output = indrik(&["generate", "-m", &tiny(), "-p", text, "--speculate", "often"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn a_draft_model_does_not_change_the_output() {
    if !has_device() {
        return;
    }
    let generated = |more: &[&str]| {
        let arguments = [
            "generate",
            "-m",
            &tiny(),
            "-p",
            "one two",
            "-n",
            "60",
            "--temperature",
            "1",
            "--seed",
            "3",
            "--json",
        ];
        json(&indrik(&[&arguments[..], more].concat()).output().unwrap())["tokens"].clone()
    };
    // Another file of the same vocabulary, and the model itself.
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures");
    let fixture = |name: &str| fixtures.join(name).join("model.gguf").display().to_string();
    let expected = generated(&["--speculate", "off"]);
    for draft in [tiny(), fixture("gguf_q4_0")] {
        assert_eq!(generated(&["--draft", &draft]), expected);
    }
    let refused = |draft: &str| {
        let output = indrik(&["generate", "-m", &tiny(), "-p", "one", "--draft", draft]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        stderr(&output)
    };
    let message = refused(&fixture("qwen3_gguf_q8_0"));
    assert!(message.contains("the draft model") && message.contains("vocabulary"), "{message}");
    assert!(refused("no-such-model").contains("no-such-model"));
}

#[test]
fn verify_steps_and_the_gain_of_a_text_are_measured() {
    if !has_device() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("text");
    std::fs::write(&file, "one two three four ".repeat(40)).unwrap();
    let file = file.display().to_string();
    let bench = |more: &[&str]| {
        let arguments = ["bench", "-m", &tiny(), "-r", "1", "--speculate"];
        indrik(&[&arguments[..], more].concat()).output().unwrap()
    };
    let printed = json(&bench(&[&file, "--json"]));
    let rows: Vec<u64> = printed["verify_steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line["rows"].as_u64().unwrap())
        .collect();
    assert_eq!(rows, (1..=model::MAX_VERIFY_ROWS as u64).collect::<Vec<_>>());
    assert_eq!(printed["verify_steps"][0]["relative"], 1.0);
    let text = &printed["text"];
    assert!(text["tokens"].as_u64().unwrap() > 100 && text["gain"].as_f64().unwrap() > 0.0, "{text}");
    assert!(stdout(&bench(&[])).contains("ms per step"));
    // It drafts for itself.
    let draft = &json(&bench(&[&file, "--draft", &tiny(), "--json"]))["draft"];
    assert_eq!(draft["acceptance"].as_array().unwrap().len(), model::MAX_VERIFY_ROWS - 1, "{draft}");
    assert!(draft["acceptance"].as_array().unwrap().iter().all(|rate| rate.as_f64() > Some(0.9)), "{draft}");
    assert!(draft["gain"].as_f64().unwrap() >= 1.0 && draft["step_ms"].as_f64().unwrap() > 0.0, "{draft}");
    let without_text = bench(&["--draft", &tiny()]);
    assert!(stderr(&without_text).contains("--speculate FILE"), "{}", stderr(&without_text));
    std::fs::write(dir.path().join("text"), "a").unwrap();
    let output = bench(&[&file]);
    assert!(!output.status.success() && stderr(&output).contains("tokens"), "{}", stderr(&output));
}

#[test]
fn a_quantised_file_includes_its_tokenizer() {
    if !has_device() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("tiny.safetensors").display().to_string();
    let output = indrik(&["quantize", &tiny(), &out, "--quant", "int8"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let reference = reference();
    let text = reference["text"].as_str().unwrap();
    let printed =
        json(&indrik(&["generate", "-m", &out, "-p", text, "-n", "12", "--json"]).output().unwrap());
    // The file was int8 in groups of 32 already: quantising it again changes nothing.
    assert_eq!((&printed["prompt_ids"], &printed["tokens"]), (&reference["ids"], &reference["greedy"]));
}

#[test]
fn bench_reports_speed_load_and_profiles() {
    if !has_device() {
        return;
    }
    let arguments = [
        "bench",
        "-m",
        &tiny(),
        "-p",
        "20",
        "-n",
        "6,2",
        "-b",
        "1,3",
        "-d",
        "0,100",
        "-r",
        "3",
        "--profile",
        "--json",
    ];
    let output = indrik(&arguments).output().unwrap();
    let printed = json(&output);
    let runs = printed["runs"].as_array().unwrap();
    assert_eq!((&runs[0]["kind"], &runs[0]["prompt"]), (&"prefill".into(), &20.into()));
    let number = |run: &Value, key: &str| run[key].as_u64().unwrap();
    let decodes: Vec<_> =
        runs[1..].iter().map(|run| ["depth", "batch", "tokens"].map(|key| number(run, key))).collect();
    let expected: Vec<[u64; 3]> =
        [0, 100].into_iter().flat_map(|d| [1, 3].map(|b| [6, 2].map(|n| [d, b, n]))).flatten().collect();
    assert_eq!(decodes, expected, "{printed}");
    assert!(runs[1..].iter().all(|run| run["kind"] == "decode"));
    for run in runs {
        for key in [
            "tokens_per_s",
            "ms_per_token",
            "bytes_per_token",
            "host_cpu_percent",
            "read_back_bytes_per_token",
        ] {
            assert!(run[key].as_f64().unwrap() > 0.0, "{key}: {run}");
        }
        let percent = run["roofline_percent"].as_f64();
        assert!(
            run["kind"] == "prefill" || percent.is_some_and(|percent| percent > 0.0 && percent < 100.0),
            "{run}"
        );
        let spread = |index: usize| run["spread_tokens_per_s"][index].as_f64().unwrap();
        let median = run["tokens_per_s"].as_f64().unwrap();
        assert!(spread(0) <= median && median <= spread(1), "{run}");
    }
    assert_eq!(runs[0]["read_back_bytes_per_token"], 16.0 / 20.0);
    for run in &runs[1..] {
        assert_eq!(run["read_back_bytes_per_token"], 16.0, "a token id and its logprob: {run}");
    }
    let load = &printed["load"];
    assert!(load["seconds"].as_f64().unwrap() > 0.0 && load["gb_per_s"].as_f64().unwrap() > 0.0, "{load}");
    assert!(load["peak_extra_rss_bytes"].is_u64());
    assert_eq!(
        printed["profiles"].as_array().unwrap().len(),
        5,
        "one prefill step, and one decode step per batch size and depth"
    );
    for part in ["kernels", "levels"] {
        let lines = printed["profiles"][4][part].as_array().unwrap();
        let percent: f64 = lines.iter().map(|line| line["percent"].as_f64().unwrap()).sum();
        assert!((percent - 100.0).abs() < 0.1, "{part} are {percent}% of a step");
        let named = |name: &str| {
            let has = |line: &&Value| line["name"].as_str().unwrap().split(" + ").any(|part| part == name);
            lines.iter().find(has).unwrap_or_else(|| panic!("no {name}: {lines:?}"))
        };
        for name in ["attention", "head", "down"] {
            assert!(named(name)["bytes"].as_u64().unwrap() > 0, "{part}: {name}");
            assert!(named(name)["roofline_percent"].as_f64().unwrap() > 0.0, "{part}: {name}");
        }
    }
}

#[test]
fn int8_kv_cache_is_smaller_and_generates_the_same_text() {
    if !has_device() {
        return;
    }
    let reference = reference();
    let arguments =
        ["generate", "-m", &tiny(), "--ids", &ids(&reference), "-n", "12", "--kv", "int8", "--json"];
    assert_eq!(json(&indrik(&arguments).output().unwrap())["tokens"], reference["greedy"]);
    let bytes = |kv: &str| {
        let arguments =
            ["bench", "-m", &tiny(), "-p", "0", "-n", "2", "-d", "100", "-r", "1", "--kv", kv, "--json"];
        let printed = json(&indrik(&arguments).output().unwrap());
        assert_eq!(printed["kv"], kv);
        printed["runs"][0]["bytes_per_token"].as_u64().unwrap()
    };
    assert!(bytes("int8") < bytes("f16"));
}

#[test]
fn a_closed_standard_error_is_not_an_error() {
    if !has_device() {
        return;
    }
    // As in `2>&1 | true`.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = indrik(&["generate", "-m", &tiny(), "-p", "the cat", "-n", "4"]);
    let output = command.stdout(Stdio::piped()).stderr(writer).spawn().unwrap().wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout(&output).trim().len() > 1);
}

#[test]
fn the_same_seed_gives_the_same_tokens() {
    if !has_device() {
        return;
    }
    let run = |seed: &str| {
        let arguments =
            ["generate", "-m", &tiny(), "-p", "the cat", "-n", "16", "-t", "1", "--seed", seed, "--json"];
        json(&indrik(&arguments).output().unwrap())["tokens"].clone()
    };
    assert_eq!(run("11"), run("11"));
    assert_ne!(run("11"), run("12"));
}

#[test]
fn tokens_are_the_same_without_conditional_rendering() {
    if !has_device() {
        return;
    }
    let reference = reference();
    let arguments = ["generate", "-m", &tiny(), "--ids", &ids(&reference), "-n", "12", "--json"];
    let output = indrik(&arguments).env("INDRIK_FAULT", "no-feature=conditionalRendering").output().unwrap();
    assert_eq!(json(&output)["tokens"], reference["greedy"], "{}", stderr(&output));
}

#[test]
fn perplexity_agrees_with_logits() {
    if !has_device() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let text = "the cat and user were on stone singing the cat and user were on stone singing the cat\n";
    let file = dir.path().join("text");
    std::fs::write(&file, text).unwrap();
    let arguments =
        ["eval", "perplexity", "-m", &tiny(), "--text", file.to_str().unwrap(), "-c", "16", "--json"];
    let printed = json(&indrik(&arguments).output().unwrap());
    assert!(printed["chunks"].as_u64().unwrap() >= 2, "{printed}");
    assert_eq!(printed["tokens_counted"].as_u64(), printed["chunks"].as_u64().map(|chunks| chunks * 7));

    // The first chunk, computed from its logits.
    let generated =
        indrik(&["generate", "-m", &tiny(), "-p", text.trim_end(), "-n", "1", "--json"]).output().unwrap();
    let chunk: Vec<u64> = json(&generated)["prompt_ids"].as_array().unwrap()[..16]
        .iter()
        .map(|id| id.as_u64().unwrap())
        .collect();
    let ids: Vec<String> = chunk.iter().map(u64::to_string).collect();
    let out = dir.path().join("logits.npy");
    let arguments =
        ["eval", "logits", "-m", &tiny(), "--ids", &ids.join(","), "--out", out.to_str().unwrap(), "--json"];
    let output = indrik(&arguments).output().unwrap();
    assert_eq!(json(&output)["rows"], 16);
    let bytes = std::fs::read(&out).unwrap();
    let start = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let logits: Vec<f64> =
        bytes[start..].as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect();
    assert_eq!(logits.len(), 16 * 320);
    let nll = |position: usize| {
        let row = &logits[position * 320..(position + 1) * 320];
        row.iter().map(|logit| logit.exp()).sum::<f64>().ln() - row[chunk[position + 1] as usize]
    };
    let expected = ((8..15).map(nll).sum::<f64>() / 7.0).exp();
    let found = printed["running"][0].as_f64().unwrap();
    assert!((found / expected - 1.0).abs() < 1e-4, "{found} and {expected}");
}

#[test]
fn ctrl_c_cancels_the_reply_but_not_the_chat() {
    if !has_device() {
        return;
    }
    let mut child = indrik(&["chat", "-m", &tiny(), "--seed", "1", "-t", "0", "-c", "512"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = child.stdout.take().unwrap();
    // The tiny model never samples a stop token: its reply is hundreds of tokens long.
    input.write_all(b"the cat\n").unwrap();
    let mut first = [0; 4];
    output.read_exact(&mut first).unwrap();
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    input.write_all(b"/nonsense\n/help\n/stats\n/system be brief\nthe dog\n").unwrap();
    // Waits for the second reply to start, or there would be nothing to cancel.
    let mut rest = Vec::new();
    let mut byte = [0; 1];
    while !(rest.contains(&b'\n') && rest.last() != Some(&b'\n')) {
        output.read_exact(&mut byte).unwrap();
        rest.push(byte[0]);
    }
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    input.write_all(b"/clear\n/stats\n/quit\n").unwrap();
    drop(input);
    output.read_to_end(&mut rest).unwrap();
    let finished = child.wait_with_output().unwrap();
    let text = stderr(&finished);
    assert_eq!(finished.status.code(), Some(0), "{text}");
    assert_eq!(text.matches("(cancelled)").count(), 2, "{text}");
    for expected in [
        " on llvmpipe",
        "/help lists",
        "Unknown command /nonsense",
        "Ctrl-C         cancel the reply",
        "System message set",
        "tok/s",
        "2 messages",
        "New conversation.",
        "0 messages",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

#[test]
fn chat_with_a_prompt_replies_once_and_exits() {
    if !has_device() {
        return;
    }
    let chat = |more: &[&str]| {
        let first = ["chat", "-m", &tiny(), "-p", "the cat", "-t", "0", "-c", "512"];
        // Standard input must be ignored.
        let mut child = indrik(&[&first, more].concat());
        let mut child =
            child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"the dog\n").unwrap();
        child.wait_with_output().unwrap()
    };
    let output = chat(&["-n", "4"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output).matches('\n').count(), 1, "one reply: {}", stdout(&output));
    assert!(!stderr(&output).contains("/help"), "{}", stderr(&output));
    // A message that does not fit the context is an error.
    let output = chat(&["-n", "4", "--system", &"word ".repeat(600)]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert_eq!(stdout(&output), "");
}

/// The one-line error message of a command that must fail.
fn error_line(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}{}", stdout(&output));
    assert!(text.starts_with("indrik: ") && text.trim_end().lines().count() == 1, "{text}");
    text
}

#[test]
fn errors_are_reported_before_the_model_is_loaded() {
    if !has_device() {
        return;
    }
    let tiny = tiny();
    let fails =
        |arguments: &[&str]| error_line(&mut indrik(&[&["generate", "-m", &tiny], arguments].concat()));
    assert!(fails(&["-p", ""]).contains("the prompt is empty"));
    assert!(fails(&["--ids", "2,320"]).contains("token 320 is not in the model's vocabulary"));
    let long = vec!["300"; 600].join(",");
    assert!(fails(&["--ids", &long]).contains("600 tokens exceed the context length of 512"));
    assert!(fails(&["-p", "the cat", "-c", "3"]).contains("4 tokens exceed the context length of 3"));
    assert!(fails(&["-p", "the cat", "-c", "1000"]).contains("1000 tokens exceed the context length of 512"));
    assert!(fails(&["-p", "the cat", "-n", "600"]).contains("exceed the context length of 512"));
    assert!(fails(&["-p", "x", "-t", "-1"]).contains("temperature is -1"));
    assert!(fails(&["-p", "x", "--top-p", "nan"]).contains("top-p is NaN"));
    assert!(fails(&["-p", "x", "--logit-bias", "9999=1"]).contains("token 9999"));
    assert!(fails(&["-p", "x", "--stop", ""]).contains("stop string"));

    let mut child =
        indrik(&["generate", "-m", &tiny]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"caf\xe9").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("standard input is not UTF-8 (byte 3)"), "{}", stderr(&output));

    // The memory plan fails before anything is read.
    let with = |fault: &str| {
        error_line(indrik(&["generate", "-m", &tiny, "-p", "the cat"]).env("INDRIK_FAULT", fault))
    };
    let text = with("heap=64MiB");
    assert!(text.contains("does not fit") && text.contains("short"), "{text}");
    // An allocation that was planned can still fail.
    assert!(with("allocation@9").contains("out of GPU memory"));

    let dir = tempfile::tempdir().unwrap();
    let config = "{\"model_type\": \"mamba\", \"architectures\": [\"MambaForCausalLM\"]}";
    let weights = fixture("head256/model.safetensors");
    std::fs::copy(weights, dir.path().join("model.safetensors")).unwrap();
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    let path = dir.path().to_str().unwrap();
    let text = error_line(&mut indrik(&["generate", "-m", path, "-p", "x"]));
    assert!(text.contains("the architecture 'mamba' is not supported") && text.contains("gemma3"), "{text}");
    let text = error_line(&mut indrik(&["generate", "-m", "no-such-model", "-p", "x"]));
    assert!(text.contains("no-such-model"), "{text}");
    // A folder without a tokenizer needs ids.
    let folder = fixture("head256").display().to_string();
    let text = error_line(&mut indrik(&["generate", "-m", &folder, "-p", "x"]));
    assert!(text.contains("has no tokenizer") && text.contains("--ids"), "{text}");
    let output =
        indrik(&["generate", "-m", &folder, "--ids", "2,5,7", "-n", "3", "--json"]).output().unwrap();
    let printed = json(&output);
    assert_eq!((printed["tokens"].as_array().unwrap().len(), &printed["text"]), (3, &Value::Null));
    // A damaged tokenizer is an error, not a missing one.
    std::fs::copy(fixture("head256/config.json"), dir.path().join("config.json")).unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), "{").unwrap();
    let text = error_line(&mut indrik(&["generate", "-m", path, "--ids", "2,5,7", "-n", "3"]));
    assert_eq!(text.matches("tokenizer.json").count(), 1, "{text}");
}

#[test]
fn images_are_read_before_the_model_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let damaged = dir.path().join("damaged.png");
    std::fs::write(&damaged, b"\x89PNG\r\n\x1a\n").unwrap();
    let damaged = damaged.to_str().unwrap();
    let vision = fixture("gemma3_vision_gguf/model.gguf").display().to_string();
    let device = ["--device", "no-such-device"];
    for command in ["generate", "chat"] {
        let fails = |model: &str, image: &str| {
            let arguments = [command, "-m", model, "-p", "x", "--image", image];
            error_line(&mut indrik(&[&arguments[..], &device].concat()))
        };
        let text = fails(&tiny(), damaged);
        assert!(text.contains("images cannot be used: the model has no image encoder"), "{text}");
        assert!(fails(&vision, damaged).contains(&format!("cannot read the image {damaged}: ")));
        assert!(fails(&vision, "no-such-image.png").contains("cannot read the image no-such-image.png: "));
        assert!(fails(&vision, "/dev/zero").contains("it is not a file"));
    }
}

#[test]
fn gemma_4_takes_images_of_any_shape() {
    if !has_device() {
        return;
    }
    let pictures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../images/tests/fixtures");
    for name in ["gemma4_vision_gguf", "gemma4_vision_unified_gguf"] {
        let model = fixture(&format!("{name}/model.gguf")).display().to_string();
        let generate = |image: Option<&str>, more: &[&str]| {
            let mut command =
                indrik(&["generate", "-m", &model, "-p", "the cat", "-n", "4", "-t", "0", "--json"]);
            command.args(image.map(|image| format!("--image={}", pictures.join(image).display()))).args(more);
            json(&command.output().unwrap())
        };
        let prompt_tokens = |result: &serde_json::Value| result["speed"]["prompt_tokens"].as_u64().unwrap();
        let text = prompt_tokens(&generate(None, &[]));
        // Two delimiters, and rows and columns of soft tokens at about the picture's aspect ratio.
        let tokens = |image, more: &[&str]| prompt_tokens(&generate(Some(image), more)) - text - 2;
        let most = if name.contains("unified") { 12 } else { 10 };
        let (landscape, portrait) = (tokens("landscape.png", &[]), tokens("portrait.png", &[]));
        assert!(
            (most / 2..=most).contains(&landscape) && (most / 2..=most).contains(&portrait),
            "{landscape} {portrait}"
        );
        assert_eq!(tokens("landscape.png", &["--image-tokens", "4"]), 2);
        let refused = |more: &[&str]| {
            let image = pictures.join("tiny.png").display().to_string();
            let arguments = ["generate", "-m", &model, "-p", "x", "--image", &image];
            error_line(&mut indrik(&[&arguments[..], more].concat()))
        };
        assert!(refused(&["--image-tokens", "2000"]).contains(&format!("4 to {most} tokens, not 2000")));
        assert!(refused(&["--pan-and-scan"]).contains("images of this model keep their shape"));
    }
}

#[test]
fn errors_of_images_stay_in_the_chat() {
    if !has_device() {
        return;
    }
    let tiny = tiny();
    let arguments = ["chat", "-m", &tiny, "-c", "64", "-n", "2", "-t", "0"];
    let mut command = indrik(&arguments);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"/image no-such-image.png\n/image\nthe cat\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let text = stderr(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("images cannot be used: the model has no image encoder"), "{text}");
    assert!(text.contains("/image needs a file name"), "{text}");
    assert!(!stdout(&output).trim().is_empty(), "no reply: {text}");
}

#[test]
fn wrong_usage_exits_with_2() {
    let tiny = tiny();
    for arguments in [
        &["generate", "-p", "x"][..],
        &["generate", "-m", &tiny, "-p", "x", "--ids", "1"],
        &["generate", "-m", &tiny, "--image", "x.png", "--ids", "1"],
        &["generate", "-m", &tiny, "--ids", "1,x"],
        &["generate", "-m", &tiny, "--ids", "-1"],
        &["generate", "-m", &tiny, "-p", "x", "-n", "0"],
        &["generate", "-m", &tiny, "-p", "x", "--logit-bias", "5"],
        &["eval", "logits", "-m", &tiny, "--out", "x.npy"],
        &["eval", "perplexity", "-m", &tiny],
        &["bench", "--shape", "gemma3-28b"],
        &["bench", "-m", &tiny, "--shape", "gemma3-1b"],
    ] {
        let output = indrik(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
    }
}
