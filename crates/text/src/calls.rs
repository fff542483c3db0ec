//! Calls of tools in an answer's text, found as it comes.
//!
//! A call is `begin`, a name, `middle`, an object of JSON, `tail`; Qwen 2.5, for example, writes
//! `<tool_call>\n{"name": "` · name · `", "arguments": ` · object · `}\n</tool_call>`. What of it is which comes from the model's own chat
//! template ([`crate::ChatTemplate::tool_use`]). Answers that may hold calls are held to this form by a grammar, so that what begins like one
//! is one; whatever else comes is text, and no text is lost.

/// How a model writes calls of tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallForm {
    /// What is before the name.
    pub begin: String,
    /// What is between the name and the arguments. It begins with a character that no name has.
    pub middle: String,
    /// What is after the arguments.
    pub tail: String,
    /// White space between two calls; none where a model makes one call at a time.
    pub between: Option<String>,
    /// How much of `begin` tells a call from any other text, in bytes: 0 where nothing does, so that only the beginning of an answer can be
    /// one.
    pub trigger: usize,
    /// Control tokens among all this: their names and ids.
    pub controls: Vec<(String, u32)>,
}

impl CallForm {
    /// What tells a call from any other text.
    pub fn trigger(&self) -> &str {
        match self.trigger {
            0 => &self.begin,
            length => &self.begin[..length],
        }
    }
}

/// Whether a name of a tool may have a character. OpenAI's rule.
pub(crate) fn is_of_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '-')
}

/// A part of an answer. The texts of all parts in a row are the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallPart {
    /// Text outside of calls.
    Text(String),
    /// A call begins.
    Call {
        /// Which tool is called.
        name: String,
        /// How that was written.
        written: String,
    },
    /// More of the arguments of the last call.
    Arguments(String),
    /// What is neither: the ends of calls, and what is between them.
    Hidden(String),
}

impl CallPart {
    /// What was written.
    pub fn text(&self) -> &str {
        match self {
            CallPart::Text(text) | CallPart::Arguments(text) | CallPart::Hidden(text) => text,
            CallPart::Call { written, .. } => written,
        }
    }
}

/// Where in the answer it is.
#[derive(Clone, Copy, Debug)]
enum State {
    /// Nothing has come yet, and a call can only be the first that does.
    Start,
    /// In text, and a call may come anywhere.
    Text,
    /// In text, and no call can come any more.
    OnlyText,
    /// What is held begins like a call.
    Opening,
    Arguments(Json),
    /// After arguments.
    Closing,
    /// After a call.
    After,
}

/// How deep in an object of JSON it is.
#[derive(Clone, Copy, Debug, Default)]
struct Json {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Json {
    /// Takes a byte; whether the object ends with it.
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

/// How a text begins, compared to what is looked for.
enum Beginning<T> {
    /// It is that.
    Is(T),
    /// It may become that.
    MayBe,
    /// It is something else.
    Other,
}

fn beginning(text: &str, wanted: &str) -> Beginning<usize> {
    match () {
        () if text.starts_with(wanted) => Beginning::Is(wanted.len()),
        () if wanted.starts_with(text) => Beginning::MayBe,
        () => Beginning::Other,
    }
}

/// Finds calls in one answer. How the text is cut into pieces makes no difference but for where parts are cut.
#[derive(Clone, Debug)]
pub struct CallReader {
    form: CallForm,
    state: State,
    /// Text that is no part yet.
    held: String,
}

impl CallReader {
    /// For an answer in which calls may be `anywhere`, as far as the form can be told from text; else only where it begins.
    pub fn new(form: CallForm, anywhere: bool) -> CallReader {
        let state = if anywhere && form.trigger > 0 { State::Text } else { State::Start };
        CallReader { form, state, held: String::new() }
    }

    /// Takes text; returns the parts that it completes.
    pub fn push(&mut self, text: &str) -> Vec<CallPart> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        while !self.held.is_empty() && self.step(&mut parts) {}
        parts
    }

