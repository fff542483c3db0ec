//! Splits generated text into the parts of a choice: separates thinking, extracts tool calls and ends content at stop
//! strings.

use std::collections::VecDeque;

use engine::{Token, Usage};
use text::{Detokenizer, StopMatcher, ThinkingEvent, ThinkingParser, ToolCallEvent, ToolCallParser};

use crate::emitted::{EmittedToken, PendingTokens};

/// A part of a choice. [`OutputPart::Finished`] is the last one, unless the choice fails.
#[derive(Debug)]
pub(crate) enum OutputPart {
    /// Content, and the tokens to report with it if logprobs were requested. Never both empty.
    Text(String, Vec<EmittedToken>),
    /// More of the thinking, not empty.
    Reasoning(String),
    /// Start of a tool call.
    ToolCall { name: String },
    /// More of the last call's arguments, not empty.
    Arguments(String),
    /// End of the choice. `mean_logprob` is the mean log probability of its tokens.
    /// `reasoning_tokens` are those of the thinking; `None` if the model has no thinking.
    Finished { reason: StopReason, usage: Usage, reasoning_tokens: Option<u32>, mean_logprob: f64 },
}

/// Why a choice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// The model ended it.
    EndOfTurn,
    /// The stop string with this index was found.
    StopString(usize),
    /// The model ended it, and it has tool calls.
    ToolCalls,
    /// It has reached the maximum number of tokens, or the context length.
    Length,
}

/// Parses the text of one choice into parts.
pub(crate) struct OutputParser {
    /// Separates thinking from the answer, if the model thinks.
    thinking: Option<ThinkingParser>,
    /// Tokens of the thinking so far.
    reasoning_tokens: u32,
    /// Extracts tool calls, if the request has tools.
    tool_calls: Option<ToolCallParser>,
    stops: StopMatcher,
    /// The request field that constrains the output.
    constraint_field: &'static str,
    /// Tokens not emitted yet, if logprobs were requested.
    pending: Option<PendingTokens>,
    /// Trailing white space of the content. Sent with more content, dropped before a tool call.
    white_space: String,
    call_count: u64,
    stopped: bool,
    parts: VecDeque<OutputPart>,
}

impl OutputParser {
    pub(crate) fn new(
        thinking: Option<ThinkingParser>,
        tool_calls: Option<ToolCallParser>,
        stops: StopMatcher,
        logprobs: bool,
        constraint_field: &'static str,
    ) -> OutputParser {
        OutputParser {
            thinking,
            reasoning_tokens: 0,
            tool_calls,
            constraint_field,
            stops,
            pending: logprobs.then(PendingTokens::default),
            white_space: String::new(),
            call_count: 0,
            stopped: false,
            parts: VecDeque::new(),
        }
    }

    /// Whether logprobs were requested.
    pub(crate) fn has_logprobs(&self) -> bool {
        self.pending.is_some()
    }

    /// Tool calls started so far.
    pub(crate) fn call_count(&self) -> u64 {
        self.call_count
    }

    /// Tokens of the thinking so far, with its delimiters; `None` if the model has no thinking.
    pub(crate) fn reasoning_tokens(&self) -> Option<u32> {
        self.thinking.is_some().then_some(self.reasoning_tokens)
    }

    /// Index of the stop string that was found.
    pub(crate) fn stop_string(&self) -> Option<usize> {
        self.stops.found()
    }

