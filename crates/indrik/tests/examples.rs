//! Runs the code of every example with a tiny model.

#[allow(dead_code, reason = "examples have their own main")]
#[path = "../examples/chat_with_tool.rs"]
mod chat_with_tool;
#[allow(dead_code, reason = "examples have their own main")]
#[path = "../examples/embed_server.rs"]
mod embed_server;
#[allow(dead_code, reason = "examples have their own main")]
#[path = "../examples/generate.rs"]
mod generate;
#[allow(dead_code, reason = "examples have their own main")]
#[path = "../examples/logits.rs"]
mod logits;

use std::path::{Path, PathBuf};

use indrik::{Model, Options, ToolChoice};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures").join(name)
}

/// A Llama with a tokenizer and a chat template.
fn tiny() -> String {
    fixture("llama_tied").display().to_string()
}

fn reference(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture(name).join("reference.json")).unwrap()).unwrap()
}

/// A Qwen 2 whose chat template supports tools, in Qwen 2.5's format.
fn with_tools() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(fixture("qwen2_tied").join(file), dir.path().join(file)).unwrap();
    }
    let edit = |file: &str, key: &str, value: Value| {
        let path = dir.path().join(file);
        let mut json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        json[key] = value;
        std::fs::write(path, json.to_string()).unwrap();
    };
    let template = r#"{% if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.content %}{{ message.content }}{% endif %}{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"#;
    edit("tokenizer_config.json", "chat_template", json!(template));
    edit("config.json", "max_position_embeddings", json!(2048));
    dir
}

fn has_device() -> bool {
    testkit::cpu_device().is_some()
}

#[test]
fn generate_matches_the_reference() {
    if !has_device() {
        return;
    }
    let reference = reference("llama_tied");
    let mut out = vec![];
    generate::run(&tiny(), reference["text"].as_str().unwrap(), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with(reference["greedy_text"].as_str().unwrap()), "{text:?}");
    assert!(text.contains("tokens (") && text.contains("tok/s"), "{text}");
}

#[test]
fn logits_rank_the_reference_token_first() {
    if !has_device() {
        return;
    }
    let reference = reference("llama_tied");
    let mut out = vec![];
    logits::run(&tiny(), reference["text"].as_str().unwrap(), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert_eq!(text.lines().count(), 5, "{text}");
    let first: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(first[1], reference["greedy"][0].to_string(), "{text}");
}

#[test]
fn chat_calls_the_tool_and_replies_with_its_result() {
    if !has_device() {
        return;
    }
    let model = with_tools();
    let mut out = vec![];
    // The weights are random: only the grammar makes this model call anything.
    let path = model.path().to_str().unwrap();
    chat_with_tool::run(path, "the cat?", ToolChoice::Required, &mut out).unwrap();
    let text = String::from_utf8_lossy(&out).into_owned();
    let call = text.lines().next().unwrap();
    assert!(call.starts_with("weather({\"city\":\"") && call.contains("\"celsius\":21"), "{text}");
    assert!(text.lines().count() > 1, "{text}");
}

#[test]
fn chat_rejects_tools_that_the_template_does_not_support() {
    if !has_device() {
        return;
    }
    let error = chat_with_tool::run(&tiny(), "the cat?", ToolChoice::Auto, &mut vec![]).unwrap_err();
    assert!(error.to_string().contains("does not support tools"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_is_served_next_to_the_application_routes() {
    if !has_device() {
        return;
    }
    let model = Model::open(&tiny(), Options { max_sequences: 2, ..Options::default() }).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = embed_server::app(&model).unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });

    let request = async |method: &str, path: &str, body: &str| {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    };
    assert!(request("GET", "/", "").await.ends_with("an application with a language model"));
    let reference = reference("llama_tied");
    let body = json!({
        "model": "local", "prompt": reference["text"], "max_tokens": 4, "temperature": 0,
    });
    let response = request("POST", "/v1/completions", &body.to_string()).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    let (_, json) = response.split_once("\r\n\r\n").unwrap();
    let json: Value = serde_json::from_str(json).unwrap();
    let text = json["choices"][0]["text"].as_str().unwrap();
    assert!(reference["greedy_text"].as_str().unwrap().starts_with(text), "{json}");
    server.abort();
}
