//! Anthropic's `/v1/messages`: prompts, tools, thinking, images and token counts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use server::Config;
use text::{ChatTemplate, DecodeSpecial, EncodeSpecial};

use crate::common::{CACHED, Fixture, MODEL, Mock, message, tokenizer};
use crate::messages_stream::both;

pub(crate) const MESSAGES: &str = "/v1/messages";
pub(crate) const COUNT: &str = "/v1/messages/count_tokens";

/// Tools in front, calls in tags, results with the name of their tool, and thinking with a switch.
const TEMPLATE: &str = r#"{{- bos_token }}
{%- if tools %}Tools:{% for tool in tools %}{{ '\n' }}{{ tool | tojson }}{% endfor %}{{ '\n' }}{% endif %}
{%- for message in messages %}
  {{- '<start_of_turn>' + message.role + '\n' }}
  {%- if message.reasoning_content %}{{ '<think>' + message.reasoning_content + '</think>' }}{% endif %}
  {%- if message.role == 'tool' %}{{ 'result of ' + message.name + ': ' }}{% endif %}
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

/// The end of a prompt whose thinking is switched off.
const NO_THINKING: &str = "<start_of_turn>assistant\n<think>\n\n</think>\n\n";

pub(crate) fn template() -> Option<ChatTemplate> {
    Some(ChatTemplate::new(TEMPLATE, "<bos>", "<eos>").unwrap())
}

pub(crate) fn scripted_tokens(script: Vec<u32>, config: Config) -> Fixture {
    let mock = Mock { script, context_length: 4096, ..Mock::new() };
    Fixture::with_template(mock, config, template())
}

/// A server that generates this text for every request.
pub(crate) fn scripted(text: &str) -> Fixture {
    scripted_tokens(tokenizer().encode(text, EncodeSpecial::AsText), Config::default())
}

/// A greedy request with these additional fields.
pub(crate) fn greedy(more: Value) -> Value {
    let mut body = message(json!({ "temperature": 0 }));
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn weather() -> Value {
    let schema = json!({
        "type": "object",
        "properties": { "city": { "enum": ["Paris", "Rome"] }, "days": { "type": "integer", "minimum": 1, "maximum": 9 } },
        "required": ["city", "days"],
        "additionalProperties": false,
    });
    json!({ "name": "get_weather", "description": "d", "input_schema": schema, "cache_control": { "type": "ephemeral" } })
}

fn now() -> Value {
    let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    json!({ "type": "custom", "name": "now", "input_schema": schema })
}

pub(crate) fn call(name: &str, arguments: &str) -> String {
    format!("<call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</call>")
}

/// The last prompt as text.
fn last_prompt(server: &Fixture) -> String {
    let prompt = server.mock.submitted.lock().unwrap().pop().expect("a request").prompt;
    tokenizer().decode(&prompt, DecodeSpecial::Keep)
}

/// The prompt of a request with these fields.
fn prompt(server: &Fixture, more: Value) -> String {
    let got = server.post(MESSAGES, &greedy(more));
    assert_eq!(got.status, 200, "{}", got.body);
    last_prompt(server)
}

#[test]
fn a_message_has_anthropics_format() {
    let server = Fixture::new();
    let got = server.post(MESSAGES, &greedy(json!({ "metadata": { "user_id": "me" } })));
    assert_eq!(got.status, 200, "{}", got.body);
    let request = server.mock.submitted.lock().unwrap().pop().unwrap();
    let id = got.headers["request-id"].to_str().unwrap();
    assert_eq!(got.headers["x-request-id"], id);
    let expected = json!({
        "id": format!("msg_{id}"),
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{ "type": "text", "text": " one two three four five six" }],
        "stop_reason": "end_turn",
        "stop_sequence": null,
        "usage": {
            "input_tokens": request.prompt.len() as u32 - CACHED,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": CACHED,
            "output_tokens": 6,
        },
    });
    assert_eq!(got.json(), expected);
    let text = "<bos><start_of_turn>user\nsay<end_of_turn>\n<start_of_turn>model\n";
    assert_eq!(request.prompt, tokenizer().encode_prompt(text));
}

