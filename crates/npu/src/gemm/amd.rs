//! AMD's int8 overlay with a stream of AMD's own: C = A × B with exact int32 sums, on sixteen cores.
//!
//! The overlay is `mladf_gemm_4x4_a8w8acc32` of RyzenAI-SW, commit 2a3c4af. A published stream is for one shape; it
//! also has the control programs of the cores.
//!
//! | | |
//! |---|---|
//! | columns | five: cores and memory tiles of the first four, DMA of the last four, since the first one's shim tile has none |
//! | rows of cores | quarters of K; sums move down the cascade, and the lowest row adds over K |
//! | columns of cores | quarters of the columns of B and C |
//! | argument 0 | C, by rows |
//! | argument 1 | A, by rows |
//! | argument 2 | B, in the order in which the cores take it: see [`AmdGemm::pack_b`] |
//!
//! The layouts are those of AMD's public host code and of the stream's descriptors. On the array model, whose cores
//! execute AMD's programs, the result equals the CPU's bit by bit.

use sha2::{Digest, Sha256};

use super::overlay::digest;
use crate::array::CoreLibrary;
use crate::error::{Error, Result};
use crate::txn::Stream;

/// Rows and columns of cores.
const SIDE: usize = 4;
/// Rows and columns of a tile of B.
const TILE: (usize, usize) = (128, 64);
/// Tiles of B, one below the other, that a core gets at a time.
const TILES: usize = 4;
/// Columns of the product that the multiplier takes at a time.
const COLUMNS: usize = 8;
/// Rows of cores whose parts of B come by the same DMA channel.
const ROWS_PER_CHANNEL: usize = 2;

/// A product on AMD's overlay: the shape and the stream of a published file.
#[derive(Debug, Clone)]
pub struct AmdGemm {
    shape: (usize, usize, usize),
    stream: Stream,
}

impl AmdGemm {
    /// Name of the overlay's file, without its extension.
    pub const NAME: &'static str = "mladf_gemm_4x4_a8w8acc32";
    /// SHA-256 of the overlay's file.
    pub const FILE: [u8; 32] = digest("b01a231ca46357925638e0f08203bd5e2b7c4b26327e43bbd87bb980eb1b4b76");
    /// Name of the stream's file, without its extension.
    pub const STREAM_NAME: &'static str = "mladf_a8w8acc32_32_2048_2048";
    /// Width of the overlay in columns.
    pub const COLUMNS: u8 = 5;
    /// Places of A, B and C among the arguments of the command.
    pub const ARGUMENTS: [usize; 3] = [1, 2, 0];

    /// SHA-256 of the stream's file.
    pub const STREAM_FILE: [u8; 32] =
        digest("698b8402ae318bb443f62fe2a5d18c1b4ff41e814ec9d72080771fd44e92f800");

    const SHAPE: (usize, usize, usize) = (32, 2048, 2048);
    /// The published stream for 8 rows, `mladf_a8w8acc32_8_2048_2048`.
    const STREAM_OF_8_ROWS: [u8; 32] =
        digest("2bd8fbbf604c54a3cfa53bf898ccb7fe1f54f552e94f79b9268203386dd3a3d2");

    /// Whether a file is the overlay, by its hash.
    pub fn is_overlay(file: &[u8]) -> bool {
        Self::FILE == <[u8; 32]>::from(Sha256::digest(file))
    }

    /// The product of a published stream, by its hash.
    pub fn new(stream: &[u8]) -> Result<Self> {
        let hash: [u8; 32] = Sha256::digest(stream).into();
        let decoded = Stream::decode(stream)?;
        match hash {
            Self::STREAM_FILE => Ok(Self { shape: Self::SHAPE, stream: decoded }),
            Self::STREAM_OF_8_ROWS => Err(Error::WrongStream(
                "it is AMD's for 8 rows, which does not compute a product on this overlay, whose cores multiply 16 \
                 rows at a time; `indrik npu pull` fetches the one for 32 rows",
            )),
            _ => Err(Error::WrongStream(
                "it is not known by its SHA-256; `indrik npu pull` fetches the one for AMD's overlay",
            )),
        }
    }

    /// Rows of A, columns of A, columns of B.
    pub fn shape(&self) -> (usize, usize, usize) {
        self.shape
    }

    /// The stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Its cores' programs, for the array model: executed by their instructions.
    pub fn library() -> CoreLibrary {
        CoreLibrary::interpreter()
    }

    /// A, by rows.
    pub fn pack_a(&self, a: &[i8]) -> Result<Vec<u8>> {
        let (m, k, _) = self.shape;
        self.check("A", a.len(), m * k)?;
        Ok(a.iter().map(|value| value.to_le_bytes()[0]).collect())
    }

