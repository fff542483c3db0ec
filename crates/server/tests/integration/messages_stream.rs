//! Streams of Anthropic's `/v1/messages`: their grammar, for any output, and what they add up to.

use std::time::Duration;

use engine::RequestError;
use proptest::prelude::*;
use serde_json::{Value, json};
use server::Config;

use crate::common::{Fixture, Mock, WORDS, message, tokenizer};
use crate::messages::{MESSAGES, call, greedy, scripted_tokens};

/// Where a stream is.
#[derive(Debug, PartialEq)]
enum State {
    Start,
    /// Between blocks.
    Message,
    /// In a block, with the text of its deltas; a signature ends a block of thinking.
    Block {
        text: String,
        signed: bool,
    },
    Delta,
    Stop,
}

/// Checks that events follow the grammar of the protocol, and adds them up to a message. Calls that are cut off are
/// left out.
pub(crate) fn assemble(events: &[(String, Value)]) -> Value {
    let (mut state, mut message, mut blocks) = (State::Start, Value::Null, Vec::<Value>::new());
    for (name, data) in events {
        assert_eq!(&data["type"], name);
        if name == "ping" {
            assert_ne!(state, State::Start, "a message starts with message_start");
            assert_eq!(data, &json!({ "type": "ping" }));
            continue;
        }
        state = match (state, name.as_str()) {
            (State::Start, "message_start") => {
                message = data["message"].clone();
                assert_eq!((&message["content"], &message["stop_reason"]), (&json!([]), &Value::Null));
                assert_eq!(message["usage"]["output_tokens"], 0);
                State::Message
            }
            (State::Message, "content_block_start") => {
                assert_eq!(data["index"], blocks.len(), "indexes are contiguous");
                let block = data["content_block"].clone();
                match block["type"].as_str().unwrap() {
                    "text" => assert_eq!(block["text"], ""),
                    "thinking" => {
                        assert_eq!((&block["thinking"], &block["signature"]), (&json!(""), &json!("")))
                    }
                    "tool_use" => assert_eq!(block["input"], json!({})),
                    other => panic!("unknown block {other}"),
                }
                blocks.push(block);
                State::Block { text: String::new(), signed: false }
            }
            (State::Block { mut text, signed }, "content_block_delta") => {
                assert_eq!(data["index"], blocks.len() - 1);
                assert!(!signed, "nothing follows the signature");
                let (delta, kind) = (&data["delta"], blocks.last().unwrap()["type"].as_str().unwrap());
                let field = match (kind, delta["type"].as_str().unwrap()) {
                    ("text", "text_delta") => "text",
                    ("thinking", "thinking_delta") => "thinking",
                    ("thinking", "signature_delta") => "signature",
                    ("tool_use", "input_json_delta") => "partial_json",
                    other => panic!("wrong delta {other:?}"),
                };
                let more = delta[field].as_str().unwrap();
                assert_eq!(delta.as_object().unwrap().len(), 2, "{delta}");
                assert_eq!(more.is_empty(), field == "signature", "{delta}");
                text.push_str(more);
                State::Block { text, signed: field == "signature" }
            }
            (State::Block { text, signed }, "content_block_stop") => {
                assert_eq!(data["index"], blocks.len() - 1);
                let block = blocks.last_mut().unwrap();
                let kind = block["type"].as_str().unwrap().to_owned();
                assert_eq!(signed, kind == "thinking");
                match kind.as_str() {
                    "tool_use" => block["input"] = serde_json::from_str(&text).unwrap_or(Value::Null),
                    kind => block[kind] = text.into(),
                }
                State::Message
            }
            (State::Message, "message_delta") => {
                message["stop_reason"] = data["delta"]["stop_reason"].clone();
                message["stop_sequence"] = data["delta"]["stop_sequence"].clone();
                let start = message["usage"].clone();
                message["usage"] = data["usage"].clone();
                for field in ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"] {
                    assert_eq!(message["usage"][field], start[field]);
                }
                State::Delta
            }
            (State::Delta, "message_stop") => State::Stop,
            (state, name) => panic!("{name} in {state:?}"),
        };
    }
    assert_eq!(state, State::Stop, "the stream is complete");
    blocks.retain(|block| block["type"] != "tool_use" || block["input"].is_object());
    message["content"] = blocks.into();
    message
}

