//! `indrik serve` with several models under a memory budget that holds one.

use std::{path::Path, process::Stdio};

use crate::common::{
    indrik,
    served::{Served, has_device},
};
use serde_json::{Value, json};

/// Requests, alternating between the models; `INDRIK_TEST_ALL=1` sends 200.
const REQUESTS: usize = 24;

/// Clients that send them.
const CLIENTS: usize = 4;

/// Holds one of the models, not two.
const BUDGET: &str = "160MiB";

/// Bytes of [`BUDGET`].
const BUDGET_BYTES: u64 = 160 << 20;

fn fixture(name: &str) -> String {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures");
    fixtures.join(name).join("model.gguf").display().to_string()
}

/// A server of some models, each under the name of its file's folder.
fn serve(first: &str, others: &[&str], more: &[&str]) -> Served {
    let model = fixture(first);
    let others: Vec<String> = others.iter().map(|name| format!("--models={}", fixture(name))).collect();
    let mut command = indrik(&["serve", "-m", &model, "--name", first, "--port", "0", "--json"]);
    command.args(["--context", "256", "--max-sequences", "2"]).args(others).args(more);
    command.env("INDRIK_QUEUE_TIMEOUT", "1h").env("INDRIK_LOAD_TIMEOUT", "1h");
    Served::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
}

fn tokens(server: &Served, model: &str, seed: usize) -> Value {
    let body = json!({
        "model": model, "prompt": "the cat sat on", "max_tokens": 8, "seed": seed, "temperature": 1,
        "logprobs": 1,
    });
    server.complete(&body)["choices"].take()
}

#[test]
fn models_take_turns_under_a_budget_that_holds_one() {
    if !has_device() {
        return;
    }
    let all = std::env::var_os("INDRIK_TEST_ALL").is_some();
    let requests = if all { 200 } else { REQUESTS };
    let names = ["gguf_q8_0", "llama_gguf_q8_0"];
    let expected = names.map(|name| {
        let alone = serve(name, &[], &[]);
        (0..4).map(|seed| tokens(&alone, name, seed)).collect::<Vec<_>>()
    });
    let server = serve(names[0], &[names[1]], &["--memory-budget", BUDGET]);
    // The second model has no name of its own: that of its file.
    let models = [names[0], "model"];
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (server, expected) = (&server, &expected);
            scope.spawn(move || {
                for turn in 0..requests / CLIENTS {
                    let (model, seed) = ((client + turn) % 2, (client + turn / 2) % 4);
                    assert_eq!(tokens(server, models[model], seed), expected[model][seed]);
                }
            });
        }
    });
    let finished = server.metric("indrik_engine_requests_total{outcome=\"finished\"}");
    assert_eq!(finished as usize, requests / CLIENTS * CLIENTS);
    let stats: Value = serde_json::from_str(&server.request("GET", "/stats", "").1).unwrap();
    let planned =
        stats["memory"].as_array().unwrap().iter().filter_map(|heap| heap["planned_bytes"].as_u64());
    assert!(planned.sum::<u64>() <= BUDGET_BYTES, "{stats}");
    server.signal("-TERM");
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    // Each was loaded more than once, and never one before the other was gone.
    let events: Vec<&str> = log
        .lines()
        .filter_map(|line| {
            ["the model is loaded", "unloading the model", "loading the model"]
                .into_iter()
                .find(|event| line.contains(event))
        })
        .collect();
    assert!(events.iter().filter(|event| **event == "the model is loaded").count() > 2, "{log}");
    let mut used = 0;
    for event in events {
        match event {
            "loading the model" => used += 1,
            "unloading the model" => used -= 1,
            _ => {}
        }
        assert!((0..=1).contains(&used), "{log}");
    }
}

#[test]
fn a_model_that_does_not_fit_is_refused_with_the_reason() {
    if !has_device() {
        return;
    }
    let model = fixture("gguf_q8_0");
    let output = indrik(&["serve", "-m", &model, "--name", "tiny", "--port", "0", "--memory-budget", "1MiB"])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{error}");
    assert!(error.contains("tiny: it needs") && error.contains("--memory-budget"), "{error}");
}
