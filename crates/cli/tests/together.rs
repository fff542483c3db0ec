//! The real server: an answer is the same whoever else is there.

mod common;

use std::{
    io::BufRead,
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use common::served::{Served, has_device, serve};
use serde_json::{Value, json};

/// How many others there are.
const OTHERS: usize = 15;

/// Asks alone, then a few times among others.
fn alone_and_together(server: &Served, body: &Value) -> (Value, Vec<Value>) {
    let choices = || server.complete(body)["choices"].take();
    let alone = choices();
    let (over, begun) = (AtomicBool::new(false), Barrier::new(OTHERS + 1));
    let together = thread::scope(|scope| {
        for number in 0..OTHERS {
            let (over, begun) = (&over, &begun);
            scope.spawn(move || {
                let mut first = true;
                while !over.load(Ordering::Relaxed) {
                    // Greedy and drawn, from short and long prompts; no token ends one early.
                    let other = json!({
                        "model": "tiny", "prompt": "the mat ".repeat(number * 2 + 1), "max_tokens": 300, "seed": number,
                        "temperature": number % 3, "stream": true, "logit_bias": { "1": -100, "106": -100 },
                    });
                    let mut lines = server.send("POST", "/v1/completions", &other.to_string()).lines();
                    assert!(lines.any(|line| line.unwrap().starts_with("data: ")));
                    if std::mem::take(&mut first) {
                        begun.wait();
                    }
                    lines.take_while(|_| !over.load(Ordering::Relaxed)).for_each(drop);
                }
            });
        }
        begun.wait();
        let mut most = 0;
        let together = (0..4)
            .map(|_| {
                let got = choices();
                most = most.max(server.metric("indrik_requests_decoding"));
                got
            })
            .collect();
        over.store(true, Ordering::Relaxed);
        assert!(most > OTHERS as u64 / 2, "never more than {most} were there");
        together
    });
    (alone, together)
}

fn asked(more: Value) -> Value {
    let mut body = json!({ "model": "tiny", "prompt": "the cat sat on", "max_tokens": 60, "temperature": 0 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn a_greedy_answer_is_the_same_alone_and_among_others() {
    if !has_device() {
        return;
    }
    let server = Served::start(&mut serve(&["--max-sequences", "16"]));
    let (alone, together) = alone_and_together(&server, &asked(json!({})));
    assert!(together.iter().all(|choices| *choices == alone), "{alone}: {together:?}");
}

#[test]
fn reproducible_probabilities_are_the_same_bit_by_bit() {
    if !has_device() {
        return;
    }
    let server = Served::start(&mut serve(&["--max-sequences", "16", "--reproducible"]));
    let body = asked(json!({ "logprobs": 5 }));
    let (alone, together) = alone_and_together(&server, &body);
    assert!(together.iter().all(|choices| *choices == alone), "{alone}: {together:?}");
    let told = alone[0]["logprobs"]["token_logprobs"].as_array().unwrap();
    assert!(told.len() == 60 && told.iter().all(Value::is_number), "{alone}");
}
