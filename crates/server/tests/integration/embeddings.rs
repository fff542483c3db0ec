//! `/v1/embeddings` with a scripted embedder.

use std::sync::{Arc, Mutex};

use base64::Engine;
use serde_json::{Value, json};
use server::{
    Config, EmbedError, EmbeddedText, Embedder, EmbeddingInput, EmbeddingModel, EmbeddingOptions,
    LoadedModel, Models,
};

use crate::common::{Fixture, HttpResponse, Mock, chat};

const PATH: &str = "/v1/embeddings";
const DIMENSIONS: u32 = 4;
const MAX_TOKENS: usize = 10;

/// Vectors are the number of tokens (one per byte), then 1, 2, 3. Keeps what it was called with.
#[derive(Default)]
struct Bytes(Mutex<Vec<(usize, EmbeddingOptions)>>);

impl Embedder for Bytes {
    fn embed(
        &self,
        inputs: &[EmbeddingInput],
        options: &EmbeddingOptions,
    ) -> Result<Vec<EmbeddedText>, EmbedError> {
        self.0.lock().unwrap().push((inputs.len(), options.clone()));
        if options.prompt.as_deref().is_some_and(|prompt| prompt != "query") {
            return Err(EmbedError::Prompt("is unknown: the model has query".to_owned()));
        }
        let embed = |(index, input): (usize, &EmbeddingInput)| {
            let length = match input {
                EmbeddingInput::Text(text) if text == "lost" => return Err(EmbedError::DeviceLost),
                EmbeddingInput::Text(text) if text == "bug" => {
                    return Err(EmbedError::Internal("a secret".to_owned()));
                }
                EmbeddingInput::Text(text) => text.len(),
                EmbeddingInput::Tokens(tokens) => tokens.len(),
            };
            if length > MAX_TOKENS && !options.truncate {
                return Err(EmbedError::Input(index, format!("has {length} tokens")));
            }
            let tokens = length.min(MAX_TOKENS);
            let mut vector = vec![tokens as f32, 1.0, 2.0, 3.0];
            vector.truncate(options.dimensions.unwrap_or(DIMENSIONS) as usize);
            Ok(EmbeddedText { vector, tokens, truncated: length > tokens })
        };
        inputs.iter().enumerate().map(embed).collect()
    }
}

fn server() -> (Fixture, Arc<Bytes>) {
    let model = EmbeddingModel {
        id: "bytes".to_owned(),
        aliases: vec!["bytes:latest".to_owned()],
        created: 1_700_000_000,
        dimensions: DIMENSIONS,
        max_tokens: MAX_TOKENS as u32,
        vocab_size: 256,
    };
    let embedder = Arc::<Bytes>::default();
    let models = Models::one(LoadedModel::embedder(model, embedder.clone()));
    (Fixture::with_models(Arc::new(Mock::new()), models, Config::default()), embedder)
}

fn embed(server: &Fixture, fields: Value) -> HttpResponse {
    let mut body = json!({ "model": "bytes" });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    server.post(PATH, &body)
}

#[test]
fn texts_and_tokens_become_vectors() {
    let (server, _) = server();
    let response = embed(&server, json!({ "input": "abc" })).json();
    let data = json!([{ "object": "embedding", "index": 0, "embedding": [3.0, 1.0, 2.0, 3.0] }]);
    let usage = json!({ "prompt_tokens": 3, "total_tokens": 3 });
    assert_eq!(response, json!({ "object": "list", "data": data, "model": "bytes", "usage": usage }));
    for (input, lengths) in [
        (json!(["a", "bcd"]), vec![1.0, 3.0]),
        (json!([1, 2, 3]), vec![3.0]),
        (json!([[1, 2], [3]]), vec![2.0, 1.0]),
        (json!(["a", [1, 2]]), vec![1.0, 2.0]),
    ] {
        let response = embed(&server, json!({ "input": input })).json();
        let found: Vec<f64> = response["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|text| text["embedding"][0].as_f64().unwrap())
            .collect();
        assert_eq!(found, lengths, "{input}");
        assert_eq!(response["usage"]["total_tokens"], lengths.iter().sum::<f64>());
    }
}

#[test]
fn vectors_in_base64_are_the_same() {
    let (server, _) = server();
    let response =
        embed(&server, json!({ "input": "ab", "encoding_format": "base64", "dimensions": 2 })).json();
    let text = response["data"][0]["embedding"].as_str().unwrap();
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).unwrap();
    let values: Vec<f32> =
        bytes.chunks(4).map(|chunk| f32::from_le_bytes(chunk.try_into().unwrap())).collect();
    assert_eq!(values, [2.0, 1.0]);
}

#[test]
fn texts_that_are_too_long_are_errors_or_cut_off() {
    let (server, _) = server();
    let texts = json!(["a", "b".repeat(11)]);
    let (message, param) = embed(&server, json!({ "input": texts })).error(400, "invalid_value");
    assert_eq!((message.as_str(), param), ("'input[1]': has 11 tokens", json!("input[1]")));
    let response = embed(&server, json!({ "input": texts, "truncate": true })).json();
    assert_eq!(response["data"][0].get("truncated"), None);
    assert_eq!(
        (&response["data"][1]["truncated"], &response["usage"]["total_tokens"]),
        (&json!(true), &json!(11))
    );
}

