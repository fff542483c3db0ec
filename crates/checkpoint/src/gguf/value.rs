//! Metadata values with the types of the file.

use std::io::Read;

use super::header::{Header, Subject};
use crate::error::Result;

/// The value of a metadata key.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Unsigned, 8 bits.
    U8(u8),
    /// Signed, 8 bits.
    I8(i8),
    /// Unsigned, 16 bits.
    U16(u16),
    /// Signed, 16 bits.
    I16(i16),
    /// Unsigned, 32 bits.
    U32(u32),
    /// Signed, 32 bits.
    I32(i32),
    /// Unsigned, 64 bits.
    U64(u64),
    /// Signed, 64 bits.
    I64(i64),
    /// 32-bit float.
    F32(f32),
    /// 64-bit float.
    F64(f64),
    /// Boolean.
    Bool(bool),
    /// String.
    String(String),
    /// Array of one element type.
    Array(Array),
}

/// An array value. Nested arrays are not supported.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Unsigned, 8 bits.
    U8(Vec<u8>),
    /// Signed, 8 bits.
    I8(Vec<i8>),
    /// Unsigned, 16 bits.
    U16(Vec<u16>),
    /// Signed, 16 bits.
    I16(Vec<i16>),
    /// Unsigned, 32 bits.
    U32(Vec<u32>),
    /// Signed, 32 bits.
    I32(Vec<i32>),
    /// Unsigned, 64 bits.
    U64(Vec<u64>),
    /// Signed, 64 bits.
    I64(Vec<i64>),
    /// 32-bit floats.
    F32(Vec<f32>),
    /// 64-bit floats.
    F64(Vec<f64>),
    /// Booleans.
    Bool(Vec<bool>),
    /// Strings.
    String(Strings),
}

/// Strings in one allocation: a vocabulary has hundreds of thousands, most of them a few bytes long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strings {
    text: String,
    /// Offset of the end of each string in `text`.
    end_offsets: Vec<u32>,
}

impl Strings {
    /// Number of strings.
    pub fn len(&self) -> usize {
        self.end_offsets.len()
    }

    /// Whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.end_offsets.is_empty()
    }

    /// The string at `index`.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.end_offsets.get(index)?;
        let start = if index == 0 { 0 } else { self.end_offsets[index - 1] };
        Some(&self.text[start as usize..end as usize])
    }

    /// All strings, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        let mut start = 0;
        self.end_offsets.iter().map(move |end| {
            let text = &self.text[start as usize..*end as usize];
            start = *end;
            text
        })
    }

    fn read<R: Read>(header: &mut Header<R>, count: usize, subject: Subject) -> Result<Strings> {
        let mut bytes = Vec::new();
        let mut end_offsets = Vec::with_capacity(count);
        for _ in 0..count {
            header.append_string(&mut bytes, subject)?;
            // A header's limit is far below 4 GiB.
            end_offsets.push(bytes.len() as u32);
        }
        // Checking all at once takes half the time of one by one: all strings are UTF-8 if their
        // concatenation is and none ends inside a character.
        let not_utf8 = |at: usize| {
            let index = end_offsets.partition_point(|end| *end as usize <= at);
            header.damaged(subject, format!("string {index} of the array is not UTF-8"))
        };
        let text = String::from_utf8(bytes).map_err(|error| not_utf8(error.utf8_error().valid_up_to()))?;
        match end_offsets.iter().find(|end| !text.is_char_boundary(**end as usize)) {
            Some(end) => Err(not_utf8(*end as usize - 1)),
            None => Ok(Strings { text, end_offsets }),
        }
    }
}

