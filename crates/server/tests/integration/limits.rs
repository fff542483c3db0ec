//! Limits and rejections: every error is an OpenAI error object and names the field.

use crate::common;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::common::{Fixture, MODEL, Mock, chat, completion};
use engine::SubmitError;
use serde_json::{Value, json};
use server::Config;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

#[test]
fn errors_name_the_invalid_field() {
    let server = Fixture::new();
    let message = |content: Value| json!({ "messages": [{ "role": "user", "content": content }] });
    let format =
        |schema: Value| json!({ "response_format": { "type": "json_schema", "json_schema": schema } });
    let biases: Value =
        (0..513).map(|id| (id.to_string(), json!(1))).collect::<serde_json::Map<_, _>>().into();
    for (more, field) in [
        (json!({ "model": null }), "model"),
        (json!({ "temperature": -0.1 }), "temperature"),
        (json!({ "temperature": "hot" }), "temperature"),
        (json!({ "temperature": 2.1 }), "temperature"),
        (json!({ "top_p": 1.1 }), "top_p"),
        (json!({ "top_k": -2 }), "top_k"),
        (json!({ "top_k": 1.5 }), "top_k"),
        (json!({ "min_p": -1 }), "min_p"),
        (json!({ "seed": 1e30 }), "seed"),
        (json!({ "n": 0 }), "n"),
        (json!({ "n": 17 }), "n"),
        (json!({ "max_tokens": 0 }), "max_tokens"),
        (json!({ "max_tokens": -5 }), "max_tokens"),
        (json!({ "max_completion_tokens": 0 }), "max_completion_tokens"),
        (json!({ "presence_penalty": 3 }), "presence_penalty"),
        (json!({ "frequency_penalty": -3 }), "frequency_penalty"),
        (json!({ "repetition_penalty": 0 }), "repetition_penalty"),
        (json!({ "logit_bias": { "x": 1 } }), "logit_bias"),
        (json!({ "logit_bias": { "1": 101 } }), "logit_bias"),
        (json!({ "logit_bias": { "99999": 1 } }), "logit_bias"),
        (json!({ "logit_bias": biases }), "logit_bias"),
        (json!({ "stop": "" }), "stop"),
        (json!({ "stop": vec!["a"; 65] }), "stop"),
        (json!({ "stop": ["a", "b".repeat(1025)] }), "stop"),
        (json!({ "stop": ["a", 1] }), "stop[1]"),
        (json!({ "stop": 1 }), "stop"),
        (json!({ "stream": "yes" }), "stream"),
        (json!({ "stream_options": {} }), "stream_options"),
        (json!({ "response_format": { "type": "yaml" } }), "response_format.type"),
        (json!({ "response_format": {} }), "response_format.type"),
        (json!({ "response_format": { "type": "json_schema" } }), "response_format.json_schema"),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": 1 } }),
            "response_format.json_schema",
        ),
        (format(json!({ "schema": {} })), "response_format.json_schema.name"),
        (format(json!({ "name": 1, "schema": {} })), "response_format.json_schema.name"),
        (format(json!({ "name": "x" })), "response_format.json_schema.schema"),
        (format(json!({ "name": "x", "schema": [] })), "response_format.json_schema.schema"),
        (format(json!({ "name": "x", "schema": {}, "strict": 1 })), "response_format.json_schema.strict"),
        (json!({ "logprobs": 1 }), "logprobs"),
        (json!({ "top_logprobs": 2 }), "top_logprobs"),
        (json!({ "logprobs": false, "top_logprobs": 0 }), "top_logprobs"),
        (json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs"),
        (json!({ "logprobs": true, "top_logprobs": -1 }), "top_logprobs"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": "hello" }), "messages"),
        (json!({ "messages": [{ "content": "x" }] }), "messages[0].role"),
        (json!({ "messages": [{ "role": "king", "content": "x" }] }), "messages[0].role"),
        (json!({ "messages": [{ "role": "user" }] }), "messages[0].content"),
        (message(json!(null)), "messages[0].content"),
        (message(json!(1)), "messages[0].content"),
        (message(json!([{ "type": "text", "text": 1 }])), "messages[0].content[0].text"),
        (message(json!([{ "type": "text" }])), "messages[0].content[0].text"),
        (message(json!([{ "text": "x" }])), "messages[0].content[0].type"),
        // Rejected by the template: the assistant speaks first.
        (json!({ "messages": [{ "role": "assistant", "content": "x" }] }), "messages"),
    ] {
        let got = server.post(CHAT, &chat(more.clone()));
        let is_missing = got.body.contains("': is required");
        let code = if is_missing { "missing_required_parameter" } else { "invalid_value" };
        let (message, param) = got.error(400, code);
        assert_eq!(param, field, "{more}: {message}");
        assert!(message.contains(field), "{more}: {message}");
        // Types have the names that clients know.
        assert!(!["u32", "i64", "f64", "struct"].iter().any(|name| message.contains(name)), "{message}");
    }
    for (more, field) in [
        (json!({ "prompt": null }), "prompt"),
        (json!({ "prompt": [] }), "prompt"),
        (json!({ "prompt": [[]] }), "prompt"),
        (json!({ "prompt": [1, "a"] }), "prompt"),
        (json!({ "prompt": [-1] }), "prompt[0]"),
        (json!({ "prompt": [99999] }), "prompt"),
        (json!({ "prompt": ["a", "b", "c"], "n": 6 }), "prompt"),
        (json!({ "echo": 1 }), "echo"),
        (json!({ "logprobs": 6 }), "logprobs"),
        (json!({ "logprobs": true }), "logprobs"),
        (json!({ "best_of": 1, "n": 2 }), "best_of"),
        (json!({ "best_of": 0 }), "best_of"),
        (json!({ "best_of": 17 }), "best_of"),
        (json!({ "best_of": 2, "stream": true }), "best_of"),
        (json!({ "prompt": ["a", "b", "c"], "best_of": 6 }), "prompt"),
        (json!({ "timings_per_token": 1 }), "timings_per_token"),
    ] {
        let (message, param) = server.post(TEXT, &completion(more.clone())).error(400, "invalid_value");
        assert_eq!(param, field, "{more}: {message}");
    }
    let (message, param) =
        server.post(CHAT, &json!({ "model": MODEL })).error(400, "missing_required_parameter");
    assert_eq!((message.as_str(), param), ("'messages': is required", json!("messages")));
    assert!(server.mock.submitted.lock().unwrap().is_empty());
}

#[test]
fn unsupported_features_are_rejected_and_not_ignored() {
    let server = Fixture::new();
    let audio = json!([{ "type": "input_audio", "input_audio": { "data": "x" } }]);
    for (more, field) in [
        (json!({ "functions": [{}] }), "functions"),
        (json!({ "function_call": "auto" }), "function_call"),
        (json!({ "modalities": ["text", "audio"] }), "modalities"),
        (json!({ "messages": [{ "role": "function", "content": "x" }] }), "messages[0].role"),
        (json!({ "messages": [{ "role": "user", "content": audio }] }), "messages[0].content[0].type"),
    ] {
        let (message, param) = server.post(CHAT, &chat(more.clone())).error(400, "unsupported_parameter");
        assert_eq!(param, field, "{message}");
        assert!(message.contains("not supported by this server yet"), "{message}");
    }
    // Fields of other servers that would change the response.
    for (more, field) in [
        (json!({ "use_beam_search": true }), "use_beam_search"),
        (json!({ "mirostat": 2 }), "mirostat"),
        (json!({ "typical_p": 0.5 }), "typical_p"),
        (json!({ "skip_special_tokens": false }), "skip_special_tokens"),
        (json!({ "bad_words": ["x"] }), "bad_words"),
        (json!({ "chat_template": "x" }), "chat_template"),
        (json!({ "prompt_logprobs": 1 }), "prompt_logprobs"),
        (json!({ "guided_whitespace_pattern": " " }), "guided_whitespace_pattern"),
    ] {
        let (message, param) = server.post(CHAT, &chat(more.clone())).error(400, "unsupported_parameter");
        assert_eq!(param, field, "{message}");
    }
    let neutral = json!({
        "use_beam_search": false, "mirostat": 0, "typical_p": 1.0, "skip_special_tokens": true, "bad_words": [],
        "length_penalty": 1, "top_n_sigma": -1, "truncate_prompt_tokens": null, "chat_template": "", "user": "me",
        "metadata": { "a": "b" }, "store": false, "top_k": -1,
    });
    assert_eq!(server.post(CHAT, &chat(neutral)).status, 200);
    let suffix = server.post(TEXT, &completion(json!({ "suffix": "x" })));
    assert_eq!(suffix.error(400, "unsupported_parameter").1, "suffix");
    let unset = json!({
        "response_format": { "type": "text" }, "logprobs": false, "top_logprobs": null, "tools": [],
        "tool_choice": "none", "modalities": ["text"], "stop": null, "stream": null, "n": null,
    });
    assert_eq!(server.post(CHAT, &chat(unset)).status, 200);
}

#[test]
fn the_prompt_follows_the_options_of_the_template() {
    let server = Fixture::new();
    let prompt = |more: Value| {
        let got = server.post(CHAT, &chat(more));
        assert_eq!(got.status, 200, "{}", got.body);
        let request = server.mock.submitted.lock().unwrap().pop().unwrap();
        common::tokenizer().decode(&request.prompt, text::DecodeSpecial::Keep)
    };
    let start = "<bos><start_of_turn>user\nsay<end_of_turn>\n";
    assert_eq!(prompt(json!({})), format!("{start}<start_of_turn>model\n"));
    assert_eq!(prompt(json!({ "add_generation_prompt": false })), start);
    let messages =
        json!([{ "role": "user", "content": "say" }, { "role": "assistant", "content": "one two " }]);
    let continued =
        json!({ "messages": messages, "continue_final_message": true, "add_generation_prompt": false });
    assert_eq!(prompt(continued), format!("{start}<start_of_turn>model\none two "));
    assert_eq!(
        prompt(json!({ "chat_template_kwargs": { "enable_thinking": false } })),
        format!("{start}<start_of_turn>model\n")
    );
    for (more, field) in [
        (json!({ "continue_final_message": true }), "continue_final_message"),
        (json!({ "continue_final_message": true, "add_generation_prompt": true }), "add_generation_prompt"),
        (json!({ "chat_template_kwargs": { "messages": [] } }), "chat_template_kwargs"),
        (json!({ "chat_template_kwargs": 1 }), "chat_template_kwargs"),
    ] {
        let (message, param) = server.post(CHAT, &chat(more)).error(400, "invalid_value");
        assert_eq!(param, field, "{message}");
    }
}

#[test]
fn models_have_several_names_and_paths_several_spellings() {
    let server = Fixture::new();
    let got = server.post(CHAT, &chat(json!({ "model": "other-name" })));
    assert_eq!((got.status, &got.json()["model"]), (200, &json!(MODEL)));
    assert_eq!(server.get("/v1/models/other-name").json()["id"], MODEL);
    for path in ["//v1/chat/completions", "/v1//chat/completions/", "/v1/chat/completions//"] {
        assert_eq!(server.post(path, &chat(json!({}))).status, 200, "{path}");
    }
    assert_eq!(server.get("/health/").status, 200);
    assert_eq!(server.get("/v1/models/?limit=3").status, 200);
    // An empty prompt is the beginning of a text, if the model has a token for it.
    assert_eq!(server.post(TEXT, &completion(json!({ "prompt": "" }))).status, 200);
    assert_eq!(server.mock.submitted.lock().unwrap().pop().unwrap().prompt, [1]);
}

#[test]
fn unusual_values_are_accepted_or_rejected_with_the_field_name() {
    let mut mock = Mock::new();
    mock.script.truncate(1);
    let server = Fixture::with_config(mock, Config::default());
    let schemas = server.get("/openapi.json").json()["components"]["schemas"].take();
    let unusual = [
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(1),
        json!(1.5),
        json!(1e300),
        json!(-1e-300),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(""),
        json!("x"),
        json!("\u{0}"),
        json!([]),
        json!([null]),
        json!([[]]),
        json!([{}]),
        json!(["x", "x"]),
        json!([0, 1]),
        json!({}),
        json!({ "type": "text" }),
        json!({ "1": 1 }),
        json!({ "x": null }),
    ];
    for (path, body, endpoint) in
        [(CHAT, chat(json!({})), "ChatRequest"), (TEXT, completion(json!({})), "CompletionRequest")]
    {
        for schema in ["Options", endpoint] {
            for field in schemas[schema]["properties"].as_object().unwrap().keys() {
                for value in &unusual {
                    let mut body = body.clone();
                    body[field] = value.clone();
                    let got = server.post(path, &body);
                    if got.status == 200 {
                        continue;
                    }
                    assert!([400, 404].contains(&got.status), "{field} = {value}: {}", got.body);
                    let named = got.json()["error"]["param"].as_str().unwrap_or_default().to_owned();
                    assert!(named.starts_with(field.as_str()), "{field} = {value}: {}", got.body);
                }
            }
        }
    }
}

#[test]
fn a_panic_is_an_internal_error() {
    let mut mock = Mock::new();
    mock.panics = true;
    let server = Fixture::with_config(mock, Config::default());
    server.post(CHAT, &chat(json!({}))).error(500, "internal_error");
    server.wait_metric("indrik_http_requests_total{outcome=\"internal_error\"} 1");
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn bodies_that_are_not_json_are_rejected() {
    let server = Fixture::new();
    let deep = "[".repeat(100_000);
    for body in [
        b"".as_slice(),
        b"{",
        b"nonsense",
        b"{} {}",
        b"[1]",
        b"{\"model\": \"\xff\"}",
        deep.as_bytes(),
        b"\x00",
    ] {
        server.post_raw(CHAT, body).error(400, "invalid_value");
    }
    for number in ["NaN", "-Infinity", "1e999"] {
        let body = chat(json!({ "temperature": 77 })).to_string().replace("77", number);
        server.post_raw(CHAT, body.as_bytes()).error(400, "invalid_value");
    }
    let form = ureq::post(server.url(CHAT)).config().http_status_as_error(false).build();
    let mut got = form.content_type("text/plain").send(chat(json!({})).to_string()).unwrap();
    assert_eq!(got.status(), 415);
    assert!(got.body_mut().read_to_string().unwrap().contains("application/json"));
}

#[test]
fn bodies_are_limited_in_size_and_time() {
    let config = Config { max_body_bytes: 1000, body_timeout: Duration::from_secs(2), ..Config::default() };
    let server = Fixture::with_config(Mock::new(), config);
    assert_eq!(server.post(CHAT, &chat(json!({ "user": "x".repeat(500) }))).status, 200);
    server.post(CHAT, &chat(json!({ "user": "x".repeat(1000) }))).error(413, "body_too_large");
    server.post_raw(CHAT, &vec![b' '; 50 << 20]).error(413, "body_too_large");
    let mut slow = TcpStream::connect(server.address).unwrap();
    write!(slow, "POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n").unwrap();
    write!(slow, "Content-Length: 100\r\n\r\n{{").unwrap();
    assert!(read_to_close(&mut slow).starts_with("HTTP/1.1 408 "));
}

/// Everything received until the connection is closed.
fn read_to_close(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(1800))).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("the server closes the connection");
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn headers_are_limited_in_size_and_time() {
    let config =
        Config { max_header_bytes: 8 << 10, header_timeout: Duration::from_secs(2), ..Config::default() };
    let mut mock = Mock::new();
    mock.delay = Duration::from_secs(1);
    let server = Fixture::with_config(mock, config);
    let mut slow = TcpStream::connect(server.address).unwrap();
    write!(slow, "GET /health HTTP/1.1\r\nHost").unwrap();
    read_to_close(&mut slow);
    let mut idle = TcpStream::connect(server.address).unwrap();
    read_to_close(&mut idle);
    let mut flood = TcpStream::connect(server.address).unwrap();
    // In one call: the server answers, and closes, before it has read the end.
    let request = format!("GET /health HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "x".repeat(9 << 10));
    flood.write_all(request.as_bytes()).unwrap();
    let mut status = [0; 12];
    flood.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 431");
    let operation = json!({
        "name": "image encoder of mock", "uses_npu": false, "reason": "no AMD NPU was found", "products": 0,
        "fallbacks": 0, "weight_bytes": 0,
    });
    assert_eq!(server.get("/health").json(), json!({ "status": "alive", "npu": [operation] }));
    // The timeout applies to the headers only, not to the response.
    assert_eq!(server.post(CHAT, &chat(json!({}))).status, 200);
}

#[test]
fn a_prompt_that_is_too_long_is_rejected_with_both_lengths() {
    let server = Fixture::new();
    let long = "a".repeat(300);
    let (message, _) =
        server.post(TEXT, &completion(json!({ "prompt": long }))).error(400, "context_length_exceeded");
    assert!(message.contains("301 tokens") && message.contains("256"), "{message}");
    // A prompt may fill the context: the last token of a completion is never an input.
    let longest = completion(json!({ "prompt": "a".repeat(255), "max_tokens": 5 }));
    let usage = server.post(TEXT, &longest).json()["usage"].take();
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(256), &json!(1)));
    let config = Config { max_prompt_tokens: Some(20), ..Config::default() };
    let small = Fixture::with_config(Mock::new(), config);
    let (message, _) = small.post(TEXT, &longest).error(400, "context_length_exceeded");
    assert!(message.contains("256 tokens") && message.contains("20"), "{message}");
    let usage = small.post(TEXT, &completion(json!({ "prompt": "a".repeat(19) }))).json()["usage"].take();
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(20), &json!(6)));
    *server.mock.submit_error.lock().unwrap() =
        Some(SubmitError::PromptTooLong { tokens: 9, context_length: 8 });
    server.post(CHAT, &chat(json!({}))).error(400, "context_length_exceeded");
}

