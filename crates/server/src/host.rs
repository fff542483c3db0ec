//! The check of the `Host` header.
//!
//! A page from another site can make its own name resolve to 127.0.0.1 (DNS rebinding) and then talk to a server on this
//! machine as if it were the page's own. Its requests still carry the page's name in `Host`.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::Version;
use axum::http::header::HOST;

use crate::error::Error;

/// Which hosts requests may name.
pub(crate) struct HostCheck(Option<Vec<String>>);

impl HostCheck {
    /// Names of this machine and `allowed` ones; `None`: all.
    pub(crate) fn new(allowed: Option<&[String]>) -> HostCheck {
        let allowed = allowed.filter(|names| !names.iter().any(|name| name == "*"));
        // A port in an allowed name would match nothing.
        HostCheck(allowed.map(|names| names.iter().map(|host| name(host).to_owned()).collect()))
    }

    /// An error unless the request names an allowed host.
    pub(crate) fn check(&self, request: &Request) -> Result<(), Error> {
        let mut hosts = request.headers().get_all(HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => host.to_str().map_err(|_| Error::InvalidHost)?,
            // A client of HTTP/1.1 must send exactly one (RFC 9112, section 3.2).
            (None, None) if request.version() < Version::HTTP_11 => "",
            _ => return Err(Error::InvalidHost),
        };
        // The target of a request to a proxy, `GET http://name/path`, replaces it.
        let host = request.uri().authority().map_or(host, |authority| authority.as_str());
        let Some(allowed) = &self.0 else { return Ok(()) };
        let name = name(host);
        if name.is_empty() || is_local(name) || allowed.iter().any(|known| name.eq_ignore_ascii_case(known)) {
            return Ok(());
        }
        Err(Error::HostNotAllowed(name.to_owned()))
    }
}

/// A host without its port, and an IPv6 address without its brackets.
fn name(host: &str) -> &str {
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    let name = host.split(':').next().unwrap_or_default();
    name.strip_suffix('.').unwrap_or(name)
}

/// Whether a name always means this machine (RFC 6761, section 6.3).
fn is_local(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name == "localhost"
        || name.ends_with(".localhost")
        || name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn check(allowed: Option<&[String]>, host: Option<&str>) -> Result<(), Error> {
        let mut request = Request::builder().uri("/health");
        if let Some(host) = host {
            request = request.header(HOST, host);
        }
        HostCheck::new(allowed).check(&request.body(Body::empty()).expect("a valid request"))
    }

    #[test]
    fn only_names_of_this_machine_and_allowed_ones_pass() {
        let allowed = ["Chat.example.org".to_owned()];
        for host in
            ["localhost", "LOCALHOST:8006", "a.localhost", "127.0.0.1:8006", "127.3.4.5", "[::1]:1", ""]
        {
            assert_eq!(check(Some(&allowed), Some(host)), Ok(()), "{host}");
        }
        for host in ["chat.example.org", "chat.example.org:8006", "chat.example.org."] {
            assert_eq!(check(Some(&allowed), Some(host)), Ok(()), "{host}");
            assert_eq!(check(None, Some(host)), Ok(()), "{host}");
            assert_eq!(check(Some(&["*".to_owned()]), Some(host)), Ok(()), "{host}");
        }
        for host in ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", "x@evil"]
        {
            assert!(matches!(check(Some(&allowed), Some(host)), Err(Error::HostNotAllowed(_))), "{host}");
        }
        assert_eq!(check(None, None), Err(Error::InvalidHost));
    }
}
