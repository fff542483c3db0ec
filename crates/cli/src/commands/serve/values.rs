//! How sizes and times are written in settings.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, de};

/// A number of bytes: `65536`, `64KiB`, `4MiB`, `1GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub usize);

/// A length of time: `30s`, `500ms`, `10min`; a number alone is in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub Duration);

const SIZES: [(&str, usize); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("", 1)];
/// In milliseconds. Those that end alike stand before the shorter ones.
const TIMES: [(&str, u64); 5] = [("min", 60_000), ("ms", 1), ("h", 3_600_000), ("s", 1000), ("", 1000)];

/// No setting is longer: a clock can add it to any moment.
const LONGEST: u64 = 365 * 24 * 3_600_000;

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let wrong = || format!("'{text}' is no size: write bytes, or as in 64KiB, 4MiB, 1GiB");
        let (unit, factor) = SIZES.iter().find(|(unit, _)| text.ends_with(unit)).ok_or_else(wrong)?;
        let number: usize = text[..text.len() - unit.len()].trim().parse().map_err(|_| wrong())?;
        let bytes = number.checked_mul(*factor).filter(|bytes| *bytes > 0);
        bytes.map(Size).ok_or_else(|| format!("'{text}' is no size that can be: it must be 1 or more"))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |(_, factor): &&(&str, usize)| self.0 > 0 && self.0.is_multiple_of(*factor);
        let (unit, factor) = SIZES.iter().find(whole).unwrap_or(&("", 1));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Time, String> {
        let wrong = || format!("'{text}' is no time: write seconds, or as in 30s, 500ms, 10min, 2h");
        let (unit, factor) = TIMES.iter().find(|(unit, _)| text.ends_with(unit)).ok_or_else(wrong)?;
        let number: u64 = text[..text.len() - unit.len()].trim().parse().map_err(|_| wrong())?;
        let time = number.checked_mul(*factor).filter(|time| (1..=LONGEST).contains(time));
        let time = time.ok_or_else(|| format!("'{text}' must be from 1ms to a year"))?;
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

/// A number is its own text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(u64),
    Text(String),
}

fn read<'de, D: Deserializer<'de>, T: FromStr<Err = String>>(deserializer: D) -> Result<T, D::Error> {
    let text = match Written::deserialize(deserializer) {
        Ok(Written::Number(number)) => number.to_string(),
        Ok(Written::Text(text)) => text,
        Err(_) => {
            return Err(de::Error::custom("expected a whole number, or a number with its unit in quotes"));
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
    fn what_is_written_is_read_and_written_again() {
        for (text, bytes) in
            [("1", 1), ("64KiB", 65536), ("4MiB", 4 << 20), ("3GiB", 3 << 30), ("1025", 1025)]
        {
            let size: Size = text.parse().unwrap();
            assert_eq!((size.0, size.to_string()), (bytes, text.to_owned()));
        }
        for (text, milliseconds, again) in [
            ("30", 30_000, "30s"),
            ("500ms", 500, "500ms"),
            ("10min", 600_000, "10min"),
            ("2h", 7_200_000, "120min"),
        ] {
            let time: Time = text.parse().unwrap();
            assert_eq!((time.0.as_millis(), time.to_string()), (milliseconds, again.to_owned()));
        }
        for wrong in ["", "0", "-1", "4MB", "x", "MiB", "99999999999999GiB"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
        for wrong in ["", "0s", "-1s", "1.5s", "s", "9999999h", "3 weeks"] {
            assert!(wrong.parse::<Time>().is_err(), "{wrong}");
        }
    }
}
