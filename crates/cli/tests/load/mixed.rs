//! A mix of realistic clients: chats with several turns, streams, structured output, disconnects, invalid
//! requests.

use std::{
    io,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::client::{Client, Random};

/// Number of concurrent clients: all sequences are in use and some requests wait, but none is rejected.
const CLIENTS: u64 = 16;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// Outcomes of all requests.
#[derive(Default)]
pub struct Tally {
    pub completed: u64,
    pub disconnected: u64,
    /// Invalid requests that were rejected.
    pub rejected: u64,
    /// Requests during the recovery of a lost device.
    pub not_ready: u64,
    /// Unexpected outcomes.
    pub failures: Vec<String>,
}

impl Tally {
    /// Checks that every expected outcome occurred, and no other.
    pub fn check(&self) {
        let shown = &self.failures[..self.failures.len().min(10)];
        assert!(shown.is_empty(), "{} failures, the first of them {shown:#?}", self.failures.len());
        assert!(self.completed > 0 && self.disconnected > 0 && self.rejected > 0);
    }
}

/// State shared by all clients.
pub struct Load {
    address: String,
    /// A greedy request; its completion must never change.
    fixed: Value,
    expected: String,
    tally: Mutex<Tally>,
}

impl Load {
    /// Gets the expected completion of the fixed request from the idle server.
    pub fn new(address: &str) -> io::Result<Load> {
        let fixed = json!({ "model": "tiny", "prompt": "the cat sat", "max_tokens": 24, "temperature": 0 });
        let mut client = Client::new(address);
        let expected = output(&client.complete(TEXT, &fixed)?.1, "text");
        let tally = Mutex::default();
        Ok(Load { address: address.to_owned(), fixed, expected, tally })
    }

    /// Runs all clients for `time`, and until each has its last response.
    pub fn run(&self, time: Duration) {
        let deadline = Instant::now() + time;
        thread::scope(|scope| {
            for number in 0..CLIENTS {
                scope.spawn(move || {
                    let (client, random) = (Client::new(&self.address), Random(number));
                    let mut actor = Actor { load: self, client, random };
                    while Instant::now() < deadline {
                        if let Err(error) = actor.act() {
                            self.fail(format!("client {number}: {error}"));
                            actor.client.disconnect();
                        }
                    }
                });
            }
        });
    }

    /// The outcomes.
    pub fn tally(self) -> Tally {
        self.tally.into_inner().unwrap()
    }

    fn count(&self, count: impl FnOnce(&mut Tally)) {
        count(&mut self.tally.lock().unwrap());
    }

    fn fail(&self, what: String) {
        self.count(|tally| tally.failures.push(what));
    }
}

/// A request for structured output.
fn structured() -> Value {
    let schema = json!({
        "type": "object",
        "properties": { "cats": { "type": "integer" }, "mat": { "type": "boolean" } },
        "required": ["cats", "mat"],
        "additionalProperties": false,
    });
    json!({
        "model": "tiny",
        "messages": [{ "role": "user", "content": "how many cats" }],
        "response_format": { "type": "json_schema", "json_schema": { "name": "cats", "strict": true, "schema": schema } },
        "max_tokens": 60,
    })
}

/// Text of the first choice; empty if there is none.
fn output(body: &str, field: &str) -> String {
    let response: Value = serde_json::from_str(body).unwrap_or_default();
    let choice = &response["choices"][0];
    let text = if field == "text" { &choice["text"] } else { &choice["message"]["content"] };
    text.as_str().unwrap_or_default().to_owned()
}

/// One client.
struct Actor<'a> {
    load: &'a Load,
    client: Client,
    random: Random,
}

