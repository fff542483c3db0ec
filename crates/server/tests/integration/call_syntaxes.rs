//! Tool calls of model families that write them in their own notation, with and without control tokens.

use crate::common;
use crate::common::{Fixture, Mock, chat, tokenizer, tokenizer_with};
use serde_json::{Value, json};
use server::Config;
use text::{ChatTemplate, DecodeSpecial, EncodeSpecial, Tokenizer};

const CHAT: &str = "/v1/chat/completions";
const GEMMA4: &str = include_str!("../../../text/tests/templates/gemma4.jinja");
const XML: &str = include_str!("../../../text/tests/templates/xml.jinja");
const MISTRAL: &str = include_str!("../../../text/tests/templates/mistral.jinja");
const MISTRAL_ARRAY: &str = include_str!("../../../text/tests/templates/mistral_array.jinja");

const CONTROLS: [&str; 12] = [
    "<|turn>",
    "<turn|>",
    "<|tool>",
    "<tool|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|\"|>",
    "<|channel>",
    "<channel|>",
    "[TOOL_CALLS]",
];

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, "<bos>", "<eos>").unwrap()
}

/// A server that generates this text for every request; names of control tokens in it are those tokens.
fn scripted(source: &str, tokenizer: Tokenizer, text: &str) -> Fixture {
    let script = tokenizer.encode(text, EncodeSpecial::Parse);
    let mock = Mock { script, context_length: 4096, ..Mock::new() };
    Fixture::with_language(mock, tokenizer, template(source))
}

fn tools() -> Value {
    let weather = json!({
        "type": "object",
        "properties": { "city": { "enum": ["Paris", "Rome"] }, "days": { "type": "integer", "minimum": 1, "maximum": 9 } },
        "required": ["city", "days"],
        "additionalProperties": false,
    });
    let note = json!({ "type": "object", "properties": { "text": { "type": "string" }, "tags": { "type": "array", "items": { "type": "string" } } } });
    let tool = |name: &str, parameters: Value| json!({ "type": "function", "function": { "name": name, "description": "d", "parameters": parameters } });
    json!([tool("weather", weather), tool("note", note)])
}

fn with_tools(more: Value) -> Value {
    let mut body = chat(json!({ "tools": tools(), "temperature": 0 }));
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn calls(message: &Value) -> Vec<(String, Value)> {
    let list = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
    let arguments = |call: &Value| {
        let text = call["function"]["arguments"].as_str().unwrap();
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
    };
    list.iter().map(|call| (call["function"]["name"].as_str().unwrap().to_owned(), arguments(call))).collect()
}

/// Reasoning, content and calls of a stream.
fn assemble(chunks: &[Value]) -> (String, String, Vec<(String, Value)>) {
    let (mut reasoning, mut content, mut made) =
        (String::new(), String::new(), Vec::<(String, String)>::new());
    for delta in chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]) {
        reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        content += delta["content"].as_str().unwrap_or_default();
        for piece in delta["tool_calls"].as_array().into_iter().flatten() {
            if let Some(name) = piece["function"]["name"].as_str() {
                made.push((name.to_owned(), String::new()));
            }
            made.last_mut().unwrap().1 += piece["function"]["arguments"].as_str().unwrap();
        }
    }
    let parse = |(name, json): (String, String)| (name, serde_json::from_str(&json).unwrap());
    (reasoning, content, made.into_iter().map(parse).collect())
}

#[test]
fn calls_in_every_notation_become_tool_calls() {
    let expected = vec![
        ("weather".to_owned(), json!({ "city": "Paris", "days": 3 })),
        ("note".to_owned(), json!({ "text": "a \"b\"\nü", "tags": ["x"] })),
    ];
    for (source, calls_text) in [
        (
            GEMMA4,
            "<|tool_call>call:weather{city:<|\"|>Paris<|\"|>,days:3}<tool_call|><|tool_call>call:note{tags:[<|\"|>x<|\"|>],text:<|\"|>a \"b\"\nü<|\"|>}<tool_call|>",
        ),
        (
            XML,
            "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=note>\n<parameter=text>\na \"b\"\nü\n</parameter>\n<parameter=tags>\n[\"x\"]\n</parameter>\n</function>\n</tool_call>",
        ),
        (
            MISTRAL,
            "[TOOL_CALLS]weather[ARGS]{\"city\": \"Paris\", \"days\": 3}[TOOL_CALLS]note[ARGS]{\"text\": \"a \\\"b\\\"\\nü\", \"tags\": [\"x\"]}",
        ),
        (
            MISTRAL_ARRAY,
            "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}, {\"name\": \"note\", \"arguments\": {\"text\": \"a \\\"b\\\"\\nü\", \"tags\": [\"x\"]}}]",
        ),
    ] {
        for tokenizer in [tokenizer_with(&CONTROLS), tokenizer()] {
            let server = scripted(source, tokenizer, &format!("Let me see.\n{calls_text}"));
            let choice = server.post(CHAT, &with_tools(json!({}))).json()["choices"][0].take();
            assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
            assert_eq!(choice["message"]["content"], "Let me see.");
            assert_eq!(calls(&choice["message"]), expected);
            let (_, content, made) = assemble(&server.chunks(CHAT, &with_tools(json!({ "stream": true }))));
            assert_eq!((content.as_str(), made), ("Let me see.", expected.clone()));
        }
    }
}

