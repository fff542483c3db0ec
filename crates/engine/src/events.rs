//! The stream of what becomes of a request.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::sync::mpsc::UnboundedReceiver;

use crate::RequestError;

/// A token of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Which one.
    pub id: u32,
    /// The logarithm of the probability that the model gave it.
    pub logprob: f32,
    /// As many of the most probable tokens as were asked for, the most probable first, with the same of theirs.
    pub top: Vec<(u32, f32)>,
}

/// Why an answer is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it, or nothing can follow by its grammar.
    Stop,
    /// It has as many tokens as were asked for.
    MaxTokens,
    /// The context is full.
    ContextLength,
}

/// What a request was, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of those, the ones that needed no reading.
    pub cached_tokens: u32,
    /// Tokens of the answer.
    pub completion_tokens: u32,
}

/// What becomes of a request, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Its prompt is being read.
    Started {
        /// Tokens of the prompt that need no reading.
        cached_tokens: u32,
    },
    /// The next token of the answer.
    Token(Token),
    /// The answer is whole. The last event.
    Finished {
        /// Why.
        reason: FinishReason,
        /// How many tokens it was.
        usage: Usage,
    },
    /// There will be no more of it. The last event.
    Failed(RequestError),
}

impl Event {
    /// Whether nothing follows it.
    pub fn is_last(&self) -> bool {
        matches!(self, Event::Finished { .. } | Event::Failed(_))
    }
}

/// The events of a request as they come, the last of which is `Finished` or `Failed`. Dropping it cancels the request: its pages are free
/// before the next step.
#[derive(Debug)]
pub struct EventStream {
    events: UnboundedReceiver<Event>,
    enough: Arc<AtomicBool>,
    over: bool,
}

impl EventStream {
    /// `enough` is set by who has read all it wants.
    pub(crate) fn new(events: UnboundedReceiver<Event>, enough: Arc<AtomicBool>) -> Self {
        Self { events, enough, over: false }
    }

    /// What has come is all that is wanted: the answer is whole when this is dropped, and not cancelled.
    pub fn finish_early(&self) {
        self.enough.store(true, Ordering::Relaxed);
    }

    /// The next event; none after the last.
    pub async fn next(&mut self) -> Option<Event> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// The same for those who poll.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        if self.over {
            return Poll::Ready(None);
        }
        let event = ready!(self.events.poll_recv(context));
        Poll::Ready(Some(self.noted(event)))
    }

    /// The same for those who are not asynchronous. Panics where they are.
    pub fn blocking_next(&mut self) -> Option<Event> {
        if self.over {
            return None;
        }
        let event = self.events.blocking_recv();
        Some(self.noted(event))
    }

    fn noted(&mut self, event: Option<Event>) -> Event {
        // The engine says a last word to everyone; without one it is not there any more.
        let event = event.unwrap_or_else(|| {
            Event::Failed(RequestError::Internal(
                "the engine's thread has ended: this is a bug; please report it".into(),
            ))
        });
        self.over = event.is_last();
        event
    }
}
