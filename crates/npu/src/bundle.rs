//! Programs of the cores: bundles of up to six instructions, one per slot.
//!
//! A bundle has 2 to 16 bytes. Its lowest bits say how many; further fixed bits say which slots it has, in the table
//! below. Slots that it does not have do nothing. What the bits of a slot mean is in [`isa`](crate::isa).
//!
//! ```
//! use npu::bundle::{Bundle, Slot};
//!
//! let bundle = Bundle::new(&[(Slot::Alu, 0x1234), (Slot::Vector, 0x5678)])?;
//! assert_eq!(bundle.encode().len(), 8);
//! assert_eq!(Bundle::decode(&bundle.encode())?, bundle);
//! # Ok::<(), npu::Error>(())
//! ```

use std::fmt;
use std::sync::LazyLock;

use crate::error::{Error, Format, Result};

/// A slot of a bundle: the unit that executes an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Slot {
    /// Loads by unit A.
    LoadA,
    /// Loads by unit B.
    LoadB,
    /// Scalar arithmetic, jumps by registers, locks.
    Alu,
    /// Moves, permutations of vectors.
    Move,
    /// Stores.
    Store,
    /// Vector arithmetic.
    Vector,
    /// Jumps and moves with long constants, in place of [`Slot::Alu`] and [`Slot::Move`].
    Long,
}

impl Slot {
    const ALL: [Self; 7] =
        [Self::LoadA, Self::LoadB, Self::Alu, Self::Move, Self::Store, Self::Vector, Self::Long];

    /// Its name in the table, which is that of assemblers.
    pub fn name(self) -> &'static str {
        match self {
            Self::LoadA => "lda",
            Self::LoadB => "ldb",
            Self::Alu => "alu",
            Self::Move => "mv",
            Self::Store => "st",
            Self::Vector => "vec",
            Self::Long => "lng",
        }
    }

    /// Bits of its instructions.
    pub fn bits(self) -> u32 {
        match self {
            Self::LoadA | Self::Store => 21,
            Self::LoadB => 16,
            Self::Alu => 20,
            Self::Move => 22,
            Self::Vector => 26,
            Self::Long => 42,
        }
    }
}

/// The formats: bytes, and fields from the highest bit to the lowest. `x` is a bit without a meaning; it is zero.
const FORMATS: [(usize, &str); 78] = [
    (16, "ldb lda st lng 0 vec 0"),
    (16, "ldb lda st alu mv 1 vec 0"),
    (14, "st ldb lng 0 vec 01 1111"),
    (14, "st ldb alu mv 1 vec 01 1111"),
    (14, "lda st xxxxxxxxxxxxxxx1 mv vec 10 1111"),
    (14, "lda ldb alu 0x st vec 10 1111"),
    (14, "lda ldb lng 0 st xxx0111 1111"),
    (14, "lda ldb alu mv 1 st xxx0111 1111"),
    (14, "lda ldb lng 0 vec 00 1111"),
    (14, "lda ldb alu mv 1 vec 00 1111"),
    (12, "st lng 0 vec 01 0111"),
    (12, "st alu mv 1 vec 01 0111"),
    (12, "st ldb mv x0110 vec 10 0111"),
    (12, "st ldb xxxxx alu 01 vec 10 0111"),
    (12, "st ldb xxxxx lng 0 xx00011 0111"),
    (12, "st ldb xxxxx alu mv 1 xx00011 0111"),
    (12, "ldb x lng 0 1010 vec 10 0111"),
    (12, "ldb x alu mv 1 1010 vec 10 0111"),
    (12, "lda st alu 00 vec 10 0111"),
    (12, "lda st lng 0 xx00111 0111"),
    (12, "lda st alu mv 1 xx00111 0111"),
    (12, "lda ldb st xx1110 vec 10 0111"),
    (12, "lda ldb st xxxx mv xxx01111 0111"),
    (12, "lda ldb xxxxx alu st xxxx10011 0111"),
    (12, "lda ldb mv x0010 vec 10 0111"),
    (12, "lda ldb xxxxx alu 11 vec 10 0111"),
    (12, "lda ldb xxxxx lng 0 xx01011 0111"),
    (12, "lda ldb xxxxx alu mv 1 xx01011 0111"),
    (12, "lda lng 0 vec 00 0111"),
    (12, "lda alu mv 1 vec 00 0111"),
    (10, "st mv xx100 vec 00 1011"),
    (10, "st xxxxx alu 01 vec 10 1011"),
    (10, "st xxxxx lng 0 xx10011 1011"),
    (10, "st xxxxx alu mv 1 xx10011 1011"),
    (10, "st ldb xxxxx xx0001 vec 00 1011"),
    (10, "st ldb xxxxxxxxx mv 01101011 1011"),
    (10, "xxxxx ldb mv xx110 vec 00 1011"),
    (10, "xxxxx ldb xxxxx alu 10 vec 10 1011"),
    (10, "xxxxx ldb xxxxx lng 0 xx00011 1011"),
    (10, "xxxxx ldb xxxxx alu mv 1 xx00011 1011"),
    (10, "lda st xx1001 vec 00 1011"),
    (10, "lda st xxxx mv x0101011 1011"),
    (10, "lda st xxxxxxxxxxx alu 111 1011"),
    (10, "lda mv xx010 vec 00 1011"),
    (10, "lda ldb xxxxxx11101 vec 00 1011"),
    (10, "lda ldb xxxxxxxxx mv 11101011 1011"),
    (10, "lda xxxxx alu 00 vec 10 1011"),
    (10, "lda xxxxx lng 0 x001011 1011"),
    (10, "lda xxxxx alu mv 1 x001011 1011"),
    (10, "xxxxx lng 0 vec 01 1011"),
    (10, "xxxxx alu mv 1 vec 01 1011"),
    (8, "st xxxxxxxx010 vec 10 0011"),
    (8, "st xxxxxxxxx mv xxxxx000 0011"),
    (8, "xxxxx mv xx110 vec 10 0011"),
    (8, "xxxxx ldb xxxxxxxx000 vec 10 0011"),
    (8, "st ldb alu 101 0011"),
    (8, "lda xxxxxxxx100 vec 10 0011"),
    (8, "lda ldb st 11 0011"),
    (8, "lda ldb alu 001 0011"),
    (8, "xxxxxxxxxx alu 01 vec 10 0011"),
    (8, "xxxxxxxxxx lng 0 xxxx100 0011"),
    (8, "xxxxxxxxxx alu mv 1 xxxx100 0011"),
    (6, "st alu 0111 101"),
    (6, "lng 010 101"),
    (6, "xxx01 ldb st x00 101"),
    (6, "xxx00 ldb mv 00 101"),
    (6, "xxx10 ldb alu xx00 101"),
    (6, "lda st 110 101"),
    (6, "lda mv 01 101"),
    (6, "lda ldb xxxx1111 101"),
    (6, "lda alu x011 101"),
    (4, "vec x0 1001"),
    (4, "x0001 st x1 1001"),
    (4, "x0011 mv 1 1001"),
    (4, "xx111 ldb xxxxxx1 1001"),
    (4, "x0000 lda x1 1001"),
    (4, "x0010 alu xx1 1001"),
    (2, "xxxxxxxxxxxx 0001"),
];

