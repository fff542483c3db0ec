//! Streams of `/v1/responses`: their grammar, for any output, and what they add up to.

use std::time::Duration;

use engine::RequestError;
use proptest::prelude::*;
use serde_json::{Value, json};
use server::Config;

use crate::common::{Fixture, Mock, response};
use crate::messages::scripted_tokens;
use crate::messages_stream::{Written, output, tokens, written};
use crate::responses::{RESPONSES, function, greedy};

/// Where a stream is.
#[derive(Debug, PartialEq)]
enum State {
    Start,
    Created,
    /// Between items.
    Response,
    /// In an item, before its content.
    Item,
    /// In the content of a message or of reasoning.
    Part,
    /// After the text of the content.
    Text,
    /// After the content, or the arguments.
    Content,
    /// After the event `error`.
    Error,
    End,
}

/// Checks that events follow the grammar of the protocol, and adds their deltas up to a response.
pub(crate) fn assemble(events: &[(String, Value)]) -> Value {
    let (mut state, mut object, mut items) = (State::Start, Value::Null, Vec::<Value>::new());
    for (index, (name, data)) in events.iter().enumerate() {
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(index)));
        let kind = items.last().map(|item| item["type"].as_str().unwrap().to_owned()).unwrap_or_default();
        if state != State::Response
            && let Some(item) = items.last()
            && data.get("output_index").is_some()
        {
            assert_eq!(data["output_index"], items.len() - 1);
            let id = data.get("item_id").unwrap_or(&data["item"]["id"]);
            assert_eq!(id, &item["id"]);
            assert!(data.get("content_index").is_none_or(|index| index == 0));
        }
        let append = |value: &mut Value, more: &Value| {
            *value = format!("{}{}", value.as_str().unwrap(), more.as_str().unwrap()).into();
        };
        state = match (state, name.as_str(), kind.as_str()) {
            (State::Start, "response.created", _) => {
                object = data["response"].clone();
                assert_eq!((&object["status"], &object["output"]), (&json!("in_progress"), &json!([])));
                assert_eq!((&object["usage"], &object["completed_at"]), (&Value::Null, &Value::Null));
                State::Created
            }
            (State::Created, "response.in_progress", _) => {
                assert_eq!(data["response"], object);
                State::Response
            }
            (State::Response, "response.output_item.added", _) => {
                assert_eq!(data["output_index"], items.len(), "indexes are contiguous");
                let item = data["item"].clone();
                assert_eq!(item["status"], "in_progress");
                match item["type"].as_str().unwrap() {
                    "message" | "reasoning" => assert_eq!(item["content"], json!([])),
                    "function_call" => assert_eq!(item["arguments"], ""),
                    other => panic!("unknown item {other}"),
                }
                items.push(item);
                State::Item
            }
            (State::Item, "response.content_part.added", "message" | "reasoning") => {
                let empty = match kind.as_str() {
                    "message" => {
                        json!({ "type": "output_text", "text": "", "annotations": [], "logprobs": [] })
                    }
                    _ => json!({ "type": "reasoning_text", "text": "" }),
                };
                assert_eq!(data["part"], empty);
                items.last_mut().unwrap()["content"] = json!([empty]);
                State::Part
            }
            (State::Part, "response.output_text.delta", "message") => {
                let part = &mut items.last_mut().unwrap()["content"][0];
                append(&mut part["text"], &data["delta"]);
                part["logprobs"].as_array_mut().unwrap().extend(data["logprobs"].as_array().unwrap().clone());
                State::Part
            }
            (State::Part, "response.reasoning_text.delta", "reasoning") => {
                append(&mut items.last_mut().unwrap()["content"][0]["text"], &data["delta"]);
                State::Part
            }
            (State::Part, "response.output_text.done", "message") => {
                let part = &items.last().unwrap()["content"][0];
                assert_eq!((&data["text"], &data["logprobs"]), (&part["text"], &part["logprobs"]));
                State::Text
            }
            (State::Part, "response.reasoning_text.done", "reasoning") => {
                assert_eq!(data["text"], items.last().unwrap()["content"][0]["text"]);
                State::Text
            }
            (State::Text, "response.content_part.done", _) => {
                assert_eq!(data["part"], items.last().unwrap()["content"][0]);
                State::Content
            }
            (State::Item, "response.function_call_arguments.delta", "function_call") => {
                append(&mut items.last_mut().unwrap()["arguments"], &data["delta"]);
                State::Item
            }
            (State::Item, "response.function_call_arguments.done", "function_call") => {
                let item = items.last().unwrap();
                assert_eq!((&data["arguments"], &data["name"]), (&item["arguments"], &item["name"]));
                State::Content
            }
            (State::Content, "response.output_item.done", _) => {
                let item = items.last_mut().unwrap();
                item["status"] = data["item"]["status"].clone();
                assert_eq!(*item, data["item"]);
                State::Response
            }
            (State::Response, "response.completed" | "response.incomplete", _) => {
                let end = &data["response"];
                assert_eq!(end["output"], Value::from(items.clone()));
                assert_eq!(end["status"], name.strip_prefix("response.").unwrap());
                // The rest of the response is what it was.
                for (field, value) in object.as_object().unwrap() {
                    if !["status", "completed_at", "incomplete_details", "output", "usage"]
                        .contains(&field.as_str())
                    {
                        assert_eq!(&end[field], value, "{field}");
                    }
                }
                object = end.clone();
                State::End
            }
            (_, "error", _) => State::Error,
            (State::Error, "response.failed", _) => {
                assert_eq!(data["response"]["status"], "failed");
                object = data["response"].clone();
                State::End
            }
            (state, name, kind) => panic!("{name} in {state:?} of {kind:?}"),
        };
    }
    assert_eq!(state, State::End, "the stream is complete");
    object
}

