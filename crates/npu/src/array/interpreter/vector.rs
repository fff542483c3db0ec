//! Wide registers: products, permutations, and conversions between accumulators and vectors.

/// Which instructions see a result one cycle early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bypass {
    None,
    /// Moves and permutations, for each other.
    Move,
    /// Products, for each other's accumulators.
    Product,
}

/// Up to four parts of 256 bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lanes {
    parts: [[u32; 8]; 4],
    count: usize,
}

impl Lanes {
    pub(super) fn zero(count: usize) -> Self {
        Self { parts: [[0; 8]; 4], count }
    }

    pub(super) fn from_parts(parts: &[[u32; 8]]) -> Self {
        let mut lanes = Self::zero(parts.len());
        lanes.parts[..parts.len()].copy_from_slice(parts);
        lanes
    }

    pub(super) fn from_words(words: &[u32]) -> Self {
        let mut lanes = Self::zero(words.len() / 8);
        lanes
            .parts
            .iter_mut()
            .zip(words.chunks_exact(8))
            .for_each(|(part, words)| part.copy_from_slice(words));
        lanes
    }

    pub(super) fn parts(&self) -> &[[u32; 8]] {
        &self.parts[..self.count]
    }

    pub(super) fn words(&self) -> &[u32] {
        self.parts().as_flattened()
    }

    /// Replaces what `new`, which begins at part `from`, has of these, which begin at part `first`.
    pub(super) fn overlay(&mut self, first: usize, from: usize, new: &Self) {
        for (index, part) in new.parts().iter().enumerate() {
            if let Some(own) = (from + index).checked_sub(first).filter(|own| *own < self.count) {
                self.parts[own] = *part;
            }
        }
    }

    fn bytes(&self) -> Vec<u8> {
        self.words().iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        Self::from_words(&crate::bytes::words_of(bytes))
    }

    /// Lanes of 64 bits.
    fn wide(&self) -> impl Iterator<Item = i64> {
        self.words().chunks_exact(2).map(|pair| (u64::from(pair[1]) << 32 | u64::from(pair[0])) as i64)
    }

    /// Adds values to the lanes, which wrap around.
    fn add(&mut self, values: &[i64; 32], lane: u32) {
        let words = self.parts.as_flattened_mut();
        if lane == 64 {
            for (pair, value) in words.chunks_exact_mut(2).zip(values) {
                let old = u64::from(pair[1]) << 32 | u64::from(pair[0]);
                let new = old.wrapping_add(*value as u64);
                (pair[0], pair[1]) = (new as u32, (new >> 32) as u32);
            }
        } else {
            words.iter_mut().zip(values).for_each(|(word, value)| *word = word.wrapping_add(*value as u32));
        }
    }

    fn from_wide(values: &[i64]) -> Self {
        let words: Vec<u32> = values.iter().flat_map(|&value| [value as u32, (value >> 32) as u32]).collect();
        Self::from_words(&words)
    }

    /// Copies of the low `bits` of a value, in a vector register.
    pub(super) fn broadcast(value: u32, bits: u32) -> Self {
        let word = match bits {
            8 => (value & 0xff) * 0x0101_0101,
            16 => (value & 0xffff) * 0x0001_0001,
            _ => value,
        };
        Self::from_words(&[word; 16])
    }
}

/// How the multiplier works, from the bits of its configuration.
#[derive(Debug, Clone, Copy)]
struct Geometry {
    /// Bits of an element of both factors.
    bits: u32,
    rows: usize,
    inner: usize,
    columns: usize,
    /// Bits of a lane of the accumulator.
    lane: u32,
}

/// Of the multiplier's many modes, those of whole products of int8 and int16: kind of lanes in the lowest two bits,
/// widths in the next two, then the shape.
const GEOMETRIES: [(u32, Geometry); 3] = [
    (0x04, Geometry { bits: 8, rows: 4, inner: 8, columns: 8, lane: 32 }),
    (0x0c, Geometry { bits: 16, rows: 4, inner: 2, columns: 8, lane: 32 }),
    (0x1d, Geometry { bits: 16, rows: 4, inner: 4, columns: 4, lane: 64 }),
];

/// A product of two small matrices, not yet added to an accumulator.
#[derive(Debug, Clone)]
pub(super) struct Product {
    /// By rows; those that the mode does not have stay zero.
    sums: [i64; 32],
    lane: u32,
    /// Whether the accumulator counts as zero.
    zero: bool,
}

