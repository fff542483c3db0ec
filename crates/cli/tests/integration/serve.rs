//! The server with a tiny model: startup, settings, completions, lost devices, shutdown.

use std::{
    io::{BufRead, Read, Write},
    process::Command,
    time::{Duration, Instant},
};

use crate::common::{
    indrik,
    served::{Served, TIMEOUT, has_device, serve, tiny},
    stderr, stdout,
};
use serde_json::{Value, json};

/// Tokens of the longest completion.
const MAX_TOKENS: u32 = 490;

/// A greedy request with more fields.
fn greedy(max_tokens: u32, more: Value) -> Value {
    let mut body =
        json!({ "model": "tiny", "prompt": "the cat sat", "max_tokens": max_tokens, "temperature": 0 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn completions_and_streams_are_served_until_sigterm() {
    if !has_device() {
        return;
    }
    let server = Served::start(&mut serve(&["--max-queue", "3"]));
    assert_eq!((&server.report["model"], &server.report["context"]), (&json!("tiny"), &json!(512)));
    assert_eq!(server.request("GET", "/health", "").0, 200);
    assert_eq!(server.request("GET", "/ready", ""), (200, r#"{"status":"ready"}"#.to_owned()));
    let completion = server.complete(&greedy(24, json!({})));
    let text = completion["choices"][0]["text"].as_str().unwrap();
    assert_eq!(completion["usage"]["completion_tokens"], 24);

    // `indrik generate` gives the same.
    let arguments = ["generate", "-m", &tiny(), "-p", "the cat sat", "-n", "24"];
    assert_eq!(stdout(&indrik(&arguments).output().unwrap()).trim_end_matches('\n'), text);

    let mut streamed = String::new();
    let mut done = false;
    for line in
        server.send("POST", "/v1/completions", &greedy(24, json!({ "stream": true })).to_string()).lines()
    {
        match line.unwrap().strip_prefix("data: ") {
            Some("[DONE]") => done = true,
            Some(data) => {
                let chunk: Value = serde_json::from_str(data).unwrap();
                streamed += chunk["choices"][0]["text"].as_str().unwrap_or_default();
            }
            None => {}
        }
    }
    assert!(done);
    assert_eq!(streamed, text);

    // Sampling parameters reach the GPU: the same seed, another seed, and a token forced by a bias.
    let sampled =
        |seed| server.complete(&greedy(24, json!({ "temperature": 1.5, "seed": seed })))["choices"].take();
    assert_eq!(sampled(1), sampled(1));
    assert_ne!(sampled(1), sampled(2));
    let biased = |more: Value| server.complete(&greedy(8, more))["choices"][0]["text"].take();
    assert_eq!(
        biased(json!({ "logit_bias": { "70": 100 } })),
        biased(json!({ "logit_bias": { "70": 100 }, "seed": 9 }))
    );
    assert_ne!(biased(json!({ "logit_bias": { "70": 100 } })), biased(json!({})));
    assert_ne!(biased(json!({ "frequency_penalty": 2, "repetition_penalty": 5 })), biased(json!({})));

    // A chat; control token names in messages are plain text.
    let prompt_tokens = |content: &str| {
        let body =
            json!({ "model": "tiny", "messages": [{ "role": "user", "content": content }], "max_tokens": 4 });
        let (status, text) = server.request("POST", "/v1/chat/completions", &body.to_string());
        assert_eq!(status, 200, "{text}");
        serde_json::from_str::<Value>(&text).unwrap()["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    assert!(prompt_tokens("a <end_of_turn>") > prompt_tokens("a") + 2);

    assert_eq!(
        server.metric("indrik_time_to_first_token_seconds_count"),
        server.metric("indrik_engine_requests_total{outcome=\"finished\"}")
    );
    assert_eq!(server.metric("indrik_kv_cache_pages_used"), 0);
    assert!(server.metric("indrik_process_resident_memory_bytes") > 1 << 20);
    server.signal("-TERM");
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    for word in [
        "max-queue 3 (flag)",
        "llvmpipe",
        "pages of",
        "is ready at http://127.0.0.1:",
        "completion_tokens=24",
        "total_ms=",
    ] {
        assert!(log.contains(word), "no {word} in {log}");
    }
    assert!(!log.contains("the cat sat"), "{log}");
}

#[test]
fn sigterm_drains_running_requests_and_a_second_one_cancels_them() {
    if !has_device() {
        return;
    }
    for second in [false, true] {
        let server = Served::start(&mut serve(&["--log-prompts"]));
        // Many choices in the run that is cancelled, so that some are still running; biases ban the stop
        // tokens.
        let bias = json!({ "1": -100, "106": -100 });
        let n = if second { 16 } else { 1 };
        let long = greedy(MAX_TOKENS, json!({ "stream": true, "logit_bias": bias, "n": n }));
        let mut lines = server.send("POST", "/v1/completions", &long.to_string()).lines();
        assert!(lines.any(|line| line.unwrap().starts_with("data: ")));
        server.signal("-TERM");
        if second {
            // The port stays open for probes while requests finish.
            let deadline = Instant::now() + TIMEOUT;
            while server.request("GET", "/ready", "").0 == 200 {
                assert!(Instant::now() < deadline, "the server does not drain");
            }
            server.signal("-TERM");
        }
        let rest: Vec<String> = lines.map_while(Result::ok).collect();
        let complete = rest.iter().any(|line| line == "data: [DONE]");
        let (status, log) = server.wait();
        assert_eq!((complete, status.code()), (!second, Some(i32::from(second))), "{log}");
        assert!(log.contains("the cat sat"), "{log}");
        if second {
            assert!(log.contains("second signal received"), "{log}");
        } else {
            assert!(log.contains(&format!("completion_tokens={MAX_TOKENS}")), "{log}");
        }
    }
}

#[test]
fn after_sigterm_the_port_stays_open_for_gateways_and_after_sigint_it_does_not() {
    if !has_device() {
        return;
    }
    // Longer than the test.
    let linger = ["--drain-linger", "1h"];
    let server = Served::start(&mut serve(&linger));
    server.signal("-TERM");
    while server.request("GET", "/ready", "").0 != 503 {}
    for _ in 0..3 {
        assert_eq!(server.request("GET", "/health", "").0, 200);
        assert_eq!(server.request("POST", "/v1/completions", &greedy(1, json!({})).to_string()).0, 503);
    }
    server.signal("-TERM");
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(1), "{log}");
    let server = Served::start(&mut serve(&linger));
    server.signal("-INT");
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log}");
}

#[test]
fn completions_are_unchanged_by_a_lost_device() {
    if !has_device() {
        return;
    }
    // Loading takes some submissions of each device, and each completion a few. Drafting begins with the second completion on a
    // device: its time has to be measured first.
    for (more, arguments, fault) in [
        (json!({ "frequency_penalty": 0.5 }), &[][..], "device-lost@60"),
        (json!({}), &["--draft", &tiny()], "device-lost@300"),
    ] {
        check_lost_devices(&greedy(100, more), arguments, fault);
    }
}

/// Compares completions of a server that loses its device again and again with those of one that does not.
fn check_lost_devices(body: &Value, arguments: &[&str], fault: &str) {
    let expected = Served::start(&mut serve(&[])).complete(body)["choices"].take();
    let server = Served::start(serve(arguments).env("INDRIK_FAULT", fault));
    // Measured step times decide whether a draft model is worth its time.
    let is_missing_drafts = || {
        arguments.contains(&"--draft") && server.metric("indrik_draft_tokens_total{source=\"model\"}") == 0
    };
    let mut completions = 0;
    while server.metric("indrik_preemptions_total") < 3 || is_missing_drafts() {
        assert_eq!(server.complete(body)["choices"], expected);
        completions += 1;
        assert!(completions < 200, "no device was lost, or nothing was drafted");
    }
    assert!(server.metric("indrik_device_lost_total") >= 3);
    assert_eq!(server.metric("indrik_engine_requests_total{outcome=\"failed\"}"), 0);
    assert_eq!(server.request("GET", "/ready", "").0, 200);
    server.signal("-INT");
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("device recovered"), "{log}");
}

#[test]
fn a_step_that_exceeds_its_timeout_counts_as_a_lost_device() {
    if !has_device() {
        return;
    }
    // Prefill of a long prompt takes longer than 1 ms on a CPU driver.
    let server = Served::start(&mut serve(&["--step-timeout", "1ms"]));
    let body = greedy(4, json!({ "prompt": "the cat sat ".repeat(30) }));
    let (status, text) = server.request("POST", "/v1/completions", &body.to_string());
    assert!(status == 503 && text.contains("device_lost"), "{status} {text}");
    assert!(server.metric("indrik_device_lost_total") >= 3);
    assert_eq!(server.request("GET", "/health", "").0, 200);
    server.signal("-TERM");
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log}");
}

/// Runs a command that must fail, and returns its standard error.
fn failure(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success());
    stderr(&output)
}

#[test]
fn invalid_settings_are_reported_before_loading() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("settings.toml");
    let config = file.to_str().unwrap();
    for (text, words) in [
        ("max-queue = 5\nqueu-timeout = 3\n", &["settings.toml", "queu-timeout", "line 2"][..]),
        ("request-timeout = \"soon\"\n", &["soon", "line 1"]),
        ("port = \n", &["line 1"]),
    ] {
        std::fs::write(&file, text).unwrap();
        let error = failure(&mut serve(&["--config", config]));
        assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
    }
    let fails_with = |arguments: &[&str], word: &str| {
        let error = failure(&mut serve(arguments));
        assert!(error.contains(word), "{arguments:?}: {error}");
    };
    fails_with(&["--config", "/nowhere.toml"], "/nowhere.toml");
    fails_with(&["--queue-timeout", "soon"], "'soon' is not a duration");
    fails_with(&["--api-key-file", "/nowhere.txt"], "/nowhere.txt");
    fails_with(&["--kv-cache-tokens", "100"], "--kv-cache-tokens is 100");
    fails_with(&["--otlp-endpoint", "collector:4318"], "--otlp-endpoint is collector:4318");
    fails_with(&["--max-header-size", "1KiB"], "--max-header-size is 1024 bytes");
    let empty = folder.path().join("keys.txt");
    std::fs::write(&empty, "# a comment is not a key\n\n").unwrap();
    fails_with(&["--api-key-file", empty.to_str().unwrap()], "contains no API key");
    let error = failure(&mut indrik(&["serve", "-m", "no-such-model"]));
    assert!(error.contains("no-such-model"), "{error}");
    let error = failure(indrik(&["serve"]).env("XDG_DATA_HOME", folder.path()));
    assert!(error.contains("-m") && error.contains("indrik search"), "{error}");

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let error = failure(&mut indrik(&["serve", "-m", &tiny(), "--port", &port]));
    assert!(error.contains("--port") && error.contains(&port), "{error}");
}

#[test]
fn flags_override_the_environment_and_the_environment_a_file() {
    if !has_device() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (file, keys) = (folder.path().join("settings.toml"), folder.path().join("keys.txt"));
    std::fs::write(&keys, "# keys\nfirst\n\n second \n").unwrap();
    std::fs::write(
        &file,
        format!("max-sequences = 2\nbody-size = \"1KiB\"\nmax-queue = 7\napi-key-file = {keys:?}\n"),
    )
    .unwrap();
    let mut command = serve(&["--max-queue", "9", "--config", file.to_str().unwrap()]);
    let server = Served::start(command.env("INDRIK_MAX_SEQUENCES", "3").env("INDRIK_DRAIN_TIME", "5s"));
    assert_eq!(server.report["sequences"], 3);
    assert_eq!(server.request("GET", "/v1/models", "").0, 401);
    let mut stream = server.connect();
    write!(
        stream,
        "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer second\r\n\r\n"
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 ") && text.contains("\"tiny\""), "{text}");
    server.signal("-TERM");
    let (_, log) = server.wait();
    for deprecated in ["the key body-size", "INDRIK_DRAIN_TIME"] {
        assert!(log.contains(&format!("warning  {deprecated} is deprecated")), "{log}");
    }
    let set = log.lines().find(|line| line.starts_with("set ")).unwrap();
    for word in [
        "max-queue 9 (flag)",
        "max-sequences 3 (environment)",
        "max-body-size 1KiB (file)",
        "drain-timeout 5s (environment)",
    ] {
        assert!(set.contains(word), "{set}");
    }
    assert!(!log.contains("first") && !log.contains("second"), "{log}");
}

