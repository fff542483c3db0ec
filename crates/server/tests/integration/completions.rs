//! Completions, streamed and not.

use crate::common;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::common::{CACHED, Fixture, MODEL, Mock, chat, completion, fim_tokenizer, tokenizer};
use engine::RequestError;
use serde_json::{Value, json};
use server::Config;
use text::EncodeSpecial;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// Text of a choice in a stream.
fn joined(chunks: &[Value], index: u64) -> String {
    let choices =
        chunks.iter().flat_map(|c| c["choices"].as_array().unwrap()).filter(|c| c["index"] == index);
    choices.filter_map(|c| c["delta"]["content"].as_str().or(c["text"].as_str())).collect()
}

#[test]
fn a_chat_completion_has_openais_format() {
    let server = Fixture::new();
    let got = server.post(CHAT, &chat(json!({ "temperature": 0 })));
    assert_eq!(got.status, 200, "{}", got.body);
    let prompt = server.mock.submitted.lock().unwrap()[0].prompt.clone();
    let body = got.json();
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], MODEL);
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(body["id"].as_str().unwrap().ends_with(got.headers["x-request-id"].to_str().unwrap()));
    let content = " one two three four five six";
    let message = json!({ "role": "assistant", "content": content, "refusal": null });
    let choice = json!({ "index": 0, "message": message, "logprobs": null, "finish_reason": "stop" });
    assert_eq!(body["choices"], json!([choice]));
    let usage = json!({
        "prompt_tokens": prompt.len(),
        "completion_tokens": 6,
        "total_tokens": prompt.len() + 6,
        "prompt_tokens_details": { "cached_tokens": CACHED },
    });
    assert_eq!(body["usage"], usage);
    let text = "<bos><start_of_turn>user\nsay<end_of_turn>\n<start_of_turn>model\n";
    assert_eq!(prompt, tokenizer().encode_prompt(text));
}

#[test]
fn messages_may_have_parts_and_the_developer_role() {
    let server = Fixture::new();
    let parts = json!([{ "type": "text", "text": "sa" }, { "type": "text", "text": "y" }]);
    let messages =
        json!([{ "role": "developer", "content": "be kind" }, { "role": "user", "content": parts }]);
    assert_eq!(server.post(CHAT, &chat(json!({ "messages": messages }))).status, 200);
    let text = "<bos><start_of_turn>user\nbe kind\n\nsay<end_of_turn>\n<start_of_turn>model\n";
    assert_eq!(server.mock.submitted.lock().unwrap()[0].prompt, tokenizer().encode_prompt(text));
}

#[test]
fn a_stream_has_the_same_text_in_openais_format() {
    let server = Fixture::new();
    let chunks = server.chunks(CHAT, &chat(json!({ "temperature": 0, "stream": true })));
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    assert_eq!(joined(&chunks, 0), " one two three four five six");
    let last = chunks.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert_eq!(last["choices"][0]["delta"], json!({}));
    for chunk in &chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk["id"], chunks[0]["id"]);
        assert!(chunk.get("usage").is_none(), "{chunk}");
    }
    assert!(chunks[..chunks.len() - 1].iter().all(|c| c["choices"][0]["finish_reason"].is_null()));
}

#[test]
fn a_stream_ends_with_its_usage_if_requested() {
    let server = Fixture::new();
    for (path, body) in [(CHAT, chat(json!({}))), (TEXT, completion(json!({})))] {
        let mut body = body;
        body["stream"] = true.into();
        body["stream_options"] = json!({ "include_usage": true });
        let chunks = server.chunks(path, &body);
        let (last, others) = chunks.split_last().unwrap();
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"]["completion_tokens"], 6);
        assert_eq!(last["usage"]["prompt_tokens_details"]["cached_tokens"], CACHED);
        assert!(others.iter().all(|chunk| chunk.get("usage").is_some_and(Value::is_null)));
    }
}

#[test]
fn a_text_completion_echoes_its_prompt_if_requested() {
    let server = Fixture::new();
    let body = completion(json!({ "temperature": 0, "max_tokens": 2, "echo": true }));
    let got = server.post(TEXT, &body).json();
    assert_eq!(got["object"], "text_completion");
    assert!(got["id"].as_str().unwrap().starts_with("cmpl-"));
    let choice = json!({ "index": 0, "text": "say one two", "logprobs": null, "finish_reason": "length" });
    assert_eq!(got["choices"], json!([choice]));
    let mut body = body;
    body["stream"] = true.into();
    let chunks = server.chunks(TEXT, &body);
    assert_eq!(joined(&chunks, 0), "say one two");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
}