impl Product {
    /// The product of `a` and `b`, in the mode that `configuration` says: bit 0 clears the accumulator, bits 1 to 7
    /// are widths and shape, bits 8 and 9 say whether B and A have signs.
    pub(super) fn new(configuration: u32, a: &Lanes, b: &Lanes) -> Result<Self, String> {
        let mode = configuration >> 1 & 0x7f;
        let known = GEOMETRIES.iter().find(|(known, _)| *known == mode && configuration >> 10 == 0);
        let Some((_, geometry)) = known else {
            return Err(format!("mode {configuration:#x} of the multiplier is not modelled"));
        };
        let Geometry { bits, rows, inner, columns, lane } = *geometry;
        let a = elements(a, bits, configuration >> 9 & 1 != 0);
        let b = elements(b, bits, configuration >> 8 & 1 != 0);
        let mut sums = [0; 32];
        let rows = a.chunks_exact(inner).zip(sums.chunks_exact_mut(columns)).take(rows);
        for (row_a, row_c) in rows {
            for (&a, row_b) in row_a.iter().zip(b.chunks_exact(columns)) {
                for (sum, &b) in row_c.iter_mut().zip(row_b) {
                    *sum += i64::from(a) * i64::from(b);
                }
            }
        }
        Ok(Self { sums, lane, zero: configuration & 1 != 0 })
    }

    /// Whether the accumulator counts as zero.
    pub(super) fn clears(&self) -> bool {
        self.zero
    }

    /// The sum with an accumulator. Lanes wrap around.
    pub(super) fn add(&self, accumulator: &Lanes) -> Lanes {
        let mut result = if self.zero { Lanes::zero(4) } else { accumulator.clone() };
        result.add(&self.sums, self.lane);
        result
    }

    /// The sum of two accumulators with lanes of this product's width.
    pub(super) fn add_lanes(&self, a: &Lanes, b: &Lanes) -> Lanes {
        let mut values = [0; 32];
        if self.lane == 64 {
            values.iter_mut().zip(b.wide()).for_each(|(to, value)| *to = value);
        } else {
            values.iter_mut().zip(b.words()).for_each(|(to, &word)| *to = i64::from(word));
        }
        let mut result = a.clone();
        result.add(&values, self.lane);
        result
    }
}

/// Elements of 8 or 16 bits of up to a vector register.
fn elements(lanes: &Lanes, bits: u32, signed: bool) -> [i32; 64] {
    let mut elements = [0; 64];
    let per_word = 32 / bits;
    for (group, &word) in elements.chunks_exact_mut(per_word as usize).zip(lanes.words()) {
        for (element, index) in group.iter_mut().zip(0..) {
            let value = word >> (index * bits);
            *element = match (bits, signed) {
                (8, true) => i32::from(value as u8 as i8),
                (8, false) => i32::from(value as u8),
                (_, true) => i32::from(value as u16 as i16),
                (_, false) => i32::from(value as u16),
            };
        }
    }
    elements
}

/// Elements with signs of `from` bits as lanes of twice that, shifted to the left.
pub(super) fn widen(words: &[u32], from: u32, shift: u32) -> Result<Lanes, String> {
    let values: Vec<i64> = match from {
        16 => elements(&Lanes::from_words(words), 16, true)[..16].iter().map(|&value| value.into()).collect(),
        _ => words.iter().map(|&word| i64::from(word as i32)).collect(),
    };
    let lane = 2 * from;
    let mut shifted = Vec::with_capacity(values.len());
    for value in values {
        let wide = i128::from(value).checked_shl(shift).unwrap_or(0);
        let fits = shift < 64 && wide >> (lane - 1) == wide >> 127;
        if !fits {
            return Err(format!("{value} << {shift} does not fit into {lane} bits, which is not modelled"));
        }
        shifted.push(wide as i64);
    }
    Ok(match lane {
        64 => Lanes::from_wide(&shifted),
        _ => Lanes::from_words(&shifted.iter().map(|&value| value as u32).collect::<Vec<u32>>()),
    })
}

/// Lanes of `from` bits as elements of `to` bits with signs: shifted to the right, rounded, saturated.
pub(super) fn narrow(
    lanes: &Lanes,
    (from, to): (u32, u32),
    shift: u32,
    rounding: u32,
    saturation: u32,
) -> Result<[u32; 8], String> {
    if shift >= from {
        return Err(format!("a shift by {shift} is not modelled"));
    }
    let values: Vec<i64> = match from {
        64 => lanes.wide().collect(),
        _ => lanes.words().iter().map(|&word| i64::from(word as i32)).collect(),
    };
    let mut bytes = Vec::with_capacity(32);
    for value in values {
        let floor = value >> shift;
        let rest = i128::from(value) - (i128::from(floor) << shift);
        let half = (1i128 << shift) / 2;
        let up = match rounding {
            0 => false,
            // To the nearest; halves to the even one.
            12 => shift > 0 && (rest > half || rest == half && floor & 1 != 0),
            _ => return Err(format!("crRnd = {rounding} is not modelled")),
        };
        let rounded = i128::from(floor) + i128::from(up);
        let limit = 1i128 << (to - 1);
        let result = match saturation {
            0 => rounded,
            1 => rounded.clamp(-limit, limit - 1),
            3 => rounded.clamp(1 - limit, limit - 1),
            _ => return Err(format!("crSat = {saturation} is not modelled")),
        };
        bytes.extend_from_slice(&(result as i64).to_le_bytes()[..to as usize / 8]);
    }
    let mut words = [0; 8];
    words.iter_mut().zip(crate::bytes::words_of(&bytes)).for_each(|(to, word)| *to = word);
    Ok(words)
}

