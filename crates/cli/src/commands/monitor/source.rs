//! Where readings come from: a server's `/stats`, or this machine.

use std::{io::ErrorKind, net::IpAddr, time::Duration};

use anyhow::Context;
use gpu::{Adapter, Instance, InstanceOptions};
use serde::Serialize;
use server::stats::{HeapStats, Stats};
use telemetry::{Sampler, SamplerOptions, Snapshot, System};
use ureq::http::StatusCode;

use crate::heaps::heap_stats;

/// A server that does not respond for this long is stuck, or not one of ours. A machine that is busy with something
/// else may take long.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Longest wait for the first sample of this machine; a driver may hang.
const FIRST_SAMPLE: Duration = Duration::from_secs(5);

/// The server that is tried if none is named.
const DEFAULT_URL: &str = "http://127.0.0.1:8006";

/// What is known at one moment.
pub struct Reading {
    /// The server, if there is one.
    pub server: Option<Stats>,
    /// The machine that it runs on, or this one.
    pub machine: Option<Snapshot>,
    /// Use of each heap of GPU memory.
    pub memory: Vec<HeapStats>,
}

impl Reading {
    fn of_server(mut stats: Stats) -> Self {
        let (machine, memory) = (stats.machine.take(), std::mem::take(&mut stats.memory));
        Self { server: Some(stats), machine, memory }
    }

    /// The fields of `/stats` that are known.
    pub fn to_json(&self) -> anyhow::Result<String> {
        #[derive(Serialize)]
        struct Json<'a> {
            #[serde(flatten)]
            server: Option<&'a Stats>,
            memory: &'a [HeapStats],
            machine: Option<&'a Snapshot>,
        }
        let Self { server, machine, memory } = self;
        let mut json = serde_json::to_value(Json { server: server.as_ref(), memory, machine: None })?;
        json["machine"] = serde_json::to_value(machine)?;
        Ok(serde_json::to_string(&json)?)
    }
}

/// A source of readings.
pub enum Source {
    /// A server.
    Server {
        /// Its base URL.
        url: String,
        key: Option<String>,
        agent: ureq::Agent,
    },
    /// This machine, without a server.
    Machine { sampler: Sampler, adapters: Vec<Adapter> },
}

impl Source {
    /// The server at `url`. Without a URL, the one on the default port of this machine, or else the machine itself.
    pub fn open(url: Option<&str>, key: Option<&str>) -> anyhow::Result<Self> {
        let server = |url: &str| {
            let url = base_url(url);
            Self::Server { agent: agent(&url), url, key: key.map(str::to_owned) }
        };
        if let Some(url) = url {
            return Ok(server(url));
        }
        let mut local = server(DEFAULT_URL);
        match local.read() {
            Err(error) if error.downcast_ref().is_some_and(Unreachable::is_refused) => Self::machine(),
            Err(error) => Err(error),
            Ok(_) => Ok(local),
        }
    }

    fn machine() -> anyhow::Result<Self> {
        // A machine without a Vulkan driver still has a CPU and perhaps a GPU to look at.
        let adapters = Instance::new(&InstanceOptions::default()).and_then(|instance| instance.adapters());
        let adapters = adapters.unwrap_or_default();
        let named = |adapter: &Adapter| Some((adapter.info.pci_address.clone()?, adapter.info.name.clone()));
        let names = adapters.iter().filter_map(named).collect();
        let sampler = Sampler::start(&System::new(), SamplerOptions { names, ..SamplerOptions::default() })?;
        sampler.wait_newer(&sampler.latest(), FIRST_SAMPLE);
        Ok(Self::Machine { sampler, adapters })
    }

    /// What is watched, for the title.
    pub fn name(&self) -> &str {
        match self {
            Self::Server { url, .. } => url,
            Self::Machine { .. } => "this machine, no server on port 8006",
        }
    }

