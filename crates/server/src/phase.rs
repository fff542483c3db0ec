//! Lifecycle phases of a server: running, lingering, draining, stopped.

use tokio::sync::watch;

/// Phase of the server. Phases only move forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Accepts requests.
    Running,
    /// Finishes accepted requests, accepts no new ones, and keeps its port open even if none is left: gateways have to
    /// notice first.
    Lingering,
    /// As before, but ends with the last request.
    Draining,
    /// Cancels all requests.
    Stopped,
}

/// Waits until the server is in a later phase than `phase`.
pub(crate) async fn wait_past(phases: &mut watch::Receiver<Phase>, phase: Phase) {
    // An error means that the sender, and with it the server, is gone.
    let _ = phases.wait_for(|current| *current > phase).await;
}