/// Transposes the elements of two vector registers, or of the first.
pub(super) fn shuffle(a: &Lanes, b: &Lanes, mode: u32) -> Result<Lanes, String> {
    // Bytes of an element, rows and columns; from these, whether the upper half of both registers is the result.
    let halves: Option<(usize, usize, usize)> = match mode / 2 {
        0 => Some((1, 64, 2)),
        1 => Some((2, 32, 2)),
        2 => Some((4, 16, 2)),
        3 => Some((8, 8, 2)),
        4 => Some((16, 4, 2)),
        5 => Some((32, 2, 2)),
        6 => Some((16, 2, 4)),
        7 => Some((8, 2, 8)),
        8 => Some((4, 2, 16)),
        9 => Some((2, 2, 32)),
        10 => Some((1, 2, 64)),
        _ => None,
    };
    let Some((size, rows, columns)) = halves else {
        return Err(format!("mode {mode} of shuffles is not modelled"));
    };
    let source = [a.bytes(), b.bytes()].concat();
    let mut target = vec![0; source.len()];
    for row in 0..rows {
        for column in 0..columns {
            let (from, to) = ((row * columns + column) * size, (column * rows + row) * size);
            target[to..to + size].copy_from_slice(&source[from..from + size]);
        }
    }
    let half = if mode.is_multiple_of(2) { &target[..64] } else { &target[64..] };
    Ok(Lanes::from_bytes(half))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_each_mode() {
        // A has a one per row, so that the product is made of rows of B.
        let cases = [(0x308, 8, 8usize), (0x318, 16, 2), (0x33a, 16, 4)];
        for (configuration, bits, inner) in cases {
            let element = |index: usize| (index as i64 % 97 - 40) as u32 & ((1u64 << bits) - 1) as u32;
            let pack = |value: &dyn Fn(usize) -> u32| {
                let per_word = 32 / bits as usize;
                let words: Vec<u32> = (0..16)
                    .map(|word| {
                        (0..per_word)
                            .fold(0, |sum, part| sum | value(word * per_word + part) << (part as u32 * bits))
                    })
                    .collect();
                Lanes::from_words(&words)
            };
            let a = pack(&|index| u32::from(index / inner == index % inner && index < 4 * inner));
            let b = pack(&element);
            let product = Product::new(configuration, &a, &b).expect("a mode");
            let columns = 256 / product.lane as usize;
            for (index, sum) in product.sums[..4 * columns].iter().enumerate() {
                let row = index / columns;
                let want = if row < inner { (row * columns + index % columns) as i64 % 97 - 40 } else { 0 };
                assert_eq!(*sum, want, "{configuration:#x} {index}");
            }
            let twice = product.add(&product.add(&Lanes::zero(4)));
            let once = Product::new(configuration | 1, &a, &b).expect("a mode").add(&twice);
            assert_eq!(once, product.add(&Lanes::zero(4)), "bit 0 clears the accumulator");
        }
        assert!(Product::new(0x33c, &Lanes::zero(2), &Lanes::zero(2)).is_err());
    }

    #[test]
    fn narrowing_rounds_and_saturates() {
        let lanes =
            Lanes::from_words(&[5, 6, 7, 10, (-5i32) as u32, (-6i32) as u32, 1000, (-1000i32) as u32]);
        let narrow = |rounding, saturation| {
            let words = narrow(&lanes, (32, 8), 2, rounding, saturation).expect("a mode");
            words[..2].iter().flat_map(|word| word.to_le_bytes()).map(|byte| byte as i8).collect::<Vec<i8>>()
        };
        assert_eq!(narrow(0, 1), [1, 1, 1, 2, -2, -2, 127, -128]);
        assert_eq!(narrow(12, 3), [1, 2, 2, 2, -1, -2, 127, -127]);
        assert_eq!(narrow(0, 0), [1, 1, 1, 2, -2, -2, 250u8 as i8, -250i32 as i8]);
        assert!(
            super::narrow(&lanes, (32, 8), 2, 7, 0).is_err()
                && super::narrow(&lanes, (32, 8), 32, 0, 0).is_err()
        );
    }

    #[test]
    fn widening_and_shuffling() {
        let words = [0x8000_0001, 2, 3, 4, 5, 6, 7, 0xffff_ffff];
        let wide = widen(&words, 32, 1).expect("it fits");
        assert_eq!(wide.wide().collect::<Vec<i64>>()[..2], [2 * i64::from(0x8000_0001u32 as i32), 4]);
        assert_eq!(widen(&words, 16, 0).expect("it fits").words()[..2], [1, (-32768i32) as u32]);
        assert!(widen(&words, 32, 40).is_err(), "too far");
        let [a, b] = [0u32, 16].map(|from| Lanes::from_words(&(from..from + 16).collect::<Vec<u32>>()));
        assert_eq!(shuffle(&a, &b, 4).expect("a mode").words()[..3], [0, 2, 4]);
        assert_eq!(shuffle(&a, &b, 17).expect("a mode").words()[..3], [8, 24, 9]);
        assert!(shuffle(&a, &b, 46).is_err());
    }
}
