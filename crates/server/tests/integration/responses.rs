//! OpenAI's `/v1/responses`: the object, prompts, tools, thinking, formats, images and truncation.

use serde_json::{Value, json};
use server::Config;
use text::{DecodeSpecial, EncodeSpecial};

use crate::common::{CACHED, Fixture, MODEL, Mock, response, tokenizer};
use crate::messages::{bmp, call, scripted, scripted_tokens, template};
use crate::responses_stream::both;

pub(crate) const RESPONSES: &str = "/v1/responses";

/// A greedy request with these additional fields.
pub(crate) fn greedy(more: Value) -> Value {
    let mut body = response(json!({ "temperature": 0 }));
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

pub(crate) fn function(name: &str) -> Value {
    json!({ "type": "function", "name": name, "parameters": { "type": "object" } })
}

pub(crate) fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

/// The response to a greedy request with these fields.
pub(crate) fn create(server: &Fixture, more: Value) -> Value {
    let got = server.post(RESPONSES, &greedy(more));
    assert_eq!(got.status, 200, "{}", got.body);
    got.json()
}

/// The last prompt as text.
fn last_prompt(server: &Fixture) -> String {
    let prompt = server.mock.submitted.lock().unwrap().pop().expect("a request").prompt;
    tokenizer().decode(&prompt, DecodeSpecial::Keep)
}

/// The prompt of a request with these fields.
fn prompt(server: &Fixture, more: Value) -> String {
    create(server, more);
    last_prompt(server)
}

#[test]
fn a_response_has_all_fields_of_openais_object() {
    let server = Fixture::new();
    let got = server.post_with(RESPONSES, &greedy(json!({})), ("x-request-id", "chosen"));
    assert_eq!(got.status, 200, "{}", got.body);
    let request = server.mock.submitted.lock().unwrap().pop().unwrap();
    let mut object = got.json();
    let id = object["id"].take();
    assert!(id.as_str().unwrap().starts_with("resp_"));
    assert_ne!(id, "resp_chosen", "clients do not choose ids");
    let [created, completed] = ["created_at", "completed_at"].map(|time| object[time].take());
    assert!(completed.as_u64().unwrap() >= created.as_u64().unwrap());
    let item = object["output"][0]["id"].take();
    assert!(item.as_str().unwrap().starts_with("msg_"));
    let tokens = request.prompt.len();
    let text = " one two three four five six";
    let expected = json!({
        "id": null,
        "object": "response",
        "created_at": null,
        "status": "completed",
        "completed_at": null,
        "error": null,
        "incomplete_details": null,
        "output": [{
            "id": null,
            "status": "completed",
            "type": "message",
            "role": "assistant",
            "content": [{ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }],
        }],
        "usage": {
            "input_tokens": tokens,
            "input_tokens_details": { "cached_tokens": CACHED, "cache_write_tokens": 0 },
            "output_tokens": 6,
            "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": tokens + 6,
        },
        "model": MODEL,
        "background": false,
        "instructions": null,
        "max_output_tokens": null,
        "max_tool_calls": null,
        "metadata": {},
        "parallel_tool_calls": true,
        "previous_response_id": null,
        "prompt_cache_key": null,
        "prompt_cache_retention": null,
        "reasoning": { "effort": null, "summary": null },
        "safety_identifier": null,
        "service_tier": "default",
        "store": true,
        "temperature": 0.0,
        "text": { "format": { "type": "text" }, "verbosity": "medium" },
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "user": null,
    });
    assert_eq!(object, expected);
    let text = "<bos><start_of_turn>user\nsay<end_of_turn>\n<start_of_turn>model\n";
    assert_eq!(request.prompt, tokenizer().encode_prompt(text));
}

#[test]
fn settings_are_returned() {
    let server = scripted("{}");
    let given = json!({
        "instructions": "be brief",
        "max_output_tokens": 50,
        "max_tool_calls": 3,
        "metadata": { "a": "b" },
        "parallel_tool_calls": false,
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "reasoning": { "effort": "low", "summary": "auto" },
        "safety_identifier": "s",
        "store": false,
        "text": { "format": { "type": "json_object" }, "verbosity": "low" },
        "tool_choice": { "type": "allowed_tools", "mode": "auto", "tools": [{ "type": "function", "name": "now" }] },
        "tools": [{ "type": "function", "name": "now", "description": "d", "parameters": { "type": "object" }, "strict": true }],
        "top_logprobs": 2,
        "top_p": 0.5,
        "truncation": "auto",
        "user": "u",
    });
    let mut sent = given.clone();
    sent["service_tier"] = "auto".into();
    sent["include"] = json!(["reasoning.encrypted_content"]);
    let object = create(&server, sent);
    for (name, value) in given.as_object().unwrap() {
        assert_eq!(&object[name], value, "{name}");
    }
    assert_eq!(object["service_tier"], "default");
    // Null is as good as absent.
    let nulls: serde_json::Map<String, Value> =
        given.as_object().unwrap().keys().map(|name| (name.clone(), Value::Null)).collect();
    create(&server, nulls.into());
    create(&server, json!({ "text": { "format": null, "verbosity": null }, "reasoning": {} }));
    // The schema as the client sent it.
    let format =
        json!({ "type": "json_schema", "name": "n", "schema": { "type": "object" }, "strict": true });
    let object = create(&server, json!({ "text": { "format": format } }));
    assert_eq!(object["text"]["format"], format);
}

#[test]
fn a_response_that_is_cut_off_is_incomplete() {
    let server = Fixture::new();
    let object = both(&server, &greedy(json!({ "max_output_tokens": 2 })));
    assert_eq!(object["status"], "incomplete");
    assert_eq!(object["incomplete_details"], json!({ "reason": "max_output_tokens" }));
    assert_eq!(object["completed_at"], Value::Null);
    let item = &object["output"][0];
    assert_eq!((&item["status"], &item["content"][0]["text"]), (&json!("incomplete"), &json!(" one two")));
    // An empty completion is a message without text.
    let server = scripted_tokens(vec![], Config::default());
    let object = both(&server, &greedy(json!({})));
    assert_eq!(
        (&object["status"], &object["output"][0]["content"][0]["text"]),
        (&json!("completed"), &json!(""))
    );
}

#[test]
fn log_probabilities_are_returned_if_included() {
    let server = Fixture::new();
    let include = json!(["message.output_text.logprobs"]);
    let object = both(&server, &greedy(json!({ "include": include, "top_logprobs": 2 })));
    let logprobs = object["output"][0]["content"][0]["logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), 6);
    assert_eq!(logprobs[1]["token"], " two");
    assert_eq!(logprobs[1]["logprob"], -1.0);
    for token in logprobs {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 2);
        assert!(top.iter().all(|token| token["bytes"].is_array()), "{token}");
    }
    // Without `include`, there are none.
    let object = both(&server, &greedy(json!({ "top_logprobs": 2 })));
    assert_eq!(object["output"][0]["content"][0]["logprobs"], json!([]));
}

#[test]
fn items_become_messages() {
    let server = scripted("x");
    let input = json!([
        { "role": "developer", "content": "second" },
        { "type": "message", "role": "user", "content": [
            { "type": "input_text", "text": "a" },
            { "type": "input_text", "text": "b" },
        ] },
        user("c"),
        { "type": "reasoning", "id": "rs_1", "summary": [], "content": [{ "type": "reasoning_text", "text": "hm" }] },
        { "type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [
            { "type": "output_text", "text": "I look", "annotations": [], "logprobs": [] },
        ] },
        { "type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"a\":1}" },
        { "type": "function_call", "call_id": "2", "name": "g", "arguments": "not JSON", "status": "completed" },
        { "type": "function_call_output", "call_id": "2", "output": "two" },
        { "type": "function_call_output", "call_id": "1", "output": [
            { "type": "input_text", "text": "o" },
            { "type": "input_text", "text": "ne" },
        ] },
        { "type": "reasoning", "summary": [{ "type": "summary_text", "text": "short" }] },
        { "role": "assistant", "content": [{ "type": "refusal", "refusal": "no" }] },
        user("d"),
    ]);
    let body = json!({ "instructions": "first", "input": input, "reasoning": { "effort": "none" } });
    let expected = "<bos><start_of_turn>system\nfirst\n\nsecond<end_of_turn>\n\
        <start_of_turn>user\na\n\nb\n\nc<end_of_turn>\n\
        <start_of_turn>assistant\n<think>hm</think>I look\n\
        <call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</call>\n\
        <call>\n{\"name\": \"g\", \"arguments\": \"not JSON\"}\n</call><end_of_turn>\n\
        <start_of_turn>tool\nresult of g: two<end_of_turn>\n\
        <start_of_turn>tool\nresult of f: o\n\nne<end_of_turn>\n\
        <start_of_turn>assistant\n<think>short</think>no<end_of_turn>\n\
        <start_of_turn>user\nd<end_of_turn>\n\
        <start_of_turn>assistant\neffort none\n<think>\n\n</think>\n\n";
    assert_eq!(prompt(&server, body), expected);
    // A call that was cut off has no result, and is left out.
    let cut = json!({ "type": "function_call", "call_id": "1", "name": "f", "arguments": "{", "status": "incomplete" });
    let body = json!({ "input": [user("a"), cut, user("b")] });
    assert!(prompt(&server, body).starts_with("<bos><start_of_turn>user\na\n\nb<end_of_turn>\n"));
}

