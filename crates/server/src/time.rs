//! Times as text.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970 as a date and time, in UTC.
pub(crate) fn rfc3339(seconds: u64) -> String {
    let (mut year, mut days) = (1970, seconds / 86_400);
    let is_leap = |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    // 400 years have 146,097 days.
    year += days / 146_097 * 400;
    days %= 146_097;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
}

/// [`rfc3339`] with microseconds.
pub(crate) fn rfc3339_micros(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = rfc3339(since.as_secs());
    format!("{}.{:06}Z", seconds.trim_end_matches('Z'), since.subsec_micros())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_dates() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_700_000_000, "2023-11-14T22:13:20Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), date);
        }
    }

    #[test]
    fn times_of_the_system_have_microseconds() {
        let time = UNIX_EPOCH + Duration::from_nanos(1_700_000_000_000_012_345);
        assert_eq!(rfc3339_micros(time), "2023-11-14T22:13:20.000012Z");
    }
}
