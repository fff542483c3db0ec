//! Thinking: the part of a reply that a model writes before its answer, between two delimiters.
//!
//! Gemma 4 writes `<|channel>thought\n…<channel|>`, Qwen 3 and many others `<think>…</think>`, Mistral's models
//! `[THINK]…[/THINK]`. The chat template shows which ([`ChatTemplate::thinking_format`]). Some templates end the
//! prompt with the opening delimiter ([`ThinkingFormat::is_open`]). A [`ThinkingParser`] separates thinking from
//! the answer; a [`ThinkingConstraint`] applies another constraint to the answer only.

use crate::chat::ChatTemplate;
use crate::constraint::TokenConstraint;
use crate::detokenizer::Detokenizer;
use crate::tokenizer::{DecodeSpecial, EncodeSpecial, Tokenizer};

/// How a model delimits its thinking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThinkingFormat {
    /// Text before the thinking.
    pub start: String,
    /// A line that may follow `start`, without its line break; empty if the format has none.
    pub header: String,
    /// Text after the thinking.
    pub end: String,
    /// Control tokens among the delimiters: name and id. The detokenizer must keep them.
    pub control_tokens: Vec<(String, u32)>,
}

/// Opening delimiter, header and closing delimiter of the known formats.
const FORMATS: [[&str; 3]; 3] =
    [["<|channel>", "thought", "<channel|>"], ["[THINK]", "", "[/THINK]"], ["<think>", "", "</think>"]];

/// Tokens at the end of a prompt that may belong to the opening delimiter.
const MAX_OPENING_TOKENS: usize = 32;

impl ChatTemplate {
    /// The format of the model's thinking; `None` if the template has none of the known delimiters.
    pub fn thinking_format(&self, tokenizer: &Tokenizer) -> Option<ThinkingFormat> {
        // A template may remove the thinking of earlier turns by its closing delimiter only.
        let [start, header, end] = FORMATS.into_iter().find(|[_, _, end]| self.source().contains(end))?;
        let control = |name: &str| {
            let id = tokenizer.token_id(name).filter(|id| tokenizer.is_special(*id))?;
            Some((name.to_owned(), id))
        };
        Some(ThinkingFormat {
            start: start.to_owned(),
            header: header.to_owned(),
            end: end.to_owned(),
            control_tokens: [start, end].into_iter().filter_map(control).collect(),
        })
    }
}

impl ThinkingFormat {
    /// Whether a prompt ends with the opening delimiter, so that the completion starts within the thinking.
    pub fn is_open(&self, tokenizer: &Tokenizer, prompt: &[u32]) -> bool {
        let tail = &prompt[prompt.len().saturating_sub(MAX_OPENING_TOKENS)..];
        let text = tokenizer.decode(tail, DecodeSpecial::Keep);
        let text = text.trim_end();
        text.strip_suffix(&*self.header).unwrap_or(text).ends_with(&*self.start)
    }

    /// Whether an assistant message that is continued stops within the thinking.
    pub fn is_open_in(&self, content: &str) -> bool {
        content.rfind(&*self.start) > content.rfind(&*self.end)
    }

    /// Whether the opening delimiter is a control token, which no other text contains.
    fn starts_with_control(&self) -> bool {
        self.control_tokens.iter().any(|(name, _)| *name == self.start)
    }
}

/// A piece of parsed output. The [texts](ThinkingEvent::text) of all events, concatenated, are the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThinkingEvent {
    /// Thinking, without the white space around it.
    Thinking(String),
    /// Text of the answer.
    Text(String),
    /// Neither: a delimiter, or white space next to one.
    Markup(String),
}

