//! The web UI at `/`: a chat and a dashboard in one HTML file, built from `web/` by `make webui`.
//!
//! The file is static and the same for everybody. What it shows it fetches from this server, with an API key that the
//! user enters if the server requires one. Its script and its style are inline; the content security policy allows
//! exactly these two, by their SHA-256, so a script that slipped into the page through a model's output would not run.

use std::sync::LazyLock;

use axum::body::Body;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// The page, as `make webui` built it.
const PAGE: &str = include_str!("../webui/index.html");

/// The page's headers, which follow from its bytes.
static HEADERS: LazyLock<HeaderMap> = LazyLock::new(|| headers(PAGE));

/// `GET /`: the page, or 304 if the browser has it already.
pub(crate) async fn webui(request: HeaderMap) -> Response {
    let is_known = request.get_all(IF_NONE_MATCH).iter().any(|tags| matches(tags, &HEADERS[ETAG]));
    let body = if is_known { Body::empty() } else { Body::from(PAGE) };
    let mut response = Response::new(body);
    *response.headers_mut() = HEADERS.clone();
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response.headers_mut().remove(CONTENT_TYPE);
    }
    response
}

/// Whether an `If-None-Match` header names this tag. Weak tags match too (RFC 9110, section 13.1.2).
fn matches(tags: &HeaderValue, tag: &HeaderValue) -> bool {
    let (Ok(tags), Ok(tag)) = (tags.to_str(), tag.to_str()) else { return false };
    tags.split(',').map(str::trim).any(|known| known == "*" || known.trim_start_matches("W/") == tag)
}

fn headers(page: &str) -> HeaderMap {
    let text = |value: String| HeaderValue::from_str(&value).expect("printable ASCII");
    let fixed = HeaderValue::from_static;
    HeaderMap::from_iter([
        (CONTENT_TYPE, fixed("text/html; charset=utf-8")),
        (CONTENT_SECURITY_POLICY, text(policy(page))),
        (X_CONTENT_TYPE_OPTIONS, fixed("nosniff")),
        (REFERRER_POLICY, fixed("no-referrer")),
        (HeaderName::from_static("cross-origin-opener-policy"), fixed("same-origin")),
        (HeaderName::from_static("cross-origin-resource-policy"), fixed("same-origin")),
        // Revalidated on each load: after an update, the server's page and its API belong together.
        (CACHE_CONTROL, fixed("no-cache")),
        (ETAG, text(format!("\"{}\"", sha256(page)))),
    ])
}

/// Content security policy: no source but this server, and only the page's own script and style. Trusted types reject
/// every string that is about to be parsed as HTML or as a script.
fn policy(page: &str) -> String {
    let script = sha256(inline(page, "script"));
    let style = sha256(inline(page, "style"));
    [
        "default-src 'none'",
        &format!("script-src 'sha256-{script}'"),
        &format!("style-src 'sha256-{style}'"),
        "connect-src 'self'",
        "img-src 'self' data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
    .join("; ")
}

/// Content of the page's only element of this name.
fn inline<'a>(page: &'a str, element: &str) -> &'a str {
    let content = page
        .split_once(&format!("<{element}>"))
        .and_then(|(_, rest)| rest.split_once(&format!("</{element}>")).map(|(content, _)| content));
    content.expect("`make webui` writes one script and one style")
}

fn sha256(text: &str) -> String {
    STANDARD.encode(Sha256::digest(text))
}
