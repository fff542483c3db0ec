//! Tools of a request: whether the model knows of such, what its answers are held to, and how their calls are found.

use grammar::{NonCallOutput, ToolCallGrammar, ToolSpec};
use serde_json::json;
use text::{Message, ToolCallFormat, ToolCallParser, ToolSupport};

use crate::error::Error;
use crate::openai::{Offered, Shape};

/// How answers call tools.
#[derive(Debug)]
pub(crate) struct Calling {
    /// Finds the calls of an answer that has not begun.
    pub(crate) reader: ToolCallParser,
    /// Control tokens that mark calls: the reader must see them.
    pub(crate) shown: Vec<u32>,
}

/// That a model knows of tools where a conversation has any; how it writes calls, where it may make some.
pub(crate) fn form<'a>(
    knows: &'a ToolSupport,
    model: &str,
    offered: bool,
    messages: &[Message],
) -> Result<Option<&'a ToolCallFormat>, Error> {
    let wrong = |param: String, why: &str| {
        let message = format!("the chat template of '{model}' {why}");
        Err(Error::NotByModel { param, message })
    };
    let of_tools = |message: &Message| message.role == "tool" || !message.tool_calls.is_empty();
    match (knows, offered) {
        (ToolSupport::Format(form), true) => Ok(Some(form)),
        (ToolSupport::UnknownFormat, true) => {
            let why = "writes calls of tools in a form that this server cannot read: leave 'tools' out, or serve \
                       another model";
            wrong("tools".to_owned(), why)
        }
        (ToolSupport::None, true) => {
            let why = "knows no tools, so the model would not see them: leave 'tools' out, or serve a model whose \
                       template has them, as Qwen 2.5's";
            wrong("tools".to_owned(), why)
        }
        (ToolSupport::None, false) => match messages.iter().position(of_tools) {
            Some(at) => {
                let field = if messages[at].role == "tool" { "role" } else { "tool_calls" };
                let why = "knows no tools, so the model would not see this: leave it out, or serve a model whose \
                           template has them, as Qwen 2.5's";
                wrong(format!("messages[{at}].{field}"), why)
            }
            None => Ok(None),
        },
        (_, false) => Ok(None),
    }
}

/// What answers are held to that may call what is offered, or are what the request's format says.
pub(crate) fn calls(offered: &Offered, form: &ToolCallFormat, shape: Option<Shape>) -> ToolCallGrammar {
    let tool = |at: &usize| ToolSpec {
        index: *at,
        name: offered.tools[*at].name.clone(),
        parameters: offered.tools[*at].parameters.clone(),
        strict: offered.strict[*at],
    };
    let otherwise = match shape {
        _ if offered.must => NonCallOutput::Forbidden,
        Some(Shape::Object) => NonCallOutput::Json(json!({ "type": "object" })),
        Some(Shape::Schema(schema)) => NonCallOutput::Json(schema),
        Some(Shape::Calls(_)) | None => NonCallOutput::Text,
    };
    let tools = offered.allowed.iter().map(tool).collect();
    ToolCallGrammar { format: form.clone(), tools, parallel: offered.parallel, without_calls: otherwise }
}

impl Calling {
    /// Of answers that are held to this.
    pub(crate) fn new(calls: &ToolCallGrammar) -> Calling {
        Calling {
            reader: ToolCallParser::new(calls.format.clone(), calls.without_calls == NonCallOutput::Text),
            shown: calls.format.control_tokens.iter().map(|(_, id)| *id).collect(),
        }
    }
}