#[test]
fn prompts_may_be_lists_and_token_ids() {
    let server = Fixture::new();
    let got = server.post(TEXT, &completion(json!({ "prompt": ["a", "b"], "n": 2, "echo": true }))).json();
    let choices = got["choices"].as_array().unwrap();
    let starts: Vec<&str> = choices.iter().map(|choice| &choice["text"].as_str().unwrap()[..1]).collect();
    assert_eq!(starts, ["a", "a", "b", "b"]);
    // <bos> and a letter each; a prompt counts once, all its choices count.
    assert_eq!(got["usage"]["prompt_tokens"], 4);
    assert_eq!(got["usage"]["completion_tokens"], 24);
    for prompt in [json!([1, 7, 8]), json!([[1, 7, 8]])] {
        server.mock.submitted.lock().unwrap().clear();
        assert_eq!(server.post(TEXT, &completion(json!({ "prompt": prompt }))).status, 200);
        assert_eq!(server.mock.submitted.lock().unwrap()[0].prompt, [1, 7, 8]);
    }
}

#[test]
fn choices_differ_and_a_seed_reproduces_them() {
    let server = Fixture::new();
    let body = chat(json!({ "n": 3, "seed": 42 }));
    let texts = |body: Value| -> Vec<String> {
        let choices = body["choices"].as_array().unwrap().clone();
        choices.iter().map(|c| c["message"]["content"].as_str().unwrap().to_owned()).collect()
    };
    let first = texts(server.post(CHAT, &body).json());
    assert_eq!(first.len(), 3);
    assert_eq!(first, texts(server.post(CHAT, &body).json()));
    let seeds: Vec<u64> = server.mock.submitted.lock().unwrap().iter().map(|r| r.sampling.seed).collect();
    assert_eq!(seeds[..3], seeds[3..]);
    assert!(seeds[0] == 42 && seeds[0] != seeds[1] && seeds[1] != seeds[2]);
    let mut body = body;
    body["stream"] = true.into();
    let chunks = server.chunks(CHAT, &body);
    for (index, text) in first.iter().enumerate() {
        assert_eq!(joined(&chunks, index as u64), *text);
    }
}

#[test]
fn the_best_candidates_are_returned() {
    // The logprobs of this engine depend on the tokens.
    let server = Fixture::with_random_engine(Config::default(), None);
    for seed in 0..5 {
        let ask = |more: Value| {
            let mut body = completion(json!({ "prompt": ["say", "one"], "max_tokens": 8, "seed": seed }));
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let got = server.post(TEXT, &body);
            assert_eq!(got.status, 200, "{}", got.body);
            got.json()
        };
        let all = ask(json!({ "n": 4, "logprobs": 0 }));
        let best = ask(json!({ "n": 2, "best_of": 4 }));
        assert_eq!(all["usage"], best["usage"], "all candidates count");
        let candidates = all["choices"].as_array().unwrap();
        let mean = |choice: &Value| {
            let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
            let sum: f64 = logprobs.iter().map(|logprob| logprob.as_f64().unwrap()).sum();
            if logprobs.is_empty() { f64::NEG_INFINITY } else { sum / logprobs.len() as f64 }
        };
        let mut expected = Vec::new();
        for prompt in candidates.chunks(4) {
            let mut prompt = prompt.to_vec();
            prompt.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
            expected.extend(prompt[..2].iter().map(|choice| choice["text"].clone()));
        }
        let choices = best["choices"].as_array().unwrap();
        let texts: Vec<Value> = choices.iter().map(|choice| choice["text"].clone()).collect();
        assert_eq!(texts, expected);
        for (choice, index) in choices.iter().zip(0..) {
            assert_eq!(choice["index"], index);
            assert!(choice["logprobs"].is_null(), "logprobs were not requested");
        }
    }
    // As many as are returned: nothing to select, so a stream is possible.
    let body = completion(json!({ "n": 2, "best_of": 2, "stream": true, "max_tokens": 2 }));
    assert!(!server.chunks(TEXT, &body).is_empty());
}

