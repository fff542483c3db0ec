//! Errors of Ollama's API: each status in its format, and invalid requests with the field that is wrong.

use std::time::Duration;

use engine::SubmitError;
use serde_json::{Value, json};
use server::Config;

use crate::common::{Fixture, MODEL, Mock};
use crate::messages::scripted;
use crate::ollama::{CHAT, GENERATE, PIXEL, chat, generate};

#[test]
fn every_status_has_ollamas_error_object() {
    let server = Fixture::with_config(Mock::new(), Config { max_body_bytes: 2000, ..Config::default() });
    let valid = chat(json!({}));
    server.post_raw(CHAT, b"{").ollama_error(400);
    server.post_raw(CHAT, b"[]").ollama_error(400);
    for path in ["/api", "/api/unknown", "/api/chat/x"] {
        server.post(path, &valid).ollama_error(404);
    }
    for (path, allowed) in [(CHAT, "POST"), ("/api/pull", "POST"), ("/api/delete", "DELETE")] {
        let got = server.get(path);
        got.ollama_error(405);
        assert_eq!(got.headers["allow"], allowed);
    }
    let got = server.post("/api/tags", &valid);
    got.ollama_error(405);
    assert_eq!(got.headers["allow"], "GET, HEAD");
    for path in [CHAT, GENERATE, "/api/show", "/api/pull"] {
        let large = json!({ "model": MODEL, "prompt": "x".repeat(3000) });
        server.post(path, &large).ollama_error(413);
        let form = ureq::post(server.url(path)).config().http_status_as_error(false).build();
        let mut got = form.content_type("text/plain").send(valid.to_string()).unwrap();
        assert_eq!(got.status(), 415);
        let body: Value = serde_json::from_str(&got.body_mut().read_to_string().unwrap()).unwrap();
        assert!(body["error"].as_str().unwrap().contains("Content-Type: application/json"), "{body}");
    }
    *server.mock.not_ready.lock().unwrap() = Some("it is loading".to_owned());
    let got = server.post(CHAT, &valid);
    assert!(got.ollama_error(503).contains("it is loading"));
    assert!(got.headers.contains_key("retry-after"));
    *server.mock.not_ready.lock().unwrap() = None;
    *server.mock.submit_error.lock().unwrap() =
        Some(SubmitError::QueueFull { retry_after: Duration::from_millis(1500) });
    for stream in [false, true] {
        let got = server.post(CHAT, &chat(json!({ "stream": stream })));
        got.ollama_error(429);
        assert_eq!(got.headers["retry-after"], "2");
    }
    // Other paths keep OpenAI's.
    server.post("/v1/chat/completions", &valid).error(429, "queue_full");
    server.post("/apix", &valid).error(404, "unknown_url");
}

#[test]
fn what_is_not_implemented_is_refused() {
    let server = Fixture::new();
    for path in ["/api/copy", "/api/create", "/api/push", "/api/blobs/sha256:00"] {
        let message = server.post(path, &json!({ "model": MODEL })).ollama_error(501);
        assert!(message.contains("not supported"), "{message}");
    }
    let message = server.post("/api/pull", &json!({ "model": "gemma3" })).ollama_error(403);
    assert!(message.contains("--models store"), "{message}");
    server.delete_body("/api/delete", &json!({ "model": MODEL })).ollama_error(403);
}

