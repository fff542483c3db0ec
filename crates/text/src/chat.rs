//! Chat templates: rendering a conversation as a prompt.
//!
//! Templates are Jinja with Hugging Face's extensions: trimmed blocks, Python's string methods,
//! `raise_exception`, `strftime_now`, and a `tojson` that formats like Python's. They come with model files
//! and are untrusted, so the number of instructions and the size of the output are limited; both limits grow
//! with the conversation.

use std::borrow::Cow;
use std::collections::HashSet;
use std::io::Write;
use std::ops::RangeInclusive;
use std::sync::OnceLock;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, ErrorKind, Value, context};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::images;
use crate::marks::Marks;
use crate::message::{Content, Message, Tool, map_value};
use crate::tokenizer::Tokenizer;
use crate::turns;

/// Gemma 3's format: alternating user and model turns, with the system message prepended to the first user
/// turn.
const GEMMA3: &str = r#"{{ bos_token }}
{%- set lead = namespace(text='', at=0) %}
{%- if messages and messages[0].role == 'system' %}
  {%- set lead.text = messages[0].content ~ '\n\n' %}
  {%- set lead.at = 1 %}
{%- endif %}
{%- for message in messages[lead.at:] %}
  {%- set expected = ['assistant', 'model'] if loop.index0 is odd else ['user'] %}
  {%- if message.role not in expected %}
    {{- raise_exception("message " ~ (loop.index0 + lead.at + 1) ~ " is from '" ~ message.role ~ "', but roles must alternate: (system,) user, assistant, user, assistant, …") }}
  {%- endif %}
  {{- '<start_of_turn>' ~ ('user' if loop.index0 is even else 'model') ~ '\n' }}
  {{- lead.text if loop.first else '' }}
  {%- if message.content is string %}
    {{- message.content | trim }}
  {%- else %}
    {%- for part in message.content %}
      {{- '<start_of_image>' if part.type == 'image' else part.text | trim }}
    {%- endfor %}
  {%- endif %}
  {{- '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"#;

const TEMPLATE_NAME: &str = "chat";

/// Unicode's private-use characters: no template trims or changes them.
const PRIVATE_USE: RangeInclusive<char> = '\u{e000}'..='\u{f8ff}';

/// Maximum instructions of a template: a base, plus a number per message and tool call. The longest templates
/// in use take a few hundred per message.
const BASE_FUEL: u64 = 100_000;
const FUEL_PER_MESSAGE: u64 = 5_000;

/// Additional instructions per byte of the tool descriptions: some templates convert the schemas to types.
const FUEL_PER_BYTE: u64 = 10;

/// Maximum output of a template: a base, plus a multiple of the conversation's text, all in bytes.
const BASE_OUTPUT: usize = 1 << 20;
const OUTPUT_PER_INPUT: usize = 4;

/// Where a prompt ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptEnd {
    /// Where the reply of the model starts.
    #[default]
    Reply,
    /// After the last message.
    Messages,
    /// At the end of the last message's text, which the model continues.
    LastMessage,
}

/// How a conversation becomes a prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromptOptions {
    /// Where the prompt ends.
    pub end: PromptEnd,
    /// Variables of the template besides those that every template has.
    pub variables: Variables,
}

/// Variables of a template, by name.
pub type Variables = serde_json::Map<String, serde_json::Value>;

/// Sets the variables by which templates switch thinking on or off, unless they have a value.
pub fn set_thinking(variables: &mut Variables, on: bool) {
    for name in ["enable_thinking", "thinking"] {
        variables.entry(name).or_insert(on.into());
    }
}

/// Variables that every template has.
pub const TEMPLATE_VARIABLES: [&str; 5] =
    ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"];

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
    /// Whether tool results belong to the message with the calls.
    folds_results: OnceLock<bool>,
    /// Whether a message that only calls tools needs an empty text.
    needs_text: OnceLock<bool>,
}

