//! From tokens to text: one answer of a request as it comes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use futures_util::stream::{self, BoxStream, StreamExt};
use text::{Detokenizer, StopMatcher, ToolCallEvent, ToolCallParser};

use crate::error::Error;
use crate::record::Record;
use crate::told::{Tokens, Told};
use engine::{Event, EventStream, FinishReason, RequestError, Usage};

/// What comes of an answer. [`Piece::Ended`] or [`Piece::Failed`] is the last.
#[derive(Debug)]
pub(crate) enum Piece {
    /// More text, and the tokens that are told with it where that was asked for: at least one character or token.
    Text(String, Vec<Told>),
    /// A call begins.
    Call { name: String },
    /// More arguments of the last call: at least one character.
    Arguments(String),
    /// It is complete.
    Ended { reason: &'static str, usage: Usage },
    /// It will not be completed.
    Failed(Error),
}

/// One answer of a request.
pub(crate) struct Choice {
    /// Which of the request's.
    pub(crate) index: u32,
    pub(crate) answer: EventStream,
    pub(crate) text: Detokenizer,
    pub(crate) said: Said,
    pub(crate) usage: Usage,
    pub(crate) deadline: Instant,
    pub(crate) record: Arc<Record>,
}

impl Choice {
    /// Its pieces, each with its index. Dropping the stream cancels the answer; so does its own end.
    pub(crate) fn pieces(self) -> BoxStream<'static, (u32, Piece)> {
        let index = self.index;
        stream::unfold(Some(Box::new(self)), move |choice| async move {
            let mut choice = choice?;
            while choice.said.pieces.is_empty() {
                choice.advance().await;
            }
            let piece = choice.said.pieces.pop_front()?;
            let last = matches!(piece, Piece::Ended { .. } | Piece::Failed(_));
            Some(((index, piece), (!last).then_some(choice)))
        })
        .boxed()
    }

    /// Waits until it is begun; an error where it never will be.
    pub(crate) async fn begun(&mut self) -> Result<(), Error> {
        match self.answer.next().await {
            Some(Event::Started { cached_tokens }) => {
                self.usage.cached_tokens = cached_tokens;
                Ok(())
            }
            Some(Event::Failed(failure)) => Err(self.failed(failure)),
            other => Err(self.failed(RequestError::Internal(format!("an answer began with {other:?}")))),
        }
    }

    /// What a client is told of a failure. What it must not be told goes to the log.
    fn failed(&self, failure: RequestError) -> Error {
        match failure {
            RequestError::Grammar(why) => Error::Format { param: self.said.held_by(), why },
            RequestError::Internal(what) => {
                tracing::error!(id = self.record.id, %what, "a request failed");
                Error::Internal
            }
            failure => failure.into(),
        }
    }

    /// Waits for what comes next, which may be no piece yet.
    async fn advance(&mut self) {
        let next = tokio::time::timeout_at(self.deadline.into(), self.answer.next()).await;
        let event = match next {
            Ok(Some(event)) => event,
            Ok(None) => {
                Event::Failed(RequestError::Internal("an answer ended without saying why".to_owned()))
            }
            Err(_) => Event::Failed(RequestError::DeadlineExceeded),
        };
        match event {
            Event::Started { cached_tokens } => self.usage.cached_tokens = cached_tokens,
            Event::Token(token) => {
                self.usage.completion_tokens += 1;
                self.record.token();
                let made = self.text.push(token.id);
                if let Some(tokens) = &mut self.said.tokens {
                    tokens.made(token, &made);
                }
                self.said.take(&made);
                if self.said.stopped {
                    self.answer.finish_early();
                    self.end("stop", self.usage);
                }
            }
            Event::Finished { reason, usage } => {
                let mut held = String::new();
                self.text.finish_to(&mut held);
                self.said.take(&held);
                self.said.finish();
                let reason = match reason {
                    _ if self.said.stopped => "stop",
                    FinishReason::Stop if self.said.calls > 0 => "tool_calls",
                    FinishReason::Stop => "stop",
                    _ => "length",
                };
                self.end(reason, usage);
            }
            Event::Failed(failure) => {
                let failed = Piece::Failed(self.failed(failure));
                self.said.pieces.push_back(failed);
            }
        }
    }

