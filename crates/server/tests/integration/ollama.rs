//! Ollama's `/api/chat` and `/api/generate`: prompts, options, tools, thinking and images.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use server::Config;
use text::{DecodeSpecial, EncodeSpecial};

use crate::common::{Fixture, HttpResponse, MODEL, Mock, fim_tokenizer, merged, tokenizer};
use crate::messages::{call, scripted, template};
use crate::ollama_stream::both;

pub(crate) const CHAT: &str = "/api/chat";
pub(crate) const GENERATE: &str = "/api/generate";

/// A greedy chat with one message and these additional fields, not streamed.
pub(crate) fn chat(more: Value) -> Value {
    let say = json!([{ "role": "user", "content": "say" }]);
    let base = json!({ "model": MODEL, "messages": say, "stream": false, "options": { "temperature": 0 } });
    merged(base, more)
}

/// A greedy request to `/api/generate` with these additional fields, not streamed.
pub(crate) fn generate(more: Value) -> Value {
    let base = json!({ "model": MODEL, "prompt": "say", "stream": false, "options": { "temperature": 0 } });
    merged(base, more)
}

impl HttpResponse {
    /// Checks that the body is an error object of Ollama's API with this status; returns the message.
    pub(crate) fn ollama_error(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", self.body);
        let body = self.json();
        assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
        body["error"].as_str().expect("a message").to_owned()
    }
}

fn last_prompt(server: &Fixture) -> String {
    let prompt = server.mock.submitted.lock().unwrap().pop().expect("a request").prompt;
    tokenizer().decode(&prompt, DecodeSpecial::Keep)
}

/// Checks the fields that differ between two runs, and removes them.
fn without_times(mut object: Value) -> Value {
    let fields = object.as_object_mut().unwrap();
    let created = fields.remove("created_at").unwrap();
    let created = created.as_str().unwrap();
    assert!(created.len() == 27 && created.ends_with('Z') && &created[10..11] == "T", "{created}");
    for name in ["total_duration", "prompt_eval_duration", "eval_duration"] {
        assert!(fields.remove(name).unwrap().as_u64().unwrap() > 0, "{name}");
    }
    assert!(fields.remove("load_duration").unwrap().is_u64());
    object
}

#[test]
fn responses_have_ollamas_format() {
    let server = Fixture::new();
    let got = server.post(CHAT, &chat(json!({})));
    assert_eq!((got.status, got.headers["content-type"].as_bytes()), (200, &b"application/json"[..]));
    let prompt_tokens = server.mock.submitted.lock().unwrap()[0].prompt.len();
    let expected = json!({
        "model": MODEL,
        "message": { "role": "assistant", "content": " one two three four five six" },
        "done": true,
        "done_reason": "stop",
        "prompt_eval_count": prompt_tokens,
        "eval_count": 6,
    });
    assert_eq!(without_times(got.json()), expected);
    let got = server.post(GENERATE, &generate(json!({ "options": { "temperature": 0, "num_predict": 2 } })));
    let got = without_times(got.json());
    assert_eq!((&got["response"], &got["done_reason"]), (&json!(" one two"), &json!("length")));
    assert_eq!(got.get("message"), None);
    let text = "<bos><start_of_turn>user\nsay<end_of_turn>\n<start_of_turn>model\n";
    assert_eq!(last_prompt(&server), text);
}

#[test]
fn streams_are_the_default() {
    let server = Fixture::new();
    let mut body = chat(json!({}));
    body.as_object_mut().unwrap().remove("stream");
    let got = server.post(CHAT, &body);
    assert_eq!(got.headers["content-type"], "application/x-ndjson");
    assert_eq!(got.headers["x-accel-buffering"], "no");
    assert_eq!(got.body.lines().count(), 7);
    assert!(got.body.ends_with("}\n"));
    server.wait_metric("indrik_http_requests_total{outcome=\"success\"} 1");
}