    /// The request field that constrains the output.
    pub(crate) fn constraint_field(&self) -> &'static str {
        self.constraint_field
    }

    /// Removes the next part.
    pub(crate) fn pop(&mut self) -> Option<OutputPart> {
        self.parts.pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Adds the last part.
    pub(crate) fn push_last(&mut self, part: OutputPart) {
        self.parts.push_back(part);
    }

    /// Adds the echoed prompt with its tokens; see [`PendingTokens::emit_prompt`].
    pub(crate) fn push_prompt(
        &mut self,
        echo: String,
        first: u32,
        tokens: Vec<Token>,
        detokenizer: Detokenizer,
    ) {
        let pending = self.pending.as_mut();
        let tokens = pending.map(|pending| pending.emit_prompt(first, tokens, &echo, detokenizer));
        self.push_part(echo, tokens.unwrap_or_default());
    }

    /// Adds a token and the text that it completed.
    pub(crate) fn push_token(&mut self, token: Token, text: &str) {
        if let Some(pending) = &mut self.pending {
            pending.push(token, text);
        }
        let is_thinking =
            |parser: &Option<ThinkingParser>| parser.as_ref().is_some_and(|parser| parser.is_thinking());
        let was_thinking = is_thinking(&self.thinking);
        self.push_text(text);
        self.reasoning_tokens += u32::from(was_thinking || is_thinking(&self.thinking));
    }

    /// Adds text.
    pub(crate) fn push_text(&mut self, text: &str) {
        match &mut self.thinking {
            None => self.push_answer(text),
            Some(parser) => {
                let events = parser.push(text);
                events.into_iter().for_each(|event| self.push_thinking(event));
            }
        }
    }

    fn push_thinking(&mut self, event: ThinkingEvent) {
        if self.stopped {
            return;
        }
        match event {
            ThinkingEvent::Text(text) => self.push_answer(&text),
            ThinkingEvent::Thinking(text) => {
                // Stop strings apply to content only.
                self.flush_stops();
                self.skip(&text);
                match self.parts.back_mut() {
                    Some(OutputPart::Reasoning(last)) => last.push_str(&text),
                    _ => self.parts.push_back(OutputPart::Reasoning(text)),
                }
            }
            ThinkingEvent::Markup(text) => {
                self.flush_stops();
                self.skip(&text);
            }
        }
    }

    /// Adds text of the answer.
    fn push_answer(&mut self, text: &str) {
        match &mut self.tool_calls {
            None => {
                let (text, stopped) = self.stops.push(text);
                self.stopped |= stopped;
                self.push_content(text);
            }
            Some(parser) => {
                let events = parser.push(text);
                events.into_iter().for_each(|event| self.push_event(event));
            }
        }
    }

    /// Flushes text that was held back; no more text follows.
    pub(crate) fn finish(&mut self) {
        let thinking = self.thinking.as_mut().map(ThinkingParser::finish).unwrap_or_default();
        thinking.into_iter().for_each(|event| self.push_thinking(event));
        let events = self.tool_calls.as_mut().map(ToolCallParser::finish).unwrap_or_default();
        events.into_iter().for_each(|event| self.push_event(event));
        self.flush_stops();
        let white_space = std::mem::take(&mut self.white_space);
        self.emit(white_space);
        // Tokens without text, such as the stop token.
        let rest = self.pending.as_mut().filter(|_| !self.stopped && self.call_count == 0);
        let rest = rest.map(PendingTokens::emit_rest);
        self.push_part(String::new(), rest.unwrap_or_default());
    }

    fn push_event(&mut self, event: ToolCallEvent) {
        if self.stopped {
            return;
        }
        match event {
            ToolCallEvent::Text(text) => {
                let (text, stopped) = self.stops.push(&text);
                self.stopped = stopped;
                self.push_content(text);
            }
            ToolCallEvent::Start { name, raw } => {
                // Stop strings apply to content only: none spans the start of a call.
                self.flush_stops();
                if self.stopped {
                    return;
                }
                let white_space = std::mem::take(&mut self.white_space);
                self.skip(&white_space);
                self.skip(&raw);
                self.call_count += 1;
                self.parts.push_back(OutputPart::ToolCall { name });
            }
            ToolCallEvent::Arguments { json, raw } => {
                self.skip(&raw);
                if !json.is_empty() {
                    self.parts.push_back(OutputPart::Arguments(json));
                }
            }
            ToolCallEvent::Markup(text) => self.skip(&text),
        }
    }

    /// Releases text held back as a possible start of a stop string.
    fn flush_stops(&mut self) {
        if !self.stopped {
            let (text, stopped) = self.stops.finish();
            self.stopped = stopped;
            self.push_content(text);
        }
    }

    /// Adds content. With tools, trailing white space is held back: it may precede a tool call.
    fn push_content(&mut self, text: String) {
        if self.tool_calls.is_none() {
            return self.emit(text);
        }
        let mut text = std::mem::take(&mut self.white_space) + &text;
        if !self.stopped {
            self.white_space = text.split_off(text.trim_end().len());
        }
        self.emit(text);
    }

    fn emit(&mut self, text: String) {
        let tokens = self.pending.as_mut().map_or_else(Vec::new, |pending| pending.emit(&text));
        self.push_part(text, tokens);
    }

    /// Adds content to the last part if that is content too.
    fn push_part(&mut self, text: String, tokens: Vec<EmittedToken>) {
        match self.parts.back_mut() {
            _ if text.is_empty() && tokens.is_empty() => {}
            Some(OutputPart::Text(last_text, last_tokens)) => {
                last_text.push_str(&text);
                last_tokens.extend(tokens);
            }
            _ => self.parts.push_back(OutputPart::Text(text, tokens)),
        }
    }

    fn skip(&mut self, text: &str) {
        if let Some(pending) = &mut self.pending {
            pending.skip(text);
        }
    }
}
