//! Responses: one JSON object, or a stream of server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, BoxStream, SelectAll, Stream, StreamExt};
use serde::Serialize;
use text::Tokenizer;

use crate::access_log::LogEntry;
use crate::choice::{ChoicePart, ChoiceStream};
use crate::config::Config;
use crate::emitted::EmittedToken;
use crate::error::Error;
use crate::openai::{
    AssistantMessage, ChatChoice, ChatChunkChoice, ChatLogprobs, Completion, Delta, FunctionCall,
    FunctionCallDelta, ResponseHead, TextChoice, TextLogprobs, Timings, ToolCall, ToolCallDelta, ToolType,
    Usage, UsageCost,
};
use crate::output::OutputPart;
use crate::random;
use crate::request::Endpoint;
use crate::timing::Timing;

/// A request whose choices are being generated.
pub(crate) struct Generation {
    pub(crate) endpoint: Endpoint,
    pub(crate) head: ResponseHead,
    pub(crate) choices: Vec<ChoiceStream>,
    /// Text that each choice starts with.
    pub(crate) echoes: Vec<String>,
    /// Choices per prompt in the response.
    pub(crate) n: u32,
    /// Choices per prompt that are generated: the best `n` of them are returned.
    pub(crate) candidates: u32,
    /// Whether the response contains timings.
    pub(crate) timings: bool,
    /// Whether choices may contain tool calls.
    pub(crate) has_tools: bool,
    /// Gives the text of tokens in logprobs.
    pub(crate) tokenizer: Tokenizer,
    pub(crate) log: Arc<LogEntry>,
}

/// Sums of the usage and the timing of all choices.
struct UsageTotal {
    candidates: u32,
    /// Whether what the tokens cost is part of the usage.
    detailed: bool,
    usage: Usage,
    /// Unknown if that of a choice is.
    joules: Option<f64>,
    decode_bytes: u64,
    decode_tokens: u64,
    timing: Timing,
    log: Arc<LogEntry>,
}

impl UsageTotal {
    fn new(candidates: u32, detailed: bool, log: Arc<LogEntry>) -> UsageTotal {
        let (usage, timing) = (Usage::default(), Timing::default());
        UsageTotal {
            candidates,
            detailed,
            usage,
            joules: Some(0.0),
            decode_bytes: 0,
            decode_tokens: 0,
            timing,
            log,
        }
    }

    fn usage(&self) -> Usage {
        let tokens = self.timing.generated_tokens;
        let cost = || UsageCost::new(self.joules, tokens, self.decode_bytes, self.decode_tokens);
        self.usage.with_cost(self.detailed.then(cost))
    }