#[test]
fn a_full_queue_returns_retry_after() {
    let server = Fixture::new();
    *server.mock.submit_error.lock().unwrap() =
        Some(SubmitError::QueueFull { retry_after: Duration::from_millis(1500) });
    for stream in [false, true] {
        let got = server.post(CHAT, &chat(json!({ "stream": stream })));
        got.error(429, "queue_full");
        assert_eq!(got.headers["retry-after"], "2");
    }
    *server.mock.submit_error.lock().unwrap() = Some(SubmitError::Invalid("the reason".to_owned()));
    assert_eq!(server.post(CHAT, &chat(json!({}))).error(400, "invalid_value").0, "the reason");
    *server.mock.submit_error.lock().unwrap() = Some(SubmitError::Draining);
    server.post(CHAT, &chat(json!({}))).error(503, "not_ready");
}

#[test]
fn the_queue_timeout_rejects_before_the_response_head() {
    let mut mock = Mock::new();
    mock.wait = Duration::from_secs(100);
    let config = Config { queue_timeout: Duration::from_millis(50), ..Config::default() };
    let server = Fixture::with_config(mock, config);
    for stream in [false, true] {
        let got = server.post(CHAT, &chat(json!({ "stream": stream })));
        got.error(429, "queue_too_slow");
        assert!(got.headers.contains_key("retry-after"));
    }
    server.wait_live(0);
}

