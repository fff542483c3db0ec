//! Lets a model call a function of this program and reply with its result.
//!
//! ```text
//! cargo run --release -p indrik --example chat_with_tool -- MODEL "What is the weather in Paris?"
//! ```
//!
//! The model's chat template must support tools, as Qwen 2.5's does (`indrik pull qwen2.5-coder:1.5b`).

use std::{error::Error, io::Write};

use indrik::{Model, Options, Tool, ToolCall, ToolChoice};
use serde_json::json;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().ok_or("usage: chat_with_tool MODEL [QUESTION]")?;
    let question = arguments.next().unwrap_or_else(|| "What is the weather in Paris?".to_owned());
    run(&model, &question, ToolChoice::Auto, &mut std::io::stdout())
}

/// Sends the question, runs the tools that the model calls, and writes the reply.
pub fn run(
    model: &str,
    question: &str,
    choice: ToolChoice,
    out: &mut impl Write,
) -> Result<(), Box<dyn Error>> {
    let model = Model::open(model, Options::default())?;
    let weather = Tool {
        name: "weather".to_owned(),
        description: Some("Current weather in a city".to_owned()),
        parameters: Some(json!({
            "type": "object",
            "properties": { "city": { "enum": ["Berlin", "Paris", "Rome"] } },
            "required": ["city"],
        })),
    };
    let mut chat = model.chat()?.with_tools(vec![weather], choice)?;
    chat.options.sampling.temperature = 0.0;
    chat.options.max_tokens = Some(200);

    let reply = chat.send(question)?.finish()?;
    for call in &reply.message.tool_calls {
        let result = call_tool(call);
        writeln!(out, "{}({}) = {result}", call.name, call.arguments)?;
        chat.push_tool_result(call, result);
    }
    let reply = match reply.message.tool_calls.is_empty() {
        true => reply,
        false => {
            // The model has the result: further calls are disabled, so that it replies in text.
            chat.set_tool_choice(ToolChoice::None)?;
            chat.reply()?.finish()?
        }
    };
    writeln!(out, "{}", reply.message.text())?;
    Ok(())
}

fn call_tool(call: &ToolCall) -> String {
    match (call.name.as_str(), call.arguments["city"].as_str()) {
        ("weather", Some(city)) => json!({ "city": city, "celsius": 21 }).to_string(),
        _ => json!({ "error": "unknown tool or missing city" }).to_string(),
    }
}
