//! Overlays for matrix products, known by hash.

use sha2::{Digest, Sha256};

use crate::array::{CoreLibrary, GemmKernel, PingPong};
use crate::tile::TilePlace;

/// A DMA channel of a shim tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShimPort {
    /// Column of the tile.
    pub column: u8,
    /// The channel.
    pub channel: usize,
}

impl ShimPort {
    pub(super) fn place(self) -> TilePlace {
        TilePlace { column: self.column, row: 0 }
    }
}

pub(super) const fn port(column: u8, channel: usize) -> ShimPort {
    ShimPort { column, channel }
}

/// Type of the elements of A and B.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputType {
    /// Eight bits with a sign.
    Int8,
    /// Sixteen bits with a sign.
    Int16,
}

impl InputType {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::Int8 => 1,
            Self::Int16 => 2,
        }
    }
}

/// Type of the elements of C, and how they are made from exact sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputType {
    /// The sum, in 32 bits.
    Int32,
    /// The sum divided by 2^shift, rounded to the nearest with ties to even, saturated to −128 to 127.
    Int8 {
        /// Bits that are shifted out, up to 31.
        shift: u8,
    },
}

impl OutputType {
    /// Bytes of an element of C.
    pub fn bytes(self) -> usize {
        match self {
            Self::Int32 => 4,
            Self::Int8 { .. } => 1,
        }
    }

    /// The element of C for a sum.
    pub fn requantize(self, sum: i32) -> i32 {
        let Self::Int8 { shift } = self else { return sum };
        let (floor, rest) = (i64::from(sum) >> shift, i64::from(sum) & ((1 << shift) - 1));
        let half = (1i64 << shift) / 2;
        let up = shift > 0 && (rest > half || rest == half && floor & 1 == 1);
        (floor + i64::from(up)).clamp(-128, 127) as i32
    }
}

/// An overlay that multiplies matrices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlay {
    /// Name of the published file, without its extension.
    pub name: &'static str,
    /// SHA-256 of the published xclbin.
    pub file: [u8; 32],
    /// SHA-256 of the cores' program.
    pub program: [u8; 32],
    /// Width in columns.
    pub columns: u8,
    /// Type of A and B.
    pub input_type: InputType,
    /// Type of C.
    pub output_type: OutputType,
    /// What a core computes.
    pub kernel: GemmKernel,
    /// MM2S channels of A: one per row of tiles of a block.
    pub a: &'static [ShimPort],
    /// MM2S channels of B: one per column of tiles of a block.
    pub b: &'static [ShimPort],
    /// S2MM channels of C: one per column of tiles of a block.
    pub c: &'static [ShimPort],
}

impl Overlay {
    /// One core, 256³: `iron/builds/gemm-256-1col.xclbin` of tibrezus/xdna-npu-toolkit, commit de0ea1a.
    pub const GEMM_256_1COL: Self = Self {
        name: "gemm-256-1col",
        file: digest("29fa6a26b1cfb298411d5ac2fc7b716d089b9a4d8599cc0031a4aa7de9ab7102"),
        program: digest("34c702e880d6fece943f716547902674a38bf550afa67bf29ffa9e082e1d6a6d"),
        columns: 4,
        input_type: InputType::Int16,
        output_type: OutputType::Int32,
        kernel: GemmKernel {
            m: 32,
            k: 32,
            n: 32,
            k_tiles: 8,
            a: PingPong { addresses: [0x3d00, 0x4500], empty: 0, full: 1 },
            b: PingPong { addresses: [0x2d00, 0x3500], empty: 2, full: 3 },
            c: PingPong { addresses: [0xd00, 0x1d00], empty: 4, full: 5 },
        },
        a: &[port(0, 0)],
        b: &[port(0, 1)],
        c: &[port(0, 0)],
    };

    /// Sixteen cores, 512³: `iron/builds/gemm-512-4col.xclbin` of the same commit.
    pub const GEMM_512_4COL: Self = Self {
        name: "gemm-512-4col",
        file: digest("95fa77b60a42e63ead0519a96c1121cb67a43a38b5969916af455cd3e3f032d8"),
        program: digest("b251704b79dc914df0d32ea3221c33b9be6bd5d8431224469a7a062e1543335c"),
        columns: 4,
        input_type: InputType::Int16,
        output_type: OutputType::Int32,
        kernel: GemmKernel {
            m: 64,
            k: 64,
            n: 32,
            k_tiles: 8,
            a: PingPong { addresses: [0x4d00, 0x6d00], empty: 0, full: 1 },
            b: PingPong { addresses: [0x8d00, 0x9d00], empty: 2, full: 3 },
            c: PingPong { addresses: [0xd00, 0x2d00], empty: 4, full: 5 },
        },
        a: &[port(0, 0), port(1, 0), port(2, 0), port(3, 0)],
        // The compiler placed the columns of B and C as its router liked.
        b: &[port(1, 1), port(0, 1), port(2, 1), port(3, 1)],
        c: &[port(1, 0), port(1, 1), port(0, 0), port(2, 0)],
    };

    /// The overlays that are known.
    pub const KNOWN: [&'static Self; 2] = [&Self::GEMM_256_1COL, &Self::GEMM_512_4COL];

    /// The overlay with this xclbin, by its hash.
    pub fn of(file: &[u8]) -> Option<&'static Self> {
        let hash: [u8; 32] = Sha256::digest(file).into();
        Self::KNOWN.into_iter().find(|overlay| overlay.file == hash)
    }

    /// Block size: rows, K, columns.
    pub fn block(&self) -> (usize, usize, usize) {
        let GemmKernel { m, k, n, k_tiles, .. } = self.kernel;
        (m * self.a.len(), k * k_tiles, n * self.b.len())
    }

    /// Its program, for the array model: known for int16, executed by its instructions for int8.
    pub fn library(&self) -> CoreLibrary {
        match self.input_type {
            InputType::Int16 => CoreLibrary::new().with(self.program, self.kernel),
            InputType::Int8 => CoreLibrary::interpreter(),
        }
    }
}

/// The bytes of a SHA-256 in hexadecimal digits.
pub(super) const fn digest(text: &str) -> [u8; 32] {
    let text = text.as_bytes();
    assert!(text.len() == 64);
    let mut bytes = [0; 32];
    let mut index = 0;
    while index < 32 {
        bytes[index] = nibble(text[2 * index]) << 4 | nibble(text[2 * index + 1]);
        index += 1;
    }
    bytes
}

const fn nibble(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => panic!("not a hexadecimal digit"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_rounded_to_even_and_saturate() {
        let of = |shift, sum| OutputType::Int8 { shift }.requantize(sum);
        assert_eq!([-6, -5, -2, 2, 5, 6, 7].map(|sum| of(2, sum)), [-2, -1, 0, 0, 1, 2, 2]);
        assert_eq!(
            [i32::MIN, -300, -128, 127, 128, i32::MAX].map(|sum| of(0, sum)),
            [-128, -128, -128, 127, 127, 127]
        );
        assert_eq!([of(31, i32::MIN), of(31, i32::MAX), of(24, i32::MIN)], [-1, 1, -128]);
        assert_eq!(OutputType::Int32.requantize(i32::MIN), i32::MIN);
    }
}
