//! What the server needs of whoever makes the tokens.
//!
//! The words are those of `docs/engine.md`: when `crates/engine` is there, its types take the place of these, and its handle
//! is a [`Generator`].

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

/// Makes tokens. One for the whole server.
pub trait Generator: Send + Sync + 'static {
    /// Takes a request, or says at once why not. Never waits.
    fn submit(&self, request: Request) -> Result<Answer, Refused>;

    /// How things stand.
    fn status(&self) -> Status;

    /// Why it cannot answer now; nothing where it can. Asked for every request: cheap.
    fn unready(&self) -> Option<String>;

    /// How many tokens a prompt and its answer may have together.
    fn context(&self) -> u32;
}

/// How the next token is chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the most probable token; 1 draws by the model's own probabilities.
    pub temperature: f32,
    /// Only this many of the most probable tokens; 0 is all.
    pub top_k: u32,
    /// Only the most probable tokens whose probabilities make this sum; above 0, 1 is all.
    pub top_p: f32,
    /// Only tokens at least this probable, relative to the most probable one; 0 is all.
    pub min_p: f32,
    /// Logits of tokens that occurred are divided by this where positive and multiplied where negative; 1 is off.
    pub repetition: f32,
    /// Taken off the logits of tokens that were generated before.
    pub presence: f32,
    /// Taken off the logits of generated tokens once for each time.
    pub frequency: f32,
    /// Where the random numbers start. The same seed gives the same tokens.
    pub seed: u64,
    /// Added to the logits of some tokens; −100 and less bans one.
    pub biases: Vec<(u32, f32)>,
}

impl Default for Sampling {
    /// By the model's own probabilities, as OpenAI's protocol has it.
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition: 1.0,
            presence: 0.0,
            frequency: 0.0,
            seed: 0,
            biases: vec![],
        }
    }
}

/// One answer that is wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// So many tokens at most.
    pub most: NonZeroU32,
    /// How they are chosen.
    pub sampling: Sampling,
    /// Tokens that end the answer; they are not part of it.
    pub ends: Vec<u32>,
    /// When nobody wants the answer any more.
    pub deadline: Option<Instant>,
}

/// The receiving end of an answer. Dropping it cancels the request.
#[derive(Debug)]
pub struct Answer(mpsc::UnboundedReceiver<Event>);

impl Answer {
    /// Both ends. The sender's `closed` and failing sends tell that the answer was dropped. The channel holds at most the
    /// tokens of one answer: no bound of its own, so that a slow reader never holds up the sender.
    pub fn channel() -> (mpsc::UnboundedSender<Event>, Answer) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (sender, Answer(receiver))
    }

    /// What happens next; nothing after the last event.
    pub async fn next(&mut self) -> Option<Event> {
        self.0.recv().await
    }
}

/// What becomes of a request. [`Event::Finished`] or [`Event::Failed`] is the last.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Reading has begun.
    Started {
        /// How many tokens of the prompt need no reading.
        cached: u32,
    },
    /// The next token of the answer.
    Token(Token),
    /// The answer is complete.
    Finished {
        /// Why.
        finish: Finish,
        /// What it took.
        usage: Usage,
    },
    /// The answer will not be completed.
    Failed(Failure),
}

/// A token of an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Token {
    /// Which.
    pub id: u32,
    /// The logarithm of the probability that the model gave it.
    pub logprob: f32,
}

/// Why an answer is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it.
    End,
    /// It has as many tokens as were asked for.
    Length,
    /// The context is full.
    Context,
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt.
    pub prompt: u32,
    /// Of those, the ones that needed no reading.
    pub cached: u32,
    /// Of the answer.
    pub written: u32,
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Too many wait already.
    QueueFull {
        /// When to try again.
        retry_after: Duration,
    },
    /// The prompt leaves no room for an answer.
    TooLong {
        /// Its tokens.
        tokens: usize,
        /// How many a prompt and its answer may have together.
        context: u32,
    },
    /// Nothing new is taken before the end.
    Draining,
    /// Something in it is wrong.
    Invalid(String),
}

/// Why a request that was taken has no complete answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The GPU was lost and did not come back.
    DeviceLost,
    /// There is not enough GPU memory for it, even alone.
    OutOfMemory,
    /// It took longer than it may.
    Deadline,
    /// The generator was stopped before it was done.
    Stopped,
    /// The model computed something that is no number.
    NotFinite,
    /// Anything else.
    Internal(String),
}

/// How things stand; numbers of what has been since the start only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Requests that wait.
    pub queued: usize,
    /// Requests whose prompts are read.
    pub reading: usize,
    /// Requests whose answers are written.
    pub writing: usize,
    /// Pages of the KV cache.
    pub pages: Pages,
    /// Tokens read so far.
    pub read: u64,
    /// Tokens of prompts that needed no reading so far.
    pub cached: u64,
    /// Tokens written so far.
    pub written: u64,
    /// Steps so far.
    pub steps: u64,
    /// How often a request was set back, to read again what it had read.
    pub set_back: u64,
    /// How often the device was lost.
    pub lost: u64,
}

/// Pages of the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// That no sequence holds.
    pub free: u32,
    /// That there are.
    pub total: u32,
}
