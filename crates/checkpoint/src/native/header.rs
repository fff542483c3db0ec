//! Writing the header of a native file.

use std::{collections::BTreeMap, ops::Range};

use serde_json::{Value, json};
use tensor::Layout;

use super::{CONFIG_KEY, MATRICES_KEY, MatrixShape, TOKENIZER, VERSION, VERSION_KEY, scales_name};
use crate::config::Config;

/// Data starts at a multiple of this many bytes, so that tiles are page-aligned in the file.
const DATA_ALIGNMENT: usize = 4096;

/// A tensor of a native file. Offsets are in bytes from the start of the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderEntry {
    /// A matrix in the tile layout.
    Matrix {
        /// Name of the tensor.
        name: String,
        /// Shape and scheme.
        layout: Layout,
        /// Offset of the tiles.
        values_at: u64,
        /// Offset of the scale plane.
        scales_at: u64,
    },
    /// A vector of f32.
    Vector {
        /// Name of the tensor.
        name: String,
        /// Number of values.
        len: u64,
        /// Offset of the values.
        at: u64,
    },
}

/// The start of a native file: the length of the header and the header itself, padded so that the data which
/// follows is page-aligned. `tokenizer` is the range of the serialised
/// [`TokenizerData`](crate::tokenizer::TokenizerData) within the data.
pub fn header(
    config: &Config,
    tensors: &[HeaderEntry],
    tokenizer: Option<Range<u64>>,
) -> serde_json::Result<Vec<u8>> {
    // Sorted by name: the same model always gives the same header.
    let mut entries: BTreeMap<String, Value> = BTreeMap::new();
    let mut shapes = BTreeMap::new();
    let mut add = |name: String, dtype: &str, len: u64, bytes: Range<u64>| {
        let entry = json!({ "dtype": dtype, "shape": [len], "data_offsets": [bytes.start, bytes.end] });
        let previous = entries.insert(name, entry);
        debug_assert!(previous.is_none(), "every tensor has a name of its own");
    };
    if let Some(bytes) = tokenizer {
        add(TOKENIZER.into(), "U8", bytes.end - bytes.start, bytes);
    }
    for tensor in tensors {
        match tensor {
            HeaderEntry::Vector { name, len, at } => add(name.clone(), "F32", *len, *at..at + len * 4),
            HeaderEntry::Matrix { name, layout, values_at, scales_at } => {
                let (values, scales) = (layout.value_bytes() as u64, layout.scale_bytes() as u64);
                add(name.clone(), "U8", values, *values_at..values_at + values);
                add(scales_name(name), "U8", scales, *scales_at..scales_at + scales);
                let (rows, k) = (layout.rows as u64, layout.k as u64);
                shapes.insert(name.clone(), MatrixShape { rows, k, scheme: layout.scheme });
            }
        }
    }
    entries.insert(
        "__metadata__".into(),
        json!({
            VERSION_KEY: VERSION,
            CONFIG_KEY: serde_json::to_string(config)?,
            MATRICES_KEY: serde_json::to_string(&shapes)?,
        }),
    );
    let mut json = serde_json::to_vec(&entries)?;
    let padded = (json.len() + 8).next_multiple_of(DATA_ALIGNMENT) - 8;
    json.resize(padded, b' ');
    Ok([&(padded as u64).to_le_bytes()[..], &json].concat())
}
