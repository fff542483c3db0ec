//! Grammars for arguments that are not JSON: Gemma 4's notation, and XML-like parameters.
//!
//! llguidance compiles JSON schemas only for JSON. Here objects, arrays and strings of a schema become Lark rules
//! in the other notation; numbers, booleans and null are written as in JSON and stay JSON schemas. Keywords
//! without a rule (`pattern`, `format`, `allOf`, …) are an error in a strict tool and ignored in others.

use std::collections::HashMap;
use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::{Error, Result, SCHEMA};

/// Keywords that constrain values but have no rule.
const UNSUPPORTED: [&str; 10] = [
    "allOf",
    "not",
    "if",
    "pattern",
    "format",
    "uniqueItems",
    "contains",
    "patternProperties",
    "propertyNames",
    "dependentRequired",
];

/// A pattern of any text.
const TEXT: &str = "(?s:.*)";

/// The delimiter of strings in Gemma 4's notation.
#[derive(Clone, Debug)]
pub(crate) enum Quote {
    /// A control token, which text cannot contain.
    Token(u32),
    /// Its name, at which a text ends.
    Spelled(&'static str),
}

impl Quote {
    fn lark(&self) -> String {
        match self {
            Quote::Token(id) => format!("<[{id}]>"),
            Quote::Spelled(name) => quoted(name),
        }
    }
}

/// Writes rules for the arguments of tools.
pub(crate) struct Notation<'a> {
    quote: Quote,
    /// The schema of the current tool.
    root: &'a Value,
    strict: bool,
    rules: String,
    count: usize,
    /// Rules of references in the current tool.
    references: HashMap<String, String>,
    /// The rule for any value, once it is needed.
    any: Option<String>,
}