#[test]
fn keys_and_hosts_are_checked() {
    let config = Config {
        api_keys: vec!["secret".to_owned()],
        allowed_hosts: Some(vec![]),
        cors_origins: vec!["https://example.org".to_owned()],
        ..Config::default()
    };
    let server = Fixture::with_config(Mock::new(), config);
    let posts = [CHAT, GENERATE, "/api/show", "/api/pull", "/api/create"];
    for path in posts {
        server.post(path, &chat(json!({}))).ollama_error(401);
        let got = server.post_with(path, &chat(json!({})), ("authorization", "Bearer wrong"));
        got.ollama_error(401);
        server.post_with(path, &chat(json!({})), ("host", "evil.example")).ollama_error(403);
    }
    for path in ["/api/tags", "/api/ps", "/api/version"] {
        server.get(path).ollama_error(401);
        assert_eq!(server.get_with(path, ("authorization", "Bearer secret")).status, 200);
    }
    server.delete_body("/api/delete", &json!({ "model": MODEL })).ollama_error(401);
    let got = server.post_with(CHAT, &chat(json!({})), ("authorization", "Bearer secret"));
    assert_eq!(got.status, 200);
    let got = server.get_with("/api/version", ("origin", "https://example.org"));
    assert_eq!(got.headers["access-control-allow-origin"], "https://example.org");
}

