//! Metrics, the OpenAPI document, the access log.

use crate::common;
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Arc, Mutex};

use crate::common::{Fixture, Mock, chat, completion};
use engine::{
    BackendError, Engine, Options,
    testing::{MockBackend, MockOptions},
};
use serde_json::{Value, json};
use server::Config;

const CHAT: &str = "/v1/chat/completions";

#[test]
fn metrics_count_requests_and_show_the_engines_status() {
    let server = Fixture::new();
    {
        let mut status = server.mock.status.lock().unwrap();
        (status.waiting, status.generation_tokens) = (3, 12345);
    }
    assert_eq!(server.post(CHAT, &chat(json!({}))).status, 200);
    server.chunks(CHAT, &chat(json!({ "stream": true })));
    assert_eq!(server.post(CHAT, &chat(json!({ "n": 0 }))).status, 400);
    server.wait_metric("indrik_http_requests_total{outcome=\"success\"} 2");
    server.wait_metric("indrik_http_requests_total{outcome=\"invalid_value\"} 1");
    let got = server.get("/metrics");
    assert_eq!(got.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    for line in [
        "indrik_ready 1",
        "indrik_requests_waiting 3",
        "indrik_kv_cache_pages 100",
        "indrik_kv_cache_pages_used 7",
        "indrik_kv_cache_pages_cached 5",
        "indrik_generation_tokens_total 12345",
        "# TYPE indrik_time_to_first_token_seconds histogram",
        "indrik_gpu_busy_ratio{card=\"card0\"} 0.125",
        "indrik_gpu_busy_ratio{card=\"card1\"} 0",
    ] {
        assert!(got.body.lines().any(|found| found == line), "no {line} in\n{}", got.body);
    }
    // Every metric is described before its first sample, and buckets are cumulative.
    let mut described = BTreeSet::new();
    let mut bucket = (String::new(), 0.0);
    for line in got.body.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            described.insert(rest.split(' ').next().unwrap().to_owned());
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let value: f64 = value.parse().unwrap();
            let name = name.split('{').next().unwrap();
            let suffix = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
            assert!(described.contains(suffix.unwrap_or(name)), "{line}");
            assert!(bucket.0 != name || !name.ends_with("_bucket") || value >= bucket.1, "{line}");
            bucket = (name.to_owned(), value);
        }
    }
}

#[test]
fn metrics_count_steps_and_lost_devices() {
    let start = |errors| {
        let backend = MockBackend::new(MockOptions { errors, ..MockOptions::default() });
        let engine = Engine::start(backend, Options::default()).unwrap();
        Fixture::with_generator(Mock::new(), Arc::new(engine), Config::default(), None)
    };
    // The device is lost at the third call, a step; the completion is the same.
    let server = start([(2, BackendError::DeviceLost("lost".to_owned()))].into());
    let complete = || server.post("/v1/completions", &completion(json!({ "max_tokens": 5, "seed": 3 })));
    let got = complete().json();
    assert_eq!(got["usage"]["completion_tokens"], 5, "{got}");
    let undisturbed = start(Default::default());
    let expected =
        undisturbed.post("/v1/completions", &completion(json!({ "max_tokens": 5, "seed": 3 }))).json();
    assert_eq!(got["choices"], expected["choices"]);
    // One prefill step of four tokens, then a decode run of four one-row steps; the mock backend reads 1000 bytes per
    // step and 10 per token of context.
    for line in [
        "indrik_steps_total 5",
        "indrik_step_rows_total 8",
        "indrik_last_step_rows 1",
        "indrik_decode_memory_read_bytes_total 4240",
        "indrik_prefix_cache_queries_total 1",
        "indrik_prefix_cache_hits_total 0",
    ] {
        undisturbed.wait_metric(line);
    }
    undisturbed.post("/v1/completions", &completion(json!({ "prompt": "say ".repeat(9) })));
    let again =
        undisturbed.post("/v1/completions", &completion(json!({ "prompt": "say ".repeat(9) }))).json();
    let cached = again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached >= 8, "{again}");
    // The first of them had the start of the prompt before in common: a page of the mock backend is eight tokens.
    undisturbed.wait_metric("indrik_prefix_cache_hits_total 2");
    for line in [
        "indrik_ready 1",
        "indrik_device_lost_total 1",
        "indrik_generation_tokens_total 5",
        "indrik_engine_requests_total{outcome=\"finished\"} 1",
        "indrik_time_to_first_token_seconds_count 1",
        "indrik_time_to_first_token_seconds_bucket{le=\"+Inf\"} 1",
        "indrik_inter_token_latency_seconds_count 4",
        "indrik_request_latency_seconds_count 1",
    ] {
        server.wait_metric(line);
    }
}