impl ChatTemplate {
    /// Compiles a template from `tokenizer_config.json`, `chat_template.jinja` or a GGUF's
    /// `tokenizer.chat_template`. `bos` and `eos` are the names of those tokens; empty if the model has none.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<ChatTemplate> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| template_error(&e))?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", crate::clock::strftime_now);
        environment.add_filter("tojson", to_json);
        environment.add_template_owned(TEMPLATE_NAME, source.to_owned()).map_err(|e| template_error(&e))?;
        Ok(ChatTemplate {
            environment,
            source: source.to_owned(),
            bos: bos.to_owned(),
            eos: eos.to_owned(),
            folds_results: OnceLock::new(),
            needs_text: OnceLock::new(),
        })
    }

    /// The template's own text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Gemma 3's format, for files without a template. Renders conversations like the official template; roles must
    /// alternate, which this template checks more strictly.
    pub fn gemma3() -> ChatTemplate {
        ChatTemplate::new(GEMMA3, "<bos>", "<end_of_turn>").expect("the built-in template compiles")
    }

    /// Renders a conversation. With `add_generation_prompt`, the text ends where the model's reply starts.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        self.render_with_tools::<()>(messages, add_generation_prompt, None)
    }

    /// Renders a conversation and encodes it as a prompt. Only text of the template itself becomes control
    /// tokens. The content of messages is always encoded as text, so that it cannot end a turn or start
    /// another one.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<Vec<u32>> {
        let end = if add_generation_prompt { PromptEnd::Reply } else { PromptEnd::Messages };
        self.encode_with_tools(tokenizer, messages, &[], &PromptOptions { end, ..PromptOptions::default() })
    }

    /// [`ChatTemplate::encode`] with the tools that the assistant may call, and with options. The text of tools
    /// never becomes control tokens either.
    pub fn encode_with_tools(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        tools: &[Tool],
        options: &PromptOptions,
    ) -> Result<Vec<u32>> {
        Ok(self.encode_with_images(tokenizer, messages, tools, options, &[])?.concat())
    }

    /// [`ChatTemplate::encode_with_tools`] for messages with images. Returns the tokens before, between and after the
    /// images: one piece more than images. `images_per_picture` has the number of images that each picture (each
    /// [`Part::Image`](crate::Part::Image)) becomes, at least 1: itself and its crops.
    pub fn encode_with_images(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        tools: &[Tool],
        options: &PromptOptions,
        images_per_picture: &[usize],
    ) -> Result<Vec<Vec<u32>>> {
        let pictures: usize = messages.iter().map(Message::image_count).sum();
        if pictures != images_per_picture.len() {
            let given = images_per_picture.len();
            return Err(Error::Rejected(format!(
                "the messages have {pictures} images, but {given} were given"
            )));
        }
        if pictures > 0 {
            images::ImageSyntax::of(tokenizer)?;
        }
        let encode = |text: &str, mark: Option<char>| match images_per_picture {
            [] => Ok(vec![tokenizer.encode_marked(text, mark)]),
            counts => images::encode_expanded(tokenizer, text, mark, counts),
        };
        let marks = Marks::new(tokenizer.controls(), &self.source, [&self.bos, &self.eos]);
        let mut needed = false;
        let mut used: HashSet<char> = self.source.chars().filter(|c| PRIVATE_USE.contains(c)).collect();
        let mut visit = |text: &str| {
            needed = needed || marks.needed(text);
            used.extend(text.chars().filter(|c| PRIVATE_USE.contains(c)));
        };
        each_text(messages, tools, &mut visit);
        map_variables(&options.variables, &mut |text| {
            visit(text);
            String::new()
        });
        let mut unused = PRIVATE_USE.clone().filter(|c| !used.contains(c));
        let mut unused = || {
            let none =
                || Error::Rejected("the messages contain every private-use character of Unicode".into());
            unused.next().ok_or_else(none)
        };
        // Marks where the text of the last message ends.
        let end = match options.end {
            PromptEnd::LastMessage => Some(unused()?),
            PromptEnd::Reply | PromptEnd::Messages => None,
        };
        let render = |messages: &[Message], tools: &[Tool], variables: &Variables| {
            let tools = (!tools.is_empty()).then_some(&tools);
            let is_reply = options.end == PromptEnd::Reply;
            // Templates without images fail on a list of parts, each in its own way.
            let unsupported = |error| match error {
                Error::Template(_) if pictures > 0 => images::unsupported_template(),
                error => error,
            };
            let Some(end) = end else {
                return self.render_all(messages, is_reply, tools, variables).map_err(unsupported);
            };
            let mut messages = messages.to_vec();
            let last = messages.last_mut().and_then(|message| message.content.as_mut());
            last.ok_or_else(|| Error::Rejected("the last message has no text to continue".into()))?.push(end);
            let mut text = self.render_all(&messages, false, tools, variables).map_err(unsupported)?;
            let length = text.rfind(end).ok_or_else(|| {
                Error::Rejected("the template leaves out the end of the last message".into())
            })?;
            text.truncate(length);
            // A template may show the message more than once.
            Ok(text.replace(end, ""))
        };
        if !needed {
            return encode(&render(messages, tools, &options.variables)?, None);
        }
        let mark = unused()?;
        let mut insert_marks = |text: &str| marks.insert(text, mark);
        let messages: Vec<Message> = messages.iter().map(|message| message.map(&mut insert_marks)).collect();
        let tools: Vec<Tool> = tools.iter().map(|tool| tool.map(&mut insert_marks)).collect();
        let variables = map_variables(&options.variables, &mut insert_marks);
        encode(&render(&messages, &tools, &variables)?, Some(mark))
    }

    /// [`ChatTemplate::render`] with tool descriptions, which are serialised to JSON. Keys keep the order in
    /// which `T` serialises them.
    pub fn render_with_tools<T: Serialize>(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        tools: Option<&T>,
    ) -> Result<String> {
        self.render_all(messages, add_generation_prompt, tools, &Variables::new())
    }

    fn render_all<T: Serialize>(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        tools: Option<&T>,
        variables: &Variables,
    ) -> Result<String> {
        let folds_results = *self.folds_results.get_or_init(|| turns::needs_folded_results(self));
        let calls: usize = messages.iter().map(|message| message.tool_calls.len()).sum();
        let mut input = 0;
        each_text(messages, &[], &mut |text| input += text.len());
        let parts = |message: &Message| message.content.as_ref().map_or(1, Content::part_count).max(1);
        let count = messages.iter().map(parts).sum::<usize>() + calls;
        let mut messages = Cow::Borrowed(messages);
        let without_text = |message: &Message| message.content.is_none();
        if messages.iter().any(without_text) && *self.needs_text.get_or_init(|| turns::needs_text(self)) {
            for message in messages.to_mut().iter_mut().filter(|message| without_text(message)) {
                message.content = Some("".into());
            }
        }
        let messages = match folds_results {
            true => Value::from(Serde(turns::fold_results(&messages))),
            false => Value::from(Serde(&*messages)),
        };
        let mut text = self.render_parts(messages, count, input, add_generation_prompt, tools, variables)?;
        // A user may write the delimiter, too.
        if add_generation_prompt && self.source().contains(turns::TURN_END) {
            let question = || {
                let messages = Value::from(Serde([Message::new("user", "")]));
                self.render_parts::<()>(messages, 1, 0, true, None, variables).ok()
            };
            turns::open_turn(&mut text, question);
        }
        Ok(text)
    }

    /// Renders messages that are JSON already.
    pub(crate) fn render_values(&self, messages: &Vec<serde_json::Value>, count: usize) -> Result<String> {
        let messages = Value::from(Serde(messages));
        self.render_parts::<()>(messages, count, 0, true, None, &Variables::new())
    }

    /// Renders `count` messages and calls with `input` bytes of text.
    fn render_parts<T: Serialize>(
        &self,
        messages: Value,
        count: usize,
        input: usize,
        add_generation_prompt: bool,
        tools: Option<&T>,
        variables: &Variables,
    ) -> Result<String> {
        let tools = tools.map(|tools| Value::from(Serde(tools)));
        let tools_len = tools.as_ref().map_or(0, |tools| tools.to_string().len());
        let left = BASE_OUTPUT + OUTPUT_PER_INPUT * (input + tools_len);
        let mut output = Bounded { text: Vec::new(), left };
        let context = context! {
            messages,
            add_generation_prompt,
            tools,
            bos_token => &*self.bos,
            eos_token => &*self.eos,
            ..Value::from(Serde(variables))
        };
        // Fuel is set on the environment; the clone shares the compiled template.
        let mut environment = self.environment.clone();
        let fuel = FUEL_PER_MESSAGE * count as u64 + FUEL_PER_BYTE * tools_len as u64;
        environment.set_fuel(Some(BASE_FUEL + fuel));
        let template = environment.get_template(TEMPLATE_NAME).map_err(|e| template_error(&e))?;
        template.render_captured_to(context, &mut output).map_err(|e| template_error(&e))?;
        String::from_utf8(output.text).map_err(|_| Error::Template("its output is not UTF-8".into()))
    }
}

