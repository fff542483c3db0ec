//! Responses, for all protocols: one object, or a stream of server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use engine::Usage;
use futures_util::stream::{self, BoxStream, SelectAll, Stream, StreamExt};
use serde::Serialize;

use crate::access_log::LogEntry;
use crate::choice::{ChoicePart, ChoiceStream};
use crate::config::Config;
use crate::error::Error;
use crate::models::Lease;

/// A request whose choices are being generated.
pub(crate) struct Generation {
    /// Id of the response.
    pub(crate) id: String,
    pub(crate) choices: Vec<ChoiceStream>,
    /// Text that each choice starts with.
    pub(crate) echoes: Vec<String>,
    /// Whether choices may contain tool calls.
    pub(crate) has_tools: bool,
    /// The model.
    pub(crate) served: Lease,
    pub(crate) log: Arc<LogEntry>,
}

/// Collects the parts of all choices into one response, in the format of a protocol.
pub(crate) trait Collector: Send {
    fn push(&mut self, part: ChoicePart);

    fn into_response(self) -> Response;
}

/// Writes the parts of all choices as server-sent events, in the format of a protocol.
pub(crate) trait EventWriter: Send + 'static {
    /// Events before the first part.
    fn start(&mut self) -> Vec<Event>;

    /// Events of a part.
    fn part(&mut self, part: ChoicePart) -> Vec<Event>;

    /// Events after the last part.
    fn end(&mut self) -> Vec<Event>;

    /// The last events of a stream that fails.
    fn error(&mut self, error: &Error) -> Vec<Event>;

    /// Sent while there are no new tokens; a comment by default.
    fn keep_alive(&self) -> KeepAlive {
        KeepAlive::new()
    }
}

impl Generation {
    /// Waits until the first choice is admitted. The others may be admitted only after it has finished.
    pub(crate) async fn wait_started(&mut self) -> Result<(), Error> {
        match self.choices.first_mut() {
            Some(choice) => choice.wait_started().await,
            None => Ok(()),
        }
    }

    /// Usage of the first choice so far.
    pub(crate) fn usage(&self) -> Usage {
        self.choices.first().map_or_else(Usage::default, |choice| choice.usage)
    }

    /// Collects all choices into one response.
    pub(crate) async fn collect(self, mut collector: impl Collector) -> Result<Response, Error> {
        let mut parts = merge_parts(self.choices);
        while let Some(part) = parts.next().await {
            collector.push(part?);
        }
        self.log.set_outcome("success");
        Ok(collector.into_response())
    }

    /// Streams the choices as server-sent events.
    pub(crate) fn stream(self, mut writer: impl EventWriter, config: &Config) -> Response {
        let keep_alive = writer.keep_alive().interval(config.keep_alive);
        let queued = writer.start().into();
        let source =
            EventSource { queued, parts: merge_parts(self.choices), writer, log: self.log, finished: false };
        let mut response = Sse::new(source.events()).keep_alive(keep_alive).into_response();
        // nginx buffers responses unless this header is set.
        response.headers_mut().insert("x-accel-buffering", "no".parse().expect("a valid header value"));
        response
    }
}

/// The parts of several choices in order of arrival.
type Parts = SelectAll<BoxStream<'static, Result<ChoicePart, Error>>>;

fn merge_parts(choices: Vec<ChoiceStream>) -> Parts {
    stream::select_all(choices.into_iter().map(ChoiceStream::parts))
}

/// The events of a stream.
struct EventSource<W> {
    /// Events to send before the next part.
    queued: VecDeque<Event>,
    parts: Parts,
    writer: W,
    log: Arc<LogEntry>,
    finished: bool,
}

impl<W: EventWriter> EventSource<W> {
    fn events(self) -> impl Stream<Item = Result<Event, Infallible>> + Send + 'static {
        stream::unfold(self, |mut source| async { source.next().await.map(|event| (Ok(event), source)) })
    }

    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.queued.pop_front() {
                return Some(event);
            }
            if self.finished {
                return None;
            }
            match self.parts.next().await {
                Some(Ok(part)) => self.queued.extend(self.writer.part(part)),
                Some(Err(error)) => {
                    // Cancels the other choices. The error is the end: clients must not mistake the stream for a
                    // complete one.
                    self.parts.clear();
                    self.finished = true;
                    self.log.set_outcome(error.code());
                    self.queued.extend(self.writer.error(&error));
                }
                None => {
                    self.finished = true;
                    self.log.set_outcome("success");
                    self.queued.extend(self.writer.end());
                }
            }
        }
    }
}

/// An event with this data.
pub(crate) fn event(data: &impl Serialize) -> Event {
    with_data(Event::default(), data)
}

/// An event with a name, which precedes the data.
pub(crate) fn named_event(name: &str, data: &impl Serialize) -> Event {
    with_data(Event::default().event(name), data)
}

fn with_data(event: Event, data: &impl Serialize) -> Event {
    event.json_data(data).expect("response types serialise to JSON")
}