#[test]
fn every_stop_reason_is_reported_streamed_or_not() {
    let server = Fixture::new();
    let stop = |more: Value| {
        let message = both(&server, &greedy(more));
        let text = message["content"][0]["text"].as_str().unwrap_or_default().to_owned();
        (text, message["stop_reason"].clone(), message["stop_sequence"].clone())
    };
    let all = " one two three four five six";
    assert_eq!(stop(json!({})), (all.to_owned(), json!("end_turn"), Value::Null));
    assert_eq!(stop(json!({ "max_tokens": 2 })), (" one two".to_owned(), json!("max_tokens"), Value::Null));
    for (stops, text, found) in [
        (json!(["x", " three"]), " one two", " three"),
        (json!(["four", "ree"]), " one two th", "ree"),
        // The first that starts, though another one is complete before it.
        (json!(["o t", "wo", "ne two"]), " o", "ne two"),
        (json!(["six"]), " one two three four five ", "six"),
        // An empty message.
        (json!(["never", " one"]), "", " one"),
    ] {
        let stopped = stop(json!({ "stop_sequences": stops }));
        assert_eq!(stopped, (text.to_owned(), json!("stop_sequence"), json!(found)));
    }
    assert_eq!(stop(json!({ "stop_sequences": ["never"] })).1, "end_turn");
    let tools = scripted(&call("now", "{}"));
    assert_eq!(both(&tools, &greedy(json!({ "tools": [now()] })))["stop_reason"], "tool_use");
}

#[test]
fn sampling_parameters_reach_the_engine() {
    let server = Fixture::new();
    let sampling = |more: Value| {
        let got = server.post(MESSAGES, &message(more));
        assert_eq!(got.status, 200, "{}", got.body);
        server.mock.submitted.lock().unwrap().pop().unwrap()
    };
    let request = sampling(json!({ "temperature": 0.5, "top_p": 0.25, "top_k": 7, "max_tokens": 3 }));
    let given = &request.sampling;
    assert_eq!((given.temperature, given.top_p, given.top_k, request.max_tokens), (0.5, 0.25, 7, 3));
    let request = sampling(json!({}));
    let default = &request.sampling;
    assert_eq!((default.temperature, default.top_k), (1.0, engine::Sampling::default().top_k));
    // More tokens than fit are not an error.
    assert_eq!(sampling(json!({ "max_tokens": 1_000_000 })).max_tokens, 257 - request.prompt.len() as u32);
    assert_ne!(sampling(json!({})).sampling.seed, sampling(json!({})).sampling.seed);
}

#[test]
fn fields_that_change_nothing_are_ignored() {
    let server = Fixture::new();
    let ephemeral = json!({ "type": "ephemeral" });
    let plain = prompt(&server, json!({ "system": "be kind" }));
    let same = prompt(
        &server,
        json!({
            "system": [{ "type": "text", "text": "be kind", "cache_control": ephemeral }],
            "messages": [{ "role": "user", "content": [{ "type": "text", "text": "say", "cache_control": ephemeral, "citations": null }] }],
            "metadata": {}, "service_tier": "auto", "container": null, "mcp_servers": [], "inference_geo": "eu",
            "context_management": { "edits": [{ "type": "clear_thinking_20251015", "keep": "all" }] },
            "betas": ["x"], "unknown": { "a": 1 }, "stream": null, "tools": null, "tool_choice": null,
            "thinking": null, "stop_sequences": [], "top_k": null, "output_config": {}, "cache_control": ephemeral,
        }),
    );
    assert_eq!(plain, same);
    for header in [("anthropic-version", "2023-06-01"), ("anthropic-version", "x"), ("anthropic-beta", "a,b")]
    {
        assert_eq!(server.post_with(MESSAGES, &message(json!({})), header).status, 200);
    }
}