impl Value {
    /// Description for messages: the type, and the value of a number or the length of an array.
    pub fn describe(&self) -> String {
        match self {
            Value::U8(value) => format!("u8 {value}"),
            Value::I8(value) => format!("i8 {value}"),
            Value::U16(value) => format!("u16 {value}"),
            Value::I16(value) => format!("i16 {value}"),
            Value::U32(value) => format!("u32 {value}"),
            Value::I32(value) => format!("i32 {value}"),
            Value::U64(value) => format!("u64 {value}"),
            Value::I64(value) => format!("i64 {value}"),
            Value::F32(value) => format!("f32 {value}"),
            Value::F64(value) => format!("f64 {value}"),
            Value::Bool(value) => format!("bool {value}"),
            Value::String(_) => "string".to_string(),
            Value::Array(array) => format!("array of {} {}", array.len(), array.type_name()),
        }
    }

    /// An integer of any width.
    pub(super) fn integer(&self) -> Option<i128> {
        Some(match self {
            Value::U8(value) => (*value).into(),
            Value::I8(value) => (*value).into(),
            Value::U16(value) => (*value).into(),
            Value::I16(value) => (*value).into(),
            Value::U32(value) => (*value).into(),
            Value::I32(value) => (*value).into(),
            Value::U64(value) => (*value).into(),
            Value::I64(value) => (*value).into(),
            _ => return None,
        })
    }

    /// Reads the type and the value of `key`.
    pub(super) fn read<R: Read>(header: &mut Header<R>, key: &str) -> Result<Value> {
        let subject = Subject::Value(key);
        Ok(match header.u32(subject)? {
            0 => Value::U8(u8::from_le_bytes(header.array(subject)?)),
            1 => Value::I8(i8::from_le_bytes(header.array(subject)?)),
            2 => Value::U16(u16::from_le_bytes(header.array(subject)?)),
            3 => Value::I16(i16::from_le_bytes(header.array(subject)?)),
            4 => Value::U32(u32::from_le_bytes(header.array(subject)?)),
            5 => Value::I32(i32::from_le_bytes(header.array(subject)?)),
            6 => Value::F32(f32::from_le_bytes(header.array(subject)?)),
            7 => {
                let [byte] = header.array(subject)?;
                check_bools(header, &[byte], subject)?;
                Value::Bool(byte == 1)
            }
            8 => Value::String(header.string(subject)?),
            9 => Value::Array(Array::read(header, subject)?),
            10 => Value::U64(u64::from_le_bytes(header.array(subject)?)),
            11 => Value::I64(i64::from_le_bytes(header.array(subject)?)),
            12 => Value::F64(f64::from_le_bytes(header.array(subject)?)),
            kind => return Err(header.damaged(subject, unknown_type(kind))),
        })
    }
}

