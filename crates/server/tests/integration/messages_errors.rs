//! Errors of Anthropic's `/v1/messages`: each status in its format, and invalid requests with the field that is wrong.

use std::time::Duration;

use engine::SubmitError;
use serde_json::{Value, json};
use server::Config;

use crate::common::{Fixture, MODEL, Mock, message};
use crate::messages::{COUNT, MESSAGES, image, scripted};

#[test]
fn every_status_has_anthropics_error_object() {
    let server = Fixture::with_config(Mock::new(), Config { max_body_bytes: 2000, ..Config::default() });
    let valid = message(json!({}));
    let invalid = server.post(MESSAGES, &message(json!({ "max_tokens": 0 })));
    invalid.messages_error(400, "invalid_request_error");
    server.post_raw(MESSAGES, b"{").messages_error(400, "invalid_request_error");
    server.post(MESSAGES, &message(json!({ "model": "claude" }))).messages_error(404, "not_found_error");
    for path in ["/v1/messages/batches", "/v1/messages/x/y"] {
        server.post(path, &valid).messages_error(404, "not_found_error");
    }
    for path in [MESSAGES, COUNT] {
        let got = server.get(path);
        got.messages_error(405, "invalid_request_error");
        assert_eq!(got.headers["allow"], "POST");
        let large = message(json!({ "system": "x".repeat(3000) }));
        server.post(path, &large).messages_error(413, "request_too_large");
        let got = server.post_with(path, &valid, ("content-encoding", "br"));
        got.messages_error(415, "invalid_request_error");
        let form = ureq::post(server.url(path)).config().http_status_as_error(false).build();
        let mut got = form.content_type("text/plain").send(valid.to_string()).unwrap();
        assert_eq!(got.status(), 415);
        let body: Value = serde_json::from_str(&got.body_mut().read_to_string().unwrap()).unwrap();
        assert_eq!(body["error"]["type"], "invalid_request_error");
    }
    *server.mock.not_ready.lock().unwrap() = Some("it is loading".to_owned());
    let got = server.post(MESSAGES, &valid);
    assert!(got.messages_error(503, "overloaded_error").contains("it is loading"));
    assert!(got.headers.contains_key("retry-after"));
    *server.mock.not_ready.lock().unwrap() = None;
    *server.mock.submit_error.lock().unwrap() =
        Some(SubmitError::QueueFull { retry_after: Duration::from_millis(1500) });
    for stream in [false, true] {
        let got = server.post(MESSAGES, &message(json!({ "stream": stream })));
        got.messages_error(429, "rate_limit_error");
        assert_eq!(got.headers["retry-after"], "2");
    }
    // Other paths keep OpenAI's.
    server.post("/v1/chat/completions", &valid).error(429, "queue_full");
    server.post("/v1/messagesx", &valid).error(404, "unknown_url");
    server.wait_metric("indrik_http_requests_total{outcome=\"queue_full\"} 3");
}

#[test]
fn failures_of_the_server_have_anthropics_error_object() {
    let panics = Fixture::with_config(Mock { panics: true, ..Mock::new() }, Config::default());
    panics.post(MESSAGES, &message(json!({}))).messages_error(500, "api_error");
    let config = Config { request_timeout: Duration::from_millis(100), ..Config::default() };
    let slow = Fixture::with_config(Mock { delay: Duration::from_secs(100), ..Mock::new() }, config);
    slow.post(MESSAGES, &message(json!({}))).messages_error(504, "timeout_error");
    let config = Config { queue_timeout: Duration::from_millis(50), ..Config::default() };
    let busy = Fixture::with_config(Mock { wait: Duration::from_secs(100), ..Mock::new() }, config);
    busy.post(MESSAGES, &message(json!({ "stream": true }))).messages_error(429, "rate_limit_error");
    let config = Config { allowed_hosts: Some(vec![]), ..Config::default() };
    let local = Fixture::with_config(Mock::new(), config);
    let got = local.post_with(MESSAGES, &message(json!({})), ("host", "evil.example"));
    got.messages_error(403, "permission_error");
}