#[test]
fn a_suffix_makes_the_model_fill_in_the_middle() {
    let tokenizer = fim_tokenizer();
    let server = Fixture::with_tokenizer(fim_tokenizer());
    let id = |name: &str| tokenizer.token_id(name).unwrap();
    let [prefix, suffix, middle] = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"].map(id);
    let submitted = |more: Value| {
        let got = server.post(TEXT, &completion(more));
        assert_eq!(got.status, 200, "{}", got.body);
        let text = got.json()["choices"][0]["text"].as_str().unwrap().to_owned();
        (server.mock.submitted.lock().unwrap().pop().unwrap(), text)
    };
    let (plain, _) = submitted(json!({ "suffix": "" }));
    let (say, end) = (plain.prompt[1..].to_vec(), vec![id("e"), id("n"), id("d")]);
    let expected = |prompt: &[u32]| [&[id("<bos>"), prefix], prompt, &[suffix], &end, &[middle]].concat();
    let (request, text) = submitted(json!({ "suffix": "end", "temperature": 0, "max_tokens": 2 }));
    assert_eq!(request.prompt, expected(&say));
    assert_eq!(text, " one two");
    // Padding and the start of another file end the text, too.
    let more = [id("<|fim_pad|>"), id("<|file_sep|>")];
    assert_eq!(request.stop_token_ids, [&plain.stop_token_ids[..], &more].concat());
    assert!(submitted(json!({ "suffix": "end", "ignore_eos": true })).0.stop_token_ids.is_empty());
    // A prompt of tokens is the prefix; the echo is the prompt only.
    assert_eq!(submitted(json!({ "suffix": "end", "prompt": [9, 8] })).0.prompt, expected(&[9, 8]));
    let (_, text) = submitted(json!({ "suffix": "end", "echo": true, "temperature": 0, "max_tokens": 1 }));
    assert_eq!(text, "say one");
    // Code that contains the names of control tokens stays text.
    let (request, _) = submitted(json!({ "suffix": "<|fim_middle|>", "prompt": "<|fim_suffix|>" }));
    let count = |token| request.prompt.iter().filter(|id| **id == token).count();
    assert_eq!((count(suffix), count(middle)), (1, 1));

    let (message, param) =
        Fixture::new().post(TEXT, &completion(json!({ "suffix": "x" }))).error(400, "unsupported_parameter");
    assert_eq!(param, "suffix");
    assert!(message.contains(MODEL) && message.contains("filling in the middle"), "{message}");
    let has_enum = |server: &Fixture| {
        let document = server.get("/openapi.json").json();
        let suffix = &document["components"]["schemas"]["CompletionRequest"]["properties"]["suffix"];
        suffix.get("enum").is_some()
    };
    assert!(has_enum(&Fixture::new()) && !has_enum(&server));
}

