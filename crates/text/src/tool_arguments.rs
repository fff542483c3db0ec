//! Incremental conversion of a tool call's arguments to JSON.
//!
//! Models write arguments as JSON, in Gemma 4's notation (`{city:<|"|>Paris<|"|>,days:3}`), or as XML-like
//! parameters (`<parameter=city>\nParis\n</parameter>`). Complete arguments become valid JSON whatever the model
//! writes: values that are not JSON become strings, and wrong brackets are closed as they were opened.

use std::collections::HashMap;

use serde_json::Value;

use crate::thinking::find;

/// Gemma 4's quotation mark.
pub(crate) const QUOTE: &str = "<|\"|>";

/// Tags of XML-like parameters.
pub(crate) const PARAMETER: &str = "<parameter=";
pub(crate) const PARAMETER_END: &str = "</parameter>";
const FUNCTION_END: &str = "</function>";

/// Result of parsing the start of a buffer.
#[derive(Default)]
pub(crate) struct Step {
    /// JSON of the consumed text.
    pub(crate) json: String,
    /// Bytes that were consumed.
    pub(crate) consumed: usize,
    /// Whether the arguments are complete.
    pub(crate) done: bool,
}

/// The arguments of one call.
#[derive(Clone, Debug)]
pub(crate) enum Arguments {
    Json(JsonScanner),
    Gemma4(Gemma4),
    Xml(Xml),
}

impl Arguments {
    /// Parses as much of the buffer as possible.
    pub(crate) fn step(&mut self, buffer: &str) -> Step {
        match self {
            Arguments::Json(scanner) => {
                let end = buffer.bytes().position(|byte| scanner.step(byte));
                let consumed = end.map_or(buffer.len(), |end| end + 1);
                Step { json: buffer[..consumed].to_owned(), consumed, done: end.is_some() }
            }
            Arguments::Gemma4(arguments) => arguments.step(buffer),
            Arguments::Xml(arguments) => arguments.step(buffer),
        }
    }

    /// JSON of the rest of arguments that are cut off; it is incomplete, too.
    pub(crate) fn finish(&self, buffer: &str) -> String {
        let within_text = match self {
            Arguments::Json(_) => false,
            Arguments::Gemma4(arguments) => matches!(arguments.mode, Mode::Text { .. }),
            Arguments::Xml(arguments) => matches!(arguments.mode, XmlMode::Text),
        };
        if within_text { escaped(buffer) } else { buffer.to_owned() }
    }
}