    /// B, `k` × `n` by rows, in the order in which the cores take it.
    ///
    /// From the outside in: columns of cores; pairs of rows of cores; tiles from left to right; groups of four tiles
    /// from top to bottom; the two rows of cores; the tiles of a group. In a tile, the rows of each eight columns
    /// follow each other.
    pub fn pack_b(&self, b: &[i8]) -> Result<Vec<u8>> {
        let (_, k, n) = self.shape;
        self.check("B", b.len(), k * n)?;
        let (height, width) = (k / SIDE, n / SIDE);
        let mut packed = Vec::with_capacity(b.len());
        for core_column in 0..SIDE {
            for pair in 0..SIDE / ROWS_PER_CHANNEL {
                for left in (core_column * width..(core_column + 1) * width).step_by(TILE.1) {
                    for group in (0..height).step_by(TILES * TILE.0) {
                        for core_row in 0..ROWS_PER_CHANNEL {
                            let top = (pair * ROWS_PER_CHANNEL + core_row) * height + group;
                            for tile in (top..top + TILES * TILE.0).step_by(TILE.0) {
                                pack_tile(b, n, (tile, left), &mut packed);
                            }
                        }
                    }
                }
            }
        }
        Ok(packed)
    }

    /// Bytes of C.
    pub fn c_bytes(&self) -> usize {
        4 * self.shape.0 * self.shape.2
    }

    /// C, by rows.
    pub fn unpack_c(&self, bytes: &[u8]) -> Result<Vec<i32>> {
        self.check("C", bytes.len(), self.c_bytes())?;
        let words = bytes.chunks_exact(4);
        Ok(words.map(|word| i32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect())
    }

    fn check(&self, name: &str, given: usize, expected: usize) -> Result<()> {
        if given == expected {
            return Ok(());
        }
        let (m, k, n) = self.shape;
        let reason = format!("{name} of this stream takes {expected} bytes, not {given}");
        Err(Error::Shape { m, k, n, reason })
    }
}

/// Appends the tile of B whose first element is in this row and column.
fn pack_tile(b: &[i8], n: usize, (top, left): (usize, usize), packed: &mut Vec<u8>) {
    for first in (left..left + TILE.1).step_by(COLUMNS) {
        for row in top..top + TILE.0 {
            let values = &b[row * n + first..row * n + first + COLUMNS];
            packed.extend(values.iter().map(|value| value.to_le_bytes()[0]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Place of an element of B, digit by digit of its row and column.
    fn place(row: usize, column: usize, k: usize, n: usize) -> usize {
        let (rows, columns) = (k / 4, n / 4);
        // Row in a tile, tile in a group, group, and row of cores.
        let (in_tile, tile, group, core_row) = (row % 128, row / 128 % 4, row % rows / 512, row / rows);
        // Column in eight, eight in a tile, tile, and column of cores.
        let (eighth, eight, left, core_column) =
            (column % 8, column % 64 / 8, column % columns / 64, column / columns);
        let channel = 2 * core_column + core_row / 2;
        let tiles = (left * (rows / 512) + group) * 8 + core_row % 2 * 4 + tile;
        channel * (2 * rows * columns) + tiles * (128 * 64) + eight * (128 * 8) + in_tile * 8 + eighth
    }

    #[test]
    fn b_is_packed_as_its_formula_says() {
        // The largest K has groups, the smallest has one.
        for shape in [(32, 2048, 512), (32, 8192, 256)] {
            let gemm = AmdGemm { shape, stream: Stream::new(AmdGemm::COLUMNS, Vec::new()) };
            let (_, k, n) = shape;
            let value =
                |row: usize, column: usize| (row * 31 + row / 128 * 7 + column * 13 + column / 64) as i8;
            let b: Vec<i8> = (0..k).flat_map(|row| (0..n).map(move |column| value(row, column))).collect();
            let packed = gemm.pack_b(&b).expect("its size");
            assert_eq!(packed.len(), k * n);
            let mut used = vec![false; k * n];
            for row in 0..k {
                for column in 0..n {
                    let place = place(row, column, k, n);
                    assert!(!std::mem::replace(&mut used[place], true), "twice: {row}, {column}");
                    assert_eq!(packed[place] as i8, b[row * n + column], "{row}, {column}");
                }
            }
        }
    }

    #[test]
    fn matrices_of_another_size_and_other_streams_are_refused() {
        let gemm = AmdGemm { shape: AmdGemm::SHAPE, stream: Stream::new(AmdGemm::COLUMNS, Vec::new()) };
        let text = gemm.pack_a(&[0; 8 * 2048]).expect_err("another shape").to_string();
        assert!(text.contains("A of this stream takes 65536 bytes, not 16384"), "{text}");
        assert!(gemm.pack_b(&[0; 1]).is_err() && gemm.unpack_c(&[0; 1]).is_err());
        let other = Stream::new(AmdGemm::COLUMNS, Vec::new()).encode().expect("a stream");
        let text = AmdGemm::new(&other).expect_err("not known").to_string();
        assert!(text.contains("`indrik npu pull` fetches the one for AMD's"), "{text}");
        assert!(AmdGemm::new(&other[..other.len() - 1]).is_err());
        assert!(!AmdGemm::is_overlay(&other));
    }
}
