//! The live view: reads in the background, draws, and handles keys.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    time::Duration,
};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use signal_hook::consts::{SIGHUP, SIGTERM};

use super::{
    history::History,
    source::{Reading, Source},
    view,
};

/// How long a key press waits to be seen.
const KEY_INTERVAL: Duration = Duration::from_millis(50);

/// Signals that end the view: `kill`, and a terminal that was closed.
const SIGNALS: [i32; 2] = [SIGTERM, SIGHUP];

/// Shows readings until a key or a signal ends it.
pub fn watch(mut source: Source, interval: Duration) -> anyhow::Result<()> {
    let name = source.name().to_owned();
    // The first reading before the screen changes, so that a wrong address is reported as usual.
    let mut latest: anyhow::Result<Reading> = Ok(source.read()?);
    let mut history = History::default();
    if let Ok(reading) = &latest {
        history.push(reading);
    }
    let (sender, readings) = mpsc::channel();
    // A server that hangs must not keep keys from being handled. The thread ends with the receiver.
    std::thread::Builder::new().name("monitor".into()).spawn(move || {
        loop {
            std::thread::sleep(interval);
            if sender.send(source.read()).is_err() {
                return;
            }
        }
    })?;
    let signal = Arc::new(AtomicUsize::new(0));
    for number in SIGNALS {
        signal_hook::flag::register_usize(number, signal.clone(), number as usize)?;
    }
    let mut terminal = ratatui::try_init()?;
    let result = loop {
        if let Err(error) = terminal.draw(|frame| view::draw(frame, &name, &latest, &history)) {
            break Err(error.into());
        }
        match wait(&readings, &signal) {
            Ok(Some(reading)) => {
                if let Ok(reading) = &reading {
                    history.push(reading);
                }
                latest = reading;
            }
            Ok(None) => {}
            Err(result) => break result,
        }
    };
    let restored = ratatui::try_restore();
    if let number @ 1.. = signal.load(Ordering::Relaxed) {
        // Ends the process as the signal would have, had the screen not been restored before.
        signal_hook::low_level::emulate_default_handler(number as i32)?;
    }
    result.and(restored.map_err(Into::into))
}

/// Waits for a reading, or for a change of the terminal's size. `Err`: the view must end.
fn wait(
    readings: &mpsc::Receiver<anyhow::Result<Reading>>,
    signal: &AtomicUsize,
) -> Result<Option<anyhow::Result<Reading>>, anyhow::Result<()>> {
    loop {
        match readings.recv_timeout(KEY_INTERVAL) {
            Ok(reading) => return Ok(Some(reading)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(Err(anyhow::anyhow!("reading ended: a bug"))),
        }
        if signal.load(Ordering::Relaxed) != 0 {
            return Err(Ok(()));
        }
        while event::poll(Duration::ZERO).map_err(|error| Err(error.into()))? {
            match event::read().map_err(|error| Err(error.into()))? {
                Event::Key(key) if ends(key) => return Err(Ok(())),
                Event::Resize(..) => return Ok(None),
                _ => {}
            }
        }
    }
}

/// Whether a key ends the view.
fn ends(key: KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind != KeyEventKind::Release
        && match key.code {
            KeyCode::Char('q') | KeyCode::Esc => true,
            KeyCode::Char('c' | 'd') => control,
            _ => false,
        }
}
