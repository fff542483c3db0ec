//! Activations in GPU memory: columns of K values, as f32, as f16 for cooperative matrices, or as int8 or
//! int16 with scales.

pub(crate) mod compare;

use gpu::{Arena, Buffer, Error, Recorder, Result};

use tensor::{GROUP, QUAD};

/// Columns of activations, each padded to whole quads: column c starts at value c · [`Vectors::stride`].
/// Kernels never write the padding, and multiply it with zero weights: in f32 and f16 it must be zero (see
/// [`Vectors::record_clear`]), in int8 and int16 its scales must be.
#[derive(Debug)]
pub struct Vectors {
    /// Values per column.
    pub k: usize,
    /// Columns.
    pub columns: usize,
    /// The values.
    pub data: VectorData,
}

/// Storage format of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activations {
    /// 32-bit floats.
    F32,
    /// 8-bit integers, 32 values per scale.
    Int8,
    /// 16-bit integers as two bytes, 16 values per scale.
    Int16,
    /// 16-bit floats, as cooperative matrices take them.
    F16,
}

impl Activations {
    /// Every format.
    pub const ALL: [Activations; 4] =
        [Activations::F32, Activations::Int8, Activations::Int16, Activations::F16];
}

impl std::fmt::Display for Activations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Activations::F32 => "f32",
            Activations::Int8 => "int8",
            Activations::Int16 => "int16",
            Activations::F16 => "f16",
        })
    }
}

/// The values and, where the format has them, the scales.
#[derive(Debug)]
pub enum VectorData {
    /// Unscaled f32.
    F32(Buffer),
    /// q · scale, 32 values per scale.
    Int8 {
        /// Bytes, each column padded to quads.
        values: Buffer,
        /// f32, 4 per quad.
        scales: Buffer,
    },
    /// q · scale, 16 values per scale, q from −32,639 to 32,639 as two signed bytes: q = 256 · high + low.
    /// Exact to 2⁻¹⁵ of the largest of the 16, and multiplied by packed byte dot products.
    Int16 {
        /// Bytes: the plane of high bytes, then the plane of low bytes, each laid out like int8 columns,
        /// padded to quads.
        values: Buffer,
        /// f32, 8 per quad: the scales of the first halves of its four groups, then those of the second
        /// halves. A thread that holds one half of each group loads its four scales at once.
        scales: Buffer,
    },
    /// Values divided by [`F16_UNIT`], in groups of four in [`F16_ORDER`]. glsl/f16.glsl packs them.
    F16(Buffer),
}

/// The value that 1.0 represents in f16 activations: gate · up can exceed the range of f16, and no relevant
/// value is so small that dividing it by 16 would lose bits. The matrix kernel multiplies the weights by it.
pub const F16_UNIT: f32 = 16.0;

/// Storage order of four neighbours: masking a word of four bytes yields the first and the third, and after a
/// shift the second and the fourth. Weight bytes thus become pairs of f16 with one instruction each, in this
/// order, and activations follow it.
pub const F16_ORDER: [usize; 4] = [0, 2, 1, 3];

/// Index of value `k` of a column among f16 activations.
pub fn f16_at(k: usize) -> usize {
    k / 4 * 4 + F16_ORDER[k % 4]
}

/// Values per scale of int16 activations: half a group, which is what a thread of the GEMV kernel holds.
pub const HALF_GROUP: usize = GROUP / 2;

/// Index of the scale of value `k` among the int16 scales of a column.
pub fn int16_scale_at(k: usize) -> usize {
    let half_group = k / HALF_GROUP;
    half_group / 8 * 8 + half_group % 2 * 4 + half_group % 8 / 2
}

impl Vectors {
    /// Allocates f32 columns.
    pub fn f32(arena: &mut Arena, what: &str, k: usize, columns: usize) -> Result<Self> {
        let data = VectorData::F32(arena.buffer(what, (k.next_multiple_of(QUAD) * columns * 4) as u64)?);
        Ok(Self { k, columns, data })
    }

