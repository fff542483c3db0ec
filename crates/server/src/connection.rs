//! One connection: reading, writing, and noticing that its client is gone.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use axum::response::Response;
use futures_util::FutureExt;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Sleep;

use crate::config::Config;
use crate::connections::{ActiveRequest, Connection, OpenConnection};
use crate::phase::Phase;
use crate::router::normalise_path;

/// Interval of checks whether the client of a running request is still there.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Sent to a client that has closed its side of the connection and waits: whether it is still there shows only when it
/// is sent something. Clients must accept and skip it (RFC 9110, section 15.2).
const INTERIM_RESPONSE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// What a connection needs of its server.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) router: Router,
    pub(crate) config: Arc<Config>,
    pub(crate) phases: watch::Receiver<Phase>,
    /// Set when connections must end after their current response.
    pub(crate) closing: watch::Receiver<bool>,
}

/// Serves one connection until it is closed.
pub(crate) async fn serve(stream: Arc<TcpStream>, open: OpenConnection, service: Service) {
    // Without it, Nagle's algorithm delays tokens. A failure costs latency only.
    let _ = stream.set_nodelay(true);
    let entry = &open.connection;
    let Service { config, mut closing, .. } = service.clone();
    let handler = {
        let entry = entry.clone();
        service_fn(move |request| handle(service.clone(), entry.clone(), request))
    };
    let io = Io { stream: stream.clone(), entry: entry.clone(), timeout: config.stall_timeout, timer: None };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(config.header_timeout)
        .max_buf_size(config.max_header_bytes)
        // A client may close its side after its request and wait for the response.
        .half_close(true)
        .serve_connection(TokioIo::new(io), handler);
    let mut connection = std::pin::pin!(connection);
    let served = async {
        tokio::select! {
            result = connection.as_mut() => result,
            () = async { drop(closing.wait_for(|closing| *closing).await) } => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    tokio::select! {
        result = served => {
            if let Err(error) = result {
                tracing::debug!(%error, "connection failed");
            }
        }
        () = client_gone(&stream, entry) => tracing::debug!("the client is gone"),
        () = entry.evicted() => tracing::debug!("connection closed for another one"),
    }
}

/// Handles a request.
async fn handle(
    service: Service,
    entry: Connection,
    mut request: hyper::Request<Incoming>,
) -> Result<Response, std::convert::Infallible> {
    if let Some(uri) = normalise_path(request.uri()) {
        *request.uri_mut() = uri;
    }
    let active = entry.begin(request.version());
    let mut request: Request = request.map(Body::new);
    request.extensions_mut().insert(entry);
    let Ok(mut response) = TowerToHyperService::new(service.router).call(request).await;
    if *service.phases.borrow() != Phase::Running {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response.map(|inner| Body::new(TrackedBody { inner, _active: active })))
}

/// A response body that ends its request when it is dropped.
struct TrackedBody {
    inner: Body,
    _active: ActiveRequest,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Waits until the client of a running request is known to be gone. That it has closed its side is not enough: it may
/// have said all it wanted to say, and wait for the response.
async fn client_gone(stream: &TcpStream, entry: &Connection) {
    let mut was_asked = false;
    loop {
        if !entry.is_handling() {
            was_asked = false;
            entry.began().await;
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
        match stream.peek(&mut [0]).now_or_never() {
            Some(Ok(0)) if !was_asked && entry.allows_interim_response() => {
                was_asked = true;
                // If the client is gone, its machine answers with a reset.
                let written = stream.try_write(INTERIM_RESPONSE);
                if written.is_ok_and(|count| count < INTERIM_RESPONSE.len()) {
                    return;
                }
            }
            Some(Err(error)) if error.kind() != io::ErrorKind::WouldBlock => return,
            _ => {}
        }
        if matches!(stream.take_error(), Ok(Some(_))) {
            return;
        }
    }
}

/// The stream of a connection. Fails when writes to its client stay blocked for too long.
struct Io {
    stream: Arc<TcpStream>,
    entry: Connection,
    timeout: Duration,
    /// Runs while writes are blocked.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Io {
    /// Writes with `write` when the stream is ready.
    fn write_when_ready(
        &mut self,
        context: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        while self.stream.poll_write_ready(context)?.is_ready() {
            match write(&self.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => {
                    self.timer = None;
                    self.entry.written();
                    return Poll::Ready(result);
                }
            }
        }
        self.entry.stalled();
        let timeout = self.timeout;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        timer.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(context))?;
            match self.stream.try_read(buffer.initialize_unfilled()) {
                Ok(count) => {
                    buffer.advance(count);
                    if count > 0 {
                        self.entry.bytes_arrived();
                    }
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write_when_ready(context, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write_when_ready(context, |stream| stream.try_write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Nothing is buffered.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shutdown = rustix::net::shutdown(&*self.stream, rustix::net::Shutdown::Write);
        Poll::Ready(shutdown.map_err(io::Error::from))
    }
}
