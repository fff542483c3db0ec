//! Detects whether and how a chat template supports tools.
//!
//! Templates do not declare their tool-call format. So the template renders a synthetic conversation with and
//! without a tool, and with a tool call in place of a plain reply. The texts differ in the parts that the
//! template writes for tools. Names, keys and values in the call show the [`CallSyntax`] of its arguments.

use std::collections::BTreeMap;

use serde_json::json;

use crate::chat::ChatTemplate;
use crate::message::{Message, Tool, ToolCall};
use crate::tokenizer::{EncodeSpecial, Tokenizer};
use crate::tool_arguments::{PARAMETER, PARAMETER_END, QUOTE};
use crate::tool_calls::{CallSyntax, ToolCallFormat, is_name_char};

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
const KEY: &str = "zqprobekey";
const VALUE: &str = "zqprobevalue";

// Call ids have nine characters: some templates accept no other length.
const ID: &str = "zqprobe01";
const OTHER_ID: &str = "zqprobe02";

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
        let one = render_calls(&[call(ID, TOOL)])?;
        let has_id = render_calls(&[call(OTHER_ID, TOOL)])? != one;

        let (prefix, rest) = one.split_once(TOOL)?;
        // White space before a call belongs to the text before it, which may be none.
        let prefix = prefix.trim_start();
        let parts = parts(rest)?;
        let rest = parts.rest;
        let suffix = rest.strip_suffix(after).unwrap_or(rest);
        // Some templates end a turn that calls tools with another stop token, which is not part of the call.
        let stops =
            tokenizer.stop_token_ids().iter().filter_map(|id| suffix.find(&*tokenizer.token_name(*id)?));
        let mut suffix = suffix[..stops.min().unwrap_or(suffix.len())].trim_end();
        let is_array = parts.syntax == CallSyntax::Json && prefix.contains("[{") && suffix.ends_with("}]");
        let syntax = if is_array { CallSyntax::JsonArray } else { parts.syntax };
        match syntax {
            CallSyntax::JsonArray => suffix = "}]",
            _ if has_id => return None,
            _ => {}
        }
        let infix = parts.infix;
        let separates_name = syntax == CallSyntax::Gemma4 || infix.starts_with(|first| !is_name_char(first));
        if prefix.is_empty() || !separates_name {
            return None;
        }

        let call_len = one.len() - rest.len() + suffix.len();
        let separator = render_calls(&[call(ID, TOOL), call(OTHER_ID, OTHER)]).and_then(|two| {
            if syntax == CallSyntax::JsonArray {
                return two.contains(OTHER).then(|| ", ".to_owned());
            }
            let (separator, _) =
                two.strip_prefix(one.get(..call_len)?)?.split_once(&format!("{prefix}{OTHER}"))?;
            separator.trim().is_empty().then(|| separator.to_owned())
        });
        let trigger_len = match syntax {
            // Any JSON object starts with a brace, so the trigger ends before it.
            CallSyntax::Json => prefix[..prefix.rfind('{').unwrap_or(prefix.len())].trim_end().len(),
            CallSyntax::JsonArray => prefix[..prefix.rfind("[{").unwrap_or(0)].trim_end().len(),
            // The first tag.
            CallSyntax::Gemma4 | CallSyntax::Xml => prefix.find('>').map_or(prefix.len(), |end| end + 1),
        };
        let mut control_tokens = BTreeMap::new();
        let quote = if syntax == CallSyntax::Gemma4 { QUOTE } else { "" };
        for literal in [prefix, infix, suffix, quote] {
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
            syntax,
        })
    }
}

/// The parts of a call after the tool's name.
struct CallParts<'a> {
    infix: &'a str,
    syntax: CallSyntax,
    /// After the arguments.
    rest: &'a str,
}

/// Splits the text after the tool's name. `None` if the arguments are in no known syntax.
fn parts(text: &str) -> Option<CallParts<'_>> {
    let (before_key, rest) = text.split_once(KEY)?;
    let (between, rest) = rest.split_once(VALUE)?;
    if let Some(infix) = before_key.strip_suffix(PARAMETER) {
        let rest = rest.trim_start().strip_prefix(PARAMETER_END)?;
        let is_tag = between.starts_with('>') && between.trim() == ">";
        return is_tag.then(|| CallParts { infix, syntax: CallSyntax::Xml, rest: rest.trim_start() });
    }
    if between.strip_prefix(':') == Some(QUOTE) {
        let infix = before_key.strip_suffix('{')?;
        let rest = rest.strip_prefix(QUOTE)?.strip_prefix('}')?;
        return infix.is_empty().then_some(CallParts { infix, syntax: CallSyntax::Gemma4, rest });
    }
    // JSON.
    let before_key = before_key.strip_suffix('"')?;
    let infix = before_key.trim_end().strip_suffix('{')?;
    let rest = rest.strip_prefix('"')?.trim_start().strip_prefix('}')?;
    let is_json = between.trim_start_matches('"').trim_start().starts_with(':') && between.ends_with('"');
    is_json.then_some(CallParts { infix, syntax: CallSyntax::Json, rest })
}
