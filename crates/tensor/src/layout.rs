//! The tile layout of weight matrices, on the GPU and in native files.
//!
//! Rows are divided into strips of 16 and columns (K) into quads of 128: four groups of 32, each with one
//! scale per row. One quad of a strip is a sequence of 512-byte tiles, 16 rows × 32 bytes: 32 invocations
//! read a tile as 32 × 16 contiguous bytes, and a cooperative matrix loads it as a 16 × 32 operand. An int8
//! tile holds one group, so a quad has 4 tiles. An int4 tile holds two groups, so a quad has 2: byte j of a
//! row holds k = j in its low nibble and k = j + 32 in its high nibble. Nibbles are two's complement, so that
//! masking alone yields 16 · q as a signed byte. Floats fill tiles in the same way, with 16 (f16, bf16) or 8
//! (f32) columns per tile.
//!
//! Scales form a separate plane of f16, four per row and quad: one 8-byte load serves an invocation for a
//! whole quad. In schemes with minima, the four minima of a row and quad follow its four scales.
//!
//! Rows past the end in the last strip and columns past the end in the last quad are zero, scales included.

use half::{bf16, f16};

/// Rows per strip.
pub const STRIP: usize = 16;
/// Columns per quantisation group. A group shares one scale.
pub const GROUP: usize = 32;
/// Columns per quad: four groups.
pub const QUAD: usize = 128;
/// Bytes per row of a tile.
const TILE_ROW_BYTES: usize = 32;

/// How the GPU stores weights. The quantised schemes have groups of 32 along K, each with an f16 scale d and
/// in some schemes an f16 minimum m.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// 8 bits: d · q with q in −128…127.
    Int8,
    /// 4 bits: d · q with q in −8…7.
    Int4,
    /// 8 bits with a minimum: d · q + m with q in −128…127.
    Int8Min,
    /// 4 bits with a minimum: d · (q + 8) + m with q in −8…7.
    Int4Min,
    /// 16-bit floats.
    F16,
    /// bfloat16.
    Bf16,
    /// 32-bit floats.
    F32,
}

impl Scheme {
    /// Every scheme.
    pub const ALL: [Scheme; 7] = [
        Scheme::Int8,
        Scheme::Int4,
        Scheme::Int8Min,
        Scheme::Int4Min,
        Scheme::F16,
        Scheme::Bf16,
        Scheme::F32,
    ];

    /// Bits per value.
    pub fn bits(self) -> u32 {
        match self {
            Scheme::Int8 | Scheme::Int8Min => 8,
            Scheme::Int4 | Scheme::Int4Min => 4,
            Scheme::F16 | Scheme::Bf16 => 16,
            Scheme::F32 => 32,
        }
    }

    /// Bytes per group of 32, including its scale and minimum.
    pub fn group_bytes(self) -> u64 {
        (GROUP * self.bits() as usize / 8 + self.scales_per_group() * size_of::<f16>()) as u64
    }

    /// Whether values are floats.
    pub fn is_float(self) -> bool {
        self.scales_per_group() == 0
    }

    /// Whether groups have a minimum in addition to the scale.
    pub fn has_min(self) -> bool {
        self.scales_per_group() == 2
    }

    /// f16 numbers per group: 0 (floats), 1 (scale) or 2 (scale and minimum).
    pub fn scales_per_group(self) -> usize {
        match self {
            Scheme::F16 | Scheme::Bf16 | Scheme::F32 => 0,
            Scheme::Int8 | Scheme::Int4 => 1,
            Scheme::Int8Min | Scheme::Int4Min => 2,
        }
    }
}

impl std::fmt::Display for Scheme {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Scheme::Int8 => "int8",
            Scheme::Int4 => "int4",
            Scheme::Int8Min => "int8+min",
            Scheme::Int4Min => "int4+min",
            Scheme::F16 => "f16",
            Scheme::Bf16 => "bf16",
            Scheme::F32 => "f32",
        })
    }
}

/// The layout of a matrix of `rows` × `k` weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Layout {
    /// How weights are stored.
    pub scheme: Scheme,
    /// Output rows.
    pub rows: usize,
    /// Columns: a multiple of 32, or any number for floats.
    pub k: usize,
}

