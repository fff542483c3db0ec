//! The `Retry-After` header: a number of seconds, or a date in the format of RFC 9110.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The time to wait; zero for a date in the past. `None` if the value is invalid.
pub fn parse(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        return value.parse().ok().map(Duration::from_secs);
    }
    let date = UNIX_EPOCH + Duration::from_secs(http_date(value)?);
    Some(date.duration_since(now).unwrap_or_default())
}

/// Seconds since 1970 of a date like `Sun, 06 Nov 1994 08:49:37 GMT`. Servers must not send the two obsolete
/// formats of RFC 9110.
fn http_date(text: &str) -> Option<u64> {
    let (_, text) = text.split_once(", ")?;
    let [day, month, year, time, "GMT"] = text.split(' ').collect::<Vec<_>>()[..] else { return None };
    let month = MONTHS.iter().position(|name| *name == month)? as u64;
    let (day, year): (u64, u64) = (day.parse().ok()?, year.parse().ok()?);
    let [hour, minute, second] =
        time.split(':').map(|part| part.parse().ok()).collect::<Option<Vec<u64>>>()?[..]
    else {
        return None;
    };
    let plausible =
        (1..=31).contains(&day) && (1970..=9999).contains(&year) && hour < 24 && minute < 60 && second <= 60;
    plausible.then(|| ((days(year, month) + day - 1) * 24 + hour) * 3600 + minute * 60 + second)
}

/// Days from 1970 to the first day of a month, which is counted from 0.
fn days(year: u64, month: u64) -> u64 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][month as usize];
    let past = year - 1;
    let leap_days = past / 4 - past / 100 + past / 400 - (1969 / 4 - 1969 / 100 + 1969 / 400);
    (year - 1970) * 365 + leap_days + before + u64::from(leap && month > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_dates_are_understood() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        // From `date -u -d @784111777`.
        let now = at(784_111_777);
        let wait = |text| parse(text, now).map(|time| time.as_secs());
        assert_eq!(wait("120"), Some(120));
        assert_eq!(wait(" 0 "), Some(0));
        assert_eq!(wait("Sun, 06 Nov 1994 08:49:37 GMT"), Some(0));
        assert_eq!(wait("Sun, 06 Nov 1994 08:51:37 GMT"), Some(120));
        assert_eq!(wait("Sat, 05 Nov 1994 08:51:37 GMT"), Some(0), "in the past");
        assert_eq!(parse("Thu, 29 Feb 2024 23:59:59 GMT", at(1_709_251_190)).unwrap().as_secs(), 9);
        assert_eq!(parse("Mon, 01 Mar 2100 00:00:00 GMT", at(4_107_542_399)).unwrap().as_secs(), 1);
        assert_eq!(parse("Thu, 01 Jan 1970 00:00:01 GMT", at(0)).unwrap().as_secs(), 1);
        for invalid in [
            "",
            "-1",
            "1.5",
            "soon",
            "06 Nov 1994",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Sun, 00 Nov 1994 08:49:37 GMT",
        ] {
            assert_eq!(wait(invalid), None, "{invalid}");
        }
        assert_eq!(wait("99999999999999999999999"), None, "overflow");
    }
}