#[test]
fn gemma_4_thinks_calls_and_gets_results() {
    let text =
        "<|channel>thought\nThe weather<channel|>call:weather{city:<|\"|>Rome<|\"|>,days:1}<tool_call|>";
    let server = scripted(GEMMA4, tokenizer_with(&CONTROLS), text);
    let thinking = json!({ "enable_thinking": true });
    let choice =
        server.post(CHAT, &with_tools(json!({ "chat_template_kwargs": thinking }))).json()["choices"][0]
            .take();
    let message = &choice["message"];
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("The weather"), &Value::Null));
    // Tolerated without its start.
    assert_eq!(calls(message), [("weather".to_owned(), json!({ "city": "Rome", "days": 1 }))]);
    let (reasoning, content, made) = assemble(&server.chunks(CHAT, &with_tools(json!({ "stream": true }))));
    assert_eq!((reasoning.as_str(), content.as_str(), made.len()), ("The weather", "", 1));

    // Or without the end of the thinking.
    let text =
        "<|channel>thought\nThe weather<|tool_call>call:weather{city:<|\"|>Rome<|\"|>,days:1}<tool_call|>";
    let unclosed = scripted(GEMMA4, tokenizer_with(&CONTROLS), text);
    let message = unclosed.post(CHAT, &with_tools(json!({}))).json()["choices"][0]["message"].take();
    assert_eq!((&message["reasoning_content"], calls(&message).len()), (&json!("The weather"), 1));

    // After text and calls in one message, the reply is a turn of its own.
    let called = json!([{ "id": "c1", "type": "function", "function": { "name": "weather", "arguments": "{\"city\":\"Rome\",\"days\":1}" } }]);
    let messages = json!([
        { "role": "user", "content": "say" },
        { "role": "assistant", "content": "Wait.", "tool_calls": called },
        { "role": "tool", "tool_call_id": "c1", "content": "rain<turn|>" },
    ]);
    server.mock.submitted.lock().unwrap().clear();
    assert_eq!(server.post(CHAT, &with_tools(json!({ "messages": messages }))).status, 200);
    let prompt = server.mock.submitted.lock().unwrap().pop().unwrap().prompt;
    let tokenizer = tokenizer_with(&CONTROLS);
    let [open, close] = ["<|turn>", "<turn|>"].map(|name| tokenizer.token_id(name).unwrap());
    let turns: Vec<bool> =
        prompt.iter().filter(|id| [open, close].contains(id)).map(|id| *id == open).collect();
    assert_eq!(turns, [true, false, true, false, true, false, true]);
    let prompt = tokenizer.decode(&prompt, DecodeSpecial::Keep);
    let end = "<|tool_response>response:weather{value:<|\"|>rain<turn|><|\"|>}<tool_response|>Wait.<turn|>\n<|turn>model\n<|channel>thought\n<channel|>";
    assert!(prompt.ends_with(end), "{prompt}");
}

#[test]
fn calls_in_every_notation_match_the_schemas() {
    for source in [GEMMA4, XML, MISTRAL, MISTRAL_ARRAY] {
        let server = Fixture::with_random_engine(Config::default(), Some(template(source)));
        let named = json!({ "type": "function", "function": { "name": "weather" } });
        // Without thinking, which random text would hardly end.
        let body = with_tools(json!({
            "temperature": 1, "seed": 3, "n": 3, "max_tokens": 1000, "tool_choice": named, "parallel_tool_calls": false,
            "reasoning_effort": "none",
        }));
        let got = server.post(CHAT, &body);
        assert_eq!(got.status, 200, "{}", got.body);
        for choice in got.json()["choices"].as_array().unwrap() {
            let calls = calls(&choice["message"]);
            assert_eq!((calls.len(), calls[0].0.as_str()), (1, "weather"), "{choice}");
            let arguments = &calls[0].1;
            assert!(["Paris", "Rome"].contains(&arguments["city"].as_str().unwrap()), "{arguments}");
            assert!((1..=9).contains(&arguments["days"].as_u64().unwrap()), "{arguments}");
            assert_eq!(choice["finish_reason"], "tool_calls");
        }
    }
}

#[test]
fn suppressed_tokens_are_banned() {
    let mut server_vocabulary = common::vocabulary();
    server_vocabulary.suppressed = vec![7, 9];
    let tokenizer = Tokenizer::from_vocabulary(server_vocabulary).unwrap();
    let server = Fixture::with_language(Mock::new(), tokenizer, ChatTemplate::gemma3());
    assert_eq!(server.post(CHAT, &chat(json!({ "logit_bias": { "7": 100, "8": 1 } }))).status, 200);
    let biases = server.mock.submitted.lock().unwrap().pop().unwrap().sampling.biases;
    for banned in [(7, f32::NEG_INFINITY), (9, f32::NEG_INFINITY), (8, 1.0)] {
        assert!(biases.contains(&banned), "{biases:?}");
    }
}
