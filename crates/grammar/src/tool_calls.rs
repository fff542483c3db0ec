//! Grammars for completions that may, or must, call tools.
//!
//! A call has the format of the model's own chat template ([`ToolCallFormat`]), with the name of an offered
//! tool and arguments that match its schema. Text is unconstrained up to the format's trigger; from there on
//! it is a call. Only further calls may follow a call: an assistant message holds its text before its calls.

use std::fmt::Write;
use std::time::{Duration, Instant};

use llguidance::{JsonCompileOptions, api::TopLevelGrammar};
use serde_json::{Value, json};
use text::{CallSyntax, ToolCallFormat};

use crate::notation::{Notation, Quote, quoted};
use crate::{Error, Grammar, GrammarCompiler, Result, SCHEMA, limits, schema};

/// The input of a tool-call grammar.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCallGrammar {
    /// How the model writes calls.
    pub format: ToolCallFormat,
    /// The tools that may be called; at least one.
    pub tools: Vec<ToolSpec>,
    /// Whether one completion may hold several calls, if the format allows it.
    pub parallel: bool,
    /// Output that is allowed instead of calls.
    pub without_calls: NonCallOutput,
}

/// A tool that may be called.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// Index in the caller's list, used in errors.
    pub index: usize,
    /// The name: letters, digits, `_` and `-`.
    pub name: String,
    /// JSON schema of the arguments; `None` for a tool without arguments.
    pub parameters: Option<Value>,
    /// Whether unsupported schema features are an error. Otherwise they are ignored.
    pub strict: bool,
}

/// Output that is allowed instead of tool calls.
#[derive(Clone, Debug, PartialEq)]
pub enum NonCallOutput {
    /// Nothing: the completion must call a tool.
    Forbidden,
    /// Text, in which a call may start at any point.
    Text,
    /// JSON that matches a schema.
    Json(Value),
}

/// The subject of errors that no single tool causes.
const TOOLS: &str = "the tools";

/// Gemma 4's quotation mark.
const QUOTE: &str = "<|\"|>";

/// Time limit for finding the tool that makes the combined grammar fail.
const BLAME_TIMEOUT: Duration = Duration::from_secs(1);

impl GrammarCompiler {
    /// A grammar for completions that call tools. An error names the tool at fault, if a single tool causes
    /// it and can be found quickly.
    pub fn tool_calls(&self, calls: &ToolCallGrammar) -> Result<Grammar> {
        if matches!(calls.without_calls, NonCallOutput::Json(_)) && calls.format.trigger_len == 0 {
            let reason =
                "this model writes calls as plain JSON, which cannot be distinguished from JSON output";
            return Err(Error::invalid(TOOLS, reason));
        }
        let arguments_of = |tool: &ToolSpec| tool.arguments().map_err(|error| Error::tool(tool.index, error));
        let arguments = calls.tools.iter().map(arguments_of).collect::<Result<Vec<Value>>>()?;
        // The bound on multipleOf applies to all tools together: each adds its own automata.
        schema::check_multiples(&Value::Array(arguments.clone()))
            .map_err(|error| Error::invalid(TOOLS, error.reason()))?;
        let lark = calls.lark(&arguments)?;
        limits::check_length(TOOLS, &lark)?;
        self.compile(TOOLS, TopLevelGrammar::from_lark(lark)).map_err(|error| {
            // Compiling each schema by itself shows which one is at fault. With many large schemas that takes
            // too long; then the error names no tool.
            let start = Instant::now();
            let compile_alone = |schema: &Value| {
                self.compile(SCHEMA, TopLevelGrammar::from_json_schema(schema.clone())).err()
            };
            let tools = calls.tools.iter().zip(&arguments);
            let mut within_time = tools.take_while(|_| start.elapsed() < BLAME_TIMEOUT);
            let at_fault =
                within_time.find_map(|(tool, schema)| Some(Error::tool(tool.index, compile_alone(schema)?)));
            at_fault.unwrap_or_else(|| match &calls.without_calls {
                NonCallOutput::Json(schema) if start.elapsed() < BLAME_TIMEOUT => {
                    self.json_schema(schema).err().unwrap_or(error)
                }
                _ => error,
            })
        })
    }
}

/// A schema for JSON as templates write it.
pub(crate) fn json_schema(schema: &Value, strict: bool) -> Result<Value> {
    schema::with_options(schema, &options(!strict))
}

/// JSON as templates write it: one space after commas and colons, no other white space.
fn options(lenient: bool) -> JsonCompileOptions {
    JsonCompileOptions {
        item_separator: ", ".into(),
        key_separator: ": ".into(),
        whitespace_flexible: false,
        coerce_one_of: lenient,
        lenient,
        ..JsonCompileOptions::default()
    }
}

impl ToolSpec {
    /// The schema of the arguments, which are always an object.
    fn arguments(&self) -> Result<Value> {
        schema::with_options(&self.schema()?, &options(!self.strict))
    }