/// The message of a request, which is the same streamed or not.
pub(crate) fn both(server: &Fixture, body: &Value) -> Value {
    let got = server.post(MESSAGES, body);
    assert_eq!(got.status, 200, "{}", got.body);
    let whole = got.json();
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let events = server.events(MESSAGES, &streamed);
    assert_eq!(events[1].0, "ping");
    let without_ids = |mut message: Value| {
        message["id"].take();
        message["content"].as_array_mut().unwrap().iter_mut().for_each(|block| drop(block["id"].take()));
        message
    };
    assert_eq!(without_ids(assemble(&events)), without_ids(whole.clone()));
    whole
}

/// A part of an output.
#[derive(Clone, Debug)]
pub(crate) enum Written {
    Thinking(String),
    Text(String),
    Call(&'static str, String),
}

/// Texts that neither start nor end with white space and contain no markup.
fn prose() -> impl Strategy<Value = String> {
    proptest::collection::vec("[a-zé鳥<]{1,5}", 1..5).prop_map(|words| words.join(" "))
}

pub(crate) fn output() -> impl Strategy<Value = Vec<Written>> {
    let arguments = prop_oneof![
        Just("{}".to_owned()),
        prose().prop_map(|text| json!({ "text": text, "list": [1, { "a": null }] }).to_string()),
    ];
    let name = prop_oneof![Just("now"), Just("get_weather")];
    let calls = proptest::collection::vec((name, arguments), 0..4);
    (proptest::option::of(prose()), proptest::option::of(prose()), calls).prop_map(
        |(thinking, text, calls)| {
            let calls = calls.into_iter().map(|(name, arguments)| Written::Call(name, arguments));
            let parts = thinking.map(Written::Thinking).into_iter().chain(text.map(Written::Text));
            parts.chain(calls).collect()
        },
    )
}

/// The output as the model writes it.
pub(crate) fn written(parts: &[Written]) -> String {
    let part = |part: &Written| match part {
        Written::Thinking(text) => format!("<think>\n{text}\n</think>\n\n"),
        Written::Text(text) => format!("{text}\n"),
        Written::Call(name, arguments) => call(name, arguments) + "\n",
    };
    parts.iter().map(part).collect()
}

/// Tokens of a text: whole words of the vocabulary where `splits` say so, and otherwise bytes, which are parts of
/// characters.
pub(crate) fn tokens(text: &str, splits: &[bool]) -> Vec<u32> {
    let tokenizer = tokenizer();
    let id = |token: &str| tokenizer.token_id(token);
    let (mut ids, mut rest, mut splits) = (Vec::new(), text, splits.iter().cycle());
    while let Some(next) = rest.chars().next() {
        let word = WORDS.iter().find(|word| rest.starts_with(**word)).copied();
        let whole = word.unwrap_or(&rest[..next.len_utf8()]);
        let known = id(&whole.replace(' ', "▁")).filter(|_| *splits.next().unwrap());
        match known {
            Some(id) => {
                ids.push(id);
                rest = &rest[whole.len()..];
            }
            None => {
                let bytes = &rest.as_bytes()[..next.len_utf8()];
                ids.extend(bytes.iter().map(|byte| id(&format!("<0x{byte:02X}>")).expect("a byte")));
                rest = &rest[next.len_utf8()..];
            }
        }
    }
    ids
}

fn blocks(parts: &[Written]) -> Value {
    let block = |part: &Written| match part {
        Written::Thinking(text) => json!({ "type": "thinking", "thinking": text, "signature": "" }),
        Written::Text(text) => json!({ "type": "text", "text": text }),
        Written::Call(name, arguments) => {
            let input: Value = serde_json::from_str(arguments).unwrap();
            json!({ "type": "tool_use", "id": null, "name": name, "input": input })
        }
    };
    parts.iter().map(block).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_output_is_a_valid_stream(
        parts in output(),
        splits in proptest::collection::vec(any::<bool>(), 1..40),
        cut in 0.0..1.0_f64,
    ) {
        let script = tokens(&written(&parts), &splits);
        let length = script.len();
        let server = scripted_tokens(script, Config::default());
        let tool = |name: &str| json!({ "name": name, "input_schema": { "type": "object" } });
        let tools = json!({ "tools": [tool("now"), tool("get_weather")] });
        let mut message = both(&server, &greedy(tools.clone()));
        message["content"].as_array_mut().unwrap().iter_mut().for_each(|block| {
            if block["type"] == "tool_use" {
                block["id"].take();
            }
        });
        // White space at the end of a text is kept if no call follows.
        let ends_with_text = matches!(parts.last(), Some(Written::Text(_)));
        let mut expected = blocks(&parts);
        if ends_with_text {
            let last = expected.as_array_mut().unwrap().last_mut().unwrap();
            last["text"] = format!("{}\n", last["text"].as_str().unwrap()).into();
        }
        prop_assert_eq!(&message["content"], &expected);
        let has_calls = matches!(parts.last(), Some(Written::Call(..)));
        prop_assert_eq!(&message["stop_reason"], if has_calls { "tool_use" } else { "end_turn" });
        // Cut off anywhere, the stream is still valid and adds up to the same message.
        let max_tokens = ((length as f64 * cut) as usize).max(1);
        let mut request = tools;
        request["max_tokens"] = max_tokens.into();
        let message = both(&server, &greedy(request));
        let is_cut = max_tokens < length;
        prop_assert_eq!(message["stop_reason"] == "max_tokens", is_cut);
    }
}

#[test]
fn a_stream_that_fails_ends_with_an_error() {
    let failure = Some((2, RequestError::DeviceLost));
    let server = Fixture::with_config(Mock { failure, ..Mock::new() }, Config::default());
    let events = server.events(MESSAGES, &greedy(json!({ "stream": true })));
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    let (last, before) = names.split_last().unwrap();
    assert_eq!(before[..3], ["message_start", "ping", "content_block_start"]);
    assert_eq!(*last, "error");
    let error = &events.last().unwrap().1;
    assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!("overloaded_error")));
    assert!(error["error"]["message"].as_str().unwrap().contains("GPU"), "{error}");
    let id = events[0].1["message"]["id"].as_str().unwrap();
    assert_eq!(id.strip_prefix("msg_"), error["request_id"].as_str());
    server.wait_metric("indrik_http_requests_total{outcome=\"device_lost\"} 1");
}

