//! The event stream of a request.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Instant,
};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::{DraftStats, RequestError};

/// A token with its log probability.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Token id.
    pub id: u32,
    /// Natural logarithm of the probability that the model assigned to it, before sampling filters and masks.
    pub logprob: f32,
    /// The most probable tokens at this position with their logprobs, most probable first; as many as
    /// `sampling.top` of the request.
    pub top: Vec<(u32, f32)>,
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model sampled a stop token, the grammar is complete, or the client called
    /// [`EventStream::finish_early`].
    Stop,
    /// `max_tokens` tokens were generated.
    MaxTokens,
    /// The sequence has reached the context length.
    ContextLength,
}

/// Token counts of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens that came from the prefix cache when the request was first admitted.
    pub cached_tokens: u32,
    /// Tokens of the completion.
    pub completion_tokens: u32,
    /// Energy of its steps in joules, shared with the other requests of each batch by rows; `None` if it was not
    /// measured.
    pub joules: Option<f64>,
    /// Bytes of weights and KV cache that its decode-only steps read, shared with the other requests of each batch.
    pub decode_bytes: u64,
    /// Tokens of those steps.
    pub decode_tokens: u32,
    /// Drafts that were verified for it.
    pub drafts: DraftStats,
}

/// Progress of a request. `Finished` or `Failed` is the last event.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The request was admitted and its prefill begins. Sent once, also if the request is preempted later.
    Started {
        /// Prompt tokens that came from the prefix cache.
        cached_tokens: u32,
    },
    /// The next tokens of the prompt, from its second on, with their log probabilities. Sent before the first token
    /// of the completion if [`Request::prompt_logprobs`](crate::Request::prompt_logprobs) is set.
    PromptTokens(Vec<Token>),
    /// The next token of the completion.
    Token(Token),
    /// The completion is finished.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// Its token counts.
        usage: Usage,
    },
    /// The request failed; tokens sent before remain valid.
    Failed(RequestError),
}

impl Event {
    /// Whether this is the last event of its stream.
    pub fn is_last(&self) -> bool {
        matches!(self, Event::Finished { .. } | Event::Failed(_))
    }
}

/// An event was not sent: the stream was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request's event stream was dropped")]
pub struct StreamDropped;

/// Sends the events of one request, each with the time at which it was sent.
#[derive(Clone, Debug)]
pub struct EventSender(UnboundedSender<(Instant, Event)>);

impl EventSender {
    /// Sends an event. Fails if the stream was dropped.
    pub fn send(&self, event: Event) -> Result<(), StreamDropped> {
        self.0.send((Instant::now(), event)).map_err(|_| StreamDropped)
    }

    /// Whether the stream was dropped.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Waits until the stream is dropped.
    pub async fn closed(&self) {
        self.0.closed().await;
    }
}

/// The events of one request, as they happen. The last one is [`Event::Finished`] or [`Event::Failed`].
///
/// Dropping the stream cancels the request: its pages are free before the next step.
#[derive(Debug)]
pub struct EventStream {
    events: UnboundedReceiver<(Instant, Event)>,
    finish_early: Arc<AtomicBool>,
    sent_at: Instant,
    ended: bool,
}

impl EventStream {
    /// A stream and its sender. `finish_early` is shared with the engine, to distinguish a stream dropped
    /// after enough tokens from a cancelled one.
    pub(crate) fn new(finish_early: Arc<AtomicBool>) -> (EventSender, Self) {
        let (sender, events) = unbounded_channel();
        (EventSender(sender), Self { events, finish_early, sent_at: Instant::now(), ended: false })
    }

    /// When the engine sent the last event that was received; before the first, when the request was
    /// submitted. Unlike the time of receipt, it does not depend on how fast the events are consumed.
    pub fn sent_at(&self) -> Instant {
        self.sent_at
    }

    /// Counts the request as finished rather than cancelled when this stream is dropped. For clients that end
    /// a completion themselves, for example at a stop string.
    pub fn finish_early(&self) {
        self.finish_early.store(true, Ordering::Relaxed);
    }

    /// The next event; `None` after the last.
    pub async fn next(&mut self) -> Option<Event> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// [`next`](Self::next) for hand-written futures.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let event = ready!(self.events.poll_recv(context));
        Poll::Ready(Some(self.received(event)))
    }

    /// [`next`](Self::next) for synchronous code. Panics within an async context.
    pub fn blocking_next(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let event = self.events.blocking_recv();
        Some(self.received(event))
    }

    fn received(&mut self, event: Option<(Instant, Event)>) -> Event {
        // The engine sends every stream a last event. A channel closed without one means that its thread has
        // panicked.
        let (sent_at, event) = event.unwrap_or_else(|| {
            let text = "the engine thread has ended unexpectedly: this is a bug; please report it";
            (Instant::now(), Event::Failed(RequestError::Internal(text.into())))
        });
        self.sent_at = sent_at;
        self.ended = event.is_last();
        event
    }
}