/// A response without ids and times.
pub(crate) fn without_ids(mut object: Value) -> Value {
    for field in ["id", "created_at", "completed_at"] {
        object[field].take();
    }
    for item in object["output"].as_array_mut().unwrap() {
        item["id"].take();
        item.get_mut("call_id").map(Value::take);
    }
    object
}

/// The response to a request, which is the same streamed or not, down to its bytes, and the same when retrieved.
pub(crate) fn both(server: &Fixture, body: &Value) -> Value {
    let got = server.post(RESPONSES, body);
    assert_eq!(got.status, 200, "{}", got.body);
    let whole = got.json();
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let assembled = assemble(&server.events(RESPONSES, &streamed));
    for object in [&whole, &assembled] {
        let stored = server.get(&format!("{RESPONSES}/{}", object["id"].as_str().unwrap()));
        assert_eq!(&stored.json(), object);
    }
    assert_eq!(without_ids(assembled).to_string(), without_ids(whole.clone()).to_string());
    whole
}

/// The content of the items that an output becomes.
fn contents(parts: &[Written]) -> Vec<Value> {
    let content = |part: &Written| match part {
        Written::Thinking(text) | Written::Text(text) => json!(text),
        Written::Call(name, arguments) => json!([name, arguments]),
    };
    parts.iter().map(content).collect()
}

fn item_content(item: &Value) -> Value {
    match item["type"].as_str().unwrap() {
        "function_call" => json!([item["name"], item["arguments"]]),
        _ => item["content"][0]["text"].clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_output_is_a_valid_stream(
        parts in output(),
        splits in proptest::collection::vec(any::<bool>(), 1..40),
        cut in 0.0..1.0_f64,
        logprobs in any::<bool>(),
    ) {
        let script = tokens(&written(&parts), &splits);
        let length = script.len();
        let server = scripted_tokens(script, Config::default());
        let include = if logprobs { json!(["message.output_text.logprobs"]) } else { json!([]) };
        let request = json!({ "tools": [function("now"), function("get_weather")], "include": include });
        let object = both(&server, &greedy(request.clone()));
        prop_assert_eq!(&object["status"], "completed");
        let mut expected = contents(&parts);
        match parts.last() {
            // White space at the end of a text is kept if no call follows.
            Some(Written::Text(text)) => *expected.last_mut().unwrap() = format!("{text}\n").into(),
            Some(Written::Thinking(_)) | None => expected.push(json!("")),
            Some(Written::Call(..)) => {}
        }
        let items: Vec<Value> = object["output"].as_array().unwrap().iter().map(item_content).collect();
        prop_assert_eq!(items, expected);
        // Cut off anywhere, the stream is still valid and adds up to the same response.
        let max_tokens = ((length as f64 * cut) as usize).max(1);
        let mut request = request;
        request["max_output_tokens"] = max_tokens.into();
        let object = both(&server, &greedy(request));
        prop_assert_eq!(object["status"] == "incomplete", max_tokens < length);
        let output = object["output"].as_array().unwrap();
        for item in output.split_last().map(|(_, before)| before).unwrap_or_default() {
            prop_assert_eq!(&item["status"], "completed");
        }
        for call in output.iter().filter(|item| item["type"] == "function_call") {
            let is_json = serde_json::from_str::<Value>(call["arguments"].as_str().unwrap()).is_ok();
            prop_assert_eq!(call["status"] == "completed", is_json);
        }
    }
}

#[test]
fn a_stream_that_fails_ends_with_a_failed_response() {
    let failure = Some((2, RequestError::DeviceLost));
    let server = Fixture::with_config(Mock { failure, ..Mock::new() }, Config::default());
    let events = server.events(RESPONSES, &greedy(json!({ "stream": true })));
    let object = assemble(&events);
    assert_eq!(object["error"]["code"], "server_error");
    assert_eq!(object["output"][0]["status"], "incomplete");
    assert_eq!(object["output"][0]["content"][0]["text"], " one two");
    let error = &events[events.len() - 2].1;
    assert_eq!((&error["code"], &error["param"]), (&json!("device_lost"), &Value::Null));
    assert_eq!(error["message"], object["error"]["message"]);
    let stored = server.get(&format!("{RESPONSES}/{}", object["id"].as_str().unwrap()));
    assert_eq!(stored.json(), object);
    // One object is an error with its status.
    server.post(RESPONSES, &greedy(json!({}))).error(503, "device_lost");
    server.wait_metric("indrik_http_requests_total{outcome=\"device_lost\"} 2");
}

#[test]
fn a_client_that_disconnects_cancels_its_request() {
    use std::io::{Read, Write};
    let mock = Mock { delay: Duration::from_millis(20), ..Mock::new() };
    let script = mock.script.repeat(10_000);
    let server = Fixture::with_config(Mock { script, context_length: 1 << 20, ..mock }, Config::default());
    let body = response(json!({ "stream": true })).to_string();
    let mut stream = std::net::TcpStream::connect(server.address).unwrap();
    write!(stream, "POST {RESPONSES} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n").unwrap();
    write!(stream, "Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    stream.read_exact(&mut [0; 300]).unwrap();
    server.wait_live(1);
    drop(stream);
    server.wait_live(0);
    server.wait_metric("indrik_http_requests_total{outcome=\"client_disconnected\"} 1");
}