/// Calls `each` with every text of a conversation.
fn each_text(messages: &[Message], tools: &[Tool], each: &mut dyn FnMut(&str)) {
    let mut visit = |text: &str| {
        each(text);
        String::new()
    };
    messages.iter().for_each(|message| drop(message.map(&mut visit)));
    tools.iter().for_each(|tool| drop(tool.map(&mut visit)));
}

/// A copy with every text but the variables' names replaced by `map` of it.
fn map_variables(variables: &Variables, map: &mut dyn FnMut(&str) -> String) -> Variables {
    variables.iter().map(|(name, value)| (name.clone(), map_value(value, map))).collect()
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("bos", &self.bos).field("eos", &self.eos).finish_non_exhaustive()
    }
}

/// The message that a template passed to `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(text: String) -> Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, text.clone()).with_source(Raised(text)))
}

/// The output exceeded its limit.
#[derive(Debug, thiserror::Error)]
#[error("its output is much larger than the conversation")]
struct TooLarge;

/// A writer with a size limit.
struct Bounded {
    text: Vec<u8>,
    left: usize,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.left = self.left.checked_sub(bytes.len()).ok_or_else(|| std::io::Error::other(TooLarge))?;
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Converts an error: the template's own message from `raise_exception`, or else the cause and the line.
fn template_error(error: &minijinja::Error) -> Error {
    let mut source = Some(error as &(dyn std::error::Error + 'static));
    while let Some(cause) = source {
        if let Some(Raised(text)) = cause.downcast_ref() {
            return Error::Rejected(text.clone());
        }
        if cause.is::<std::io::Error>() {
            return Error::Template(TooLarge.to_string());
        }
        source = cause.source();
    }
    let what = match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, _) => "it exceeded the instruction limit".to_owned(),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
        (kind, None) => kind.to_string(),
    };
    match error.line() {
        Some(line) => Error::Template(format!("line {line}: {what}")),
        None => Error::Template(what),
    }
}

/// Like Python's `json.dumps(…, ensure_ascii=False)`: a space after commas and colons, no HTML escapes.
fn to_json(value: Value, indent: Option<usize>, kwargs: Kwargs) -> Result<Value, minijinja::Error> {
    let indent = indent.or(kwargs.get::<Option<usize>>("indent")?);
    let mut out = Vec::new();
    let written = match indent {
        Some(indent) => {
            let indent = " ".repeat(indent.min(16));
            let format = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, format))
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, Spaced)),
    };
    let failed =
        |e: &dyn std::fmt::Display| minijinja::Error::new(ErrorKind::BadSerialization, e.to_string());
    written.map_err(|e| failed(&e))?;
    String::from_utf8(out).map(Value::from_safe_string).map_err(|e| failed(&e))
}

/// Writes JSON on one line with a space after commas and colons.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        out.write_all(b": ")
    }
}