#[test]
fn json_logs_have_one_object_per_line_with_the_request_id() {
    if !has_device() {
        return;
    }
    let mut command = serve(&["--log-format", "json"]);
    let server = Served::start(command.env("INDRIK_LOG", "info,engine=debug"));
    server.complete(&greedy(2, json!({})));
    server.signal("-TERM");
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let events: Vec<Value> = log.lines().map(parse).collect();
    let find = |message: &str| {
        let found = events.iter().find(|event| event["message"].as_str().unwrap().contains(message));
        found.unwrap_or_else(|| panic!("no {message} in {log}"))
    };
    find("is ready at http://127.0.0.1:");
    let finished = find("request finished");
    assert_eq!(finished["completion_tokens"], 2);
    let id = finished["span"]["request_id"].as_str().unwrap();
    let admitted = find("admitted");
    assert!(admitted["target"].as_str().unwrap().starts_with("engine"), "{admitted}");
    assert_eq!(admitted["span"]["request_id"], id);
}

#[test]
fn completions_follow_a_schema_and_report_logprobs() {
    if !has_device() {
        return;
    }
    let server = Served::start(&mut serve(&[]));
    let chat = |body: Value| {
        let mut all = json!({ "model": "tiny", "temperature": 1, "seed": 5 });
        all.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        let (status, text) = server.request("POST", "/v1/chat/completions", &all.to_string());
        assert_eq!(status, 200, "{text}");
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let user = |content: &str| json!({ "role": "user", "content": content });
    let schema = json!({
        "type": "object",
        "properties": { "color": { "enum": ["red", "green"] }, "count": { "type": "integer", "minimum": 0, "maximum": 9 } },
        "required": ["color", "count"],
        "additionalProperties": false,
    });
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "x", "strict": true, "schema": schema } });
    let got = chat(json!({
        "messages": [user("which?")], "response_format": format, "n": 2, "logprobs": true, "top_logprobs": 20,
    }));
    for choice in got["choices"].as_array().unwrap() {
        let text = choice["message"]["content"].as_str().unwrap();
        let output: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert!(["red", "green"].contains(&output["color"].as_str().unwrap()), "{text}");
        assert!(output["count"].as_u64().unwrap() <= 9, "{text}");
        assert_eq!(choice["finish_reason"], "stop");
        // The bytes of all tokens are the text, and probabilities sum to at most 1.
        let content = choice["logprobs"]["content"].as_array().unwrap();
        let bytes = content.iter().flat_map(|token| token["bytes"].as_array().unwrap());
        let bytes: Vec<u8> = bytes.map(|byte| byte.as_u64().unwrap() as u8).collect();
        assert_eq!(bytes, text.as_bytes());
        for token in content {
            let top = token["top_logprobs"].as_array().unwrap();
            let logprob = |token: &Value| token["logprob"].as_f64().unwrap();
            let sum: f64 = top.iter().map(|token| logprob(token).exp()).sum();
            assert!(top.len() == 20 && sum > 0.0 && sum < 1.0001, "{sum}: {token}");
            assert!(top.is_sorted_by(|a, b| logprob(a) >= logprob(b)), "{token}");
            assert!(logprob(token) <= logprob(&top[0]) && logprob(token) < 0.0, "{token}");
        }
    }
    // Greedy decoding without a grammar takes the most probable token.
    let completion = server.complete(&greedy(12, json!({ "logprobs": 5 })));
    let logprobs = &completion["choices"][0]["logprobs"];
    for (logprob, top) in logprobs["token_logprobs"]
        .as_array()
        .unwrap()
        .iter()
        .zip(logprobs["top_logprobs"].as_array().unwrap())
    {
        let top = top.as_object().unwrap().values().map(|logprob| logprob.as_f64().unwrap());
        assert_eq!(logprob.as_f64().unwrap(), top.fold(f64::NEG_INFINITY, f64::max));
    }

    // The second turn of a chat prefills only the new tokens.
    let words = "one two three four five six seven eight nine ten ".repeat(4);
    let first = chat(json!({ "messages": [user(&words)], "max_tokens": 8 }));
    let reply = &first["choices"][0]["message"];
    let second = chat(json!({ "messages": [user(&words), reply, user("and?")], "max_tokens": 2 }));
    let tokens = |got: &Value| got["usage"]["prompt_tokens"].as_u64().unwrap();
    let cached = |got: &Value| got["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached(&first) < 16, "{first}");
    // At least its full pages: the reply may tokenise differently as part of a prompt.
    assert!(cached(&second) > tokens(&first) / 2 && cached(&second) < tokens(&second), "{second}");
    assert!(server.metric("indrik_prefix_cache_hits_total") >= 1);
    assert!(server.metric("indrik_decode_memory_read_bytes_total") > 0);
    // Measured when the server has been idle for a while; the ratio covers the decode steps of the last seconds.
    let is_measured = |metrics: &str| metrics.contains("\nindrik_memory_bandwidth_bytes_per_second ");
    let deadline = Instant::now() + Duration::from_secs(1800);
    while !is_measured(&server.request("GET", "/metrics", "").1) {
        assert!(Instant::now() < deadline, "the bandwidth is not measured");
        std::thread::sleep(Duration::from_millis(50));
    }
    server.complete(&greedy(12, json!({})));
    let (_, metrics) = server.request("GET", "/metrics", "");
    let value = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).expect(name);
        line.parse::<f64>().unwrap()
    };
    assert!(value("indrik_memory_bandwidth_bytes_per_second") > 1e8, "{metrics}");
    assert!((1e-8..=1.0).contains(&value("indrik_memory_bandwidth_utilization_ratio")), "{metrics}");
}