#[test]
fn models_have_the_tag_latest_and_keep_the_clients_name() {
    let server = Fixture::new();
    for name in [MODEL, "tiny/gemma:latest", "other-name", "other-name:latest"] {
        assert_eq!(server.post(CHAT, &chat(json!({ "model": name }))).json()["model"], name);
        assert_eq!(server.post("/api/show", &json!({ "model": name })).status, 200);
    }
    for name in ["tiny", "tiny/gemma:4b", ":latest", "latest", "other-name:latest:latest"] {
        let message = server.post(CHAT, &chat(json!({ "model": name }))).ollama_error(404);
        assert!(message.starts_with(&format!("model '{name}' not found")), "{message}");
    }
    // The names hold for all protocols.
    let body = json!({ "model": "tiny/gemma:latest", "prompt": "say" });
    assert_eq!(server.post("/v1/completions", &body).status, 200);
    assert_eq!(server.get("/v1/models/tiny/gemma:latest").json()["id"], MODEL);
}

#[test]
fn options_reach_the_engine() {
    let server = Fixture::new();
    let options = json!({
        "temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "seed": 9, "num_predict": 3,
        "repeat_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": -0.5, "repeat_last_n": 64,
        "num_ctx": 4096, "num_thread": 8, "num_gpu": 99, "mirostat": 0, "tfs_z": 1.0, "typical_p": 1,
    });
    assert_eq!(server.post(CHAT, &chat(json!({ "options": options }))).status, 200);
    let request = server.mock.submitted.lock().unwrap().pop().unwrap();
    let sampling = request.sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (0.5, 0.25, 7));
    assert_eq!((sampling.min_p, sampling.repetition, sampling.seed), (0.125, 1.5, 9));
    assert_eq!((sampling.presence, sampling.frequency, request.max_tokens), (0.5, -0.5, 3));
    for unlimited in [-2, -1, 0] {
        let options = json!({ "temperature": 0, "num_predict": unlimited, "top_k": -1 });
        assert_eq!(server.post(CHAT, &chat(json!({ "options": options }))).json()["eval_count"], 6);
        assert_eq!(server.mock.submitted.lock().unwrap().pop().unwrap().sampling.top_k, 0);
    }
    for stop in [json!([" three"]), json!(" three")] {
        let options = json!({ "temperature": 0, "stop": stop });
        let got = both(&server, CHAT, &chat(json!({ "options": options })));
        assert_eq!((&got["message"]["content"], &got["done_reason"]), (&json!(" one two"), &json!("stop")));
    }
}

#[test]
fn generate_uses_the_template_unless_it_is_raw() {
    let server = scripted("ok");
    let prompt = |more: Value| {
        let got = server.post(GENERATE, &generate(more));
        assert_eq!(got.status, 200, "{}", got.body);
        last_prompt(&server)
    };
    let reply = "<start_of_turn>assistant\n";
    assert_eq!(prompt(json!({})), format!("<bos><start_of_turn>user\nsay<end_of_turn>\n{reply}"));
    assert_eq!(
        prompt(json!({ "system": "be brief", "context": [1, 2], "template": "" })),
        format!(
            "<bos><start_of_turn>system\nbe brief<end_of_turn>\n<start_of_turn>user\nsay<end_of_turn>\n{reply}"
        )
    );
    assert_eq!(prompt(json!({ "raw": true })), "<bos>say");
    // Without a chat template, prompts are raw.
    let plain = Fixture::with_template(Mock::new(), Config::default(), None);
    assert_eq!(plain.post(GENERATE, &generate(json!({}))).status, 200);
    assert_eq!(last_prompt(&plain), "<bos>say");
    plain.post(GENERATE, &generate(json!({ "system": "x" }))).ollama_error(400);
    plain.post(CHAT, &chat(json!({}))).ollama_error(400);
}

#[test]
fn a_suffix_fills_in_the_middle() {
    let server = Fixture::with_tokenizer(fim_tokenizer());
    let got = server.post(GENERATE, &generate(json!({ "prompt": "one", "suffix": "two" })));
    assert_eq!(got.status, 200, "{}", got.body);
    let prompt = server.mock.submitted.lock().unwrap().pop().unwrap().prompt;
    let prompt = fim_tokenizer().decode(&prompt, DecodeSpecial::Keep);
    assert!(prompt.contains("<|fim_prefix|>") && prompt.contains("<|fim_suffix|>"), "{prompt}");
    assert_eq!(
        server.post("/api/show", &json!({ "model": MODEL })).json()["capabilities"],
        json!(["completion", "insert"])
    );
}

