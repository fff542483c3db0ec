//! How a server ends.

use std::{sync::atomic::Ordering, time::Duration};

use engine::Engine;
use server::Server;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Running, load::Loading, notify};

/// What asks for the end: SIGTERM and Ctrl-C.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// How it came.
pub enum End {
    /// Nothing was left to do.
    Drained,
    /// Something was.
    CutOff(&'static str),
    /// There was nothing to serve.
    Failed(anyhow::Error),
}

impl Signals {
    pub fn listen() -> std::io::Result<Self> {
        let (terminate, interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(Self { terminate, interrupt })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Serves to the end.
    pub async fn serve(
        mut self,
        server: Server,
        running: &Running,
        drain_time: Duration,
        loading: Loading,
    ) -> End {
        let mut serving = tokio::spawn(server.run());
        let mut cut_off = None;
        tokio::select! {
            // It ends by itself only where there is nothing to serve.
            _ = &mut serving => {}
            () = self.next() => {
                notify::stopping();
                note!("Running requests are finished, for {drain_time:?} at most; another signal ends them.");
                running.control.cancel.store(true, Ordering::Relaxed);
                running.handle.drain();
                tokio::select! {
                    _ = &mut serving => {}
                    () = tokio::time::sleep(drain_time) => cut_off = Some("the time for running requests is over"),
                    () = self.next() => cut_off = Some("a second signal came"),
                }
            }
        }
        if cut_off.is_some() {
            // Nobody waits for a device any more.
            running.again.cancel.store(true, Ordering::Relaxed);
            running.handle.stop();
            // A task that panicked has said so.
            let _ = serving.await;
        }
        let ending = tokio::task::spawn_blocking(move || end(loading));
        let ended = tokio::select! {
            ended = ending => ended,
            () = self.next() => {
                // The GPU does not come back, or a file does not: nothing is left that could be waited for.
                note!("Another signal came: nothing is put in order any more.");
                std::process::exit(1);
            }
        };
        let cancelled = running.control.cancel.load(Ordering::Relaxed);
        match (ended, cut_off) {
            // Whatever loading says after it was stopped, it was stopped.
            (Ok(Err(error)), None) if !cancelled => End::Failed(error),
            (Err(error), _) => End::Failed(error.into()),
            (_, Some(why)) => End::CutOff(why),
            (_, None) => End::Drained,
        }
    }
}

/// Waits for what is loading, and gives back what was loaded.
fn end(loading: Loading) -> anyhow::Result<()> {
    match loading.join() {
        Ok(loaded) => loaded.map(|engine: Engine| engine.stop()),
        Err(_) => anyhow::bail!("loading the model panicked: this is a bug; please report it"),
    }
}
