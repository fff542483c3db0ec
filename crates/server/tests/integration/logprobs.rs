//! Log probabilities, streamed and not.

use crate::common;
use crate::common::{Fixture, Mock, chat, completion, tokenizer};
use serde_json::{Value, json};
use server::Config;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// Text and logprobs of a chat completion, which must be the same streamed or not.
fn logprobs(server: &Fixture, more: Value) -> (String, Vec<Value>) {
    let mut body = chat(more);
    body["temperature"] = 0.into();
    let got = server.post(CHAT, &body).json();
    let choice = &got["choices"][0];
    assert_eq!(choice["logprobs"]["refusal"], json!(null));
    let content = choice["logprobs"]["content"].as_array().expect("a list").clone();
    body["stream"] = true.into();
    let chunks = server.chunks(CHAT, &body);
    let streamed: Vec<Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(streamed, content);
    (choice["message"]["content"].as_str().unwrap().to_owned(), content)
}

fn bytes(content: &[Value]) -> Vec<u8> {
    let bytes = content.iter().flat_map(|token| token["bytes"].as_array().unwrap());
    bytes.map(|byte| byte.as_u64().unwrap() as u8).collect()
}

fn names(content: &[Value]) -> Vec<&str> {
    content.iter().map(|token| token["token"].as_str().unwrap()).collect()
}

#[test]
fn a_chat_reports_logprobs() {
    let server = Fixture::new();
    let (text, content) = logprobs(&server, json!({ "logprobs": true, "top_logprobs": 3 }));
    assert_eq!(text, " one two three four five six");
    assert_eq!(names(&content), common::WORDS);
    assert_eq!(bytes(&content), text.as_bytes());
    assert_eq!((&content[0]["logprob"], &content[5]["logprob"]), (&json!(-0.5), &json!(-3.0)));
    let top = content[1]["top_logprobs"].as_array().unwrap();
    assert_eq!(top.len(), 3);
    // Control tokens have a name and no bytes.
    assert_eq!(top[2], json!({ "token": "<eos>", "logprob": -1.5, "bytes": null }));
    let (_, content) = logprobs(&server, json!({ "logprobs": true }));
    assert_eq!(content[0]["top_logprobs"], json!([]));
}

#[test]
fn tokens_within_a_character_report_their_bytes() {
    let mut mock = Mock::new();
    let tokenizer = tokenizer();
    mock.script = "é🦙".bytes().map(|byte| tokenizer.token_id(&format!("<0x{byte:02X}>")).unwrap()).collect();
    let server = Fixture::with_config(mock, Config::default());
    let (text, content) = logprobs(&server, json!({ "logprobs": true }));
    assert_eq!((text.as_str(), bytes(&content)), ("é🦙", text.as_bytes().to_vec()));
    assert_eq!(names(&content), ["\\xc3", "\\xa9", "\\xf0", "\\x9f", "\\xa6", "\\x99"]);
    // A character cut off by the token limit becomes a replacement character; its tokens are reported.
    let (text, content) = logprobs(&server, json!({ "logprobs": true, "max_tokens": 4 }));
    assert_eq!((text.as_str(), content.len()), ("é\u{fffd}", 4));
    // Tokens cut off by a stop string are not.
    let (text, content) = logprobs(&server, json!({ "logprobs": true, "stop": "🦙" }));
    assert_eq!((text.as_str(), names(&content)), ("é", vec!["\\xc3", "\\xa9"]));
}

#[test]
fn tokens_cut_off_by_a_stop_string_are_not_reported() {
    let server = Fixture::new();
    let (text, content) = logprobs(&server, json!({ "logprobs": true, "stop": ["ee four fi", "six!"] }));
    assert_eq!(text, " one two thr");
    assert_eq!(names(&content), [" one", " two", " three"]);
    let (text, content) = logprobs(&server, json!({ "logprobs": true, "stop": " two" }));
    assert_eq!((text.as_str(), names(&content)), (" one", vec![" one"]));
    // Tokens held back as a possible match are reported at the end.
    let (_, content) = logprobs(&server, json!({ "logprobs": true, "stop": "six!" }));
    assert_eq!(names(&content), common::WORDS);
}

