//! Responses of `/v1/chat/completions` and `/v1/completions`: from the parts of choices to OpenAI's objects.

use axum::Json;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use text::Tokenizer;

use super::error::ErrorBody;
use super::logprobs::{ChatLogprobs, TextLogprobs};
use super::request::{Endpoint, ResponseOptions};
use super::response::{
    AssistantMessage, ChatChoice, ChatChunkChoice, Completion, Delta, ResponseHead, TextChoice, Usage,
    UsageCost,
};
use super::timings::Timings;
use super::tools::{FunctionCall, FunctionCallDelta, ToolCall, ToolCallDelta, ToolType};
use crate::choice::ChoicePart;
use crate::emitted::EmittedToken;
use crate::error::Error;
use crate::output::{OutputPart, StopReason};
use crate::random;
use crate::response::{self, Collector, EventWriter, Generation};
use crate::timing::Timing;

fn finish_reason(reason: StopReason) -> &'static str {
    match reason {
        StopReason::EndOfTurn | StopReason::StopString(_) => "stop",
        StopReason::ToolCalls => "tool_calls",
        StopReason::Length => "length",
    }
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
}

impl UsageTotal {
    fn new(candidates: u32, detailed: bool) -> UsageTotal {
        let (usage, timing) = (Usage::default(), Timing::default());
        UsageTotal {
            candidates,
            detailed,
            usage,
            joules: Some(0.0),
            decode_bytes: 0,
            decode_tokens: 0,
            timing,
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
    }
}

/// Collects a completion.
pub(super) struct CompletionCollector {
    options: ResponseOptions,
    head: ResponseHead,
    tokenizer: Tokenizer,
    choices: Vec<CollectedChoice>,
    total: UsageTotal,
}

impl CompletionCollector {
    pub(super) fn new(
        options: ResponseOptions,
        head: ResponseHead,
        generation: &mut Generation,
        tokenizer: Tokenizer,
    ) -> CompletionCollector {
        let logprobs = generation.choices.iter().any(|choice| choice.output.has_logprobs());
        let empty = |text| CollectedChoice {
            text,
            reasoning: String::new(),
            tool_calls: vec![],
            tokens: logprobs.then(Vec::new),
            finish_reason: "",
            mean_logprob: 0.0,
        };
        let choices = std::mem::take(&mut generation.echoes).into_iter().map(empty).collect();
        let total = UsageTotal::new(options.candidates, options.timings);
        CompletionCollector { options, head, tokenizer, choices, total }
    }
}

impl Collector for CompletionCollector {
    fn push(&mut self, part: ChoicePart) {
        let ChoicePart { index, part, timing } = part;
        let choice = &mut self.choices[index as usize];
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
                choice.finish_reason = finish_reason(reason);
                choice.mean_logprob = mean_logprob;
                self.total.add(index, usage, reasoning_tokens, timing);
            }
        }
    }

    fn into_response(self) -> Response {
        let CompletionCollector { options, head, tokenizer, choices, total } = self;
        let ResponseOptions { candidates, n, .. } = options;
        let finished = select_best(choices, candidates as usize, n as usize).into_iter().zip(0..);
        let usage = Some(Some(total.usage()));
        let timings = options.timings.then(|| total.timing.into());
        match options.endpoint {
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
        }
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

/// A tool call with a new id, still without arguments.
fn new_tool_call(name: String) -> ToolCall {
    let function = FunctionCall { name, arguments: String::new() };
    ToolCall { id: format!("call_{}", random::id()), r#type: ToolType::Function, function }
}

/// Writes the chunks of a stream.
pub(super) struct ChunkWriter {
    options: ResponseOptions,
    head: ResponseHead,
    tokenizer: Tokenizer,
    /// Text that each choice starts with.
    echoes: Vec<String>,
    /// Whether choices may contain tool calls.
    has_tools: bool,
    /// Timings of the next chunk.
    timings: Option<Timings>,
    /// Tool calls started by each choice.
    call_counts: Vec<u32>,
    total: UsageTotal,
}

impl ChunkWriter {
    pub(super) fn new(
        options: ResponseOptions,
        head: ResponseHead,
        generation: &mut Generation,
        tokenizer: Tokenizer,
    ) -> ChunkWriter {
        ChunkWriter {
            options,
            head,
            tokenizer,
            echoes: std::mem::take(&mut generation.echoes),
            has_tools: generation.has_tools,
            timings: None,
            call_counts: vec![0; generation.choices.len()],
            total: UsageTotal::new(options.candidates, options.timings),
        }
    }

    /// First chunk of a choice: the role in a chat, the echoed prompt in a text completion.
    fn first(&self, index: u32, echo: String) -> Option<Event> {
        match self.options.endpoint {
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
        match self.options.endpoint {
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
        match self.options.endpoint {
            Endpoint::Chat => self.chat(index, Delta::default(), &[], Some(reason)),
            Endpoint::Completions => self.completion(index, String::new(), &[], Some(reason)),
        }
    }

    fn usage(&self, usage: Usage) -> Event {
        let object = match self.options.endpoint {
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
        let usage = self.options.include_usage.then_some(None);
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
        let usage = self.options.include_usage.then_some(None);
        self.event(Completion::new(&self.head, "text_completion", vec![choice], usage))
    }

    fn event<C: Serialize>(&self, chunk: Completion<C>) -> Event {
        response::event(&chunk.with_timings(self.timings))
    }
}

impl EventWriter for ChunkWriter {
    fn start(&mut self) -> Vec<Event> {
        let echoes = std::mem::take(&mut self.echoes).into_iter().zip(0..);
        echoes.filter_map(|(echo, index)| self.first(index, echo)).collect()
    }

    fn part(&mut self, part: ChoicePart) -> Vec<Event> {
        let ChoicePart { index, part, timing } = part;
        self.timings = self.options.timings.then(|| timing.into());
        vec![match part {
            OutputPart::Text(text, tokens) => self.text(index, text, &tokens),
            OutputPart::Reasoning(text) => self.reasoning(index, text),
            OutputPart::ToolCall { name } => {
                let count = &mut self.call_counts[index as usize];
                *count += 1;
                let ToolCall { id, r#type, function } = new_tool_call(name);
                let function = FunctionCallDelta { name: Some(function.name), arguments: function.arguments };
                let call = ToolCallDelta { index: *count - 1, id: Some(id), r#type: Some(r#type), function };
                self.tool_call(index, call)
            }
            OutputPart::Arguments(arguments) => {
                let function = FunctionCallDelta { name: None, arguments };
                let call = self.call_counts[index as usize].saturating_sub(1);
                self.tool_call(index, ToolCallDelta { index: call, id: None, r#type: None, function })
            }
            OutputPart::Finished { reason, usage, reasoning_tokens, .. } => {
                self.total.add(index, usage, reasoning_tokens, timing);
                self.finish(index, finish_reason(reason))
            }
        }]
    }

    fn end(&mut self) -> Vec<Event> {
        self.timings = self.options.timings.then(|| self.total.timing.into());
        let usage = self.options.include_usage.then(|| self.usage(self.total.usage()));
        usage.into_iter().chain([Event::default().data("[DONE]")]).collect()
    }

    fn error(&mut self, error: &Error) -> Vec<Event> {
        // No [DONE] follows.
        vec![response::event(&ErrorBody::new(error))]
    }
}