/// A format, prepared for comparison.
struct Layout {
    bytes: usize,
    /// Bits that are fixed, and their values. Bits without a meaning are fixed to zero.
    mask: u128,
    value: u128,
    /// Slots with their lowest bits.
    slots: Vec<(Slot, u32)>,
}

impl Layout {
    fn new(bytes: usize, fields: &str) -> Self {
        let mut layout = Self { bytes, mask: 0, value: 0, slots: Vec::new() };
        let mut at = 8 * bytes as u32;
        for field in fields.split(' ') {
            if let Some(slot) = Slot::ALL.into_iter().find(|slot| slot.name() == field) {
                at -= slot.bits();
                layout.slots.push((slot, at));
                continue;
            }
            for digit in field.bytes() {
                at -= 1;
                layout.mask |= 1 << at;
                layout.value |= u128::from(digit == b'1') << at;
            }
        }
        layout.slots.sort_unstable();
        layout
    }

    /// Whether it has these slots, which are sorted.
    fn holds(&self, slots: &[(Slot, u64)]) -> bool {
        self.slots.iter().map(|(slot, _)| slot).eq(slots.iter().map(|(slot, _)| slot))
    }
}

static LAYOUTS: LazyLock<Vec<Layout>> =
    LazyLock::new(|| FORMATS.iter().map(|(bytes, fields)| Layout::new(*bytes, fields)).collect());

/// A bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle {
    /// Its place in the table.
    format: usize,
    slots: Vec<(Slot, u64)>,
}

impl Bundle {
    /// The shortest bundle with exactly these instructions.
    pub fn new(instructions: &[(Slot, u64)]) -> Result<Self> {
        let mut slots = instructions.to_vec();
        slots.sort_unstable();
        let refuse = |reason: String| Error::malformed(Format::Program, 0, reason);
        if let Some((slot, _)) = slots.iter().find(|(slot, bits)| bits >> slot.bits() != 0) {
            let reason = format!("an instruction of slot {} has more than {} bits", slot.name(), slot.bits());
            return Err(refuse(reason));
        }
        let fitting = LAYOUTS.iter().enumerate().filter(|(_, layout)| layout.holds(&slots));
        let shortest = fitting.min_by_key(|(_, layout)| layout.bytes);
        let (format, _) = shortest.ok_or_else(|| refuse("no bundle has exactly these slots".to_owned()))?;
        Ok(Self { format, slots })
    }

