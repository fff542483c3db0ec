//! What can be wrong with quantised numbers. Callers add the file and the tensor.

use super::Scheme;
use crate::Encoding;

/// Why numbers cannot be dequantised, transcoded or quantised.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum QuantError {
    /// A run of bytes is not whole blocks, or not as many as there are values.
    #[error("{bytes} bytes of {encoding:?} do not make {values} values")]
    Length {
        /// How they are stored.
        encoding: Encoding,
        /// Bytes given.
        bytes: usize,
        /// Values wanted.
        values: usize,
    },
    /// The number of scales does not belong to the number of values.
    #[error("{found} scales for {encoding:?} where there should be {expected}")]
    ScaleCount {
        /// How the values are stored.
        encoding: Encoding,
        /// Scales given.
        found: usize,
        /// Scales that the values need.
        expected: usize,
    },
    /// The values do not divide into groups.
    #[error("{values} values do not divide into groups of 32")]
    Ungrouped {
        /// Values given.
        values: usize,
    },
    /// A scale, minimum or zero point is not a number, or is infinite: the file is damaged.
    #[error("the {what} of block {block} is {value}: the file is damaged, download or convert it again")]
    NotFinite {
        /// Which number of the block.
        what: &'static str,
        /// Which block of the tensor.
        block: usize,
        /// What it is.
        value: f32,
    },
    /// A block's values are so large that their scale or minimum is beyond f16.
    #[error(
        "block {block} holds values up to {value:e}, too large for scales of 16 bits: the file is damaged"
    )]
    TooLarge {
        /// Which block of the tensor.
        block: usize,
        /// The largest |value| that the block can express.
        value: f32,
    },
    /// A byte that should hold an integer of 4 bits holds more.
    #[error("value {index} is {value}, outside −8…7: the file is damaged")]
    Code {
        /// Which value of the tensor.
        index: usize,
        /// What it is.
        value: i8,
    },
    /// A value to be quantised is not a number, infinite, or too large for the scheme.
    #[error("value {index} is {value}, which {scheme} cannot hold")]
    Value {
        /// Which value.
        index: usize,
        /// What it is.
        value: f32,
        /// The scheme wanted.
        scheme: Scheme,
    },
    /// An encoding whose scales are a tensor of their own was given without, or the other way round.
    #[error("{encoding:?} is not read this way: its scales are {place}")]
    Scales {
        /// The encoding.
        encoding: Encoding,
        /// Where its scales are.
        place: &'static str,
    },
    /// A scheme that does not fit the call: floats have no groups, and schemes with a minimum are only transcoded to.
    #[error("nothing makes {scheme} here")]
    Scheme {
        /// The scheme.
        scheme: Scheme,
    },
}
