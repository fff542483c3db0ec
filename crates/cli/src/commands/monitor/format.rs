//! Numbers as people read them. What is not known is "unknown".

pub const UNKNOWN: &str = "unknown";

/// A value with `format`, or "unknown".
pub fn or_unknown<T>(value: Option<T>, format: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), format)
}

pub fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// A latency in seconds, with three digits.
pub fn latency(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 0.01 => format!("{:.2} ms", seconds * 1e3),
        seconds if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        seconds => format!("{seconds:.1} s"),
    }
}

/// Tokens per second.
pub fn rate(per_second: f64) -> String {
    if per_second < 100.0 { format!("{per_second:.1}") } else { format!("{per_second:.0}") }
}

/// A time as hours, minutes and seconds.
pub fn clock(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([0.0042, 0.042, 4.2].map(latency), ["4.20 ms", "42 ms", "4.2 s"]);
        assert_eq!([9.95, 1234.5].map(rate), ["9.9", "1234"]);
        assert_eq!([59.9, 3723.0].map(clock), ["0:59", "1:02:03"]);
        assert_eq!(or_unknown(None, percent), "unknown");
    }
}
