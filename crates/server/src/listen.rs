//! Connections: accepted, bounded, and brought to an end.

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

/// How far a server is from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// It takes requests.
    Open,
    /// It finishes those it has.
    Draining,
    /// It drops everything.
    Stopped,
}

/// A server that is bound to its address.
pub struct Server {
    listener: TcpListener,
    router: Router,
    config: Config,
    phase: watch::Sender<Phase>,
}

/// Ends a server from outside. A clone ends the same.
#[derive(Clone, Debug)]
pub struct Handle(watch::Sender<Phase>);

impl Handle {
    /// No new requests; those that run are finished, for as long as [`Server::run`] is awaited.
    pub fn drain(&self) {
        self.0.send_if_modified(|phase| {
            let open = *phase == Phase::Open;
            if open {
                *phase = Phase::Draining;
            }
            open
        });
    }

    /// Ends everything at once. What runs is cancelled.
    pub fn stop(&self) {
        self.0.send_replace(Phase::Stopped);
    }
}

/// After a failed accept (too many open files, say) the next one would fail at once too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl Server {
    /// Takes an address: port 0 is any free one. Needs tokio's runtime with time and input/output.
    pub async fn bind(
        address: SocketAddr,
        config: Config,
        model: Model,
        generator: Arc<dyn Generator>,
    ) -> io::Result<Server> {
        let (phase, watched) = watch::channel(Phase::Open);
        let router = crate::router::router(config.clone(), model, generator, watched)?;
        let listener = TcpListener::bind(address).await?;
        Ok(Server { listener, router, config, phase })
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What ends it.
    pub fn handle(&self) -> Handle {
        Handle(self.phase.clone())
    }

    /// Serves until [`Handle::stop`], or after [`Handle::drain`] until the last request is done.
    pub async fn run(self) {
        let Server { listener, router, config, phase } = self;
        let mut watched = phase.subscribe();
        let room = Arc::new(Semaphore::new(config.max_connections));
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                biased;
                () = left(&mut watched, Phase::Open) => break,
                accepted = async {
                    let place = room.clone().acquire_owned().await.expect("it is never closed");
                    listener.accept().await.map(|(stream, _)| (stream, place))
                } => accepted,
                Some(_) = connections.join_next() => continue,
            };
            match accepted {
                Ok((stream, place)) => {
                    let serving = serve(stream, router.clone(), config.clone(), phase.subscribe());
                    connections.spawn(async move {
                        serving.await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(listener);
        tokio::select! {
            () = left(&mut watched, Phase::Draining) => connections.shutdown().await,
            () = async { while connections.join_next().await.is_some() {} } => {}
        }
    }
}

/// Waits until a phase is over.
async fn left(watched: &mut watch::Receiver<Phase>, phase: Phase) {
    // Phases only go forward. An error says that the server is gone: nothing is left to wait for.
    let _ = watched.wait_for(|now| *now > phase).await;
}

/// One connection, to its end.
async fn serve(stream: TcpStream, router: Router, config: Config, mut phase: watch::Receiver<Phase>) {
    // Tokens are small and must not wait for one another. If it cannot be set, they are merely late.
    let _ = stream.set_nodelay(true);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(config.header_timeout)
        .max_buf_size(config.max_header_bytes)
        .serve_connection(
            TokioIo::new(Impatient { stream, limit: config.stall_timeout, stalled: None }),
            TowerToHyperService::new(router),
        );
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = left(&mut phase, Phase::Open) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

/// A connection whose client must read what it is sent.
struct Impatient {
    stream: TcpStream,
    limit: Duration,
    /// Runs while nothing can be written.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Impatient {
    fn patience<T>(&mut self, context: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.stalled = None;
            return poll;
        }
        let limit = self.limit;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        stalled.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Impatient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Impatient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.patience(context, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.patience(context, poll)
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
