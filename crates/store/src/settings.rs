//! Network settings: addresses, proxy, root certificates, timeouts.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use crate::pip::Environment;

const HUB: &str = "https://huggingface.co";
const INDEX: &str = "https://pypi.org/simple";

/// Where distributions keep the system's root certificates.
const BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// How to reach the download sources.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The model hub: `HF_ENDPOINT`.
    pub hub: String,
    /// Access token, sent only to the hub: `HF_TOKEN`, or the file that the hub's own command line writes.
    pub token: Option<String>,
    /// The cache of the hub's own client, whose files are reused: `HF_HUB_CACHE`.
    pub hub_cache: Option<PathBuf>,
    /// The package index, from pip's configuration.
    pub index: String,
    /// A file of root certificates and the setting that it comes from. `None` for the built-in certificates.
    pub certificates: Option<(PathBuf, String)>,
    /// The proxy: `ALL_PROXY`, `HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY`.
    pub proxy: Option<ureq::Proxy>,
    /// Connect timeout of the hub. Short, because there is a second source.
    pub hub_connect_timeout: Duration,
    /// Connect timeout of other servers.
    pub connect_timeout: Duration,
    /// Maximum time without data on a connection.
    pub stall_timeout: Duration,
    /// Delay before the first retry; it doubles with each further one.
    pub retry_delay: Duration,
    /// Maximum time to wait where a server asks for it (`Retry-After`).
    pub max_retry_after: Duration,
    /// Maximum number of connections per file.
    pub connections: usize,
    /// Size of the ranges that large files are downloaded in, in bytes.
    pub range_bytes: u64,
}

impl Settings {
    /// Settings from the environment and pip's configuration files.
    pub fn from_environment() -> Self {
        let environment = Environment {
            variable: &|name| std::env::var(name).ok(),
            file: &|path| std::fs::read_to_string(path).ok(),
        };
        Self { proxy: ureq::Proxy::try_from_env(), ..Self::from_config(&environment) }
    }

    /// Default limits for a hub and a package index, independent of the environment: no token, no cache, no
    /// proxy, built-in certificates.
    pub fn new(hub: &str, index: &str) -> Self {
        Self {
            hub: hub.trim_end_matches('/').to_string(),
            token: None,
            hub_cache: None,
            index: index.trim_end_matches('/').to_string(),
            certificates: None,
            proxy: None,
            hub_connect_timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            retry_delay: Duration::from_secs(1),
            // The hub's rate limits are per five minutes.
            max_retry_after: Duration::from_secs(330),
            // Storage throttles each connection; more than this hardly adds speed, but load on the server.
            connections: 6,
            // Large enough that the latency of a request does not matter, small enough that connections of
            // different speed end at about the same time.
            range_bytes: 32 << 20,
        }
    }

    fn from_config(environment: &Environment) -> Self {
        let hub = environment.non_empty("HF_ENDPOINT");
        let index = environment.pip_option("index-url").map(|(url, _)| url);
        Self {
            token: token(environment),
            hub_cache: hub_cache(environment),
            certificates: certificates(environment),
            ..Self::new(hub.as_deref().unwrap_or(HUB), index.as_deref().unwrap_or(INDEX))
        }
    }
}

