//! What a chat template does with tools, found by trying.
//!
//! Templates come in many forms, and say nowhere which. So a conversation that nobody has had is written with a tool and without, with a call
//! of it and with a plain answer in its place: where the texts differ is what the template writes for tools.

use std::collections::BTreeMap;

use serde_json::json;

use crate::calls::{CallForm, is_of_name};
use crate::chat::ChatTemplate;
use crate::message::{Message, Tool, ToolCall};
use crate::tokenizer::{Special, Tokenizer};

/// What a template does with tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolUse {
    /// It does not tell the model of them.
    None,
    /// It does, but writes calls in a form that is not known here.
    Unknown,
    /// It does, and writes calls like this.
    Form(CallForm),
}

// Words that no template has.
const QUESTION: &str = "zqprobequestion";
const SAID: &str = "zqprobesaid";
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
    /// What it does with tools. The tokenizer says which words of it are control tokens.
    pub fn tool_use(&self, tokenizer: &Tokenizer) -> ToolUse {
        let question = [Message::new("user", QUESTION)];
        let names = |tools: Option<&[Tool]>| {
            self.render_with(&question, true, tools.as_ref()).is_ok_and(|text| text.contains(TOOL))
        };
        match names(Some(&[tool(TOOL)])) && !names(None) {
            true => self.call_form(tokenizer).map_or(ToolUse::Unknown, ToolUse::Form),
            false => ToolUse::None,
        }
    }

    fn call_form(&self, tokenizer: &Tokenizer) -> Option<CallForm> {
        let tools = [tool(TOOL), tool(OTHER)];
        let answered = |answer: Message| {
            let messages = [Message::new("user", QUESTION), answer];
            self.render_with(&messages, false, Some(&tools)).ok()
        };
        let said = answered(Message::new("assistant", SAID))?;
        let (before, after) = said.split_once(SAID)?;
        let called = |calls: &[ToolCall]| {
            let text = answered(Message::calls(None, calls.to_vec()))?;
            text.strip_prefix(before).map(str::to_owned)
        };
        // As long as ids of calls can be in some forms.
        let one = called(&[call("zqprobe01", TOOL)])?;
        if called(&[call("zqprobe02", TOOL)])? != one {
            return None;
        }

        let (begin, rest) = one.split_once(TOOL)?;
        let (middle, rest) = rest.split_once(KEY)?;
        let middle = middle.trim_end().strip_suffix('{')?;
        let (_, rest) = rest.split_once(VALUE)?;
        let rest = rest.trim_start().strip_prefix('}')?;
        let tail = rest.strip_suffix(after).unwrap_or(rest);
        // An end of the turn that only calls have.
        let ends = tokenizer.ends().iter().filter_map(|id| tail.find(&*tokenizer.name_of(*id)?));
        let tail = tail[..ends.min().unwrap_or(tail.len())].trim_end();
        if begin.is_empty() || !middle.starts_with(|first| !is_of_name(first)) {
            return None;
        }

        let whole = &one[..one.len() - rest.len() + tail.len()];
        let between = called(&[call("zqprobe01", TOOL), call("zqprobe02", OTHER)]).and_then(|two| {
            let (between, _) = two.strip_prefix(whole)?.split_once(&format!("{begin}{OTHER}"))?;
            between.trim().is_empty().then(|| between.to_owned())
        });
        // The beginning of an object of JSON could be any other's.
        let trigger = begin[..begin.rfind('{').unwrap_or(begin.len())].trim_end().len();
        let mut controls = BTreeMap::new();
        for literal in [begin, middle, tail] {
            let ids = tokenizer.encode(literal, Special::Parse);
            for id in ids.into_iter().filter(|id| tokenizer.is_special(*id)) {
                let name = tokenizer.name_of(id)?;
                // Not the token for what the vocabulary does not know.
                if literal.contains(&*name) {
                    controls.insert(name.into_owned(), id);
                }
            }
        }
        Some(CallForm {
            begin: begin.to_owned(),
            middle: middle.to_owned(),
            tail: tail.to_owned(),
            between,
            trigger,
            controls: controls.into_iter().collect(),
        })
    }
}
