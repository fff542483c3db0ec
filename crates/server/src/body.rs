//! Receiving request bodies within limits of size, time and total memory.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, HttpBody};
use axum::extract::Request;
use axum::http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use axum::http::{HeaderMap, HeaderValue, Version};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;

use crate::budget::{Budget, Evicted, Reservation};
use crate::config::Config;
use crate::connections::Connection;
use crate::encoding::{Decoder, Encoding};
use crate::error::Error;

/// Maximum bytes of a refused request's body to read and discard.
const MAX_DRAINED: usize = 256 << 20;

/// Bytes that are decoded at a time.
const DECODE_BUFFER: usize = 16 << 10;

/// Limits on request bodies, and the memory budget that all bodies share.
pub(crate) struct BodyLimits {
    max_bytes: usize,
    timeout: Duration,
    budget: Arc<Budget>,
}

/// A request whose body has not been read yet.
pub(crate) struct Unread {
    version: Version,
    headers: HeaderMap,
    connection: Option<Connection>,
    body: Body,
}

impl From<Request> for Unread {
    fn from(request: Request) -> Unread {
        let (parts, body) = request.into_parts();
        let connection = parts.extensions.get::<Connection>().cloned();
        Unread { version: parts.version, headers: parts.headers, connection, body }
    }
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    // Only digits (RFC 9110, section 8.6), of any number: a length that no integer holds is too large.
    let text = headers.get(CONTENT_LENGTH)?.to_str().ok()?.trim();
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| text.parse().unwrap_or(u64::MAX))
}

impl BodyLimits {
    pub(crate) fn new(config: &Config) -> BodyLimits {
        BodyLimits {
            max_bytes: config.max_body_bytes,
            timeout: config.body_timeout,
            budget: Arc::new(Budget::new(config.max_inflight_body_bytes.max(config.max_body_bytes))),
        }
    }

    /// An error if the announced length exceeds the limit.
    pub(crate) fn check_length(&self, headers: &HeaderMap) -> Result<(), Error> {
        match content_length(headers) {
            Some(length) if length > self.max_bytes as u64 => Err(Error::BodyTooLarge(self.max_bytes)),
            _ => Ok(()),
        }
    }

    /// Receives a body and decodes it. The memory must be held until the body is parsed: as JSON it is many times
    /// larger.
    pub(crate) async fn receive(&self, request: Unread) -> Result<(Vec<u8>, Reservation), Error> {
        let decoder = Encoding::of(&request.headers)?.decoder();
        let mut reservation = self.budget.reservation();
        let mut chunks = request.body.into_data_stream();
        let connection = request.connection;
        if let Some(connection) = &connection {
            connection.receiving();
        }
        let body = self.read(&mut chunks, decoder, &mut reservation, connection.as_ref());
        let read = tokio::time::timeout(self.timeout, body).await;
        let read = read.unwrap_or(Err(Error::BodyTimeout(self.timeout)));
        if let Some(connection) = &connection {
            connection.received();
        }
        match read {
            Ok(_) if connection.is_some_and(|connection| !connection.handle()) => {
                Err(Error::TooManyConnections)
            }
            Ok(bytes) => {
                reservation.complete();
                Ok((bytes, reservation))
            }
            // The body itself failed.
            Err(error @ Error::Invalid { .. }) => Err(error),
            // The client is still sending, and must see the response.
            Err(error) => {
                self.discard(chunks);
                Err(error)
            }
        }
    }

    async fn read(
        &self,
        chunks: &mut BodyDataStream,
        mut decoder: Option<Decoder>,
        reservation: &mut Reservation,
        connection: Option<&Connection>,
    ) -> Result<Vec<u8>, Error> {
        let (mut bytes, mut received) = (Vec::new(), 0);
        loop {
            let chunk = tokio::select! {
                chunk = chunks.next() => chunk,
                _ = reservation.evicted() => return Err(Error::BodyTooSlow),
            };
            let Some(chunk) = chunk else {
                decoder.map_or(Ok(()), |decoder| decoder.finish())?;
                return Ok(bytes);
            };
            let chunk = chunk.map_err(|error| {
                let message = format!("the body could not be read: {error}");
                Error::Invalid { param: None, message }
            })?;
            received += chunk.len();
            // Data that decodes to little or nothing is limited too.
            if received > self.max_bytes {
                return Err(Error::BodyTooLarge(self.max_bytes));
            }
            reservation.set_received(received);
            match &mut decoder {
                None => self.append(&mut bytes, &chunk, reservation, connection).await?,
                Some(decoder) => {
                    let (mut input, mut buffer) = (&chunk[..], vec![0; DECODE_BUFFER]);
                    loop {
                        let count = decoder.decode(&mut input, &mut buffer)?;
                        self.append(&mut bytes, &buffer[..count], reservation, connection).await?;
                        if input.is_empty() && count < buffer.len() {
                            break;
                        }
                    }
                }
            }
            if let Some(connection) = connection {
                connection.advanced(received);
            }
        }
    }

    /// Adds a part of a body as soon as there is memory for it.
    async fn append(
        &self,
        bytes: &mut Vec<u8>,
        part: &[u8],
        reservation: &mut Reservation,
        connection: Option<&Connection>,
    ) -> Result<(), Error> {
        let length = bytes.len() + part.len();
        if length > self.max_bytes {
            return Err(Error::BodyTooLarge(self.max_bytes));
        }
        if let Some(connection) = connection {
            connection.set_waiting(true);
        }
        let grown = reservation.grow_to(length).await;
        if let Some(connection) = connection {
            connection.set_waiting(false);
        }
        grown.map_err(|evicted| match evicted {
            Evicted::Slow => Error::BodyTooSlow,
            Evicted::NoMemory => Error::TooManyBodies,
        })?;
        if length > bytes.capacity() {
            // Doubled as usual, but never beyond the limit.
            let capacity = (2 * length).min(self.max_bytes);
            bytes.reserve_exact(capacity - bytes.len());
        }
        bytes.extend_from_slice(part);
        Ok(())
    }

    /// The response to a request that is refused without its body: at once, while the rest of the body is read and
    /// discarded. If the connection were closed while the client is still sending, the client would never see the
    /// response. A client that waits for `100 Continue` is not told to send a body that nobody wants.
    pub(crate) fn refuse(&self, request: impl Into<Unread>, error: Error) -> Response {
        let request = request.into();
        let waits = request.version >= Version::HTTP_11
            && request
                .headers
                .get(EXPECT)
                .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
        let mut response = error.into_response();
        if waits {
            // Its body may come or not: the connection cannot be used again.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        } else if !request.body.is_end_stream() {
            self.discard(request.body.into_data_stream());
        }
        response
    }

    fn discard(&self, mut chunks: BodyDataStream) {
        let timeout = self.timeout;
        tokio::spawn(async move {
            let read = async {
                let mut length = 0;
                while let Some(Ok(chunk)) = chunks.next().await
                    && length < MAX_DRAINED
                {
                    length += chunk.len();
                }
            };
            // The client has its response; if its body is not complete by now, the connection is closed.
            let _ = tokio::time::timeout(timeout, read).await;
        });
    }
}

/// Whether the content type is JSON. Other types are rejected to stop cross-site requests: a page from another origin
/// can send JSON only after a CORS preflight. This does not stop DNS rebinding; the check of the host does.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = value.split(';').next().unwrap_or_default().trim();
    media_type.eq_ignore_ascii_case("application/json")
}