    fn add(&mut self, index: u32, usage: engine::Usage, reasoning_tokens: Option<u32>, timing: Timing) {
        // A prompt counts once, with its first choice.
        let first = index.is_multiple_of(self.candidates);
        self.usage.add(usage, first, reasoning_tokens);
        self.timing += timing;
        self.joules = self.joules.zip(usage.joules).map(|(sum, joules)| sum + joules);
        self.decode_bytes += usage.decode_bytes;
        self.decode_tokens += u64::from(usage.decode_tokens);
        if first {
            self.log.add_cached_tokens(usage.cached_tokens);
        }
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

    /// Collects all choices into one response.
    pub(crate) async fn into_response(self) -> Result<Response, Error> {
        let Generation { endpoint, head, choices, echoes, n, candidates, timings, tokenizer, log, .. } = self;
        let mut total = UsageTotal::new(candidates, timings, log.clone());
        let logprobs = choices.iter().any(|choice| choice.output.has_logprobs());
        let empty = |text| CollectedChoice {
            text,
            reasoning: String::new(),
            tool_calls: vec![],
            tokens: logprobs.then(Vec::new),
            finish_reason: "",
            mean_logprob: 0.0,
        };
        let mut finished: Vec<CollectedChoice> = echoes.into_iter().map(empty).collect();
        let mut parts = merge_parts(choices);
        while let Some(ChoicePart { index, part, timing }) = parts.next().await {
            let choice = &mut finished[index as usize];
            match part {
                OutputPart::Text(text, tokens) => {
                    choice.text.push_str(&text);
                    choice.tokens.iter_mut().for_each(|all| all.extend_from_slice(&tokens));
                }
                OutputPart::Reasoning(text) => choice.reasoning.push_str(&text),
                OutputPart::ToolCall { name } => choice.tool_calls.push(new_tool_call(name)),
                OutputPart::Arguments(text) => {
                    let call = choice.tool_calls.last_mut().expect("arguments follow the start of a call");
                    call.function.arguments.push_str(&text);
                }
                OutputPart::Finished { reason, usage, reasoning_tokens, mean_logprob } => {
                    choice.finish_reason = reason;
                    choice.mean_logprob = mean_logprob;
                    total.add(index, usage, reasoning_tokens, timing);
                }
                OutputPart::Failed(error) => return Err(error),
            }
        }
        log.set_outcome("success");
        let finished = select_best(finished, candidates as usize, n as usize).into_iter().zip(0..);
        let usage = Some(Some(total.usage()));
        let timings = timings.then(|| total.timing.into());
        Ok(match endpoint {
            Endpoint::Chat => {
                let choices = finished.map(|(choice, index)| choice.into_chat(index, &tokenizer)).collect();
                let completion = Completion::new(&head, "chat.completion", choices, usage);
                Json(completion.with_timings(timings)).into_response()
            }
            Endpoint::Completions => {
                let choices = finished.map(|(choice, index)| choice.into_text(index, &tokenizer)).collect();
                let completion = Completion::new(&head, "text_completion", choices, usage);
                Json(completion.with_timings(timings)).into_response()
            }
        })
    }

    /// Streams the choices as server-sent events.
    pub(crate) fn into_stream(self, include_usage: bool, config: &Config) -> Response {
        let keep_alive = KeepAlive::new().interval(config.keep_alive);
        let mut response = Sse::new(self.events(include_usage)).keep_alive(keep_alive).into_response();
        // nginx buffers responses unless this header is set.
        response.headers_mut().insert("x-accel-buffering", "no".parse().expect("a valid header value"));
        response
    }

    fn events(self, include_usage: bool) -> impl Stream<Item = Result<Event, Infallible>> + Send + 'static {
        let Generation { endpoint, head, choices, echoes, candidates, has_tools, tokenizer, log, .. } = self;
        let chunks = ChunkWriter { endpoint, head, tokenizer, include_usage, has_tools, timings: None };
        let first = |(echo, index): (String, u32)| chunks.first(index, echo);
        let source = EventSource {
            queued: echoes.into_iter().zip(0..).filter_map(first).collect(),
            total: UsageTotal::new(candidates, self.timings, log.clone()),
            timings: self.timings,
            call_counts: vec![0; choices.len()],
            parts: merge_parts(choices),
            chunks,
            log,
            finished: false,
        };
        stream::unfold(source, |mut source| async { source.next().await.map(|event| (Ok(event), source)) })
    }
}

/// A choice collected for a non-streaming response.
struct CollectedChoice {
    text: String,
    /// The thinking.
    reasoning: String,
    tool_calls: Vec<ToolCall>,
    /// If logprobs were requested.
    tokens: Option<Vec<EmittedToken>>,
    finish_reason: &'static str,
    mean_logprob: f64,
}

impl CollectedChoice {
    fn into_chat(self, index: u32, tokenizer: &Tokenizer) -> ChatChoice {
        let CollectedChoice { text, reasoning, tool_calls, tokens, finish_reason, .. } = self;
        // `content` is null for a message that only calls tools.
        let content = Some(text).filter(|text| tool_calls.is_empty() || !text.is_empty());
        let logprobs = tokens.map(|tokens| ChatLogprobs::new(&tokens, tokenizer));
        let reasoning_content = Some(reasoning).filter(|reasoning| !reasoning.is_empty());
        let message =
            AssistantMessage { role: "assistant", content, reasoning_content, tool_calls, refusal: None };
        ChatChoice { index, message, logprobs, finish_reason }
    }