#[test]
fn timings_are_those_of_the_engines_events() {
    let mut mock = Mock::new();
    (mock.wait, mock.delay) = (Duration::from_millis(300), Duration::from_millis(20));
    let server = Fixture::with_config(mock, Config::default());
    let number = |timings: &Value, field: &str| {
        timings[field].as_f64().unwrap_or_else(|| panic!("no {field} in {timings}"))
    };
    let check = |timings: &Value, prompt_tokens: f64, choices: f64, elapsed: Duration| {
        let number = |field: &str| number(timings, field);
        assert_eq!(number("cache_n"), f64::from(CACHED) * choices);
        assert_eq!(number("prompt_n"), (prompt_tokens - f64::from(CACHED)) * choices);
        assert_eq!(number("predicted_n"), 6.0 * choices);
        // The time in the queue is not part of it.
        let (prompt, predicted) = (number("prompt_ms"), number("predicted_ms"));
        assert!(prompt >= 20.0 * choices && predicted >= 5.0 * 20.0 * choices, "{timings}");
        assert!(prompt + predicted <= (elapsed.as_secs_f64() * 1000.0 - 300.0) * choices, "{timings}");
        let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-6, "{a} {b} {timings}");
        close(number("prompt_per_token_ms"), prompt / number("prompt_n"));
        close(number("prompt_per_second"), number("prompt_n") / prompt * 1000.0);
        close(number("predicted_per_token_ms"), predicted / (5.0 * choices));
        close(number("predicted_per_second"), 5.0 * choices / predicted * 1000.0);
    };
    for (path, n) in [(CHAT, 1), (CHAT, 2), (TEXT, 1)] {
        let more = json!({ "n": n, "timings_per_token": true, "temperature": 0 });
        let body = if path == CHAT { chat(more) } else { completion(more) };
        let start = Instant::now();
        let got = server.post(path, &body).json();
        let prompt_tokens = got["usage"]["prompt_tokens"].as_f64().unwrap();
        check(&got["timings"], prompt_tokens, f64::from(n), start.elapsed());
        // What each choice of the mock cost, with 6 tokens, 5 of them from decode steps.
        let expected = [
            ("joules", 0.5 * f64::from(n)),
            ("joules_per_token", 0.5 / 6.0),
            ("decode_bytes_per_token", 200.0),
        ];
        for (field, value) in expected {
            let cost = number(&got["usage"]["indrik"], field);
            assert!((cost / value - 1.0).abs() < 1e-9, "{field}: {}", got["usage"]);
        }

        let mut streamed = body.clone();
        streamed["stream"] = true.into();
        streamed["stream_options"] = json!({ "include_usage": true });
        let start = Instant::now();
        let chunks = server.chunks(path, &streamed);
        // The last chunk has the sums, the others those of their choice so far.
        let (last, others) = chunks.split_last().unwrap();
        check(&last["timings"], prompt_tokens, f64::from(n), start.elapsed());
        for index in 0..n {
            let of_choice = others.iter().filter(|chunk| chunk["choices"][0]["index"] == index);
            let mut of_choice = of_choice.filter(|chunk| chunk["choices"][0]["delta"].get("role").is_none());
            let counts: Vec<f64> =
                of_choice.clone().map(|chunk| number(&chunk["timings"], "predicted_n")).collect();
            assert_eq!(counts, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 6.0]);
            assert!(of_choice.clone().next().unwrap()["timings"]["predicted_per_second"].is_null());
            check(&of_choice.next_back().unwrap()["timings"], prompt_tokens, 1.0, start.elapsed());
        }
    }
    // Only on request.
    let plain = server.post(CHAT, &chat(json!({}))).json();
    assert!(plain.get("timings").is_none() && plain["usage"].get("indrik").is_none(), "{plain}");
    let chunks = server.chunks(CHAT, &chat(json!({ "stream": true, "timings_per_token": false })));
    assert!(chunks.iter().all(|chunk| chunk.get("timings").is_none()));
}

#[test]
fn concurrent_requests_get_their_own_completions() {
    let mut mock = Mock::new();
    mock.delay = Duration::from_millis(1);
    let server = Fixture::with_config(mock, Config::default());
    std::thread::scope(|scope| {
        for client in 0..48 {
            let server = &server;
            scope.spawn(move || {
                let chunks = server.chunks(CHAT, &chat(json!({ "seed": client, "stream": true })));
                let first = common::WORDS[client % common::WORDS.len()];
                assert!(joined(&chunks, 0).starts_with(first));
            });
        }
    });
    server.wait_live(0);
    server.wait_metric("indrik_http_requests_total{outcome=\"success\"} 48");
}

#[test]
fn sampling_parameters_reach_the_generator() {
    let server = Fixture::new();
    let options = json!({
        "temperature": 0.5, "top_p": 0, "top_k": 7, "min_p": 0.25, "seed": -1, "presence_penalty": -2,
        "frequency_penalty": 1.5, "repetition_penalty": 1.25, "logit_bias": { "7": -100, "8": 2 },
        "max_completion_tokens": 9, "max_tokens": 5, "user": "me", "unknown_field": [1],
    });
    assert_eq!(server.post(CHAT, &chat(options)).status, 200);
    let request = server.mock.submitted.lock().unwrap().remove(0);
    let sampling = request.sampling;
    assert_eq!((sampling.temperature, sampling.top_k, sampling.min_p), (0.5, 7, 0.25));
    assert!(sampling.top_p > 0.0 && sampling.top_p < 1e-30);
    assert_eq!((sampling.presence, sampling.frequency, sampling.repetition), (-2.0, 1.5, 1.25));
    assert_eq!((sampling.seed, request.max_tokens), (u64::MAX, 9));
    assert_eq!(sampling.biases, [(7, -100.0), (8, 2.0)]);
    assert!(
        request.stop_token_ids.contains(&2) && request.stop_token_ids.contains(&4),
        "{:?}",
        request.stop_token_ids
    );
    assert!(request.deadline.is_some());
}