#[test]
fn keys_are_accepted_in_either_header() {
    let config = Config { api_keys: vec!["secret".to_owned()], ..Config::default() };
    let server = Fixture::with_config(Mock::new(), config);
    for path in [MESSAGES, COUNT, "/v1/chat/completions"] {
        for header in [("x-api-key", "secret"), ("authorization", "Bearer secret")] {
            assert_eq!(server.post_with(path, &message(json!({})), header).status, 200, "{path}");
        }
    }
    for path in [MESSAGES, COUNT] {
        for header in [("x-api-key", "wrong"), ("authorization", "Bearer wrong"), ("x-other", "secret")] {
            let got = server.post_with(path, &message(json!({})), header);
            assert!(got.messages_error(401, "authentication_error").contains("x-api-key"));
        }
    }
    let version = ("anthropic-version", "2023-06-01");
    server.get_with("/v1/models", version).messages_error(401, "authentication_error");
}

#[test]
fn browsers_may_send_anthropics_headers() {
    let config = Config { cors_origins: vec!["https://a.example".to_owned()], ..Config::default() };
    let server = Fixture::with_config(Mock::new(), config);
    let wanted = "x-api-key, anthropic-version, anthropic-beta, content-type";
    let request = ureq::http::Request::builder()
        .method("OPTIONS")
        .uri(server.url(MESSAGES))
        .header("origin", "https://a.example")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", wanted)
        .body(())
        .unwrap();
    let got = ureq::run(request).unwrap();
    assert_eq!(got.headers()["access-control-allow-origin"], "https://a.example");
    assert_eq!(got.headers()["access-control-allow-headers"], wanted);
    let got =
        server.post_with(MESSAGES, &message(json!({ "max_tokens": 0 })), ("origin", "https://a.example"));
    got.messages_error(400, "invalid_request_error");
    assert!(got.headers["access-control-expose-headers"].to_str().unwrap().contains("request-id"));
}

/// Checks that each request is refused and that the error names the field.
fn check_fields(server: &Fixture, invalid: &[(Value, &str)]) {
    for (more, field) in invalid {
        let got = server.post(MESSAGES, &message(more.clone()));
        let error = got.messages_error(400, "invalid_request_error");
        assert!(error.starts_with(&format!("'{field}': ")), "{more}: {error}");
        assert!(error.len() < 400, "{error}");
    }
    assert!(server.mock.submitted.lock().unwrap().is_empty());
}

fn user(content: Value) -> Value {
    json!({ "messages": [{ "role": "user", "content": content }] })
}

