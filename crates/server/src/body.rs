//! Receiving request bodies within limits of size, time and total memory.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use futures_util::StreamExt;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::config::Config;
use crate::error::Error;

/// Unit of the memory budget in bytes.
const BUDGET_UNIT: usize = 1024;

/// Maximum number of budget units, 256 GiB: within the limit of a semaphore on 32-bit machines too.
const MAX_UNITS: u32 = 1 << 28;

/// Memory reserved for a body before its first bytes have arrived.
const INITIAL_RESERVATION: usize = 64 << 10;

/// Maximum time a partly received body waits for more memory.
const GROW_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum bytes of a rejected request's body to read and discard before the connection is closed.
const MAX_DRAINED: usize = 256 << 20;

/// Limits on request bodies, and the memory budget that all bodies share.
pub(crate) struct BodyLimits {
    max_bytes: usize,
    timeout: Duration,
    /// Free memory for bodies, in units of [`BUDGET_UNIT`].
    budget: Semaphore,
}

/// Memory reserved for a body. Held until the body is parsed: as JSON it is many times larger.
pub(crate) type Reservation<'a> = SemaphorePermit<'a>;

impl BodyLimits {
    pub(crate) fn new(config: &Config) -> BodyLimits {
        let budget = config.max_inflight_body_bytes.max(config.max_body_bytes);
        BodyLimits {
            max_bytes: config.max_body_bytes,
            timeout: config.body_timeout,
            budget: Semaphore::new(units(budget) as usize),
        }
    }

    /// Receives a body.
    pub(crate) async fn receive(&self, request: Request) -> Result<(Vec<u8>, Reservation<'_>), Error> {
        let length =
            request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        // Memory is reserved as bytes arrive: a client that announces a large body and sends nothing does not block
        // others.
        let first = length.map_or(self.max_bytes, |length: usize| length.min(self.max_bytes));
        let mut reservation = self.reserve(first.min(INITIAL_RESERVATION), self.timeout).await?;
        let bytes = self.read(request.into_body(), &mut reservation).await?;
        Ok((bytes, reservation))
    }

    /// Reads and discards the body of a rejected request, within the time limit and up to [`MAX_DRAINED`] bytes.
    /// If the connection were closed while the client is still sending, the client would never see the response.
    pub(crate) async fn drain_body(&self, request: Request) {
        let mut chunks = request.into_body().into_data_stream();
        let read = async {
            let mut length = 0;
            while let Some(Ok(chunk)) = chunks.next().await
                && length < MAX_DRAINED
            {
                length += chunk.len();
            }
        };
        // The response is the same whether the body ended or not.
        let _ = tokio::time::timeout(self.timeout, read).await;
    }

    async fn reserve(&self, bytes: usize, timeout: Duration) -> Result<Reservation<'_>, Error> {
        let permit = tokio::time::timeout(timeout, self.budget.acquire_many(units(bytes))).await;
        permit.ok().and_then(Result::ok).ok_or(Error::QueueFull(timeout))
    }

    /// Reads a body. One that is too large is drained.
    async fn read<'a>(&'a self, body: Body, reservation: &mut Reservation<'a>) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let mut length = 0;
        let read = async {
            let mut chunks = body.into_data_stream();
            while let Some(chunk) = chunks.next().await {
                let chunk = chunk.map_err(|error| {
                    let message = format!("the body could not be read: {error}");
                    Error::Invalid { param: None, message }
                })?;
                length += chunk.len();
                if length <= self.max_bytes {
                    let missing = (units(length) as usize).saturating_sub(reservation.num_permits());
                    if missing > 0 {
                        // A short timeout: bodies that wait while holding memory could deadlock each other.
                        reservation.merge(self.reserve(missing * BUDGET_UNIT, GROW_TIMEOUT).await?);
                    }
                    bytes.extend_from_slice(&chunk);
                } else if length > MAX_DRAINED {
                    break;
                } else {
                    bytes = Vec::new();
                }
            }
            Ok::<(), Error>(())
        };
        let read = tokio::time::timeout(self.timeout, read).await;
        if length > self.max_bytes {
            return Err(Error::BodyTooLarge(self.max_bytes));
        }
        read.map_err(|_| Error::BodyTimeout(self.timeout))??;
        Ok(bytes)
    }
}

/// Number of budget units for `bytes`, at least one.
fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BUDGET_UNIT)).map_or(MAX_UNITS, |units| units.clamp(1, MAX_UNITS))
}

/// Whether the content type is JSON. Other types are rejected to stop cross-site requests: a page from another origin
/// can send JSON only after a CORS preflight. This does not stop DNS rebinding.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = value.split(';').next().unwrap_or_default().trim();
    media_type.eq_ignore_ascii_case("application/json")
}