impl Array {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(values) => values.len(),
            Array::I8(values) => values.len(),
            Array::U16(values) => values.len(),
            Array::I16(values) => values.len(),
            Array::U32(values) => values.len(),
            Array::I32(values) => values.len(),
            Array::U64(values) => values.len(),
            Array::I64(values) => values.len(),
            Array::F32(values) => values.len(),
            Array::F64(values) => values.len(),
            Array::Bool(values) => values.len(),
            Array::String(values) => values.len(),
        }
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the values are integers or booleans.
    pub fn is_integers(&self) -> bool {
        !matches!(self, Array::F32(_) | Array::F64(_) | Array::String(_))
    }

    /// The integer at `index`; `None` if it is negative or something else.
    pub fn integer(&self, index: usize) -> Option<u64> {
        match self {
            Array::U8(values) => values.get(index).map(|value| u64::from(*value)),
            Array::U16(values) => values.get(index).map(|value| u64::from(*value)),
            Array::U32(values) => values.get(index).map(|value| u64::from(*value)),
            Array::U64(values) => values.get(index).copied(),
            Array::I8(values) => values.get(index).and_then(|value| u64::try_from(*value).ok()),
            Array::I16(values) => values.get(index).and_then(|value| u64::try_from(*value).ok()),
            Array::I32(values) => values.get(index).and_then(|value| u64::try_from(*value).ok()),
            Array::I64(values) => values.get(index).and_then(|value| u64::try_from(*value).ok()),
            Array::Bool(_) | Array::F32(_) | Array::F64(_) | Array::String(_) => None,
        }
    }

    fn type_name(&self) -> &'static str {
        match self {
            Array::U8(_) => "u8",
            Array::I8(_) => "i8",
            Array::U16(_) => "u16",
            Array::I16(_) => "i16",
            Array::U32(_) => "u32",
            Array::I32(_) => "i32",
            Array::U64(_) => "u64",
            Array::I64(_) => "i64",
            Array::F32(_) => "f32",
            Array::F64(_) => "f64",
            Array::Bool(_) => "bool",
            Array::String(_) => "string",
        }
    }

    /// Integers of any width.
    pub(super) fn integers(&self) -> Option<Box<dyn Iterator<Item = i128> + '_>> {
        Some(match self {
            Array::U8(values) => Box::new(values.iter().map(|value| (*value).into())),
            Array::I8(values) => Box::new(values.iter().map(|value| (*value).into())),
            Array::U16(values) => Box::new(values.iter().map(|value| (*value).into())),
            Array::I16(values) => Box::new(values.iter().map(|value| (*value).into())),
            Array::U32(values) => Box::new(values.iter().map(|value| (*value).into())),
            Array::I32(values) => Box::new(values.iter().map(|value| (*value).into())),
            Array::U64(values) => Box::new(values.iter().map(|value| (*value).into())),
            Array::I64(values) => Box::new(values.iter().map(|value| (*value).into())),
            _ => return None,
        })
    }

    /// Reads the type and the length of the array at `key`, but none of its elements.
    pub(super) fn read_len<R: Read>(header: &mut Header<R>, key: &str) -> Result<u64> {
        let subject = Subject::Value(key);
        match header.u32(subject)? {
            9 => {
                header.u32(subject)?;
                header.u64(subject)
            }
            _ => Err(header.damaged(subject, "not an array")),
        }
    }

    fn read<R: Read>(header: &mut Header<R>, subject: Subject) -> Result<Array> {
        let kind = header.u32(subject)?;
        let count = header.u64(subject)?;
        let min_bytes = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            // A string has at least its length prefix.
            8 | 10..=12 => 8,
            // The specification allows nested arrays, but ggml does not read them and no model has any.
            9 => {
                return Err(
                    header.error(subject, "nested arrays are not supported: write the key as a flat array")
                );
            }
            _ => return Err(header.damaged(subject, unknown_type(kind))),
        };
        let count = header.bounded_count("array elements", count, min_bytes, u64::MAX, subject)?;
        Ok(match kind {
            0 => Array::U8(header.numbers(count, subject, u8::from_le_bytes)?),
            1 => Array::I8(header.numbers(count, subject, i8::from_le_bytes)?),
            2 => Array::U16(header.numbers(count, subject, u16::from_le_bytes)?),
            3 => Array::I16(header.numbers(count, subject, i16::from_le_bytes)?),
            4 => Array::U32(header.numbers(count, subject, u32::from_le_bytes)?),
            5 => Array::I32(header.numbers(count, subject, i32::from_le_bytes)?),
            6 => Array::F32(header.numbers(count, subject, f32::from_le_bytes)?),
            7 => {
                let bytes = header.numbers(count, subject, u8::from_le_bytes)?;
                check_bools(header, &bytes, subject)?;
                Array::Bool(bytes.into_iter().map(|byte| byte == 1).collect())
            }
            8 => Array::String(Strings::read(header, count, subject)?),
            10 => Array::U64(header.numbers(count, subject, u64::from_le_bytes)?),
            11 => Array::I64(header.numbers(count, subject, i64::from_le_bytes)?),
            _ => Array::F64(header.numbers(count, subject, f64::from_le_bytes)?),
        })
    }
}

/// GGUF allows 0 and 1 for a bool.
fn check_bools<R: Read>(header: &Header<R>, bytes: &[u8], subject: Subject) -> Result<()> {
    match bytes.iter().find(|byte| **byte > 1) {
        None => Ok(()),
        Some(byte) => Err(header.damaged(subject, format!("{byte} is not a bool"))),
    }
}

fn unknown_type(kind: u32) -> String {
    format!("unknown value type {kind}")
}