#[test]
fn many_texts_are_embedded_in_turns_and_errors_name_the_text() {
    let (server, embedder) = server();
    let mut texts: Vec<String> = (0..100).map(|index| "a".repeat(index % 10 + 1)).collect();
    let response = embed(&server, json!({ "input": texts, "prompt_name": "query" })).json();
    for (index, text) in response["data"].as_array().unwrap().iter().enumerate() {
        assert_eq!(
            (text["index"].as_u64(), text["embedding"][0].as_f64()),
            (Some(index as u64), Some((index % 10 + 1) as f64))
        );
    }
    let calls = embedder.0.lock().unwrap().clone();
    assert_eq!(calls.iter().map(|call| call.0).collect::<Vec<_>>(), [32, 32, 32, 4]);
    assert!(calls.iter().all(|call| call.1.prompt.as_deref() == Some("query")));
    texts[70] = "a".repeat(11);
    let (_, param) = embed(&server, json!({ "input": texts })).error(400, "invalid_value");
    assert_eq!(param, "input[70]");
}

#[test]
fn invalid_requests_name_their_field() {
    let (server, _) = server();
    let cases = [
        (json!({}), "input"),
        (json!({ "input": null }), "input"),
        (json!({ "input": 1 }), "input"),
        (json!({ "input": {} }), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": [[]] }), "input[0]"),
        (json!({ "input": ["a", 1] }), "input[1]"),
        (json!({ "input": [1, "a"] }), "input[1]"),
        (json!({ "input": [1, 256] }), "input[1]"),
        (json!({ "input": [-1] }), "input[0]"),
        (json!({ "input": [[1, 2.5]] }), "input[0][1]"),
        (json!({ "input": vec!["a"; 2049] }), "input"),
        (json!({ "input": "a", "dimensions": 0 }), "dimensions"),
        (json!({ "input": "a", "dimensions": 5 }), "dimensions"),
        (json!({ "input": "a", "dimensions": "4" }), "dimensions"),
        (json!({ "input": "a", "encoding_format": "int8" }), "encoding_format"),
        (json!({ "input": "a", "truncate": "end" }), "truncate"),
        (json!({ "input": "a", "prompt_name": "other" }), "prompt_name"),
        (json!({ "input": "a", "user": 1 }), "user"),
        (json!({ "input": "a", "model": 1 }), "model"),
    ];
    for (fields, field) in cases {
        let response = embed(&server, fields.clone());
        assert_eq!(response.status, 400, "{fields}: {}", response.body);
        assert_eq!(response.json()["error"]["param"], field, "{fields}: {}", response.body);
    }
    embed(&server, json!({ "input": "a", "model": "other" })).error(404, "model_not_found");
    embed(&server, json!({ "input": "lost" })).error(503, "device_lost");
    let (message, _) = embed(&server, json!({ "input": "bug" })).error(500, "internal_error");
    assert!(!message.contains("secret"), "{message}");
    assert_eq!(server.get(PATH).status, 405);
}

#[test]
fn models_are_used_for_what_they_are() {
    let (server, _) = server();
    let (message, param) = server
        .post("/v1/chat/completions", &chat(json!({ "model": "bytes:latest" })))
        .error(400, "unsupported_parameter");
    assert!(message.contains("/v1/embeddings") && param == "model", "{message}");
    assert_eq!(server.get("/ready").status, 200);
    assert_eq!(server.get("/stats").status, 200);
    assert!(server.get("/openapi.json").json()["paths"][PATH].is_object());
    let generating = Fixture::new();
    let body = json!({ "model": crate::common::MODEL, "input": "a" });
    let (message, _) = generating.post(PATH, &body).error(400, "unsupported_parameter");
    assert!(message.contains("all-minilm"), "{message}");
    assert!(generating.get("/openapi.json").json()["paths"][PATH].is_null());
}

#[test]
fn ollamas_paths_give_the_same_vectors() {
    let (server, embedder) = server();
    let body = json!({ "model": "bytes", "input": ["a", "b".repeat(11)], "dimensions": 2 });
    let response = server.post("/api/embed", &body).json();
    assert_eq!(response["embeddings"], json!([[1.0, 1.0], [10.0, 1.0]]));
    assert_eq!((&response["model"], &response["prompt_eval_count"]), (&json!("bytes"), &json!(11)));
    assert!(response["total_duration"].as_u64() >= response["load_duration"].as_u64());
    // Texts are cut off by default, unlike in OpenAI's API.
    assert!(embedder.0.lock().unwrap().iter().all(|(_, options)| options.truncate));
    let response = server.post("/api/embed", &json!({ "model": "bytes:latest", "input": "abc" })).json();
    assert_eq!(response["embeddings"], json!([[3.0, 1.0, 2.0, 3.0]]));
    let response = server.post("/api/embeddings", &json!({ "model": "bytes", "prompt": "ab" })).json();
    assert_eq!(response, json!({ "embedding": [2.0, 1.0, 2.0, 3.0] }));
    for (path, body) in [
        ("/api/embed", json!({ "model": "bytes" })),
        ("/api/embed", json!({ "model": "bytes", "input": 1 })),
        ("/api/embed", json!({ "model": "bytes", "input": ["a", 1] })),
        ("/api/embed", json!({ "model": "bytes", "input": "b".repeat(11), "truncate": false })),
        ("/api/embeddings", json!({ "model": "bytes", "prompt": ["a"] })),
    ] {
        let response = server.post(path, &body);
        assert_eq!(response.status, 400, "{body}: {}", response.body);
        assert!(response.json()["error"].is_string(), "{}", response.body);
    }
    let error = server.post("/api/embed", &json!({ "model": "other", "input": "a" }));
    assert_eq!(error.status, 404, "{}", error.body);
}
