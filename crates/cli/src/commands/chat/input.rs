//! Reads messages: from the line editor on a terminal, line by line from a pipe.

use std::{cell::Cell, io::IsTerminal, path::PathBuf};

use rustyline::{
    CompletionType, Config, Editor, Helper, completion::Completer, error::ReadlineError,
    highlight::Highlighter, hint::Hinter, history::FileHistory, validate::Validator,
};
use store::{EntryKind, Store};

use super::{command, history};

/// Begins and ends a message of several lines.
const QUOTES: &str = "\"\"\"";

const PROMPT: &str = "> ";
const CONTINUED: &str = "… ";

/// Reads the user's messages and commands.
pub struct Input {
    editor: Editor<LineHelper, FileHistory>,
    is_terminal: bool,
    history: Option<PathBuf>,
}

impl Input {
    /// Standard input. The history is kept only if both sides are a terminal and the user wants it.
    pub fn new(keep_history: bool) -> anyhow::Result<Self> {
        let config = Config::builder()
            .max_history_size(history::MAX_ENTRIES)?
            // As in shells: for what should not be kept.
            .history_ignore_space(true)
            .completion_type(CompletionType::List)
            .build();
        let mut editor = Editor::with_config(config)?;
        editor.set_helper(Some(LineHelper::default()));
        let is_terminal = std::io::stdin().is_terminal();
        let mut input = Self { editor, is_terminal, history: None };
        if keep_history && is_terminal && std::io::stdout().is_terminal() {
            input.open_history();
        }
        Ok(input)
    }

