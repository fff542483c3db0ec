//! API keys and CORS.

use axum::http::header::{AUTHORIZATION, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

use crate::openai::responses::Owner;

/// Accepted API keys, as SHA-256 digests: comparing digests takes the same time for keys of any length.
pub(crate) struct ApiKeys(Vec<[u8; 32]>);

impl ApiKeys {
    pub(crate) fn new(keys: &[String]) -> ApiKeys {
        ApiKeys(keys.iter().map(|key| digest(key.as_bytes())).collect())
    }

    /// Whether the request carries an accepted key, or none is required.
    pub(crate) fn authorize(&self, headers: &HeaderMap) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let Some(sent) = sent_key(headers) else { return false };
        let sent = digest(sent);
        // No early exit: timing must not show which key matched.
        self.0.iter().fold(Choice::from(0), |found, key| found | key.ct_eq(&sent)).into()
    }

    /// Whose the responses are that an authorised request stores: those of its key. Without keys, all are one owner's.
    pub(crate) fn owner(&self, headers: &HeaderMap) -> Owner {
        let sent = sent_key(headers).filter(|_| !self.0.is_empty());
        sent.map(digest).unwrap_or_default()
    }
}

/// The key that a request carries.
fn sent_key(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| bearer_token(value.as_bytes()));
    // The header of Anthropic's clients, and of proxies that keep `Authorization` to themselves.
    bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes().trim_ascii()))
}

/// The token of `Bearer TOKEN`. The scheme is case-insensitive (RFC 9110, section 11.1).
fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// CORS layer for these origins; `None` if there are none.
pub(crate) fn cors_layer(origins: &[String]) -> std::io::Result<Option<CorsLayer>> {
    if origins.is_empty() {
        return Ok(None);
    }
    let layer = CorsLayer::new()
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        // Client libraries send headers of their own (x-stainless-*); access is controlled by the API key.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([
            HeaderName::from_static("x-request-id"),
            HeaderName::from_static("request-id"),
            RETRY_AFTER,
        ]);
    if origins.iter().any(|origin| origin == "*") {
        return Ok(Some(layer.allow_origin(Any)));
    }
    let parse = |origin: &String| {
        HeaderValue::from_str(origin).map_err(|_| {
            std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                format!(
                    "invalid CORS origin {origin:?}: use scheme and host, as in https://example.org, or *"
                ),
            )
        })
    };
    let origins = origins.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    Ok(Some(layer.allow_origin(AllowOrigin::list(origins))))
}
