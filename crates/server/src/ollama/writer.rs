//! Responses of `/api/chat` and `/api/generate`, from the parts of the output.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use text::Tokenizer;

use super::error::ErrorBody;
use super::request::Endpoint;
use super::response::{End, FunctionCall, Output, ToolCall};
use crate::access_log::LogEntry;
use crate::choice::ChoicePart;
use crate::error::Error;
use crate::openai::TokenLogprob;
use crate::output::OutputPart;
use crate::response::{Collector, EventWriter, line};

/// Writes a response, as one object or as lines.
pub(super) struct ResponseWriter {
    pub(super) endpoint: Endpoint,
    /// Name of the model, as the client wrote it.
    pub(super) model: String,
    pub(super) tokenizer: Tokenizer,
    pub(super) log: Arc<LogEntry>,
    /// The tool call that is not complete yet: its name and its arguments so far.
    call: Option<(String, String)>,
    /// What was not sent yet.
    output: Output,
    end: Option<End>,
}

impl ResponseWriter {
    pub(super) fn new(
        endpoint: Endpoint,
        model: String,
        tokenizer: Tokenizer,
        log: Arc<LogEntry>,
    ) -> ResponseWriter {
        ResponseWriter { endpoint, model, tokenizer, log, call: None, output: Output::default(), end: None }
    }

    fn add(&mut self, part: ChoicePart) {
        match part.part {
            OutputPart::Text(text, tokens) => {
                self.end_call();
                self.output.text.push_str(&text);
                let logprobs = tokens.iter().map(|token| TokenLogprob::new(token, &self.tokenizer));
                self.output.logprobs.extend(logprobs);
            }
            OutputPart::Reasoning(thinking) => {
                self.end_call();
                self.output.thinking.push_str(&thinking);
            }
            OutputPart::ToolCall { name } => {
                self.end_call();
                self.call = Some((name, String::new()));
            }
            OutputPart::Arguments(json) => {
                if let Some((_, arguments)) = &mut self.call {
                    arguments.push_str(&json);
                }
            }
            OutputPart::Finished { reason, usage, .. } => {
                self.end_call();
                self.end =
                    Some(End::new(reason, usage, &part.timing, self.log.started, self.log.load_time()));
            }
        }
    }

    /// Completes the last call. If its arguments were cut off, it is left out: it must not be executed.
    fn end_call(&mut self) {
        if let Some((name, arguments)) = self.call.take()
            && let Ok(arguments) = serde_json::from_str(&arguments)
        {
            self.output.tool_calls.push(ToolCall { function: FunctionCall { name, arguments } });
        }
    }

    /// What was not sent yet, as a line.
    fn line(&mut self) -> Bytes {
        let (output, end) = (std::mem::take(&mut self.output), self.end.take());
        match self.endpoint {
            Endpoint::Chat => line(&output.into_chat(&self.model, end)),
            Endpoint::Generate => line(&output.into_generated(&self.model, end)),
        }
    }
}

impl Collector for ResponseWriter {
    fn push(&mut self, part: ChoicePart) {
        self.add(part);
    }

    fn into_response(self) -> Response {
        let ResponseWriter { endpoint, model, output, end, .. } = self;
        match endpoint {
            Endpoint::Chat => Json(output.into_chat(&model, end)).into_response(),
            Endpoint::Generate => Json(output.into_generated(&model, end)).into_response(),
        }
    }
}

impl EventWriter<Bytes> for ResponseWriter {
    fn start(&mut self) -> Vec<Bytes> {
        vec![]
    }

    fn part(&mut self, part: ChoicePart) -> Vec<Bytes> {
        self.add(part);
        let mut lines = vec![];
        // The last line has no output.
        if !self.output.is_empty() {
            let end = self.end.take();
            lines.push(self.line());
            self.end = end;
        }
        if self.end.is_some() {
            lines.push(self.line());
        }
        lines
    }

    fn end(&mut self) -> Vec<Bytes> {
        vec![]
    }

    fn error(&mut self, error: &Error) -> Vec<Bytes> {
        vec![line(&ErrorBody::new(error))]
    }
}
