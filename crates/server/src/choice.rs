//! From tokens to text: one answer of a request as it comes.

use std::sync::Arc;
use std::time::Instant;

use futures_util::stream::{self, BoxStream, StreamExt};
use text::{Detokenizer, StopMatcher};

use crate::error::Error;
use crate::record::Record;
use crate::told::{Tokens, Told};
use engine::{Answer, Event, Failure, Finish, Usage};

/// What comes of an answer. [`Piece::Ended`] or [`Piece::Failed`] is the last.
#[derive(Debug)]
pub(crate) enum Piece {
    /// More text, and the tokens that are told with it where that was asked for: at least one character or token.
    Text(String, Vec<Told>),
    /// It is complete.
    Ended { reason: &'static str, usage: Usage },
    /// It will not be completed.
    Failed(Error),
}

/// One answer of a request.
pub(crate) struct Choice {
    /// Which of the request's.
    pub(crate) index: u32,
    pub(crate) answer: Answer,
    pub(crate) text: Detokenizer,
    pub(crate) stops: StopMatcher,
    pub(crate) usage: Usage,
    /// Where probabilities were asked for.
    pub(crate) tokens: Option<Tokens>,
    pub(crate) deadline: Instant,
    pub(crate) record: Arc<Record>,
}

impl Choice {
    /// Its pieces, each with its index. Dropping the stream cancels the answer; so does its own end.
    pub(crate) fn pieces(self) -> BoxStream<'static, (u32, Piece)> {
        // An end that comes with text waits here while the text goes out.
        enum Stage {
            Open(Box<Choice>),
            Last(u32, Piece),
            Over,
        }
        stream::unfold(Stage::Open(Box::new(self)), |stage| async {
            let mut choice = match stage {
                Stage::Open(choice) => choice,
                Stage::Last(index, piece) => return Some(((index, piece), Stage::Over)),
                Stage::Over => return None,
            };
            let index = choice.index;
            let (text, told, last) = choice.advance().await;
            Some(match last {
                None => ((index, Piece::Text(text, told)), Stage::Open(choice)),
                Some(last) if text.is_empty() && told.is_empty() => ((index, last), Stage::Over),
                Some(last) => ((index, Piece::Text(text, told)), Stage::Last(index, last)),
            })
        })
        .boxed()
    }

    /// Waits until it is begun; an error where it never will be.
    pub(crate) async fn begun(&mut self) -> Result<(), Error> {
        match self.answer.next().await {
            Some(Event::Started { cached }) => {
                self.usage.cached = cached;
                Ok(())
            }
            Some(Event::Failed(failure)) => Err(self.failed(failure)),
            other => Err(self.failed(Failure::Internal(format!("an answer began with {other:?}")))),
        }
    }

    /// The tokens that are told with a text.
    fn told(&mut self, text: &str) -> Vec<Told> {
        self.tokens.as_mut().map_or_else(Vec::new, |tokens| tokens.sent(text))
    }

    /// What a client is told of a failure. What it must not be told goes to the log.
    fn failed(&self, failure: Failure) -> Error {
        if let Failure::Internal(what) = &failure {
            tracing::error!(id = self.record.id, %what, "a request failed");
        }
        failure.into()
    }

    /// Waits for text or the end: never neither.
    async fn advance(&mut self) -> (String, Vec<Told>, Option<Piece>) {
        loop {
            let next = tokio::time::timeout_at(self.deadline.into(), self.answer.next()).await;
            let event = match next {
                Ok(Some(event)) => event,
                Ok(None) => Event::Failed(Failure::Internal("an answer ended without saying why".to_owned())),
                Err(_) => Event::Failed(Failure::Deadline),
            };
            match event {
                Event::Started { cached } => self.usage.cached = cached,
                Event::Token(token) => {
                    self.usage.written += 1;
                    self.record.token();
                    let made = self.text.push(token.id);
                    if let Some(tokens) = &mut self.tokens {
                        tokens.made(token, &made);
                    }
                    let (text, stopped) = self.stops.push(&made);
                    let told = self.told(&text);
                    if stopped {
                        self.answer.enough();
                        return (text, told, Some(Piece::Ended { reason: "stop", usage: self.usage }));
                    }
                    if !text.is_empty() {
                        return (text, told, None);
                    }
                }
                Event::Finished { finish, usage } => {
                    let mut held = String::new();
                    self.text.finish_to(&mut held);
                    let (mut text, mut stopped) = self.stops.push(&held);
                    if !stopped {
                        let (rest, met) = self.stops.finish();
                        text.push_str(&rest);
                        stopped = met;
                    }
                    let mut told = self.told(&text);
                    if let Some(tokens) = self.tokens.as_mut().filter(|_| !stopped) {
                        told.extend(tokens.rest());
                    }
                    let reason = if stopped || finish == Finish::End { "stop" } else { "length" };
                    return (text, told, Some(Piece::Ended { reason, usage }));
                }
                Event::Failed(failure) => {
                    return (String::new(), vec![], Some(Piece::Failed(self.failed(failure))));
                }
            }
        }
    }
}