/// Finds the end of a JSON object.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct JsonScanner {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl JsonScanner {
    /// Within an object, after some of its fields.
    pub(crate) fn within_object() -> JsonScanner {
        JsonScanner { depth: 1, ..JsonScanner::default() }
    }

    /// Consumes a byte; returns whether it closes the object.
    pub(crate) fn step(&mut self, byte: u8) -> bool {
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

/// A JSON string without its quotation marks.
fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// A literal as JSON: itself if it is JSON, Python's constants, otherwise a string.
fn literal(text: &str) -> String {
    match text {
        "True" => "true".to_owned(),
        "False" => "false".to_owned(),
        "None" => "null".to_owned(),
        text if serde_json::from_str::<Value>(text).is_ok() => text.to_owned(),
        text => Value::from(text).to_string(),
    }
}

/// Arguments in Gemma 4's notation: bare keys, strings in [`QUOTE`], other values as in JSON.
#[derive(Clone, Debug)]
pub(crate) struct Gemma4 {
    /// Open brackets; true for an object.
    stack: Vec<bool>,
    mode: Mode,
    /// Whether a comma precedes the next key or value.
    comma: bool,
}

#[derive(Clone, Copy, Debug)]
enum Mode {
    Key,
    Colon,
    Value,
    AfterValue,
    /// Within [`QUOTE`]s.
    Text {
        is_key: bool,
    },
    /// Within `"`.
    Json {
        is_key: bool,
        escaped: bool,
    },
}

impl Gemma4 {
    pub(crate) fn new() -> Gemma4 {
        Gemma4 { stack: Vec::new(), mode: Mode::Value, comma: false }
    }

    fn step(&mut self, buffer: &str) -> Step {
        let mut step = Step::default();
        while !step.done {
            let rest = &buffer[step.consumed..];
            let space = match self.mode {
                Mode::Text { .. } | Mode::Json { .. } => 0,
                _ => rest.len() - rest.trim_start().len(),
            };
            step.consumed += space;
            let Some(consumed) = self.advance(&rest[space..], &mut step) else { break };
            step.consumed += consumed;
        }
        step
    }

    /// Consumes some of the text; `None` if more is needed.
    fn advance(&mut self, rest: &str, step: &mut Step) -> Option<usize> {
        let first = rest.chars().next()?;
        let out = &mut step.json;
        match self.mode {
            Mode::Text { is_key } => {
                let found = find(rest, QUOTE);
                let (Ok(length) | Err(length)) = found;
                *out += &escaped(&rest[..length]);
                match found {
                    Ok(length) => {
                        out.push('"');
                        self.mode = if is_key { Mode::Colon } else { Mode::AfterValue };
                        Some(length + QUOTE.len())
                    }
                    Err(0) => None,
                    Err(length) => Some(length),
                }
            }
            Mode::Json { is_key, escaped: was_escaped } => {
                match first {
                    '"' if !was_escaped => {
                        out.push('"');
                        self.mode = if is_key { Mode::Colon } else { Mode::AfterValue };
                    }
                    c => {
                        // A backslash that escapes nothing is meant as one.
                        if was_escaped && !"\"\\/bfnrtu".contains(c) {
                            out.push('\\');
                        }
                        match c < ' ' {
                            true => *out += &escaped(c.encode_utf8(&mut [0; 4])),
                            false => out.push(c),
                        }
                        self.mode = Mode::Json { is_key, escaped: c == '\\' && !was_escaped };
                    }
                }
                Some(first.len_utf8())
            }
            Mode::Colon => {
                out.push(':');
                self.mode = Mode::Value;
                Some(usize::from(first == ':'))
            }
            Mode::AfterValue => {
                match first {
                    ',' => {
                        self.comma = true;
                        self.mode = if self.stack.last() == Some(&true) { Mode::Key } else { Mode::Value };
                    }
                    '}' | ']' => self.close(step),
                    // Not part of any value.
                    _ => {}
                }
                Some(first.len_utf8())
            }
            Mode::Key | Mode::Value => self.begin(rest, first, step),
        }
    }

    /// Begins a key or a value.
    fn begin(&mut self, rest: &str, first: char, step: &mut Step) -> Option<usize> {
        let is_key = matches!(self.mode, Mode::Key);
        let is_member = self.stack.last() == Some(&true) && !is_key;
        match first {
            '}' | ']' if is_member => {
                // The value is missing.
                step.json += "null";
                self.mode = Mode::AfterValue;
                return Some(0);
            }
            '}' | ']' if !self.stack.is_empty() => {
                self.close(step);
                return Some(1);
            }
            ',' => {
                step.json += if is_member { "null" } else { "" };
                self.mode = if is_member { Mode::AfterValue } else { self.mode };
                return Some(usize::from(!is_member));
            }
            _ if QUOTE.starts_with(rest) && rest.len() < QUOTE.len() => return None,
            _ => {}
        }
        let mut text = String::new();
        let consumed = if rest.starts_with(QUOTE) {
            text.push('"');
            self.mode = Mode::Text { is_key };
            QUOTE.len()
        } else if first == '"' {
            text.push('"');
            self.mode = Mode::Json { is_key, escaped: false };
            1
        } else if is_key {
            let end = rest.find([':', ',', '}'])?;
            text = Value::from(rest[..end].trim_end()).to_string();
            self.mode = Mode::Colon;
            end
        } else if first == '{' || first == '[' {
            text.push(first);
            self.begin_member(&mut step.json, &text);
            self.stack.push(first == '{');
            self.mode = if first == '{' { Mode::Key } else { Mode::Value };
            return Some(1);
        } else {
            let end = rest.find([',', '}', ']'])?;
            text = literal(rest[..end].trim_end());
            self.mode = Mode::AfterValue;
            end
        };
        self.begin_member(&mut step.json, &text);
        Some(consumed)
    }

    fn begin_member(&mut self, json: &mut String, text: &str) {
        if std::mem::take(&mut self.comma) {
            json.push(',');
        }
        *json += text;
    }

    fn close(&mut self, step: &mut Step) {
        if let Some(is_object) = self.stack.pop() {
            step.json.push(if is_object { '}' } else { ']' });
        }
        self.comma = false;
        self.mode = Mode::AfterValue;
        step.done = self.stack.is_empty();
    }
}

/// XML-like parameters. Values are text or JSON, by the schema of the tool.
#[derive(Clone, Debug)]
pub(crate) struct Xml {
    /// Whether the value of a parameter is text, by name.
    is_text: HashMap<String, bool>,
    mode: XmlMode,
    count: usize,
}

#[derive(Clone, Copy, Debug)]
enum XmlMode {
    Start,
    Between,
    Text,
    Json,
}

impl Xml {
    /// `schema` is that of the tool's arguments.
    pub(crate) fn new(schema: Option<&Value>) -> Xml {
        let properties = schema.and_then(|schema| schema["properties"].as_object()).into_iter().flatten();
        let is_text = |(name, property): (&String, &Value)| {
            (name.clone(), is_text(schema.unwrap_or(&Value::Null), property))
        };
        Xml { is_text: properties.map(is_text).collect(), mode: XmlMode::Start, count: 0 }
    }

    fn step(&mut self, buffer: &str) -> Step {
        let mut step = Step::default();
        while !step.done {
            let Some(consumed) = self.advance(&buffer[step.consumed..], &mut step) else { break };
            step.consumed += consumed;
        }
        step
    }

    /// Consumes some of the text; `None` if more is needed.
    fn advance(&mut self, rest: &str, step: &mut Step) -> Option<usize> {
        match self.mode {
            XmlMode::Start => {
                step.json.push('{');
                self.mode = XmlMode::Between;
                Some(0)
            }
            XmlMode::Between => self.between(rest, step),
            XmlMode::Text => {
                let found = find(rest, PARAMETER_END);
                let (Ok(length) | Err(length)) = found;
                // The last line break belongs to the tag.
                let text = rest[..length].strip_suffix('\n').unwrap_or(&rest[..length]);
                step.json += &escaped(text);
                match found {
                    Ok(length) => {
                        step.json.push('"');
                        self.mode = XmlMode::Between;
                        Some(length + PARAMETER_END.len())
                    }
                    Err(_) => Some(text.len()).filter(|length| *length > 0),
                }
            }
            XmlMode::Json => {
                let length = rest.find(PARAMETER_END)?;
                step.json += &literal(rest[..length].trim());
                self.mode = XmlMode::Between;
                Some(length + PARAMETER_END.len())
            }
        }
    }

    fn between(&mut self, rest: &str, step: &mut Step) -> Option<usize> {
        let first = rest.chars().next()?;
        if let Some(name) = rest.strip_prefix(PARAMETER) {
            let end = name.find('>')?;
            // A line break after the tag belongs to it.
            let after = &name[end + 1..];
            let line_break = usize::from(after.chars().next()? == '\n');
            let name = &name[..end];
            step.json += if self.count > 0 { "," } else { "" };
            step.json += &Value::from(name).to_string();
            step.json.push(':');
            self.count += 1;
            self.mode = XmlMode::Json;
            if self.is_text.get(name).copied().unwrap_or(false) {
                step.json.push('"');
                self.mode = XmlMode::Text;
            }
            return Some(PARAMETER.len() + end + 1 + line_break);
        }
        if rest.starts_with(FUNCTION_END) {
            step.json.push('}');
            step.done = true;
            return Some(0);
        }
        // Anything else between parameters is white space, or no part of them.
        let may_be_tag = [PARAMETER, FUNCTION_END].iter().any(|tag| tag.starts_with(rest));
        (!may_be_tag).then(|| first.len_utf8())
    }
}

/// Whether a parameter's value is written as text rather than as JSON: all values that its schema allows are
/// strings. `root` is the schema of all arguments, to which references refer.
pub fn is_text(root: &Value, schema: &Value) -> bool {
    is_text_within(root, schema, 8)
}

/// References are followed up to `depth` times.
fn is_text_within(root: &Value, schema: &Value, depth: usize) -> bool {
    let is_string = |value: &Value| value.is_string();
    let all = |list: &Value, test: &dyn Fn(&Value) -> bool| {
        list.as_array().is_some_and(|list| !list.is_empty() && list.iter().all(test))
    };
    if let Some(reference) = schema["$ref"].as_str() {
        let target = reference.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        return depth > 0 && target.is_some_and(|target| is_text_within(root, target, depth - 1));
    }
    match &schema["type"] {
        Value::String(kind) => kind == "string",
        list @ Value::Array(_) => all(list, &|kind| kind == "string"),
        _ => {
            is_string(&schema["const"])
                || all(&schema["enum"], &is_string)
                || ["anyOf", "oneOf"].iter().any(|key| {
                    depth > 0 && all(&schema[*key], &|branch| is_text_within(root, branch, depth - 1))
                })
        }
    }
}
