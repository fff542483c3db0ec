//! Streaming parser for tool calls in a model's output.
//!
//! A call is written as `prefix`, tool name, `infix`, arguments, `suffix`. Qwen 2.5, for example, writes
//! `<tool_call>\n{"name": "` · name · `", "arguments": ` · arguments · `}\n</tool_call>`. Arguments are JSON, or
//! in a notation that is converted to JSON ([`CallSyntax`]). The format is derived from the model's own chat template ([`crate::ChatTemplate::tool_support`]). When tools are
//! offered, a grammar constrains the output to this format, so output that starts like a call is a call.
//! Everything else is text, and no text is lost.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use crate::tool_arguments::{Arguments, Gemma4, JsonScanner, Xml};

/// How a model writes the arguments of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallSyntax {
    /// As a JSON object.
    #[default]
    Json,
    /// As a JSON object, in an array of all calls. The prefix ends with the start of the first element. Further
    /// fields may follow the arguments.
    JsonArray,
    /// In Gemma 4's notation: `{key:<|"|>text<|"|>,count:3}`.
    Gemma4,
    /// As XML-like parameters: `<parameter=key>\ntext\n</parameter>\n`. Strings are raw text.
    Xml,
}

/// How a model writes tool calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCallFormat {
    /// Text before the tool's name.
    pub prefix: String,
    /// Text between the name and the arguments. Its first character cannot occur in a name.
    pub infix: String,
    /// Text after the arguments.
    pub suffix: String,
    /// White space between two calls; `None` if the model makes only one call per message.
    pub separator: Option<String>,
    /// Length in bytes of the start of `prefix` that distinguishes a call from text. 0 if nothing does; then
    /// only the very start of the output can be a call.
    pub trigger_len: usize,
    /// Control tokens that occur in the format: name and id.
    pub control_tokens: Vec<(String, u32)>,
    /// How the arguments are written.
    pub syntax: CallSyntax,
}

impl ToolCallFormat {
    /// The prefix without the trigger, by which a model that forgets the trigger still starts a call at the start
    /// of its answer.
    fn bare_prefix(&self) -> Option<&str> {
        let bare = self.prefix[self.trigger_len..].trim_start();
        let is_distinct = matches!(self.syntax, CallSyntax::Gemma4 | CallSyntax::Xml) && self.trigger_len > 0;
        Some(bare).filter(|bare| is_distinct && !bare.is_empty())
    }

    /// The control token that starts a call: name and id.
    pub fn control_trigger(&self) -> Option<(&str, u32)> {
        let trigger =
            self.control_tokens.iter().find(|(name, _)| self.trigger_len > 0 && name == self.trigger());
        trigger.map(|(name, id)| (name.as_str(), *id))
    }

    /// The start of an element of [`CallSyntax::JsonArray`].
    pub fn element_prefix(&self) -> &str {
        &self.prefix[self.prefix.rfind('{').unwrap_or(0)..]
    }

    /// The text that starts a call.
    pub fn trigger(&self) -> &str {
        match self.trigger_len {
            0 => &self.prefix,
            length => &self.prefix[..length],
        }
    }
}

/// Whether a character may occur in a tool's name (OpenAI's rule).
pub(crate) fn is_name_char(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '-')
}

/// A piece of parsed output. The [texts](ToolCallEvent::text) of all events, concatenated, are the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolCallEvent {
    /// Text outside of calls.
    Text(String),
    /// A call starts.
    Start {
        /// Name of the called tool.
        name: String,
        /// The output up to the arguments, as the model wrote it.
        raw: String,
    },
    /// More of the current call's arguments.
    Arguments {
        /// The next part of the arguments as JSON.
        json: String,
        /// The output, as the model wrote it.
        raw: String,
    },
    /// Neither text nor arguments: the suffix of a call, or white space between calls.
    Markup(String),
}

impl ToolCallEvent {
    /// The output that this event covers.
    pub fn text(&self) -> &str {
        match self {
            ToolCallEvent::Text(text) | ToolCallEvent::Markup(text) => text,
            ToolCallEvent::Start { raw, .. } | ToolCallEvent::Arguments { raw, .. } => raw,
        }
    }
}

#[derive(Clone, Debug)]
enum State {
    /// No output yet. With `is_only`, only the start of the output can be a call.
    Start {
        is_only: bool,
    },
    /// In text that a call may interrupt.
    Text,
    /// In text that no call can interrupt.
    TextOnly,
    /// The buffer starts like a call: with its whole prefix, or with a later part of it.
    Opening(Opening),
    Arguments(Arguments),
    /// After the arguments.
    Closing,
    /// After the arguments of an element of an array.
    ClosingElement(JsonScanner),
    /// After an element of an array.
    AfterElement,
    /// After a call.
    AfterCall,
}

/// The part of the prefix with which a call starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    Whole,
    /// Without the trigger.
    Bare,
    /// An element of an array that is not the first.
    Element,
}

/// Result of matching the start of a text that may still grow.
enum PrefixMatch<T> {
    Match(T),
    /// The text is a proper prefix of the expected one.
    NeedMore,
    Mismatch,
}

