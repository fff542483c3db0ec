//! The real server with a tiny model: from its start over lost devices to its end.

mod common;

use std::{
    io::{BufRead, Read, Write},
    net::TcpStream,
    process::Command,
    time::Instant,
};

use common::{
    indrik,
    served::{LONG, Served, has_device, serve, tiny},
    stderr, stdout,
};
use serde_json::{Value, json};

/// Tokens of the longest answer.
const MOST: u32 = 490;

fn greedy(most: u32, more: Value) -> Value {
    let mut body = json!({ "model": "tiny", "prompt": "the cat sat", "max_tokens": most, "temperature": 0 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn a_model_is_served_whole_and_as_a_stream_until_sigterm() {
    if !has_device() {
        return;
    }
    let server = Served::start(&mut serve(&["--max-queue", "3"]));
    assert_eq!((&server.said["model"], &server.said["context"]), (&json!("tiny"), &json!(512)));
    assert_eq!(server.ask("GET", "/health", "").0, 200);
    assert_eq!(server.ask("GET", "/ready", ""), (200, r#"{"status":"ready"}"#.to_owned()));
    let whole = server.complete(&greedy(24, json!({})));
    let text = whole["choices"][0]["text"].as_str().unwrap();
    assert_eq!(whole["usage"]["completion_tokens"], 24);

    // The same by the command line.
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

    // Settings of sampling reach the GPU: the same seed again, another one, and a token that is all but forced.
    let drawn =
        |seed| server.complete(&greedy(24, json!({ "temperature": 1.5, "seed": seed })))["choices"].take();
    assert_eq!(drawn(1), drawn(1));
    assert_ne!(drawn(1), drawn(2));
    let biased = |more: Value| server.complete(&greedy(8, more))["choices"][0]["text"].take();
    assert_eq!(
        biased(json!({ "logit_bias": { "70": 100 } })),
        biased(json!({ "logit_bias": { "70": 100 }, "seed": 9 }))
    );
    assert_ne!(biased(json!({ "logit_bias": { "70": 100 } })), biased(json!({})));
    assert_ne!(biased(json!({ "frequency_penalty": 2, "repetition_penalty": 5 })), biased(json!({})));

    // A chat, and a client's word for a turn's end in it.
    let says = |content: &str| {
        let body =
            json!({ "model": "tiny", "messages": [{ "role": "user", "content": content }], "max_tokens": 4 });
        let (status, text) = server.ask("POST", "/v1/chat/completions", &body.to_string());
        assert_eq!(status, 200, "{text}");
        serde_json::from_str::<Value>(&text).unwrap()["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    assert!(says("a <end_of_turn>") > says("a") + 2);

    assert_eq!(
        server.metric("indrik_time_to_first_token_seconds_count"),
        server.metric("indrik_engine_requests_total{outcome=\"finished\"}")
    );
    assert_eq!(server.metric("indrik_kv_cache_pages_used"), 0);
    assert!(server.metric("indrik_process_resident_memory_bytes") > 1 << 20);
    server.signal("-TERM");
    let (status, log) = server.end();
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
fn what_runs_at_sigterm_is_finished_and_a_second_one_ends_it() {
    if !has_device() {
        return;
    }
    for second in [false, true] {
        let server = Served::start(&mut serve(&["--log-prompts"]));
        // Many answers where they are to be cut off, so that they surely are; no token ends one before its length.
        let ends = json!({ "1": -100, "106": -100 });
        let n = if second { 16 } else { 1 };
        let long = greedy(MOST, json!({ "stream": true, "logit_bias": ends, "n": n }));
        let mut lines = server.send("POST", "/v1/completions", &long.to_string()).lines();
        assert!(lines.any(|line| line.unwrap().starts_with("data: ")));
        server.signal("-TERM");
        let started = Instant::now();
        while TcpStream::connect(&server.address).is_ok() {
            assert!(started.elapsed() < LONG, "new requests are taken");
        }
        if second {
            server.signal("-TERM");
        }
        let rest: Vec<String> = lines.map_while(Result::ok).collect();
        let whole = rest.iter().any(|line| line == "data: [DONE]");
        let (status, log) = server.end();
        assert_eq!((whole, status.code()), (!second, Some(i32::from(second))), "{log}");
        assert!(log.contains("the cat sat"), "{log}");
        if second {
            assert!(log.contains("second signal received"), "{log}");
        } else {
            assert!(log.contains(&format!("completion_tokens={MOST}")), "{log}");
        }
    }
}

#[test]
fn a_lost_device_changes_no_answer() {
    if !has_device() {
        return;
    }
    let body = greedy(100, json!({ "frequency_penalty": 0.5 }));
    let whole = Served::start(&mut serve(&[])).complete(&body)["choices"].take();
    // Every device that is opened is lost after so many submissions: loading takes some of them, and each answer a few.
    let server = Served::start(serve(&[]).env("INDRIK_FAULT", "device-lost@60"));
    let mut answers = 0;
    while server.metric("indrik_preemptions_total") < 3 {
        assert_eq!(server.complete(&body)["choices"], whole);
        answers += 1;
        assert!(answers < 200, "no device is lost");
    }
    assert!(server.metric("indrik_device_lost_total") >= 3);
    assert_eq!(server.metric("indrik_engine_requests_total{outcome=\"failed\"}"), 0);
    assert_eq!(server.ask("GET", "/ready", "").0, 200);
    server.signal("-INT");
    let (status, log) = server.end();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("the device is back"), "{log}");
}

#[test]
fn a_step_that_does_not_come_back_is_a_lost_device() {
    if !has_device() {
        return;
    }
    // No step of a long prompt is as fast as that on a CPU.
    let server = Served::start(&mut serve(&["--step-timeout", "1ms"]));
    let body = greedy(4, json!({ "prompt": "the cat sat ".repeat(30) }));
    let (status, text) = server.ask("POST", "/v1/completions", &body.to_string());
    assert!(status == 503 && text.contains("device_lost"), "{status} {text}");
    assert!(server.metric("indrik_device_lost_total") >= 3);
    assert_eq!(server.ask("GET", "/health", "").0, 200);
    server.signal("-TERM");
    let (status, log) = server.end();
    assert_eq!(status.code(), Some(0), "{log}");
}

/// That it does not start, and what it says then.
fn refused(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success());
    stderr(&output)
}

#[test]
fn what_is_wrong_with_the_settings_is_said_before_anything_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("settings.toml");
    let config = file.to_str().unwrap();
    for (text, words) in [
        ("max-queue = 5\nqueu-timeout = 3\n", &["settings.toml", "queu-timeout", "line 2"][..]),
        ("request-timeout = \"soon\"\n", &["soon", "line 1"]),
        ("port = \n", &["line 1"]),
    ] {
        std::fs::write(&file, text).unwrap();
        let said = refused(&mut serve(&["--config", config]));
        assert!(words.iter().all(|word| said.contains(word)), "{text}: {said}");
    }
    let says = |arguments: &[&str], word: &str| {
        let said = refused(&mut serve(arguments));
        assert!(said.contains(word), "{arguments:?}: {said}");
    };
    says(&["--config", "/nowhere.toml"], "/nowhere.toml");
    says(&["--queue-timeout", "soon"], "'soon' is not a duration");
    says(&["--api-key-file", "/nowhere.txt"], "/nowhere.txt");
    says(&["--kv-cache-tokens", "100"], "--kv-cache-tokens is 100");
    says(&["--max-header-size", "1KiB"], "--max-header-size is 1024 bytes");
    let empty = folder.path().join("keys.txt");
    std::fs::write(&empty, "\n").unwrap();
    says(&["--api-key-file", empty.to_str().unwrap()], "contains no API key");
    let said = refused(&mut indrik(&["serve", "-m", "no-such-model"]));
    assert!(said.contains("no-such-model"), "{said}");
    let said = refused(&mut indrik(&["serve"]));
    assert!(said.contains("-m"), "{said}");

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let said = refused(&mut indrik(&["serve", "-m", &tiny(), "--port", &port]));
    assert!(said.contains("--port") && said.contains(&port), "{said}");
}

#[test]
fn the_environment_and_a_file_set_what_flags_do_not() {
    if !has_device() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (file, keys) = (folder.path().join("settings.toml"), folder.path().join("keys.txt"));
    std::fs::write(&keys, "first\n\n second \n").unwrap();
    std::fs::write(
        &file,
        format!("max-sequences = 2\nbody-size = \"1KiB\"\nmax-queue = 7\napi-key-file = {keys:?}\n"),
    )
    .unwrap();
    let mut command = serve(&["--max-queue", "9", "--config", file.to_str().unwrap()]);
    let server = Served::start(command.env("INDRIK_MAX_SEQUENCES", "3").env("INDRIK_DRAIN_TIME", "5s"));
    assert_eq!(server.said["sequences"], 3);
    assert_eq!(server.ask("GET", "/v1/models", "").0, 401);
    let mut stream = server.connect();
    write!(
        stream,
        "GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer second\r\n\r\n"
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 ") && text.contains("\"tiny\""), "{text}");
    server.signal("-TERM");
    let (_, log) = server.end();
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
fn answers_are_held_to_a_schema_and_told_with_their_probabilities() {
    if !has_device() {
        return;
    }
    let server = Served::start(&mut serve(&[]));
    let chat = |body: Value| {
        let mut all = json!({ "model": "tiny", "temperature": 1, "seed": 5 });
        all.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        let (status, text) = server.ask("POST", "/v1/chat/completions", &all.to_string());
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
        let answer: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert!(["red", "green"].contains(&answer["color"].as_str().unwrap()), "{text}");
        assert!(answer["count"].as_u64().unwrap() <= 9, "{text}");
        assert_eq!(choice["finish_reason"], "stop");
        // The bytes of all tokens are the text, and no probabilities are more than one together.
        let content = choice["logprobs"]["content"].as_array().unwrap();
        let bytes = content.iter().flat_map(|token| token["bytes"].as_array().unwrap());
        let bytes: Vec<u8> = bytes.map(|byte| byte.as_u64().unwrap() as u8).collect();
        assert_eq!(bytes, text.as_bytes());
        for token in content {
            let top = token["top_logprobs"].as_array().unwrap();
            let of = |token: &Value| token["logprob"].as_f64().unwrap();
            let sum: f64 = top.iter().map(|token| of(token).exp()).sum();
            assert!(top.len() == 20 && sum > 0.0 && sum < 1.0001, "{sum}: {token}");
            assert!(top.is_sorted_by(|a, b| of(a) >= of(b)), "{token}");
            assert!(of(token) <= of(&top[0]) && of(token) < 0.0, "{token}");
        }
    }
    // Without a grammar, the most probable token is the one that is taken.
    let whole = server.complete(&greedy(12, json!({ "logprobs": 5 })));
    let logprobs = &whole["choices"][0]["logprobs"];
    for (logprob, top) in logprobs["token_logprobs"]
        .as_array()
        .unwrap()
        .iter()
        .zip(logprobs["top_logprobs"].as_array().unwrap())
    {
        let top = top.as_object().unwrap().values().map(|logprob| logprob.as_f64().unwrap());
        assert_eq!(logprob.as_f64().unwrap(), top.fold(f64::NEG_INFINITY, f64::max));
    }

    // The second turn of a chat reads what is new.
    let words = "one two three four five six seven eight nine ten ".repeat(4);
    let first = chat(json!({ "messages": [user(&words)], "max_tokens": 8 }));
    let said = &first["choices"][0]["message"];
    let second = chat(json!({ "messages": [user(&words), said, user("and?")], "max_tokens": 2 }));
    let tokens = |got: &Value| got["usage"]["prompt_tokens"].as_u64().unwrap();
    let cached = |got: &Value| got["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached(&first) < 16, "{first}");
    // Whole pages of it at least: what the model said may be other tokens when it is read again.
    assert!(cached(&second) > tokens(&first) / 2 && cached(&second) < tokens(&second), "{second}");
    assert!(server.metric("indrik_prefix_cache_hits_total") >= 1);
    assert!(server.metric("indrik_decode_memory_read_bytes_total") > 0);
    let (_, metrics) = server.ask("GET", "/metrics", "");
    let value = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).expect(name);
        line.parse::<f64>().unwrap()
    };
    assert!(value("indrik_memory_bandwidth_bytes_per_second") > 1e8, "{metrics}");
    assert!((1e-8..=1.0).contains(&value("indrik_memory_bandwidth_utilization_ratio")), "{metrics}");
}

#[test]
fn after_a_history_of_400_tokens_only_new_ones_are_read_and_the_answer_is_that_of_a_cold_run() {
    if !has_device() {
        return;
    }
    // The window of this model is 8 positions.
    let history: Vec<u32> = (0..400).map(|at| 10 + at * 7 % 300).collect();
    let turn = |new: &[u32], most| {
        let prompt: Vec<u32> = history.iter().chain(new).copied().collect();
        greedy(most, json!({ "prompt": prompt, "logprobs": 5 }))
    };
    let [warm, cold] = [true, false].map(|kept| {
        let server = Served::start(&mut serve(&["--reproducible", &format!("--prefix-cache={kept}")]));
        // The token that it writes is in no step, so the history is all that is held.
        server.complete(&turn(&[], 1));
        server.complete(&turn(&[20, 30, 40, 50], 24))
    });
    assert_eq!(warm["usage"]["prompt_tokens_details"]["cached_tokens"], 400, "{warm}");
    assert_eq!(cold["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "{cold}");
    // Probabilities bit by bit.
    assert_eq!(warm["choices"], cold["choices"]);
}

#[test]
fn nothing_is_kept_without_a_prefix_cache() {
    if !has_device() {
        return;
    }
    let server = Served::start(&mut serve(&["--prefix-cache=false"]));
    let ask = || server.complete(&greedy(2, json!({ "prompt": "the cat sat ".repeat(40) })));
    assert_eq!(ask()["choices"], ask()["choices"]);
    assert_eq!(ask()["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(server.metric("indrik_prefix_cache_hits_total"), 0);
    assert_eq!(server.metric("indrik_kv_cache_pages_cached"), 0);
}
