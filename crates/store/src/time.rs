//! Dates for records.

use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

/// The current time, RFC 3339 in UTC, with a resolution of one second.
pub fn now() -> String {
    format(SystemTime::now())
}

/// Modification time of a file; the epoch if unknown.
pub fn modified(path: &Path) -> String {
    format(path.metadata().and_then(|found| found.modified()).unwrap_or(UNIX_EPOCH))
}

fn format(time: SystemTime) -> String {
    rfc3339(time.duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_secs()))
}

fn rfc3339(seconds: u64) -> String {
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let mut year = 1970;
    while days >= days_in_year(year) {
        days -= days_in_year(year);
        year += 1;
    }
    let february = days_in_year(year) - 337;
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
}

fn days_in_year(year: u64) -> u64 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    if leap { 366 } else { 365 }
}

#[cfg(test)]
mod tests {
    use super::rfc3339;

    #[test]
    fn dates_match_the_calendar() {
        // Expected values from `date -u -d @SECONDS +%FT%TZ`: the epoch, leap days, the ends of a year and of
        // a century.
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(rfc3339(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(rfc3339(1_794_719_858), "2026-11-15T05:17:38Z");
        assert_eq!(rfc3339(4_107_542_400), "2100-03-01T00:00:00Z");
    }
}
