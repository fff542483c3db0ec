//! Conversations as JSON files, in the form of OpenAI's chat requests.

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use indrik::Message;
use serde_json::{Value, json};

/// A conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transcript {
    pub system: Option<String>,
    pub messages: Vec<Message>,
}

const FORMAT: &str = "/load reads what /save wrote, or an OpenAI-style array of messages";

impl Transcript {
    /// Writes the conversation, as the body of a request to `/v1/chat/completions`. An existing file is only
    /// replaced with `replace`; returns whether it was.
    pub fn save(&self, path: &Path, model: &str, replace: bool) -> anyhow::Result<bool> {
        let system = self.system.iter().map(|system| Message::new("system", system));
        // Models are trained not to see the thinking of earlier turns.
        let without_thinking = |message: &Message| Message { reasoning: None, ..message.clone() };
        let messages: Vec<Message> = system.chain(self.messages.iter().map(without_thinking)).collect();
        let text = serde_json::to_string_pretty(&json!({ "model": model, "messages": messages }))? + "\n";
        let write = |mut file: File| file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        let created = OpenOptions::new().write(true).create_new(true).open(path);
        match created {
            Ok(file) => {
                write(file).with_context(|| format!("cannot write {}", path.display()))?;
                Ok(false)
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists && !replace => {
                bail!("{} exists: `/save! {0}` replaces it", path.display())
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                // An interrupted write leaves the old file.
                let new = temporary(path);
                File::create(&new)
                    .and_then(write)
                    .and_then(|()| fs::rename(&new, path))
                    .with_context(|| format!("cannot replace {}", path.display()))?;
                Ok(true)
            }
            Err(error) => Err(error).with_context(|| format!("cannot write {}", path.display())),
        }
    }

    /// Reads a conversation.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let is_file = fs::metadata(path).with_context(|| format!("cannot read {shown}"))?.is_file();
        if !is_file {
            bail!("cannot read {shown}: it is not a file");
        }
        let text = fs::read(path).with_context(|| format!("cannot read {shown}"))?;
        let value =
            serde_json::from_slice(&text).with_context(|| format!("{shown} is not JSON; {FORMAT}"))?;
        Self::parse(value).with_context(|| format!("cannot load {shown}; {FORMAT}"))
    }

    fn parse(value: Value) -> anyhow::Result<Self> {
        let messages = match value {
            Value::Array(messages) => messages,
            Value::Object(mut object) => match object.remove("messages") {
                Some(Value::Array(messages)) => messages,
                _ => bail!("it has no array \"messages\""),
            },
            _ => bail!("it is neither an array nor an object"),
        };
        let mut transcript = Self::default();
        for (index, message) in messages.iter().enumerate() {
            transcript.add(message).with_context(|| format!("messages[{index}]"))?;
        }
        if transcript == Self::default() {
            bail!("it has no messages");
        }
        Ok(transcript)
    }

    fn add(&mut self, message: &Value) -> anyhow::Result<()> {
        let role = message["role"].as_str().context("it has no \"role\"")?;
        let content = content(&message["content"])?;
        match role {
            "system" | "developer" if self.system.is_none() && self.messages.is_empty() => {
                self.system = Some(content);
            }
            "system" | "developer" => bail!("only the first message can be a system message"),
            "user" | "assistant" => self.messages.push(Message::new(role, content)),
            other => bail!("the role {other:?} is not supported here: only system, user and assistant are"),
        }
        Ok(())
    }
}

/// The text of a message: a string, or parts of which all are text.
fn content(value: &Value) -> anyhow::Result<String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => parts
            .iter()
            .map(|part| part["text"].as_str().context("its content has a part that is not text"))
            .collect(),
        _ => bail!("it has no text in \"content\""),
    }
}

/// A name beside the file, so that both are on one file system.
fn temporary(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript() -> Transcript {
        let messages = [("user", "hi\n\"there\""), ("assistant", "**hello** 漢")];
        let messages = messages.map(|(role, text)| Message::new(role, text)).to_vec();
        Transcript { system: Some("be brief".into()), messages }
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chat.json");
        assert!(!transcript().save(&path, "tiny", false).unwrap());
        assert_eq!(Transcript::load(&path).unwrap(), transcript());
        let value: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(value["model"], "tiny");
        assert_eq!(value["messages"][0], json!({ "role": "system", "content": "be brief" }));
        assert_eq!(value["messages"][2]["content"], "**hello** 漢");
    }

    #[test]
    fn files_are_replaced_only_on_request() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chat.json");
        fs::write(&path, "mine").unwrap();
        let error = format!("{:#}", transcript().save(&path, "tiny", false).unwrap_err());
        assert!(error.contains("exists: `/save! "), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        assert!(transcript().save(&path, "tiny", true).unwrap());
        assert_eq!(Transcript::load(&path).unwrap(), transcript());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let error = format!("{:#}", transcript().save(&path.join("x"), "tiny", false).unwrap_err());
        assert!(error.starts_with("cannot write ") && error.contains("chat.json/x"), "{error}");
    }

    #[test]
    fn other_clients_conversations_are_loaded() {
        let load = |value| Transcript::parse(value).map_err(|error| format!("{error:#}"));
        let text = json!([{ "role": "user", "content": [{ "type": "text", "text": "a" }, { "text": "b" }] }]);
        assert_eq!(load(text).unwrap().messages, [Message::new("user", "ab")]);
        for (value, expected) in [
            (json!(1), "neither an array nor an object"),
            (json!({ "message": [] }), "no array \"messages\""),
            (json!([]), "no messages"),
            (json!([{ "content": "a" }]), "messages[0]: it has no \"role\""),
            (json!([{ "role": "user" }]), "messages[0]: it has no text"),
            (json!([{ "role": "tool", "content": "a" }]), "the role \"tool\" is not supported"),
            (
                json!([{ "role": "user", "content": "a" }, { "role": "system", "content": "b" }]),
                "messages[1]: only",
            ),
            (json!([{ "role": "user", "content": [{ "image_url": "x" }] }]), "a part that is not text"),
        ] {
            let error = load(value).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn errors_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bad.json");
        fs::write(&path, "{\n  oops").unwrap();
        let error = format!("{:#}", Transcript::load(&path).unwrap_err());
        assert!(error.contains("bad.json is not JSON") && error.contains("line 2"), "{error}");
        let error = format!("{:#}", Transcript::load(folder.path()).unwrap_err());
        assert!(error.contains("not a file"), "{error}");
        let error = format!("{:#}", Transcript::load(&folder.path().join("none")).unwrap_err());
        assert!(error.contains("none: No such file"), "{error}");
    }
}
