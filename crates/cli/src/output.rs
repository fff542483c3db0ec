//! Output to the terminal or a pipe.

use std::{
    io::{IsTerminal, Write},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use serde::Serialize;
use weights::stream::Control;

/// Prints a line to standard error. A closed standard error is not an error.
macro_rules! note {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

/// Like `note!`, without a newline.
macro_rules! note_part {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = write!(std::io::stderr(), $($text)*);
    }};
}

/// Prints text to standard output. A closed pipe is an error, which `main` ignores.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// A count with its thousands separated, as in 12,345.
pub fn grouped(count: usize) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Prints a value as indented JSON.
pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Whether the error is a closed pipe, as in `indrik devices | head -1`.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Whether standard error is a terminal on which a line can be replaced.
fn can_replace_lines() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// A progress line on the terminal. Prints nothing if standard error is not one that can replace a line.
#[derive(Default)]
pub struct Progress {
    shown: bool,
}

impl Progress {
    /// An empty line.
    pub fn new() -> Self {
        Self::default()
    }

    /// Replaces the line.
    pub fn show(&mut self, text: &str) {
        if can_replace_lines() {
            note_part!("\r\x1b[2K{text} …");
            self.shown = true;
        }
    }

    /// Removes the line.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            note_part!("\r\x1b[2K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The process-wide control whose flag Ctrl-C sets. Work that checks it ends as after an error: memory is
/// freed and incomplete files are removed. A second Ctrl-C before the flag is reset exits at once.
pub fn control() -> Arc<Control> {
    static CONTROL: OnceLock<Arc<Control>> = OnceLock::new();
    let control = CONTROL.get_or_init(|| {
        let control = Arc::new(Control::default());
        let shared = control.clone();
        let handler = move || {
            if shared.cancel.swap(true, Ordering::Relaxed) {
                // 128 + SIGINT, the shells' convention.
                std::process::exit(130);
            }
        };
        if let Err(error) = ctrlc::set_handler(handler) {
            tracing::warn!("cannot handle Ctrl-C, which will exit at once: {error}");
        }
        control
    });
    control.clone()
}

/// Sets a flag when dropped, including during a panic, so that a thread watching the flag ends.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A Markdown table with aligned columns; columns of numbers are right-aligned.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let columns = header.len();
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .chain([header[column].chars().count()])
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let numeric: Vec<bool> = (0..columns)
        .map(|column| {
            !rows.is_empty() && rows.iter().all(|row| row[column].starts_with(|c: char| c.is_ascii_digit()))
        })
        .collect();
    let line = |cells: Vec<&str>| {
        let padded: Vec<String> = cells
            .iter()
            .enumerate()
            .map(|(column, cell)| {
                let fill = " ".repeat(widths[column] - cell.chars().count());
                if numeric[column] { format!("{fill}{cell}") } else { format!("{cell}{fill}") }
            })
            .collect();
        format!("| {} |\n", padded.join(" | "))
    };
    let rule: Vec<String> = widths
        .iter()
        .zip(&numeric)
        .map(|(width, numeric)| if *numeric { "-".repeat(width + 1) + ":" } else { "-".repeat(width + 2) })
        .collect();
    let mut text = line(header.to_vec());
    text += &format!("|{}|\n", rule.join("|"));
    for row in rows {
        text += &line(row.iter().map(String::as_str).collect());
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn thousands_are_separated() {
        for (count, expected) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(super::grouped(count), expected);
        }
    }

    #[test]
    fn table_columns_are_aligned() {
        let rows = [vec!["a".into(), "5".into()], vec!["bcd".into(), "123 µs".into()]];
        let text = super::table(&["name", "time"], &rows);
        assert_eq!(text, "| name |   time |\n|------|-------:|\n| a    |      5 |\n| bcd  | 123 µs |\n");
    }
}
