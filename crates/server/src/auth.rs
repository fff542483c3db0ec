//! Who may ask: bearers of a key, and pages of allowed origins.

use axum::http::header::{AUTHORIZATION, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

/// The keys that open `/v1`, as digests: comparing those takes the same time whatever was sent, its length included.
pub(crate) struct Keys(Vec<[u8; 32]>);

impl Keys {
    pub(crate) fn new(keys: &[String]) -> Keys {
        Keys(keys.iter().map(|key| digest(key.as_bytes())).collect())
    }

    /// Whether a request with these headers is let in.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let Some(sent) = headers.get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes())) else {
            return false;
        };
        let sent = digest(sent);
        // All are compared: which one fits does not show either.
        self.0.iter().fold(Choice::from(0), |found, key| found | key.ct_eq(&sent)).into()
    }
}

/// The token of `Bearer TOKEN`. The scheme's name has no case.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// What lets pages of these origins read answers; nothing where there are none.
pub(crate) fn cors(origins: &[String]) -> std::io::Result<Option<CorsLayer>> {
    if origins.is_empty() {
        return Ok(None);
    }
    let layer = CorsLayer::new()
        .allow_methods([Method::GET, Method::POST])
        // Clients tell of themselves in headers of their own; what counts here is the key.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([HeaderName::from_static("x-request-id"), RETRY_AFTER]);
    if origins.iter().any(|origin| origin == "*") {
        return Ok(Some(layer.allow_origin(Any)));
    }
    let origin = |origin: &String| {
        HeaderValue::from_str(origin).map_err(|_| {
            std::io::Error::new(std::io::ErrorKind::InvalidInput, format!("CORS: {origin:?} is no origin"))
        })
    };
    let origins = origins.iter().map(origin).collect::<Result<Vec<_>, _>>()?;
    Ok(Some(layer.allow_origin(AllowOrigin::list(origins))))
}