#[test]
fn a_text_completion_reports_logprobs_as_lists() {
    let server = Fixture::new();
    let mut body = completion(json!({ "temperature": 0, "logprobs": 2, "max_tokens": 3 }));
    let logprobs = server.post(TEXT, &body).json()["choices"][0]["logprobs"].take();
    let expected = json!({
        "tokens": [" one", " two", " three"],
        "token_logprobs": [-0.5, -1.0, -1.5],
        "top_logprobs": [
            { "<unk>": 0.0, "<bos>": -0.5, " one": -0.5 },
            { "<unk>": -0.5, "<bos>": -1.0, " two": -1.0 },
            { "<unk>": -1.0, "<bos>": -1.5, " three": -1.5 },
        ],
        "text_offset": [0, 4, 8],
    });
    // `-0.0` is `0.0`.
    assert_eq!(logprobs.to_string().replace("-0.0", "0.0"), sorted(&expected));
    body["stream"] = true.into();
    let chunks = server.chunks(TEXT, &body);
    let offsets: Vec<&Value> =
        chunks.iter().map(|chunk| &chunk["choices"][0]["logprobs"]["text_offset"]).collect();
    assert_eq!(offsets, [&json!([0]), &json!([4]), &json!([8]), &json!(null)]);
    body = completion(json!({ "temperature": 0, "logprobs": 0, "max_tokens": 1 }));
    let logprobs = server.post(TEXT, &body).json()["choices"][0]["logprobs"].take();
    assert_eq!(logprobs["top_logprobs"], json!([{ " one": -0.5 }]));
    assert!(server.post(TEXT, &completion(json!({}))).json()["choices"][0]["logprobs"].is_null());
}

#[test]
fn an_echoed_prompt_reports_its_logprobs() {
    let server = Fixture::new();
    let body = |more: Value| {
        let mut body =
            completion(json!({ "temperature": 0, "logprobs": 1, "echo": true, "prompt": "one two é" }));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let choice = server.post(TEXT, &body(json!({ "max_tokens": 2 }))).json()["choices"][0].take();
    assert_eq!(choice["text"], "one two é one two");
    let logprobs = &choice["logprobs"];
    let tokens: Vec<&str> =
        logprobs["tokens"].as_array().unwrap().iter().map(|token| token.as_str().unwrap()).collect();
    let count = tokens.len();
    assert_eq!((tokens[0], &tokens[count - 2..]), ("<bos>", &[" one", " two"][..]));
    // The first token is predicted by nothing, the others of the prompt with -0.25.
    let mut expected = vec![json!(null)];
    expected.extend(vec![json!(-0.25); count - 3]);
    expected.extend([json!(-0.5), json!(-1.0)]);
    assert_eq!(logprobs["token_logprobs"], json!(expected));
    assert_eq!(logprobs["top_logprobs"][0], json!(null));
    assert_eq!(logprobs["top_logprobs"][count - 1], json!({ "<unk>": -0.5, " two": -1.0 }));
    let offsets: Vec<u64> =
        logprobs["text_offset"].as_array().unwrap().iter().map(|offset| offset.as_u64().unwrap()).collect();
    // "é" is two tokens of one character; the completion starts after the nine characters of the prompt.
    assert!(offsets.is_sorted() && offsets[0] == 0 && offsets[count - 2..] == [9, 13], "{offsets:?}");

    // The same streamed: the prompt comes in one chunk, with its logprobs.
    let chunks = server.chunks(TEXT, &body(json!({ "max_tokens": 2, "stream": true })));
    let first = &chunks[0]["choices"][0];
    assert_eq!(first["text"].as_str().map(|text| text.starts_with("one two é")), Some(true), "{first}");
    let streamed: Vec<Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["token_logprobs"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(json!(streamed), logprobs["token_logprobs"]);

    // Scoring alone.
    let choice = server.post(TEXT, &body(json!({ "max_tokens": 0 }))).json();
    assert_eq!(choice["usage"]["completion_tokens"], 0);
    let choice = &choice["choices"][0];
    assert_eq!(
        (choice["text"].as_str(), choice["finish_reason"].as_str()),
        (Some("one two é"), Some("length"))
    );
    assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap().len(), count - 2);
    // Nothing else may ask for no completion.
    for more in [json!({ "echo": false }), json!({ "logprobs": null })] {
        let mut request = body(json!({ "max_tokens": 0 }));
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        assert_eq!(server.post(TEXT, &request).error(400, "invalid_value").1, "max_tokens");
    }
}

/// As text, with the keys of `top_logprobs` sorted.
fn sorted(logprobs: &Value) -> String {
    let mut logprobs = logprobs.clone();
    for tops in logprobs["top_logprobs"].as_array_mut().unwrap() {
        tops.as_object_mut().unwrap().sort_keys();
    }
    logprobs.to_string()
}