#[test]
fn integers_may_be_written_as_floats() {
    let server = Fixture::new();
    let options = json!({ "top_k": 7.0, "max_tokens": 5.0, "n": 1.0, "seed": -3.0, "prompt": [1.0, 8.0] });
    assert_eq!(server.post(TEXT, &completion(options)).status, 200);
    let request = server.mock.submitted.lock().unwrap().remove(0);
    assert_eq!((request.sampling.top_k, request.max_tokens, request.sampling.seed as i64), (7, 5, -3));
    assert_eq!(request.prompt, [1, 8]);
}

#[test]
fn max_tokens_is_clamped_to_the_context() {
    let server = Fixture::new();
    assert_eq!(server.post(CHAT, &chat(json!({ "max_tokens": 1_000_000 }))).status, 200);
    assert_eq!(server.post(CHAT, &chat(json!({}))).status, 200);
    for request in server.mock.submitted.lock().unwrap().iter() {
        assert_eq!(request.max_tokens + request.prompt.len() as u32, 257);
    }
}

#[test]
fn stop_strings_are_never_sent() {
    let server = Fixture::new();
    // The first spans three tokens; the second is held back as a possible match until the end.
    let body = json!({ "temperature": 0, "stop": ["ee four fi", "six!"] });
    let got = server.post(CHAT, &chat(body.clone())).json();
    assert_eq!(got["choices"][0]["message"]["content"], " one two thr");
    assert_eq!(got["choices"][0]["finish_reason"], "stop");
    assert_eq!(got["usage"]["completion_tokens"], 5);
    let mut body = chat(body);
    body["stream"] = true.into();
    let chunks = server.chunks(CHAT, &body);
    assert_eq!(joined(&chunks, 0), " one two thr");
    let unmatched = chat(json!({ "temperature": 0, "stop": "six!" }));
    let got = server.post(CHAT, &unmatched).json();
    assert_eq!(got["choices"][0]["message"]["content"], " one two three four five six");
    server.wait_live(0);
}

#[test]
fn characters_are_never_split() {
    let mut mock = Mock::new();
    let tokenizer = tokenizer();
    mock.script = "é🦙".bytes().map(|byte| tokenizer.token_id(&format!("<0x{byte:02X}>")).unwrap()).collect();
    let server = Fixture::with_config(mock, Config::default());
    let chunks = server.chunks(CHAT, &chat(json!({ "temperature": 0, "stream": true })));
    assert_eq!(joined(&chunks, 0), "é🦙");
    // Cut off by the token limit within a character: one replacement character at the end.
    let chunks = server.chunks(CHAT, &chat(json!({ "temperature": 0, "stream": true, "max_tokens": 4 })));
    assert_eq!(joined(&chunks, 0), "é\u{fffd}");
}

#[test]
fn errors_are_a_status_before_a_stream_and_an_event_within_it() {
    for (failure, status, code) in [
        (RequestError::DeviceLost, 503, "device_lost"),
        (RequestError::NonFiniteLogits, 500, "not_finite"),
        (RequestError::OutOfMemory, 503, "out_of_memory"),
        (RequestError::Stopped, 503, "not_ready"),
        (RequestError::DeadlineExceeded, 504, "deadline"),
        (RequestError::Grammar("too complex".to_owned()), 400, "format_failed"),
        (RequestError::Internal("secret".to_owned()), 500, "internal_error"),
    ] {
        let mut mock = Mock::new();
        mock.failure = Some((2, failure));
        let server = Fixture::with_config(mock, Config::default());
        let got = server.post(CHAT, &chat(json!({})));
        let (message, _) = got.error(status, code);
        assert!(!message.contains("secret"));
        let data = server.stream(CHAT, &chat(json!({ "stream": true })));
        let last: Value = serde_json::from_str(data.last().unwrap()).unwrap();
        assert_eq!(last["error"]["code"], code, "no [DONE] after it");
        assert_eq!(data.len(), 1 + 2 + 1);
    }
}