impl Layout {
    /// The layout of a matrix; `None` if a dimension is zero, if K is not a multiple of 32
    /// (floats may have any K), or if the matrix is larger than any memory: kernels index rows and columns
    /// with 32 bits, and the size in bytes must not overflow.
    pub fn new(scheme: Scheme, rows: usize, k: usize) -> Option<Self> {
        let padded = rows.checked_next_multiple_of(STRIP)?.checked_mul(k.checked_next_multiple_of(QUAD)?)?;
        let in_range = rows <= u32::MAX as usize && k <= u32::MAX as usize && padded <= 1 << 48;
        let unit = if scheme.is_float() { 1 } else { GROUP };
        (rows > 0 && k > 0 && k.is_multiple_of(unit) && in_range).then_some(Self { scheme, rows, k })
    }

    /// Number of strips; the last one may be padded.
    pub fn strips(&self) -> usize {
        self.rows.div_ceil(STRIP)
    }

    /// Number of quads along K; the last one may be padded.
    pub fn quads(&self) -> usize {
        self.k.div_ceil(QUAD)
    }

    /// Bytes of values per strip.
    pub fn strip_value_bytes(&self) -> usize {
        self.quads() * QUAD * STRIP * self.scheme.bits() as usize / 8
    }

    /// Bytes of scales and minima per strip.
    pub fn strip_scale_bytes(&self) -> usize {
        self.quads() * (QUAD / GROUP) * STRIP * size_of::<f16>() * self.scheme.scales_per_group()
    }

    /// Bytes of all values.
    pub fn value_bytes(&self) -> usize {
        self.strips() * self.strip_value_bytes()
    }

    /// Bytes of all scales and minima.
    pub fn scale_bytes(&self) -> usize {
        self.strips() * self.strip_scale_bytes()
    }

    /// Offset of the first byte of the weight at (`row`, `k`), and whether it is that byte's high nibble.
    pub fn value_at(&self, row: usize, k: usize) -> (usize, bool) {
        let quad = row / STRIP * self.quads() + k / QUAD;
        let bits = self.scheme.bits() as usize;
        // Columns per tile; int4 stores its second group in the high nibbles.
        let columns = TILE_ROW_BYTES * 8 / bits;
        let (byte, high) = match bits {
            4 => (k % GROUP, k / GROUP % 2 == 1),
            _ => (k % columns * (bits / 8), false),
        };
        let tile = quad * (QUAD / columns) + k % QUAD / columns;
        ((tile * STRIP + row % STRIP) * TILE_ROW_BYTES + byte, high)
    }

    /// Index in the scale plane, in f16 elements, of the scale of (`row`, `group`). Its minimum, if any, is 4
    /// elements further.
    pub fn scale_at(&self, row: usize, group: usize) -> usize {
        let quad = row / STRIP * self.quads() + group / 4;
        (quad * STRIP + row % STRIP) * 4 * self.scheme.scales_per_group() + group % 4
    }

    /// The weight at (`row`, `k`), decoded from values and scale bits with the arithmetic of the kernels.
    pub fn value(&self, values: &[u8], scales: &[u16], row: usize, k: usize) -> f32 {
        let (at, high) = self.value_at(row, k);
        let scale = |plane: usize| f16::from_bits(scales[self.scale_at(row, k / GROUP) + 4 * plane]).to_f32();
        let nibble = || f32::from(if high { values[at] as i8 >> 4 } else { (values[at] << 4) as i8 >> 4 });
        let word16 = || u16::from_le_bytes([values[at], values[at + 1]]);
        match self.scheme {
            Scheme::F32 => f32::from_bits(
                u32::from(word16()) | u32::from(values[at + 2]) << 16 | u32::from(values[at + 3]) << 24,
            ),
            Scheme::F16 => f16::from_bits(word16()).to_f32(),
            Scheme::Bf16 => bf16::from_bits(word16()).to_f32(),
            Scheme::Int8 => scale(0) * f32::from(values[at] as i8),
            Scheme::Int4 => scale(0) * nibble(),
            Scheme::Int8Min => scale(0) * f32::from(values[at] as i8) + scale(1),
            Scheme::Int4Min => scale(0) * (nibble() + 8.0) + scale(1),
        }
    }

    /// Packs row-major integers (−8…7 for 4 bits) into tiles.
    pub fn pack_values(&self, values: &[i8]) -> Vec<u8> {
        assert_eq!(values.len(), self.rows * self.k, "values must match the layout's size");
        let mut bytes = vec![0; self.value_bytes()];
        for (index, value) in values.iter().enumerate() {
            let (at, high) = self.value_at(index / self.k, index % self.k);
            match (self.scheme.bits(), high) {
                (8, _) => bytes[at] = *value as u8,
                (4, false) => bytes[at] |= *value as u8 & 0x0f,
                (4, true) => bytes[at] |= (*value as u8) << 4,
                _ => panic!("{} weights are not integers", self.scheme),
            }
        }
        bytes
    }

