//! `indrik serve`: a completion does not depend on the other requests in the batch.

use std::{
    io::BufRead,
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use crate::common::served::{Served, has_device, serve};
use serde_json::{Value, json};

/// Number of concurrent requests in the background.
const OTHERS: usize = 15;

/// The completion of one request alone, and a few times in a full batch.
fn alone_and_batched(server: &Served, body: &Value) -> (Value, Vec<Value>) {
    let choices = || server.complete(body)["choices"].take();
    let alone = choices();
    let (done, started) = (AtomicBool::new(false), Barrier::new(OTHERS + 1));
    let batched = thread::scope(|scope| {
        for number in 0..OTHERS {
            let (done, started) = (&done, &started);
            scope.spawn(move || {
                let mut first = true;
                while !done.load(Ordering::Relaxed) {
                    // Greedy and sampled, short and long prompts; stop tokens are banned.
                    let other = json!({
                        "model": "tiny", "prompt": "the mat ".repeat(number * 2 + 1), "max_tokens": 300, "seed": number,
                        "temperature": number % 3, "stream": true, "logit_bias": { "1": -100, "106": -100 },
                    });
                    let mut lines = server.send("POST", "/v1/completions", &other.to_string()).lines();
                    assert!(lines.any(|line| line.unwrap().starts_with("data: ")));
                    if std::mem::take(&mut first) {
                        started.wait();
                    }
                    lines.take_while(|_| !done.load(Ordering::Relaxed)).for_each(drop);
                }
            });
        }
        started.wait();
        let mut max_decoding = 0;
        let batched = (0..4)
            .map(|_| {
                let got = choices();
                max_decoding = max_decoding.max(server.metric("indrik_requests_decoding"));
                got
            })
            .collect();
        done.store(true, Ordering::Relaxed);
        assert!(max_decoding > OTHERS as u64 / 2, "at most {max_decoding} requests were decoding");
        batched
    });
    (alone, batched)
}

fn request(more: Value) -> Value {
    let mut body = json!({ "model": "tiny", "prompt": "the cat sat on", "max_tokens": 60, "temperature": 0 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn greedy_completions_do_not_depend_on_the_batch() {
    if !has_device() {
        return;
    }
    let server = Served::start(&mut serve(&["--max-sequences", "16"]));
    let (alone, batched) = alone_and_batched(&server, &request(json!({})));
    assert!(batched.iter().all(|choices| *choices == alone), "{alone}: {batched:?}");
}

#[test]
fn reproducible_logprobs_are_bitwise_equal_in_any_batch() {
    if !has_device() {
        return;
    }
    let server = Served::start(&mut serve(&["--max-sequences", "16", "--reproducible"]));
    let body = request(json!({ "logprobs": 5 }));
    let (alone, batched) = alone_and_batched(&server, &body);
    assert!(batched.iter().all(|choices| *choices == alone), "{alone}: {batched:?}");
    let logprobs = alone[0]["logprobs"]["token_logprobs"].as_array().unwrap();
    assert!(logprobs.len() == 60 && logprobs.iter().all(Value::is_number), "{alone}");
}
