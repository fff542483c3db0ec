//! Tools: validation, prompts and tool calls, with a scripted generator and with an engine and grammars.

use std::collections::HashSet;

use crate::common::{Fixture, MODEL, Mock, chat, tokenizer};
use serde_json::{Value, json};
use server::Config;
use text::{ChatTemplate, DecodeSpecial, EncodeSpecial};

const CHAT: &str = "/v1/chat/completions";

/// Turns like Gemma's, tools in front, calls in tags, results as user turns.
const TEMPLATE: &str = r#"{{- bos_token }}
{%- if tools %}Tools:{% for tool in tools %}{{ '\n' }}{{ tool | tojson }}{% endfor %}{{ '\n' }}{% endif %}
{%- for message in messages %}
  {{- '<start_of_turn>' + ('user' if message.role == 'tool' else message.role) }}
  {%- if message.role == 'tool' %}{{ '\n<result of=' + message.name + '>' + message.content + '</result>' }}
  {%- elif message.content %}{{ '\n' + message.content }}{% endif %}
  {%- for call in message.tool_calls %}
    {{- '\n<call>\n{"name": "' + call.function.name + '", "arguments": ' }}
    {{- call.function.arguments | tojson }}
    {{- '}\n</call>' }}
  {%- endfor %}
  {{- '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>assistant\n' }}{% endif %}"#;

fn template() -> Option<ChatTemplate> {
    Some(ChatTemplate::new(TEMPLATE, "<bos>", "<eos>").unwrap())
}

/// A server that generates this text for every request.
fn scripted(text: &str) -> Fixture {
    let script = tokenizer().encode(text, EncodeSpecial::AsText);
    let mock = Mock { script, context_length: 4096, ..Mock::new() };
    Fixture::with_template(mock, Config::default(), template())
}

/// A server that samples at random within the grammar.
fn constrained() -> Fixture {
    Fixture::with_random_engine(Config::default(), template())
}

fn tool(name: &str, parameters: Value) -> Value {
    json!({ "type": "function", "function": { "name": name, "description": "d", "parameters": parameters } })
}

fn weather() -> Value {
    let parameters = json!({
        "type": "object",
        "properties": { "city": { "enum": ["Paris", "Rome"] }, "days": { "type": "integer", "minimum": 1, "maximum": 9 } },
        "required": ["city", "days"],
        "additionalProperties": false,
    });
    tool("get_weather", parameters)
}

