//! Answers on their way out: whole, or as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, BoxStream, SelectAll, Stream, StreamExt};
use serde::Serialize;
use text::Tokenizer;

use crate::choice::{Choice, Piece};
use crate::config::Config;
use crate::error::Error;
use crate::openai::{
    Call, CallDelta, CalledFunction, ChatChoice, ChatDelta, ChatLogprobs, ChatMessage, Delta, FunctionDelta,
    Head, Reply, TextChoice, TextLogprobs, ToolType, Usage,
};
use crate::prompt::Form;
use crate::record::{self, Record};
use crate::told::Told;

/// A request whose answers are being made.
pub(crate) struct Running {
    pub(crate) form: Form,
    pub(crate) head: Head,
    pub(crate) choices: Vec<Choice>,
    /// What each answer begins with.
    pub(crate) echoes: Vec<String>,
    /// How many answers there are to each prompt.
    pub(crate) n: u32,
    /// Whether answers may call tools.
    pub(crate) calls: bool,
    /// Names tokens whose probabilities are told.
    pub(crate) tokenizer: Tokenizer,
    pub(crate) record: Arc<Record>,
}

/// The usage of a request, answer by answer.
struct Tally {
    n: u32,
    usage: Usage,
    record: Arc<Record>,
}

impl Tally {
    fn add(&mut self, index: u32, usage: engine::Usage) {
        // A prompt counts once, however many answers it has.
        let first = index.is_multiple_of(self.n);
        self.usage.add(usage, first);
        if first {
            self.record.cached(usage.cached_tokens);
        }
    }
}

impl Running {
    /// Waits until the first of the answers is begun; the others may have to wait for it to end.
    pub(crate) async fn begun(&mut self) -> Result<(), Error> {
        match self.choices.first_mut() {
            Some(choice) => choice.begun().await,
            None => Ok(()),
        }
    }

    /// Waits for all answers.
    pub(crate) async fn whole(self) -> Result<Response, Error> {
        let Running { form, head, choices, echoes, n, tokenizer, record, .. } = self;
        let mut tally = Tally { n, usage: Usage::default(), record: record.clone() };
        let tells = choices.iter().any(|choice| choice.said.tells());
        let begin = |text| Whole { text, calls: vec![], told: tells.then(Vec::new), reason: "" };
        let mut answers: Vec<Whole> = echoes.into_iter().map(begin).collect();
        let mut pieces = pieces(choices);
        while let Some((index, piece)) = pieces.next().await {
            let answer = &mut answers[index as usize];
            match piece {
                Piece::Text(text, told) => {
                    answer.text.push_str(&text);
                    answer.told.iter_mut().for_each(|all| all.extend_from_slice(&told));
                }
                Piece::Call { name } => answer.calls.push(called(name)),
                Piece::Arguments(text) => {
                    answer.calls.iter_mut().last().expect("it was begun").function.arguments.push_str(&text);
                }
                Piece::Ended { reason, usage } => {
                    answer.reason = reason;
                    tally.add(index, usage);
                }
                Piece::Failed(error) => return Err(error),
            }
        }
        record.outcome("success");
        let answers = answers.into_iter().zip(0..);
        let usage = Some(Some(tally.usage));
        Ok(match form {
            Form::Chat => {
                let choice = |(Whole { text, calls, told, reason }, index)| ChatChoice {
                    index,
                    message: ChatMessage {
                        role: "assistant",
                        // Who calls tools need not say anything.
                        content: Some(text).filter(|text| calls.is_empty() || !text.is_empty()),
                        tool_calls: calls,
                        refusal: None,
                    },
                    logprobs: told.map(|told| ChatLogprobs::new(&told, &tokenizer)),
                    finish_reason: reason,
                };
                Json(Reply::new(&head, "chat.completion", answers.map(choice).collect(), usage))
                    .into_response()
            }
            Form::Text => {
                let choice = |(Whole { text, told, reason, .. }, index)| TextChoice {
                    index,
                    text,
                    logprobs: told.map(|told| TextLogprobs::new(&told, &tokenizer)),
                    finish_reason: Some(reason),
                };
                Json(Reply::new(&head, "text_completion", answers.map(choice).collect(), usage))
                    .into_response()
            }
        })
    }

    /// Sends pieces as they come; with the usage at the end where `usage` says so.
    pub(crate) fn stream(self, usage: bool, config: &Config) -> Response {
        let keep_alive = KeepAlive::new().interval(config.keep_alive);
        let mut response = Sse::new(self.events(usage)).keep_alive(keep_alive).into_response();
        // Proxies that collect a response before they pass it on are told not to.
        response.headers_mut().insert("x-accel-buffering", "no".parse().expect("plain text"));
        response
    }

    fn events(self, usage: bool) -> impl Stream<Item = Result<Event, Infallible>> + Send + 'static {
        let Running { form, head, choices, echoes, n, calls, tokenizer, record } = self;
        let chunks = Chunks { form, head, tokenizer, usage, calls };
        let first = |(echo, index): (String, u32)| chunks.first(index, echo);
        let out = Out {
            waiting: echoes.into_iter().zip(0..).filter_map(first).collect(),
            tally: Tally { n, usage: Usage::default(), record: record.clone() },
            calls: vec![0; choices.len()],
            pieces: pieces(choices),
            chunks,
            record,
            over: false,
        };
        stream::unfold(out, |mut out| async { out.next().await.map(|event| (Ok(event), out)) })
    }
}