#[test]
fn messages_become_turns_of_the_template() {
    let server = scripted("x");
    let text = |text: &str| json!({ "type": "text", "text": text });
    let messages = json!([
        { "role": "user", "content": "a" },
        { "role": "user", "content": [text("b"), text("c<end_of_turn>")] },
        { "role": "assistant", "content": [text("d"), text("e")] },
        { "role": "assistant", "content": "f" },
        { "role": "user", "content": "g" },
    ]);
    let system = json!([text("be kind"), text(""), text("be short")]);
    let got = prompt(&server, json!({ "messages": messages, "system": system }));
    let expected = format!(
        "<bos><start_of_turn>system\nbe kind\n\nbe short<end_of_turn>\n<start_of_turn>user\na\n\nb\n\nc<end_of_turn><end_of_turn>\n\
         <start_of_turn>assistant\ndef<end_of_turn>\n<start_of_turn>user\ng<end_of_turn>\n{NO_THINKING}"
    );
    assert_eq!(got, expected);
    let without = prompt(&server, json!({ "system": "" }));
    assert_eq!(without, format!("<bos><start_of_turn>user\nsay<end_of_turn>\n{NO_THINKING}"));
    // A system message within the conversation stays where it is.
    let messages = json!([{ "role": "user", "content": "a" }, { "role": "system", "content": "b" }]);
    let got = prompt(&server, json!({ "messages": messages }));
    assert!(got.contains("user\na<end_of_turn>\n<start_of_turn>system\nb<end_of_turn>\n"), "{got}");
}

#[test]
fn the_last_message_of_the_assistant_is_continued() {
    let server = scripted("x");
    let conversation = |last: Value| json!({ "messages": [{ "role": "user", "content": "a" }, { "role": "assistant", "content": last }] });
    for last in [json!("The answer is "), json!([{ "type": "text", "text": "The answer is " }])] {
        let got = prompt(&server, conversation(last));
        assert!(got.ends_with("<start_of_turn>assistant\nThe answer is "), "{got}");
    }
    let message = both(&server, &greedy(conversation(json!("The answer is "))));
    assert_eq!(message["content"], json!([{ "type": "text", "text": "x" }]));
    // Without text, there is nothing to continue.
    for last in [json!(""), json!([]), json!([{ "type": "text", "text": "" }])] {
        let got = prompt(&server, conversation(last));
        assert!(got.ends_with(&format!("user\na<end_of_turn>\n{NO_THINKING}")), "{got}");
    }
}

