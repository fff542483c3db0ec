//! Activations in GPU memory: a few columns of K values, as f32, or as int8 or int16 with scales.

use gpu::{Arena, Buffer, Error, Recorder, Result};

use crate::layout::{GROUP, QUAD};

/// Columns of activations, each padded to whole quads: column c starts at value c · [`Vectors::stride`]. The padding is never
/// written and meets weights of zero: of f32 it must be zero (see [`Vectors::record_clear`]), of int8 and int16 its scales are.
#[derive(Debug)]
pub struct Vectors {
    /// Values of a column.
    pub k: usize,
    /// Columns.
    pub columns: usize,
    /// The values.
    pub data: VectorData,
}

/// How activations are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activations {
    /// 32-bit floats.
    F32,
    /// 8 bits, 32 values a scale.
    Int8,
    /// 16 bits in two bytes, 16 values a scale.
    Int16,
}

impl Activations {
    /// Every one.
    pub const ALL: [Activations; 3] = [Activations::F32, Activations::Int8, Activations::Int16];
}

impl std::fmt::Display for Activations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Activations::F32 => "f32",
            Activations::Int8 => "int8",
            Activations::Int16 => "int16",
        })
    }
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
    /// q · scale, 16 values a scale, q from −32,639 to 32,639 as two signed bytes: q = 256 · high + low. Exact to 2⁻¹⁵ of the
    /// largest of 16, and multiplied with packed dot products of bytes.
    Int16 {
        /// Bytes: all high ones, then all low ones, each as int8 columns are, padded to quads.
        values: Buffer,
        /// f32, 8 a quad: those of the first halves of its four groups, then those of the second halves. So a thread that holds
        /// one half of each group loads its four scales at once.
        scales: Buffer,
    },
}

/// Values that share a scale of int16 activations: half a group, which is what a thread of the matrix–vector kernel holds.
pub const HALF_GROUP: usize = GROUP / 2;

/// Which f32 of int16 activations is the scale of value `k` of a column, whose scales start at 0.
pub fn int16_scale_at(k: usize) -> usize {
    let half_group = k / HALF_GROUP;
    half_group / 8 * 8 + half_group % 2 * 4 + half_group % 8 / 2
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

    /// Takes memory for int16 columns; `k` must divide by 16.
    pub fn int16(arena: &mut Arena, what: &str, k: usize, columns: usize) -> Result<Self> {
        if !k.is_multiple_of(HALF_GROUP) {
            let reason = format!("{k} values do not divide into half groups of {HALF_GROUP}");
            return Err(Error::InvalidUse { what: what.to_string(), reason });
        }
        let padded = k.next_multiple_of(QUAD) * columns;
        let values = arena.buffer(what, 2 * padded as u64)?;
        let scales = arena.buffer(what, (padded / HALF_GROUP * 4) as u64)?;
        Ok(Self { k, columns, data: VectorData::Int16 { values, scales } })
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
            VectorData::Int8 { values, scales } | VectorData::Int16 { values, scales } => {
                recorder.fill(name, values, 0)?;
                recorder.fill(name, scales, 0)
            }
        }
    }

    /// Takes memory for columns of any kind.
    pub fn new(arena: &mut Arena, what: &str, kind: Activations, k: usize, columns: usize) -> Result<Self> {
        match kind {
            Activations::F32 => Self::f32(arena, what, k, columns),
            Activations::Int8 => Self::int8(arena, what, k, columns),
            Activations::Int16 => Self::int16(arena, what, k, columns),
        }
    }

    /// How the values are stored.
    pub fn kind(&self) -> Activations {
        match self.data {
            VectorData::F32(_) => Activations::F32,
            VectorData::Int8 { .. } => Activations::Int8,
            VectorData::Int16 { .. } => Activations::Int16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scales_of_a_quad_lie_by_halves() {
        let of_a_quad: Vec<usize> =
            (0..8).map(|half_group| int16_scale_at(half_group * HALF_GROUP)).collect();
        assert_eq!(of_a_quad, [0, 4, 1, 5, 2, 6, 3, 7]);
        assert_eq!(int16_scale_at(QUAD + 17), 12);
    }
}
