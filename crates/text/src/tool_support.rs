//! Detects whether and how a chat template supports tools.
//!
//! Templates do not declare their tool-call format. So the template renders a synthetic conversation with and
//! without a tool, and with a tool call in place of a plain reply. The texts differ in the parts that the
//! template writes for tools.

use std::collections::BTreeMap;

use serde_json::json;

use crate::chat::ChatTemplate;
use crate::message::{Message, Tool, ToolCall};
use crate::tokenizer::{EncodeSpecial, Tokenizer};
use crate::tool_calls::{ToolCallFormat, is_name_char};

/// A chat template's support for tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolSupport {
    /// The template ignores tools, so the model would not see them.
    None,
    /// The template passes tools to the model but writes calls in an unsupported format.
    UnknownFormat,
    /// The template passes tools to the model and writes calls in this format.
    Format(ToolCallFormat),
}

// Words that occur in no template.
const QUESTION: &str = "zqprobequestion";
const REPLY: &str = "zqprobereply";
const TOOL: &str = "zqprobe_tool";
const OTHER: &str = "zqprobe_other";
const KEY: &str = "\"zqprobekey\"";
const VALUE: &str = "\"zqprobevalue\"";

fn tool(name: &str) -> Tool {
    let parameters = json!({ "type": "object", "properties": { "zqprobekey": { "type": "string" } } });
    Tool { name: name.to_owned(), description: Some("zq".to_owned()), parameters: Some(parameters) }
}

fn call(id: &str, name: &str) -> ToolCall {
    let arguments = json!({ "zqprobekey": "zqprobevalue" });
    ToolCall { id: id.to_owned(), name: name.to_owned(), arguments }
}

impl ChatTemplate {
    /// The template's support for tools. The tokenizer identifies control tokens in the tool-call format.
    pub fn tool_support(&self, tokenizer: &Tokenizer) -> ToolSupport {
        let question = [Message::new("user", QUESTION)];
        let mentions_tool = |tools: Option<&[Tool]>| {
            self.render_with_tools(&question, true, tools.as_ref()).is_ok_and(|text| text.contains(TOOL))
        };
        if mentions_tool(Some(&[tool(TOOL)])) && !mentions_tool(None) {
            self.tool_call_format(tokenizer).map_or(ToolSupport::UnknownFormat, ToolSupport::Format)
        } else {
            ToolSupport::None
        }
    }

    fn tool_call_format(&self, tokenizer: &Tokenizer) -> Option<ToolCallFormat> {
        let tools = [tool(TOOL), tool(OTHER)];
        let render_reply = |reply: Message| {
            let messages = [Message::new("user", QUESTION), reply];
            self.render_with_tools(&messages, false, Some(&tools)).ok()
        };
        let plain = render_reply(Message::new("assistant", REPLY))?;
        let (before, after) = plain.split_once(REPLY)?;
        let render_calls = |calls: &[ToolCall]| {
            let text = render_reply(Message::with_tool_calls(None, calls.to_vec()))?;
            text.strip_prefix(before).map(str::to_owned)
        };
        // Call ids have nine characters: some templates accept no other length.
        let one = render_calls(&[call("zqprobe01", TOOL)])?;
        if render_calls(&[call("zqprobe02", TOOL)])? != one {
            return None;
        }

        let (prefix, rest) = one.split_once(TOOL)?;
        // White space before a call belongs to the text before it, which may be none.
        let prefix = prefix.trim_start();
        let (infix, rest) = rest.split_once(KEY)?;
        let infix = infix.trim_end().strip_suffix('{')?;
        let (_, rest) = rest.split_once(VALUE)?;
        let rest = rest.trim_start().strip_prefix('}')?;
        let suffix = rest.strip_suffix(after).unwrap_or(rest);
        // Some templates end a turn that calls tools with another stop token, which is not part of the call.
        let stops =
            tokenizer.stop_token_ids().iter().filter_map(|id| suffix.find(&*tokenizer.token_name(*id)?));
        let suffix = suffix[..stops.min().unwrap_or(suffix.len())].trim_end();
        if prefix.is_empty() || !infix.starts_with(|first| !is_name_char(first)) {
            return None;
        }

        let first_call = &one[..one.len() - rest.len() + suffix.len()];
        let separator = render_calls(&[call("zqprobe01", TOOL), call("zqprobe02", OTHER)]).and_then(|two| {
            let (separator, _) = two.strip_prefix(first_call)?.split_once(&format!("{prefix}{OTHER}"))?;
            separator.trim().is_empty().then(|| separator.to_owned())
        });
        // Any JSON object starts with a brace, so the trigger ends before it.
        let trigger_len = prefix[..prefix.rfind('{').unwrap_or(prefix.len())].trim_end().len();
        let mut control_tokens = BTreeMap::new();
        for literal in [prefix, infix, suffix] {
            let ids = tokenizer.encode(literal, EncodeSpecial::Parse);
            for id in ids.into_iter().filter(|id| tokenizer.is_special(*id)) {
                let name = tokenizer.token_name(id)?;
                // Excludes the unknown token, whose name does not occur in the text.
                if literal.contains(&*name) {
                    control_tokens.insert(name.into_owned(), id);
                }
            }
        }
        Some(ToolCallFormat {
            prefix: prefix.to_owned(),
            infix: infix.to_owned(),
            suffix: suffix.to_owned(),
            separator,
            trigger_len,
            control_tokens: control_tokens.into_iter().collect(),
        })
    }
}