/// An answer that is being put together.
struct Whole {
    text: String,
    calls: Vec<Call>,
    /// Where probabilities were asked for.
    told: Option<Vec<Told>>,
    reason: &'static str,
}

fn pieces(choices: Vec<Choice>) -> SelectAll<BoxStream<'static, (u32, Piece)>> {
    stream::select_all(choices.into_iter().map(Choice::pieces))
}

/// A call that begins.
fn called(name: String) -> Call {
    let function = CalledFunction { name, arguments: String::new() };
    Call { id: format!("call_{}", record::name()), r#type: ToolType::Function, function }
}

/// A stream that is being sent.
struct Out {
    /// Events that come before the next piece.
    waiting: VecDeque<Event>,
    pieces: SelectAll<BoxStream<'static, (u32, Piece)>>,
    chunks: Chunks,
    /// Calls that each answer has begun.
    calls: Vec<u32>,
    tally: Tally,
    record: Arc<Record>,
    over: bool,
}

impl Out {
    async fn next(&mut self) -> Option<Event> {
        if let Some(event) = self.waiting.pop_front() {
            return Some(event);
        }
        if self.over {
            return None;
        }
        Some(match self.pieces.next().await {
            Some((index, Piece::Text(text, told))) => self.chunks.text(index, text, &told),
            Some((index, Piece::Call { name })) => {
                let count = &mut self.calls[index as usize];
                *count += 1;
                let Call { id, r#type, function } = called(name);
                let function = FunctionDelta { name: Some(function.name), arguments: function.arguments };
                let call = CallDelta { index: *count - 1, id: Some(id), r#type: Some(r#type), function };
                self.chunks.call(index, call)
            }
            Some((index, Piece::Arguments(arguments))) => {
                let function = FunctionDelta { name: None, arguments };
                let call = self.calls[index as usize].saturating_sub(1);
                self.chunks.call(index, CallDelta { index: call, id: None, r#type: None, function })
            }
            Some((index, Piece::Ended { reason, usage })) => {
                self.tally.add(index, usage);
                self.chunks.end(index, reason)
            }
            Some((_, Piece::Failed(error))) => {
                // The other answers go with it; no [DONE], so that nobody takes what there is for the whole.
                self.pieces.clear();
                self.over = true;
                self.record.outcome(error.code());
                event(&error.body())
            }
            None => {
                self.over = true;
                self.record.outcome("success");
                let done = Event::default().data("[DONE]");
                if !self.chunks.usage {
                    return Some(done);
                }
                self.waiting.push_back(done);
                self.chunks.usage(self.tally.usage)
            }
        })
    }
}

fn event(data: &impl Serialize) -> Event {
    Event::default().json_data(data).expect("names and numbers are JSON")
}

/// Writes the chunks of a stream.
struct Chunks {
    form: Form,
    head: Head,
    tokenizer: Tokenizer,
    /// Whether chunks have a usage.
    usage: bool,
    /// Whether answers may call tools.
    calls: bool,
}

impl Chunks {
    /// What a choice begins with: its role, or the prompt where that is echoed.
    fn first(&self, index: u32, echo: String) -> Option<Event> {
        match self.form {
            Form::Chat => {
                // Who calls tools need not say anything.
                let content = (!self.calls).then(String::new);
                let delta = Delta { role: Some("assistant"), content, ..Delta::default() };
                Some(self.chat(index, delta, &[], None))
            }
            Form::Text if echo.is_empty() => None,
            Form::Text => Some(self.text(index, echo, &[])),
        }
    }

    fn text(&self, index: u32, text: String, told: &[Told]) -> Event {
        match self.form {
            Form::Chat => self.chat(index, Delta { content: Some(text), ..Delta::default() }, told, None),
            Form::Text => self.completion(index, text, told, None),
        }
    }

    fn call(&self, index: u32, call: CallDelta) -> Event {
        self.chat(index, Delta { tool_calls: Some(vec![call]), ..Delta::default() }, &[], None)
    }

    fn end(&self, index: u32, reason: &'static str) -> Event {
        match self.form {
            Form::Chat => self.chat(index, Delta::default(), &[], Some(reason)),
            Form::Text => self.completion(index, String::new(), &[], Some(reason)),
        }
    }

    fn usage(&self, usage: Usage) -> Event {
        let object = match self.form {
            Form::Chat => "chat.completion.chunk",
            Form::Text => "text_completion",
        };
        event(&Reply::<()>::new(&self.head, object, vec![], Some(Some(usage))))
    }

    fn chat(&self, index: u32, delta: Delta, told: &[Told], finish_reason: Option<&'static str>) -> Event {
        let logprobs = (!told.is_empty()).then(|| ChatLogprobs::new(told, &self.tokenizer));
        let choice = ChatDelta { index, delta, logprobs, finish_reason };
        event(&Reply::new(&self.head, "chat.completion.chunk", vec![choice], self.usage.then_some(None)))
    }

    fn completion(
        &self,
        index: u32,
        text: String,
        told: &[Told],
        finish_reason: Option<&'static str>,
    ) -> Event {
        let logprobs = (!told.is_empty()).then(|| TextLogprobs::new(told, &self.tokenizer));
        let choice = TextChoice { index, text, logprobs, finish_reason };
        event(&Reply::new(&self.head, "text_completion", vec![choice], self.usage.then_some(None)))
    }
}