    /// The schema of the arguments as given, with the type of an object.
    fn schema(&self) -> Result<Value> {
        let mut schema = match &self.parameters {
            None => json!({ "type": "object", "properties": {}, "additionalProperties": false }),
            Some(Value::Bool(true)) => json!({}),
            Some(parameters) => parameters.clone(),
        };
        let object = match schema.get("type") {
            None => true,
            Some(Value::String(kind)) => kind == "object",
            Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "object"),
            Some(_) => false,
        };
        if !object {
            return Err(Error::invalid(SCHEMA, "its type must be object, because arguments are an object"));
        }
        if let Value::Object(fields) = &mut schema {
            fields.insert("type".into(), "object".into());
        }
        Ok(schema)
    }
}

impl ToolCallGrammar {
    fn lark(&self, arguments: &[Value]) -> Result<String> {
        let ToolCallFormat { prefix, infix, suffix, separator, .. } = &self.format;
        let trigger = self.format.trigger();
        let is_array = self.format.syntax == CallSyntax::JsonArray;
        let next = if is_array { self.format.element_prefix() } else { prefix };
        let mut more = match separator {
            Some(separator) if self.parallel => {
                format!(" ({} body)*", self.literal(&format!("{separator}{next}")))
            }
            _ => String::new(),
        };
        // The last character closes the array of all calls.
        let (suffix, close) = if is_array { suffix.split_at(suffix.len() - 1) } else { (&**suffix, "") };
        if is_array {
            more = format!("{more} {}", quoted(close));
        }
        let call = format!("{} body{more}", self.literal(prefix));
        let mut lark = match &self.without_calls {
            NonCallOutput::Forbidden => format!("start: {call}\n"),
            NonCallOutput::Json(schema) => {
                let schema = schema::with_options(schema, &options(false))?;
                format!("start: {call} | %json {schema}\n")
            }
            // Without a trigger, text must not start with the first character of a call.
            NonCallOutput::Text if self.format.trigger_len == 0 => {
                let first = trigger.chars().next().unwrap_or_default();
                format!("start: {call} | TEXT\nTEXT: /([^\\x{{{:x}}}](?s:.*))?/\n", u32::from(first))
            }
            NonCallOutput::Text => {
                let rest = self.literal(&prefix[trigger.len()..]);
                let quoted = quoted(trigger);
                // A trigger that is a control token may also be spelled as text.
                let is_control =
                    self.format.control_tokens.iter().any(|(name, _)| trigger.contains(name.as_str()));
                let token =
                    if is_control { format!(" | TEXT {}", self.literal(trigger)) } else { String::new() };
                format!(
                    "start: TEXT | lead {rest} body{more}\nlead: spelled{token}\n\
                     spelled[lazy]: /(?s:.*)/ {quoted}\nTEXT: /(?s:.*)/\n"
                )
            }
        };
        let body = |(tool, arguments): (&ToolSpec, String)| {
            format!("{} {arguments}", self.literal(&format!("{}{infix}", tool.name)))
        };
        let (arguments, rules) = self.arguments(arguments)?;
        lark += &rules;
        let bodies: Vec<String> = self.tools.iter().zip(arguments).map(body).collect();
        writeln!(lark, "body: ({}) {}", bodies.join("\n  | "), self.literal(suffix))
            .expect("writing to a String cannot fail");
        Ok(lark)
    }

    /// A Lark expression for the arguments of each tool, and the rules that they use.
    fn arguments(&self, json: &[Value]) -> Result<(Vec<String>, String)> {
        if matches!(self.format.syntax, CallSyntax::Json | CallSyntax::JsonArray) {
            return Ok((json.iter().map(|schema| format!("%json {schema}")).collect(), String::new()));
        }
        let schemas =
            self.tools.iter().map(|tool| tool.schema().map_err(|error| Error::tool(tool.index, error)));
        let schemas = schemas.collect::<Result<Vec<Value>>>()?;
        let control = self.format.control_tokens.iter().find(|(name, _)| name == QUOTE);
        let mut notation = Notation::new(control.map_or(Quote::Spelled(QUOTE), |(_, id)| Quote::Token(*id)));
        let mut arguments = Vec::new();
        for (tool, schema) in self.tools.iter().zip(&schemas) {
            let rule = match self.format.syntax {
                CallSyntax::Xml => notation.xml(schema, tool.strict, "<parameter=", "</parameter>"),
                _ => notation.gemma4(schema, tool.strict),
            };
            arguments.push(rule.map_err(|error| Error::tool(tool.index, error))?);
        }
        Ok((arguments, notation.into_rules()))
    }

    /// A Lark expression for literal text; each control token in it may be the token or spelled as text.
    fn literal(&self, text: &str) -> String {
        let controls = self.format.control_tokens.iter();
        let first = controls.filter_map(|(name, id)| Some((text.find(name.as_str())?, name, id))).min();
        match first {
            None => quoted(text),
            Some((at, name, id)) => format!(
                "{} (<[{id}]> | {}) {}",
                quoted(&text[..at]),
                quoted(name),
                self.literal(&text[at + name.len()..])
            ),
        }
    }
}