    fn end(&mut self, reason: &'static str, usage: Usage) {
        self.record.calls(self.said.calls);
        self.said.pieces.push_back(Piece::Ended { reason, usage });
    }
}

/// What an answer says, from its text to pieces: calls are taken out, stop strings end what is left.
pub(crate) struct Said {
    /// Where tools may be called.
    reader: Option<ToolCallParser>,
    stops: StopMatcher,
    /// Where probabilities were asked for.
    tokens: Option<Tokens>,
    /// White space that belongs to the text, unless a call follows.
    space: String,
    /// Calls that were begun.
    calls: u64,
    stopped: bool,
    pieces: VecDeque<Piece>,
}

impl Said {
    pub(crate) fn new(reader: Option<ToolCallParser>, stops: StopMatcher, tells: bool) -> Said {
        Said {
            reader,
            stops,
            tokens: tells.then(Tokens::default),
            space: String::new(),
            calls: 0,
            stopped: false,
            pieces: VecDeque::new(),
        }
    }

    /// Whether the probabilities of tokens are told.
    pub(crate) fn tells(&self) -> bool {
        self.tokens.is_some()
    }

    /// The field that the answer is held by.
    fn held_by(&self) -> &'static str {
        if self.reader.is_some() { "tools" } else { "response_format" }
    }

    /// Takes more text.
    fn take(&mut self, text: &str) {
        match &mut self.reader {
            None => {
                let (text, stopped) = self.stops.push(text);
                self.stopped |= stopped;
                self.say(text);
            }
            Some(reader) => {
                let parts = reader.push(text);
                parts.into_iter().for_each(|part| self.part(part));
            }
        }
    }

    /// The text has ended.
    fn finish(&mut self) {
        let parts = self.reader.as_mut().map(ToolCallParser::finish).unwrap_or_default();
        parts.into_iter().for_each(|part| self.part(part));
        self.release();
        let space = std::mem::take(&mut self.space);
        self.send(space);
        // What has no text, such as the end of the answer.
        let rest = self.tokens.as_mut().filter(|_| !self.stopped && self.calls == 0).map(Tokens::rest);
        self.push(String::new(), rest.unwrap_or_default());
    }

    fn part(&mut self, part: ToolCallEvent) {
        if self.stopped {
            return;
        }
        match part {
            ToolCallEvent::Text(text) => {
                let (text, stopped) = self.stops.push(&text);
                self.stopped = stopped;
                self.say(text);
            }
            ToolCallEvent::Start { name, raw: written } => {
                // Stop strings are looked for in what is said, and not beyond.
                self.release();
                if self.stopped {
                    return;
                }
                let space = std::mem::take(&mut self.space);
                self.hide(&space);
                self.hide(&written);
                self.calls += 1;
                self.pieces.push_back(Piece::Call { name });
            }
            ToolCallEvent::Arguments(text) => {
                self.hide(&text);
                self.pieces.push_back(Piece::Arguments(text));
            }
            ToolCallEvent::Markup(text) => self.hide(&text),
        }
    }

    /// Says what was held back because it could have become a stop string.
    fn release(&mut self) {
        if !self.stopped {
            let (text, stopped) = self.stops.finish();
            self.stopped = stopped;
            self.say(text);
        }
    }

    /// Says a text, without white space at its end as long as that may belong to a call.
    fn say(&mut self, text: String) {
        if self.reader.is_none() {
            return self.send(text);
        }
        let mut text = std::mem::take(&mut self.space) + &text;
        if !self.stopped {
            self.space = text.split_off(text.trim_end().len());
        }
        self.send(text);
    }

    fn send(&mut self, text: String) {
        let told = self.tokens.as_mut().map_or_else(Vec::new, |tokens| tokens.sent(&text));
        self.push(text, told);
    }

    /// Adds to the last piece where that is text.
    fn push(&mut self, text: String, told: Vec<Told>) {
        match self.pieces.back_mut() {
            _ if text.is_empty() && told.is_empty() => {}
            Some(Piece::Text(before, told_before)) => {
                before.push_str(&text);
                told_before.extend(told);
            }
            _ => self.pieces.push_back(Piece::Text(text, told)),
        }
    }

    fn hide(&mut self, text: &str) {
        if let Some(tokens) = &mut self.tokens {
            tokens.hidden(text);
        }
    }
}