    /// The current state. May block as long as the server does.
    pub fn read(&mut self) -> anyhow::Result<Reading> {
        match self {
            Self::Server { url, key, agent } => {
                let stats = read_server(agent, url, key.as_deref())?;
                Ok(Reading::of_server(stats))
            }
            Self::Machine { sampler, adapters } => Ok(Reading {
                server: None,
                machine: Some((*sampler.latest()).clone()),
                memory: adapters.iter().flat_map(|adapter| heap_stats(&adapter.heaps(), &[])).collect(),
            }),
        }
    }
}

/// A client. A proxy of the environment serves other machines: this one would be the proxy's own.
fn agent(url: &str) -> ureq::Agent {
    let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(TIMEOUT));
    let config = if is_loopback(url) { config.proxy(None) } else { config };
    config.build().into()
}

fn is_loopback(url: &str) -> bool {
    let authority = url.split("://").nth(1).unwrap_or(url).split('/').next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// No server answers at an address.
#[derive(Debug, thiserror::Error)]
#[error("no server answers at {url}: {reason}; start one with `indrik serve`, or check the address")]
struct Unreachable {
    url: String,
    reason: ureq::Error,
}

impl Unreachable {
    /// Whether nothing listens there.
    fn is_refused(&self) -> bool {
        matches!(&self.reason, ureq::Error::Io(error) if error.kind() == ErrorKind::ConnectionRefused)
    }
}

fn read_server(agent: &ureq::Agent, url: &str, key: Option<&str>) -> anyhow::Result<Stats> {
    let mut request = agent.get(format!("{url}/stats"));
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let response = request.call().map_err(|reason| Unreachable { url: url.into(), reason });
    let mut response = response?;
    match response.status() {
        StatusCode::OK => {
            let text =
                response.body_mut().read_to_string().with_context(|| format!("reading {url}/stats"))?;
            serde_json::from_str(&text).with_context(|| {
                format!("{url}/stats does not fit this version: use the same version of indrik on both sides")
            })
        }
        StatusCode::UNAUTHORIZED => {
            anyhow::bail!("{url} needs an API key: give it with --api-key or INDRIK_API_KEY")
        }
        StatusCode::NOT_FOUND => {
            anyhow::bail!("{url} has no /stats: it is not an Indrik server, or an older version")
        }
        status => anyhow::bail!("{url}/stats returned {status}: see the server's log"),
    }
}

/// A base URL from what people type: without a scheme, with `/v1` or a slash at the end, an address alone.
fn base_url(text: &str) -> String {
    let text = text.trim().trim_end_matches('/');
    let text = text.strip_suffix("/v1").unwrap_or(text);
    let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
    let rest = match rest.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => format!("[{address}]"),
        _ => rest.to_owned(),
    };
    let has_port = rest.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    match has_port || scheme != "http" || rest.contains('/') {
        true => format!("{scheme}://{rest}"),
        false => format!("{scheme}://{rest}:8006"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_known_by_its_addresses() {
        for url in ["http://localhost:8006", "http://127.0.0.2:8006", "http://[::1]:8006/x"] {
            assert!(is_loopback(url), "{url}");
        }
        for url in ["http://192.168.1.5:8006", "http://localhost.example.org", "https://[2001:db8::1]"] {
            assert!(!is_loopback(url), "{url}");
        }
    }

    #[test]
    fn addresses_are_completed() {
        for (text, url) in [
            ("localhost", "http://localhost:8006"),
            ("10.0.0.5:9000/", "http://10.0.0.5:9000"),
            ("http://gpu:8006/v1/", "http://gpu:8006"),
            ("https://models.example.org", "https://models.example.org"),
            ("http://proxy.example.org/indrik", "http://proxy.example.org/indrik"),
            ("::1", "http://[::1]:8006"),
            ("http://[::1]:9000", "http://[::1]:9000"),
        ] {
            assert_eq!(base_url(text), url);
        }
    }
}
