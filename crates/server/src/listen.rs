//! The server: accepts connections until it is drained or stopped.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::config::Config;
use crate::connection::{self, Service};
use crate::connections::Connections;
use crate::models::{Models, Pool};
use crate::phase::{Phase, wait_past};
use crate::router::{Root, Routes, routes};
use crate::traces::Traces;

/// A server bound to its address.
pub struct Server {
    listener: TcpListener,
    router: Router,
    models: Pool,
    traces: Option<Arc<Traces>>,
    config: Config,
    phase: watch::Sender<Phase>,
}

/// Shuts a server down, and gives access to its models. Clones control the same server.
#[derive(Clone)]
pub struct Handle {
    phase: watch::Sender<Phase>,
    models: Pool,
}

impl Handle {
    /// Rejects new requests and lets running ones finish, but keeps the port open until [`Handle::drain`]: a gateway in
    /// front has to see that `/ready` fails, or its next request meets a closed port.
    pub fn linger(&self) {
        self.advance(Phase::Lingering);
    }

    /// Rejects new requests and lets running ones finish; then [`Server::run`] returns.
    pub fn drain(&self) {
        self.advance(Phase::Draining);
    }

    /// Cancels all requests and closes all connections.
    pub fn stop(&self) {
        self.advance(Phase::Stopped);
    }

    fn advance(&self, next: Phase) {
        self.phase.send_if_modified(|phase| {
            let is_later = next > *phase;
            if is_later {
                *phase = next;
            }
            is_later
        });
    }

    /// The models, to load some of them before requests are accepted, and to free them in the end.
    pub fn models(&self) -> &Pool {
        &self.models
    }
}

/// The server's routes without a listener, for an application that has its own, and the handle that drains them.
///
/// The limits of `config` on connections (headers, stalled clients, number of connections) belong to the listener
/// and do not apply. Neither does `webui`: the path `/` is the application's.
pub fn router(config: Config, models: Models) -> io::Result<(Router, Handle)> {
    let (phase, phases) = watch::channel(Phase::Running);
    let Routes { router, models, .. } = routes(config, models, phases, Root::Application)?;
    Ok((router, Handle { phase, models }))
}

/// Delay before the next accept after a failed one. Errors such as too many open files would recur immediately.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Maximum time for connections to close once no request is running.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

impl Server {
    /// Binds to an address; port 0 picks a free one. Must run in a tokio runtime with time and I/O enabled.
    pub async fn bind(address: SocketAddr, config: Config, models: Models) -> io::Result<Server> {
        let (phase, phases) = watch::channel(Phase::Running);
        let root = if config.webui { Root::WebUi } else { Root::Text };
        let Routes { router, models, traces } = routes(config.clone(), models, phases, root)?;
        let listener = TcpListener::bind(address).await?;
        Ok(Server { listener, router, models, traces, config, phase })
    }

    /// The models, to load some of them before requests are accepted, and to free them in the end.
    pub fn models(&self) -> Pool {
        self.models.clone()
    }

    /// Local address, with the actual port.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Handle that shuts the server down.
    pub fn handle(&self) -> Handle {
        Handle { phase: self.phase.clone(), models: self.models.clone() }
    }

    /// Serves until [`Handle::stop`], or after [`Handle::drain`] until the last request has finished. While draining,
    /// connections are still accepted: probes are answered, new requests rejected.
    pub async fn run(self) {
        let Server { listener, router, traces, config, phase, .. } = self;
        let connections = Arc::new(Connections::new(config.max_connections));
        let (close, closing) = watch::channel(false);
        let service = Service { router, config: Arc::new(config), phases: phase.subscribe(), closing };
        let mut tasks = JoinSet::new();
        let (mut draining, mut stopped) = (phase.subscribe(), phase.subscribe());
        let drained = async {
            wait_past(&mut draining, Phase::Lingering).await;
            connections.no_requests().await;
        };
        let mut drained = std::pin::pin!(drained);
        let mut waiting = None;
        loop {
            let accepted = tokio::select! {
                biased;
                () = wait_past(&mut stopped, Phase::Draining) => break,
                () = drained.as_mut() => break,
                Some(_) = tasks.join_next() => continue,
                accepted = next(&listener, &mut waiting, &connections) => accepted,
            };
            match accepted {
                Ok(stream) => {
                    let open = connections.open(&stream);
                    tasks.spawn(connection::serve(stream, open, service.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
        drop(listener);
        close.send_replace(true);
        tokio::select! {
            () = wait_past(&mut stopped, Phase::Draining) => tasks.shutdown().await,
            () = async { while tasks.join_next().await.is_some() {} } => {}
            // What is left are clients that are still sending or not reading.
            () = tokio::time::sleep(CLOSE_TIMEOUT) => tasks.shutdown().await,
        }
        if let Some(traces) = traces {
            // A panic has been reported by its hook.
            let _ = tokio::task::spawn_blocking(move || traces.close()).await;
        }
    }
}

/// Accepts a connection and makes room for it. `waiting` keeps it if the future is dropped before there is room.
async fn next(
    listener: &TcpListener,
    waiting: &mut Option<Arc<TcpStream>>,
    connections: &Connections,
) -> io::Result<Arc<TcpStream>> {
    let stream = match waiting.take() {
        Some(stream) => stream,
        None => Arc::new(listener.accept().await?.0),
    };
    *waiting = Some(stream.clone());
    connections.room().await;
    *waiting = None;
    Ok(stream)
}
