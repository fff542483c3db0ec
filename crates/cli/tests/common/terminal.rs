//! A program on a pseudo-terminal, and what it shows.

use std::{
    fs::File,
    io::{Read, Write},
    process::{Child, Command, ExitStatus},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread::JoinHandle,
    time::Instant,
};

use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcgetwinsize, tcsetwinsize},
};
use unicode_width::UnicodeWidthChar;

use super::served::TIMEOUT;

/// A program on a pseudo-terminal. Killed on drop.
pub struct Terminal {
    child: Child,
    leader: File,
    shared: Arc<(Mutex<Screen>, Condvar)>,
    reader: Option<JoinHandle<()>>,
    /// Row of the last prompt that was answered.
    answered: Option<usize>,
}

impl Terminal {
    /// Starts a command with the terminal as its standard input, output and error.
    pub fn start(command: &Command, columns: u16) -> Self {
        let leader = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&leader).unwrap();
        unlockpt(&leader).unwrap();
        let name = ptsname(&leader, Vec::new()).unwrap();
        let follower = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        tcsetwinsize(&follower, Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let side = || follower.try_clone().unwrap();
        // As the controlling terminal: Ctrl-C and resizing send signals.
        let mut session = Command::new("setsid");
        session.arg("--ctty").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => session.env(name, value),
                None => session.env_remove(name),
            };
        }
        let child = session.stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
        drop(session);
        let shared = Arc::new((Mutex::new(Screen::new(columns)), Condvar::new()));
        let reader = std::thread::spawn({
            let (shared, mut leader) = (shared.clone(), File::from(leader.try_clone().unwrap()));
            move || {
                let mut bytes = [0; 4096];
                // Reading fails when the program has closed the other side.
                while let Ok(count) = leader.read(&mut bytes) {
                    shared.0.lock().unwrap().write(&bytes[..count]);
                    shared.1.notify_all();
                }
                shared.0.lock().unwrap().is_closed = true;
                shared.1.notify_all();
            }
        });
        let leader = File::from(leader);
        Self { child, leader, shared, reader: Some(reader), answered: None }
    }

    /// Types keys.
    pub fn keys(&mut self, keys: &str) {
        self.leader.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for the prompt, types a line, and presses Enter once it is on the screen.
    pub fn line(&mut self, text: &str) {
        self.prompt();
        self.keys(text);
        let last = text.lines().last().unwrap_or_default();
        self.wait(&format!("{text:?}"), |screen| screen.cursor_line().ends_with(last));
        self.enter();
    }

    /// Presses Enter. The next prompt is one below this row.
    pub fn enter(&mut self) {
        let row = self.screen().row;
        self.answered = Some(row);
        self.keys("\r");
    }

    /// Waits for an empty prompt, below the one that was answered last.
    pub fn prompt(&self) {
        let answered = self.answered;
        self.wait("a prompt", |screen| {
            answered.is_none_or(|row| screen.row > row) && screen.cursor_line() == ">" && screen.column == 2
        });
    }

    /// Waits until the text is somewhere on the screen.
    pub fn see(&self, text: &str) {
        self.wait(&format!("{text:?}"), |screen| screen.text().contains(text));
    }

    /// Waits until the screen is as described.
    pub fn wait(&self, what: &str, is: impl Fn(&Screen) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        let mut screen = self.screen();
        while !is(&screen) {
            assert!(!screen.is_closed, "{what} did not appear before the end:\n{}", screen.text());
            let left = deadline.saturating_duration_since(Instant::now());
            let (next, timeout) = self.shared.1.wait_timeout(screen, left).unwrap();
            assert!(!timeout.timed_out(), "{what} does not appear:\n{}", next.text());
            screen = next;
        }
    }

    /// What the terminal shows now.
    pub fn screen(&self) -> MutexGuard<'_, Screen> {
        self.shared.0.lock().unwrap()
    }

    pub fn resize(&mut self, columns: u16) {
        let size = tcgetwinsize(&self.leader).unwrap();
        self.screen().columns = usize::from(columns);
        tcsetwinsize(&self.leader, Winsize { ws_col: columns, ..size }).unwrap();
    }

    /// Sends a signal, as `kill` names it.
    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    /// Waits for the program's end; returns its status and everything it showed.
    pub fn finish(mut self) -> (ExitStatus, Screen) {
        self.wait("the end", |screen| screen.is_closed);
        self.reader.take().unwrap().join().unwrap();
        let status = self.child.wait().unwrap();
        let screen = std::mem::replace(&mut *self.screen(), Screen::new(0));
        (status, screen)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Errors mean that the process has exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Everything a terminal has shown: as if it had enough rows that nothing scrolls.
pub struct Screen {
    columns: usize,
    lines: Vec<Vec<char>>,
    row: usize,
    column: usize,
    is_closed: bool,
    /// Control sequence or character whose rest has not arrived.
    pending: Vec<u8>,
    /// All bytes.
    pub raw: String,
}

impl Screen {
    fn new(columns: u16) -> Self {
        let columns = usize::from(columns);
        let (pending, raw) = (vec![], String::new());
        Self { columns, lines: vec![vec![]], row: 0, column: 0, is_closed: false, pending, raw }
    }

    /// The lines, without spaces at their ends.
    pub fn lines(&self) -> Vec<String> {
        self.lines.iter().map(|line| text_of(line)).collect()
    }

    /// All lines.
    pub fn text(&self) -> String {
        self.lines().join("\n")
    }

    fn cursor_line(&self) -> String {
        text_of(&self.lines[self.row])
    }

    fn write(&mut self, bytes: &[u8]) {
        self.pending.extend(bytes);
        let pending = std::mem::take(&mut self.pending);
        let valid = match std::str::from_utf8(&pending) {
            Ok(_) => pending.len(),
            Err(error) => error.valid_up_to(),
        };
        let text = String::from_utf8(pending[..valid].to_vec()).unwrap();
        let mut rest = text.as_str();
        while let Some(c) = rest.chars().next() {
            let length = match c {
                '\x1b' => match sequence_length(rest) {
                    Some(length) => length,
                    None => break,
                },
                c => c.len_utf8(),
            };
            let (now, later) = rest.split_at(length);
            if c == '\x1b' {
                self.control(now)
            } else {
                self.put(c)
            }
            self.raw += now;
            rest = later;
        }
        self.pending = [rest.as_bytes(), &pending[valid..]].concat();
    }

    fn put(&mut self, c: char) {
        match c {
            '\r' => self.column = 0,
            '\n' => self.row += 1,
            '\x08' => self.column = self.column.saturating_sub(1),
            c => {
                let width = c.width().unwrap_or(0);
                if self.column + width > self.columns {
                    (self.row, self.column) = (self.row + 1, 0);
                    self.reach();
                }
                if width > 0 {
                    let line = &mut self.lines[self.row];
                    line.resize(line.len().max(self.column + width), ' ');
                    line[self.column] = c;
                    // The second half of a wide character.
                    line[self.column + 1..self.column + width].fill('\0');
                    self.column += width;
                }
            }
        }
        self.reach();
    }

    fn control(&mut self, sequence: &str) {
        let parameters = &sequence[2.min(sequence.len())..sequence.len() - 1];
        let count = parameters.parse().unwrap_or(1).max(1);
        let line = &mut self.lines[self.row];
        match sequence.chars().last() {
            Some('A') => self.row = self.row.saturating_sub(count),
            Some('B') => self.row += count,
            Some('C') => self.column = (self.column + count).min(self.columns - 1),
            Some('D') => self.column = self.column.saturating_sub(count),
            Some('H') => {
                let (row, column) = parameters.split_once(';').unwrap_or(("1", "1"));
                let index = |text: &str| text.parse::<usize>().map_or(0, |number| number.saturating_sub(1));
                (self.row, self.column) = (index(row), index(column));
            }
            Some('K') if parameters == "2" => line.clear(),
            Some('K') => line.truncate(self.column),
            Some('J') => {
                line.truncate(self.column);
                self.lines.truncate(self.row + 1);
            }
            // Styles and modes.
            Some('m' | 'h' | 'l') => {}
            _ => panic!("unknown control sequence {sequence:?}"),
        }
        self.reach();
    }

    fn reach(&mut self) {
        let rows = self.lines.len().max(self.row + 1);
        self.lines.resize(rows, vec![]);
    }
}

fn text_of(line: &[char]) -> String {
    line.iter().filter(|c| **c != '\0').collect::<String>().trim_end().to_owned()
}

/// Length of the control sequence at the beginning; `None` if its end has not arrived.
fn sequence_length(text: &str) -> Option<usize> {
    match text.as_bytes().get(1)? {
        b'[' => text[2..].find(|c| ('@'..='~').contains(&c)).map(|end| end + 3),
        _ => Some(2),
    }
}
