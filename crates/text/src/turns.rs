//! Corrections for templates that do not render every conversation.
//!
//! 1. Some fail if a message that only calls tools has no text, not even an empty one (Qwen 3).
//! 2. Some of Gemma 4's look for tool results in the field `tool_responses` of the message with the calls, and would render
//!    messages with the role `tool` as turns of their own.
//! 3. Some of Gemma 4's close the model's turn after a message that has both text and tool calls, and start no other one after
//!    the results. The model would go on after the end of its turn, and never stop thinking.

use serde_json::{Map, Value, json};

use crate::chat::ChatTemplate;
use crate::message::{Message, ToolCall};

const TURN: &str = "<|turn>";
pub(crate) const TURN_END: &str = "<turn|>";
const MODEL_TURN: &str = "<|turn>model\n";
const RESPONSES: &str = "tool_responses";

// Words that occur in no template.
const TOOL: &str = "zqprobe_tool";
const RESULT: &str = "zqproberesult";

/// Whether the template fails without an empty text in a message that only calls tools.
pub(crate) fn needs_text(template: &ChatTemplate) -> bool {
    let fails = |content: Option<String>| {
        let call = ToolCall { id: "zqprobe01".into(), name: TOOL.into(), arguments: json!({}) };
        let messages = [Message::new("user", "zq"), Message::with_tool_calls(content, vec![call])];
        let values = messages.iter().map(|message| json!(message)).collect();
        template.render_values(&values, messages.len()).is_err()
    };
    fails(None) && !fails(Some(String::new()))
}

/// Whether the template renders tool results only if they are in the message with the calls.
pub(crate) fn needs_folded_results(template: &ChatTemplate) -> bool {
    if !template.source().contains(RESPONSES) {
        return false;
    }
    let call = ToolCall { id: "zqprobe01".into(), name: TOOL.into(), arguments: json!({}) };
    let result = Message {
        tool_call_id: Some(call.id.clone()),
        name: Some(TOOL.into()),
        ..Message::new("tool", RESULT)
    };
    let messages = [Message::new("user", "zq"), Message::with_tool_calls(None, vec![call]), result];
    let values = messages.iter().map(|message| json!(message)).collect();
    // Results name their tool.
    let rendered = template.render_values(&values, messages.len());
    !rendered.is_ok_and(|text| text.contains(RESULT) && text.matches(TOOL).count() > 1)
}

/// Moves the results of tool calls into the message with the calls.
pub(crate) fn fold_results(messages: &[Message]) -> Vec<Value> {
    let mut folded: Vec<Value> = Vec::new();
    for message in messages {
        let calls = folded.last_mut().filter(|last| last.get("tool_calls").is_some());
        match calls {
            Some(Value::Object(calls)) if message.role == "tool" => {
                let content = &*message.text();
                // An object is shown as one, anything else as text.
                let response = serde_json::from_str(content).ok().filter(Value::is_object);
                let mut entry = Map::new();
                entry.insert("name".into(), message.name.as_deref().unwrap_or("unknown").into());
                entry.insert("response".into(), response.unwrap_or_else(|| content.into()));
                if let Value::Array(responses) = calls.entry(RESPONSES).or_insert_with(|| json!([])) {
                    responses.push(entry.into());
                }
            }
            _ => folded.push(json!(message)),
        }
    }
    folded
}

/// Starts a turn of the model if a prompt for its reply ends after the end of a turn. `usual` renders a prompt for a
/// reply to a question, which shows how the template starts one.
pub(crate) fn open_turn(text: &mut String, usual: impl FnOnce() -> Option<String>) {
    let Some(end) = text.rfind(TURN_END).filter(|end| text.rfind(TURN) < Some(*end)) else { return };
    let after = end + TURN_END.len();
    let after = after + usize::from(text[after..].starts_with('\n'));
    // The template may have written what follows the start of a turn.
    let is_bare = text[after..].is_empty();
    let usual = usual().filter(|_| is_bare);
    let start = usual.as_ref().and_then(|usual| Some(&usual[usual.rfind(TURN)?..]));
    text.insert_str(after, start.filter(|start| start.starts_with(MODEL_TURN)).unwrap_or(MODEL_TURN));
}
