//! The HTTP client, with the machine's certificates, proxy and timeouts.
//!
//! Redirects are followed here rather than by the HTTP library, because two rules must hold for every one of
//! them: the hub's token is sent to the hub's own origin only, and a connection that began with TLS never
//! continues without it.

use std::{path::Path, time::Duration};

use ureq::{
    Agent, Body, RequestBuilder,
    http::Response,
    tls::{PemItem, RootCerts, TlsConfig},
    typestate::WithoutBody,
};

use crate::{
    error::{Error, Result},
    retry_after,
    settings::Settings,
    url::{join, origin, without_secrets},
};

/// Maximum size of a page or of an API response, in bytes.
const MAX_PAGE_BYTES: u64 = 64 << 20;

/// Response timeout as a multiple of the connect timeout.
const RESPONSE_FACTOR: u32 = 3;

/// Maximum number of redirects of one request. Browsers allow 20; a hub needs two.
const MAX_REDIRECTS: usize = 10;

/// Request headers.
pub type Headers<'a> = &'a [(&'a str, String)];

/// Which redirects a request follows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Follow {
    /// All of them.
    All,
    /// Those within the same origin, such as the one of a renamed repository. The first redirect that leaves
    /// it is the response.
    SameOrigin,
}

/// A response and the address that it came from, after redirects.
pub struct Reply {
    /// The response.
    pub response: Response<Body>,
    /// Its address.
    pub url: String,
}

impl Reply {
    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// A header's value as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// Whether the content is a web page, judging by its type: a login page or the error page of a proxy.
    pub fn is_web_page(&self) -> bool {
        self.header("content-type").is_some_and(|kind| kind.trim_start().starts_with("text/html"))
    }
}

/// An HTTP client.
#[derive(Debug)]
pub struct Client {
    agent: Agent,
    /// The token of the hub, and the only origin that it is sent to.
    token: Option<(String, String)>,
}

impl Client {
    /// A client with these settings.
    pub fn new(settings: &Settings) -> Result<Self> {
        let mut tls = TlsConfig::builder();
        if let Some((path, setting)) = &settings.certificates {
            tls = tls.root_certs(roots(path, setting)?);
        }
        let config = Agent::config_builder()
            .user_agent(concat!("indrik/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls.build())
            .proxy(settings.proxy.clone())
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // Each connection of a parallel download stays open between ranges.
            .max_idle_connections_per_host(settings.connections.max(1))
            .timeout_resolve(Some(settings.connect_timeout))
            .timeout_connect(Some(settings.connect_timeout))
            .timeout_recv_response(Some(settings.stall_timeout))
            .timeout_per_read(Some(settings.stall_timeout))
            .timeout_per_write(Some(settings.stall_timeout))
            .build();
        if settings.token.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(Error::MalformedToken);
        }
        let token = settings.token.clone().map(|token| (origin(&settings.hub), token));
        Ok(Self { agent: Agent::new_with_config(config), token })
    }

    /// Ends all requests from another thread; their reads fail.
    pub fn shut_down(&self) {
        self.agent.clone().shutdown();
    }

    /// Sends a GET and follows all redirects. Status codes other than 2xx and those in `accept` are errors.
    pub fn get(&self, url: &str, headers: Headers, accept: &[u16]) -> Result<Reply> {
        let accepted = |status: u16| (200..300).contains(&status) || accept.contains(&status);
        self.follow(url, Follow::All, accepted, |url| self.prepared(self.agent.get(url), url, headers).call())
    }

    /// Sends a HEAD and follows redirects within the origin, with a short timeout.
    pub fn head(&self, url: &str, headers: Headers, connect_timeout: Duration) -> Result<Reply> {
        let accepted = |status: u16| (200..400).contains(&status);
        self.follow(url, Follow::SameOrigin, accepted, |url| {
            self.prepared(self.agent.head(url), url, headers)
                .config()
                .timeout_resolve(Some(connect_timeout))
                .timeout_connect(Some(connect_timeout))
                .timeout_recv_response(Some(connect_timeout * RESPONSE_FACTOR))
                .build()
                .call()
        })
    }

    /// A page as text, and its address after redirects.
    pub fn page(&self, url: &str, headers: Headers) -> Result<(String, Reply)> {
        let mut reply = self.get(url, headers, &[])?;
        let body = reply.response.body_mut().with_config().limit(MAX_PAGE_BYTES).lossy_utf8(true);
        let text = body.read_to_string().map_err(|error| network_error(url, &error))?;
        Ok((text, reply))
    }

    fn follow(
        &self,
        first: &str,
        follow: Follow,
        accepted: impl Fn(u16) -> bool,
        send: impl Fn(&str) -> Result<Response<Body>, ureq::Error>,
    ) -> Result<Reply> {
        let mut url = first.to_string();
        for _ in 0..=MAX_REDIRECTS {
            let response = send(&url).map_err(|error| network_error(&url, &error))?;
            let reply = Reply { response, url };
            let target = redirect_target(&reply)?;
            match target {
                Some(target) if follow == Follow::All || origin(&target) == origin(&reply.url) => {
                    url = target
                }
                _ if accepted(reply.status()) => return Ok(reply),
                _ => return Err(status_error(&reply)),
            }
        }
        let reason = format!("more than {MAX_REDIRECTS} redirects: the server is configured wrongly");
        Err(Error::Redirect { url: without_secrets(first), reason })
    }

    fn prepared(
        &self,
        mut request: RequestBuilder<WithoutBody>,
        url: &str,
        headers: Headers,
    ) -> RequestBuilder<WithoutBody> {
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        match &self.token {
            Some((hub, token)) if origin(url) == *hub => {
                request.header("Authorization", format!("Bearer {token}"))
            }
            _ => request,
        }
    }
}

/// The address that a response redirects to.
fn redirect_target(reply: &Reply) -> Result<Option<String>> {
    if !matches!(reply.status(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let Some(location) = reply.header("location") else { return Ok(None) };
    let target = join(&reply.url, location);
    let refused = |reason: &str| Error::Redirect {
        url: without_secrets(&reply.url),
        reason: format!("it redirects to {}, {reason}", without_secrets(&target)),
    };
    let is = |url: &str, scheme: &str| {
        url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    };
    if is(&reply.url, "https://") && !is(&target, "https://") {
        return Err(refused("which is not encrypted: refused"));
    }
    if !is(&target, "https://") && !is(&target, "http://") {
        return Err(refused("which is not an HTTP address: refused"));
    }
    Ok(Some(target))
}

fn status_error(reply: &Reply) -> Error {
    let header = |name: &str| reply.header(name).map(|text| text.chars().take(200).collect::<String>());
    Error::Status {
        url: without_secrets(&reply.url),
        status: reply.status(),
        retry_after: reply
            .header("retry-after")
            .and_then(|value| retry_after::parse(value, std::time::SystemTime::now())),
        code: header("x-error-code"),
        message: header("x-error-message"),
    }
}

/// A connection error.
pub fn network_error(url: &str, error: &dyn std::fmt::Display) -> Error {
    Error::Network { url: without_secrets(url), reason: error.to_string() }
}

fn roots(path: &Path, setting: &str) -> Result<RootCerts> {
    let unusable = |reason: String| Error::Certificates {
        path: path.to_path_buf(),
        setting: setting.to_string(),
        reason,
    };
    let text = std::fs::read(path).map_err(|error| unusable(error.to_string()))?;
    let mut certificates = Vec::new();
    for item in ureq::tls::parse_pem(&text) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| unusable(error.to_string()))? {
            certificates.push(certificate);
        }
    }
    if certificates.is_empty() {
        return Err(unusable("it contains no certificate".to_string()));
    }
    Ok(RootCerts::from(certificates))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(from: &str, status: u16, location: &str) -> Result<Option<String>> {
        let response = Response::builder().status(status).header("location", location);
        let response = response.body(Body::builder().data(Vec::new())).unwrap();
        redirect_target(&Reply { response, url: from.to_string() })
    }

    #[test]
    fn redirects_never_lose_encryption() {
        let hub = "https://hub/a/b";
        assert_eq!(target(hub, 302, "https://cdn/x?s=1").unwrap().as_deref(), Some("https://cdn/x?s=1"));
        assert_eq!(target(hub, 307, "/c").unwrap().as_deref(), Some("https://hub/c"));
        assert_eq!(target(hub, 308, "//cdn/x").unwrap().as_deref(), Some("https://cdn/x"));
        assert_eq!(target("http://hub/a", 302, "https://cdn/x").unwrap().as_deref(), Some("https://cdn/x"));
        assert_eq!(target("http://hub/a", 302, "http://cdn/x").unwrap().as_deref(), Some("http://cdn/x"));
        assert_eq!(target(hub, 200, "http://cdn/x").unwrap(), None, "not a redirect");
        for (location, part) in [
            ("http://cdn/x?token=secret", "not encrypted"),
            ("HTTP://cdn/x", "not encrypted"),
            ("ftp://cdn/x", "not encrypted"),
            ("file:///etc/passwd", "not encrypted"),
        ] {
            let error = target(hub, 302, location).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("secret"), "{error}");
        }
        let error = target("http://hub/a", 302, "file:///etc/passwd").unwrap_err().to_string();
        assert!(error.contains("not an HTTP address"), "{error}");
    }
}
