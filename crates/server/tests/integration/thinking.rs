//! Thinking: `reasoning_content` in responses and streams, its switches, and constraints after it.

use crate::common::{Fixture, Mock, chat, completion, tokenizer};
use serde_json::{Value, json};
use server::Config;
use text::{ChatTemplate, DecodeSpecial, EncodeSpecial};

const CHAT: &str = "/v1/chat/completions";

/// Opens the thinking in the prompt unless it is switched off; says which effort it was given.
const TEMPLATE: &str = r#"{{- bos_token }}
{%- if tools %}Tools:{% for tool in tools %}{{ '\n' }}{{ tool | tojson }}{% endfor %}{{ '\n' }}{% endif %}
{%- for message in messages %}
  {{- '<start_of_turn>' + message.role + '\n' }}
  {%- if message.reasoning_content %}{{ '<think>' + message.reasoning_content + '</think>' }}{% endif %}
  {{- message.content or '' }}
  {%- for call in message.tool_calls %}
    {{- '\n<call>\n{"name": "' + call.function.name + '", "arguments": ' }}
    {{- call.function.arguments | tojson }}
    {{- '}\n</call>' }}
  {%- endfor %}
  {{- '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>assistant\n' }}
  {%- if reasoning_effort %}{{ 'effort ' + reasoning_effort + '\n' }}{% endif %}
  {%- if enable_thinking is not defined %}{{ '' }}{% elif enable_thinking %}{{ '<think>\n' }}{% else %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}"#;

fn template() -> Option<ChatTemplate> {
    Some(ChatTemplate::new(TEMPLATE, "<bos>", "<eos>").unwrap())
}

fn scripted_with(text: &str, config: Config) -> Fixture {
    let script = tokenizer().encode(text, EncodeSpecial::AsText);
    let mock = Mock { script, context_length: 4096, ..Mock::new() };
    Fixture::with_template(mock, config, template())
}

/// A server that generates this text for every request.
fn scripted(text: &str) -> Fixture {
    scripted_with(text, Config::default())
}

fn greedy(more: Value) -> Value {
    let mut body = chat(json!({ "temperature": 0 }));
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Reasoning and content of a stream.
fn assemble(chunks: &[Value]) -> (String, String) {
    let (mut reasoning, mut content) = (String::new(), String::new());
    for chunk in chunks {
        for choice in chunk["choices"].as_array().unwrap() {
            let delta = &choice["delta"];
            if let Some(text) = delta["reasoning_content"].as_str() {
                assert!(!text.is_empty() && content.is_empty() && delta.get("content").is_none(), "{delta}");
                reasoning += text;
            }
            content += delta["content"].as_str().unwrap_or_default();
        }
    }
    (reasoning, content)
}

#[test]
fn thinking_is_reasoning_content_streamed_or_not() {
    let server = scripted("<think>\nTwo and two.\n\nFour: é鳥.\n</think>\n\nIt is four.");
    let got = server.post(CHAT, &greedy(json!({}))).json();
    let message = &got["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], "Two and two.\n\nFour: é鳥.", "{got}");
    assert_eq!(message["content"], "It is four.");
    let details = &got["usage"]["completion_tokens_details"];
    let reasoning_tokens = details["reasoning_tokens"].as_u64().unwrap() as usize;
    let thinking =
        tokenizer().encode("<think>\nTwo and two.\n\nFour: é鳥.\n</think>", EncodeSpecial::AsText).len();
    // The first letters of <think> are not yet known to be thinking.
    assert_eq!(reasoning_tokens, thinking - "<think>".len() + 1);

    let body = greedy(json!({ "stream": true, "stream_options": { "include_usage": true } }));
    let chunks = server.chunks(CHAT, &body);
    assert_eq!(assemble(&chunks), ("Two and two.\n\nFour: é鳥.".to_owned(), "It is four.".to_owned()));
    assert_eq!(&chunks.last().unwrap()["usage"]["completion_tokens_details"], details);
    assert!(
        chunks.iter().filter(|chunk| chunk["choices"][0]["delta"]["reasoning_content"].is_string()).count()
            > 5
    );

    // Stop strings and log probabilities are those of the content.
    let got = server.post(CHAT, &greedy(json!({ "stop": " four", "logprobs": true }))).json();
    let choice = &got["choices"][0];
    assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!("It is"), &json!("stop")));
    assert_eq!(choice["message"]["reasoning_content"], "Two and two.\n\nFour: é鳥.");
    let tokens = choice["logprobs"]["content"].as_array().unwrap();
    let text: String = tokens.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(text, "It is");

    // Text completions are as the model writes them.
    let got =
        server.post("/v1/completions", &completion(json!({ "temperature": 0, "max_tokens": 500 }))).json();
    assert!(got["choices"][0]["text"].as_str().unwrap().starts_with("<think>\n"));
    assert!(got["usage"].get("completion_tokens_details").is_none());
}

