//! What clients do in a day: chats that go on, streams, answers of a form, people who leave, nonsense.

use std::{
    io,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::client::{Client, Dice};

/// How many ask at once: all sequences are taken and some wait, but nobody is refused.
const CLIENTS: u64 = 16;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// What became of all requests.
#[derive(Default)]
pub struct Tally {
    pub answered: u64,
    pub hung_up: u64,
    /// Bad requests, told so.
    pub refused: u64,
    /// Came while the device was being put back.
    pub unready: u64,
    /// What should not have been.
    pub wrong: Vec<String>,
}

impl Tally {
    /// That every kind of end was met, and no other.
    pub fn check(&self) {
        let wrong = &self.wrong[..self.wrong.len().min(10)];
        assert!(wrong.is_empty(), "{} wrong, of which {wrong:#?}", self.wrong.len());
        assert!(self.answered > 0 && self.hung_up > 0 && self.refused > 0);
    }
}

/// What all clients know.
pub struct Load {
    address: String,
    /// Asked again and again; its answer never changes.
    fixed: Value,
    expected: String,
    tally: Mutex<Tally>,
}

impl Load {
    /// Asks a quiet server what it will be asked again.
    pub fn new(address: &str) -> io::Result<Load> {
        let fixed = json!({ "model": "tiny", "prompt": "the cat sat", "max_tokens": 24, "temperature": 0 });
        let mut client = Client::new(address);
        let expected = said(&client.answer(TEXT, &fixed)?.1, "text");
        let tally = Mutex::default();
        Ok(Load { address: address.to_owned(), fixed, expected, tally })
    }

    /// All clients, for so long and until each has the end of its last answer.
    pub fn run(&self, time: Duration) {
        let until = Instant::now() + time;
        thread::scope(|scope| {
            for number in 0..CLIENTS {
                scope.spawn(move || {
                    let mut one = One { load: self, client: Client::new(&self.address), dice: Dice(number) };
                    while Instant::now() < until {
                        if let Err(error) = one.act() {
                            self.wrong(format!("client {number}: {error}"));
                            one.client.hang_up();
                        }
                    }
                });
            }
        });
    }

    /// What came of it.
    pub fn tally(self) -> Tally {
        self.tally.into_inner().unwrap()
    }

    fn count(&self, count: impl FnOnce(&mut Tally)) {
        count(&mut self.tally.lock().unwrap());
    }

    fn wrong(&self, what: String) {
        self.count(|tally| tally.wrong.push(what));
    }
}

/// An answer that must be JSON of a form.
fn formed() -> Value {
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

/// The text of the first choice; nothing where there is none.
fn said(body: &str, field: &str) -> String {
    let answer: Value = serde_json::from_str(body).unwrap_or_default();
    let choice = &answer["choices"][0];
    let text = if field == "text" { &choice["text"] } else { &choice["message"]["content"] };
    text.as_str().unwrap_or_default().to_owned()
}

/// One client.
struct One<'a> {
    load: &'a Load,
    client: Client,
    dice: Dice,
}

impl One<'_> {
    fn act(&mut self) -> io::Result<()> {
        match self.dice.throw(12) {
            0..=2 => self.talk(),
            3..=4 => self.stream(),
            5..=6 => self.same(),
            7 => self.leave(),
            8 => self.leave_at_once(),
            9 => self.form(),
            10 => self.several(),
            _ => self.nonsense(),
        }
    }

    /// The body of an answer with status 200; nothing where the device is being put back.
    fn whole(&mut self, path: &str, body: &Value) -> io::Result<Option<String>> {
        let (status, text) = self.client.answer(path, body)?;
        match status {
            200 => self.load.count(|tally| tally.answered += 1),
            503 if text.contains("not_ready") => {
                self.load.count(|tally| tally.unready += 1);
                thread::sleep(Duration::from_millis(50));
                return Ok(None);
            }
            _ => self.load.wrong(format!("{body}: {status} {text}")),
        }
        Ok(Some(text))
    }

    /// A chat of some turns, each with all that was said before.
    fn talk(&mut self) -> io::Result<()> {
        let system = format!("you are cat {}", self.dice.throw(4));
        let mut messages = vec![json!({ "role": "system", "content": system })];
        for _ in 0..2 + self.dice.throw(3) {
            let content = format!("what does cat {} say", self.dice.throw(1000));
            messages.push(json!({ "role": "user", "content": content }));
            let most = 4 + self.dice.throw(20);
            let body = json!({ "model": "tiny", "messages": messages, "max_tokens": most });
            let Some(text) = self.whole(CHAT, &body)? else { break };
            messages.push(json!({ "role": "assistant", "content": said(&text, "content") }));
        }
        Ok(())
    }

    fn streamed(&mut self) -> Value {
        let content = format!("the cat {} sat", self.dice.throw(1000));
        json!({
            "model": "tiny", "messages": [{ "role": "user", "content": content }], "stream": true,
            "max_tokens": 16 + self.dice.throw(48), "stream_options": { "include_usage": true },
            "frequency_penalty": 0.5, "top_k": 20, "stop": ["zebra"],
        })
    }

    fn stream(&mut self) -> io::Result<()> {
        let body = self.streamed();
        if let Some(text) = self.whole(CHAT, &body)?
            && !text.ends_with("data: [DONE]\n\n")
        {
            self.load.wrong(format!("a stream without its end: {text}"));
        }
        Ok(())
    }

    /// The request whose answer is known.
    fn same(&mut self) -> io::Result<()> {
        let load = self.load;
        if let Some(text) = self.whole(TEXT, &load.fixed)?
            && said(&text, "text") != load.expected
        {
            load.wrong(format!("not {:?}, but {text}", load.expected));
        }
        Ok(())
    }

    /// Hangs up in the middle of an answer.
    fn leave(&mut self) -> io::Result<()> {
        let body = self.streamed();
        let head = self.client.ask(CHAT, &body.to_string())?;
        if head.status == 200 {
            self.client.piece()?;
            self.load.count(|tally| tally.hung_up += 1);
        }
        self.client.hang_up();
        Ok(())
    }

    /// Hangs up as soon as it has asked, wherever the request is then.
    fn leave_at_once(&mut self) -> io::Result<()> {
        let body = self.streamed();
        self.client.send(CHAT, &body.to_string())?;
        thread::sleep(Duration::from_millis(self.dice.throw(20)));
        self.client.hang_up();
        self.load.count(|tally| tally.hung_up += 1);
        Ok(())
    }

    fn form(&mut self) -> io::Result<()> {
        if let Some(text) = self.whole(CHAT, &formed())? {
            let answer: Value = serde_json::from_str(&text).unwrap_or_default();
            // An integer of a tiny model may be longer than its answer.
            let cut = answer["choices"][0]["finish_reason"] == "length";
            let object: Value = serde_json::from_str(&said(&text, "content")).unwrap_or_default();
            let formed = object["cats"].is_number() && object["mat"].is_boolean();
            if !cut && !formed {
                self.load.wrong(format!("not of the form: {text}"));
            }
        }
        Ok(())
    }

    /// Several answers to several prompts.
    fn several(&mut self) -> io::Result<()> {
        let body = json!({
            "model": "tiny", "prompt": ["the cat", "the mat"], "n": 2, "max_tokens": 8, "echo": true,
            "seed": self.dice.throw(1 << 30),
        });
        if let Some(text) = self.whole(TEXT, &body)? {
            let answer: Value = serde_json::from_str(&text).unwrap_or_default();
            if answer["choices"].as_array().map(Vec::len) != Some(4) {
                self.load.wrong(format!("not four answers: {text}"));
            }
        }
        Ok(())
    }

    fn nonsense(&mut self) -> io::Result<()> {
        let long = "cat ".repeat(2000);
        let (body, expected) = match self.dice.throw(5) {
            0 => ("{\"model\": \"tiny\", ".to_owned(), 400),
            1 => (json!({ "model": "tiny", "prompt": "cat", "temperature": -1 }).to_string(), 400),
            2 => (json!({ "model": "gpt-9", "prompt": "cat" }).to_string(), 404),
            3 => (json!({ "model": "tiny", "prompt": [-1] }).to_string(), 400),
            _ => (json!({ "model": "tiny", "prompt": long }).to_string(), 400),
        };
        let head = self.client.ask(TEXT, &body)?;
        let text = self.client.body(&head)?;
        match head.status {
            status if status == expected => self.load.count(|tally| tally.refused += 1),
            status => self.load.wrong(format!("{body}: {status} {text}")),
        }
        Ok(())
    }
}