    /// Reads the bundle at the beginning of `program`.
    pub fn decode(program: &[u8]) -> Result<Self> {
        let refuse = |reason: &str| Error::malformed(Format::Program, 0, reason);
        let first = program.first().ok_or_else(|| refuse("it has no bundle"))?;
        let bytes = length(*first);
        let program = program.get(..bytes).ok_or_else(|| refuse("it ends within a bundle"))?;
        let mut word = [0; 16];
        word[..bytes].copy_from_slice(program);
        let word = u128::from_le_bytes(word);
        let fits = |layout: &Layout| layout.bytes == bytes && word & layout.mask == layout.value;
        let format =
            LAYOUTS.iter().position(fits).ok_or_else(|| refuse("its fixed bits are those of no format"))?;
        let bits = |slot: Slot, at: u32| (word >> at) as u64 & ((1 << slot.bits()) - 1);
        let slots = LAYOUTS[format].slots.iter().map(|&(slot, at)| (slot, bits(slot, at))).collect();
        Ok(Self { format, slots })
    }

    /// Reads all bundles of a program.
    pub fn decode_all(program: &[u8]) -> Result<Vec<Self>> {
        let (mut bundles, mut at) = (Vec::new(), 0);
        while at < program.len() {
            let bundle = Self::decode(&program[at..]).map_err(|error| error.moved(at))?;
            at += bundle.bytes();
            bundles.push(bundle);
        }
        Ok(bundles)
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let layout = &LAYOUTS[self.format];
        let places = layout.slots.iter().map(|(_, at)| at);
        let fields = self.slots.iter().zip(places).map(|((_, bits), at)| u128::from(*bits) << at);
        let word = fields.fold(layout.value, |word, field| word | field);
        word.to_le_bytes()[..layout.bytes].to_vec()
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        LAYOUTS[self.format].bytes
    }

    /// Its instructions, in the order of the slots.
    pub fn instructions(&self) -> &[(Slot, u64)] {
        &self.slots
    }
}

/// Bytes of a bundle, by the lowest bits of its first.
fn length(first: u8) -> usize {
    match first & 0xf {
        0b0001 => 2,
        0b0011 => 8,
        0b0111 => 12,
        0b1001 => 4,
        0b1011 => 10,
        0b1111 => 14,
        0b0101 | 0b1101 => 6,
        _ => 16,
    }
}

impl fmt::Display for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.slots.is_empty() {
            return f.write_str("nop");
        }
        for (index, (slot, bits)) in self.slots.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{} {bits:#x}", slot.name())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_is_complete_and_no_two_can_be_confused() {
        for (index, layout) in LAYOUTS.iter().enumerate() {
            let fields: u32 = layout.slots.iter().map(|(slot, _)| slot.bits()).sum();
            let text = FORMATS[index].1;
            assert_eq!(fields + layout.mask.count_ones(), 8 * layout.bytes as u32, "{text}");
            assert_eq!(length(layout.value as u8), layout.bytes, "{text}");
            for (other, another) in LAYOUTS[..index].iter().zip(FORMATS) {
                let differs = (other.value ^ layout.value) & other.mask & layout.mask != 0;
                assert!(differs || other.bytes != layout.bytes, "{text} and {}", another.1);
            }
        }
    }

    #[test]
    fn every_format_is_the_same_after_encoding_and_decoding() {
        for (format, layout) in LAYOUTS.iter().enumerate() {
            for pattern in [0, u64::MAX, 0x0123_4567_89ab_cdef, 0xaaaa_aaaa_aaaa_aaaa] {
                let bits = |slot: Slot| pattern & ((1 << slot.bits()) - 1);
                let slots: Vec<(Slot, u64)> =
                    layout.slots.iter().map(|(slot, _)| (*slot, bits(*slot))).collect();
                let bundle = Bundle { format, slots };
                assert_eq!(Bundle::decode(&bundle.encode()).expect("the same"), bundle);
                let shortest = Bundle::new(bundle.instructions()).expect("a bundle");
                assert!(shortest.bytes() <= bundle.bytes() && shortest.slots == bundle.slots);
            }
        }
    }

    #[test]
    fn what_is_no_bundle_is_refused() {
        assert_eq!(Bundle::new(&[]).expect("a nop").encode(), [1, 0]);
        assert!(Bundle::new(&[(Slot::Alu, 1 << 20)]).is_err(), "too many bits");
        assert!(Bundle::new(&[(Slot::Alu, 0), (Slot::Long, 0)]).is_err(), "the same unit");
        let error = Bundle::decode_all(&[1, 0, 1]).expect_err("cut").to_string();
        assert!(error.contains("core program") && error.contains("byte 0x2"), "{error}");
        assert!(Bundle::decode(&[0x11, 0]).is_err(), "a bit without a meaning is set");
    }
}