#[test]
fn errors_name_the_invalid_field() {
    let server = Fixture::new();
    let schema =
        |schema: Value| json!({ "output_config": { "format": { "type": "json_schema", "schema": schema } } });
    check_fields(
        &server,
        &[
            (json!({ "model": null }), "model"),
            (json!({ "max_tokens": null }), "max_tokens"),
            (json!({ "max_tokens": 0 }), "max_tokens"),
            (json!({ "max_tokens": -1 }), "max_tokens"),
            (json!({ "max_tokens": "many" }), "max_tokens"),
            (json!({ "temperature": 1.1 }), "temperature"),
            (json!({ "temperature": -0.1 }), "temperature"),
            (json!({ "temperature": "hot" }), "temperature"),
            (json!({ "top_p": 1.1 }), "top_p"),
            (json!({ "top_k": -1 }), "top_k"),
            (json!({ "top_k": 1.5 }), "top_k"),
            (json!({ "stream": "yes" }), "stream"),
            (json!({ "stop_sequences": "x" }), "stop_sequences"),
            (json!({ "stop_sequences": ["a", 1] }), "stop_sequences[1]"),
            (json!({ "stop_sequences": [""] }), "stop_sequences"),
            (json!({ "stop_sequences": vec!["a"; 65] }), "stop_sequences"),
            (json!({ "stop_sequences": ["b".repeat(1025)] }), "stop_sequences"),
            (json!({ "metadata": 1 }), "metadata"),
            (json!({ "metadata": { "user_id": 1 } }), "metadata.user_id"),
            (json!({ "system": 1 }), "system"),
            (json!({ "system": [1] }), "system[0]"),
            (json!({ "system": [{ "type": "text" }] }), "system[0].text"),
            (json!({ "system": [{ "type": "text", "text": 1 }] }), "system[0].text"),
            (json!({ "system": [image("image/png", "")] }), "system[0].type"),
            (json!({ "thinking": true }), "thinking"),
            (json!({ "thinking": {} }), "thinking.type"),
            (json!({ "thinking": { "type": "much" } }), "thinking.type"),
            (json!({ "thinking": { "type": "enabled" } }), "thinking.budget_tokens"),
            (json!({ "thinking": { "type": "enabled", "budget_tokens": -1 } }), "thinking.budget_tokens"),
            (
                json!({ "output_config": { "format": { "type": "yaml", "schema": {} } } }),
                "output_config.format.type",
            ),
            (schema(json!(1)), "output_config.format.schema"),
            (schema(json!({ "type": "word" })), "output_config.format.schema"),
            (json!({ "messages": null }), "messages"),
            (json!({ "messages": [] }), "messages"),
            (json!({ "messages": {} }), "messages"),
            (json!({ "messages": ["say"] }), "messages[0]"),
            (json!({ "messages": [{ "content": "say" }] }), "messages[0].role"),
            (json!({ "messages": [{ "role": "pirate", "content": "say" }] }), "messages[0].role"),
            (json!({ "messages": [{ "role": "user" }] }), "messages[0].content"),
            (json!({ "messages": [{ "role": "assistant", "content": "say" }] }), "messages[0].role"),
            (
                json!({ "messages": [{ "role": "user", "content": "a" }, { "role": "user", "content": "" }] }),
                "messages[1].content",
            ),
            (user(json!(null)), "messages[0].content"),
            (user(json!(5)), "messages[0].content"),
            (user(json!({ "type": "text", "text": "say" })), "messages[0].content"),
            (user(json!("")), "messages[0].content"),
            (user(json!([])), "messages[0].content"),
            (user(json!(["say"])), "messages[0].content[0]"),
            (user(json!([{ "text": "say" }])), "messages[0].content[0].type"),
            (user(json!([{ "type": 1 }])), "messages[0].content[0].type"),
            (
                user(json!([{ "type": "text", "text": "a" }, { "type": "text" }])),
                "messages[0].content[1].text",
            ),
            (user(json!([{ "type": "text", "text": "" }])), "messages[0].content[0].text"),
            (user(json!([{ "type": "text", "text": ["a"] }])), "messages[0].content[0].text"),
            (
                user(json!([{ "type": "tool_use", "id": "1", "name": "f", "input": {} }])),
                "messages[0].content[0].type",
            ),
            (user(json!([{ "type": "thinking", "thinking": "x" }])), "messages[0].content[0].type"),
        ],
    );
    let got = server.post(MESSAGES, &json!({ "model": MODEL, "messages": [] }));
    assert_eq!(got.messages_error(400, "invalid_request_error"), "'max_tokens': is required");
}

#[test]
fn what_would_change_the_answer_is_refused() {
    let server = scripted("x");
    let tool = |kind: &str| json!({ "tools": [{ "type": kind, "name": "t" }] });
    let edit = |kind: &str| json!({ "context_management": { "edits": [{ "type": "clear_thinking_20251015" }, { "type": kind }] } });
    let unsupported: &[(Value, &str)] = &[
        (json!({ "container": "c" }), "container"),
        (json!({ "mcp_servers": [{ "type": "url", "url": "x", "name": "y" }] }), "mcp_servers"),
        (edit("clear_tool_uses_20250919"), "context_management.edits[1].type"),
        (tool("web_search_20250305"), "tools[0].type"),
        (tool("bash_20250124"), "tools[0].type"),
        (tool("text_editor_20250728"), "tools[0].type"),
        (tool("computer_20250124"), "tools[0].type"),
        (
            user(json!([{ "type": "document", "source": { "type": "text", "data": "x" } }])),
            "messages[0].content[0].type",
        ),
        (user(json!([{ "type": "x".repeat(1000) }])), "messages[0].content[0].type"),
    ];
    check_fields(&server, unsupported);
    for (more, _) in unsupported {
        let error = server.post(MESSAGES, &message(more.clone())).json();
        let text = error["error"]["message"].as_str().unwrap();
        assert!(text.contains("is not supported by this server yet"), "{text}");
    }
}