#[test]
fn idle_streams_get_pings() {
    let mock = Mock { delay: Duration::from_millis(200), ..Mock::new() };
    let config = Config { keep_alive: Duration::from_millis(20), ..Config::default() };
    let server = Fixture::with_config(mock, config);
    let events = server.events(MESSAGES, &message(json!({ "stream": true, "max_tokens": 1 })));
    assert!(events.iter().filter(|(name, _)| name == "ping").count() > 1);
    assemble(&events);
}

#[test]
fn a_client_that_disconnects_cancels_its_request() {
    use std::io::{Read, Write};
    let mock = Mock { delay: Duration::from_millis(20), ..Mock::new() };
    let script = mock.script.repeat(10_000);
    let server = Fixture::with_config(Mock { script, context_length: 1 << 20, ..mock }, Config::default());
    let body = message(json!({ "stream": true, "max_tokens": 60_000 })).to_string();
    let mut stream = std::net::TcpStream::connect(server.address).unwrap();
    write!(stream, "POST {MESSAGES} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n").unwrap();
    write!(stream, "Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    stream.read_exact(&mut [0; 300]).unwrap();
    server.wait_live(1);
    drop(stream);
    server.wait_live(0);
    server.wait_metric("indrik_http_requests_total{outcome=\"client_disconnected\"} 1");
}
