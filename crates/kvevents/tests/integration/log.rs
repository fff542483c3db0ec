//! What the publishers of these tests log.

use std::{
    io::{self, Write},
    net::SocketAddr,
    sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError},
};

/// Everything that was logged since [`start`], by all tests.
static LOG: LazyLock<Log> = LazyLock::new(|| {
    let log = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_ansi(false);
    log.with_writer(|| Writer).init();
    Log::default()
});

#[derive(Default)]
struct Log {
    text: Mutex<String>,
    changed: Condvar,
}

impl Log {
    fn text(&self) -> MutexGuard<'_, String> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Writer;

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        *LOG.text() += &String::from_utf8_lossy(bytes);
        LOG.changed.notify_all();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Begins to record. To be called before a publisher that is asked about is started.
pub fn start() {
    LazyLock::force(&LOG);
}

/// Waits for a line about the connection from this address. No other connection has it meanwhile.
pub fn line_about(peer: SocketAddr) -> String {
    let from = format!(" from {peer} ");
    let mut text = LOG.text();
    loop {
        if let Some(line) = text.lines().find(|line| line.contains(&from)) {
            let line = line.to_owned();
            // The port may be used again.
            *text = text.lines().filter(|other| **other != line).map(|other| format!("{other}\n")).collect();
            return line;
        }
        text = LOG.changed.wait(text).unwrap_or_else(PoisonError::into_inner);
    }
}