    /// Packs row-major scales (one per row and group) into the scale plane, with minima if the scheme has
    /// them.
    pub fn pack_scales(&self, scales: &[f16], minima: &[f16]) -> Vec<f16> {
        let groups = self.k / GROUP;
        let planes = [scales, minima];
        for (number, plane) in planes.iter().enumerate() {
            let expected = if number < self.scheme.scales_per_group() { self.rows * groups } else { 0 };
            assert_eq!(plane.len(), expected, "scales and minima must match the layout's groups");
        }
        let mut packed = vec![f16::ZERO; self.scale_bytes() / size_of::<f16>()];
        for (number, plane) in planes.iter().enumerate() {
            for (index, scale) in plane.iter().enumerate() {
                packed[self.scale_at(index / groups, index % groups) + 4 * number] = *scale;
            }
        }
        packed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layouts() -> impl Strategy<Value = Layout> {
        (proptest::sample::select(Scheme::ALL.to_vec()), 1_usize..70, 1_usize..13)
            .prop_map(|(scheme, rows, groups)| Layout::new(scheme, rows, groups * GROUP).unwrap())
    }

    fn integer_layouts() -> impl Strategy<Value = Layout> {
        layouts().prop_filter("integers", |layout| layout.scheme.bits() <= 8)
    }

    proptest! {
        #[test]
        fn no_two_weights_share_an_address(layout in layouts()) {
            let mut seen = std::collections::HashSet::new();
            for row in 0..layout.rows {
                for k in 0..layout.k {
                    let (at, high) = layout.value_at(row, k);
                    for byte in at..at + (layout.scheme.bits() as usize).div_ceil(8) {
                        prop_assert!(byte < layout.value_bytes());
                        prop_assert!(seen.insert((byte, high)), "({row}, {k}) shares byte {byte}");
                    }
                }
            }
            let mut seen = std::collections::HashSet::new();
            for (row, group) in (0..layout.rows).flat_map(|row| (0..layout.k / GROUP).map(move |group| (row, group))) {
                for which in 0..layout.scheme.scales_per_group() {
                    let at = layout.scale_at(row, group) + 4 * which;
                    prop_assert!(at * 2 < layout.scale_bytes());
                    prop_assert!(seen.insert(at), "({row}, group {group}) shares scale {at}");
                }
            }
        }

        #[test]
        fn packing_preserves_values_and_pads_with_zeros(layout in integer_layouts(), seed in any::<u64>()) {
            let (low, span) = if layout.scheme.bits() == 8 { (-127, 255) } else { (-8, 16) };
            let values: Vec<i8> = (0..layout.rows * layout.k)
                .map(|i| (low + ((i as u64).wrapping_mul(seed | 1) >> 7).rem_euclid(span) as i64) as i8)
                .collect();
            let bytes = layout.pack_values(&values);
            let unpack = |(at, high): (usize, bool)| match (layout.scheme.bits(), high) {
                (8, _) => bytes[at] as i8,
                (_, false) => (bytes[at] << 4) as i8 >> 4,
                (_, true) => bytes[at] as i8 >> 4,
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
    fn addresses_match_the_documented_formula() {
        // 16 rows × 32 bytes per tile, strip-major; exact for K a multiple of 128.
        let layout = Layout::new(Scheme::Int8, 48, 256).unwrap();
        for (row, k) in [(0, 0), (1, 0), (0, 32), (17, 33), (47, 255)] {
            let expected = ((row / 16) * (256 / 32) + k / 32) * 512 + (row % 16) * 32 + k % 32;
            assert_eq!(layout.value_at(row, k), (expected, false));
        }
        let layout = Layout::new(Scheme::Int4, 16, 128).unwrap();
        assert_eq!(layout.value_at(0, 32), (0, true));
        assert_eq!(layout.value_at(0, 64), (512, false));
        assert_eq!(Layout::new(Scheme::Int8, 1, 48), None);
        assert!(Layout::new(Scheme::Bf16, 1, 48).is_some() && Layout::new(Scheme::F32, 1, 3).is_some());
        assert_eq!(Layout::new(Scheme::F32, u32::MAX as usize, 4_294_967_264), None);
        assert_eq!(Layout::new(Scheme::Int8, usize::MAX, 32), None);
    }
}