    fn into_text(self, index: u32, tokenizer: &Tokenizer) -> TextChoice {
        let CollectedChoice { text, tokens, finish_reason, .. } = self;
        let logprobs = tokens.map(|tokens| TextLogprobs::new(&tokens, tokenizer));
        TextChoice { index, text, logprobs, finish_reason: Some(finish_reason) }
    }
}

/// Of every `candidates` choices the `n` with the highest mean logprob, the best one first.
fn select_best(choices: Vec<CollectedChoice>, candidates: usize, n: usize) -> Vec<CollectedChoice> {
    if candidates == n {
        return choices;
    }
    let (mut choices, mut selected) = (choices.into_iter(), Vec::new());
    while choices.len() > 0 {
        let mut group: Vec<CollectedChoice> = choices.by_ref().take(candidates).collect();
        group.sort_by(|a, b| b.mean_logprob.total_cmp(&a.mean_logprob));
        selected.extend(group.into_iter().take(n));
    }
    selected
}

/// Merges the parts of all choices in order of arrival.
fn merge_parts(choices: Vec<ChoiceStream>) -> SelectAll<BoxStream<'static, ChoicePart>> {
    stream::select_all(choices.into_iter().map(ChoiceStream::parts))
}

/// A tool call with a new id, still without arguments.
fn new_tool_call(name: String) -> ToolCall {
    let function = FunctionCall { name, arguments: String::new() };
    ToolCall { id: format!("call_{}", random::id()), r#type: ToolType::Function, function }
}

/// The events of a stream.
struct EventSource {
    /// Events to send before the next part.
    queued: VecDeque<Event>,
    parts: SelectAll<BoxStream<'static, ChoicePart>>,
    chunks: ChunkWriter,
    /// Whether chunks contain timings.
    timings: bool,
    /// Tool calls started by each choice.
    call_counts: Vec<u32>,
    total: UsageTotal,
    log: Arc<LogEntry>,
    finished: bool,
}

impl EventSource {
    async fn next(&mut self) -> Option<Event> {
        if let Some(event) = self.queued.pop_front() {
            return Some(event);
        }
        if self.finished {
            return None;
        }
        let next = self.parts.next().await;
        let timing = next.as_ref().map_or(self.total.timing, |next| next.timing);
        self.chunks.timings = self.timings.then(|| timing.into());
        Some(match next.map(|next| (next.index, next.part)) {
            Some((index, OutputPart::Text(text, tokens))) => self.chunks.text(index, text, &tokens),
            Some((index, OutputPart::Reasoning(text))) => self.chunks.reasoning(index, text),
            Some((index, OutputPart::ToolCall { name })) => {
                let count = &mut self.call_counts[index as usize];
                *count += 1;
                let ToolCall { id, r#type, function } = new_tool_call(name);
                let function = FunctionCallDelta { name: Some(function.name), arguments: function.arguments };
                let call = ToolCallDelta { index: *count - 1, id: Some(id), r#type: Some(r#type), function };
                self.chunks.tool_call(index, call)
            }
            Some((index, OutputPart::Arguments(arguments))) => {
                let function = FunctionCallDelta { name: None, arguments };
                let call = self.call_counts[index as usize].saturating_sub(1);
                self.chunks.tool_call(index, ToolCallDelta { index: call, id: None, r#type: None, function })
            }
            Some((index, OutputPart::Finished { reason, usage, reasoning_tokens, .. })) => {
                self.total.add(index, usage, reasoning_tokens, timing);
                self.chunks.finish(index, reason)
            }
            Some((_, OutputPart::Failed(error))) => {
                // Cancels the other choices. No [DONE]: clients must not mistake the stream for a complete one.
                self.parts.clear();
                self.finished = true;
                self.log.set_outcome(error.code());
                event(&error.body())
            }
            None => {
                self.finished = true;
                self.log.set_outcome("success");
                let done = Event::default().data("[DONE]");
                if !self.chunks.include_usage {
                    return Some(done);
                }
                self.queued.push_back(done);
                self.chunks.usage(self.total.usage())
            }
        })
    }
}

fn event(data: &impl Serialize) -> Event {
    Event::default().json_data(data).expect("response types serialise to JSON")
}

/// Writes the chunks of a stream.
struct ChunkWriter {
    endpoint: Endpoint,
    head: ResponseHead,
    tokenizer: Tokenizer,
    /// Whether chunks have a `usage` field.
    include_usage: bool,
    /// Whether choices may contain tool calls.
    has_tools: bool,
    /// Timings of the next chunk.
    timings: Option<Timings>,
}

impl ChunkWriter {
    /// First chunk of a choice: the role in a chat, the echoed prompt in a text completion.
    fn first(&self, index: u32, echo: String) -> Option<Event> {
        match self.endpoint {
            Endpoint::Chat => {
                // A message that only calls tools has no content, so it must not start with an empty one.
                let content = (!self.has_tools).then(String::new);
                let delta = Delta { role: Some("assistant"), content, ..Delta::default() };
                Some(self.chat(index, delta, &[], None))
            }
            Endpoint::Completions if echo.is_empty() => None,
            Endpoint::Completions => Some(self.text(index, echo, &[])),
        }
    }

    fn text(&self, index: u32, text: String, tokens: &[EmittedToken]) -> Event {
        match self.endpoint {
            Endpoint::Chat => {
                self.chat(index, Delta { content: Some(text), ..Delta::default() }, tokens, None)
            }
            Endpoint::Completions => self.completion(index, text, tokens, None),
        }
    }

    fn reasoning(&self, index: u32, text: String) -> Event {
        self.chat(index, Delta { reasoning_content: Some(text), ..Delta::default() }, &[], None)
    }

    fn tool_call(&self, index: u32, call: ToolCallDelta) -> Event {
        self.chat(index, Delta { tool_calls: Some(vec![call]), ..Delta::default() }, &[], None)
    }

    fn finish(&self, index: u32, reason: &'static str) -> Event {
        match self.endpoint {
            Endpoint::Chat => self.chat(index, Delta::default(), &[], Some(reason)),
            Endpoint::Completions => self.completion(index, String::new(), &[], Some(reason)),
        }
    }

    fn usage(&self, usage: Usage) -> Event {
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        };
        self.event(Completion::<()>::new(&self.head, object, vec![], Some(Some(usage))))
    }

    fn chat(
        &self,
        index: u32,
        delta: Delta,
        tokens: &[EmittedToken],
        finish_reason: Option<&'static str>,
    ) -> Event {
        let logprobs = (!tokens.is_empty()).then(|| ChatLogprobs::new(tokens, &self.tokenizer));
        let choice = ChatChunkChoice { index, delta, logprobs, finish_reason };
        let usage = self.include_usage.then_some(None);
        self.event(Completion::new(&self.head, "chat.completion.chunk", vec![choice], usage))
    }

    fn completion(
        &self,
        index: u32,
        text: String,
        tokens: &[EmittedToken],
        finish_reason: Option<&'static str>,
    ) -> Event {
        let logprobs = (!tokens.is_empty()).then(|| TextLogprobs::new(tokens, &self.tokenizer));
        let choice = TextChoice { index, text, logprobs, finish_reason };
        let usage = self.include_usage.then_some(None);
        self.event(Completion::new(&self.head, "text_completion", vec![choice], usage))
    }

    fn event<C: Serialize>(&self, chunk: Completion<C>) -> Event {
        event(&chunk.with_timings(self.timings))
    }
}
