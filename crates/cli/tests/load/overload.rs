//! More clients than there is room for.

use std::{
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::client::{Client, Dice};

/// How many ask at once.
const CLIENTS: u64 = 200;

/// One of so many hangs up half-way, each time.
const FICKLE: u64 = 10;

/// What became of all requests.
#[derive(Default)]
pub struct Tally {
    pub answered: u64,
    pub hung_up: u64,
    /// How long each took that was refused.
    pub refused: Vec<Duration>,
    /// What should not have been.
    pub wrong: Vec<String>,
}

impl Tally {
    /// That every kind of end was met, and no other.
    pub fn check(&self) {
        let wrong = &self.wrong[..self.wrong.len().min(10)];
        assert!(wrong.is_empty(), "{} wrong, of which {wrong:#?}", self.wrong.len());
        assert!(self.answered > 0 && self.hung_up > 0 && !self.refused.is_empty());
    }

    /// So many of a hundred refusals took no longer than this.
    pub fn percentile(&self, percent: usize) -> Duration {
        let mut times = self.refused.clone();
        times.sort();
        times[(times.len() * percent / 100).min(times.len() - 1)]
    }
}

/// All clients, for so long and until each has the end of its last answer.
pub fn run(address: &str, time: Duration) -> Tally {
    let tally = Mutex::new(Tally::default());
    let until = Instant::now() + time;
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let tally = &tally;
            scope.spawn(move || {
                let mut client = Client::new(address);
                let mut dice = Dice(number);
                while Instant::now() < until {
                    if let Err(error) = once(&mut client, number, &mut dice, tally) {
                        tally.lock().unwrap().wrong.push(format!("client {number}: {error}"));
                        client.hang_up();
                    }
                }
            });
        }
    });
    tally.into_inner().unwrap()
}

fn once(client: &mut Client, number: u64, dice: &mut Dice, tally: &Mutex<Tally>) -> std::io::Result<()> {
    let fickle = number.is_multiple_of(FICKLE);
    let streams = fickle || number.is_multiple_of(2);
    // Who hangs up would have had a long answer, which nothing ends before its length.
    let (most, biases) = match fickle {
        true => (300, json!({ "1": -100, "106": -100 })),
        false => (8 + dice.throw(24), json!({})),
    };
    let body = json!({
        "model": "tiny",
        "messages": [{ "role": "user", "content": format!("the cat {number} sat on {}", dice.throw(1000)) }],
        "max_tokens": most,
        "stream": streams,
        "seed": dice.throw(1 << 30),
        "logit_bias": biases,
    });
    let head = client.ask("/v1/chat/completions", &body.to_string())?;
    match head.status {
        200 if fickle => {
            client.piece()?;
            client.hang_up();
            tally.lock().unwrap().hung_up += 1;
        }
        200 => {
            let whole = client.body(&head)?;
            let ended = match streams {
                true => whole.ends_with("data: [DONE]\n\n"),
                false => serde_json::from_str::<Value>(&whole)
                    .is_ok_and(|answer| answer["choices"][0]["finish_reason"].is_string()),
            };
            let mut tally = tally.lock().unwrap();
            tally.answered += 1;
            if !ended {
                tally.wrong.push(format!("client {number}: an answer without its end: {whole}"));
            }
        }
        429 => {
            let whole = client.body(&head)?;
            let mut locked = tally.lock().unwrap();
            locked.refused.push(head.waited);
            if !whole.contains("queue_full") || head.retry_after.is_none() {
                locked.wrong.push(format!("client {number}: {whole}"));
            }
            drop(locked);
            // Less patient than it was asked to be, and not in step with the others.
            thread::sleep(Duration::from_millis(dice.throw(1000)));
        }
        status => {
            let whole = client.body(&head)?;
            tally.lock().unwrap().wrong.push(format!("client {number}: {status} {whole}"));
        }
    }
    Ok(())
}