#[test]
fn the_server_is_not_ready_while_the_gpu_is_lost() {
    let lost = || BackendError::DeviceLost("lost".to_owned());
    // The first probe finds the device lost, and the first attempt to reopen it fails.
    let errors = [(0, lost()), (1, lost())].into();
    let backend = MockBackend::new(MockOptions { errors, ..MockOptions::default() });
    let engine = Arc::new(Engine::start(backend, Options::default()).unwrap());
    let server = Fixture::with_generator(Mock::new(), engine.clone(), Config::default(), None);
    let (message, _) = server.get("/ready").error(503, "not_ready");
    assert!(message.contains("the GPU"), "{message}");
    server.wait_metric("indrik_ready 0");
    server.post("/v1/completions", &completion(json!({}))).error(503, "not_ready");
    // Recovery does not need a request.
    server.wait_metric("indrik_ready 1");
    assert_eq!(server.get("/ready").status, 200);
    assert_eq!(server.post("/v1/completions", &completion(json!({}))).status, 200);
}

#[test]
fn the_openapi_document_is_complete() {
    let server = Fixture::new();
    let document = server.get("/openapi.json").json();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let text = document.to_string();
    for reference in text.split("\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(schemas.contains_key(name), "{name} is not described");
    }
    let properties = schemas["Options"]["properties"].as_object().unwrap();
    for field in ["model", "stream", "stop", "max_tokens", "temperature", "top_k", "seed", "n", "logit_bias"]
    {
        assert!(properties.contains_key(field), "{field}");
    }
    assert_eq!(schemas["Options"]["required"], json!(["model"]));
    assert_eq!(schemas["Options"]["properties"]["temperature"]["maximum"], 2);
    assert_eq!(schemas["ChatRequest"]["required"], json!(["messages"]));
    for (path, operations) in document["paths"].as_object().unwrap() {
        if operations.get("get").is_some() {
            assert_ne!(server.get(&path.replace("{id}", "x")).json_or_null()["error"]["code"], "unknown_url");
        }
    }
}

/// Collects the log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_access_log_has_one_line_per_request_without_content() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).init();
    let server = Fixture::new();
    let secret = "zebracrossing";
    let mut ids = Vec::new();
    for (path, body) in [
        (CHAT, chat(json!({ "messages": [{ "role": "user", "content": secret }] }))),
        (CHAT, chat(json!({ "messages": [{ "role": secret, "content": secret }] }))),
        ("/v1/completions", completion(json!({ "prompt": secret, "stream": true }))),
    ] {
        let got = server.post(path, &body);
        ids.push(got.headers["x-request-id"].to_str().unwrap().to_owned());
    }
    drop(server);
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(!log.contains(secret), "{log}");
    for (id, words) in ids.iter().zip([
        ["model=\"tiny/gemma\"", "completion_tokens=6", "ttft_ms=", "outcome=\"success\""],
        [
            "path=\"/v1/chat/completions\"",
            "completion_tokens=0",
            "prompt_tokens=0",
            "outcome=\"invalid_value\"",
        ],
        ["path=\"/v1/completions\"", "cached_tokens=3", "total_ms=", "outcome=\"success\""],
    ]) {
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(id.as_str())).collect();
        assert_eq!(lines.len(), 1, "{log}");
        for word in words {
            assert!(lines[0].contains(word), "no {word} in {}", lines[0]);
        }
    }
}

impl common::HttpResponse {
    fn json_or_null(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }
}
