//! Values of settings: sizes, durations, names of metrics, addresses of sockets.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
    time::Duration,
};

use clap::ValueEnum;
use serde::{Deserialize, Deserializer, de};

/// `--metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum MetricNames {
    /// Those of this server
    #[default]
    Indrik,
    /// Also those of vLLM
    Vllm,
}

impl fmt::Display for MetricNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MetricNames::Indrik => "indrik",
            MetricNames::Vllm => "vllm",
        })
    }
}

impl FromStr for MetricNames {
    type Err = String;

    fn from_str(text: &str) -> Result<MetricNames, String> {
        <MetricNames as ValueEnum>::from_str(text, false)
    }
}

/// A size in bytes: `65536`, `64KiB`, `4MiB`, `1GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub usize);

/// A duration: `30s`, `500ms`, `10min`; a bare number is in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub Duration);

const SIZES: [(&str, usize); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("", 1)];
/// Units in milliseconds. A unit precedes its own suffixes: `ms` before `s`.
const TIMES: [(&str, u64); 5] = [("min", 60_000), ("ms", 1), ("h", 3_600_000), ("s", 1000), ("", 1000)];

/// Maximum duration in milliseconds, a year: any `Instant` can be advanced by it.
const MAX_TIME: u64 = 365 * 24 * 3_600_000;

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let invalid =
            || format!("'{text}' is not a size: use a number of bytes, or a unit as in 64KiB, 4MiB, 1GiB");
        let (unit, factor) = SIZES.iter().find(|(unit, _)| text.ends_with(unit)).ok_or_else(invalid)?;
        let number: usize = text[..text.len() - unit.len()].trim().parse().map_err(|_| invalid())?;
        let bytes = number.checked_mul(*factor).filter(|bytes| *bytes > 0);
        bytes.map(Size).ok_or_else(|| {
            format!("'{text}' is out of range: a size must be at least 1 byte and fit in memory")
        })
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let divides = |(_, factor): &&(&str, usize)| self.0 > 0 && self.0.is_multiple_of(*factor);
        let (unit, factor) = SIZES.iter().find(divides).unwrap_or(&("", 1));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Time, String> {
        let invalid = || {
            format!(
                "'{text}' is not a duration: use a number of seconds, or a unit as in 30s, 500ms, 10min, 2h"
            )
        };
        let (unit, factor) = TIMES.iter().find(|(unit, _)| text.ends_with(unit)).ok_or_else(invalid)?;
        let number: u64 = text[..text.len() - unit.len()].trim().parse().map_err(|_| invalid())?;
        let time = number.checked_mul(*factor).filter(|time| (1..=MAX_TIME).contains(time));
        let time = time.ok_or_else(|| {
            format!("'{text}' is out of range: a duration must be between 1ms and one year")
        })?;
        Ok(Time(Duration::from_millis(time)))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = self.0.as_millis() as u64;
        let (unit, factor) = [("min", 60_000), ("s", 1000)]
            .into_iter()
            .find(|(_, factor)| time.is_multiple_of(*factor))
            .unwrap_or(("ms", 1));
        write!(f, "{}{unit}", time / factor)
    }
}

/// The address of a socket as ZeroMQ writes it: `127.0.0.1:5557`, `tcp://*:5557`, or a port alone for this machine only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpAddress(pub SocketAddr);

impl FromStr for TcpAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<TcpAddress, String> {
        let invalid = || {
            format!(
                "'{text}' is not an address: use IP:PORT or tcp://IP:PORT; host names are not resolved, * listens on all interfaces"
            )
        };
        let address = text.strip_prefix("tcp://").unwrap_or(text);
        let (host, port) = address.rsplit_once(':').unwrap_or(("127.0.0.1", address));
        let host = match host {
            "*" => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            _ => match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
                Some(host) => IpAddr::V6(host.parse::<Ipv6Addr>().map_err(|_| invalid())?),
                None => IpAddr::V4(host.parse::<Ipv4Addr>().map_err(|_| invalid())?),
            },
        };
        Ok(TcpAddress(SocketAddr::new(host, port.parse().map_err(|_| invalid())?)))
    }
}

impl fmt::Display for TcpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tcp://{}", self.0)
    }
}

impl<'de> Deserialize<'de> for TcpAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TcpAddress, D::Error> {
        read(deserializer)
    }
}

/// A TOML value: a bare number, or a string with a unit.
#[derive(Deserialize)]
#[serde(untagged)]
enum Literal {
    Number(u64),
    Text(String),
}

fn read<'de, D: Deserializer<'de>, T: FromStr<Err = String>>(deserializer: D) -> Result<T, D::Error> {
    let text = match Literal::deserialize(deserializer) {
        Ok(Literal::Number(number)) => number.to_string(),
        Ok(Literal::Text(text)) => text,
        Err(_) => {
            return Err(de::Error::custom("expected an integer, or a string with a number and a unit"));
        }
    };
    text.parse().map_err(de::Error::custom)
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        read(deserializer)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        read(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_round_trip() {
        for (text, bytes) in
            [("1", 1), ("64KiB", 65536), ("4MiB", 4 << 20), ("3GiB", 3 << 30), ("1025", 1025)]
        {
            let size: Size = text.parse().unwrap();
            assert_eq!((size.0, size.to_string()), (bytes, text.to_owned()));
        }
        for (text, milliseconds, displayed) in [
            ("30", 30_000, "30s"),
            ("500ms", 500, "500ms"),
            ("10min", 600_000, "10min"),
            ("2h", 7_200_000, "120min"),
        ] {
            let time: Time = text.parse().unwrap();
            assert_eq!((time.0.as_millis(), time.to_string()), (milliseconds, displayed.to_owned()));
        }
        for invalid in ["", "0", "-1", "4MB", "x", "MiB", "99999999999999GiB"] {
            assert!(invalid.parse::<Size>().is_err(), "{invalid}");
        }
        for invalid in ["", "0s", "-1s", "1.5s", "s", "9999999h", "3 weeks"] {
            assert!(invalid.parse::<Time>().is_err(), "{invalid}");
        }
    }

    #[test]
    fn addresses_are_those_of_zeromq() {
        for (text, displayed) in [
            ("127.0.0.1:5557", "tcp://127.0.0.1:5557"),
            ("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5557"),
            ("5557", "tcp://127.0.0.1:5557"),
            ("localhost:0", "tcp://127.0.0.1:0"),
            ("tcp://*:5557", "tcp://0.0.0.0:5557"),
            ("tcp://[::1]:5557", "tcp://[::1]:5557"),
        ] {
            assert_eq!(text.parse::<TcpAddress>().unwrap().to_string(), displayed, "{text}");
        }
        for invalid in [
            "",
            "*",
            "tcp://",
            "ipc:///tmp/x",
            "inproc://x",
            "a.example:1",
            "1.2.3.4:",
            "1.2.3.4:99999",
            "::1:5557",
            "udp://*:1",
        ] {
            assert!(invalid.parse::<TcpAddress>().is_err(), "{invalid}");
        }
    }
}
