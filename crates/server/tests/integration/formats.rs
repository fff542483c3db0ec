//! Structured output, with an engine on a mock backend: random sampling within a grammar always gives valid output.

use crate::common;
use std::time::Duration;

use crate::common::{Fixture, chat, completion, tokenizer};
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

/// The content of the only choice.
fn content(server: &Fixture, more: Value) -> String {
    let got = server.post(CHAT, &chat(more.clone()));
    assert_eq!(got.status, 200, "{more}: {}", got.body);
    got.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

#[test]
fn the_fields_of_other_servers_constrain_the_output() {
    let server = server(Config::default());
    for more in [
        json!({ "guided_json": short() }),
        json!({ "guided_json": short().to_string() }),
        json!({ "json_schema": short() }),
        json!({ "structured_outputs": { "json": short() } }),
    ] {
        check(&content(&server, more));
    }
    // Integers may be written as floats, also in a schema that is text.
    let floats = json!({ "type": "string", "minLength": 2.0, "maxLength": 3.0 });
    for schema in [floats.clone(), json!(floats.to_string())] {
        let text = content(&server, json!({ "guided_json": schema }));
        let value: String = serde_json::from_str(&text).unwrap();
        assert!((2..=3).contains(&value.chars().count()), "{text}");
    }
    for more in [
        json!({ "guided_regex": "[0-9]{3}-[ab]" }),
        json!({ "structured_outputs": { "regex": "[0-9]{3}-[ab]" } }),
    ] {
        let text = content(&server, more);
        let (digits, letter) = text.split_once('-').unwrap();
        assert!(digits.len() == 3 && digits.parse::<u32>().is_ok() && ["a", "b"].contains(&letter), "{text}");
    }
    for more in [
        json!({ "guided_choice": ["yes", "no?"] }),
        json!({ "structured_outputs": { "choice": ["yes", "no?"] } }),
    ] {
        assert!(["yes", "no?"].contains(&content(&server, more).as_str()));
    }
    let gbnf = "root ::= \"<\" inner \">\"\ninner ::= \"x\" | \"(\" inner \")\"";
    let lark = "start: \"<\" \"x\"{1,3} \">\"";
    for (field, grammar) in [("grammar", gbnf), ("guided_grammar", gbnf), ("grammar", lark)] {
        let text = content(&server, json!({ field: grammar, "max_tokens": 100 }));
        assert!(text.starts_with("<"), "{text}");
    }
    let text = content(&server, json!({ "structured_outputs": { "json_object": true }, "max_tokens": 50 }));
    assert!(text.starts_with('{'), "{text}");
}

#[test]
fn constraints_that_cannot_be_used_name_their_field() {
    let server = server(Config::default());
    for (more, field) in [
        (json!({ "guided_json": "{" }), "guided_json"),
        (json!({ "guided_json": 1 }), "guided_json"),
        (json!({ "guided_json": { "type": "word" } }), "guided_json"),
        (json!({ "guided_regex": "(" }), "guided_regex"),
        (json!({ "guided_choice": [] }), "guided_choice"),
        (json!({ "guided_choice": vec!["x"; 1001] }), "guided_choice"),
        (json!({ "guided_grammar": "start: nothing" }), "guided_grammar"),
        (json!({ "grammar": "root ::= other" }), "grammar"),
        (json!({ "structured_outputs": { "regex": "(" } }), "structured_outputs.regex"),
        (json!({ "structured_outputs": { "regex": 1 } }), "structured_outputs.regex"),
        (json!({ "guided_regex": "a", "guided_choice": ["a"] }), "guided_choice"),
        (json!({ "structured_outputs": { "regex": "a", "choice": ["a"] } }), "structured_outputs.choice"),
        (json!({ "ignore_eos": true, "guided_regex": "a" }), "ignore_eos"),
    ] {
        let (message, param) = server.post(CHAT, &chat(more.clone())).error(400, "invalid_value");
        assert_eq!(param, field, "{more}: {message}");
        assert!(message.contains(field), "{message}");
    }
    let tag = json!({ "structured_outputs": { "structural_tag": "x" } });
    let (_, param) = server.post(CHAT, &chat(tag)).error(400, "unsupported_parameter");
    assert_eq!(param, "structured_outputs.structural_tag");
}

#[test]
fn min_tokens_and_ignore_eos_move_the_end_of_a_completion() {
    let server = server(Config::default());
    // A completion of the grammar may end after two tokens, but does not before the fifth.
    for _ in 0..10 {
        let both = json!({ "guided_regex": "a{2,9}", "min_tokens": 5, "max_tokens": 20 });
        let got = server.post(TEXT, &completion(both)).json();
        let text = got["choices"][0]["text"].as_str().unwrap();
        assert!((5..=9).contains(&text.len()) && text.bytes().all(|byte| byte == b'a'), "{text}");
    }
    let mock = Fixture::new();
    let submitted = |more: Value| {
        assert_eq!(mock.post(TEXT, &completion(more)).status, 200);
        mock.mock.submitted.lock().unwrap().pop().unwrap()
    };
    let stops = submitted(json!({})).stop_token_ids;
    assert!(!stops.is_empty());
    assert!(submitted(json!({ "ignore_eos": true })).stop_token_ids.is_empty());
    assert_eq!(submitted(json!({ "stop_token_ids": [9, 7] })).stop_token_ids, [&stops[..], &[9, 7]].concat());
    assert_eq!(submitted(json!({ "ignore_eos": true, "stop_token_ids": [9] })).stop_token_ids, [9]);
    // Stop tokens, also those of the request, are banned until there are enough tokens.
    let mut constraint = submitted(json!({ "min_tokens": 2, "stop_token_ids": [9] })).grammar.unwrap();
    for generated in 0..4 {
        let mut words = [0; 32];
        constraint.mask(&mut words).unwrap();
        let allows = |id: u32| words[id as usize / 32] >> (id % 32) & 1 == 1;
        assert!(allows(8), "other tokens are allowed");
        assert_eq!([stops[0], 9].map(allows), [generated >= 2; 2], "after {generated} tokens");
        // Then nothing is constrained any more, unlike with a grammar.
        assert_eq!(constraint.is_lifted(), generated >= 2, "after {generated} tokens");
        constraint.accept(8).unwrap();
    }
    let with_grammar = json!({ "min_tokens": 1, "guided_regex": "a*" });
    let mut constraint = submitted(with_grammar).grammar.unwrap();
    constraint.accept(tokenizer().token_id("a").unwrap()).unwrap();
    assert!(!constraint.is_lifted());
    for (more, field) in [
        (json!({ "min_tokens": 9, "max_tokens": 8 }), "min_tokens"),
        (json!({ "stop_token_ids": [99_999] }), "stop_token_ids"),
        (json!({ "stop_token_ids": vec![9; 65] }), "stop_token_ids"),
    ] {
        let (_, param) = mock.post(TEXT, &completion(more)).error(400, "invalid_value");
        assert_eq!(param, field);
    }
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
