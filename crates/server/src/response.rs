//! Responses, for all protocols: one object, or a stream of server-sent events or lines.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
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

/// Writes the parts of all choices as a stream in the format of a protocol: server-sent events, or lines as bytes.
pub(crate) trait EventWriter<E = Event>: Send + 'static {
    /// Events before the first part.
    fn start(&mut self) -> Vec<E>;

    /// Events of a part.
    fn part(&mut self, part: ChoicePart) -> Vec<E>;

    /// Events after the last part.
    fn end(&mut self) -> Vec<E>;

    /// The last events of a stream that fails.
    fn error(&mut self, error: &Error) -> Vec<E>;

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
    pub(crate) fn stream(self, writer: impl EventWriter, config: &Config) -> Response {
        let keep_alive = writer.keep_alive().interval(config.keep_alive);
        let events = EventSource::new(self, writer).events();
        unbuffered(Sse::new(events).keep_alive(keep_alive).into_response())
    }

    /// Streams the choices as lines of JSON.
    pub(crate) fn stream_lines(self, writer: impl EventWriter<Bytes>) -> Response {
        lines(EventSource::new(self, writer).events())
    }
}

/// The media type of a stream of lines of JSON.
pub(crate) const NDJSON: &str = "application/x-ndjson";

/// A response with lines of JSON.
pub(crate) fn lines(lines: impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static) -> Response {
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(NDJSON));
    unbuffered(response)
}

/// An object as a line of JSON.
pub(crate) fn line(object: &impl Serialize) -> Bytes {
    let mut line = serde_json::to_vec(object).expect("response types serialise to JSON");
    line.push(b'\n');
    line.into()
}

/// nginx buffers responses unless they have this header.
fn unbuffered(mut response: Response) -> Response {
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The parts of several choices in order of arrival.
type Parts = SelectAll<BoxStream<'static, Result<ChoicePart, Error>>>;

fn merge_parts(choices: Vec<ChoiceStream>) -> Parts {
    stream::select_all(choices.into_iter().map(ChoiceStream::parts))
}

/// The events of a stream.
struct EventSource<W, E> {
    /// Events to send before the next part.
    queued: VecDeque<E>,
    parts: Parts,
    writer: W,
    log: Arc<LogEntry>,
    finished: bool,
}

impl<E: Send + 'static, W: EventWriter<E>> EventSource<W, E> {
    fn new(generation: Generation, mut writer: W) -> EventSource<W, E> {
        let Generation { choices, log, .. } = generation;
        let queued = writer.start().into();
        EventSource { queued, parts: merge_parts(choices), writer, log, finished: false }
    }

    fn events(self) -> impl Stream<Item = Result<E, Infallible>> + Send + 'static {
        stream::unfold(self, |mut source| async { source.next().await.map(|event| (Ok(event), source)) })
    }

    async fn next(&mut self) -> Option<E> {
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