#[test]
fn effort_switches_thinking() {
    let server = scripted("x");
    let end = |more: Value| {
        let prompt = prompt(&server, more);
        prompt.rsplit_once("<start_of_turn>assistant\n").unwrap().1.to_owned()
    };
    assert_eq!(end(json!({})), "");
    assert_eq!(end(json!({ "reasoning": { "effort": "none" } })), "effort none\n<think>\n\n</think>\n\n");
    assert_eq!(end(json!({ "reasoning": { "effort": "minimal" } })), "effort minimal\n<think>\n");
    assert_eq!(end(json!({ "reasoning": { "effort": "high" } })), "effort high\n<think>\n");
}

#[test]
fn thinking_text_and_calls_are_items() {
    let text = format!(
        "<think>\nhm\n</think>\n\nI look\n{}\n{}",
        call("now", "{}"),
        call("get_weather", r#"{"a": 1}"#)
    );
    let server = scripted(&text);
    let body = greedy(json!({ "tools": [function("now"), function("get_weather")] }));
    let object = both(&server, &body);
    let output = object["output"].as_array().unwrap();
    let kinds: Vec<&str> = output.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call", "function_call"]);
    assert_eq!(output[0]["content"], json!([{ "type": "reasoning_text", "text": "hm" }]));
    assert_eq!(output[0]["summary"], json!([]));
    assert_eq!(output[1]["content"][0]["text"], "I look");
    assert_eq!((&output[3]["name"], &output[3]["arguments"]), (&json!("get_weather"), &json!(r#"{"a": 1}"#)));
    for (item, prefix) in output.iter().zip(["rs_", "msg_", "fc_", "fc_"]) {
        assert!(item["id"].as_str().unwrap().starts_with(prefix), "{item}");
        assert_eq!(item["status"], "completed");
    }
    let calls: Vec<&str> = output[2..].iter().map(|item| item["call_id"].as_str().unwrap()).collect();
    assert!(calls.iter().all(|id| id.starts_with("call_")) && calls[0] != calls[1]);
    assert!(object["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 0);
    // A call that is cut off is incomplete.
    let cut = tokenizer().encode(&text[..text.len() - 12], EncodeSpecial::AsText).len();
    let mut body = body;
    body["max_output_tokens"] = cut.into();
    let object = both(&server, &body);
    let statuses: Vec<&Value> =
        object["output"].as_array().unwrap().iter().map(|item| &item["status"]).collect();
    assert_eq!(statuses, ["completed", "completed", "completed", "incomplete"]);
    assert_eq!(object["status"], "incomplete");
}

#[test]
fn tool_choices_constrain_the_output() {
    let config = Config::default();
    let server = Fixture::with_random_engine(config, template());
    let tools = json!([function("now"), function("get_weather")]);
    let calls = |choice: Value, parallel: bool| {
        let more = json!({
            "tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel, "max_output_tokens": 4000,
            "reasoning": { "effort": "none" },
        });
        let got = server.post(RESPONSES, &response(more));
        assert_eq!(got.status, 200, "{}", got.body);
        let output = got.json()["output"].take();
        let calls = output.as_array().unwrap().iter().filter(|item| item["type"] == "function_call");
        calls.map(|call| call["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for _ in 0..3 {
        assert_eq!(calls(json!("required"), false).len(), 1);
        assert_eq!(calls(json!({ "type": "function", "name": "now" }), false), ["now"]);
        let allowed = json!([{ "type": "function", "name": "get_weather" }]);
        let allowed = json!({ "type": "allowed_tools", "mode": "required", "tools": allowed });
        assert_eq!(calls(allowed, false), ["get_weather"]);
        assert_eq!(calls(json!("none"), true), [""; 0]);
    }
}

#[test]
fn formats_constrain_the_output() {
    let server = Fixture::with_random_engine(Config::default(), template());
    let schema = json!({
        "type": "object",
        "properties": { "n": { "type": "integer", "minimum": 1, "maximum": 3 } },
        "required": ["n"],
        "additionalProperties": false,
    });
    let format = json!({ "type": "json_schema", "name": "number", "schema": schema, "strict": true });
    let more = json!({ "text": { "format": format }, "reasoning": { "effort": "none" } });
    let got = server.post(RESPONSES, &response(more));
    assert_eq!(got.status, 200, "{}", got.body);
    let object = got.json();
    let text = object["output"][0]["content"][0]["text"].as_str().unwrap();
    let value: Value = serde_json::from_str(text).unwrap();
    assert!((1..=3).contains(&value["n"].as_u64().unwrap()), "{value}");
}

#[test]
fn images_are_part_of_the_prompt() {
    let server = Fixture::with_images(Mock::new(), Config::default(), false);
    let url = format!("data:image/bmp;base64,{}", bmp(1));
    let picture = json!({ "type": "input_image", "image_url": url, "detail": "low" });
    let content = json!([picture, { "type": "input_text", "text": "what" }]);
    let body = json!({ "input": [{ "role": "user", "content": content }, user("and")] });
    let first = create(&server, body);
    let request = server.mock.submitted.lock().unwrap().pop().unwrap();
    assert_eq!(request.images.len(), 1);
    // The stored items have it, too.
    create(
        &server,
        json!({ "previous_response_id": first["id"], "input": [{ "role": "user", "content": [picture] }] }),
    );
    let request = server.mock.submitted.lock().unwrap().pop().unwrap();
    assert_eq!(request.images.len(), 2);
    let items =
        server.get(&format!("{RESPONSES}/{}/input_items?order=asc", first["id"].as_str().unwrap())).json();
    assert_eq!(items["data"][0]["content"][0], picture);
}

/// Prompts of a conversation with truncation in a context of this length.
fn truncated(context_length: u32, input: Value, more: Value) -> crate::common::HttpResponse {
    let mock = Mock { script: vec![], context_length, ..Mock::new() };
    let server = Fixture::with_template(mock, Config::default(), template());
    let mut body = greedy(more);
    body["input"] = input;
    let mut got = server.post(RESPONSES, &body);
    if got.status == 200 {
        got.body = last_prompt(&server);
    }
    got
}

#[test]
fn the_oldest_items_of_a_long_conversation_are_left_out() {
    let input: Vec<Value> = (0..20)
        .flat_map(|turn| {
            [user(&format!("q{turn}.")), json!({ "role": "assistant", "content": format!("a{turn}.") })]
        })
        .chain([json!({ "role": "developer", "content": "rule." }), user("last.")])
        .collect();
    let auto = json!({ "truncation": "auto", "instructions": "sys.", "max_output_tokens": 100 });
    let all = truncated(4096, input.clone().into(), auto.clone());
    assert!(all.body.contains("q0.") && all.body.contains("sys."), "{}", all.body);
    let cut = truncated(512, input.clone().into(), auto);
    assert_eq!(cut.status, 200, "{}", cut.body);
    for kept in ["sys.", "rule.", "last.", "q19.", "a19."] {
        assert!(cut.body.contains(kept), "{}", cut.body);
    }
    assert!(!cut.body.contains("q0.") && !cut.body.contains("a0."), "{}", cut.body);
    // Whole turns: the first message after the instructions is the user's.
    assert!(cut.body.starts_with("<bos><start_of_turn>system\nsys.<end_of_turn>\n<start_of_turn>user\nq"));
    assert!(tokenizer().encode_prompt(&cut.body).len() <= 412);
    // Without truncation, and if nothing can be left out, it is an error.
    let got = truncated(512, input.into(), json!({}));
    got.error(400, "context_length_exceeded");
    let got = truncated(64, json!("x".repeat(100)), json!({ "truncation": "auto" }));
    got.error(400, "context_length_exceeded");
}

#[test]
fn calls_and_their_results_are_left_out_together() {
    let call = |id: usize| json!({ "type": "function_call", "call_id": id.to_string(), "name": "f", "arguments": "{}" });
    let output = |id: usize| json!({ "type": "function_call_output", "call_id": id.to_string(), "output": format!("r{id}.") });
    let calls = (0..30).flat_map(|id| [call(id), output(id)]);
    let input: Vec<Value> = [user("task.")].into_iter().chain(calls).collect();
    let got = truncated(600, input.into(), json!({ "truncation": "auto", "tools": [function("f")] }));
    assert_eq!(got.status, 200, "{}", got.body);
    assert!(
        got.body.contains("task.") && got.body.contains("r29.") && !got.body.contains("r0."),
        "{}",
        got.body
    );
    let calls = got.body.matches("<call>").count();
    assert!(calls > 1);
    assert_eq!(calls, got.body.matches("result of f").count());
}
