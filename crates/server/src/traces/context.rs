//! The trace that a request belongs to, by the header `traceparent` (W3C Trace Context).

use std::fmt;

use axum::http::HeaderMap;

use crate::random;

const TRACEPARENT: &str = "traceparent";

/// Length of version, trace id, parent id and flags, with the dashes between them.
const LENGTH: usize = 55;

/// 128 bits, not all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceId(u128);

/// 64 bits, not all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpanId(u64);

impl TraceId {
    pub(crate) fn random() -> TraceId {
        let id = u128::from(random::number()) << 64 | u128::from(random::number());
        TraceId(id.max(1))
    }
}

impl SpanId {
    pub(crate) fn random() -> SpanId {
        SpanId(random::number().max(1))
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The caller's span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParentContext {
    pub(crate) trace: TraceId,
    pub(crate) span: SpanId,
    /// Whether the caller records its span.
    pub(crate) is_sampled: bool,
}

impl ParentContext {
    /// The caller's span, if exactly one valid header names it. Anything else is a request without a trace.
    pub(crate) fn of(headers: &HeaderMap) -> Option<ParentContext> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        let (value, None) = (values.next()?, values.next()) else { return None };
        ParentContext::parse(value.as_bytes())
    }

    fn parse(value: &[u8]) -> Option<ParentContext> {
        let (known, rest) = value.split_at_checked(LENGTH)?;
        let dashes_fit = [2, 35, 52].iter().all(|index| known[*index] == b'-');
        let version = hex(&known[..2])?;
        // Later versions may append fields.
        let ends_well = rest.is_empty() || version > 0 && rest[0] == b'-';
        if !dashes_fit || version == 0xff || !ends_well {
            return None;
        }
        let (trace, span, flags) = (hex(&known[3..35])?, hex(&known[36..52])?, hex(&known[53..])?);
        (trace != 0 && span != 0).then_some(ParentContext {
            trace: TraceId(trace),
            span: SpanId(span as u64),
            is_sampled: flags & 1 == 1,
        })
    }
}

/// Value of lower-case hexadecimal digits, at most 32 of them.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |value, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u128::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn of(values: &[&str]) -> Option<ParentContext> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(TRACEPARENT, HeaderValue::from_str(value).unwrap());
        }
        ParentContext::of(&headers)
    }

    #[test]
    fn a_valid_header_names_trace_and_span() {
        let parent = of(&[VALID]).unwrap();
        assert_eq!(parent.trace.to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(parent.span.to_string(), "b7ad6b7169203331");
        assert!(parent.is_sampled);
        assert!(!of(&[&VALID.replace("-01", "-00")]).unwrap().is_sampled);
        // A later version may have more fields.
        assert_eq!(of(&[&format!("01{}-more", &VALID[2..])]), Some(parent));
    }

    #[test]
    fn a_forged_header_is_no_trace() {
        for forged in [
            "",
            "00",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00_0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331_01",
            "00-0af7651916cd43dd8448eb211c80319\"-b7ad6b7169203331-01",
        ] {
            assert_eq!(of(&[forged]), None, "{forged}");
        }
        assert_eq!(of(&[VALID, VALID]), None);
        assert_eq!(of(&[]), None);
    }

    proptest! {
        #[test]
        fn what_is_accepted_is_written_the_same(value in "[0-9a-f-]{50,60}|\\PC*") {
            if let Some(parent) = ParentContext::parse(value.as_bytes()) {
                let again = format!("{}-{}", parent.trace, parent.span);
                prop_assert_eq!(&value[3..52], again);
            }
        }
    }
}
