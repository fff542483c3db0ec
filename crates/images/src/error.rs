//! Errors of decoding. Callers add which image of a request it was.

use crate::format::Format;

/// Shorthand used throughout the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why bytes are not a picture that can be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// No bytes at all.
    #[error("the image is empty: send the bytes of a PNG, JPEG, WebP, GIF or BMP file")]
    Empty,
    /// More bytes than allowed.
    #[error(
        "the image has {} bytes, more than the limit of {}: scale it down or compress it",
        grouped(*bytes),
        grouped(*limit)
    )]
    TooManyBytes {
        /// Number of bytes.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The bytes begin like none of the supported formats.
    #[error("the image is neither PNG, JPEG, WebP, GIF nor BMP: convert it to one of these")]
    UnknownFormat,
    /// More pixels than allowed.
    #[error(
        "the image has {} × {} pixels, more than the limit of {}: scale it down",
        grouped(u64::from(*width)),
        grouped(u64::from(*height)),
        grouped(*limit)
    )]
    TooManyPixels {
        /// Width that the file announces.
        width: u32,
        /// Height that the file announces.
        height: u32,
        /// The limit, in pixels.
        limit: u64,
    },
    /// Decoding may need more memory than allowed.
    #[error(
        "decoding the {format} image of {} × {} pixels may need {} bytes of memory, more than the limit of {}: \
         scale it down",
        grouped(u64::from(*width)),
        grouped(u64::from(*height)),
        grouped(*bytes),
        grouped(*limit)
    )]
    TooMuchMemory {
        /// The format.
        format: Format,
        /// Width that the file announces.
        width: u32,
        /// Height that the file announces.
        height: u32,
        /// Upper bound of the memory that decoding needs.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The file announces a width or height of zero.
    #[error("the {format} image has {width} × {height} pixels: the file is damaged, save it again")]
    NoPixels {
        /// The format.
        format: Format,
        /// Width that the file announces.
        width: u32,
        /// Height that the file announces.
        height: u32,
    },
    /// The file ends early or contradicts its format.
    #[error("the {format} image is damaged ({reason}): check that it was sent completely, or save it again")]
    Damaged {
        /// The format.
        format: Format,
        /// What the decoder found.
        reason: String,
    },
    /// A rare variant of a format.
    #[error("the {format} image uses {feature}, which is not supported: save it as PNG or JPEG")]
    Unsupported {
        /// The format.
        format: Format,
        /// The feature of the format.
        feature: String,
    },
}

impl Error {
    /// A file that ends early or contradicts its format.
    pub(crate) fn damaged(format: Format, reason: impl ToString) -> Self {
        // Decoders may quote bytes of the file.
        let reason: String =
            reason.to_string().chars().filter(|c| !c.is_control()).take(MAX_REASON).collect();
        Self::Damaged { format, reason }
    }
}

/// Longest reason in characters: messages go to clients and logs.
const MAX_REASON: usize = 200;

/// A number with commas between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_what_and_what_to_do() {
        let error = Error::TooManyPixels { width: 10_000, height: 10_000, limit: 50_000_000 };
        let expected =
            "the image has 10,000 × 10,000 pixels, more than the limit of 50,000,000: scale it down";
        assert_eq!(error.to_string(), expected);
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn reasons_are_short_and_printable() {
        let error = Error::damaged(Format::Png, "\u{1b}[31m".repeat(1000));
        let Error::Damaged { reason, .. } = error else { panic!("damaged") };
        assert!(reason.len() <= MAX_REASON && !reason.contains('\u{1b}'));
    }
}
