//! Tools of a request: whether the model knows of such, what its answers are held to, and how their calls are found.

use grammar::{Callable, Calls, Otherwise};
use serde_json::json;
use text::{CallForm, CallReader, Message, ToolUse};

use crate::error::Error;
use crate::openai::{Offered, Shape};

/// How answers call tools.
#[derive(Debug)]
pub(crate) struct Calling {
    /// Finds the calls of an answer that has not begun.
    pub(crate) reader: CallReader,
    /// Control tokens that mark calls: the reader must see them.
    pub(crate) shown: Vec<u32>,
}

/// That a model knows of tools where a conversation has any; how it writes calls, where it may make some.
pub(crate) fn form<'a>(
    knows: &'a ToolUse,
    model: &str,
    offered: bool,
    messages: &[Message],
) -> Result<Option<&'a CallForm>, Error> {
    let wrong = |param: String, why: &str| {
        let message = format!("the chat template of '{model}' {why}");
        Err(Error::NotByModel { param, message })
    };
    let of_tools = |message: &Message| message.role == "tool" || !message.tool_calls.is_empty();
    match (knows, offered) {
        (ToolUse::Form(form), true) => Ok(Some(form)),
        (ToolUse::Unknown, true) => {
            let why = "writes calls of tools in a form that this server cannot read: leave 'tools' out, or serve \
                       another model";
            wrong("tools".to_owned(), why)
        }
        (ToolUse::None, true) => {
            let why = "knows no tools, so the model would not see them: leave 'tools' out, or serve a model whose \
                       template has them, as Qwen 2.5's";
            wrong("tools".to_owned(), why)
        }
        (ToolUse::None, false) => match messages.iter().position(of_tools) {
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
pub(crate) fn calls(offered: &Offered, form: &CallForm, shape: Option<Shape>) -> Calls {
    let tool = |at: &usize| Callable {
        at: *at,
        name: offered.tools[*at].name.clone(),
        parameters: offered.tools[*at].parameters.clone(),
        strict: offered.strict[*at],
    };
    let otherwise = match shape {
        _ if offered.must => Otherwise::Nothing,
        Some(Shape::Object) => Otherwise::Json(json!({ "type": "object" })),
        Some(Shape::Schema(schema)) => Otherwise::Json(schema),
        Some(Shape::Calls(_)) | None => Otherwise::Text,
    };
    let tools = offered.allowed.iter().map(tool).collect();
    Calls { form: form.clone(), tools, parallel: offered.parallel, otherwise }
}

impl Calling {
    /// Of answers that are held to this.
    pub(crate) fn new(calls: &Calls) -> Calling {
        Calling {
            reader: CallReader::new(calls.form.clone(), calls.otherwise == Otherwise::Text),
            shown: calls.form.controls.iter().map(|(_, id)| *id).collect(),
        }
    }
}
