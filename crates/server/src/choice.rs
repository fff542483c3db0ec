//! One choice of a request: turns the engine's events into output parts.

use std::sync::Arc;
use std::time::Instant;

use engine::{Event, EventStream, FinishReason, RequestError, Token, Usage};
use futures_util::stream::{self, BoxStream, StreamExt};
use text::Detokenizer;
use tokio::sync::OwnedSemaphorePermit;

use crate::access_log::LogEntry;
use crate::emitted;
use crate::error::Error;
use crate::models::Lease;
use crate::output::{OutputParser, OutputPart, StopReason};
use crate::timing::{EventTimes, Timing};

/// A part of one of the choices.
pub(crate) struct ChoicePart {
    /// Index among the request's choices.
    pub(crate) index: u32,
    pub(crate) part: OutputPart,
    /// Timing of the choice so far.
    pub(crate) timing: Timing,
}

/// A choice that is being generated.
pub(crate) struct ChoiceStream {
    /// Index among the request's choices.
    pub(crate) index: u32,
    pub(crate) events: EventStream,
    pub(crate) detokenizer: Detokenizer,
    pub(crate) output: OutputParser,
    /// The prompt, if it is echoed with its log probabilities; taken when they are complete.
    pub(crate) echo: Option<Echo>,
    pub(crate) usage: Usage,
    /// Whether the tokens of the prompt count: those of several choices count once.
    pub(crate) counts_prompt: bool,
    /// Why the choice failed.
    pub(crate) failure: Option<Error>,
    pub(crate) times: EventTimes,
    /// Sum of the tokens' logprobs.
    pub(crate) logprob_sum: f64,
    pub(crate) deadline: Instant,
    pub(crate) log: Arc<LogEntry>,
    /// Memory of the images in the prompt, which all choices share.
    #[allow(dead_code, reason = "held until the choice is complete")]
    pub(crate) image_memory: Option<Arc<OwnedSemaphorePermit>>,
    #[allow(dead_code, reason = "keeps the model loaded until the choice is complete")]
    pub(crate) served: Lease,
}

/// A prompt whose log probabilities are reported.
pub(crate) struct Echo {
    pub(crate) text: String,
    /// Its first token.
    pub(crate) first: u32,
    /// The others, as far as the engine has reported them.
    pub(crate) tokens: Vec<Token>,
    pub(crate) detokenizer: Detokenizer,
}

impl ChoiceStream {
    /// The parts of the choice, each with the choice's index and its timing so far; an error is the last item. Dropping
    /// the stream cancels the engine's request.
    pub(crate) fn parts(self) -> BoxStream<'static, Result<ChoicePart, Error>> {
        let index = self.index;
        stream::unfold(Some(Box::new(self)), move |choice| async move {
            let mut choice = choice?;
            while choice.output.is_empty() && choice.failure.is_none() {
                choice.advance().await;
            }
            let Some(part) = choice.output.pop() else { return Some((Err(choice.failure?), None)) };
            let last = matches!(part, OutputPart::Finished { .. });
            let timing = Timing::new(choice.usage, &choice.times);
            Some((Ok(ChoicePart { index, part, timing }), (!last).then_some(choice)))
        })
        .boxed()
    }

    /// Waits until the engine has admitted the request.
    pub(crate) async fn wait_started(&mut self) -> Result<(), Error> {
        match self.events.next().await {
            Some(Event::Started { cached_tokens }) => {
                self.started(cached_tokens);
                Ok(())
            }
            Some(Event::Failed(error)) => Err(self.error(error)),
            other => {
                let unexpected = format!("unexpected first event of a request: {other:?}");
                Err(self.error(RequestError::Internal(unexpected)))
            }
        }
    }

    /// The engine has admitted the request.
    fn started(&mut self, cached_tokens: u32) {
        self.usage.cached_tokens = cached_tokens;
        self.times.started = Some(self.events.sent_at());
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
            Event::Started { cached_tokens } => self.started(cached_tokens),
            Event::PromptTokens(tokens) => {
                self.echo.iter_mut().for_each(|echo| echo.tokens.extend_from_slice(&tokens));
            }
            Event::Token(token) => {
                self.push_echo();
                self.usage.completion_tokens += 1;
                self.times.token(self.events.sent_at());
                self.logprob_sum += f64::from(emitted::clamp(token.logprob));
                self.log.add_token();
                let text = self.detokenizer.push(token.id);
                self.output.push_token(token, &text);
                if let Some(index) = self.output.stop_string() {
                    self.events.finish_early();
                    self.finish(StopReason::StopString(index), self.usage);
                }
            }
            Event::Finished { reason, usage } => {
                self.times.end(self.events.sent_at());
                self.push_echo();
                let mut incomplete = String::new();
                self.detokenizer.finish_to(&mut incomplete);
                self.output.push_text(&incomplete);
                self.output.finish();
                let reason = match (self.output.stop_string(), reason) {
                    (Some(index), _) => StopReason::StopString(index),
                    (None, FinishReason::Stop) if self.output.call_count() > 0 => StopReason::ToolCalls,
                    (None, FinishReason::Stop) => StopReason::EndOfTurn,
                    (None, FinishReason::MaxTokens | FinishReason::ContextLength) => StopReason::Length,
                };
                self.finish(reason, usage);
            }
            Event::Failed(error) => self.failure = Some(self.error(error)),
        }
    }

    /// Adds the echoed prompt, once all of its log probabilities are known.
    fn push_echo(&mut self) {
        if let Some(Echo { text, first, tokens, detokenizer }) = self.echo.take() {
            self.output.push_prompt(text, first, tokens, detokenizer);
        }
    }

    fn finish(&mut self, reason: StopReason, usage: Usage) {
        if self.counts_prompt {
            self.log.add_cached_tokens(usage.cached_tokens);
        }
        self.log.add_tool_calls(self.output.call_count());
        // An empty completion has no mean: it is worse than any other.
        let mean_logprob = match self.usage.completion_tokens {
            0 => f64::NEG_INFINITY,
            tokens => self.logprob_sum / f64::from(tokens),
        };
        let reasoning_tokens = self.output.reasoning_tokens();
        self.output.push_last(OutputPart::Finished { reason, usage, reasoning_tokens, mean_logprob });
    }
}