impl<'a> Notation<'a> {
    /// `quote` is the delimiter of strings.
    pub(crate) fn new(quote: Quote) -> Notation<'a> {
        Notation {
            quote,
            root: &Value::Null,
            strict: false,
            rules: String::new(),
            count: 0,
            references: HashMap::new(),
            any: None,
        }
    }

    /// The rules so far.
    pub(crate) fn into_rules(self) -> String {
        self.rules
    }

    /// The name of a rule for arguments in Gemma 4's notation.
    pub(crate) fn gemma4(&mut self, schema: &'a Value, strict: bool) -> Result<String> {
        self.begin(schema, strict);
        self.object(schema)
    }

    /// The name of a rule for XML-like parameters, each with the line break after it. A parameter is `open`, its
    /// name, `>\n`, its value, `\n`, `close`, `\n`.
    pub(crate) fn xml(&mut self, schema: &'a Value, strict: bool, open: &str, close: &str) -> Result<String> {
        self.begin(schema, strict);
        self.check(schema)?;
        let end = quoted(&format!("\n{close}\n"));
        let mut members = Vec::new();
        for (name, property, is_required) in members_of(schema) {
            let start = quoted(&format!("{open}{name}>\n"));
            let value = self.parameter(property, &end)?;
            members.push((self.rule(&format!("{start} {value}")), is_required));
        }
        let other = match additional(schema, &members) {
            None => None,
            Some(_) => {
                let value = self.rule_with("[lazy]", &format!("/{TEXT}/ {end}"));
                Some(self.rule(&format!("{} /[^>\\n]+/ \">\\n\" {value}", quoted(open))))
            }
        };
        Ok(self.sequence(&members, other.as_deref(), ""))
    }

    fn begin(&mut self, schema: &'a Value, strict: bool) {
        (self.root, self.strict) = (schema, strict);
        self.references.clear();
    }

    /// The value of an XML-like parameter with what follows it.
    fn parameter(&mut self, schema: &'a Value, end: &str) -> Result<String> {
        self.check(schema)?;
        if !text::is_text(self.root, schema) {
            let mut alone = match schema {
                Value::Object(fields) => fields.clone(),
                _ => Map::new(),
            };
            for key in ["$defs", "definitions"] {
                if let Some(definitions) = self.root.get(key) {
                    alone.insert(key.to_owned(), definitions.clone());
                }
            }
            let schema = crate::tool_calls::json_schema(&Value::Object(alone), self.strict)?;
            return Ok(format!("%json {schema} {end}"));
        }
        let texts = choices(self.resolve(schema));
        if !texts.is_empty() {
            let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
            return Ok(format!("({}) {end}", texts.join(" | ")));
        }
        let pattern = bounded(self.resolve(schema), NO_DELIMITER);
        // Up to the first end.
        Ok(self.rule_with("[lazy]", &format!("/{}/ {end}", pattern.as_deref().unwrap_or(TEXT))))
    }

    /// A reference's target; other schemas as they are.
    fn resolve(&self, schema: &'a Value) -> &'a Value {
        let mut schema = schema;
        for _ in 0..8 {
            let target = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
            match target.and_then(|pointer| self.root.pointer(pointer)) {
                Some(target) => schema = target,
                None => break,
            }
        }
        schema
    }

    /// A Lark expression for a value in Gemma 4's notation.
    fn value(&mut self, schema: &'a Value) -> Result<String> {
        self.check(schema)?;
        if let Some(reference) = schema["$ref"].as_str() {
            return self.reference(reference);
        }
        if let Some(values) = schema["enum"]
            .as_array()
            .map(Vec::as_slice)
            .or_else(|| schema.get("const").map(std::slice::from_ref))
        {
            let values: Vec<String> = values.iter().map(|value| self.constant(value)).collect();
            return Ok(format!("({})", values.join(" | ")));
        }
        let kinds: Vec<&str> = match &schema["type"] {
            Value::String(kind) => vec![kind],
            Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
            _ if schema.get("properties").is_some() => vec!["object"],
            _ if schema.get("items").is_some() => vec!["array"],
            _ => vec![],
        };
        for branches in ["anyOf", "oneOf"] {
            if let Some(branches) =
                schema[branches].as_array().filter(|list| !list.is_empty() && kinds.is_empty())
            {
                let branches =
                    branches.iter().map(|branch| self.value(branch)).collect::<Result<Vec<String>>>()?;
                return Ok(format!("({})", branches.join(" | ")));
            }
        }
        let mut options = Vec::new();
        for kind in &kinds {
            options.push(match *kind {
                "object" => self.object(schema)?,
                "array" => self.array(schema)?,
                "string" => self.string(schema),
                "integer" | "number" | "boolean" | "null" => {
                    let mut scalar = json!({ "type": kind });
                    for key in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"] {
                        if let Some(limit) = schema.get(key).filter(|_| matches!(*kind, "integer" | "number"))
                        {
                            scalar[key] = limit.clone();
                        }
                    }
                    format!("%json {scalar}")
                }
                other => return Err(Error::invalid(SCHEMA, &format!("unknown type '{other}'"))),
            });
        }
        if options.is_empty() { Ok(self.any()) } else { Ok(format!("({})", options.join(" | "))) }
    }

    fn reference(&mut self, reference: &str) -> Result<String> {
        if let Some(rule) = self.references.get(reference) {
            return Ok(rule.clone());
        }
        let target = reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer));
        let target =
            target.ok_or_else(|| Error::invalid(SCHEMA, &format!("reference '{reference}' not found")))?;
        // The name is known before the rule is, which may refer to itself.
        let name = self.name();
        self.references.insert(reference.to_owned(), name.clone());
        let value = self.value(target)?;
        self.define(&name, "", &value);
        Ok(name)
    }

    fn object(&mut self, schema: &'a Value) -> Result<String> {
        self.check(schema)?;
        let mut listed: Vec<_> = members_of(schema).collect();
        // The order in which the template lists them.
        listed.sort_by_cached_key(|(name, ..)| name.to_lowercase());
        let mut members = Vec::new();
        for (name, property, is_required) in listed {
            let is_plain = name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '$'));
            let key = match is_plain && !name.is_empty() {
                true => quoted(&format!("{name}:")),
                false => format!("{0} {1} {0} \":\"", self.quote.lark(), quoted(name)),
            };
            let value = self.value(property)?;
            members.push((self.rule(&format!("{key} {value}")), is_required));
        }
        let other = match additional(schema, &members) {
            None => None,
            Some(schema) => {
                let value = self.value(schema)?;
                Some(self.rule(&format!("/[A-Za-z_][A-Za-z0-9_.-]*/ \":\" {value}")))
            }
        };
        let sequence = self.sequence(&members, other.as_deref(), "\",\" ");
        Ok(self.rule(&format!("\"{{\" {sequence} \"}}\"")))
    }

    fn array(&mut self, schema: &'a Value) -> Result<String> {
        const ANY: &Value = &Value::Bool(true);
        let item = self.value(schema.get("items").unwrap_or(ANY))?;
        let item = self.rule(&item);
        let limit = |key: &str| schema[key].as_u64();
        let (least, most) = (limit("minItems").unwrap_or(0), limit("maxItems"));
        let more = match most {
            _ if most == Some(0) => return Ok("\"[]\"".to_owned()),
            Some(most) if most.max(least) == 1 => String::new(),
            Some(most) => format!("(\",\" {item}){{{},{}}}", least.saturating_sub(1), most.max(least) - 1),
            None => format!("(\",\" {item}){{{},}}", least.saturating_sub(1)),
        };
        let optional = if least == 0 { "?" } else { "" };
        Ok(format!("\"[\" ({item} {more}){optional} \"]\""))
    }

    fn string(&mut self, schema: &Value) -> String {
        let quote = self.quote.lark();
        // A control token ends the text, whatever is in it.
        let any = if matches!(self.quote, Quote::Token(_)) { "(?s:.)" } else { NO_DELIMITER };
        let text = bounded(schema, any);
        let text = text.as_deref().unwrap_or(TEXT);
        match self.quote {
            Quote::Token(_) => format!("{quote} /{text}/ {quote}"),
            Quote::Spelled(_) => {
                format!("{quote} {}", self.rule_with("[lazy]", &format!("/{text}/ {quote}")))
            }
        }
    }

    /// A constant in Gemma 4's notation.
    fn constant(&self, value: &Value) -> String {
        match value {
            Value::String(text) if text.is_empty() => format!("{0} {0}", self.quote.lark()),
            Value::String(text) => format!("{0} {1} {0}", self.quote.lark(), quoted(text)),
            Value::Array(values) => {
                let values: Vec<String> = values.iter().map(|value| self.constant(value)).collect();
                format!("\"[\" {} \"]\"", values.join(" \",\" "))
            }
            Value::Object(fields) => {
                let field = |(key, value): (&String, &Value)| {
                    format!("{} {}", quoted(&format!("{key}:")), self.constant(value))
                };
                let fields: Vec<String> = fields.iter().map(field).collect();
                format!("\"{{\" {} \"}}\"", fields.join(" \",\" "))
            }
            other => quoted(&other.to_string()),
        }
    }

    /// The rule for any value.
    fn any(&mut self) -> String {
        if let Some(rule) = &self.any {
            return rule.clone();
        }
        let name = self.name();
        self.any = Some(name.clone());
        let string = self.string(&Value::Null);
        let member = self.rule(&format!("/[A-Za-z_][A-Za-z0-9_.-]*/ \":\" {name}"));
        let rule = format!(
            "{string} | %json {{\"type\": [\"number\", \"boolean\", \"null\"]}} | \"{{\" ({member} (\",\" {member})*)? \"}}\" | \"[\" \
             ({name} (\",\" {name})*)? \"]\""
        );
        self.define(&name, "", &rule);
        name
    }

    /// A rule for members in their order, of which some may be absent, and then any number of others.
    fn sequence(&mut self, members: &[(String, bool)], other: Option<&str>, comma: &str) -> String {
        // `first` follows nothing, `next` another member.
        let mut next = match other {
            Some(other) => self.rule(&format!("({comma}{other})*")),
            None => self.rule("\"\""),
        };
        let mut first = match other {
            Some(other) => self.rule(&format!("({other} {next})?")),
            None => next.clone(),
        };
        for (member, is_required) in members.iter().rev() {
            let (with_first, with_next) = (format!("{member} {next}"), format!("{comma}{member} {next}"));
            (first, next) = match is_required {
                true => (self.rule(&with_first), self.rule(&with_next)),
                false => (
                    self.rule(&format!("{with_first} | {first}")),
                    self.rule(&format!("{with_next} | {next}")),
                ),
            };
        }
        first
    }

    /// Rejects keywords without a rule, if the tool is strict.
    fn check(&self, schema: &Value) -> Result<()> {
        let fields = match schema {
            Value::Object(fields) => fields,
            Value::Bool(true) => return Ok(()),
            Value::Bool(false) => {
                return Err(Error::invalid(SCHEMA, "a part of it is false, which allows nothing"));
            }
            _ => return Err(Error::invalid(SCHEMA, "a part of it is neither an object nor a boolean")),
        };
        match UNSUPPORTED.iter().find(|key| fields.contains_key(**key)) {
            Some(key) if self.strict => {
                let reason = format!("'{key}' is not supported with the tool-call format of this model");
                Err(Error::invalid(SCHEMA, &reason))
            }
            _ => Ok(()),
        }
    }

    fn name(&mut self) -> String {
        self.count += 1;
        format!("arg_{}", self.count)
    }

    fn rule(&mut self, rule: &str) -> String {
        self.rule_with("", rule)
    }

    fn rule_with(&mut self, options: &str, rule: &str) -> String {
        let name = self.name();
        self.define(&name, options, rule);
        name
    }

    fn define(&mut self, name: &str, options: &str, rule: &str) {
        writeln!(self.rules, "{name}{options}: {rule}").expect("writing to a String cannot fail");
    }
}

