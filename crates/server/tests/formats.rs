//! Structured output, with an engine on a mock backend: random sampling within a grammar always gives valid output.

mod common;

use std::time::Duration;

use common::{Fixture, chat, completion};
use serde_json::{Value, json};
use server::Config;
use text::ChatTemplate;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const SCHEMA: &str = "response_format.json_schema.schema";

fn server(config: Config) -> Fixture {
    Fixture::with_random_engine(config, Some(ChatTemplate::gemma3()))
}

fn format(schema: Value) -> Value {
    json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x", "schema": schema } } })
}

/// A schema whose objects are always short.
fn short() -> Value {
    json!({
        "type": "object",
        "properties": {
            "z": { "type": "string", "maxLength": 5 },
            "a": { "enum": ["red", "green"] },
            "n": { "type": "integer", "minimum": 0, "maximum": 99 },
        },
        "required": ["z", "a", "n"],
        "additionalProperties": false,
    })
}

fn check(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["z", "a", "n"], "{text}");
    assert!(["red", "green"].contains(&value["a"].as_str().unwrap()), "{text}");
    assert!(
        value["n"].as_u64().unwrap() <= 99 && value["z"].as_str().unwrap().chars().count() <= 5,
        "{text}"
    );
}

#[test]
fn output_matches_a_schema() {
    let server = server(Config::default());
    for strict in [json!(true), json!(false), json!(null)] {
        let mut options = format(short());
        options["response_format"]["json_schema"]["strict"] = strict;
        options["n"] = 3.into();
        let got = server.post(CHAT, &chat(options)).json();
        for choice in got["choices"].as_array().expect("choices") {
            check(choice["message"]["content"].as_str().unwrap());
            assert_eq!(choice["finish_reason"], "stop");
        }
    }
    let mut options = format(short());
    options["max_tokens"] = 2000.into();
    let got = server.post(TEXT, &completion(options.clone())).json();
    check(got["choices"][0]["text"].as_str().unwrap());
    options["stream"] = true.into();
    let chunks = server.chunks(TEXT, &completion(options));
    let text: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    check(&text);
}

#[test]
fn json_object_gives_an_object_and_text_is_unconstrained() {
    let server = server(Config::default());
    let content = |kind: &str| {
        let options = json!({ "response_format": { "type": kind }, "seed": 1 });
        server.post(CHAT, &chat(options)).json()["choices"][0]["message"]["content"].take()
    };
    let object = content("json_object");
    assert!(object.as_str().unwrap().starts_with('{'), "{object}");
    assert_eq!(
        content("text"),
        server.post(CHAT, &chat(json!({ "seed": 1 }))).json()["choices"][0]["message"]["content"]
    );
}

#[test]
fn unsupported_and_expensive_schemas_are_rejected_quickly() {
    let server = server(Config::default());
    let deep = (0..60).fold(
        json!({ "type": "null" }),
        |inner, _| json!({ "type": "object", "properties": { "a": inner } }),
    );
    let crossed: Vec<Value> = (0..12)
        .map(|i| {
            (0..4).map(|j| json!({ "properties": { format!("p{i}"): { "const": j } } })).collect::<Vec<_>>()
        })
        .map(|any| json!({ "anyOf": any }))
        .collect();
    let wide: Vec<String> = (0..60_000).map(|number| format!("value {number}")).collect();
    for schema in [
        json!({ "type": "word" }),
        json!({ "type": "string", "pattern": "(" }),
        json!({ "type": "string", "pattern": "^(ab)*$", "minLength": 1_000_000 }),
        json!({ "allOf": crossed }),
        json!({ "type": "array", "uniqueItems": true }),
        json!({ "$ref": "https://example.org/schema" }),
        json!({ "type": "integer", "multipleOf": 999_999_937 }),
        json!({ "enum": wide }),
    ] {
        let (message, param) = server.post(CHAT, &chat(format(schema))).error(400, "invalid_value");
        assert_eq!(param, SCHEMA, "{message}");
        assert!(message.contains(SCHEMA), "{message}");
    }
    assert_eq!(server.post(CHAT, &chat(format(deep))).status, 200);
    // Rejections leave nothing behind: the next request succeeds.
    check(
        server.post(CHAT, &chat(format(short()))).json()["choices"][0]["message"]["content"]
            .as_str()
            .unwrap(),
    );
}

#[test]
fn a_grammar_that_times_out_occupies_its_worker_until_it_is_compiled() {
    let config =
        Config { grammar_workers: 1, grammar_timeout: Duration::from_millis(1), ..Config::default() };
    let server = server(config);
    // 20000 states, 10 µs each.
    let slow = json!({ "type": "integer", "multipleOf": 19_997 });
    let (message, param) = server.post(CHAT, &chat(format(slow))).error(400, "invalid_value");
    assert_eq!(param, SCHEMA);
    assert!(message.contains("too complex"), "{message}");
    let other = server.post(CHAT, &chat(format(short())));
    other.error(429, "queue_full");
    assert_eq!(other.headers["retry-after"], "1");
    // Requests without a grammar do not wait.
    assert_eq!(server.post(CHAT, &chat(json!({}))).status, 200);
}

#[test]
fn a_grammar_without_an_allowed_token_is_an_error() {
    let server = server(Config::default());
    let tokenizer = common::tokenizer();
    // Ban the only token that an object can start with.
    let brace = tokenizer.token_id("<0x7B>").unwrap();
    let options =
        json!({ "response_format": { "type": "json_object" }, "logit_bias": { brace.to_string(): -100 } });
    let (message, param) = server.post(CHAT, &chat(options)).error(400, "format_failed");
    assert_eq!(param, "response_format");
    assert!(message.contains("logit biases"), "{message}");
}