#[test]
fn messages_of_all_roles_become_the_prompt() {
    let server = scripted("ok");
    let calls = json!([
        { "function": { "name": "now", "arguments": {} } },
        { "function": { "name": "get_weather", "arguments": { "city": "Rome" }, "index": 1 } },
    ]);
    let messages = json!([
        { "role": "system", "content": "s" },
        { "role": "user", "content": "u" },
        { "role": "assistant", "content": "", "thinking": "t", "tool_calls": calls },
        { "role": "tool", "content": "warm", "tool_name": "get_weather" },
        { "role": "tool", "content": "noon" },
    ]);
    let got = server.post(CHAT, &chat(json!({ "messages": messages })));
    assert_eq!(got.status, 200, "{}", got.body);
    let prompt = last_prompt(&server);
    let expected = concat!(
        "<bos><start_of_turn>system\ns<end_of_turn>\n<start_of_turn>user\nu<end_of_turn>\n<start_of_turn>assistant\n",
        "<think>t</think>\n<call>\n{\"name\": \"now\", \"arguments\": {}}\n</call>\n",
        "<call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</call><end_of_turn>\n",
        "<start_of_turn>tool\nresult of get_weather: warm<end_of_turn>\n",
        "<start_of_turn>tool\nresult of now: noon<end_of_turn>\n<start_of_turn>assistant\n",
    );
    assert_eq!(prompt, expected);
    // The last message of the assistant is continued.
    let messages = json!([{ "role": "user", "content": "u" }, { "role": "assistant", "content": "one" }]);
    server.post(CHAT, &chat(json!({ "messages": messages })));
    assert!(last_prompt(&server).ends_with("<start_of_turn>assistant\none"));
}

fn tool(name: &str) -> Value {
    let parameters = json!({ "type": "object", "properties": { "city": { "enum": ["Paris", "Rome"] } } });
    json!({ "type": "function", "function": { "name": name, "description": "d", "parameters": parameters } })
}

