//! Prints replies: plain text into a pipe, wrapped and styled Markdown on a terminal.
//!
//! ```text
//! pieces of text → Markdown (markdown, inline, code) → styled characters → Wrapper (wrap) → Terminal (canvas) → stdout
//! ```

mod canvas;
mod code;
mod inline;
mod markdown;
mod style;
mod wrap;

use std::{io::IsTerminal, os::fd::AsFd};

use canvas::Terminal;
use markdown::Markdown;
use style::Style;
use wrap::Wrapper;

use crate::output;

/// Columns of a terminal that does not tell its width.
const DEFAULT_COLUMNS: usize = 80;

/// Prints one reply as it is generated.
pub enum Printer {
    /// The text as it is.
    Plain,
    Rendered(Box<Markdown<Terminal>>),
}

impl Printer {
    /// A printer for standard output.
    pub fn new() -> Self {
        if !std::io::stdout().is_terminal() {
            return Self::Plain;
        }
        let styled = style::enabled(|name| std::env::var_os(name));
        Self::Rendered(Box::new(Markdown::new(Terminal::new(styled), columns)))
    }

    /// Prints a piece of the reply, except for what depends on the next.
    pub fn push(&mut self, text: &str) -> anyhow::Result<()> {
        match self {
            Self::Plain => output::print(text),
            Self::Rendered(markdown) => {
                markdown.push(text);
                output::print(&markdown.canvas().take())
            }
        }
    }

    /// Prints the rest, and ends the line.
    pub fn finish(mut self) -> anyhow::Result<()> {
        if let Self::Rendered(markdown) = &mut self {
            markdown.finish();
        }
        self.push("\n")
    }
}

/// Prints what the model thinks before a reply: dimmed on a terminal, nothing elsewhere.
pub struct ThinkingPrinter(Wrapper<Terminal>);

impl ThinkingPrinter {
    /// A printer for standard output; `None` if it is not a terminal.
    pub fn new() -> Option<Self> {
        let styled = style::enabled(|name| std::env::var_os(name));
        let is_terminal = std::io::stdout().is_terminal();
        is_terminal.then(|| Self(Wrapper::new(Terminal::new(styled), columns)))
    }

    /// Prints a piece of the thinking, except for its last word.
    pub fn push(&mut self, text: &str) -> anyhow::Result<()> {
        write_thinking(&mut self.0, text);
        output::print(&self.0.canvas().take())
    }

    /// Prints the rest, and an empty line.
    pub fn finish(mut self) -> anyhow::Result<()> {
        self.push("\n\n")
    }
}

fn write_thinking(wrapper: &mut Wrapper<impl canvas::Canvas>, text: &str) {
    for c in text.chars().filter(|c| *c != '\r') {
        match c {
            '\n' => wrapper.newline(),
            c => wrapper.put(markdown::visible(c), Style::DIM),
        }
    }
}

/// Prints a text to standard error, wrapped if that is a terminal. Lines go on at the column `hang`.
pub fn note(text: &str, hang: usize) {
    if !std::io::stderr().is_terminal() {
        note!("{}", text.trim_end());
        return;
    }
    let columns = columns_of(std::io::stderr());
    let mut wrapper = Wrapper::new(Terminal::new(false), move || columns);
    for line in text.lines() {
        wrapper.hang(hang);
        line.chars().for_each(|c| wrapper.put(c, Style::PLAIN));
        wrapper.newline();
    }
    note_part!("{}", wrapper.canvas().take());
}

/// The width of standard output now.
fn columns() -> usize {
    columns_of(std::io::stdout())
}

fn columns_of(terminal: impl AsFd) -> usize {
    match rustix::termios::tcgetwinsize(terminal) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
        _ => DEFAULT_COLUMNS,
    }
}

#[cfg(test)]
mod tests {
    use super::{canvas::testing::Recorder, *};

    #[test]
    fn thinking_is_dimmed_and_cannot_control_the_terminal() {
        let mut wrapper = Wrapper::new(Recorder::default(), || 10);
        write_thinking(&mut wrapper, "They want\r\nthe *weather*\x1b[2J now.\n");
        let found = wrapper.canvas();
        assert_eq!(found.screen, "They want\nthe\n*weather*\u{241b}\n[2J now.\n");
        assert!(found.styled.iter().all(|(_, style)| *style == Style::DIM));
    }
}
