//! Fetches images from http and https URLs of requests.
//!
//! Clients choose the URLs, so the server must not fetch what only it can reach: services of this machine, of its
//! network, or of the cloud it runs in. Every address is checked after its name was resolved, and the connection
//! goes to the checked address, so that a second answer of the name server changes nothing. Redirects are followed here,
//! each checked like the first URL. No proxy is used: it would resolve names itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use axum::http::Uri;
use ureq::Agent;
use ureq::config::Config;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

/// Maximum number of redirects of one image.
const MAX_REDIRECTS: usize = 3;

/// Says what kind of address it is if images must not be fetched from it.
type AddressFilter = fn(IpAddr) -> Option<&'static str>;

/// Fetches images.
pub(crate) struct Fetcher {
    agent: Agent,
    max_bytes: u64,
    timeout: Duration,
}

impl Fetcher {
    /// Limits are per image.
    pub(crate) fn new(max_bytes: u64, timeout: Duration) -> Fetcher {
        Fetcher::with_filter(max_bytes, timeout, refused_kind)
    }

    fn with_filter(max_bytes: u64, timeout: Duration, filter: AddressFilter) -> Fetcher {
        let config = Agent::config_builder()
            .user_agent(concat!("indrik/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_idle_connections(0)
            .proxy(None)
            .build();
        let resolver = CheckedResolver { resolver: DefaultResolver::default(), filter };
        Fetcher {
            agent: Agent::with_parts(config, DefaultConnector::default(), resolver),
            max_bytes,
            timeout,
        }
    }

    /// The bytes of an image, or why they could not be fetched. Blocks the thread.
    pub(crate) fn fetch(&self, url: &str) -> Result<Vec<u8>, String> {
        let deadline = Instant::now() + self.timeout;
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let left = deadline.saturating_duration_since(Instant::now());
            let request = self.agent.get(&url).config().timeout_global(Some(left)).build();
            let response = request.call().map_err(|error| self.reason(error))?;
            let location = response.headers().get("location").and_then(|value| value.to_str().ok());
            match (response.status().as_u16(), location) {
                (301 | 302 | 303 | 307 | 308, Some(location)) => url = redirect_target(&url, location)?,
                (200, _) => {
                    let mut body = response.into_body();
                    if let Some(bytes) = body.content_length().filter(|bytes| *bytes > self.max_bytes) {
                        return Err(images::Error::TooManyBytes { bytes, limit: self.max_bytes }.to_string());
                    }
                    // The limit of the library is exclusive.
                    let body = body.with_config().limit(self.max_bytes + 1);
                    return body.read_to_vec().map_err(|error| self.reason(error));
                }
                (status, _) => return Err(format!("its server answered with the status {status}")),
            }
        }
        Err(format!("it has more than {MAX_REDIRECTS} redirects"))
    }

    fn reason(&self, error: ureq::Error) -> String {
        match error {
            ureq::Error::Timeout(_) => format!("it did not arrive within {} s", self.timeout.as_secs_f64()),
            ureq::Error::BodyExceedsLimit(_) => {
                format!("it has more bytes than the limit of {}", self.max_bytes)
            }
            // Of the resolver.
            ureq::Error::Other(error) => error.to_string(),
            error => error.to_string(),
        }
    }
}

/// A resolver whose addresses have all passed a filter.
#[derive(Debug)]
struct CheckedResolver {
    resolver: DefaultResolver,
    filter: AddressFilter,
}

impl Resolver for CheckedResolver {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let addresses = self.resolver.resolve(uri, config, timeout)?;
        let mut refused =
            addresses.iter().filter_map(|address| Some((address.ip(), (self.filter)(address.ip())?)));
        match refused.next() {
            Some((address, kind)) => Err(ureq::Error::Other(Box::new(RefusedAddress { address, kind }))),
            None => Ok(addresses),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the address {address} is {kind}, and images are only fetched from public addresses")]
struct RefusedAddress {
    address: IpAddr,
    kind: &'static str,
}

/// What kind of address it is, unless it is public.
fn refused_kind(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => refused_kind_v4(address),
        IpAddr::V6(address) => refused_kind_v6(address),
    }
}

fn refused_kind_v4(address: Ipv4Addr) -> Option<&'static str> {
    let kind = match address.octets() {
        [0, ..] => "unspecified",
        [127, ..] => "a loopback address",
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => "private",
        [169, 254, ..] => "link-local",
        // A service of Azure's machines.
        [168, 63, 129, 16] => "a cloud provider's service",
        [100, 64..=127, ..] => "shared by a provider's customers",
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => "for documentation",
        [198, 18 | 19, ..] => "for benchmarks",
        [192, 0, 0, _] | [192, 88, 99, _] | [240..=255, ..] => "reserved",
        [224..=239, ..] => "a multicast address",
        _ => return None,
    };
    Some(kind)
}

fn refused_kind_v6(address: Ipv6Addr) -> Option<&'static str> {
    let kind = match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => "unspecified",
        [0, 0, 0, 0, 0, 0, 0, 1] => "a loopback address",
        [0, 0, 0, 0, 0, 0xffff, ..] => "an IPv4-mapped address",
        [0xfc00..=0xfdff, ..] => "a unique local address",
        [0xfe80..=0xfebf, ..] => "link-local",
        [0xff00..=0xffff, ..] => "a multicast address",
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => "for documentation",
        // Translated to IPv4 addresses, which may be private: 6to4, Teredo. Others of 2001::/23 are reserved.
        [0x2002, ..] | [0x2001, 0..=0x1ff, ..] => "translated or reserved",
        // Global unicast addresses are 2000::/3.
        [0x2000..=0x3fff, ..] => return None,
        _ => "reserved",
    };
    Some(kind)
}

