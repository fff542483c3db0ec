//! More clients than the server has room for.

use std::{
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::client::{Client, Random};

/// Number of concurrent clients.
const CLIENTS: u64 = 200;

/// Every tenth client disconnects in the middle of each response.
const DISCONNECTING: u64 = 10;

/// Outcomes of all requests.
#[derive(Default)]
pub struct Tally {
    pub completed: u64,
    pub disconnected: u64,
    /// Latencies of rejections.
    pub rejected: Vec<Duration>,
    /// Unexpected outcomes.
    pub failures: Vec<String>,
}

impl Tally {
    /// Checks that every expected outcome occurred, and no other.
    pub fn check(&self) {
        let shown = &self.failures[..self.failures.len().min(10)];
        assert!(shown.is_empty(), "{} failures, the first of them {shown:#?}", self.failures.len());
        assert!(self.completed > 0 && self.disconnected > 0 && !self.rejected.is_empty());
    }

    /// Percentile of the rejection latencies.
    pub fn percentile(&self, percent: usize) -> Duration {
        let mut times = self.rejected.clone();
        times.sort();
        times[(times.len() * percent / 100).min(times.len() - 1)]
    }
}

/// Runs all clients for `time`, and until each has its last response.
pub fn run(address: &str, time: Duration) -> Tally {
    let tally = Mutex::new(Tally::default());
    let deadline = Instant::now() + time;
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let tally = &tally;
            scope.spawn(move || {
                let mut client = Client::new(address);
                let mut random = Random(number);
                while Instant::now() < deadline {
                    if let Err(error) = once(&mut client, number, &mut random, tally) {
                        tally.lock().unwrap().failures.push(format!("client {number}: {error}"));
                        client.disconnect();
                    }
                }
            });
        }
    });
    tally.into_inner().unwrap()
}

fn once(client: &mut Client, number: u64, random: &mut Random, tally: &Mutex<Tally>) -> std::io::Result<()> {
    let disconnects = number.is_multiple_of(DISCONNECTING);
    let stream = disconnects || number.is_multiple_of(2);
    // A long completion for clients that disconnect: biases ban the stop tokens.
    let (max_tokens, bias) = match disconnects {
        true => (300, json!({ "1": -100, "106": -100 })),
        false => (8 + random.below(24), json!({})),
    };
    let body = json!({
        "model": "tiny",
        "messages": [{ "role": "user", "content": format!("the cat {number} sat on {}", random.below(1000)) }],
        "max_tokens": max_tokens,
        "stream": stream,
        "seed": random.below(1 << 30),
        "logit_bias": bias,
    });
    let head = client.request("/v1/chat/completions", &body.to_string())?;
    match head.status {
        200 if disconnects => {
            client.chunk()?;
            client.disconnect();
            tally.lock().unwrap().disconnected += 1;
        }
        200 => {
            let body = client.body(&head)?;
            let complete = match stream {
                true => body.ends_with("data: [DONE]\n\n"),
                false => serde_json::from_str::<Value>(&body)
                    .is_ok_and(|response| response["choices"][0]["finish_reason"].is_string()),
            };
            let mut tally = tally.lock().unwrap();
            tally.completed += 1;
            if !complete {
                tally.failures.push(format!("client {number}: incomplete response: {body}"));
            }
        }
        429 => {
            let body = client.body(&head)?;
            let mut locked = tally.lock().unwrap();
            locked.rejected.push(head.latency);
            if !body.contains("queue_full") || head.retry_after.is_none() {
                locked.failures.push(format!("client {number}: {body}"));
            }
            drop(locked);
            // Shorter than Retry-After, and random, so that clients do not retry in lockstep.
            thread::sleep(Duration::from_millis(random.below(1000)));
        }
        status => {
            let body = client.body(&head)?;
            tally.lock().unwrap().failures.push(format!("client {number}: {status} {body}"));
        }
    }
    Ok(())
}
