//! Activations in GPU memory: columns of K values, as f32, as f16 for matrix units, or as int8 or int16 with scales.

pub(crate) mod compare;

use gpu::{Arena, Buffer, Error, Recorder, Result};

use tensor::{GROUP, QUAD};

/// Columns of activations, each padded to whole quads: column c starts at value c · [`Vectors::stride`]. The padding is never
/// written and meets weights of zero: of f32 and f16 it must be zero (see [`Vectors::record_clear`]), of int8 and int16 its scales are.
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
    /// 16-bit floats, as matrix units take them.
    F16,
}

impl Activations {
    /// Every one.
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
    /// Values divided by [`F16_UNIT`], of each four neighbours in the order of [`F16_ORDER`]. glsl/f16.glsl packs them.
    F16(Buffer),
}

/// What 1.0 stands for in f16 activations: the product of gate and up may be larger than f16 can hold, and nothing of weight is so
/// small that a sixteenth of it would lose bits. The matrix kernel multiplies weights with it.
pub const F16_UNIT: f32 = 16.0;

/// Which of four neighbours is stored where: masking a word of four bytes yields the first and the third, and after a shift the second
/// and the fourth. So bytes of weights become pairs of f16 in this order with one instruction each, and activations follow them.
pub const F16_ORDER: [usize; 4] = [0, 2, 1, 3];

/// Where value `k` of a column is among f16 activations.
pub fn f16_at(k: usize) -> usize {
    k / 4 * 4 + F16_ORDER[k % 4]
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

    /// Takes memory for f16 columns.
    pub fn f16(arena: &mut Arena, what: &str, k: usize, columns: usize) -> Result<Self> {
        let data = VectorData::F16(arena.buffer(what, (k.next_multiple_of(QUAD) * columns * 2) as u64)?);
        Ok(Self { k, columns, data })
    }

    /// Values from the start of a column to the next.
    pub fn stride(&self) -> usize {
        self.k.next_multiple_of(QUAD)
    }

    /// Records zeros everywhere, once, before anything reads float columns whose length is not whole quads: what memory held
    /// before might not be a number.
    pub fn record_clear(&self, recorder: &mut Recorder, name: &str) -> Result<()> {
        match &self.data {
            VectorData::F32(values) | VectorData::F16(values) => recorder.fill(name, values, 0),
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
            Activations::F16 => Self::f16(arena, what, k, columns),
        }
    }

    /// How the values are stored.
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
    fn the_order_of_f16_is_its_own_inverse() {
        let fours: Vec<usize> = (0..8).map(f16_at).collect();
        assert_eq!(fours, [0, 2, 1, 3, 4, 6, 5, 7]);
        assert!((0..64).all(|k| f16_at(f16_at(k)) == k));
    }

    #[test]
    fn the_scales_of_a_quad_lie_by_halves() {
        let of_a_quad: Vec<usize> =
            (0..8).map(|half_group| int16_scale_at(half_group * HALF_GROUP)).collect();
        assert_eq!(of_a_quad, [0, 4, 1, 5, 2, 6, 3, 7]);
        assert_eq!(int16_scale_at(QUAD + 17), 12);
    }
}