/// The URL that a response redirects to.
fn redirect_target(url: &str, location: &str) -> Result<String, String> {
    let invalid = || "it has an invalid redirect".to_owned();
    let base: Uri = url.parse().map_err(|_| invalid())?;
    let (scheme, authority) = (base.scheme_str().unwrap_or("http"), base.authority().ok_or_else(invalid)?);
    let location = location.split('#').next().unwrap_or_default();
    let target = match location {
        location if location.starts_with("//") => format!("{scheme}:{location}"),
        location if location.starts_with('/') => format!("{scheme}://{authority}{location}"),
        location if location.contains("://") => location.to_owned(),
        location => {
            let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
            format!("{scheme}://{authority}{folder}/{location}")
        }
    };
    let target_scheme = target.split("://").next().unwrap_or_default().to_ascii_lowercase();
    match (scheme, target_scheme.as_str()) {
        (_, "https") | ("http", "http") => Ok(target),
        ("https", "http") => Err("it redirects from https to http".to_owned()),
        _ => Err("it redirects to a URL that is neither http nor https".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener};
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn only_public_addresses_are_allowed() {
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "168.63.129.16",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "64:ff9b::a00:1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::1",
            "3fff::1",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(refused_kind(address.parse().unwrap()).is_some(), "{address}");
        }
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00:1450::1",
        ] {
            assert_eq!(refused_kind(address.parse().unwrap()), None, "{address}");
        }
    }

    #[test]
    fn redirects_are_resolved() {
        let target = |url, location| redirect_target(url, location);
        assert_eq!(target("http://a/b/c?d", "e.png").unwrap(), "http://a/b/e.png");
        assert_eq!(target("http://a/b/c", "/e.png#f").unwrap(), "http://a/e.png");
        assert_eq!(target("https://a:1/b", "//c/e.png").unwrap(), "https://c/e.png");
        assert_eq!(target("http://a/b", "HTTPS://c/e.png").unwrap(), "HTTPS://c/e.png");
        assert!(target("https://a/b", "http://c/e.png").unwrap_err().contains("https to http"));
        assert!(target("http://a/b", "ftp://c/e.png").is_err());
        assert!(target("http://a/b", "file:///etc/passwd").is_err());
    }

    /// Answers one connection after the other with these responses. The last one stays open until the server is dropped.
    fn serve(responses: Vec<String>) -> (SocketAddr, mpsc::Sender<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, dropped) = mpsc::channel();
        std::thread::spawn(move || {
            for response in responses {
                let Ok((mut stream, _)) = listener.accept() else { return };
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(response.replace("{address}", &address.to_string()).as_bytes());
                if response.ends_with("stalled") {
                    let _ = dropped.recv();
                }
            }
        });
        (address, sender)
    }

    fn ok(length: usize, body: &str) -> String {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
    }

    fn redirect(location: &str) -> String {
        format!(
            "HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
    }

    /// Allows the test's own server, and no other address of this machine.
    fn test_filter(address: IpAddr) -> Option<&'static str> {
        if address == Ipv4Addr::LOCALHOST { None } else { refused_kind(address) }
    }

    fn fetch(responses: Vec<String>, timeout: Duration) -> Result<Vec<u8>, String> {
        let (address, _server) = serve(responses);
        Fetcher::with_filter(8, timeout, test_filter).fetch(&format!("http://{address}/a"))
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn images_are_fetched_within_limits() {
        assert_eq!(fetch(vec![ok(8, "12345678")], LONG).unwrap(), b"12345678");
        let moved = vec![redirect("/b"), redirect("http://{address}/c"), redirect("d"), ok(2, "ok")];
        assert_eq!(fetch(moved, LONG).unwrap(), b"ok");
        let error = fetch(vec![redirect("/b"); 4], LONG).unwrap_err();
        assert_eq!(error, "it has more than 3 redirects");
        // Announced, and not announced.
        let error = fetch(vec![ok(9, "123456789")], LONG).unwrap_err();
        assert!(error.contains("9 bytes, more than the limit of 8"), "{error}");
        let endless = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}", "x".repeat(100));
        let error = fetch(vec![endless], LONG).unwrap_err();
        assert_eq!(error, "it has more bytes than the limit of 8");
        let missing = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned();
        assert_eq!(fetch(vec![missing], LONG).unwrap_err(), "its server answered with the status 404");
    }

    #[test]
    fn slow_servers_are_given_up() {
        let error = fetch(vec![ok(8, "stalled")], Duration::from_millis(100)).unwrap_err();
        assert_eq!(error, "it did not arrive within 0.1 s");
    }

    #[test]
    fn private_addresses_are_refused() {
        let refused =
            "the address 169.254.169.254 is link-local, and images are only fetched from public addresses";
        let fetcher = Fetcher::new(8, LONG);
        for (url, part) in [
            ("http://169.254.169.254/latest/meta-data", refused),
            ("http://127.0.0.1:1/a", "127.0.0.1 is a loopback address"),
            ("http://localhost:1/a", "is a loopback address"),
            ("http://[::1]:1/a", "::1 is a loopback address"),
            ("http://[::ffff:10.0.0.1]/a", "is an IPv4-mapped address"),
            ("http://0/a", "is unspecified"),
            ("http://2130706433/a", "127.0.0.1 is a loopback address"),
        ] {
            let error = fetcher.fetch(url).unwrap_err();
            assert!(error.contains(part), "{url}: {error}");
        }
        // After a redirect, too.
        for target in ["http://127.0.0.2/a", "http://169.254.169.254/", "http://10.0.0.1/"] {
            let error = fetch(vec![redirect(target)], LONG).unwrap_err();
            assert!(error.contains("only fetched from public addresses"), "{error}");
        }
    }
}