/// The folder of the hub's own client.
fn hub_home(environment: &Environment) -> Option<PathBuf> {
    if let Some(home) = environment.non_empty("HF_HOME") {
        return Some(home.into());
    }
    let cache = environment.non_empty("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(Path::new(&environment.non_empty("HOME")?).join(".cache")))?;
    Some(cache.join("huggingface"))
}

fn hub_cache(environment: &Environment) -> Option<PathBuf> {
    let configured =
        ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"].iter().find_map(|name| environment.non_empty(name));
    configured.map(PathBuf::from).or_else(|| Some(hub_home(environment)?.join("hub")))
}

fn token(environment: &Environment) -> Option<String> {
    let variable = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"].iter().find_map(|name| environment.non_empty(name));
    let from_file = || {
        let configured = environment.non_empty("HF_TOKEN_PATH").map(PathBuf::from);
        let path = configured.or_else(|| Some(hub_home(environment)?.join("token")))?;
        (environment.file)(&path)
    };
    // A line break at the end, as files and `$(cat …)` have it, is not part of the token.
    let token = variable.or_else(from_file)?.trim().to_string();
    (!token.is_empty()).then_some(token)
}

fn certificates(environment: &Environment) -> Option<(PathBuf, String)> {
    let variable = |name: &str| Some((environment.non_empty(name)?, name.to_string()));
    environment
        .pip_option("cert")
        .or_else(|| variable("SSL_CERT_FILE"))
        .or_else(|| variable("REQUESTS_CA_BUNDLE"))
        .or_else(|| variable("CURL_CA_BUNDLE"))
        .map(|(path, setting)| (path.into(), setting))
        .or_else(|| {
            let found = BUNDLES.iter().find(|path| (environment.file)(Path::new(path)).is_some())?;
            Some((found.into(), "the system".to_string()))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)], files: &[(&str, &str)]) -> Settings {
        Settings::from_config(&Environment {
            variable: &|name| {
                variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
            },
            file: &|path| {
                files.iter().find(|(key, _)| Path::new(key) == path).map(|(_, text)| text.to_string())
            },
        })
    }

    #[test]
    fn public_servers_are_the_default() {
        let bare = settings(&[], &[]);
        assert_eq!((bare.hub.as_str(), bare.index.as_str()), (HUB, INDEX));
        assert_eq!((bare.token, bare.certificates, bare.hub_cache), (None, None, None));
        let set = settings(
            &[("HF_ENDPOINT", "http://hub/"), ("HF_TOKEN", "t"), ("PIP_INDEX_URL", "http://index/simple/")],
            &[],
        );
        assert_eq!((set.hub.as_str(), set.index.as_str()), ("http://hub", "http://index/simple"));
        assert_eq!(set.token.as_deref(), Some("t"));
    }

    #[test]
    fn the_hubs_token_and_cache_are_found_where_its_client_keeps_them() {
        let home = ("HOME", "/h");
        let found = |variables: &[(&str, &str)], files: &[(&str, &str)]| {
            let found = settings(variables, files);
            (found.token, found.hub_cache.map(|path| path.to_str().unwrap().to_string()))
        };
        let file = ("/h/.cache/huggingface/token", "from-file\n");
        let cache = |path: &str| Some(path.to_string());
        let token = |text: &str| Some(text.to_string());
        assert_eq!(found(&[home], &[]), (None, cache("/h/.cache/huggingface/hub")));
        assert_eq!(found(&[home], &[file]).0, token("from-file"));
        assert_eq!(found(&[home, ("HF_TOKEN", " t ")], &[file]).0, token("t"));
        assert_eq!(found(&[home, ("HF_TOKEN", "")], &[file]).0, token("from-file"));
        assert_eq!(found(&[home, ("HF_TOKEN_PATH", "/t")], &[file, ("/t", "other")]).0, token("other"));
        let moved = [home, ("HF_HOME", "/hf")];
        assert_eq!(found(&moved, &[("/hf/token", "moved")]), (token("moved"), cache("/hf/hub")));
        assert_eq!(found(&[home, ("XDG_CACHE_HOME", "/c")], &[]).1, cache("/c/huggingface/hub"));
        assert_eq!(found(&[home, ("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/b")], &[]).1, cache("/b"));
    }

    #[test]
    fn certificates_come_from_pip_then_the_environment_then_the_system() {
        let path = |variables: &[(&str, &str)], files: &[(&str, &str)]| {
            settings(variables, files).certificates.map(|(path, _)| path.to_str().unwrap().to_string())
        };
        let system = (BUNDLES[1], "");
        assert_eq!(path(&[], &[system]).as_deref(), Some(BUNDLES[1]));
        assert_eq!(path(&[("SSL_CERT_FILE", "/a")], &[system]).as_deref(), Some("/a"));
        let conf = ("/etc/pip.conf", "[global]\ncert = /b");
        assert_eq!(path(&[("SSL_CERT_FILE", "/a")], &[system, conf]).as_deref(), Some("/b"));
        assert_eq!(path(&[("PIP_CERT", "/c")], &[system, conf]).as_deref(), Some("/c"));
    }
}
