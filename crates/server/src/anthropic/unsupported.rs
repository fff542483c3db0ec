//! Fields that would change the response, but are not implemented. Others that are unknown, such as `service_tier`, are
//! ignored.

use serde_json::Value;

use crate::error::Error;
use crate::unsupported::{Neutral, UnsupportedField, check_unsupported};

/// Name, meaning and neutral values of the fields.
const FIELDS: &[UnsupportedField] = &[
    ("container", "a container for tools", Neutral::Empty),
    ("fallbacks", "falling back to other models", Neutral::Empty),
    ("mcp_servers", "calling MCP servers (call them in the client, as 'tools')", Neutral::Empty),
];

/// The context edits that are accepted: the chat template removes earlier thinking by itself.
const CLEAR_THINKING: &str = "clear_thinking_";

/// An error if a body has a field with a value that would change the response.
pub(super) fn check(body: &Value) -> Result<(), Error> {
    check_unsupported(body, FIELDS)?;
    let edits = body.get("context_management").and_then(|management| management.get("edits"));
    for (index, edit) in edits.and_then(Value::as_array).into_iter().flatten().enumerate() {
        let kind = edit.get("type").and_then(Value::as_str).unwrap_or_default();
        if !kind.starts_with(CLEAR_THINKING) {
            let field = format!("context_management.edits[{index}].type");
            return Err(Error::unsupported(field, "this edit of the conversation"));
        }
    }
    Ok(())
}
