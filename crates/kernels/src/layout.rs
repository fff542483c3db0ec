//! How quantised matrices lie in memory, on the GPU and in our files.
//!
//! Rows are cut into strips of 16, K into quads of 128 (4 groups of 32, each with one scale a row). A quad of a strip is
//! a run of tiles of 512 bytes, 16 rows × 32 bytes: 32 threads read a tile as 32 × 16 contiguous bytes, and a matrix unit
//! loads it as a 16 × 32 operand. An int8 tile holds one group, 4 tiles a quad. An int4 tile holds two groups: byte j of
//! a row has k = j in its low nibble and k = j + 32 in its high one, 2 tiles a quad. Nibbles are two's complement, so
//! that masking alone yields 16 · q as a signed byte. The scales are a plane of their own, f16, four to a row and quad:
//! one load of 8 bytes serves a thread for a whole quad.
//!
//! Rows past the end of the last strip and columns past the end of the last quad are zero, scales included.

use half::f16;

/// Rows of a strip.
pub const STRIP: usize = 16;
/// Columns of a group: one scale each.
pub const GROUP: usize = 32;
/// Columns of a quad: four groups.
pub const QUAD: usize = 128;

/// How a weight is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// 8 bits, −127…127, one f16 scale per group of 32.
    Int8,
    /// 4 bits, −8…7, one f16 scale per group of 32.
    Int4,
}

impl Scheme {
    /// Bits of a value.
    pub fn bits(self) -> u32 {
        match self {
            Scheme::Int8 => 8,
            Scheme::Int4 => 4,
        }
    }
}

impl std::fmt::Display for Scheme {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "int{}", self.bits())
    }
}

/// The layout of one matrix of `rows` × `k` weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// How a weight is stored.
    pub scheme: Scheme,
    /// Output rows.
    pub rows: usize,
    /// Columns, divisible by 32.
    pub k: usize,
}

impl Layout {
    /// None when a dimension is zero or K does not divide by 32.
    pub fn new(scheme: Scheme, rows: usize, k: usize) -> Option<Self> {
        (rows > 0 && k > 0 && k.is_multiple_of(GROUP)).then_some(Self { scheme, rows, k })
    }

    /// Strips, the last one perhaps padded.
    pub fn strips(&self) -> usize {
        self.rows.div_ceil(STRIP)
    }

    /// Quads along K, the last one perhaps padded.
    pub fn quads(&self) -> usize {
        self.k.div_ceil(QUAD)
    }

    /// Bytes of values in one strip.
    pub fn strip_value_bytes(&self) -> usize {
        self.quads() * QUAD * STRIP * self.scheme.bits() as usize / 8
    }

    /// Bytes of scales in one strip.
    pub fn strip_scale_bytes(&self) -> usize {
        self.quads() * (QUAD / GROUP) * STRIP * size_of::<f16>()
    }

    /// Bytes of all values.
    pub fn value_bytes(&self) -> usize {
        self.strips() * self.strip_value_bytes()
    }

    /// Bytes of all scales.
    pub fn scale_bytes(&self) -> usize {
        self.strips() * self.strip_scale_bytes()
    }

    /// Where the byte with the weight of (`row`, `k`) is, and whether it is the high nibble.
    pub fn value_at(&self, row: usize, k: usize) -> (usize, bool) {
        let quad = row / STRIP * self.quads() + k / QUAD;
        let (tiles, tile, high) = match self.scheme {
            Scheme::Int8 => (4, k % QUAD / GROUP, false),
            Scheme::Int4 => (2, k % QUAD / (2 * GROUP), k / GROUP % 2 == 1),
        };
        (((quad * tiles + tile) * STRIP + row % STRIP) * GROUP + k % GROUP, high)
    }

    /// Which f16 of the scale plane belongs to (`row`, `group`).
    pub fn scale_at(&self, row: usize, group: usize) -> usize {
        let quad = row / STRIP * self.quads() + group / 4;
        (quad * STRIP + row % STRIP) * 4 + group % 4
    }

