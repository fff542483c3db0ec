//! Responses of `POST /v1/responses`: one object, or a stream of events. Both are stored before their client sees the
//! end, so that the next request may refer to them.

use std::sync::Arc;

use axum::Json;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};

use super::builder::ResponseBuilder;
use super::events::{EventKind, StreamEvent};
use super::response::{ResponseObject, Status};
use super::store::{Owner, StoredResponse};
use crate::choice::ChoicePart;
use crate::error::Error;
use crate::output::OutputPart;
use crate::response::{self, Collector, EventWriter};
use crate::state::AppState;

/// Stores a response at its end.
pub(super) struct Recorder {
    pub(super) app: Arc<AppState>,
    pub(super) owner: Owner,
    /// The request of the response.
    pub(super) stored: StoredResponse,
}

impl Recorder {
    fn record(&mut self, response: &ResponseObject) {
        let store = &self.app.responses;
        if response.settings.background {
            store.finish(&self.owner, response.clone());
        } else if response.settings.store {
            let mut stored = self.stored.clone();
            stored.response = response.clone();
            store.insert(self.owner, stored, None);
        }
    }
}

/// Collects a response.
pub(super) struct ResponseCollector {
    pub(super) builder: ResponseBuilder,
    pub(super) recorder: Recorder,
}

impl Collector for ResponseCollector {
    fn push(&mut self, part: ChoicePart) {
        self.builder.push(part.part, &mut |_| {});
    }

    fn into_response(mut self) -> Response {
        let response = self.builder.into_response();
        self.recorder.record(&response);
        Json(response).into_response()
    }
}

/// Writes the events of a stream.
pub(super) struct ResponseWriter {
    builder: ResponseBuilder,
    recorder: Recorder,
    /// Number of the next event.
    next: u64,
}

impl ResponseWriter {
    pub(super) fn new(builder: ResponseBuilder, recorder: Recorder) -> ResponseWriter {
        ResponseWriter { builder, recorder, next: 0 }
    }
}

/// An event with its number.
fn numbered(kind: EventKind<'_>, next: &mut u64) -> Event {
    let (name, event) = (kind.name(), StreamEvent { kind, sequence_number: *next });
    *next += 1;
    response::named_event(name, &event)
}

impl EventWriter for ResponseWriter {
    fn start(&mut self) -> Vec<Event> {
        let response = self.builder.response();
        vec![
            numbered(EventKind::Created { response }, &mut self.next),
            numbered(EventKind::InProgress { response }, &mut self.next),
        ]
    }

    fn part(&mut self, part: ChoicePart) -> Vec<Event> {
        let is_last = matches!(part.part, OutputPart::Finished { .. });
        let (mut events, next) = (Vec::new(), &mut self.next);
        self.builder.push(part.part, &mut |kind| events.push(numbered(kind, next)));
        if is_last {
            let response = self.builder.response();
            self.recorder.record(response);
            let kind = match response.status {
                Status::Completed => EventKind::Completed { response },
                _ => EventKind::Incomplete { response },
            };
            events.push(numbered(kind, &mut self.next));
        }
        events
    }

    fn end(&mut self) -> Vec<Event> {
        vec![]
    }

    fn error(&mut self, error: &Error) -> Vec<Event> {
        self.builder.fail(error);
        let response = self.builder.response();
        self.recorder.record(response);
        let (code, message, param) = (error.code(), error.to_string(), error.param());
        vec![
            numbered(EventKind::Error { code, message, param }, &mut self.next),
            numbered(EventKind::Failed { response }, &mut self.next),
        ]
    }
}
