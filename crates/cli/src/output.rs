//! Writing to the terminal or to a pipe.

use std::{
    io::{IsTerminal, Write},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use serde::Serialize;
use weights::stream::Control;

/// A line on standard error for whoever watches; that nobody does is no reason to stop.
macro_rules! note {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

/// The same without an end of line.
macro_rules! note_part {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = write!(std::io::stderr(), $($text)*);
    }};
}

/// Prints text; a reader that went away is an error like any other, and `main` forgives it.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Prints a value as indented JSON.
pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Whether the error is only that nobody reads on, as in `indrik devices | head -1`.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// One line on the terminal that says what is going on; nothing when nobody watches.
#[derive(Default)]
pub struct Progress {
    shown: bool,
}

impl Progress {
    /// Nothing shown yet.
    pub fn new() -> Self {
        Self { shown: false }
    }

    /// Replaces the line.
    pub fn say(&mut self, text: &str) {
        if std::io::stderr().is_terminal() {
            note_part!("\r\x1b[2K{text} …");
            self.shown = true;
        }
    }

    /// Takes the line away.
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

/// What Ctrl-C sets: work that watches it ends as after an error, with everything given back and no half-written file. There is
/// one for the whole program. A second Ctrl-C before the first was heard ends the program at once.
pub fn control() -> Arc<Control> {
    static CONTROL: OnceLock<Arc<Control>> = OnceLock::new();
    let control = CONTROL.get_or_init(|| {
        let control = Arc::new(Control::default());
        let seen = control.clone();
        let handler = move || {
            if seen.cancel.swap(true, Ordering::Relaxed) {
                // 128 + SIGINT, as shells have it.
                std::process::exit(130);
            }
        };
        if let Err(error) = ctrlc::set_handler(handler) {
            tracing::warn!("Ctrl-C ends the program at once: {error}");
        }
        control
    });
    control.clone()
}

/// Sets a flag when it goes out of scope, however that comes: whoever watches the flag ends then.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A table with columns as wide as their longest cell; cells that look like numbers go to the right.
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
    fn a_table_lines_up() {
        let rows = [vec!["a".into(), "5".into()], vec!["bcd".into(), "123 µs".into()]];
        let text = super::table(&["name", "time"], &rows);
        assert_eq!(text, "| name |   time |\n|------|-------:|\n| a    |      5 |\n| bcd  | 123 µs |\n");
    }
}
