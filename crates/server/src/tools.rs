//! Tools of a request: support in the model's chat template, the grammar for calls, and their parser.

use grammar::{NonCallOutput, ToolCallGrammar, ToolSpec};
use serde_json::{Value, json};
use text::{Tool, ToolCallFormat, ToolCallParser, ToolSupport};

use crate::constraint::{Constraint, ConstraintKind};
use crate::error::Error;

/// Maximum number of tools, same as OpenAI's.
pub(crate) const MAX_TOOLS: usize = 128;

/// The tools of a request and how they may be called.
#[derive(Debug)]
pub(crate) struct ToolOptions {
    /// All tools, in the order of the request. The model sees all of them.
    pub(crate) tools: Vec<Tool>,
    /// Whether each tool's schema must be enforced in full.
    strict: Vec<bool>,
    /// Indices of the tools that may be called.
    allowed: Vec<usize>,
    /// Whether at least one call is required.
    required: bool,
    /// Whether a message may contain several calls.
    parallel: bool,
    /// The field of a tool that has its schema.
    pub(crate) schema_field: &'static str,
}

impl ToolOptions {
    /// Options of this many tools, which are still to be added.
    pub(crate) fn new(
        count: usize,
        parallel: bool,
        schema_field: &'static str,
    ) -> Result<ToolOptions, Error> {
        if count > MAX_TOOLS {
            let message = format!("has {count} tools, but at most {MAX_TOOLS} are allowed");
            return Err(Error::invalid_field("tools", message));
        }
        let (tools, strict, allowed) = (vec![], vec![], vec![]);
        Ok(ToolOptions { tools, strict, allowed, required: false, parallel, schema_field })
    }

    /// Adds a tool; `name_path` is the field of its name.
    pub(crate) fn push(
        &mut self,
        tool: Tool,
        strict: bool,
        max_name: usize,
        name_path: &str,
    ) -> Result<(), Error> {
        check_name(name_path, &tool.name, max_name)?;
        if self.tools.iter().any(|other| other.name == tool.name) {
            let message = format!("is '{}', but another tool has the same name", tool.name);
            return Err(Error::invalid_field(name_path, message));
        }
        if !matches!(tool.parameters, None | Some(Value::Object(_))) {
            let path = format!("tools[{}].{}", self.tools.len(), self.schema_field);
            return Err(Error::invalid_field(path, "must be an object: a JSON schema"));
        }
        self.tools.push(tool);
        self.strict.push(strict);
        Ok(())
    }

    /// Index of the tool that the field at `path` names.
    pub(crate) fn find(&self, path: &str, name: &str) -> Result<usize, Error> {
        let index = self.tools.iter().position(|tool| tool.name == name);
        index.ok_or_else(|| Error::invalid_field(path, format!("is '{name}', but there is no such tool")))
    }

    /// These options, with the tools that may be called. `None` without tools.
    pub(crate) fn allowing(self, allowed: Vec<usize>, required: bool) -> Result<Option<ToolOptions>, Error> {
        if self.tools.is_empty() && required {
            let message = "requires a call, but the request has no tools: set 'tools'";
            return Err(Error::invalid_field("tool_choice", message));
        }
        Ok((!self.tools.is_empty()).then_some(ToolOptions { allowed, required, ..self }))
    }
}

/// Checks the name of a tool: `max` letters, digits, `_` or `-`.
pub(crate) fn check_name(path: &str, name: &str, max: usize) -> Result<(), Error> {
    let allowed = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-');
    if (1..=max).contains(&name.len()) && name.chars().all(allowed) {
        return Ok(());
    }
    let message = match name.len() > max {
        true => format!("has {} bytes, but must be 1 to {max} letters, digits, '_' or '-'", name.len()),
        false => format!("is {name:?}, but must be 1 to {max} letters, digits, '_' or '-'"),
    };
    Err(Error::invalid_field(path, message))
}