    /// Allocates int8 columns; `k` must be a multiple of 32.
    pub fn int8(arena: &mut Arena, what: &str, k: usize, columns: usize) -> Result<Self> {
        if !k.is_multiple_of(GROUP) {
            let reason = format!("{k} values are not a multiple of the group size, {GROUP}");
            return Err(Error::InvalidUse { what: what.to_string(), reason });
        }
        let padded = k.next_multiple_of(QUAD) * columns;
        let values = arena.buffer(what, padded as u64)?;
        let scales = arena.buffer(what, (padded / GROUP * 4) as u64)?;
        Ok(Self { k, columns, data: VectorData::Int8 { values, scales } })
    }

    /// Allocates int16 columns; `k` must be a multiple of 16.
    pub fn int16(arena: &mut Arena, what: &str, k: usize, columns: usize) -> Result<Self> {
        if !k.is_multiple_of(HALF_GROUP) {
            let reason = format!("{k} values are not a multiple of {HALF_GROUP}");
            return Err(Error::InvalidUse { what: what.to_string(), reason });
        }
        let padded = k.next_multiple_of(QUAD) * columns;
        let values = arena.buffer(what, 2 * padded as u64)?;
        let scales = arena.buffer(what, (padded / HALF_GROUP * 4) as u64)?;
        Ok(Self { k, columns, data: VectorData::Int16 { values, scales } })
    }

    /// Allocates f16 columns.
    pub fn f16(arena: &mut Arena, what: &str, k: usize, columns: usize) -> Result<Self> {
        let data = VectorData::F16(arena.buffer(what, (k.next_multiple_of(QUAD) * columns * 2) as u64)?);
        Ok(Self { k, columns, data })
    }

    /// Values from the start of one column to the next.
    pub fn stride(&self) -> usize {
        self.k.next_multiple_of(QUAD)
    }

    /// Records a zero fill, once, before anything reads float columns whose length is not a multiple of a
    /// quad: uninitialised memory might hold NaN.
    pub fn record_clear(&self, recorder: &mut Recorder, name: &str) -> Result<()> {
        match &self.data {
            VectorData::F32(values) | VectorData::F16(values) => recorder.fill(name, values, 0),
            VectorData::Int8 { values, scales } | VectorData::Int16 { values, scales } => {
                recorder.fill(name, values, 0)?;
                recorder.fill(name, scales, 0)
            }
        }
    }

    /// Allocates columns in any format.
    pub fn new(arena: &mut Arena, what: &str, kind: Activations, k: usize, columns: usize) -> Result<Self> {
        match kind {
            Activations::F32 => Self::f32(arena, what, k, columns),
            Activations::Int8 => Self::int8(arena, what, k, columns),
            Activations::Int16 => Self::int16(arena, what, k, columns),
            Activations::F16 => Self::f16(arena, what, k, columns),
        }
    }

    /// Storage format of the values.
    pub fn kind(&self) -> Activations {
        match self.data {
            VectorData::F32(_) => Activations::F32,
            VectorData::Int8 { .. } => Activations::Int8,
            VectorData::Int16 { .. } => Activations::Int16,
            VectorData::F16(_) => Activations::F16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_order_is_its_own_inverse() {
        let indices: Vec<usize> = (0..8).map(f16_at).collect();
        assert_eq!(indices, [0, 2, 1, 3, 4, 6, 5, 7]);
        assert!((0..64).all(|k| f16_at(f16_at(k)) == k));
    }

    #[test]
    fn int16_scales_of_a_quad_are_grouped_by_halves() {
        let indices: Vec<usize> = (0..8).map(|half_group| int16_scale_at(half_group * HALF_GROUP)).collect();
        assert_eq!(indices, [0, 4, 1, 5, 2, 6, 3, 7]);
        assert_eq!(int16_scale_at(QUAD + 17), 12);
    }
}