    /// Lays row-major integers (−8…7 for int4) out as bytes.
    pub fn pack_values(&self, values: &[i8]) -> Vec<u8> {
        assert_eq!(values.len(), self.rows * self.k, "as many values as the layout has weights");
        let mut bytes = vec![0; self.value_bytes()];
        for (index, value) in values.iter().enumerate() {
            let (at, high) = self.value_at(index / self.k, index % self.k);
            match (self.scheme, high) {
                (Scheme::Int8, _) => bytes[at] = *value as u8,
                (Scheme::Int4, false) => bytes[at] |= *value as u8 & 0x0f,
                (Scheme::Int4, true) => bytes[at] |= (*value as u8) << 4,
            }
        }
        bytes
    }

    /// Lays row-major scales (one per row and group) out.
    pub fn pack_scales(&self, scales: &[f16]) -> Vec<f16> {
        let groups = self.k / GROUP;
        assert_eq!(scales.len(), self.rows * groups, "as many scales as the layout has groups");
        let mut plane = vec![f16::ZERO; self.scale_bytes() / size_of::<f16>()];
        for (index, scale) in scales.iter().enumerate() {
            plane[self.scale_at(index / groups, index % groups)] = *scale;
        }
        plane
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layouts() -> impl Strategy<Value = Layout> {
        (prop_oneof![Just(Scheme::Int8), Just(Scheme::Int4)], 1_usize..70, 1_usize..13)
            .prop_map(|(scheme, rows, groups)| Layout::new(scheme, rows, groups * GROUP).unwrap())
    }

    proptest! {
        #[test]
        fn every_weight_has_a_place_of_its_own(layout in layouts()) {
            let mut seen = std::collections::HashSet::new();
            for row in 0..layout.rows {
                for k in 0..layout.k {
                    let place = layout.value_at(row, k);
                    prop_assert!(place.0 < layout.value_bytes());
                    prop_assert!(seen.insert(place), "{row}, {k} shares {place:?}");
                }
                for group in 0..layout.k / GROUP {
                    prop_assert!(layout.scale_at(row, group) * 2 < layout.scale_bytes());
                }
            }
        }

        #[test]
        fn packing_keeps_every_value_and_pads_with_zero(layout in layouts(), seed in any::<u64>()) {
            let (low, span) = match layout.scheme { Scheme::Int8 => (-127, 255), Scheme::Int4 => (-8, 16) };
            let values: Vec<i8> = (0..layout.rows * layout.k)
                .map(|i| (low + ((i as u64).wrapping_mul(seed | 1) >> 7).rem_euclid(span) as i64) as i8)
                .collect();
            let bytes = layout.pack_values(&values);
            let unpack = |(at, high): (usize, bool)| match (layout.scheme, high) {
                (Scheme::Int8, _) => bytes[at] as i8,
                (Scheme::Int4, false) => (bytes[at] << 4) as i8 >> 4,
                (Scheme::Int4, true) => bytes[at] as i8 >> 4,
            };
            for (index, value) in values.iter().enumerate() {
                prop_assert_eq!(unpack(layout.value_at(index / layout.k, index % layout.k)), *value);
            }
            for row in 0..layout.strips() * STRIP {
                for k in 0..layout.quads() * QUAD {
                    if row >= layout.rows || k >= layout.k {
                        prop_assert_eq!(unpack(layout.value_at(row, k)), 0);
                    }
                }
            }
        }
    }

    #[test]
    fn the_documented_addresses() {
        // 16 rows × 32 bytes a tile, strip-major: for K a multiple of 128 the formula of the design holds as it stands.
        let layout = Layout::new(Scheme::Int8, 48, 256).unwrap();
        for (row, k) in [(0, 0), (1, 0), (0, 32), (17, 33), (47, 255)] {
            let expected = ((row / 16) * (256 / 32) + k / 32) * 512 + (row % 16) * 32 + k % 32;
            assert_eq!(layout.value_at(row, k), (expected, false));
        }
        let layout = Layout::new(Scheme::Int4, 16, 128).unwrap();
        assert_eq!(layout.value_at(0, 32), (0, true));
        assert_eq!(layout.value_at(0, 64), (512, false));
        assert_eq!(Layout::new(Scheme::Int8, 1, 48), None);
    }
}
