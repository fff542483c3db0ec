//! Answers that may, or must, call tools.
//!
//! A call looks as the model's own template writes it (`text::CallForm`), with the name of a tool and arguments that its schema allows. Text is
//! free up to what a call begins with; from there on it is one. After a call only more calls may follow: messages have what is said before what is
//! called, so that there is no place for more.

use std::fmt::Write;
use std::time::{Duration, Instant};

use llguidance::{JsonCompileOptions, api::TopLevelGrammar};
use serde_json::{Value, json};
use text::CallForm;

use crate::{Error, Grammar, Grammars, Result, SCHEMA, limits, schema};

/// What an answer may call, and what else it may be.
#[derive(Clone, Debug, PartialEq)]
pub struct Calls {
    /// How calls are written.
    pub form: CallForm,
    /// What may be called: one tool or more.
    pub tools: Vec<Callable>,
    /// Whether there may be more than one call, where the form has room for that.
    pub parallel: bool,
    /// What an answer without a call is.
    pub otherwise: Otherwise,
}

/// A tool that may be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Callable {
    /// Which of the caller's it is: errors say so.
    pub at: usize,
    /// Its name, of letters, digits, `_` and `-`.
    pub name: String,
    /// The schema of its arguments; without one it has none.
    pub parameters: Option<Value>,
    /// Whether a schema that cannot be held to in all its parts is refused. Else those parts are left out.
    pub strict: bool,
}

/// What an answer without a call is.
#[derive(Clone, Debug, PartialEq)]
pub enum Otherwise {
    /// There is none: the answer calls something.
    Nothing,
    /// Text, in which a call may begin anywhere.
    Text,
    /// JSON of a schema.
    Json(Value),
}

const WHAT: &str = "the tools";

/// How long is looked for the one that is wrong, when they do not compile together.
const FAULT: Duration = Duration::from_secs(1);

impl Grammars {
    /// Answers that call tools. An error names the tool that is wrong, where it is one alone and is soon found.
    pub fn calls(&self, calls: &Calls) -> Result<Grammar> {
        if matches!(calls.otherwise, Otherwise::Json(_)) && calls.form.trigger == 0 {
            let why = "this model's calls are JSON themselves, and could not be told from an answer that is";
            return Err(Error::refused(WHAT, why));
        }
        let of = |tool: &Callable| tool.arguments().map_err(|error| Error::tool(tool.at, error));
        let arguments = calls.tools.iter().map(of).collect::<Result<Vec<Value>>>()?;
        // Each has its own automata, so that what bounds one bounds all of them together.
        schema::check_multiples(&Value::Array(arguments.clone()))
            .map_err(|error| Error::refused(WHAT, error.why()))?;
        let lark = calls.lark(&arguments)?;
        limits::length(WHAT, &lark)?;
        self.compile(WHAT, TopLevelGrammar::from_lark(lark)).map_err(|error| {
            // Whose fault it is shows when each is tried alone. Many large ones would keep everyone waiting for that: then the error names them all.
            let begun = Instant::now();
            let alone = |schema: &Value| {
                self.compile(SCHEMA, TopLevelGrammar::from_json_schema(schema.clone())).err()
            };
            let tools = calls.tools.iter().zip(&arguments);
            let mut tried = tools.take_while(|_| begun.elapsed() < FAULT);
            let wrong = tried.find_map(|(tool, schema)| Some(Error::tool(tool.at, alone(schema)?)));
            wrong.unwrap_or_else(|| match &calls.otherwise {
                Otherwise::Json(schema) if begun.elapsed() < FAULT => {
                    self.json_schema(schema).err().unwrap_or(error)
                }
                _ => error,
            })
        })
    }
}

/// JSON as templates write it: a space after commas and colons, and no other. So a call has no white space of its own.
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

impl Callable {
    /// The schema of its arguments, which are an object.
    fn arguments(&self) -> Result<Value> {
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
            return Err(Error::refused(SCHEMA, "its type must be object, as arguments are"));
        }
        if let Value::Object(fields) = &mut schema {
            fields.insert("type".into(), "object".into());
        }
        schema::with(&schema, &options(!self.strict))
    }
}

impl Calls {
    fn lark(&self, arguments: &[Value]) -> Result<String> {
        let CallForm { begin, middle, tail, between, .. } = &self.form;
        let trigger = self.form.trigger();
        let more = match between {
            Some(between) if self.parallel => {
                format!(" ({} body)*", self.literal(&format!("{between}{begin}")))
            }
            _ => String::new(),
        };
        let call = format!("{} body{more}", self.literal(begin));
        let mut lark = match &self.otherwise {
            Otherwise::Nothing => format!("start: {call}\n"),
            Otherwise::Json(schema) => {
                let schema = schema::with(schema, &options(false))?;
                format!("start: {call} | %json {schema}\n")
            }
            // An answer that begins like a call is one.
            Otherwise::Text if self.form.trigger == 0 => {
                let first = trigger.chars().next().unwrap_or_default();
                format!("start: {call} | TEXT\nTEXT: /([^\\x{{{:x}}}](?s:.*))?/\n", u32::from(first))
            }
            Otherwise::Text => {
                let rest = self.literal(&begin[trigger.len()..]);
                let quoted = quoted(trigger);
                // Where it is a token that no text has, the model may still spell it.
                let token = match self.form.controls.iter().any(|(name, _)| trigger.contains(name.as_str())) {
                    true => format!(" | TEXT {}", self.literal(trigger)),
                    false => String::new(),
                };
                format!(
                    "start: TEXT | lead {rest} body{more}\nlead: spelled{token}\n\
                     spelled[lazy]: /(?s:.*)/ {quoted}\nTEXT: /(?s:.*)/\n"
                )
            }
        };
        let named = self.tools.iter().zip(arguments);
        let one = |(tool, schema): (&Callable, &Value)| {
            format!("{} %json {schema}", self.literal(&format!("{}{middle}", tool.name)))
        };
        let bodies: Vec<String> = named.map(one).collect();
        writeln!(lark, "body: ({}) {}", bodies.join("\n  | "), self.literal(tail)).expect("text grows");
        Ok(lark)
    }

    /// Text as it stands, in which control tokens are those, or spelled.
    fn literal(&self, text: &str) -> String {
        let controls = self.form.controls.iter();
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

/// A string of Lark, which are those of JSON.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
