//! Streams of Ollama's API: their grammar, for any output, and what they add up to.

use std::time::Duration;

use engine::RequestError;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use server::Config;

use crate::common::{Fixture, Mock, merged};
use crate::messages::scripted_tokens;
use crate::messages_stream::{Written, output, tokens, written};
use crate::ollama::{CHAT, GENERATE, chat, generate};

/// The lines of a stream.
pub(crate) fn lines(server: &Fixture, path: &str, body: &Value) -> Vec<Value> {
    let got = server.post(path, &merged(body.clone(), json!({ "stream": true })));
    assert_eq!((got.status, got.headers["content-type"].to_str().unwrap()), (200, "application/x-ndjson"));
    assert!(got.body.ends_with('\n'), "{}", got.body);
    got.body.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// Appends a text or a list to a field.
fn append(sum: &mut Map<String, Value>, name: &str, more: &Value) {
    match (&mut sum[name], more) {
        (Value::String(sum), Value::String(more)) => sum.push_str(more),
        (Value::Array(sum), Value::Array(more)) => sum.extend(more.iter().cloned()),
        other => panic!("{name}: {other:?}"),
    }
}

/// Checks that lines follow the grammar of the protocol, and adds them up to one object.
fn assemble(lines: &[Value]) -> Value {
    let (last, parts) = lines.split_last().expect("a last line");
    let mut sum = last.as_object().unwrap().clone();
    let is_chat = sum.contains_key("message");
    let texts: &[&str] =
        if is_chat { &["content", "thinking", "tool_calls"] } else { &["response", "thinking"] };
    let mut content = Map::new();
    content.insert(texts[0].to_owned(), "".into());
    let mut logprobs = vec![];
    for part in parts {
        let fields = part.as_object().unwrap();
        assert_eq!((&fields["done"], &fields["model"]), (&json!(false), &last["model"]));
        assert!(fields["created_at"].is_string());
        for name in fields.keys() {
            let known = ["model", "created_at", "message", "response", "thinking", "done", "logprobs"];
            assert!(known.contains(&name.as_str()), "{name}");
        }
        let output = if is_chat { fields["message"].as_object().unwrap() } else { fields };
        let mut is_empty = true;
        for name in texts {
            let Some(more) = output.get(*name) else { continue };
            let empty = more.as_str().is_some_and(str::is_empty);
            assert!(!empty || *name == texts[0], "{part}");
            is_empty &= empty;
            match content.contains_key(*name) {
                true => append(&mut content, name, more),
                false => drop(content.insert((*name).to_owned(), more.clone())),
            }
        }
        for call in output.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
            assert!(call["function"]["arguments"].is_object(), "{call}");
        }
        is_empty &= fields.get("logprobs").is_none();
        logprobs.extend(fields.get("logprobs").and_then(Value::as_array).into_iter().flatten().cloned());
        assert!(!is_empty, "{part}");
    }
    // The last line has the end, and no output.
    assert_eq!(last["done"], true);
    assert!(last["done_reason"].is_string());
    match is_chat {
        true => {
            assert_eq!(last["message"], json!({ "role": "assistant", "content": "" }));
            content.insert("role".to_owned(), "assistant".into());
            sum.insert("message".to_owned(), content.into());
        }
        false => {
            assert_eq!((&last["response"], last.get("thinking")), (&json!(""), None));
            sum.extend(content);
        }
    }
    if !logprobs.is_empty() {
        sum.insert("logprobs".to_owned(), logprobs.into());
    }
    sum.into()
}

/// The object of a request, which is the same streamed or not.
pub(crate) fn both(server: &Fixture, path: &str, body: &Value) -> Value {
    let got = server.post(path, body);
    assert_eq!(got.status, 200, "{}", got.body);
    let whole = got.json();
    let without_times = |mut object: Value| {
        object
            .as_object_mut()
            .unwrap()
            .retain(|name, _| !name.ends_with("_duration") && name != "created_at");
        object
    };
    assert_eq!(without_times(assemble(&lines(server, path, body))), without_times(whole.clone()));
    whole
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_output_is_a_valid_stream(
        parts in output(),
        splits in proptest::collection::vec(any::<bool>(), 1..40),
        cut in 0.0..1.0_f64,
        logprobs: bool,
    ) {
        let script = tokens(&written(&parts), &splits);
        let length = script.len();
        let server = scripted_tokens(script, Config::default());
        let tool = |name: &str| json!({ "type": "function", "function": { "name": name, "parameters": { "type": "object" } } });
        let more = json!({ "tools": [tool("now"), tool("get_weather")], "logprobs": logprobs });
        let got = both(&server, CHAT, &chat(more.clone()));
        let (mut thinking, mut text, mut calls) = (None, String::new(), vec![]);
        for part in &parts {
            match part {
                Written::Thinking(said) => thinking = Some(said.clone()),
                Written::Text(said) => text = said.clone(),
                Written::Call(name, arguments) => {
                    let arguments: Value = serde_json::from_str(arguments).unwrap();
                    calls.push(json!({ "function": { "name": name, "arguments": arguments } }));
                }
            }
        }
        // White space at the end of a text is kept if no call follows.
        if matches!(parts.last(), Some(Written::Text(_))) {
            text.push('\n');
        }
        prop_assert_eq!(&got["message"]["content"], &json!(text));
        prop_assert_eq!(got["message"].get("thinking").cloned(), thinking.map(Value::from));
        prop_assert_eq!(got["message"].get("tool_calls").cloned(), (!calls.is_empty()).then_some(json!(calls)));
        prop_assert_eq!(&got["done_reason"], "stop");
        // Cut off anywhere, the stream is still valid and adds up to the same object.
        let max_tokens = ((length as f64 * cut) as usize).max(1);
        let options = json!({ "temperature": 0, "num_predict": max_tokens });
        for (path, body) in [(CHAT, chat(more)), (GENERATE, generate(json!({ "logprobs": logprobs })))] {
            let got = both(&server, path, &merged(body, json!({ "options": options })));
            prop_assert_eq!(got["done_reason"] == "length", max_tokens < length);
        }
    }
}

#[test]
fn a_stream_that_fails_ends_with_an_error() {
    let failure = Some((2, RequestError::DeviceLost));
    let server = Fixture::with_config(Mock { failure, ..Mock::new() }, Config::default());
    let lines = lines(&server, CHAT, &chat(json!({})));
    let (last, before) = lines.split_last().unwrap();
    assert_eq!(before.len(), 2);
    assert_eq!(last.as_object().unwrap().len(), 1);
    assert!(last["error"].as_str().unwrap().contains("GPU"), "{last}");
    server.wait_metric("indrik_http_requests_total{outcome=\"device_lost\"} 1");
    server.post(CHAT, &chat(json!({}))).ollama_error(503);
}

#[test]
fn a_client_that_disconnects_cancels_its_request() {
    use std::io::{Read, Write};
    let mock = Mock { delay: Duration::from_millis(20), ..Mock::new() };
    let script = mock.script.repeat(10_000);
    let server = Fixture::with_config(Mock { script, context_length: 1 << 20, ..mock }, Config::default());
    let body = generate(json!({ "stream": true })).to_string();
    let mut stream = std::net::TcpStream::connect(server.address).unwrap();
    write!(stream, "POST {GENERATE} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n").unwrap();
    write!(stream, "Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    stream.read_exact(&mut [0; 300]).unwrap();
    server.wait_live(1);
    drop(stream);
    server.wait_live(0);
    server.wait_metric("indrik_http_requests_total{outcome=\"client_disconnected\"} 1");
}