    /// Whether there is a line editor.
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Reads the next message or command; `None` at the end of input.
    pub fn read(&mut self) -> anyhow::Result<Option<String>> {
        let mut message = PendingMessage::new(self.is_terminal);
        let mut interrupted = false;
        loop {
            let prompt = match (self.is_terminal, message.is_empty()) {
                (false, _) => "",
                (true, true) => PROMPT,
                (true, false) => CONTINUED,
            };
            match self.editor.readline(prompt) {
                Ok(line) => {
                    interrupted = false;
                    if let Some(text) = message.add(&line) {
                        self.remember(&text);
                        return Ok(Some(text));
                    }
                }
                Err(ReadlineError::Interrupted) => {
                    let was_empty = message.is_empty() && self.line_was_empty();
                    if was_empty && interrupted {
                        return Ok(None);
                    }
                    interrupted = was_empty;
                    message = PendingMessage::new(self.is_terminal);
                    note!(
                        "{}",
                        if was_empty {
                            "(Ctrl-C again or Ctrl-D quits)"
                        } else {
                            "(input cleared; Ctrl-D quits)"
                        }
                    );
                }
                Err(ReadlineError::Eof) => return Ok(None),
                Err(ReadlineError::Io(error)) if error.kind() == std::io::ErrorKind::InvalidData => {
                    note!("That line is not UTF-8 and was ignored.");
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Opens a text in the line editor; `None` if the user gives up.
    pub fn edit(&mut self, text: &str) -> anyhow::Result<Option<String>> {
        match self.editor.readline_with_initial(PROMPT, (text, "")) {
            Ok(text) => {
                self.remember(&text);
                Ok(Some(text).filter(|text| !text.trim().is_empty()))
            }
            Err(ReadlineError::Interrupted | ReadlineError::Eof) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn line_was_empty(&self) -> bool {
        self.editor.helper().is_some_and(|assistant| assistant.is_empty.get())
    }

    fn open_history(&mut self) {
        let Some(path) = history::path(|name| std::env::var_os(name)) else { return };
        let opened = history::create(&path).map_err(ReadlineError::from);
        match opened.and_then(|()| self.editor.load_history(&path)) {
            Ok(()) => self.history = Some(path),
            Err(error) => note!("The history is not kept: {}: {error}", path.display()),
        }
    }

    /// Adds a message to the history.
    fn remember(&mut self, text: &str) {
        if !self.is_terminal || text.trim().is_empty() {
            return;
        }
        let added = self.editor.add_history_entry(text);
        if let (Ok(true), Some(path)) = (added, &self.history)
            && let Err(error) = self.editor.append_history(path)
        {
            note!("The history is no longer kept: {}: {error}", path.display());
            self.history = None;
        }
    }
}

/// A message of which some lines have been read.
struct PendingMessage {
    /// Quotes are for people: in a pipe, every line is a message unless the one before it is continued.
    may_quote: bool,
    quoted: bool,
    text: String,
}

impl PendingMessage {
    fn new(may_quote: bool) -> Self {
        Self { may_quote, quoted: false, text: String::new() }
    }

    fn is_empty(&self) -> bool {
        !self.quoted && self.text.is_empty()
    }

    /// Adds a line, or a pasted text of several; returns the message if that is its end.
    fn add(&mut self, line: &str) -> Option<String> {
        let mut line = line;
        if self.may_quote
            && self.is_empty()
            && let Some(rest) = line.trim_start().strip_prefix(QUOTES)
        {
            self.quoted = true;
            line = rest;
        }
        let (line, is_end) = match self.quoted {
            true => match line.trim_end().strip_suffix(QUOTES) {
                Some(line) => (line, true),
                None => (line, false),
            },
            false => match line.strip_suffix('\\') {
                Some(line) => (line, false),
                None => (line, true),
            },
        };
        self.text += line;
        if !is_end {
            self.text.push('\n');
            return None;
        }
        let text = std::mem::take(&mut self.text);
        match (self.quoted, line.contains('\n')) {
            (true, _) => Some(text.trim_matches('\n').to_owned()),
            // A pasted text often ends with a line end.
            (false, true) => Some(text.trim_end_matches('\n').to_owned()),
            (false, false) => Some(text),
        }
    }
}

/// Completes commands and names of models.
struct LineHelper {
    /// Whether the line is empty, which an interrupted line editor does not tell.
    is_empty: Cell<bool>,
}

impl Default for LineHelper {
    fn default() -> Self {
        Self { is_empty: Cell::new(true) }
    }
}

impl Completer for LineHelper {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &rustyline::Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = &line[..position];
        let (start, candidates): (usize, Vec<String>) = match typed.rsplit_once(' ') {
            Some(("/model", _)) => ("/model ".len(), model_names()),
            None if typed.starts_with('/') => (0, command::names().map(|name| format!("{name} ")).collect()),
            _ => return Ok((position, vec![])),
        };
        let matching = candidates.into_iter().filter(|candidate| candidate.starts_with(&typed[start..]));
        Ok((start, matching.collect()))
    }
}

/// Models of the store; none if it cannot be read.
fn model_names() -> Vec<String> {
    let entries = Store::open_default().and_then(|store| store.entries()).unwrap_or_default();
    let models = entries.into_iter().filter(|entry| entry.kind == EntryKind::Model);
    models.map(|entry| entry.name).filter(|name| store::printable(name) == *name).collect()
}

impl Hinter for LineHelper {
    type Hint = String;

    /// Called whenever the line changes. There are no hints.
    fn hint(&self, line: &str, _: usize, _: &rustyline::Context<'_>) -> Option<String> {
        self.is_empty.set(line.is_empty());
        None
    }
}

impl Highlighter for LineHelper {}
impl Validator for LineHelper {}
impl Helper for LineHelper {}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(may_quote: bool, lines: &[&str]) -> Vec<String> {
        let mut message = PendingMessage::new(may_quote);
        let mut messages = vec![];
        for line in lines {
            if let Some(text) = message.add(line) {
                messages.push(text);
                message = PendingMessage::new(may_quote);
            }
        }
        assert!(message.is_empty(), "{:?}", message.text);
        messages
    }

    #[test]
    fn messages_of_several_lines() {
        assert_eq!(messages(true, &["a", "b\\", "c\\", "d"]), ["a", "b\nc\nd"]);
        assert_eq!(messages(true, &["\"\"\"a", "", "b\\", "\"\"\"", "c"]), ["a\n\nb\\", "c"]);
        assert_eq!(messages(true, &["\"\"\" a \"\"\"", "\"\"\"", "x", "y\"\"\""]), [" a ", "x\ny"]);
        // Pasted.
        assert_eq!(messages(true, &["make \\\n  all\n\n"]), ["make \\\n  all"]);
        assert_eq!(messages(true, &["\"\"\"\na\n\"\"\"\n"]), ["a"]);
    }

    #[test]
    fn quotes_mean_nothing_in_a_pipe() {
        assert_eq!(messages(false, &["\"\"\"a", "b\\", "c"]), ["\"\"\"a", "b\nc"]);
    }
}
