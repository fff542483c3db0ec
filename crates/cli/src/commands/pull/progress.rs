//! Progress of a pull on standard error.

use std::{
    collections::VecDeque,
    io::IsTerminal,
    time::{Duration, Instant},
};

use gpu::format_bytes;
use store::{PullEvent, printable};

/// Reports events on standard error; only the result goes to standard output.
pub struct Reporter {
    name: String,
    unverified: bool,
    bar: ProgressBar,
}

impl Reporter {
    /// For the model of this name.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_string(), unverified: false, bar: ProgressBar::new() }
    }

    /// Whether all files could be compared with a published checksum.
    pub fn is_verified(&self) -> bool {
        !self.unverified
    }

    /// Prints an event.
    pub fn report(&mut self, event: PullEvent) {
        let text = match event {
            PullEvent::Progress { done, total } => return self.bar.update(done, total),
            PullEvent::Verifying => return self.bar.print("computing the checksum …"),
            PullEvent::Waiting => format!("waiting for another pull of {}", self.name),
            PullEvent::Damaged { path } => {
                format!("{}: the checksum or size is wrong, the file will be replaced", path.display())
            }
            PullEvent::Licence { name, url } => format!(
                "Licence: {}{}\nBy downloading you accept these terms; Ctrl-C stops.",
                printable(name),
                url.map_or_else(String::new, |url| format!(", {}", printable(url)))
            ),
            PullEvent::TryingSource(source) => format!("From {}", printable(source)),
            PullEvent::SourceFailed { reason, .. } => format!("  skipped: {}", printable(reason)),
            PullEvent::Resuming { done } => format!("  resuming at {}", format_bytes(done)),
            PullEvent::Retrying { reason, delay } => {
                format!("  {}; retrying in {} s", printable(reason), delay.as_secs_f64())
            }
            PullEvent::Offline { repository, reason } => {
                format!("  {}; using the cached files of {repository}", printable(reason))
            }
            PullEvent::Cached { path, placed } => {
                format!("  taken from the hub's cache ({placed}): {}", printable(path.display()))
            }
            PullEvent::OneConnection => {
                "  the server does not support ranges: starting over with one connection".to_string()
            }
            PullEvent::Discarded { reason } => format!("  {}; deleted, retrying once", printable(reason)),
            PullEvent::Unverified { file } => {
                self.unverified = true;
                format!("  {}: the server publishes no checksum, only the size was checked", printable(file))
            }
        };
        self.bar.clear();
        note!("{text}");
    }
}

/// Bytes, speed and time left: one line that is updated on a terminal, a new line every 5 s elsewhere.
struct ProgressBar {
    terminal: bool,
    shown: bool,
    last: Option<Instant>,
    /// Recent samples, for the current speed.
    samples: VecDeque<(Instant, u64)>,
}

impl ProgressBar {
    fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal(), shown: false, last: None, samples: VecDeque::new() }
    }

    fn update(&mut self, done: u64, total: u64) {
        const WINDOW: Duration = Duration::from_secs(5);
        let now = Instant::now();
        let interval = if self.terminal { Duration::from_millis(100) } else { Duration::from_secs(5) };
        let last = *self.last.get_or_insert(now);
        if self.samples.is_empty() || now - last >= interval {
            self.samples.push_back((now, done));
            while self.samples.len() > 2 && now - self.samples[1].0 > WINDOW {
                self.samples.pop_front();
            }
        }
        if now - last < interval {
            return;
        }
        self.last = Some(now);
        let (since, before) = self.samples[0];
        let speed = done.saturating_sub(before) as f64 / (now - since).as_secs_f64().max(1e-3);
        self.print(&line(done, total, speed));
    }

    fn print(&mut self, text: &str) {
        if self.terminal {
            note_part!("\r\x1b[2K{text}");
            self.shown = true;
        } else {
            note!("  {text}");
        }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            note_part!("\r\x1b[2K");
        }
    }
}

impl Drop for ProgressBar {
    fn drop(&mut self) {
        self.clear();
    }
}

fn line(done: u64, total: u64, speed: f64) -> String {
    const WIDTH: u64 = 24;
    let filled = (done * WIDTH / total.max(1)).min(WIDTH) as usize;
    let left = total.saturating_sub(done) as f64 / speed;
    let left = if left.is_finite() && left < 360_000.0 {
        let seconds = left.ceil() as u64;
        match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
            (0, minutes, seconds) => format!("{minutes}:{seconds:02} left"),
            (hours, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02} left"),
        }
    } else {
        "stalled".to_string()
    };
    format!(
        "[{}{}] {} of {}  {}/s  {left}",
        "=".repeat(filled),
        " ".repeat(WIDTH as usize - filled),
        format_bytes(done),
        format_bytes(total),
        format_bytes(speed as u64)
    )
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn the_bar_shows_progress_speed_and_time_left() {
        let text = line(50 << 20, 200 << 20, (10 << 20) as f64);
        assert_eq!(text, "[======                  ] 50.0 MiB of 200.0 MiB  10.0 MiB/s  0:15 left");
        assert!(line(0, 200 << 30, (10 << 20) as f64).ends_with("5:41:20 left"));
        assert!(line(0, 1 << 30, 0.0).ends_with("0 bytes/s  stalled"));
        assert!(line(7, 7, 1.0).starts_with("[========================]"));
    }
}
