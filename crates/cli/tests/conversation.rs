//! The real server with a real model that was trained to talk: a question is answered, and what it cannot do is said.
//!
//! Runs where INDRIK_TEST_SMOLLM2 names SmolLM2 135M.

mod common;

use std::process::Stdio;

use common::{
    indrik,
    served::{Served, has_device},
};
use serde_json::{Value, json};

#[test]
fn a_question_is_answered() {
    if !has_device() {
        return;
    }
    let Ok(model) = std::env::var("INDRIK_TEST_SMOLLM2") else {
        testkit::missing("SmolLM2 135M: INDRIK_TEST_SMOLLM2 names its file");
        return;
    };
    let mut command = indrik(&["serve", "-m", &model, "--port", "0", "--context", "512", "--json"]);
    let server = Served::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let ask = |more: Value| {
        let mut body = json!({
            "model": server.report["model"], "temperature": 0, "max_tokens": 32,
            "messages": [{ "role": "user", "content": "What is the capital of France?" }],
        });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, text) = server.request("POST", "/v1/chat/completions", &body.to_string());
        (status, serde_json::from_str::<Value>(&text).unwrap())
    };
    let (status, answer) = ask(json!({}));
    assert_eq!(status, 200, "{answer}");
    let choice = &answer["choices"][0];
    assert!(choice["message"]["content"].as_str().unwrap().contains("Paris"), "{answer}");
    // Its own end of a turn, and not the end of its patience.
    assert_eq!(choice["finish_reason"], "stop", "{answer}");
    // Its chat template knows no tools.
    let tool =
        json!({ "type": "function", "function": { "name": "weather", "parameters": { "type": "object" } } });
    let (status, answer) = ask(json!({ "tools": [tool] }));
    assert_eq!(status, 400, "{answer}");
    assert_eq!(answer["error"]["param"], "tools", "{answer}");
}
