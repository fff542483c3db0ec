//! `/tokenize` and `/detokenize`.

use serde_json::{Value, json};
use server::Config;

use crate::common::{Fixture, MODEL, Mock, tokenizer};
use crate::messages::scripted;
use crate::models::{TestLoader, one_at_a_time, server};

#[test]
fn text_becomes_tokens_and_text_again() {
    let server = Fixture::new();
    let ids = |body: Value| {
        let got = server.post("/tokenize", &body);
        assert_eq!(got.status, 200, "{}", got.body);
        let got = got.json();
        assert_eq!(got["count"], got["tokens"].as_array().unwrap().len());
        assert_eq!(got["max_model_len"], 256);
        serde_json::from_value::<Vec<u32>>(got["tokens"].clone()).unwrap()
    };
    let plain = ids(json!({ "prompt": "one two", "add_special_tokens": false }));
    let full = ids(json!({ "model": MODEL, "prompt": "one two" }));
    assert_eq!(full, tokenizer().encode_prompt("one two"));
    assert_eq!(full[1..], plain);
    // llama.cpp's names.
    assert_eq!(ids(json!({ "content": "one two" })), plain);
    assert_eq!(ids(json!({ "content": "one two", "add_special": true, "parse_special": true })), full);
    assert_eq!(ids(json!({ "content": "" })), [0_u32; 0]);
    let texts = server.post("/tokenize", &json!({ "prompt": "a two", "return_token_strs": true })).json();
    assert_eq!(texts["token_strs"], json!(["<bos>", "a", " two"]));
    let got = server.post("/detokenize", &json!({ "tokens": full })).json();
    assert_eq!(got["prompt"], got["content"]);
    assert_eq!(got["prompt"], tokenizer().decode(&full, text::DecodeSpecial::Keep));
    assert_eq!(server.post("/detokenize", &json!({ "tokens": [] })).json()["prompt"], "");
}

#[test]
fn messages_become_the_tokens_of_their_prompt() {
    let server = scripted("ok");
    let messages = json!([{ "role": "user", "content": "say" }]);
    let got = server.post("/tokenize", &json!({ "messages": messages })).json();
    let chat = json!({ "model": MODEL, "messages": messages });
    assert_eq!(server.post("/v1/chat/completions", &chat).status, 200);
    assert_eq!(got["tokens"], json!(server.mock.submitted.lock().unwrap().pop().unwrap().prompt));
    let more = json!({ "messages": messages, "add_generation_prompt": false });
    assert!(server.post("/tokenize", &more).json()["count"].as_u64() < got["count"].as_u64());
}

#[test]
fn invalid_requests_name_the_field() {
    let server = Fixture::new();
    for (body, field) in [
        (json!({}), "prompt"),
        (json!({ "prompt": 1 }), "prompt"),
        (json!({ "prompt": "a", "content": "a" }), "content"),
        (json!({ "prompt": "a", "messages": [] }), "messages"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": "a" }), "messages"),
        (
            json!({ "messages": [{ "role": "user", "content": "a" }], "add_special_tokens": true }),
            "add_special_tokens",
        ),
        (json!({ "prompt": "a", "add_special_tokens": 1 }), "add_special_tokens"),
        (json!({ "content": "a", "parse_special": false }), "parse_special"),
        (json!({ "content": "a", "with_pieces": true }), "with_pieces"),
    ] {
        let got = server.post("/tokenize", &body);
        assert_eq!((got.status, &got.json()["error"]["param"]), (400, &json!(field)), "{body}: {}", got.body);
    }
    for tokens in [json!(null), json!("a"), json!([-1]), json!([1.5]), json!([1_000_000])] {
        assert_eq!(server.post("/detokenize", &json!({ "tokens": tokens })).status, 400, "{tokens}");
    }
    server.post("/tokenize", &json!({ "model": "x", "prompt": "a" })).error(404, "model_not_found");
    server.get("/tokenize").error(405, "method_not_allowed");
    let config = Config { api_keys: vec!["secret".to_owned()], ..Config::default() };
    let secret = Fixture::with_config(Mock::new(), config);
    secret.post("/tokenize", &json!({ "prompt": "a" })).error(401, "invalid_api_key");
    secret.post("/detokenize", &json!({ "tokens": [1] })).error(401, "invalid_api_key");
}

#[test]
fn several_models_need_a_name() {
    let loader = TestLoader::new();
    let server = server(&loader, one_at_a_time());
    server.post("/tokenize", &json!({ "prompt": "a" })).error(400, "missing_required_parameter");
    server.post("/detokenize", &json!({ "tokens": [5] })).error(400, "missing_required_parameter");
    assert_eq!(server.post("/tokenize", &json!({ "model": "b", "prompt": "a" })).status, 200);
    assert_eq!(*loader.loads.lock().unwrap(), ["b"]);
}
