//! The HTTP client, with the machine's certificates, proxy and timeouts.

use std::{path::Path, time::Duration};

use ureq::{
    Agent, Body, RequestBuilder,
    http::Response,
    tls::{PemItem, RootCerts, TlsConfig},
    typestate::WithoutBody,
};

use crate::{
    error::{Error, Result},
    settings::Settings,
    url::without_secrets,
};

/// Maximum size of an index page, in bytes.
const MAX_PAGE_BYTES: u64 = 64 << 20;

/// Response timeout as a multiple of the connect timeout.
const RESPONSE_FACTOR: u32 = 3;

/// Request headers.
pub type Headers<'a> = &'a [(&'a str, String)];

/// An HTTP client.
#[derive(Debug)]
pub struct Client {
    agent: Agent,
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
            .timeout_resolve(Some(settings.connect_timeout))
            .timeout_connect(Some(settings.connect_timeout))
            .timeout_recv_response(Some(settings.stall_timeout))
            .timeout_per_read(Some(settings.stall_timeout))
            .timeout_per_write(Some(settings.stall_timeout))
            .build();
        Ok(Self { agent: Agent::new_with_config(config) })
    }

    /// Ends all requests from another thread; their reads fail.
    pub fn shut_down(&self) {
        self.agent.clone().shutdown();
    }

    /// Sends a GET. Status codes other than 2xx and those in `accept` are errors.
    pub fn get(&self, url: &str, headers: Headers, accept: &[u16]) -> Result<Response<Body>> {
        let response = with_headers(self.agent.get(url), headers).call();
        checked(url, response, |status| (200..300).contains(&status) || accept.contains(&status))
    }

    /// Sends a HEAD without following redirects, with a short timeout.
    pub fn head(&self, url: &str, headers: Headers, connect_timeout: Duration) -> Result<Response<Body>> {
        let response = with_headers(self.agent.head(url), headers)
            .config()
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(Some(connect_timeout))
            .timeout_connect(Some(connect_timeout))
            .timeout_recv_response(Some(connect_timeout * RESPONSE_FACTOR))
            .build()
            .call();
        checked(url, response, |status| (200..400).contains(&status))
    }

    /// A page as text, and its address after redirects.
    pub fn page(&self, url: &str, headers: Headers) -> Result<(String, String)> {
        use ureq::ResponseExt;
        let mut response = self.get(url, headers, &[])?;
        let final_url = response.get_uri().to_string();
        let body = response.body_mut().with_config().limit(MAX_PAGE_BYTES).lossy_utf8(true).read_to_string();
        Ok((body.map_err(|error| network_error(url, &error))?, final_url))
    }
}

/// A header's value as text.
pub fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

/// A connection error.
pub fn network_error(url: &str, error: &dyn std::fmt::Display) -> Error {
    Error::Network { url: without_secrets(url), reason: error.to_string() }
}

fn with_headers(mut request: RequestBuilder<WithoutBody>, headers: Headers) -> RequestBuilder<WithoutBody> {
    for (name, value) in headers {
        request = request.header(*name, value);
    }
    request
}

fn checked(
    url: &str,
    response: Result<Response<Body>, ureq::Error>,
    accepted: impl Fn(u16) -> bool,
) -> Result<Response<Body>> {
    let response = response.map_err(|error| network_error(url, &error))?;
    let status = response.status().as_u16();
    if accepted(status) { Ok(response) } else { Err(Error::Status { url: without_secrets(url), status }) }
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