#[test]
fn requests_have_a_deadline() {
    let mut mock = Mock::new();
    mock.delay = Duration::from_secs(100);
    let config = Config { request_timeout: Duration::from_millis(100), ..Config::default() };
    let server = Fixture::with_config(mock, config);
    server.post(CHAT, &chat(json!({}))).error(504, "deadline");
    let data = server.stream(CHAT, &chat(json!({ "stream": true })));
    assert!(data.last().unwrap().contains("\"deadline\""));
    server.wait_live(0);
}

#[test]
fn idle_streams_get_keep_alive_comments() {
    let mut mock = Mock::new();
    mock.delay = Duration::from_millis(200);
    let config = Config { keep_alive: Duration::from_millis(20), ..Config::default() };
    let server = Fixture::with_config(mock, config);
    let body = chat(json!({ "stream": true, "max_tokens": 1 }));
    let got = server.post(CHAT, &body);
    assert!(got.body.contains("\n:\n") || got.body.contains("\n: \n"), "{:?}", got.body);
    assert!(got.body.ends_with("data: [DONE]\n\n"));
}

#[test]
fn clients_that_do_not_read_are_disconnected() {
    let mut mock = Mock::new();
    // More than socket buffers hold.
    mock.script = mock.script.repeat(20_000);
    mock.context_length = 1_000_000;
    let config = Config { stall_timeout: Duration::from_millis(200), ..Config::default() };
    let server = Fixture::with_config(mock, config);
    let body = chat(json!({ "stream": true })).to_string();
    let mut client = TcpStream::connect(server.address).unwrap();
    write!(client, "POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n").unwrap();
    write!(client, "Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    server.wait_metric("indrik_http_requests_total{outcome=\"client_disconnected\"} 1");
}

#[test]
fn requests_need_an_accepted_api_key() {
    let config = Config { api_keys: vec!["first".to_owned(), "second".to_owned()], ..Config::default() };
    let server = Fixture::with_config(Mock::new(), config);
    let got = server.post(CHAT, &chat(json!({})));
    got.error(401, "invalid_api_key");
    assert_eq!(got.headers["www-authenticate"], "Bearer");
    assert_eq!(got.json()["error"]["type"], "authentication_error");
    for wrong in ["Bearer third", "Bearer firs", "Bearer first2", "Bearer", "Bearer ", "first", "Basic first"]
    {
        server.get_with("/v1/models", ("Authorization", wrong)).error(401, "invalid_api_key");
    }
    for right in ["Bearer first", "bearer second"] {
        assert_eq!(server.get_with("/v1/models", ("Authorization", right)).status, 200);
    }
    assert_eq!(server.get_with("/v1/models", ("x-api-key", "first")).status, 200);
    server.get_with("/v1/models", ("x-api-key", "third")).error(401, "invalid_api_key");
    for path in ["/health", "/ready", "/metrics", "/openapi.json"] {
        assert_eq!(server.get(path).status, 200);
    }
}

#[test]
fn unknown_models_paths_and_methods_have_their_own_errors() {
    let server = Fixture::new();
    let (message, param) =
        server.post(CHAT, &chat(json!({ "model": "gpt-5" }))).error(404, "model_not_found");
    assert!(message.contains("gpt-5") && param == "model");
    server.get("/v2").error(404, "unknown_url");
    server.get("/v1/audio/speech").error(404, "unknown_url");
    let got = server.get(CHAT);
    got.error(405, "method_not_allowed");
    assert_eq!(got.headers["allow"], "POST");
    let got = server.post("/v1/models", &json!({}));
    got.error(405, "method_not_allowed");
    assert_eq!(got.headers["allow"], "GET, HEAD");
}

#[test]
fn readiness_follows_the_generator() {
    let server = Fixture::new();
    assert_eq!(server.get("/ready").json(), json!({ "status": "ready" }));
    *server.mock.not_ready.lock().unwrap() = Some("the weights are loading".to_owned());
    let got = server.get("/ready");
    let (message, _) = got.error(503, "not_ready");
    assert!(message.contains("the weights are loading"), "{message}");
    assert!(got.headers.contains_key("retry-after"));
    server.post(CHAT, &chat(json!({}))).error(503, "not_ready");
    assert_eq!(server.get("/health").status, 200);
    assert!(server.get("/metrics").body.contains("\nindrik_ready 0\n"));
}

#[test]
fn the_server_is_not_ready_if_the_gpu_does_not_respond() {
    let mut mock = Mock::new();
    mock.responds = false;
    let config = Config { probe_timeout: Duration::from_millis(50), ..Config::default() };
    let server = Fixture::with_config(mock, config);
    let (message, _) = server.get("/ready").error(503, "not_ready");
    assert!(message.contains("the GPU did not respond within 0.05 s"), "{message}");
}

#[test]
fn cors_headers_are_sent_to_allowed_origins_only() {
    let allowed = "access-control-allow-origin";
    let server = Fixture::new();
    let got = server.get_with("/v1/models", ("Origin", "http://a.example"));
    assert!(!got.headers.contains_key(allowed));
    let config = Config { cors_origins: vec!["http://a.example".to_owned()], ..Config::default() };
    let server = Fixture::with_config(Mock::new(), config);
    assert_eq!(
        server.get_with("/v1/models", ("Origin", "http://a.example")).headers[allowed],
        "http://a.example"
    );
    let got = server.get_with("/v1/models", ("Origin", "http://b.example"));
    assert!(!got.headers.contains_key(allowed));
    // The preflight request of a browser, with the headers of a client library.
    let mut stream = TcpStream::connect(server.address).unwrap();
    write!(
        stream,
        "OPTIONS {CHAT} HTTP/1.1\r\nHost: x\r\nOrigin: http://a.example\r\nAccess-Control-Request-Method: POST\r\n\
         Access-Control-Request-Headers: authorization,content-type,x-stainless-lang\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let response = response.to_lowercase();
    assert!(response.starts_with("http/1.1 200"), "{response}");
    assert!(
        response.contains("access-control-allow-headers: authorization,content-type,x-stainless-lang"),
        "{response}"
    );
    assert!(response.contains("access-control-allow-methods: get,post"), "{response}");
    let config = Config { cors_origins: vec!["*".to_owned()], ..Config::default() };
    let server = Fixture::with_config(Mock::new(), config);
    assert_eq!(server.get_with("/v1/models", ("Origin", "http://b.example")).headers[allowed], "*");
}

#[test]
fn stopping_cancels_running_requests() {
    let mut mock = Mock::new();
    mock.delay = Duration::from_secs(100);
    let mut server = Fixture::with_config(mock, Config::default());
    let running = server.running.take().unwrap();
    let body = chat(json!({})).to_string();
    let mut client = TcpStream::connect(server.address).unwrap();
    write!(client, "POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n").unwrap();
    write!(client, "Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    server.wait_live(1);
    server.handle.drain();
    server.handle.stop();
    server.runtime.block_on(running).unwrap();
    server.wait_live(0);
    assert_eq!(read_to_close(&mut client), "");
}
