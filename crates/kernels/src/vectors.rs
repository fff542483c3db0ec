//! Activations in GPU memory: a few columns of K values, as f32 or as int8 with a scale per group.

use gpu::{Arena, Buffer, Error, Recorder, Result};

use crate::layout::{GROUP, QUAD};

/// Columns of activations, each padded to whole quads: column c starts at value c · [`Vectors::stride`]. The padding is never
/// written and meets weights of zero: of f32 it must be zero (see [`Vectors::record_clear`]), of int8 its scales are.
#[derive(Debug)]
pub struct Vectors {
    /// Values of a column.
    pub k: usize,
    /// Columns.
    pub columns: usize,
    /// The values.
    pub data: VectorData,
}

/// The values themselves.
#[derive(Debug)]
pub enum VectorData {
    /// As they are.
    F32(Buffer),
    /// q · scale, 32 values a scale.
    Int8 {
        /// Bytes, columns padded to quads.
        values: Buffer,
        /// f32, 4 a quad.
        scales: Buffer,
    },
}

impl Vectors {
    /// Takes memory for f32 columns.
    pub fn f32(arena: &mut Arena, what: &str, k: usize, columns: usize) -> Result<Self> {
        let data = VectorData::F32(arena.buffer(what, (k.next_multiple_of(QUAD) * columns * 4) as u64)?);
        Ok(Self { k, columns, data })
    }

    /// Takes memory for int8 columns; `k` must divide by 32.
    pub fn int8(arena: &mut Arena, what: &str, k: usize, columns: usize) -> Result<Self> {
        if !k.is_multiple_of(GROUP) {
            let reason = format!("{k} values do not divide into groups of {GROUP}");
            return Err(Error::InvalidUse { what: what.to_string(), reason });
        }
        let padded = k.next_multiple_of(QUAD) * columns;
        let values = arena.buffer(what, padded as u64)?;
        let scales = arena.buffer(what, (padded / GROUP * 4) as u64)?;
        Ok(Self { k, columns, data: VectorData::Int8 { values, scales } })
    }

    /// Values from the start of a column to the next.
    pub fn stride(&self) -> usize {
        self.k.next_multiple_of(QUAD)
    }

    /// Records zeros everywhere, once, before anything reads f32 columns whose length is not whole quads: what memory held
    /// before might not be a number.
    pub fn record_clear(&self, recorder: &mut Recorder, name: &str) -> Result<()> {
        match &self.data {
            VectorData::F32(values) => recorder.fill(name, values, 0),
            VectorData::Int8 { values, scales } => {
                recorder.fill(name, values, 0)?;
                recorder.fill(name, scales, 0)
            }
        }
    }

    /// Whether the values are int8.
    pub fn is_int8(&self) -> bool {
        matches!(self.data, VectorData::Int8 { .. })
    }
}