/// A greedy chat request with two tools and these additional fields.
fn with_tools(more: Value) -> Value {
    let mut body = chat(json!({ "tools": [weather(), tool("now", json!({}))], "temperature": 0 }));
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn call(name: &str, arguments: &str) -> String {
    format!("<call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</call>")
}

const ARGUMENTS: &str = "{\"city\": \"Zürich 鳥 </call>\", \"days\": 3}";

fn two_calls() -> String {
    format!("Let me see.\n{}\n{}", call("get_weather", ARGUMENTS), call("now", "{}"))
}

/// Names and arguments of a message's calls.
fn calls(message: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("a string").to_owned();
    let list = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
    list.iter()
        .map(|call| {
            assert_eq!(call["type"], "function");
            assert!(call["id"].as_str().unwrap().starts_with("call_"), "{call}");
            (text(&call["function"]["name"]), text(&call["function"]["arguments"]))
        })
        .collect()
}

/// Message and finish reason of each choice, assembled from chunks as OpenAI's packages do.
fn assemble(chunks: &[Value], n: usize) -> Vec<(Value, Value)> {
    let mut choices = vec![(json!({ "content": null, "tool_calls": [] }), Value::Null); n];
    for chunk in chunks {
        for choice in chunk["choices"].as_array().unwrap() {
            let (message, reason) = &mut choices[choice["index"].as_u64().unwrap() as usize];
            assert!(reason.is_null(), "no chunk follows the finish reason");
            *reason = choice["finish_reason"].clone();
            let delta = &choice["delta"];
            if let Some(text) = delta["content"].as_str() {
                let before = message["content"].as_str().unwrap_or_default();
                assert!(message["tool_calls"].as_array().unwrap().is_empty(), "content after a call");
                message["content"] = format!("{before}{text}").into();
            }
            for piece in delta["tool_calls"].as_array().unwrap_or(&vec![]) {
                let list = message["tool_calls"].as_array_mut().unwrap();
                let at = piece["index"].as_u64().unwrap() as usize;
                if at == list.len() {
                    assert!(piece["id"].is_string() && piece["function"]["name"].is_string(), "{piece}");
                    list.push(piece.clone());
                } else {
                    assert_eq!(at + 1, list.len(), "arguments belong to the last call");
                    assert!(piece.get("id").is_none() && piece["function"].get("name").is_none(), "{piece}");
                    let before = list[at]["function"]["arguments"].as_str().unwrap();
                    let more = piece["function"]["arguments"].as_str().unwrap();
                    list[at]["function"]["arguments"] = format!("{before}{more}").into();
                }
            }
        }
    }
    choices
}

#[test]
fn tool_calls_are_the_same_streamed_or_not() {
    let server = scripted(&two_calls());
    let expected = [("get_weather".to_owned(), ARGUMENTS.to_owned()), ("now".to_owned(), "{}".to_owned())];
    let got = server.post(CHAT, &with_tools(json!({ "n": 2 }))).json();
    let mut ids = HashSet::new();
    for choice in got["choices"].as_array().unwrap() {
        assert_eq!(choice["finish_reason"], "tool_calls");
        assert_eq!(choice["message"]["content"], "Let me see.");
        assert_eq!(calls(&choice["message"]), expected);
        for call in choice["message"]["tool_calls"].as_array().unwrap() {
            assert!(ids.insert(call["id"].as_str().unwrap().to_owned()), "ids are unique");
        }
    }
    let generated = got["usage"]["completion_tokens"].as_u64().unwrap();
    assert_eq!(generated as usize, 2 * server.mock.script.len());

    let chunks = server.chunks(CHAT, &with_tools(json!({ "n": 2, "stream": true })));
    assert!(chunks.iter().filter(|chunk| chunk["choices"][0]["delta"]["tool_calls"].is_array()).count() > 20);
    for (message, reason) in assemble(&chunks, 2) {
        assert_eq!(
            (calls(&message), &message["content"], reason),
            (expected.to_vec(), &json!("Let me see."), json!("tool_calls"))
        );
    }
    assert!(server.get("/metrics").body.contains("indrik_tool_calls_total 8"));

    // A message that only calls tools has no content.
    let server = scripted(&call("now", "{}"));
    let message = server.post(CHAT, &with_tools(json!({}))).json()["choices"][0]["message"].take();
    assert_eq!((calls(&message).len(), &message["content"]), (1, &Value::Null));
    let chunks = server.chunks(CHAT, &with_tools(json!({ "stream": true })));
    let (message, _) = assemble(&chunks, 1).remove(0);
    assert_eq!((calls(&message).len(), &message["content"]), (1, &Value::Null));
    // Text that resembles the start of a call stays content.
    let server = scripted("a < b <call <cal \n ");
    let got = server.post(CHAT, &with_tools(json!({}))).json();
    assert_eq!(got["choices"][0]["message"]["content"], "a < b <call <cal \n ");
    assert!(got["choices"][0]["message"].get("tool_calls").is_none());
    assert_eq!(got["choices"][0]["finish_reason"], "stop");
}

#[test]
fn a_completion_that_is_cut_off_returns_partial_calls() {
    let text = format!("So: {}", call("now", ARGUMENTS));
    let server = scripted(&text);
    let (mut named, mut full) = (0, 0);
    for max_tokens in 1..=server.mock.script.len() {
        let body = with_tools(json!({ "max_tokens": max_tokens }));
        let choice = server.post(CHAT, &body).json()["choices"][0].take();
        let streamed = server.chunks(CHAT, &with_tools(json!({ "max_tokens": max_tokens, "stream": true })));
        let (message, reason) = assemble(&streamed, 1).remove(0);
        assert_eq!((calls(&message), &reason), (calls(&choice["message"]), &choice["finish_reason"]));
        let content = choice["message"]["content"].as_str().unwrap();
        assert!("So: <call>".starts_with(content), "{content}");
        let found = calls(&choice["message"]);
        let complete = max_tokens == server.mock.script.len();
        assert_eq!(choice["finish_reason"], if complete { "tool_calls" } else { "length" });
        if let [(name, arguments)] = &found[..] {
            assert_eq!((name.as_str(), content), ("now", "So:"));
            // A character that was cut off becomes a replacement character.
            assert!(ARGUMENTS.starts_with(arguments.trim_end_matches('\u{fffd}')), "{arguments}");
            named += 1;
            full += usize::from(arguments == ARGUMENTS);
        }
    }
    assert!(named > 40 && (10..14).contains(&full), "{named} {full}");
}

#[test]
fn stop_strings_apply_to_content_and_not_to_calls() {
    let server = scripted(&two_calls());
    let stop =
        |stop: Value| server.post(CHAT, &with_tools(json!({ "stop": stop }))).json()["choices"][0].take();
    for within_call in ["}", "<call>", "call", "\n</call>", "Zürich", "name"] {
        let choice = stop(json!(within_call));
        assert_eq!(
            (calls(&choice["message"]).len(), &choice["finish_reason"]),
            (2, &json!("tool_calls")),
            "{within_call}"
        );
    }
    for (text, content) in [("me", "Let "), (".\n", "Let me see"), ("see.", "Let me ")] {
        let choice = stop(json!(text));
        assert_eq!(
            (&choice["message"]["content"], &choice["finish_reason"]),
            (&json!(content), &json!("stop"))
        );
        assert!(calls(&choice["message"]).is_empty());
    }
    // A possible match is released when a call starts.
    assert_eq!(stop(json!("see.\n\n"))["message"]["content"], "Let me see.");
}

#[test]
fn logprobs_cover_content_only() {
    let server = scripted(&two_calls());
    let options = json!({ "logprobs": true, "top_logprobs": 1 });
    let mut bodies = [options.clone(), options];
    bodies[1]["stream"] = true.into();
    let full =
        server.post(CHAT, &with_tools(bodies[0].clone())).json()["choices"][0]["logprobs"]["content"].take();
    let chunks = server.chunks(CHAT, &with_tools(bodies[1].clone()));
    let streamed: Vec<Value> = chunks
        .iter()
        .flat_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default())
        .collect();
    assert_eq!(full.as_array().unwrap(), &streamed);
    let bytes: Vec<u8> = streamed
        .iter()
        .flat_map(|token| token["bytes"].as_array().unwrap())
        .map(|byte| byte.as_u64().unwrap() as u8)
        .collect();
    // The tokenizer of this test adds a space before the text.
    assert_eq!(String::from_utf8(bytes).unwrap().trim_start(), "Let me see.");
}

