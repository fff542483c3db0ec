//! Decoding of compressed request bodies (`Content-Encoding`).

use axum::http::HeaderMap;
use axum::http::header::CONTENT_ENCODING;
use flate2::{Decompress, FlushDecompress, Status};

use crate::error::Error;

/// The encodings of bodies, for the header `Accept-Encoding` (RFC 9110, section 12.5.3).
pub(crate) const ACCEPTED: &str = "gzip, deflate, identity";

/// log2 of the largest window of deflate.
const WINDOW_BITS: u8 = 15;

/// Maximum length of an encoding in an error, in characters.
const MAX_SHOWN: usize = 60;

/// Encoding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Identity,
    Gzip,
    /// The zlib format (RFC 9110, section 8.4.1.2).
    Deflate,
}

impl Encoding {
    /// The encoding that the headers name; an error if it is another one, or if there are several.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Encoding, Error> {
        let values = headers.get_all(CONTENT_ENCODING).iter().map(|value| value.as_bytes());
        let named = String::from_utf8_lossy(&values.collect::<Vec<_>>().join(&b", "[..])).to_lowercase();
        let encodings = named.split(',').map(str::trim);
        let encodings: Vec<&str> = encodings.filter(|name| !["", "identity"].contains(name)).collect();
        match encodings[..] {
            [] => Ok(Encoding::Identity),
            ["gzip" | "x-gzip"] => Ok(Encoding::Gzip),
            ["deflate"] => Ok(Encoding::Deflate),
            _ => Err(Error::UnsupportedEncoding(named.chars().take(MAX_SHOWN).collect())),
        }
    }

    /// A decoder; `None` for a body that is not encoded.
    pub(crate) fn decoder(self) -> Option<Decoder> {
        let (name, inflate) = match self {
            Encoding::Identity => return None,
            Encoding::Gzip => ("gzip", Decompress::new_gzip(WINDOW_BITS)),
            Encoding::Deflate => ("zlib", Decompress::new(true)),
        };
        Some(Decoder { name, inflate, is_complete: false })
    }
}

/// Decodes a body as it arrives.
pub(crate) struct Decoder {
    /// Name of the format.
    name: &'static str,
    inflate: Decompress,
    is_complete: bool,
}

impl Decoder {
    /// Decodes the start of `input`, as much as fits into `output`, and removes it from `input`. Returns the number of
    /// decoded bytes: if they fill `output`, more may follow without further input.
    pub(crate) fn decode(&mut self, input: &mut &[u8], output: &mut [u8]) -> Result<usize, Error> {
        if self.is_complete {
            // Also a second gzip member: each one costs time, but need not decode to anything.
            return if input.is_empty() { Ok(0) } else { Err(self.error("has data after its end")) };
        }
        let (total_in, total_out) = (self.inflate.total_in(), self.inflate.total_out());
        let status = self
            .inflate
            .decompress(input, output, FlushDecompress::None)
            .map_err(|_| self.error("is corrupt"))?;
        self.is_complete = status == Status::StreamEnd;
        let consumed = (self.inflate.total_in() - total_in) as usize;
        let decoded = (self.inflate.total_out() - total_out) as usize;
        if consumed == 0 && decoded == 0 && !input.is_empty() && !self.is_complete {
            return Err(self.error("is corrupt"));
        }
        *input = &input[consumed..];
        Ok(decoded)
    }

    /// An error unless the body is complete.
    pub(crate) fn finish(&self) -> Result<(), Error> {
        if self.is_complete { Ok(()) } else { Err(self.error("is incomplete")) }
    }

    fn error(&self, problem: &str) -> Error {
        Error::InvalidEncoding(format!("the {} data of the body {problem}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn of(values: &[&'static str]) -> Result<Encoding, Error> {
        let header = |value: &&'static str| (CONTENT_ENCODING, HeaderValue::from_static(value));
        Encoding::of(&values.iter().map(header).collect())
    }

    #[test]
    fn one_known_encoding_is_accepted() {
        for none in [&[][..], &[""], &["identity"], &["identity, ", "Identity"]] {
            assert_eq!(of(none), Ok(Encoding::Identity), "{none:?}");
        }
        for gzip in [&["gzip"][..], &["X-GZip"], &["identity, gzip"]] {
            assert_eq!(of(gzip), Ok(Encoding::Gzip), "{gzip:?}");
        }
        assert_eq!(of(&["deflate"]), Ok(Encoding::Deflate));
        for other in [&["zstd"][..], &["br"], &["gzip, gzip"], &["gzip", "deflate"], &["gzip;q=1"]] {
            assert!(matches!(of(other), Err(Error::UnsupportedEncoding(_))), "{other:?}");
        }
    }
}