#[test]
fn errors_name_the_invalid_tool_field() {
    let server = scripted("x");
    let schema = json!({ "type": "object" });
    let tool = |tool: Value| json!({ "tools": [{ "name": "f", "input_schema": schema }, tool] });
    let choice =
        |choice: Value| json!({ "tools": [{ "name": "f", "input_schema": schema }], "tool_choice": choice });
    let many: Vec<Value> =
        (0..129).map(|at| json!({ "name": format!("f{at}"), "input_schema": schema })).collect();
    check_fields(
        &server,
        &[
            (json!({ "tools": 5 }), "tools"),
            (json!({ "tools": many }), "tools"),
            (tool(json!({})), "tools[1].name"),
            (tool(json!({ "name": "g" })), "tools[1].input_schema"),
            (tool(json!({ "name": "g", "input_schema": [] })), "tools[1].input_schema"),
            (tool(json!({ "name": "g", "input_schema": { "type": "string" } })), "tools[1].input_schema"),
            (
                tool(
                    json!({ "name": "g", "strict": true, "input_schema": { "properties": { "a": { "uniqueItems": true } } } }),
                ),
                "tools[1].input_schema",
            ),
            (tool(json!({ "name": "a b", "input_schema": schema })), "tools[1].name"),
            (tool(json!({ "name": "x".repeat(129), "input_schema": schema })), "tools[1].name"),
            (tool(json!({ "name": "f", "input_schema": schema })), "tools[1].name"),
            (tool(json!({ "name": "g", "input_schema": schema, "description": 1 })), "tools[1].description"),
            (tool(json!({ "type": 1, "name": "g", "input_schema": schema })), "tools[1].type"),
            (choice(json!("auto")), "tool_choice"),
            (choice(json!({})), "tool_choice.type"),
            (choice(json!({ "type": "required" })), "tool_choice.type"),
            (choice(json!({ "type": "tool" })), "tool_choice.name"),
            (choice(json!({ "type": "tool", "name": "g" })), "tool_choice.name"),
            (
                choice(json!({ "type": "auto", "disable_parallel_tool_use": 1 })),
                "tool_choice.disable_parallel_tool_use",
            ),
            (json!({ "tool_choice": { "type": "any" } }), "tool_choice"),
        ],
    );
    // A template without tools.
    let plain = Fixture::new();
    check_fields(
        &plain,
        &[
            (json!({ "tools": [{ "name": "f", "input_schema": schema }] }), "tools"),
            (conversation(&[call("1")], &[result("1")]), "messages[1].content[0].type"),
        ],
    );
}

fn call(id: &str) -> Value {
    json!({ "type": "tool_use", "id": id, "name": "f", "input": {} })
}

fn result(id: &str) -> Value {
    json!({ "type": "tool_result", "tool_use_id": id, "content": "r" })
}

/// A question, calls and their results.
fn conversation(calls: &[Value], results: &[Value]) -> Value {
    json!({ "messages": [
        { "role": "user", "content": "say" },
        { "role": "assistant", "content": calls },
        { "role": "user", "content": results },
    ] })
}

