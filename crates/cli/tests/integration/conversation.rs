//! `indrik serve` with a real chat model: it replies to a question and rejects tools, which its template does
//! not support.
//!
//! Skipped unless INDRIK_TEST_SMOLLM2 is the path of SmolLM2 135M.

use std::process::Stdio;

use crate::common::{
    indrik,
    served::{Served, has_device},
};
use serde_json::{Value, json};

#[test]
fn a_chat_model_replies_and_rejects_tools() {
    if !has_device() {
        return;
    }
    let Ok(model) = std::env::var("INDRIK_TEST_SMOLLM2") else {
        testkit::missing("SmolLM2 135M: INDRIK_TEST_SMOLLM2 names its file");
        return;
    };
    let mut command = indrik(&["serve", "-m", &model, "--port", "0", "--context", "512", "--json"]);
    let server = Served::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let chat = |more: Value| {
        let mut body = json!({
            "model": server.report["model"], "temperature": 0, "max_tokens": 32,
            "messages": [{ "role": "user", "content": "What is the capital of France?" }],
        });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, text) = server.request("POST", "/v1/chat/completions", &body.to_string());
        (status, serde_json::from_str::<Value>(&text).unwrap())
    };
    let (status, response) = chat(json!({}));
    assert_eq!(status, 200, "{response}");
    let choice = &response["choices"][0];
    assert!(choice["message"]["content"].as_str().unwrap().contains("Paris"), "{response}");
    // Ended by the model's end-of-turn token, not by max_tokens.
    assert_eq!(choice["finish_reason"], "stop", "{response}");
    // Its chat template does not support tools.
    let tool =
        json!({ "type": "function", "function": { "name": "weather", "parameters": { "type": "object" } } });
    let (status, response) = chat(json!({ "tools": [tool] }));
    assert_eq!(status, 400, "{response}");
    assert_eq!(response["error"]["param"], "tools", "{response}");
}