    /// The answer has ended: the rest of it. A call whose name is not known by now is none, and its beginning no text.
    pub fn finish(&mut self) -> Vec<CallPart> {
        let rest = std::mem::take(&mut self.held);
        let part = match self.state {
            State::Start | State::Text | State::OnlyText => CallPart::Text,
            State::Opening | State::Closing | State::After => CallPart::Hidden,
            State::Arguments(_) => CallPart::Arguments,
        };
        Some(rest).filter(|rest| !rest.is_empty()).map(part).into_iter().collect()
    }

    /// Takes so many bytes of what is held.
    fn take(&mut self, bytes: usize) -> String {
        let rest = self.held.split_off(bytes);
        std::mem::replace(&mut self.held, rest)
    }

    /// Goes on by one part or one state; false where more text is needed.
    fn step(&mut self, parts: &mut Vec<CallPart>) -> bool {
        match self.state {
            State::Start => match beginning(&self.held, self.form.trigger()) {
                Beginning::Is(_) => self.state = State::Opening,
                Beginning::MayBe => return false,
                Beginning::Other => self.state = State::OnlyText,
            },
            State::OnlyText => parts.push(CallPart::Text(self.take(self.held.len()))),
            State::Text => {
                let trigger = self.form.trigger();
                let found = self.held.find(trigger);
                let open = (1..trigger.len())
                    .rev()
                    .find(|length| self.held.as_bytes().ends_with(&trigger.as_bytes()[..*length]));
                let text = found.unwrap_or(self.held.len() - open.unwrap_or(0));
                if text > 0 {
                    let text = self.take(text);
                    parts.push(CallPart::Text(text));
                }
                if found.is_none() {
                    return false;
                }
                self.state = State::Opening;
            }
            State::Opening => match self.opening() {
                Beginning::Is((length, name)) => {
                    parts.push(CallPart::Call { name, written: self.take(length) });
                    self.state = State::Arguments(Json::default());
                }
                Beginning::MayBe => return false,
                Beginning::Other => {
                    let text = self.take(self.form.trigger().len());
                    parts.push(CallPart::Text(text));
                    self.state = if self.form.trigger > 0 { State::Text } else { State::OnlyText };
                }
            },
            State::Arguments(mut json) => {
                let end = self.held.bytes().position(|byte| json.step(byte));
                let text = self.take(end.map_or(self.held.len(), |end| end + 1));
                parts.push(CallPart::Arguments(text));
                self.state = if end.is_some() { State::Closing } else { State::Arguments(json) };
            }
            State::Closing => match beginning(&self.held, &self.form.tail) {
                Beginning::Is(length) => {
                    if length > 0 {
                        parts.push(CallPart::Hidden(self.take(length)));
                    }
                    self.state = State::After;
                }
                Beginning::MayBe => return false,
                Beginning::Other => self.state = State::After,
            },
            State::After => {
                let space = self.held.len() - self.held.trim_start().len();
                if space > 0 {
                    parts.push(CallPart::Hidden(self.take(space)));
                    return true;
                }
                match beginning(&self.held, self.form.trigger()) {
                    Beginning::Is(_) => self.state = State::Opening,
                    Beginning::MayBe => return false,
                    Beginning::Other => {
                        self.state = if self.form.trigger > 0 { State::Text } else { State::OnlyText }
                    }
                }
            }
        }
        true
    }

    /// The length of the opening that is held, and the name in it.
    fn opening(&self) -> Beginning<(usize, String)> {
        let CallForm { begin, middle, .. } = &self.form;
        let start = match beginning(&self.held, begin) {
            Beginning::Is(start) => start,
            Beginning::MayBe => return Beginning::MayBe,
            Beginning::Other => return Beginning::Other,
        };
        let name = &self.held[start..];
        let Some(length) = name.find(|character| !is_of_name(character)) else { return Beginning::MayBe };
        match beginning(&name[length..], middle) {
            Beginning::Is(middle) if length > 0 => {
                Beginning::Is((start + length + middle, name[..length].to_owned()))
            }
            Beginning::MayBe if length > 0 => Beginning::MayBe,
            _ => Beginning::Other,
        }
    }
}