#[test]
fn calls_and_results_must_match() {
    let server = scripted("x");
    let text = || json!({ "type": "text", "text": "x" });
    let with = |mut block: Value, field: &str, value: Value| {
        block[field] = value;
        block
    };
    let turns = |turns: &[(&str, Value)]| {
        let turn = |(role, content): &(&str, Value)| json!({ "role": role, "content": content });
        json!({ "messages": turns.iter().map(turn).collect::<Vec<_>>() })
    };
    check_fields(
        &server,
        &[
            // A result without a call, with another id, or twice.
            (user(json!([result("1")])), "messages[0].content[0].tool_use_id"),
            (conversation(&[text()], &[result("1")]), "messages[2].content[0].tool_use_id"),
            (conversation(&[call("1")], &[result("2")]), "messages[2].content[0].tool_use_id"),
            (conversation(&[call("1")], &[result("1"), result("1")]), "messages[2].content[1].tool_use_id"),
            (
                conversation(&[call("1")], &[json!({ "type": "tool_result" })]),
                "messages[2].content[0].tool_use_id",
            ),
            (
                turns(&[
                    ("user", json!("a")),
                    ("assistant", json!([call("1")])),
                    ("user", json!([result("1")])),
                    ("assistant", json!("b")),
                    ("user", json!([result("1")])),
                ]),
                "messages[4].content[0].tool_use_id",
            ),
            // A call without a result.
            (conversation(&[call("1"), call("2")], &[result("1")]), "messages[1].content[1].id"),
            (conversation(&[call("1")], &[text()]), "messages[1].content[0].id"),
            (turns(&[("user", json!("a")), ("assistant", json!([call("1")]))]), "messages[1].content[0].id"),
            // Ids that repeat.
            (conversation(&[call("1"), call("1")], &[result("1")]), "messages[1].content[1].id"),
            (
                turns(&[
                    ("user", json!("a")),
                    ("assistant", json!([call("1")])),
                    ("user", json!([result("1")])),
                    ("assistant", json!([call("1")])),
                    ("user", json!([result("1")])),
                ]),
                "messages[3].content[0].id",
            ),
            // Wrong fields.
            (
                conversation(&[with(call("1"), "input", json!([]))], &[result("1")]),
                "messages[1].content[0].input",
            ),
            (
                conversation(&[with(call("1"), "input", json!(null))], &[result("1")]),
                "messages[1].content[0].input",
            ),
            (
                conversation(&[with(call("1"), "name", json!("a b"))], &[result("1")]),
                "messages[1].content[0].name",
            ),
            (conversation(&[with(call("1"), "id", json!(1))], &[result("1")]), "messages[1].content[0].id"),
            (
                conversation(&[json!({ "type": "tool_use", "name": "f", "input": {} })], &[]),
                "messages[2].content",
            ),
            (
                conversation(&[json!({ "type": "tool_use", "name": "f", "input": {} })], &[text()]),
                "messages[1].content[0].id",
            ),
            (conversation(&[json!({ "type": "thinking" })], &[text()]), "messages[1].content[0].thinking"),
            (conversation(&[result("1")], &[text()]), "messages[1].content[0].type"),
            (conversation(&[image("image/png", "")], &[text()]), "messages[1].content[0].type"),
            (
                conversation(&[call("1")], &[with(result("1"), "content", json!(5))]),
                "messages[2].content[0].content",
            ),
            (
                conversation(&[call("1")], &[with(result("1"), "content", json!([call("2")]))]),
                "messages[2].content[0].content[0].type",
            ),
            (
                conversation(&[call("1")], &[with(result("1"), "is_error", json!("no"))]),
                "messages[2].content[0].is_error",
            ),
        ],
    );
    // Of a turn in several messages, the results may be in any.
    let split = turns(&[
        ("user", json!("a")),
        ("assistant", json!([call("1")])),
        ("assistant", json!([call("2")])),
        ("user", json!([result("2")])),
        ("user", json!([result("1")])),
    ]);
    assert_eq!(server.post(MESSAGES, &message(split)).status, 200);
}

#[test]
fn invalid_images_are_refused() {
    let server = Fixture::with_images(Mock::new(), Config::default(), false);
    let source =
        |source: Value| user(json!([{ "type": "text", "text": "x" }, { "type": "image", "source": source }]));
    let base64 =
        |kind: &str, data: &str| source(json!({ "type": "base64", "media_type": kind, "data": data }));
    let url = |url: &str| source(json!({ "type": "url", "url": url }));
    let path = "messages[0].content[1].source";
    check_fields(
        &server,
        &[
            (source(json!(null)), path),
            (source(json!("x")), path),
            (source(json!({})), "messages[0].content[1].source.type"),
            (source(json!({ "type": "file", "file_id": "x" })), "messages[0].content[1].source.type"),
            (source(json!({ "type": "base64", "data": "x" })), "messages[0].content[1].source.media_type"),
            (
                source(json!({ "type": "base64", "media_type": "image/png" })),
                "messages[0].content[1].source.data",
            ),
            (
                source(json!({ "type": "base64", "media_type": "image/png", "data": 1 })),
                "messages[0].content[1].source.data",
            ),
            (base64("image/svg+xml", ""), path),
            (base64("image/png", "####"), path),
            (base64("image/png", "aGVsbG8="), path),
            (base64("image/png", "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"), path),
            (source(json!({ "type": "url" })), "messages[0].content[1].source.url"),
            (url("file:///etc/passwd"), "messages[0].content[1].source.url"),
            (url("https://example.com/a.png"), path),
            (
                user(json!(vec![
                    image(
                        "image/gif",
                        "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
                    );
                    17
                ])),
                "messages[0].content[16].source",
            ),
        ],
    );
    let error = server.post(MESSAGES, &message(url("https://example.com/a.png"))).json();
    assert!(error["error"]["message"].as_str().unwrap().contains("--allow-image-urls"), "{error}");
    let config = Config { allow_image_urls: true, ..Config::default() };
    let fetching = Fixture::with_images(Mock::new(), config, false);
    check_fields(&fetching, &[(url("http://169.254.169.254/"), path)]);
    check_fields(&Fixture::new(), &[(base64("image/png", ""), path)]);
}