#[test]
fn tool_calls_have_arguments_as_objects() {
    let text = format!("Well.\n{}\n{}", call("get_weather", r#"{"city": "Rome"}"#), call("now", "{}"));
    let server = scripted(&text);
    let got = both(&server, CHAT, &chat(json!({ "tools": [tool("get_weather"), tool("now")] })));
    let expected = json!([
        { "function": { "name": "get_weather", "arguments": { "city": "Rome" } } },
        { "function": { "name": "now", "arguments": {} } },
    ]);
    assert_eq!((&got["message"]["tool_calls"], &got["done_reason"]), (&expected, &json!("stop")));
    assert_eq!(got["message"]["content"], "Well.");
    assert!(last_prompt(&server).contains("\"name\": \"get_weather\""));
    // Without tools, the text is not parsed.
    let got = both(&server, CHAT, &chat(json!({})));
    assert_eq!(got["message"]["content"], text);
}

#[test]
fn thinking_is_separate_and_can_be_switched() {
    let server = scripted("<think>\nhm\n</think>\n\nyes");
    let got = both(&server, CHAT, &chat(json!({})));
    assert_eq!((&got["message"]["thinking"], &got["message"]["content"]), (&json!("hm"), &json!("yes")));
    let got = both(&server, GENERATE, &generate(json!({})));
    assert_eq!((&got["thinking"], &got["response"]), (&json!("hm"), &json!("yes")));
    let end = |think: Value| {
        server.post(CHAT, &chat(json!({ "think": think })));
        last_prompt(&server).rsplit_once("assistant\n").unwrap().1.to_owned()
    };
    assert_eq!(end(json!(true)), "<think>\n");
    assert_eq!(end(json!(false)), "<think>\n\n</think>\n\n");
    assert_eq!(end(json!("high")), "effort high\n<think>\n");
    assert_eq!(end(Value::Null), "");
    let plain = Fixture::new();
    assert_eq!(plain.post(CHAT, &chat(json!({ "think": false }))).status, 200);
    for think in [json!(true), json!("low")] {
        let message = plain.post(CHAT, &chat(json!({ "think": think }))).ollama_error(400);
        assert!(message.contains("does not support thinking"), "{message}");
    }
}

#[test]
fn a_format_constrains_the_output() {
    let server = Fixture::with_random_engine(Config::default(), template());
    let schema = json!({ "type": "object", "properties": { "n": { "enum": [1, 2] } }, "required": ["n"], "additionalProperties": false });
    for (format, seed) in [(schema.clone(), 1), (schema, 2)] {
        let options = json!({ "temperature": 1, "seed": seed });
        let got = server.post(CHAT, &chat(json!({ "format": format, "options": options, "think": false })));
        assert_eq!(got.status, 200, "{}", got.body);
        let content = got.json()["message"]["content"].as_str().unwrap().to_owned();
        let output: Value = serde_json::from_str(&content).unwrap();
        assert!(output["n"] == 1 || output["n"] == 2, "{output}");
    }
    let options = json!({ "temperature": 1, "seed": 3, "num_predict": 20 });
    let got =
        server.post(GENERATE, &generate(json!({ "format": "json", "options": options, "think": false })));
    let text = got.json()["response"].as_str().unwrap().to_owned();
    assert!(text.trim_start().starts_with('{'), "{text}");
}

#[test]
fn logprobs_are_those_of_the_text() {
    let server = Fixture::new();
    for path in [CHAT, GENERATE] {
        let body = if path == CHAT { chat(json!({})) } else { generate(json!({})) };
        let body = merged(body, json!({ "logprobs": true, "top_logprobs": 2 }));
        let got = both(&server, path, &body);
        let logprobs = got["logprobs"].as_array().unwrap();
        assert_eq!(logprobs.len(), 6);
        assert_eq!(logprobs[1]["token"], " two");
        assert_eq!(logprobs[1]["top_logprobs"].as_array().unwrap().len(), 2);
        assert_eq!(logprobs[1]["bytes"], json!(b" two".to_vec()));
    }
    assert_eq!(server.post(CHAT, &chat(json!({ "top_logprobs": 0 }))).json().get("logprobs"), None);
}

/// A GIF of one pixel.
pub(crate) const PIXEL: &str = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7";

#[test]
fn images_are_base64_of_any_format() {
    let server = Fixture::with_images(Mock::new(), Config::default(), false);
    let message = json!({ "role": "user", "content": "say", "images": [PIXEL, PIXEL] });
    let got = server.post(CHAT, &chat(json!({ "messages": [message] })));
    assert_eq!(got.status, 200, "{}", got.body);
    assert_eq!(server.mock.submitted.lock().unwrap().pop().unwrap().images.len(), 2);
    let got = server.post(GENERATE, &generate(json!({ "images": [PIXEL] })));
    assert_eq!(got.status, 200, "{}", got.body);
    assert_eq!(server.mock.submitted.lock().unwrap().pop().unwrap().images.len(), 1);
    for (image, expected) in [("%", "not valid base64"), (&*STANDARD.encode("text"), "images[0]")] {
        let message = server.post(GENERATE, &generate(json!({ "images": [image] }))).ollama_error(400);
        assert!(message.contains(expected), "{message}");
    }
    let message = Fixture::new().post(GENERATE, &generate(json!({ "images": [PIXEL] }))).ollama_error(400);
    assert!(message.contains("no image encoder"), "{message}");
}

#[test]
fn control_tokens_in_messages_are_text() {
    let server = scripted("ok");
    let messages = json!([{ "role": "user", "content": "<end_of_turn>" }]);
    server.post(CHAT, &chat(json!({ "messages": messages })));
    let prompt = server.mock.submitted.lock().unwrap().pop().unwrap().prompt;
    let control = tokenizer().encode("<end_of_turn>", EncodeSpecial::Parse);
    // Only the template's own.
    assert_eq!(prompt.iter().filter(|id| **id == control[control.len() - 1]).count(), 1);
}
