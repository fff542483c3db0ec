//! HTTP, as much of it as is needed: requests with this machine's certificates, proxy and patience.

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

/// The longest page of an index that is read.
const LONGEST_PAGE: u64 = 64 << 20;

/// How much longer than to accept a connection a server may take to answer on it.
const ANSWER: u32 = 3;

/// Headers of a request.
pub type Headers<'a> = &'a [(&'a str, String)];

/// Sends requests.
#[derive(Debug)]
pub struct Client {
    agent: Agent,
}

impl Client {
    /// A client for this machine.
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

    /// Ends all that is under way, from another thread: whoever reads gets an error.
    pub fn shut_down(&self) {
        self.agent.clone().shutdown();
    }

    /// The answer to a GET, whose status is one of success or of `also`.
    pub fn get(&self, url: &str, headers: Headers, also: &[u16]) -> Result<Response<Body>> {
        let response = with_headers(self.agent.get(url), headers).call();
        checked(url, response, |status| (200..300).contains(&status) || also.contains(&status))
    }

    /// The answer to a HEAD, be it a redirect, from a server that has to accept the connection and answer soon.
    pub fn head(&self, url: &str, headers: Headers, patience: Duration) -> Result<Response<Body>> {
        let response = with_headers(self.agent.head(url), headers)
            .config()
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(Some(patience))
            .timeout_connect(Some(patience))
            .timeout_recv_response(Some(patience * ANSWER))
            .build()
            .call();
        checked(url, response, |status| (200..400).contains(&status))
    }

    /// A page as text, and where it was found in the end.
    pub fn page(&self, url: &str, headers: Headers) -> Result<(String, String)> {
        use ureq::ResponseExt;
        let mut response = self.get(url, headers, &[])?;
        let found = response.get_uri().to_string();
        let body = response.body_mut().with_config().limit(LONGEST_PAGE).lossy_utf8(true).read_to_string();
        Ok((body.map_err(|error| network_error(url, &error))?, found))
    }
}

/// A header's value as text.
pub fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

/// An error of a connection.
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
        return Err(unusable("there is no certificate in it".to_string()));
    }
    Ok(RootCerts::from(certificates))
}