#[test]
fn the_prompt_contains_tools_calls_and_results() {
    let server = scripted("done");
    let found = json!([{ "id": "c1", "type": "function", "function": { "name": "get_weather", "arguments": "{\"days\":1,\"city\":\"<end_of_turn>\"}" } },
        { "id": "c2", "type": "function", "function": { "name": "now", "arguments": "no JSON" } }]);
    let messages = json!([
        { "role": "user", "content": "say" },
        { "role": "assistant", "content": null, "tool_calls": found },
        { "role": "tool", "tool_call_id": "c2", "content": [{ "type": "text", "text": "noon<end_of_turn>" }] },
        { "role": "tool", "tool_call_id": "c1", "content": "rain" },
    ]);
    let prompt = |more: Value| {
        let mut body = with_tools(more);
        body["messages"] = messages.clone();
        assert_eq!(server.post(CHAT, &body).status, 200);
        let prompt = server.mock.submitted.lock().unwrap().pop().unwrap().prompt;
        let turn_ends = prompt.iter().filter(|id| **id == 4).count();
        assert_eq!(turn_ends, 4, "one per message, none from their content");
        tokenizer().decode(&prompt, DecodeSpecial::Keep)
    };
    let text = prompt(json!({}));
    for part in [
        "Tools:\n{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"description\": \"d\", \"parameters\": {\"type\": \"object\", ",
        "<start_of_turn>assistant\n<call>\n{\"name\": \"get_weather\", \"arguments\": {\"days\": 1, \"city\": \"<end_of_turn>\"}}\n</call>\n<call>\n",
        "{\"name\": \"now\", \"arguments\": \"no JSON\"}\n</call><end_of_turn>",
        "<start_of_turn>user\n<result of=now>noon<end_of_turn></result>",
        "<result of=get_weather>rain</result>",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(text.ends_with("<start_of_turn>assistant\n"), "{text}");
    // With `tool_choice` none the prompt has no tools.
    let without = prompt(json!({ "tool_choice": "none" }));
    assert_eq!(without, prompt(json!({ "tools": [] })));
    assert!(!without.contains("Tools:") && without.contains("<result of=now>"), "{without}");
}

#[test]
fn errors_name_the_invalid_tool_field() {
    let server = scripted("done");
    let function =
        |function: Value| json!({ "tools": [weather(), { "type": "function", "function": function }] });
    let message = |message: Value| json!({ "messages": [{ "role": "user", "content": "x" }, message] });
    let calls = |calls: Value| message(json!({ "role": "assistant", "tool_calls": calls }));
    let many: Vec<Value> = (0..129).map(|at| tool(&format!("f{at}"), json!({}))).collect();
    for (more, field) in [
        (json!({ "tools": 5 }), "tools"),
        (json!({ "tools": many }), "tools"),
        (json!({ "tools": [{ "type": "function" }] }), "tools[0].function"),
        (json!({ "tools": [{ "type": "custom", "function": { "name": "f" } }] }), "tools[0].type"),
        (function(json!({})), "tools[1].function.name"),
        (function(json!({ "name": "" })), "tools[1].function.name"),
        (function(json!({ "name": "a b" })), "tools[1].function.name"),
        (function(json!({ "name": "é" })), "tools[1].function.name"),
        (function(json!({ "name": "x".repeat(65) })), "tools[1].function.name"),
        (function(json!({ "name": "get_weather" })), "tools[1].function.name"),
        (function(json!({ "name": "f", "description": 1 })), "tools[1].function.description"),
        (function(json!({ "name": "f", "parameters": [] })), "tools[1].function.parameters"),
        (
            function(json!({ "name": "f", "parameters": { "type": "string" } })),
            "tools[1].function.parameters",
        ),
        (
            function(json!({ "name": "f", "parameters": { "properties": { "a": { "type": "word" } } } })),
            "tools[1].function.parameters",
        ),
        (
            function(
                json!({ "name": "f", "strict": true, "parameters": { "properties": { "a": { "uniqueItems": true } } } }),
            ),
            "tools[1].function.parameters",
        ),
        (function(json!({ "name": "f", "strict": 1 })), "tools[1].function.strict"),
        (json!({ "tool_choice": "some" }), "tool_choice"),
        (json!({ "tool_choice": 1 }), "tool_choice"),
        (json!({ "tool_choice": { "type": "function" } }), "tool_choice.function"),
        (
            json!({ "tool_choice": { "type": "function", "function": { "name": "f" } } }),
            "tool_choice.function.name",
        ),
        (json!({ "tool_choice": "required", "tools": [] }), "tool_choice"),
        (
            json!({ "tool_choice": { "type": "allowed_tools", "allowed_tools": { "mode": "none", "tools": [] } } }),
            "tool_choice.allowed_tools.mode",
        ),
        (
            json!({ "tool_choice": { "type": "allowed_tools", "allowed_tools": { "mode": "auto", "tools": [] } } }),
            "tool_choice.allowed_tools.tools",
        ),
        (
            json!({ "tool_choice": { "type": "allowed_tools", "allowed_tools": { "mode": "auto", "tools": [{ "type": "function", "function": { "name": "f" } }] } } }),
            "tool_choice.allowed_tools.tools[0].function.name",
        ),
        (json!({ "parallel_tool_calls": 1 }), "parallel_tool_calls"),
        (message(json!({ "role": "tool", "content": "x" })), "messages[1].tool_call_id"),
        (message(json!({ "role": "tool", "content": "x", "tool_call_id": "c" })), "messages[1].tool_call_id"),
        (message(json!({ "role": "assistant", "content": null, "tool_calls": [] })), "messages[1].content"),
        (
            message(
                json!({ "role": "user", "tool_calls": [{ "id": "c", "type": "function", "function": { "name": "f", "arguments": "" } }] }),
            ),
            "messages[1].tool_calls",
        ),
        (calls(json!({})), "messages[1].tool_calls"),
        (
            calls(json!([{ "type": "function", "function": { "name": "f", "arguments": "{}" } }])),
            "messages[1].tool_calls[0].id",
        ),
        (
            calls(json!([{ "id": "c", "type": "function", "function": { "name": "f", "arguments": {} } }])),
            "messages[1].tool_calls[0].function.arguments",
        ),
        (
            calls(
                json!([{ "id": "c", "type": "function", "function": { "name": "<f>", "arguments": "{}" } }]),
            ),
            "messages[1].tool_calls[0].function.name",
        ),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x", "schema": { "type": "word" } } } }),
            "response_format.json_schema.schema",
        ),
        (json!({ "guided_json": { "type": "word" } }), "guided_json"),
        (json!({ "structured_outputs": { "json": { "type": "word" } } }), "structured_outputs.json"),
    ] {
        let got = server.post(CHAT, &with_tools(more.clone()));
        let is_missing = got.body.contains("': is required");
        let code = if is_missing { "missing_required_parameter" } else { "invalid_value" };
        let (message, param) = got.error(400, code);
        assert_eq!(param, field, "{more}: {message}");
        assert!(message.contains(field), "{message}");
    }
    assert!(server.mock.submitted.lock().unwrap().is_empty());
}

