//! Streaming parser for tool calls in a model's output.
//!
//! A call is written as `prefix`, tool name, `infix`, JSON arguments, `suffix`. Qwen 2.5, for example, writes
//! `<tool_call>\n{"name": "` · name · `", "arguments": ` · arguments · `}\n</tool_call>`. The format is
//! derived from the model's own chat template ([`crate::ChatTemplate::tool_support`]). When tools are
//! offered, a grammar constrains the output to this format, so output that starts like a call is a call.
//! Everything else is text, and no text is lost.

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
}

impl ToolCallFormat {
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
    Arguments(String),
    /// Neither text nor arguments: the suffix of a call, or white space between calls.
    Markup(String),
}

impl ToolCallEvent {
    /// The output that this event covers.
    pub fn text(&self) -> &str {
        match self {
            ToolCallEvent::Text(text) | ToolCallEvent::Arguments(text) | ToolCallEvent::Markup(text) => text,
            ToolCallEvent::Start { raw, .. } => raw,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// No output yet, and only the start of the output can be a call.
    Start,
    /// In text that a call may interrupt.
    Text,
    /// In text that no call can interrupt.
    TextOnly,
    /// The buffer starts like a call.
    Opening,
    Arguments(JsonScanner),
    /// After the arguments.
    Closing,
    /// After a call.
    AfterCall,
}

/// Finds the end of a JSON object.
#[derive(Clone, Copy, Debug, Default)]
struct JsonScanner {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl JsonScanner {
    /// Consumes a byte; returns whether it closes the object.
    fn step(&mut self, byte: u8) -> bool {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' if self.in_string => self.escaped = true,
            b'"' => self.in_string = !self.in_string,
            b'{' | b'[' if !self.in_string => self.depth += 1,
            b'}' | b']' if !self.in_string => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
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
    state: State,
    /// Output that no event covers yet.
    buffer: String,
}

impl ToolCallParser {
    /// A parser for one completion. With `anywhere`, a call may start at any point of the text, provided the
    /// format has a trigger; otherwise only at the start.
    pub fn new(format: ToolCallFormat, anywhere: bool) -> ToolCallParser {
        let state = if anywhere && format.trigger_len > 0 { State::Text } else { State::Start };
        ToolCallParser { format, state, buffer: String::new() }
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
        let event = match self.state {
            State::Start | State::Text | State::TextOnly => ToolCallEvent::Text,
            State::Opening | State::Closing | State::AfterCall => ToolCallEvent::Markup,
            State::Arguments(_) => ToolCallEvent::Arguments,
        };
        Some(rest).filter(|rest| !rest.is_empty()).map(event).into_iter().collect()
    }

    /// Removes the first `bytes` bytes of the buffer.
    fn take(&mut self, bytes: usize) -> String {
        let rest = self.buffer.split_off(bytes);
        std::mem::replace(&mut self.buffer, rest)
    }

    /// Emits one event or changes state; false if more output is needed first.
    fn step(&mut self, events: &mut Vec<ToolCallEvent>) -> bool {
        match self.state {
            State::Start => match match_prefix(&self.buffer, self.format.trigger()) {
                PrefixMatch::Match(_) => self.state = State::Opening,
                PrefixMatch::NeedMore => return false,
                PrefixMatch::Mismatch => self.state = State::TextOnly,
            },
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
                self.state = State::Opening;
            }
            State::Opening => match self.opening() {
                PrefixMatch::Match((length, name)) => {
                    events.push(ToolCallEvent::Start { name, raw: self.take(length) });
                    self.state = State::Arguments(JsonScanner::default());
                }
                PrefixMatch::NeedMore => return false,
                PrefixMatch::Mismatch => {
                    let text = self.take(self.format.trigger().len());
                    events.push(ToolCallEvent::Text(text));
                    self.state = self.text_state();
                }
            },
            State::Arguments(mut json) => {
                let end = self.buffer.bytes().position(|byte| json.step(byte));
                let text = self.take(end.map_or(self.buffer.len(), |end| end + 1));
                events.push(ToolCallEvent::Arguments(text));
                self.state = if end.is_some() { State::Closing } else { State::Arguments(json) };
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
                    PrefixMatch::Match(_) => self.state = State::Opening,
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

    /// The length of the opening at the start of the buffer, and the tool name in it.
    fn opening(&self) -> PrefixMatch<(usize, String)> {
        let ToolCallFormat { prefix, infix, .. } = &self.format;
        let start = match match_prefix(&self.buffer, prefix) {
            PrefixMatch::Match(start) => start,
            PrefixMatch::NeedMore => return PrefixMatch::NeedMore,
            PrefixMatch::Mismatch => return PrefixMatch::Mismatch,
        };
        let name = &self.buffer[start..];
        let Some(length) = name.find(|character| !is_name_char(character)) else {
            return PrefixMatch::NeedMore;
        };
        match match_prefix(&name[length..], infix) {
            PrefixMatch::Match(infix) if length > 0 => {
                PrefixMatch::Match((start + length + infix, name[..length].to_owned()))
            }
            PrefixMatch::NeedMore if length > 0 => PrefixMatch::NeedMore,
            _ => PrefixMatch::Mismatch,
        }
    }
}