#[test]
fn many_blocks_are_handled() {
    let count = 10_000;
    let config = Config { max_body_bytes: 16 << 20, ..Config::default() };
    let mock = Mock { context_length: 1 << 20, ..Mock::new() };
    let server = Fixture::with_template(mock, config, crate::messages::template());
    let texts = vec![json!({ "type": "text", "text": "a" }); count];
    let got = server.post(MESSAGES, &message(user(json!(texts))));
    assert_eq!(got.status, 200, "{}", got.body);
    let ids: Vec<String> = (0..count).map(|id| id.to_string()).collect();
    let calls: Vec<Value> = ids.iter().map(|id| call(id)).collect();
    let results: Vec<Value> = ids.iter().map(|id| result(id)).collect();
    let got = server.post(MESSAGES, &message(conversation(&calls, &results)));
    assert_eq!(got.status, 200, "{}", got.body);
    let turns: Vec<Value> = (0..count)
        .map(|at| json!({ "role": if at % 2 == 0 { "user" } else { "assistant" }, "content": "a" }))
        .collect();
    let got = server.post(COUNT, &message(json!({ "messages": turns })));
    assert_eq!(got.status, 200, "{}", got.body);
    // Nested as deeply as JSON allows.
    let nested = (0..25).fold(
        json!("r"),
        |content, _| json!([{ "type": "tool_result", "tool_use_id": "1", "content": content }]),
    );
    let got = server.post(
        MESSAGES,
        &message(conversation(
            &[call("1")],
            &[json!({ "type": "tool_result", "tool_use_id": "1", "content": nested })],
        )),
    );
    let error = got.messages_error(400, "invalid_request_error");
    assert!(error.starts_with("'messages[2].content[0].content[0].type'"), "{error}");
}

#[test]
fn unusual_values_are_accepted_or_refused_with_the_field_name() {
    let mut mock = Mock::new();
    mock.script.truncate(1);
    let server = Fixture::with_config(mock, Config::default());
    let schemas = server.get("/openapi.json").json()["components"]["schemas"].take();
    let unusual = [
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(1.5),
        json!(1e300),
        json!(u64::MAX),
        json!(""),
        json!("x"),
        json!("\u{0}"),
        json!([]),
        json!([null]),
        json!([[]]),
        json!([{}]),
        json!(["x"]),
        json!({}),
        json!({ "type": "text" }),
        json!({ "x": null }),
        json!([{ "type": "text", "text": "" }]),
    ];
    for (path, schema) in
        [(MESSAGES, "MessagesRequest"), (MESSAGES, "CountTokensRequest"), (COUNT, "CountTokensRequest")]
    {
        for field in schemas[schema]["properties"].as_object().unwrap().keys() {
            for value in &unusual {
                let mut body = message(json!({}));
                body[field] = value.clone();
                let got = server.post(path, &body);
                if got.status == 200 {
                    continue;
                }
                assert!([400, 404].contains(&got.status), "{field} = {value}: {}", got.body);
                let error = got.json()["error"]["message"].as_str().unwrap().to_owned();
                let named = error.starts_with(&format!("'{field}")) || field == "model";
                assert!(named, "{field} = {value}: {error}");
            }
        }
    }
}