#[test]
fn a_template_without_tool_support_rejects_tools() {
    let server = Fixture::new();
    let (message, param) = server.post(CHAT, &with_tools(json!({}))).error(400, "unsupported_parameter");
    assert_eq!(param, "tools");
    assert!(
        message.contains(MODEL)
            && message.contains("does not support tools")
            && message.contains("leave 'tools' out"),
        "{message}"
    );
    let messages = json!([{ "role": "user", "content": "x" }, { "role": "assistant", "tool_calls": [{ "id": "c", "type": "function", "function": { "name": "f", "arguments": "{}" } }] }]);
    let (message, param) =
        server.post(CHAT, &chat(json!({ "messages": messages }))).error(400, "unsupported_parameter");
    assert_eq!(param, "messages[1].tool_calls", "{message}");
    // No tool may be called, so none is missing.
    assert_eq!(server.post(CHAT, &with_tools(json!({ "tool_choice": "none" }))).status, 200);

    let strange =
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";
    let strange = ChatTemplate::new(strange, "", "").unwrap();
    let server = Fixture::with_template(Mock::new(), Config::default(), Some(strange));
    let (message, param) = server.post(CHAT, &with_tools(json!({}))).error(400, "unsupported_parameter");
    assert_eq!(param, "tools");
    assert!(message.contains("cannot parse"), "{message}");
}

