//! Shutdown on SIGTERM and SIGINT.

use std::{sync::atomic::Ordering, time::Duration};

use indrik::Model;
use server::Server;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{controls::Controls, load::Loading, notify};
use crate::logging::announce;

/// Listeners for SIGTERM and SIGINT.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// How the server ended.
pub enum Outcome {
    /// All requests finished.
    Drained,
    /// Unfinished requests were cancelled, for this reason.
    Cancelled(&'static str),
    /// The model could not be loaded.
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

    /// Serves until shutdown.
    pub async fn serve(
        mut self,
        server: Server,
        controls: &Controls,
        drain_timeout: Duration,
        loading: Loading,
    ) -> Outcome {
        let mut serving = tokio::spawn(server.run());
        let mut cancelled = None;
        tokio::select! {
            // Without a signal the server ends only if loading failed.
            _ = &mut serving => {}
            () = self.next() => {
                notify::stopping();
                announce(format_args!(
                    "Draining running requests, for at most {drain_timeout:?}; another signal cancels them."
                ));
                controls.load.cancel.store(true, Ordering::Relaxed);
                controls.server.drain();
                tokio::select! {
                    _ = &mut serving => {}
                    () = tokio::time::sleep(drain_timeout) => cancelled = Some("the drain timeout has expired"),
                    () = self.next() => cancelled = Some("second signal received"),
                }
            }
        }
        if cancelled.is_some() {
            // No remaining request needs a lost device to be reopened.
            controls.reload.cancel.store(true, Ordering::Relaxed);
            controls.server.stop();
            // A panic in the task has already been reported on standard error.
            let _ = serving.await;
        }
        let releasing = tokio::task::spawn_blocking(move || release(loading));
        let released = tokio::select! {
            released = releasing => released,
            () = self.next() => {
                // The GPU or a file read hangs: cleanup would never finish.
                announce(format_args!("Another signal received: exiting without cleanup."));
                std::process::exit(1);
            }
        };
        let load_cancelled = controls.load.cancel.load(Ordering::Relaxed);
        match (released, cancelled) {
            // An error from a load that was cancelled is not a failure.
            (Ok(Err(error)), None) if !load_cancelled => Outcome::Failed(error),
            (Err(error), _) => Outcome::Failed(error.into()),
            (_, Some(reason)) => Outcome::Cancelled(reason),
            (_, None) => Outcome::Drained,
        }
    }
}

/// Waits for the loading thread and frees the model.
fn release(loading: Loading) -> anyhow::Result<()> {
    match loading.join() {
        Ok(loaded) => loaded.map(|model: Model| model.stop()),
        Err(_) => anyhow::bail!("the loading thread panicked: this is a bug; please report it"),
    }
}
