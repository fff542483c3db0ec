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
    /// Access token, sent only to the hub: `HF_TOKEN`.
    pub token: Option<String>,
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

    fn from_config(environment: &Environment) -> Self {
        let address = |configured: Option<String>, default: &str| {
            configured.unwrap_or_else(|| default.to_string()).trim_end_matches('/').to_string()
        };
        Self {
            hub: address(environment.non_empty("HF_ENDPOINT"), HUB),
            token: environment.non_empty("HF_TOKEN"),
            index: address(environment.pip_option("index-url").map(|(url, _)| url), INDEX),
            certificates: certificates(environment),
            proxy: None,
            hub_connect_timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            retry_delay: Duration::from_secs(1),
        }
    }
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
        assert_eq!((bare.token, bare.certificates), (None, None));
        let set = settings(
            &[("HF_ENDPOINT", "http://hub/"), ("HF_TOKEN", "t"), ("PIP_INDEX_URL", "http://index/simple/")],
            &[],
        );
        assert_eq!((set.hub.as_str(), set.index.as_str()), ("http://hub", "http://index/simple"));
        assert_eq!(set.token.as_deref(), Some("t"));
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