/// The properties of an object's schema: name, schema, and whether it is required.
fn members_of(schema: &Value) -> impl Iterator<Item = (&str, &Value, bool)> {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = schema["properties"].as_object().into_iter().flatten();
    properties.map(move |(name, property)| (name.as_str(), property, required.contains(&name.as_str())))
}

/// The schema of other members than those listed. Models hardly ever need any: without the keyword they are only
/// allowed if none is listed.
fn additional<'a>(schema: &'a Value, members: &[(String, bool)]) -> Option<&'a Value> {
    const ANY: &Value = &Value::Bool(true);
    match &schema["additionalProperties"] {
        Value::Null if members.is_empty() => Some(ANY),
        Value::Null | Value::Bool(false) => None,
        other => Some(other),
    }
}

/// Any character but the first of delimiters, with which a limit could be exceeded.
const NO_DELIMITER: &str = "[^<]";

/// A pattern for a text of limited length, of characters that match `any`.
fn bounded(schema: &Value, any: &str) -> Option<String> {
    let limit = |key: &str| schema[key].as_u64();
    match (limit("minLength"), limit("maxLength")) {
        (None, None) => None,
        (least, Some(most)) => Some(format!("{any}{{{},{most}}}", least.unwrap_or(0))),
        (Some(least), None) => Some(format!("{any}{{{least},}}")),
    }
}

/// The texts that a schema enumerates.
fn choices(schema: &Value) -> Vec<&str> {
    match (&schema["enum"], &schema["const"]) {
        (_, Value::String(text)) => vec![text],
        (Value::Array(texts), _) => texts.iter().filter_map(Value::as_str).collect(),
        _ => vec![],
    }
}

/// A Lark string literal, which has JSON's syntax.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