#[test]
fn a_prefix_cache_hit_gives_the_same_logprobs_as_a_cold_run() {
    if !has_device() {
        return;
    }
    // The history is longer than the model's sliding window of 8 tokens.
    let history: Vec<u32> = (0..400).map(|at| 10 + at * 7 % 300).collect();
    let turn = |new: &[u32], max_tokens| {
        let prompt: Vec<u32> = history.iter().chain(new).copied().collect();
        greedy(max_tokens, json!({ "prompt": prompt, "logprobs": 5 }))
    };
    let [warm, cold] = [true, false].map(|enabled| {
        let server = Served::start(&mut serve(&["--reproducible", &format!("--prefix-cache={enabled}")]));
        // Its one generated token is never an input, so exactly the history is cached.
        server.complete(&turn(&[], 1));
        server.complete(&turn(&[20, 30, 40, 50], 24))
    });
    assert_eq!(warm["usage"]["prompt_tokens_details"]["cached_tokens"], 400, "{warm}");
    assert_eq!(cold["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "{cold}");
    // Logprobs are equal bit for bit.
    assert_eq!(warm["choices"], cold["choices"]);
}

#[test]
fn nothing_is_cached_without_the_prefix_cache() {
    if !has_device() {
        return;
    }
    let server = Served::start(&mut serve(&["--prefix-cache=false"]));
    let complete = || server.complete(&greedy(2, json!({ "prompt": "the cat sat ".repeat(40) })));
    assert_eq!(complete()["choices"], complete()["choices"]);
    assert_eq!(complete()["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(server.metric("indrik_prefix_cache_hits_total"), 0);
    assert_eq!(server.metric("indrik_kv_cache_pages_cached"), 0);
}

/// A turn whose history is longer than the model's sliding window, by token ids.
fn turn() -> Value {
    let prompt: Vec<u32> = (0..404).map(|at| 10 + at * 7 % 300).collect();
    greedy(24, json!({ "prompt": prompt, "logprobs": 5 }))
}

fn cached_tokens(completion: &Value) -> u64 {
    completion["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

#[test]
fn a_restarted_server_finds_prefixes_on_disk_and_notices_damage() {
    if !has_device() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let start =
        || Served::start(&mut serve(&["--reproducible", "--prefix-disk=64MiB", "--prefix-disk-dir", path]));
    let stop = |server: Served| {
        server.signal("-TERM");
        server.wait().1
    };
    let server = start();
    let cold = server.complete(&turn());
    assert_eq!(cached_tokens(&cold), 0);
    // A second server on the same folder does without.
    let other = start();
    let stderr = stop(other);
    assert_eq!(stderr.matches("in use by another process").count(), 1, "{stderr}");
    stop(server);

    let server = start();
    let restored = server.complete(&turn());
    // Logprobs are equal bit for bit; full pages of 64 tokens come from disk.
    assert_eq!(restored["choices"], cold["choices"]);
    assert_eq!(cached_tokens(&restored), 384);
    assert_eq!(server.metric("indrik_prompt_tokens_total"), 20);
    assert_eq!(server.metric("indrik_prefix_disk_restored_tokens_total"), 384);
    assert!(server.metric("indrik_prefix_disk_read_bytes_total") > 0);
    assert_eq!(server.metric("indrik_prefix_disk_errors_total"), 0);
    let entries = server.metric("indrik_prefix_disk_pages");
    stop(server);

    // A flipped bit in every page.
    let models = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let mut damaged = 0;
    for model in models.filter(|path| path.is_dir()) {
        for file in std::fs::read_dir(model).unwrap().map(|entry| entry.unwrap().path()) {
            let mut bytes = std::fs::read(&file).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(file, bytes).unwrap();
            damaged += 1;
        }
    }
    assert_eq!(damaged, entries);
    let server = start();
    let prefilled = server.complete(&turn());
    assert_eq!((&prefilled["choices"], cached_tokens(&prefilled)), (&cold["choices"], 0));
    assert!(server.metric("indrik_prefix_disk_errors_total") > 0);
    let stderr = stop(server);
    assert_eq!(stderr.matches("cannot be used and is prefilled").count(), 1, "said once: {stderr}");
}

#[test]
fn a_folder_that_cannot_hold_prefixes_is_said_once_and_served_on() {
    if !has_device() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let path = file.join("prefixes");
    let server =
        Served::start(&mut serve(&["--prefix-disk=64MiB", "--prefix-disk-dir", path.to_str().unwrap()]));
    assert_eq!(cached_tokens(&server.complete(&turn())), 0);
    assert!(cached_tokens(&server.complete(&turn())) >= 384, "in memory as usual");
    server.signal("-TERM");
    let stderr = server.wait().1;
    assert_eq!(stderr.matches("the prefix cache on disk is off").count(), 1, "{stderr}");

    // The folder disappears while the server runs, and a file takes its place.
    let path = folder.path().join("prefixes");
    let server =
        Served::start(&mut serve(&["--prefix-disk=64MiB", "--prefix-disk-dir", path.to_str().unwrap()]));
    std::fs::remove_dir_all(&path).unwrap();
    std::fs::write(&path, "").unwrap();
    server.complete(&turn());
    server.complete(&greedy(24, json!({ "prompt": "the cat sat ".repeat(60) })));
    server.signal("-TERM");
    let stderr = server.wait().1;
    assert_eq!(stderr.matches("cannot be written").count(), 1, "said once: {stderr}");
}