impl Actor<'_> {
    fn act(&mut self) -> io::Result<()> {
        match self.random.below(12) {
            0..=2 => self.chat(),
            3..=4 => self.stream(),
            5..=6 => self.fixed(),
            7 => self.disconnect_during_stream(),
            8 => self.disconnect_after_request(),
            9 => self.structured(),
            10 => self.several_choices(),
            _ => self.invalid(),
        }
    }

    /// Body of a response with status 200; `None` while a lost device is being recovered.
    fn complete(&mut self, path: &str, body: &Value) -> io::Result<Option<String>> {
        let (status, text) = self.client.complete(path, body)?;
        match status {
            200 => self.load.count(|tally| tally.completed += 1),
            503 if text.contains("not_ready") => {
                self.meet_recovery();
                return Ok(None);
            }
            _ => self.load.fail(format!("{body}: {status} {text}")),
        }
        Ok(Some(text))
    }

    /// Counts a request that a lost device's recovery rejected, and waits a little, as clients do.
    fn meet_recovery(&self) {
        self.load.count(|tally| tally.not_ready += 1);
        thread::sleep(Duration::from_millis(50));
    }

    /// A chat of several turns.
    fn chat(&mut self) -> io::Result<()> {
        let system = format!("you are cat {}", self.random.below(4));
        let mut messages = vec![json!({ "role": "system", "content": system })];
        for _ in 0..2 + self.random.below(3) {
            let content = format!("what does cat {} say", self.random.below(1000));
            messages.push(json!({ "role": "user", "content": content }));
            let max_tokens = 4 + self.random.below(20);
            let body = json!({ "model": "tiny", "messages": messages, "max_tokens": max_tokens });
            let Some(text) = self.complete(CHAT, &body)? else { break };
            messages.push(json!({ "role": "assistant", "content": output(&text, "content") }));
        }
        Ok(())
    }

    /// A request for a stream.
    fn stream_request(&mut self) -> Value {
        let content = format!("the cat {} sat", self.random.below(1000));
        json!({
            "model": "tiny", "messages": [{ "role": "user", "content": content }], "stream": true,
            "max_tokens": 16 + self.random.below(48), "stream_options": { "include_usage": true },
            "frequency_penalty": 0.5, "top_k": 20, "stop": ["zebra"],
        })
    }

    fn stream(&mut self) -> io::Result<()> {
        let body = self.stream_request();
        if let Some(text) = self.complete(CHAT, &body)?
            && !text.ends_with("data: [DONE]\n\n")
        {
            self.load.fail(format!("incomplete stream: {text}"));
        }
        Ok(())
    }

    /// The request whose completion is known.
    fn fixed(&mut self) -> io::Result<()> {
        let load = self.load;
        if let Some(text) = self.complete(TEXT, &load.fixed)?
            && output(&text, "text") != load.expected
        {
            load.fail(format!("expected {:?}, got {text}", load.expected));
        }
        Ok(())
    }

    /// Disconnects in the middle of a stream.
    fn disconnect_during_stream(&mut self) -> io::Result<()> {
        let body = self.stream_request();
        let head = self.client.request(CHAT, &body.to_string())?;
        if head.status == 200 {
            self.client.chunk()?;
            self.load.count(|tally| tally.disconnected += 1);
        }
        self.client.disconnect();
        Ok(())
    }

    /// Disconnects soon after sending a request, in whatever state that is.
    fn disconnect_after_request(&mut self) -> io::Result<()> {
        let body = self.stream_request();
        self.client.send(CHAT, &body.to_string())?;
        thread::sleep(Duration::from_millis(self.random.below(20)));
        self.client.disconnect();
        self.load.count(|tally| tally.disconnected += 1);
        Ok(())
    }

    fn structured(&mut self) -> io::Result<()> {
        if let Some(text) = self.complete(CHAT, &structured())? {
            let response: Value = serde_json::from_str(&text).unwrap_or_default();
            // The tiny model may generate an integer longer than the token limit.
            let cut_off = response["choices"][0]["finish_reason"] == "length";
            let object: Value = serde_json::from_str(&output(&text, "content")).unwrap_or_default();
            let valid = object["cats"].is_number() && object["mat"].is_boolean();
            if !cut_off && !valid {
                self.load.fail(format!("output does not match the schema: {text}"));
            }
        }
        Ok(())
    }

    /// Several choices for several prompts.
    fn several_choices(&mut self) -> io::Result<()> {
        let body = json!({
            "model": "tiny", "prompt": ["the cat", "the mat"], "n": 2, "max_tokens": 8, "echo": true,
            "seed": self.random.below(1 << 30),
        });
        if let Some(text) = self.complete(TEXT, &body)? {
            let response: Value = serde_json::from_str(&text).unwrap_or_default();
            if response["choices"].as_array().map(Vec::len) != Some(4) {
                self.load.fail(format!("expected four choices: {text}"));
            }
        }
        Ok(())
    }

    fn invalid(&mut self) -> io::Result<()> {
        let long = "cat ".repeat(2000);
        let (body, expected) = match self.random.below(5) {
            0 => ("{\"model\": \"tiny\", ".to_owned(), 400),
            1 => (json!({ "model": "tiny", "prompt": "cat", "temperature": -1 }).to_string(), 400),
            2 => (json!({ "model": "gpt-9", "prompt": "cat" }).to_string(), 404),
            3 => (json!({ "model": "tiny", "prompt": [-1] }).to_string(), 400),
            _ => (json!({ "model": "tiny", "prompt": long }).to_string(), 400),
        };
        let head = self.client.request(TEXT, &body)?;
        let text = self.client.body(&head)?;
        match head.status {
            status if status == expected => self.load.count(|tally| tally.rejected += 1),
            // Whether the server is ready is checked before what takes longer: the tokens of a prompt.
            503 if text.contains("not_ready") => self.meet_recovery(),
            status => self.load.fail(format!("{body}: {status} {text}")),
        }
        Ok(())
    }
}