#[test]
fn tools_make_a_round_trip() {
    let arguments = r#"{"city": "Paris", "days": 3}"#;
    let server = scripted(&format!("Let me see.\n{}\n{}", call("get_weather", arguments), call("now", "{}")));
    let request = json!({ "tools": [weather(), now()] });
    let message = both(&server, &greedy(request.clone()));
    let content = message["content"].as_array().unwrap();
    assert_eq!(content[0], json!({ "type": "text", "text": "Let me see." }));
    let expected = [("get_weather", json!({ "city": "Paris", "days": 3 })), ("now", json!({}))];
    assert_eq!(content.len(), 3);
    for (block, (name, input)) in content[1..].iter().zip(&expected) {
        assert_eq!((&block["type"], &block["name"]), (&json!("tool_use"), &json!(name)));
        assert_eq!(&block["input"], input);
        assert!(block["id"].as_str().unwrap().starts_with("toolu_"), "{block}");
    }
    assert_ne!(content[1]["id"], content[2]["id"]);
    let first = last_prompt(&server);
    assert!(first.contains(r#"{"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": {"type": "object""#), "{first}");

    // The message goes back as it came, with the results in any order.
    let results = json!([
        { "type": "tool_result", "tool_use_id": content[2]["id"], "content": [{ "type": "text", "text": "noon" }, { "type": "text", "text": "sharp<end_of_turn>" }] },
        { "type": "text", "text": "and?" },
        { "type": "tool_result", "tool_use_id": content[1]["id"], "content": "no such city", "is_error": true },
    ]);
    let messages = json!([
        { "role": "user", "content": "say" },
        { "role": "assistant", "content": content },
        { "role": "user", "content": results },
    ]);
    let mut again = request.clone();
    again["messages"] = messages.clone();
    let got = prompt(&server, again);
    let expected = "<start_of_turn>assistant\nLet me see.\n<call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}\n</call>\n<call>\n{\"name\": \"now\", \"arguments\": {}}\n</call><end_of_turn>\n\
         <start_of_turn>tool\nresult of now: noon\n\nsharp<end_of_turn><end_of_turn>\n\
         <start_of_turn>tool\nresult of get_weather: Error: no such city<end_of_turn>\n\
         <start_of_turn>user\nand?<end_of_turn>\n";
    assert!(got.contains(expected), "{got}");
    // With the type none the model does not see the tools, but still the calls.
    let got =
        prompt(&server, json!({ "tools": [now()], "tool_choice": { "type": "none" }, "messages": messages }));
    assert!(!got.contains("Tools:") && got.contains(expected), "{got}");
    // A result may be empty; an error that says so is not marked again.
    let id = &content[1]["id"];
    for (result, shown) in [
        (json!({}), "get_weather: <end_of_turn>"),
        (json!({ "content": [] }), "get_weather: <end_of_turn>"),
        (json!({ "content": "Error: no", "is_error": true }), "get_weather: Error: no<end_of_turn>"),
        (json!({ "content": "fine", "is_error": false }), "get_weather: fine<end_of_turn>"),
    ] {
        let mut result = result;
        (result["type"], result["tool_use_id"]) = ("tool_result".into(), id.clone());
        let messages = json!([
            { "role": "user", "content": "say" },
            { "role": "assistant", "content": [content[1]] },
            { "role": "user", "content": [result] },
        ]);
        let got = prompt(&server, json!({ "tools": [weather()], "messages": messages }));
        assert!(got.contains(shown), "{got}");
    }
}

#[test]
fn calls_match_the_schemas_of_their_tools() {
    let server = Fixture::with_random_engine(Config::default(), template());
    let calls = |choice: Value| {
        let request = json!({ "tools": [weather(), now()], "tool_choice": choice });
        let got = server.post(MESSAGES, &message(request));
        assert_eq!(got.status, 200, "{}", got.body);
        let got = got.json();
        let blocks = got["content"].as_array().unwrap().clone();
        for block in &blocks {
            assert_eq!(block["type"], "tool_use", "{got}");
            let input = &block["input"];
            match block["name"].as_str().unwrap() {
                "get_weather" => {
                    assert!(["Paris", "Rome"].contains(&input["city"].as_str().unwrap()), "{input}");
                    assert!((1..=9).contains(&input["days"].as_u64().unwrap()), "{input}");
                }
                name => assert_eq!((name, input), ("now", &json!({}))),
            }
        }
        (blocks, got["stop_reason"].clone())
    };
    for _ in 0..4 {
        let (blocks, reason) = calls(json!({ "type": "any", "disable_parallel_tool_use": true }));
        assert_eq!((blocks.len(), reason), (1, json!("tool_use")));
        let (blocks, _) =
            calls(json!({ "type": "tool", "name": "get_weather", "disable_parallel_tool_use": true }));
        assert_eq!((blocks.len(), &blocks[0]["name"]), (1, &json!("get_weather")));
    }
}

#[test]
fn several_calls_may_be_disabled() {
    let text = format!("{}\n{}", call("now", "{}"), call("now", "{}"));
    let server = scripted(&text);
    // Whether the grammar of a request allows both calls.
    let allows_both = |choice: Value| {
        let request = json!({ "tools": [now()], "tool_choice": choice });
        assert_eq!(server.post(MESSAGES, &greedy(request)).status, 200);
        let mut grammar = server.mock.submitted.lock().unwrap().pop().unwrap().grammar.expect("a grammar");
        let mut mask = vec![0; tokenizer().vocab_size().div_ceil(32)];
        server.mock.script.iter().all(|token| {
            let done = grammar.is_finished() || grammar.mask(&mut mask).is_err();
            let allowed = !done && mask[*token as usize / 32] >> (token % 32) & 1 == 1;
            allowed && grammar.accept(*token).is_ok()
        })
    };
    assert!(allows_both(json!({ "type": "auto" })));
    assert!(allows_both(json!({ "type": "any", "disable_parallel_tool_use": false })));
    for kind in ["auto", "any"] {
        assert!(!allows_both(json!({ "type": kind, "disable_parallel_tool_use": true })));
    }
}

#[test]
fn output_may_be_held_to_a_schema() {
    let server = Fixture::with_random_engine(Config::default(), template());
    let schema = json!({ "type": "object", "properties": { "a": { "enum": [1, 2] } }, "required": ["a"], "additionalProperties": false });
    let format = json!({ "effort": "low", "format": { "type": "json_schema", "schema": schema } });
    let got = server.post(MESSAGES, &message(json!({ "output_config": format }))).json();
    let value: Value = serde_json::from_str(got["content"][0]["text"].as_str().unwrap()).unwrap();
    assert!([1, 2].contains(&value["a"].as_u64().unwrap()), "{got}");
}

#[test]
fn a_call_that_is_cut_off_is_left_out() {
    let text =
        format!("So: {}\n{}", call("now", "{}"), call("get_weather", r#"{"city": "Rome", "days": 1}"#));
    let server = scripted(&text);
    let mut counts = Vec::new();
    for max_tokens in (1..=server.mock.script.len()).step_by(3) {
        let request = json!({ "tools": [weather(), now()], "max_tokens": max_tokens });
        let message = both(&server, &greedy(request));
        let calls = message["content"].as_array().unwrap().iter().filter(|block| block["type"] == "tool_use");
        counts.push(calls.count());
        let complete = max_tokens == server.mock.script.len();
        assert_eq!(message["stop_reason"], if complete { "tool_use" } else { "max_tokens" });
    }
    assert!(counts.is_sorted() && counts.contains(&0) && counts.contains(&1), "{counts:?}");
}

#[test]
fn thinking_is_a_block_of_its_own() {
    let server = scripted("<think>\nTwo and two.\n\nFour: é鳥.\n</think>\n\nIt is four.");
    let message = both(&server, &greedy(json!({})));
    let thinking = json!({ "type": "thinking", "thinking": "Two and two.\n\nFour: é鳥.", "signature": "" });
    assert_eq!(message["content"], json!([thinking, { "type": "text", "text": "It is four." }]));
    assert!(message["usage"]["output_tokens_details"]["thinking_tokens"].as_u64().unwrap() > 10);
    // Stop sequences apply to the text only.
    let message = both(&server, &greedy(json!({ "stop_sequences": ["Two", " four"] })));
    assert_eq!(message["content"], json!([thinking, { "type": "text", "text": "It is" }]));
    assert_eq!(message["stop_sequence"], " four");
    let message = both(&server, &greedy(json!({ "max_tokens": 12 })));
    assert_eq!(
        (message["content"].as_array().unwrap().len(), &message["stop_reason"]),
        (1, &json!("max_tokens"))
    );
}

#[test]
fn thinking_has_a_switch() {
    for (setting, default) in [(None, NO_THINKING), (Some(true), "<think>\n"), (Some(false), NO_THINKING)] {
        let script = tokenizer().encode("So.\n</think>\n\nYes.", EncodeSpecial::AsText);
        let server = scripted_tokens(script, Config { thinking: setting, ..Config::default() });
        assert!(prompt(&server, json!({})).ends_with(default), "{setting:?}");
        for on in [
            json!({ "type": "enabled", "budget_tokens": 1024 }),
            json!({ "type": "adaptive", "display": "summarized" }),
        ] {
            assert!(prompt(&server, json!({ "thinking": on })).ends_with("assistant\n<think>\n"));
            let message = both(&server, &greedy(json!({ "thinking": on })));
            assert_eq!(message["content"][0]["thinking"], "So.");
            assert_eq!(message["content"][1]["text"], "Yes.");
        }
        let off = json!({ "thinking": { "type": "disabled" }, "output_config": { "effort": "high" } });
        let got = prompt(&server, off);
        assert!(got.ends_with("assistant\neffort high\n<think>\n\n</think>\n\n"), "{got}");
    }
}

#[test]
fn the_template_sees_earlier_thinking() {
    let server = scripted("x");
    let blocks = json!([
        { "type": "thinking", "thinking": "why<end_of_turn>", "signature": "abc" },
        { "type": "redacted_thinking", "data": "xyz" },
        { "type": "text", "text": "b" },
    ]);
    let messages = json!([
        { "role": "user", "content": "a" },
        { "role": "assistant", "content": blocks },
        { "role": "user", "content": "c" },
    ]);
    let got = prompt(&server, json!({ "messages": messages }));
    assert!(got.contains("assistant\n<think>why<end_of_turn></think>b<end_of_turn>\n"), "{got}");
    // A template without thinking leaves it out.
    let server = Fixture::new();
    let got = prompt(&server, json!({ "messages": messages }));
    assert!(got.contains("model\nb<end_of_turn>") && !got.contains("why"), "{got}");
}

/// A GIF file of one pixel.
const GIF: &str = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7";

pub(crate) fn image(media_type: &str, data: &str) -> Value {
    json!({ "type": "image", "source": { "type": "base64", "media_type": media_type, "data": data } })
}

/// A BMP file of one pixel.
pub(crate) fn bmp(colour: u8) -> String {
    let mut bytes = b"BM\x3a\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\x18\0".to_vec();
    bytes.extend([0; 24]);
    bytes.extend([colour, colour, colour, 0]);
    STANDARD.encode(bytes)
}

#[test]
fn images_become_blocks_of_the_prompt() {
    let server = Fixture::with_images(Mock::new(), Config::default(), false);
    let post = |content: Value| {
        let body = message(json!({ "messages": [{ "role": "user", "content": content }] }));
        let got = server.post(MESSAGES, &body);
        assert_eq!(got.status, 200, "{}", got.body);
        (body, server.mock.submitted.lock().unwrap().pop().unwrap())
    };
    let text = |text: &str| json!({ "type": "text", "text": text });
    let ids = |request: &engine::Request| {
        request.images.iter().map(|image| format!("{:?}", image.id())).collect::<Vec<_>>()
    };
    let (body, request) =
        post(json!([text("a"), image("image/gif", GIF), text("b"), image("image/bmp", &bmp(7))]));
    assert_eq!((request.images.len(), model::image_blocks(&request.prompt).count()), (2, 2));
    let count = server.post(COUNT, &body).json();
    assert_eq!(count, json!({ "input_tokens": request.prompt.len() }));
    let [gif, dark] = &ids(&request)[..] else { panic!("two images") };
    let (_, request) = post(json!([image("image/bmp", &bmp(7)), image("image/gif", GIF)]));
    assert_eq!(ids(&request), [dark.clone(), gif.clone()]);
}

#[test]
fn images_of_tool_results_follow_them() {
    let mock = std::sync::Arc::new(Mock { context_length: 4096, ..Mock::new() });
    let template = ChatTemplate::new(
        r#"{{- bos_token }}{% for message in messages %}{{ '<start_of_turn>' + message.role + '\n' }}
        {%- if message.content is string %}{{ message.content }}{% else %}
        {%- for part in message.content or [] %}{{ '<start_of_image>' if part.type == 'image' else part.text }}{% endfor %}{% endif %}
        {%- for call in message.tool_calls %}{{ '<call>{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}</call>' }}{% endfor %}
        {{- '<end_of_turn>\n' }}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"#,
        "<bos>",
        "<eos>",
    );
    let server = Fixture::with_images_and_template(mock, template.unwrap());
    let use_ = |id: &str| json!({ "type": "tool_use", "id": id, "name": "look", "input": {} });
    let result =
        |id: &str, content: Value| json!({ "type": "tool_result", "tool_use_id": id, "content": content });
    let messages = json!([
        { "role": "user", "content": "look" },
        { "role": "assistant", "content": [use_("1"), use_("2")] },
        { "role": "user", "content": [
            { "type": "text", "text": "here: " },
            image("image/bmp", &bmp(1)),
            result("1", json!([{ "type": "text", "text": "seen" }, image("image/gif", GIF)])),
            result("2", json!([image("image/bmp", &bmp(9))])),
        ] },
    ]);
    let tool = json!({ "name": "look", "input_schema": { "type": "object" } });
    let got = server.post(MESSAGES, &message(json!({ "messages": messages, "tools": [tool] })));
    assert_eq!(got.status, 200, "{}", got.body);
    let request = server.mock.submitted.lock().unwrap().pop().unwrap();
    let tokenizer = crate::common::tokenizer_with(&["<start_of_image>", "<end_of_image>"]);
    let shown = tokenizer.decode(&request.prompt, DecodeSpecial::Skip);
    let order =
        ["tool\nseen", "tool\n", "user\n", "here: "].map(|part| shown.rfind(part).expect("in the prompt"));
    assert!(order.is_sorted(), "{shown}");
    let bytes = |data: &str| STANDARD.decode(data).unwrap();
    let id = |data: &str| {
        let picture = images::decode(&bytes(data), &images::Limits::default()).unwrap();
        crate::common::image_processor().process(&picture)[0].id()
    };
    let ids: Vec<_> = request.images.iter().map(|image| image.id()).collect();
    assert_eq!(ids, [id(GIF), id(&bmp(9)), id(&bmp(1))]);
}

#[test]
fn token_counts_are_exact() {
    let server = scripted("x");
    let system = json!("be kind");
    let messages =
        json!([{ "role": "user", "content": "one two three" }, { "role": "assistant", "content": "four" }]);
    for more in [
        json!({}),
        json!({ "system": system }),
        json!({ "messages": messages }),
        json!({ "tools": [weather()], "tool_choice": { "type": "any" } }),
        json!({ "thinking": { "type": "enabled", "budget_tokens": 2000 } }),
    ] {
        let mut body = greedy(more);
        assert_eq!(server.post(MESSAGES, &body).status, 200);
        let tokens = server.mock.submitted.lock().unwrap().pop().unwrap().prompt.len();
        assert_eq!(server.post(COUNT, &body).json(), json!({ "input_tokens": tokens }));
        let usage = server.post(MESSAGES, &body).json()["usage"].take();
        assert_eq!(usage["input_tokens"].as_u64().unwrap() + u64::from(CACHED), tokens as u64);
        server.mock.submitted.lock().unwrap().clear();
        body.as_object_mut().unwrap().remove("max_tokens");
        assert_eq!(server.post(COUNT, &body).json(), json!({ "input_tokens": tokens }));
    }
    // Neither the context nor the engine limits it.
    let long = json!({ "messages": [{ "role": "user", "content": "a".repeat(10_000) }] });
    assert!(server.post(COUNT, &greedy(long)).json()["input_tokens"].as_u64().unwrap() > 10_000);
    *server.mock.submit_error.lock().unwrap() =
        Some(engine::SubmitError::QueueFull { retry_after: std::time::Duration::from_secs(1) });
    assert_eq!(server.post(COUNT, &greedy(json!({}))).status, 200);
    assert!(server.mock.submitted.lock().unwrap().is_empty());
}

#[test]
fn models_are_listed_for_anthropics_clients() {
    let server = Fixture::new();
    let version = ("anthropic-version", "2023-06-01");
    let info =
        json!({ "type": "model", "id": MODEL, "display_name": MODEL, "created_at": "2023-11-14T22:13:20Z" });
    let list = json!({ "data": [info], "has_more": false, "first_id": MODEL, "last_id": MODEL });
    assert_eq!(server.get_with("/v1/models", version).json(), list);
    assert_eq!(server.get_with("/v1/models/other-name", version).json(), info);
    server.get_with("/v1/models/none", version).messages_error(404, "not_found_error");
    assert_eq!(server.get("/v1/models").json()["object"], "list");
    server.get("/v1/models/none").error(404, "model_not_found");
}