#[test]
fn invalid_requests_name_the_field() {
    let server = scripted("ok");
    let message = |message: Value| json!({ "messages": [message] });
    let options = |options: Value| json!({ "options": options });
    let call = |call: Value| json!({ "messages": [{ "role": "assistant", "tool_calls": [call] }] });
    let tool = |tool: Value| json!({ "tools": [tool] });
    let function = |function: Value| json!({ "tools": [{ "type": "function", "function": function }] });
    for (more, field) in [
        (json!({ "model": 1 }), "model"),
        (json!({ "model": null }), "model"),
        (json!({ "stream": "yes" }), "stream"),
        (json!({ "messages": "say" }), "messages"),
        (json!({ "messages": {} }), "messages"),
        (json!({ "messages": [1] }), "messages[0]"),
        (json!({ "messages": [{ "role": "assistant", "content": "" }] }), "messages"),
        (message(json!({ "content": "x" })), "messages[0].role"),
        (message(json!({ "role": "owner", "content": "x" })), "messages[0].role"),
        (message(json!({ "role": "user", "content": 1 })), "messages[0].content"),
        (message(json!({ "role": "user", "content": ["x"] })), "messages[0].content"),
        (message(json!({ "role": "user", "content": "x", "images": "x" })), "messages[0].images"),
        (message(json!({ "role": "user", "content": "x", "images": [1] })), "messages[0].images[0]"),
        (message(json!({ "role": "user", "content": "x", "images": [PIXEL] })), "messages[0].images[0]"),
        (message(json!({ "role": "system", "content": "x", "images": [PIXEL] })), "messages[0].images"),
        (
            message(
                json!({ "role": "user", "content": "x", "tool_calls": [{ "function": { "name": "f" } }] }),
            ),
            "messages[0].tool_calls",
        ),
        (message(json!({ "role": "assistant", "content": "x", "thinking": 1 })), "messages[0].thinking"),
        (message(json!({ "role": "tool", "content": "x" })), "messages[0].tool_name"),
        (message(json!({ "role": "tool", "content": "x", "tool_name": 1 })), "messages[0].tool_name"),
        (call(json!({})), "messages[0].tool_calls[0].function"),
        (call(json!({ "function": {} })), "messages[0].tool_calls[0].function.name"),
        (call(json!({ "function": { "name": "a b" } })), "messages[0].tool_calls[0].function.name"),
        (
            call(json!({ "function": { "name": "f", "arguments": "{}" } })),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (json!({ "tools": {} }), "tools"),
        (tool(json!({ "type": "web_search" })), "tools[0].type"),
        (tool(json!({ "type": "function" })), "tools[0].function"),
        (function(json!({})), "tools[0].function.name"),
        (function(json!({ "name": "" })), "tools[0].function.name"),
        (function(json!({ "name": "f", "parameters": [] })), "tools[0].function.parameters"),
        (function(json!({ "name": "f", "description": 1 })), "tools[0].function.description"),
        (json!({ "format": "xml" }), "format"),
        (json!({ "format": 1 }), "format"),
        (json!({ "format": ["json"] }), "format"),
        (json!({ "format": { "type": "no type" } }), "format"),
        (json!({ "think": "very" }), "think"),
        (json!({ "think": 1 }), "think"),
        (json!({ "keep_alive": "soon" }), "keep_alive"),
        (json!({ "keep_alive": true }), "keep_alive"),
        (json!({ "keep_alive": {} }), "keep_alive"),
        (json!({ "logprobs": 1 }), "logprobs"),
        (json!({ "top_logprobs": 1 }), "top_logprobs"),
        (json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs"),
        (json!({ "logprobs": true, "top_logprobs": -1 }), "top_logprobs"),
        (json!({ "options": 1 }), "options"),
        (options(json!({ "temperature": -1 })), "options.temperature"),
        (options(json!({ "temperature": "hot" })), "options.temperature"),
        (options(json!({ "temperature": 101 })), "options.temperature"),
        (options(json!({ "top_p": 1.5 })), "options.top_p"),
        (options(json!({ "top_k": 0.5 })), "options.top_k"),
        (options(json!({ "top_k": 1_u64 << 40 })), "options.top_k"),
        (options(json!({ "min_p": 2 })), "options.min_p"),
        (options(json!({ "seed": "x" })), "options.seed"),
        (options(json!({ "num_predict": "all" })), "options.num_predict"),
        (options(json!({ "num_predict": 1_u64 << 40 })), "options.num_predict"),
        (options(json!({ "num_ctx": "large" })), "options.num_ctx"),
        (options(json!({ "stop": 1 })), "options.stop"),
        (options(json!({ "stop": [1] })), "options.stop"),
        (options(json!({ "stop": [""] })), "options.stop"),
        (options(json!({ "stop": vec!["x"; 65] })), "options.stop"),
        (options(json!({ "repeat_penalty": 0 })), "options.repeat_penalty"),
        (options(json!({ "presence_penalty": 101 })), "options.presence_penalty"),
        (options(json!({ "frequency_penalty": -101 })), "options.frequency_penalty"),
        (options(json!({ "mirostat": 2 })), "options.mirostat"),
        (options(json!({ "tfs_z": 0.5 })), "options.tfs_z"),
        (options(json!({ "typical_p": 0.5 })), "options.typical_p"),
    ] {
        let message = server.post(CHAT, &chat(more.clone())).ollama_error(400);
        assert!(message.starts_with(&format!("'{field}'")), "{more}: {message}");
    }
    for (more, field) in [
        (json!({ "prompt": 1 }), "prompt"),
        (json!({ "prompt": ["x"] }), "prompt"),
        (json!({ "suffix": "x" }), "suffix"),
        (json!({ "suffix": 1 }), "suffix"),
        (json!({ "system": 1 }), "system"),
        (json!({ "system": "x", "raw": true }), "system"),
        (json!({ "template": "{{ .Prompt }}" }), "template"),
        (json!({ "prompt": "", "template": "{{ .Prompt }}" }), "template"),
        (json!({ "prompt": "", "options": { "temperature": -1 } }), "options.temperature"),
        (json!({ "prompt": "", "think": 1 }), "think"),
        (json!({ "context": "x" }), "context"),
        (json!({ "raw": 1 }), "raw"),
        (json!({ "images": [PIXEL] }), "images[0]"),
        (json!({ "images": {} }), "images"),
    ] {
        let message = server.post(GENERATE, &generate(more.clone())).ollama_error(400);
        assert!(message.starts_with(&format!("'{field}'")), "{more}: {message}");
    }
    for body in [json!({}), json!({ "model": null }), json!({ "name": "" }), json!({ "model": 1 })] {
        server.post("/api/show", &body).ollama_error(400);
        server.post("/api/pull", &body).ollama_error(400);
        server.delete_body("/api/delete", &body).ollama_error(400);
    }
    assert_eq!(server.mock.submitted.lock().unwrap().len(), 0);
}
