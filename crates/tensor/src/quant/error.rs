//! Errors of quantisation arithmetic. Callers add the file and the tensor.

use crate::{encoding::Encoding, layout::Scheme};

/// Why values cannot be dequantised, transcoded or quantised.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum QuantError {
    /// The bytes are not whole blocks, or hold a different number of values.
    #[error("{bytes} bytes of {encoding} do not hold {values} values")]
    Length {
        /// The encoding.
        encoding: Encoding,
        /// Number of bytes.
        bytes: usize,
        /// Expected number of values.
        values: usize,
    },
    /// The number of scales does not match the number of values.
    #[error("{encoding} has {found} scales, expected {expected}")]
    ScaleCount {
        /// The encoding.
        encoding: Encoding,
        /// Number of scales.
        found: usize,
        /// Number of scales that the values need.
        expected: usize,
    },
    /// The number of values is not a multiple of the group size.
    #[error("{values} values do not divide into groups of 32")]
    Ungrouped {
        /// Number of values.
        values: usize,
    },
    /// A scale, minimum or zero point is NaN or infinite: the file is damaged.
    #[error("the {what} of block {block} is {value}: the file is damaged, download or convert it again")]
    NotFinite {
        /// The quantity: scale, minimum or zero point.
        what: &'static str,
        /// Index of the block in the tensor.
        block: usize,
        /// The value.
        value: f32,
    },
    /// A block's values are so large that its scale or minimum overflows f16.
    #[error("block {block} has values up to {value:e}, too large for 16-bit scales: the file is damaged")]
    TooLarge {
        /// Index of the block in the tensor.
        block: usize,
        /// The largest |value| that the block can express.
        value: f32,
    },
    /// A byte that should hold a 4-bit integer is out of range.
    #[error("value {index} is {value}, outside −8…7: the file is damaged")]
    Code {
        /// Index of the value in the tensor.
        index: usize,
        /// The value.
        value: i8,
    },
    /// A value to be quantised is NaN, infinite, or too large for the scheme.
    #[error("value {index} is {value}, which {scheme} cannot represent")]
    Value {
        /// Index of the value.
        index: usize,
        /// The value.
        value: f32,
        /// The requested scheme.
        scheme: Scheme,
    },
    /// An encoding with a separate scale tensor was used without it, or the other way round.
    #[error("{encoding} cannot be decoded this way: its scales are {location}")]
    Scales {
        /// The encoding.
        encoding: Encoding,
        /// Where its scales are.
        location: &'static str,
    },
    /// The scheme does not fit the operation: floats have no groups, and schemes with minima only result from
    /// transcoding.
    #[error("{scheme} is not a possible result of this operation")]
    Scheme {
        /// The scheme.
        scheme: Scheme,
    },
}