fn match_prefix(text: &str, expected: &str) -> PrefixMatch<usize> {
    if text.starts_with(expected) {
        PrefixMatch::Match(expected.len())
    } else if expected.starts_with(text) {
        PrefixMatch::NeedMore
    } else {
        PrefixMatch::Mismatch
    }
}

/// Parses the tool calls of one completion as it is generated. How the output is split into pieces affects
/// only where events are split.
#[derive(Clone, Debug)]
pub struct ToolCallParser {
    format: ToolCallFormat,
    /// Schemas of the tools' arguments, by name.
    schemas: Arc<HashMap<String, Value>>,
    state: State,
    /// Output that no event covers yet.
    buffer: String,
}

impl ToolCallParser {
    /// A parser for one completion. With `anywhere`, a call may start at any point of the text, provided the
    /// format has a trigger; otherwise only at the start.
    pub fn new(format: ToolCallFormat, anywhere: bool) -> ToolCallParser {
        let state = State::Start { is_only: !anywhere || format.trigger_len == 0 };
        ToolCallParser { format, schemas: Arc::default(), state, buffer: String::new() }
    }

    /// The same parser with the tools' names and the schemas of their arguments, which say how the values of
    /// [`CallSyntax::Xml`] are written.
    pub fn with_schemas<'a>(
        self,
        tools: impl IntoIterator<Item = (&'a str, Option<&'a Value>)>,
    ) -> ToolCallParser {
        let tools = tools.into_iter().filter_map(|(name, schema)| Some((name.to_owned(), schema?.clone())));
        ToolCallParser { schemas: Arc::new(tools.collect()), ..self }
    }

    /// Consumes output; returns the events that it completes.
    pub fn push(&mut self, text: &str) -> Vec<ToolCallEvent> {
        self.buffer.push_str(text);
        let mut events = Vec::new();
        while !self.buffer.is_empty() && self.step(&mut events) {}
        events
    }

    /// Ends the output and returns an event for the rest of the buffer. A call without a complete name is
    /// dropped: its start becomes markup, not text.
    pub fn finish(&mut self) -> Vec<ToolCallEvent> {
        let rest = std::mem::take(&mut self.buffer);
        if rest.is_empty() {
            return vec![];
        }
        vec![match &self.state {
            State::Start { .. } | State::Text | State::TextOnly | State::Opening(Opening::Bare) => {
                ToolCallEvent::Text(rest)
            }
            State::Arguments(arguments) => {
                ToolCallEvent::Arguments { json: arguments.finish(&rest), raw: rest }
            }
            State::Opening(_)
            | State::Closing
            | State::ClosingElement(_)
            | State::AfterElement
            | State::AfterCall => ToolCallEvent::Markup(rest),
        }]
    }

    /// Removes the first `bytes` bytes of the buffer.
    fn take(&mut self, bytes: usize) -> String {
        let rest = self.buffer.split_off(bytes);
        std::mem::replace(&mut self.buffer, rest)
    }

    /// Emits one event or changes state; false if more output is needed first.
    fn step(&mut self, events: &mut Vec<ToolCallEvent>) -> bool {
        match &mut self.state {
            State::Start { is_only } => {
                let is_only = *is_only;
                let bare = self.format.bare_prefix();
                // A call without its trigger may follow white space.
                let rest = self.buffer.trim_start();
                let starts_bare = bare.map_or(PrefixMatch::Mismatch, |bare| match_prefix(rest, bare));
                match (match_prefix(&self.buffer, self.format.trigger()), starts_bare) {
                    (PrefixMatch::Match(_), _) => self.state = State::Opening(Opening::Whole),
                    (PrefixMatch::NeedMore, _) | (_, PrefixMatch::NeedMore) => return false,
                    (_, PrefixMatch::Match(_)) => {
                        let space = self.buffer.len() - rest.len();
                        if space > 0 {
                            let space = self.take(space);
                            events.push(ToolCallEvent::Markup(space));
                        }
                        self.state = State::Opening(Opening::Bare);
                    }
                    _ if is_only => self.state = State::TextOnly,
                    _ => self.state = State::Text,
                }
            }
            State::TextOnly => events.push(ToolCallEvent::Text(self.take(self.buffer.len()))),
            State::Text => {
                let trigger = self.format.trigger();
                let found = self.buffer.find(trigger);
                let partial = (1..trigger.len())
                    .rev()
                    .find(|length| self.buffer.as_bytes().ends_with(&trigger.as_bytes()[..*length]));
                let text = found.unwrap_or(self.buffer.len() - partial.unwrap_or(0));
                if text > 0 {
                    let text = self.take(text);
                    events.push(ToolCallEvent::Text(text));
                }
                if found.is_none() {
                    return false;
                }
                self.state = State::Opening(Opening::Whole);
            }
            State::Opening(opening) => {
                let opening = *opening;
                match self.opening(opening) {
                    PrefixMatch::Match((length, name)) => {
                        self.state = State::Arguments(self.arguments(&name));
                        events.push(ToolCallEvent::Start { name, raw: self.take(length) });
                    }
                    PrefixMatch::NeedMore => return false,
                    PrefixMatch::Mismatch => {
                        let length = match opening {
                            Opening::Whole => self.format.trigger().len(),
                            Opening::Bare => self.format.bare_prefix().map_or(0, str::len),
                            Opening::Element => self.buffer.len(),
                        };
                        let text = self.take(length);
                        events.push(ToolCallEvent::Text(text));
                        self.state = self.text_state();
                    }
                }
            }
            State::Arguments(arguments) => {
                let step = arguments.step(&self.buffer);
                if step.done {
                    self.state = match self.format.syntax {
                        CallSyntax::JsonArray => State::ClosingElement(JsonScanner::within_object()),
                        _ => State::Closing,
                    };
                }
                if step.consumed > 0 || !step.json.is_empty() {
                    let raw = self.take(step.consumed);
                    events.push(ToolCallEvent::Arguments { json: step.json, raw });
                }
                return step.done || (step.consumed > 0 && !self.buffer.is_empty());
            }
            State::ClosingElement(fields) => {
                let end = self.buffer.bytes().position(|byte| fields.step(byte));
                let markup = self.take(end.map_or(self.buffer.len(), |end| end + 1));
                events.push(ToolCallEvent::Markup(markup));
                if end.is_some() {
                    self.state = State::AfterElement;
                }
            }
            State::AfterElement => {
                let rest = self.buffer.trim_start_matches([' ', '\n', '\t', '\r', ',']);
                let skipped = self.buffer.len() - rest.len();
                let (length, next) = match rest.chars().next() {
                    None => return false,
                    Some(']') => (skipped + 1, State::AfterCall),
                    Some('{') => (skipped, State::Opening(Opening::Element)),
                    Some(_) => (skipped, State::AfterCall),
                };
                if length > 0 {
                    let markup = self.take(length);
                    events.push(ToolCallEvent::Markup(markup));
                }
                self.state = next;
            }
            State::Closing => match match_prefix(&self.buffer, &self.format.suffix) {
                PrefixMatch::Match(length) => {
                    if length > 0 {
                        events.push(ToolCallEvent::Markup(self.take(length)));
                    }
                    self.state = State::AfterCall;
                }
                PrefixMatch::NeedMore => return false,
                PrefixMatch::Mismatch => self.state = State::AfterCall,
            },
            State::AfterCall => {
                let space = self.buffer.len() - self.buffer.trim_start().len();
                if space > 0 {
                    events.push(ToolCallEvent::Markup(self.take(space)));
                    return true;
                }
                match match_prefix(&self.buffer, self.format.trigger()) {
                    PrefixMatch::Match(_) => self.state = State::Opening(Opening::Whole),
                    PrefixMatch::NeedMore => return false,
                    PrefixMatch::Mismatch => self.state = self.text_state(),
                }
            }
        }
        true
    }

    /// The state for text that follows something like a call.
    fn text_state(&self) -> State {
        if self.format.trigger_len > 0 { State::Text } else { State::TextOnly }
    }

    /// A parser for the arguments of a call.
    fn arguments(&self, name: &str) -> Arguments {
        match self.format.syntax {
            CallSyntax::Json | CallSyntax::JsonArray => Arguments::Json(JsonScanner::default()),
            CallSyntax::Gemma4 => Arguments::Gemma4(Gemma4::new()),
            CallSyntax::Xml => Arguments::Xml(Xml::new(self.schemas.get(name))),
        }
    }

    /// The length of the opening at the start of the buffer, and the tool name in it.
    fn opening(&self, opening: Opening) -> PrefixMatch<(usize, String)> {
        let ToolCallFormat { prefix, infix, syntax, .. } = &self.format;
        let prefix = match opening {
            Opening::Whole => prefix,
            Opening::Bare => self.format.bare_prefix().unwrap_or(prefix),
            Opening::Element => self.format.element_prefix(),
        };
        let start = match match_prefix(&self.buffer, prefix) {
            PrefixMatch::Match(start) => start,
            PrefixMatch::NeedMore => return PrefixMatch::NeedMore,
            PrefixMatch::Mismatch => return PrefixMatch::Mismatch,
        };
        let name = &self.buffer[start..];
        let Some(length) = name.find(|character| !is_name_char(character)) else {
            return PrefixMatch::NeedMore;
        };
        // Nothing else separates the name from arguments in Gemma 4's notation.
        let is_opened = *syntax != CallSyntax::Gemma4 || name[length..].starts_with('{');
        // Line breaks between the tags of parameters are not significant.
        let infix = if *syntax == CallSyntax::Xml { infix.trim_end() } else { infix };
        match match_prefix(&name[length..], infix) {
            PrefixMatch::Match(infix) if length > 0 && is_opened => {
                PrefixMatch::Match((start + length + infix, name[..length].to_owned()))
            }
            PrefixMatch::NeedMore if length > 0 => PrefixMatch::NeedMore,
            _ => PrefixMatch::Mismatch,
        }
    }
}