#[test]
fn thinking_that_the_prompt_opened_has_no_start() {
    let server = scripted("So.\n</think>\n\nYes.");
    let message = |more: Value| server.post(CHAT, &greedy(more)).json()["choices"][0]["message"].take();
    for on in [
        json!({ "chat_template_kwargs": { "enable_thinking": true } }),
        json!({ "reasoning_effort": "low" }),
        json!({ "reasoning_effort": "none", "chat_template_kwargs": { "enable_thinking": true } }),
    ] {
        let got = message(on);
        assert_eq!((&got["reasoning_content"], &got["content"]), (&json!("So."), &json!("Yes.")));
    }
    // Without thinking, the text is content.
    for off in [
        json!({}),
        json!({ "chat_template_kwargs": { "enable_thinking": false } }),
        json!({ "reasoning_effort": "none" }),
        json!({ "reasoning_effort": "high", "chat_template_kwargs": { "enable_thinking": false } }),
    ] {
        let got = message(off);
        assert_eq!(got["content"], "So.\n</think>\n\nYes.");
        assert!(got.get("reasoning_content").is_none());
    }
    // It may be cut off.
    let cut = json!({ "reasoning_effort": "low", "max_tokens": 2 });
    let got = server.post(CHAT, &greedy(cut)).json();
    assert_eq!(got["choices"][0]["finish_reason"], "length");
    let message = &got["choices"][0]["message"];
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("So"), &json!("")));
    assert_eq!(got["usage"]["completion_tokens_details"]["reasoning_tokens"], 2);
    let (_, param) =
        server.post(CHAT, &greedy(json!({ "reasoning_effort": "" }))).error(400, "invalid_value");
    assert_eq!(param, "reasoning_effort");
    let (_, param) = server.post(CHAT, &greedy(json!({ "reasoning_effort": 1 }))).error(400, "invalid_value");
    assert_eq!(param, "reasoning_effort");
}

/// The end of the last prompt.
fn last_prompt(server: &Fixture) -> String {
    let prompt = server.mock.submitted.lock().unwrap().pop().unwrap().prompt;
    tokenizer().decode(&prompt, DecodeSpecial::Keep)
}

#[test]
fn the_request_decides_before_the_server_does() {
    for (setting, expected) in [
        (None, "assistant\n"),
        (Some(true), "assistant\n<think>\n"),
        (Some(false), "assistant\n<think>\n\n</think>\n\n"),
    ] {
        let server = scripted_with("x", Config { thinking: setting, ..Config::default() });
        server.post(CHAT, &greedy(json!({})));
        assert!(last_prompt(&server).ends_with(expected));
        server.post(CHAT, &greedy(json!({ "reasoning_effort": "high" })));
        assert!(last_prompt(&server).ends_with("assistant\neffort high\n<think>\n"));
        server.post(CHAT, &greedy(json!({ "chat_template_kwargs": { "enable_thinking": false } })));
        assert!(last_prompt(&server).ends_with("assistant\n<think>\n\n</think>\n\n"));
    }
}

#[test]
fn the_template_sees_earlier_reasoning() {
    let server = scripted("x");
    for name in ["reasoning_content", "reasoning"] {
        let messages = json!([
            { "role": "user", "content": "a", name: "no" },
            { "role": "assistant", "content": "b", name: "why<end_of_turn>" },
            { "role": "assistant", "content": "c", name: "" },
            { "role": "user", "content": "d" },
        ]);
        assert_eq!(server.post(CHAT, &greedy(json!({ "messages": messages }))).status, 200);
        let prompt = last_prompt(&server);
        assert!(prompt.contains("assistant\n<think>why<end_of_turn></think>b<end_of_turn>\n"), "{prompt}");
        assert_eq!(prompt.matches("<think>").count(), 1, "{prompt}");
    }
}

#[test]
fn tool_calls_may_follow_thinking() {
    let call = "<call>\n{\"name\": \"now\", \"arguments\": {}}\n</call>";
    let tools = json!([{ "type": "function", "function": { "name": "now" } }]);
    for (text, effort) in [
        (format!("<think>\nUse <call>.\n</think>\n\n{call}"), None),
        (format!("Use <call>.\n</think>\n\n{call}"), Some("low")),
    ] {
        let server = scripted(&text);
        let got = server.post(CHAT, &greedy(json!({ "tools": tools, "reasoning_effort": effort }))).json();
        let choice = &got["choices"][0];
        assert_eq!(choice["message"]["reasoning_content"], "Use <call>.");
        assert_eq!(choice["message"]["content"], Value::Null);
        assert_eq!(choice["message"]["tool_calls"][0]["function"]["name"], "now");
        assert_eq!(choice["finish_reason"], "tool_calls");
        let body = greedy(json!({ "tools": tools, "reasoning_effort": effort, "stream": true }));
        let chunks = server.chunks(CHAT, &body);
        assert_eq!(assemble(&chunks), ("Use <call>.".to_owned(), String::new()));
    }
}

#[test]
fn a_constraint_begins_after_the_thinking() {
    let server = Fixture::with_random_engine(Config::default(), template());
    // The closing delimiter in random text is unlikely, so the letters are made likely.
    let schema = json!({ "type": "object", "properties": { "a": { "enum": [1, 2] } }, "required": ["a"], "additionalProperties": false });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    let body = |more: Value| {
        let mut body =
            chat(json!({ "response_format": format, "temperature": 1, "seed": 5, "max_tokens": 300 }));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    // Open thinking is free: it goes on to the limit.
    let got = server.post(CHAT, &body(json!({ "reasoning_effort": "low" }))).json();
    assert_eq!(got["choices"][0]["finish_reason"], "length");
    assert!(got["choices"][0]["message"]["reasoning_content"].as_str().unwrap().len() > 100);
    assert_eq!(got["choices"][0]["message"]["content"], "");
    // Without it, the answer is constrained from the start.
    for more in [json!({ "reasoning_effort": "none" }), json!({})] {
        let got = server.post(CHAT, &body(more)).json();
        let content = got["choices"][0]["message"]["content"].as_str().unwrap();
        let value: Value = serde_json::from_str(content).unwrap_or_else(|error| panic!("{error}: {content}"));
        assert!([1, 2].contains(&value["a"].as_u64().unwrap()));
    }
}
