//! Tools of a request: support in the model's chat template, the grammar for calls, and their parser.

use grammar::{NonCallOutput, ToolCallGrammar, ToolSpec};
use serde_json::json;
use text::{Message, ToolCallFormat, ToolCallParser, ToolSupport};

use crate::error::Error;
use crate::openai::{Constraint, ConstraintKind, ToolOptions};

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
/// that the template does not support.
pub(crate) fn call_format<'a>(
    support: &'a ToolSupport,
    model: &str,
    has_tools: bool,
    messages: &[Message],
) -> Result<Option<&'a ToolCallFormat>, Error> {
    let unsupported = |param: String, reason: &str| {
        let message = format!("the chat template of '{model}' {reason}");
        Err(Error::UnsupportedByModel { param, message })
    };
    let uses_tools = |message: &Message| message.role == "tool" || !message.tool_calls.is_empty();
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
        (ToolSupport::None, false) => match messages.iter().position(uses_tools) {
            Some(index) => {
                let field = if messages[index].role == "tool" { "role" } else { "tool_calls" };
                let reason = "does not support tools, so the model would not see this: leave it out, or serve \
                              a model whose template supports them, such as Qwen 2.5";
                unsupported(format!("messages[{index}].{field}"), reason)
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
        Some(ConstraintKind::ToolCalls(..)) | None => NonCallOutput::Text,
    };
    let tools = options.allowed.iter().map(spec).collect();
    Ok(ToolCallGrammar { format: format.clone(), tools, parallel: options.parallel, without_calls })
}
