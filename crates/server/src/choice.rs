//! One choice of a request: turns the engine's events into output parts.

use std::sync::Arc;
use std::time::Instant;

use engine::{Event, EventStream, FinishReason, RequestError, Usage};
use futures_util::stream::{self, BoxStream, StreamExt};
use text::Detokenizer;

use crate::access_log::LogEntry;
use crate::error::Error;
use crate::output::{OutputParser, OutputPart};

/// A choice that is being generated.
pub(crate) struct ChoiceStream {
    /// Index among the request's choices.
    pub(crate) index: u32,
    pub(crate) events: EventStream,
    pub(crate) detokenizer: Detokenizer,
    pub(crate) output: OutputParser,
    pub(crate) usage: Usage,
    pub(crate) deadline: Instant,
    pub(crate) log: Arc<LogEntry>,
}

impl ChoiceStream {
    /// The parts of the choice, each with the choice's index. Dropping the stream cancels the engine's request.
    pub(crate) fn parts(self) -> BoxStream<'static, (u32, OutputPart)> {
        let index = self.index;
        stream::unfold(Some(Box::new(self)), move |choice| async move {
            let mut choice = choice?;
            while choice.output.is_empty() {
                choice.advance().await;
            }
            let part = choice.output.pop()?;
            let last = matches!(part, OutputPart::Finished { .. } | OutputPart::Failed(_));
            Some(((index, part), (!last).then_some(choice)))
        })
        .boxed()
    }

    /// Waits until the engine has admitted the request.
    pub(crate) async fn wait_started(&mut self) -> Result<(), Error> {
        match self.events.next().await {
            Some(Event::Started { cached_tokens }) => {
                self.usage.cached_tokens = cached_tokens;
                Ok(())
            }
            Some(Event::Failed(error)) => Err(self.error(error)),
            other => {
                let unexpected = format!("unexpected first event of a request: {other:?}");
                Err(self.error(RequestError::Internal(unexpected)))
            }
        }
    }

    /// The error for the client. Internal details are logged instead.
    fn error(&self, error: RequestError) -> Error {
        match error {
            RequestError::Grammar(reason) => Error::Grammar { param: self.output.constraint_field(), reason },
            RequestError::Internal(details) => {
                self.log.span.in_scope(|| tracing::error!(%details, "request failed"));
                Error::Internal
            }
            error => error.into(),
        }
    }

    /// Handles the next event, which may complete no part, one or several.
    async fn advance(&mut self) {
        let next = tokio::time::timeout_at(self.deadline.into(), self.events.next()).await;
        let event = match next {
            Ok(Some(event)) => event,
            Ok(None) => {
                let ended = "the event stream ended without a final event".to_owned();
                Event::Failed(RequestError::Internal(ended))
            }
            Err(_) => Event::Failed(RequestError::DeadlineExceeded),
        };
        match event {
            Event::Started { cached_tokens } => self.usage.cached_tokens = cached_tokens,
            Event::Token(token) => {
                self.usage.completion_tokens += 1;
                self.log.add_token();
                let text = self.detokenizer.push(token.id);
                self.output.push_token(token, &text);
                if self.output.is_stopped() {
                    self.events.finish_early();
                    self.finish("stop", self.usage);
                }
            }
            Event::Finished { reason, usage } => {
                let mut incomplete = String::new();
                self.detokenizer.finish_to(&mut incomplete);
                self.output.push_text(&incomplete);
                self.output.finish();
                let reason = match reason {
                    _ if self.output.is_stopped() => "stop",
                    FinishReason::Stop if self.output.call_count() > 0 => "tool_calls",
                    FinishReason::Stop => "stop",
                    _ => "length",
                };
                self.finish(reason, usage);
            }
            Event::Failed(error) => {
                let failed = OutputPart::Failed(self.error(error));
                self.output.push_last(failed);
            }
        }
    }

    fn finish(&mut self, reason: &'static str, usage: Usage) {
        self.log.add_tool_calls(self.output.call_count());
        self.output.push_last(OutputPart::Finished { reason, usage });
    }
}