fn check(name: &str, arguments: &str) {
    let value: Value = serde_json::from_str(arguments).unwrap_or_else(|error| panic!("{error}: {arguments}"));
    match name {
        "get_weather" => {
            assert!(["Paris", "Rome"].contains(&value["city"].as_str().unwrap()), "{value}");
            assert!((1..=9).contains(&value["days"].as_u64().unwrap()), "{value}");
        }
        other => assert_eq!((other, value), ("now", json!({}))),
    }
}

#[test]
fn calls_match_the_tools_schemas() {
    let server = constrained();
    let now = json!({ "type": "function", "function": { "name": "now" } });
    let post = |more: Value| {
        let mut body =
            json!({ "temperature": 1, "seed": 3, "n": 3, "max_tokens": 1000, "tools": [weather(), now] });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let body = with_tools(body);
        let got = server.post(CHAT, &body);
        assert_eq!(got.status, 200, "{}", got.body);
        let choices = got.json()["choices"].as_array().unwrap().clone();
        let mut all = vec![];
        for choice in choices {
            let found = calls(&choice["message"]);
            let full = choice["finish_reason"] != "length";
            assert_eq!(choice["finish_reason"] == "tool_calls", full && !found.is_empty());
            for (name, arguments) in found.iter().take(found.len() - usize::from(!full && !found.is_empty()))
            {
                check(name, arguments);
            }
            all.push((found, choice["message"]["content"].clone()));
        }
        all
    };
    for (found, content) in post(json!({ "tool_choice": "required", "parallel_tool_calls": false })) {
        assert_eq!((found.len(), content), (1, Value::Null));
    }
    for (found, content) in post(json!({ "tool_choice": "required" })) {
        assert!(!found.is_empty() && content.is_null());
    }
    let named = json!({ "type": "function", "function": { "name": "get_weather" } });
    let only = json!({ "type": "allowed_tools", "allowed_tools": { "mode": "required", "tools": [named] } });
    for choice in [named, only] {
        for (found, _) in post(json!({ "tool_choice": choice, "parallel_tool_calls": false })) {
            assert_eq!(found[0].0, "get_weather");
        }
    }
    // Ban the only token that a call can start with.
    let bias = tokenizer().token_id("<0x3C>").unwrap().to_string();
    let banned = with_tools(json!({ "tool_choice": "required", "logit_bias": { bias: -100 } }));
    let (message, param) = server.post(CHAT, &banned).error(400, "format_failed");
    assert!(param == "tools" && message.contains("logit biases"), "{message}");
    // Random text almost never starts a call.
    for (found, content) in post(json!({ "max_tokens": 50 })) {
        assert!(found.is_empty() && content.is_string(), "{found:?} {content}");
    }
    let schema = json!({ "type": "object", "properties": { "a": { "enum": [1, 2] } }, "required": ["a"], "additionalProperties": false });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    let mut seen = HashSet::new();
    for seed in 0..8 {
        for (found, content) in
            post(json!({ "response_format": format, "parallel_tool_calls": false, "seed": seed }))
        {
            seen.insert(found.is_empty());
            if found.is_empty() {
                let value: Value = serde_json::from_str(content.as_str().unwrap()).unwrap();
                assert!([1, 2].contains(&value["a"].as_u64().unwrap()));
            }
        }
    }
    assert_eq!(seen.len(), 2, "both tool calls and JSON occur");
}
