//! Shutdown on SIGTERM and SIGINT.

use std::{sync::atomic::Ordering, time::Duration};

use server::Server;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{controls::Controls, notify};
use crate::logging::announce;

/// Listeners for SIGTERM and SIGINT.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// Who ends the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// SIGTERM: a service manager. A gateway may be in front.
    Terminate,
    /// SIGINT: a user at a terminal, without a gateway in front.
    Interrupt,
}

/// Times of a shutdown.
#[derive(Clone, Copy, Debug)]
pub struct DrainTimes {
    /// For which the port stays open after SIGTERM even if no request runs.
    pub linger: Duration,
    /// For running requests to finish after that.
    pub timeout: Duration,
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

    async fn next(&mut self) -> Stop {
        tokio::select! {
            _ = self.terminate.recv() => Stop::Terminate,
            _ = self.interrupt.recv() => Stop::Interrupt,
        }
    }

    /// Serves until shutdown.
    pub async fn serve(
        mut self,
        server: Server,
        controls: &Controls,
        times: DrainTimes,
        ready: impl Future<Output = Result<(), String>>,
    ) -> Outcome {
        let mut serving = tokio::spawn(server.run());
        let mut cancelled = None;
        let loading = async {
            match ready.await {
                Ok(()) => std::future::pending().await,
                Err(reason) => reason,
            }
        };
        tokio::select! {
            reason = loading => {
                controls.server.stop();
                let _ = serving.await;
                self.release(controls).await;
                return Outcome::Failed(anyhow::anyhow!(reason));
            }
            _ = &mut serving => {}
            stop = self.next() => {
                notify::stopping();
                let DrainTimes { linger, timeout } = times;
                let linger = if stop == Stop::Terminate { linger } else { Duration::ZERO };
                let limit = linger + timeout;
                announce(format_args!(
                    "Draining running requests, for at most {limit:?}; another signal cancels them."
                ));
                controls.server.linger();
                let drain = async {
                    tokio::time::sleep(linger).await;
                    controls.server.drain();
                    tokio::time::sleep(timeout).await;
                };
                tokio::select! {
                    _ = &mut serving => {}
                    () = drain => cancelled = Some("the drain timeout has expired"),
                    _ = self.next() => cancelled = Some("second signal received"),
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
        self.release(controls).await;
        match cancelled {
            Some(reason) => Outcome::Cancelled(reason),
            None => Outcome::Drained,
        }
    }

    /// Ends loads and frees the models.
    async fn release(&mut self, controls: &Controls) {
        let models = controls.models.clone();
        let releasing = tokio::task::spawn_blocking(move || models.stop());
        tokio::select! {
            _ = releasing => {}
            _ = self.next() => {
                // The GPU or a file read hangs: cleanup would never finish.
                announce(format_args!("Another signal received: exiting without cleanup."));
                std::process::exit(1);
            }
        }
    }
}