impl ThinkingEvent {
    /// The output that this event covers.
    pub fn text(&self) -> &str {
        match self {
            ThinkingEvent::Thinking(text) | ThinkingEvent::Text(text) | ThinkingEvent::Markup(text) => text,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No text of the answer yet.
    Start,
    /// After the opening delimiter: white space, the header, or the delimiter again.
    Opening,
    Thinking,
    /// After the closing delimiter: white space, or more thinking.
    Closed,
    Text,
}

/// Separates the thinking of one completion from its answer as it is generated. How the output is split into
/// pieces affects only where events are split.
#[derive(Clone, Debug)]
pub struct ThinkingParser {
    format: ThinkingFormat,
    state: State,
    /// Whether thinking may also start after text of the answer.
    anywhere: bool,
    /// Start of a tool call, which ends the thinking without its delimiter.
    call_start: Option<String>,
    /// Output that no event covers yet.
    buffer: String,
}

impl ThinkingParser {
    /// A parser for one completion. `open`: the prompt ends with the opening delimiter. With `anywhere`, a
    /// control token may start thinking at any point; otherwise only the start of the output can be thinking.
    pub fn new(format: ThinkingFormat, open: bool, anywhere: bool) -> ThinkingParser {
        let state = if open { State::Opening } else { State::Start };
        let anywhere = anywhere && format.starts_with_control();
        ThinkingParser { format, state, anywhere, call_start: None, buffer: String::new() }
    }

    /// The same parser, for which a control token that starts a tool call also ends the thinking: some models forget
    /// the delimiter.
    pub fn ending_at(self, call_start: Option<&str>) -> ThinkingParser {
        ThinkingParser { call_start: call_start.map(str::to_owned), ..self }
    }

    /// Whether the output so far ends within the thinking.
    pub fn is_thinking(&self) -> bool {
        matches!(self.state, State::Opening | State::Thinking)
    }

    /// Consumes output; returns the events that it completes.
    pub fn push(&mut self, text: &str) -> Vec<ThinkingEvent> {
        self.buffer.push_str(text);
        let mut events = Vec::new();
        while !self.buffer.is_empty() && self.step(&mut events) {}
        events
    }

    /// Ends the output and returns an event for the rest of it. Thinking that has no end stays thinking.
    pub fn finish(&mut self) -> Vec<ThinkingEvent> {
        let rest = std::mem::take(&mut self.buffer);
        let event = match self.state {
            State::Start | State::Text => ThinkingEvent::Text,
            State::Closed => ThinkingEvent::Markup,
            State::Opening | State::Thinking if rest.trim().is_empty() => ThinkingEvent::Markup,
            State::Opening | State::Thinking => ThinkingEvent::Thinking,
        };
        Some(rest).filter(|rest| !rest.is_empty()).map(event).into_iter().collect()
    }

    fn take(&mut self, bytes: usize) -> String {
        let rest = self.buffer.split_off(bytes);
        std::mem::replace(&mut self.buffer, rest)
    }

    /// Emits one event or changes state; false if more output is needed first.
    fn step(&mut self, events: &mut Vec<ThinkingEvent>) -> bool {
        let space = self.buffer.len() - self.buffer.trim_start().len();
        let rest = &self.buffer[space..];
        let start = &*self.format.start;
        match self.state {
            State::Start | State::Closed if rest.starts_with(start) => {
                let markup = self.take(space + self.format.start.len());
                events.push(ThinkingEvent::Markup(markup));
                self.state = State::Opening;
            }
            State::Start | State::Closed if start.starts_with(rest) => return false,
            State::Start => self.state = State::Text,
            State::Closed => {
                if space > 0 {
                    let markup = self.take(space);
                    events.push(ThinkingEvent::Markup(markup));
                }
                self.state = State::Text;
            }
            State::Opening => return self.open(space, events),
            State::Thinking => return self.think(events),
            State::Text => {
                let found = if self.anywhere { find(&self.buffer, start) } else { Err(self.buffer.len()) };
                let (Ok(length) | Err(length)) = found;
                if length > 0 {
                    let text = self.take(length);
                    events.push(ThinkingEvent::Text(text));
                }
                if found.is_err() {
                    return false;
                }
                let markup = self.take(self.format.start.len());
                events.push(ThinkingEvent::Markup(markup));
                self.state = State::Opening;
            }
        }
        true
    }

    /// Skips what precedes the thinking; `space` is the length of the white space at the start of the buffer.
    fn open(&mut self, space: usize, events: &mut Vec<ThinkingEvent>) -> bool {
        let ThinkingFormat { start, header, .. } = &self.format;
        let rest = &self.buffer[space..];
        let after_header = rest.strip_prefix(&**header).filter(|_| !header.is_empty());
        let skipped = match after_header {
            _ if rest.starts_with(&**start) => Some(start.len()),
            _ if start.starts_with(rest) || (!header.is_empty() && header.starts_with(rest)) => return false,
            Some(after) if self.format.end.starts_with(after) && after.len() < self.format.end.len() => {
                return false;
            }
            // The header is a line of its own, which may be the last one.
            Some(after) if after.starts_with('\n') || after.starts_with(&*self.format.end) => {
                Some(header.len())
            }
            _ => None,
        };
        let length = space + skipped.unwrap_or(0);
        if length > 0 {
            let markup = self.take(length);
            events.push(ThinkingEvent::Markup(markup));
        }
        if skipped.is_none() {
            self.state = State::Thinking;
        }
        true
    }

    fn think(&mut self, events: &mut Vec<ThinkingEvent>) -> bool {
        let end = find(&self.buffer, &self.format.end);
        let call = self.call_start.as_ref().map_or(Err(usize::MAX), |start| find(&self.buffer, start));
        let is_call = call.is_ok_and(|call| end.is_err() || end.is_ok_and(|end| call < end));
        let found = match (end, call) {
            _ if is_call => call,
            (Ok(_), _) => end,
            (Err(end), Ok(call) | Err(call)) => Err(end.min(call)),
        };
        let (Ok(length) | Err(length)) = found;
        // White space before the closing delimiter is not part of the thinking.
        let thought = self.buffer[..length].trim_end().len();
        if thought > 0 {
            let thought = self.take(thought);
            events.push(ThinkingEvent::Thinking(thought));
            return true;
        }
        if found.is_err() {
            return false;
        }
        let markup = self.take(if is_call { length } else { length + self.format.end.len() });
        if !markup.is_empty() {
            events.push(ThinkingEvent::Markup(markup));
        }
        self.state = if is_call { State::Text } else { State::Closed };
        true
    }
}

/// The position of `wanted`; otherwise, as an error, the length of the text that cannot be part of it.
pub(crate) fn find(text: &str, wanted: &str) -> Result<usize, usize> {
    if let Some(found) = text.find(wanted) {
        return Ok(found);
    }
    let is_start = |length: &usize| text.as_bytes().ends_with(&wanted.as_bytes()[..*length]);
    Err(text.len() - (1..wanted.len()).rev().find(is_start).unwrap_or(0))
}

/// Applies a constraint to the answer of a completion, but not to the thinking before it, which must end before
/// the completion does.
pub struct ThinkingConstraint {
    inner: Box<dyn TokenConstraint>,
    tokenizer: Tokenizer,
    stop_token_ids: Vec<u32>,
    end: String,
    /// The token that starts thinking, if it may start and a single token does it.
    start: Option<u32>,
    /// The control token that starts a tool call, which ends the thinking, too.
    call_start: Option<u32>,
    /// Line breaks that may follow the thinking.
    line_breaks: Vec<u32>,
    state: ConstraintState,
}

#[derive(Clone)]
enum ConstraintState {
    /// Thinking may start.
    Start,
    /// Holds the last text, which may be the start of the closing delimiter.
    Thinking {
        detokenizer: Box<Detokenizer>,
        tail: String,
    },
    /// After the closing delimiter.
    Closed,
    Answer,
}

impl ThinkingConstraint {
    /// Wraps a constraint. `open`: the prompt ends with the opening delimiter. `may_start`: the completion may
    /// start with thinking.
    pub fn new(
        inner: Box<dyn TokenConstraint>,
        format: &ThinkingFormat,
        tokenizer: &Tokenizer,
        stop_token_ids: &[u32],
        open: bool,
        may_start: bool,
    ) -> ThinkingConstraint {
        let single = |text: &str| match tokenizer.encode(text, EncodeSpecial::Parse)[..] {
            [id] => Some(id),
            _ => None,
        };
        let mut constraint = ThinkingConstraint {
            inner,
            tokenizer: tokenizer.clone(),
            stop_token_ids: stop_token_ids.to_vec(),
            end: format.end.clone(),
            start: single(&format.start).filter(|_| may_start),
            call_start: None,
            line_breaks: ["\n", "\n\n"].into_iter().filter_map(single).collect(),
            state: ConstraintState::Start,
        };
        if open {
            constraint.state = constraint.thinking();
        }
        constraint
    }

    /// The same constraint, which a control token that starts a tool call also begins.
    pub fn ending_at(self, call_start: Option<u32>) -> ThinkingConstraint {
        ThinkingConstraint { call_start, ..self }
    }

    fn thinking(&self) -> ConstraintState {
        // The closing delimiter may be a control token.
        let detokenizer = Detokenizer::new(&self.tokenizer, DecodeSpecial::Keep);
        ConstraintState::Thinking { detokenizer: Box::new(detokenizer), tail: String::new() }
    }
}

impl TokenConstraint for ThinkingConstraint {
    fn mask(&mut self, words: &mut [u32]) -> Result<(), String> {
        let allow = |words: &mut [u32], id: u32, allowed: bool| {
            if let Some(word) = words.get_mut(id as usize / 32) {
                *word = *word & !(1 << (id % 32)) | u32::from(allowed) << (id % 32);
            }
        };
        match self.state {
            ConstraintState::Thinking { .. } => {
                words.fill(u32::MAX);
                self.stop_token_ids.iter().for_each(|id| allow(words, *id, false));
            }
            ConstraintState::Answer => self.inner.mask(words)?,
            ConstraintState::Start => {
                self.inner.mask(words)?;
                self.start.iter().for_each(|id| allow(words, *id, true));
            }
            ConstraintState::Closed => {
                self.inner.mask(words)?;
                self.line_breaks.iter().for_each(|id| allow(words, *id, true));
            }
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        match &mut self.state {
            ConstraintState::Thinking { .. } if self.call_start == Some(token) => {
                self.state = ConstraintState::Answer;
                self.inner.accept(token)
            }
            ConstraintState::Thinking { detokenizer, tail } => {
                detokenizer.push_to(token, tail);
                match find(tail, &self.end) {
                    Ok(at) => {
                        let answer = tail.split_off(at + self.end.len());
                        self.state = ConstraintState::Closed;
                        // A token may contain the end of the thinking and the start of the answer.
                        let answer =
                            self.tokenizer.encode_continuation(answer.trim_start(), EncodeSpecial::AsText);
                        answer.into_iter().try_for_each(|id| self.accept(id))?;
                    }
                    Err(length) => drop(tail.drain(..length)),
                }
                Ok(())
            }
            ConstraintState::Start if self.start == Some(token) => {
                self.state = self.thinking();
                Ok(())
            }
            ConstraintState::Closed if self.line_breaks.contains(&token) => {
                self.state = ConstraintState::Answer;
                Ok(())
            }
            ConstraintState::Start | ConstraintState::Closed | ConstraintState::Answer => {
                self.state = ConstraintState::Answer;
                self.inner.accept(token)
            }
        }
    }

    fn is_finished(&self) -> bool {
        matches!(self.state, ConstraintState::Answer) && self.inner.is_finished()
    }

    fn is_lifted(&self) -> bool {
        matches!(self.state, ConstraintState::Answer) && self.inner.is_lifted()
    }

    fn fork(&self) -> Box<dyn TokenConstraint> {
        Box::new(ThinkingConstraint {
            inner: self.inner.fork(),
            tokenizer: self.tokenizer.clone(),
            stop_token_ids: self.stop_token_ids.clone(),
            end: self.end.clone(),
            start: self.start,
            call_start: self.call_start,
            line_breaks: self.line_breaks.clone(),
            state: self.state.clone(),
        })
    }
}