/// The parts that extract tool calls from the output.
#[derive(Debug)]
pub(crate) struct ToolCallParsing {
    /// A parser at the start of a completion.
    pub(crate) parser: ToolCallParser,
    /// Control tokens that delimit calls; the detokenizer must keep them.
    pub(crate) control_tokens: Vec<u32>,
    /// The control token that starts a call.
    pub(crate) trigger: Option<(String, u32)>,
}

impl ToolCallParsing {
    pub(crate) fn new(grammar: &ToolCallGrammar) -> ToolCallParsing {
        let text_allowed = grammar.without_calls == NonCallOutput::Text;
        ToolCallParsing {
            parser: ToolCallParser::new(grammar.format.clone(), text_allowed).with_schemas(
                grammar.tools.iter().map(|tool| (tool.name.as_str(), tool.parameters.as_ref())),
            ),
            trigger: grammar.format.control_trigger().map(|(name, id)| (name.to_owned(), id)),
            control_tokens: grammar.format.control_tokens.iter().map(|(_, id)| *id).collect(),
        }
    }
}

/// The format of tool calls if the request has tools. An error if the request or its messages use tools in a way
/// that the template does not support. `used_at`: the first field of the messages with a call or a result.
pub(crate) fn call_format<'a>(
    support: &'a ToolSupport,
    model: &str,
    has_tools: bool,
    used_at: Option<&str>,
) -> Result<Option<&'a ToolCallFormat>, Error> {
    let unsupported = |param: String, reason: &str| {
        let message = format!("the chat template of '{model}' {reason}");
        Err(Error::UnsupportedByModel { param, message })
    };
    match (support, has_tools) {
        (ToolSupport::Format(format), true) => Ok(Some(format)),
        (ToolSupport::UnknownFormat, true) => {
            let reason = "writes tool calls in a format that this server cannot parse: leave 'tools' out, or \
                          serve another model";
            unsupported("tools".to_owned(), reason)
        }
        (ToolSupport::None, true) => {
            let reason = "does not support tools, so the model would not see them: leave 'tools' out, or serve \
                          a model whose template supports them, such as Qwen 2.5";
            unsupported("tools".to_owned(), reason)
        }
        (ToolSupport::None, false) => match used_at {
            Some(field) => {
                let reason = "does not support tools, so the model would not see this: leave it out, or serve \
                              a model whose template supports them, such as Qwen 2.5";
                unsupported(field.to_owned(), reason)
            }
            None => Ok(None),
        },
        (_, false) => Ok(None),
    }
}

/// The grammar for a completion that may call tools; without a call, its output follows `constraint`.
pub(crate) fn call_grammar(
    options: &ToolOptions,
    format: &ToolCallFormat,
    constraint: Option<Constraint>,
) -> Result<ToolCallGrammar, Error> {
    let spec = |index: &usize| ToolSpec {
        index: *index,
        name: options.tools[*index].name.clone(),
        parameters: options.tools[*index].parameters.clone(),
        strict: options.strict[*index],
    };
    let field = constraint.as_ref().map_or("", |constraint| constraint.field);
    let without_calls = match constraint.map(|constraint| constraint.kind) {
        _ if options.required => NonCallOutput::Forbidden,
        Some(ConstraintKind::JsonObject) => NonCallOutput::Json(json!({ "type": "object" })),
        Some(ConstraintKind::JsonSchema(schema)) => NonCallOutput::Json(schema),
        Some(ConstraintKind::Regex(_) | ConstraintKind::Choice(_) | ConstraintKind::Grammar(_)) => {
            return Err(Error::invalid_field(field, "cannot be combined with 'tools'; a JSON schema can"));
        }
        Some(ConstraintKind::ToolCalls { .. }) | None => NonCallOutput::Text,
    };
    let tools = options.allowed.iter().map(spec).collect();
    Ok(ToolCallGrammar { format: format.clone(), tools, parallel: options.parallel, without_calls })
}
