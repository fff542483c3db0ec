//! Connections: accepting, limiting and shutting them down.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Sleep;

use crate::config::{Config, Model};
use crate::generator::Generator;
use crate::phase::{Phase, wait_past};
use crate::router::routes;

/// A server bound to its address.
pub struct Server {
    listener: TcpListener,
    router: Router,
    config: Config,
    phase: watch::Sender<Phase>,
}

/// Shuts a server down. Clones control the same server.
#[derive(Clone, Debug)]
pub struct Handle(watch::Sender<Phase>);

impl Handle {
    /// Rejects new requests and lets running ones finish; then [`Server::run`] returns.
    pub fn drain(&self) {
        self.0.send_if_modified(|phase| {
            let running = *phase == Phase::Running;
            if running {
                *phase = Phase::Draining;
            }
            running
        });
    }

    /// Cancels all requests and closes all connections.
    pub fn stop(&self) {
        self.0.send_replace(Phase::Stopped);
    }
}

/// The server's routes without a listener, for an application that has its own, and the handle that drains them.
///
/// The limits of `config` on connections (headers, stalled clients, number of connections) belong to the listener
/// and do not apply.
pub fn router(config: Config, model: Model, generator: Arc<dyn Generator>) -> io::Result<(Router, Handle)> {
    let (phase, phases) = watch::channel(Phase::Running);
    Ok((routes(config, model, generator, phases)?, Handle(phase)))
}

/// Delay before the next accept after a failed one. Errors such as too many open files would recur immediately.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

impl Server {
    /// Binds to an address; port 0 picks a free one. Must run in a tokio runtime with time and I/O enabled.
    pub async fn bind(
        address: SocketAddr,
        config: Config,
        model: Model,
        generator: Arc<dyn Generator>,
    ) -> io::Result<Server> {
        let (router, Handle(phase)) = router(config.clone(), model, generator)?;
        let listener = TcpListener::bind(address).await?;
        Ok(Server { listener, router, config, phase })
    }

    /// Local address, with the actual port.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Handle that shuts the server down.
    pub fn handle(&self) -> Handle {
        Handle(self.phase.clone())
    }

    /// Serves until [`Handle::stop`], or after [`Handle::drain`] until the last request has finished.
    pub async fn run(self) {
        let Server { listener, router, config, phase } = self;
        let mut phases = phase.subscribe();
        let permits = Arc::new(Semaphore::new(config.max_connections));
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                biased;
                () = wait_past(&mut phases, Phase::Running) => break,
                accepted = async {
                    let permit = permits.clone().acquire_owned().await.expect("the semaphore is never closed");
                    listener.accept().await.map(|(stream, _)| (stream, permit))
                } => accepted,
                Some(_) = connections.join_next() => continue,
            };
            match accepted {
                Ok((stream, permit)) => {
                    let serving = serve(stream, router.clone(), config.clone(), phase.subscribe());
                    connections.spawn(async move {
                        serving.await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
        drop(listener);
        tokio::select! {
            () = wait_past(&mut phases, Phase::Draining) => connections.shutdown().await,
            () = async { while connections.join_next().await.is_some() {} } => {}
        }
    }
}

/// Serves one connection until it is closed.
async fn serve(stream: TcpStream, router: Router, config: Config, mut phases: watch::Receiver<Phase>) {
    // Without it, Nagle's algorithm delays tokens. A failure costs latency only.
    let _ = stream.set_nodelay(true);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(config.header_timeout)
        .max_buf_size(config.max_header_bytes)
        .serve_connection(
            TokioIo::new(StallTimeout { stream, timeout: config.stall_timeout, timer: None }),
            TowerToHyperService::new(router),
        );
    let mut connection = std::pin::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = wait_past(&mut phases, Phase::Running) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection failed");
    }
}

/// A connection that fails when writes to its client stay blocked for too long.
struct StallTimeout {
    stream: TcpStream,
    timeout: Duration,
    /// Runs while writes are blocked.
    timer: Option<Pin<Box<Sleep>>>,
}

impl StallTimeout {
    fn check_stall<T>(
        &mut self,
        context: &mut Context<'_>,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.timer = None;
            return poll;
        }
        let timeout = self.timeout;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        timer.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for StallTimeout {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for StallTimeout {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check_stall(context, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.check_stall(context, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