#[test]
fn a_disconnect_cancels_all_choices() {
    let mut mock = Mock::new();
    mock.delay = Duration::from_secs(100);
    let server = Fixture::with_config(mock, Config::default());
    for stream in [false, true] {
        let body = chat(json!({ "stream": stream, "n": 2 })).to_string();
        let mut client = TcpStream::connect(server.address).unwrap();
        write!(client, "POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n").unwrap();
        write!(client, "Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        server.wait_live(2);
        if stream {
            client.read_exact(&mut [0; 100]).unwrap();
        }
        drop(client);
        server.wait_live(0);
    }
    server.wait_metric("indrik_http_requests_total{outcome=\"client_disconnected\"} 2");
}

#[test]
fn a_model_without_a_chat_template_serves_text_completions_only() {
    let server = Fixture::with_template(Mock::new(), Config::default(), None);
    let (message, _) = server.post(CHAT, &chat(json!({}))).error(400, "invalid_value");
    assert!(message.contains("/v1/completions"), "{message}");
    assert_eq!(server.post(TEXT, &completion(json!({}))).status, 200);
}

#[test]
fn the_models_endpoints_describe_the_model() {
    let server = Fixture::new();
    let model = json!({ "id": MODEL, "object": "model", "created": 1_700_000_000, "owned_by": "indrik",
        "input_modalities": ["text"], "max_model_len": 256, "capabilities": ["completion"] });
    assert_eq!(server.get("/v1/models").json(), json!({ "object": "list", "data": [model] }));
    // With a plain slash, and escaped as client libraries do.
    assert_eq!(server.get("/v1/models/tiny/gemma").json(), model);
    assert_eq!(server.get("/v1/models/tiny%2Fgemma").json(), model);
    server.get("/v1/models/%ff").error(404, "model_not_found");
    let (_, param) = server.get("/v1/models/gpt-5").error(404, "model_not_found");
    assert_eq!(param, "model");
}

#[test]
fn a_prediction_becomes_drafts_and_is_counted() {
    let server = Fixture::new();
    let usage_of = |content: Value| {
        let prediction = json!({ "type": "content", "content": content });
        let body = chat(json!({ "temperature": 0, "prediction": prediction, "n": 2 }));
        let got = server.post(CHAT, &body);
        assert_eq!(got.status, 200, "{}", got.body);
        got.json()["usage"]["completion_tokens_details"].clone()
    };
    let predicted = " one two three five";
    let parts = json!([{ "type": "text", "text": " one two" }, { "type": "text", "text": " three five" }]);
    // Both choices have the prediction.
    let expected =
        json!({ "reasoning_tokens": 0, "accepted_prediction_tokens": 6, "rejected_prediction_tokens": 2 });
    assert_eq!(usage_of(json!(predicted)), expected);
    assert_eq!(usage_of(parts), expected);
    assert_eq!(usage_of(json!("")), Value::Null);
    let submitted = server.mock.submitted.lock().unwrap();
    let tokens = tokenizer().encode(predicted, EncodeSpecial::AsText);
    assert!(submitted[..4].iter().all(|request| request.prediction == tokens && request.speculate));
}

#[test]
fn a_prediction_that_cannot_be_used_is_rejected() {
    let server = Fixture::new();
    let long = " one".repeat(100_000);
    for (prediction, field) in [
        (json!({ "type": "content", "content": long }), "prediction"),
        (json!({ "type": "draft", "content": "" }), "prediction.type"),
        (json!({ "content": "" }), "prediction.type"),
        (json!({ "type": "content" }), "prediction.content"),
        (json!({ "type": "content", "content": [{ "type": "text" }] }), "prediction.content[0].text"),
        (json!({ "type": "content", "content": [{ "type": "audio" }] }), "prediction.content[0].type"),
        (json!("text"), "prediction"),
    ] {
        let got = server.post(CHAT, &chat(json!({ "prediction": prediction })));
        assert_eq!(got.status, 400, "{field}: {}", got.body);
        assert_eq!(got.json()["error"]["param"], field, "{}", got.body);
    }
    let got = server.post(CHAT, &chat(json!({ "prediction": { "type": "content", "content": long } })));
    let message = got.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("100000 tokens") && message.contains("256"), "{message}");
    assert!(server.mock.submitted.lock().unwrap().is_empty());
}

#[test]
fn a_request_may_do_without_drafts() {
    let server = Fixture::new();
    for (path, body) in
        [(CHAT, chat(json!({ "speculate": false }))), (TEXT, completion(json!({ "speculate": false })))]
    {
        assert_eq!(server.post(path, &body).status, 200);
    }
    assert_eq!(server.post(CHAT, &chat(json!({ "speculate": null }))).status, 200);
    assert_eq!(server.post(CHAT, &chat(json!({ "speculate": "off" }))).status, 400);
    let submitted = server.mock.submitted.lock().unwrap();
    assert_eq!(submitted.iter().map(|request| request.speculate).collect::<Vec<_>>(), [false, false, true]);
}
