//! Cores by their function: what a known program computes, with the buffers and locks that it uses.
//!
//! A known program is not interpreted. It is known by its SHA-256, and so are the addresses and locks that the
//! compiler put into it. They are not part of the configuration: a buffer descriptor that uses others does not fit.
//! Other programs can be interpreted, if the library says so.

use sha2::{Digest, Sha256};

use super::Fault;
use super::interpreter::Interpreter;
use super::state::Tile;
use crate::tile::{CORE_MEMORY, TilePlace};

/// Double buffer between a core and a DMA channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PingPong {
    /// Byte addresses in the tile's memory.
    pub addresses: [u32; 2],
    /// Lock with the number of buffers that may be written.
    pub empty: usize,
    /// Lock with the number of buffers that may be read.
    pub full: usize,
}

/// A program that multiplies matrices: for each tile of C, the sum over `k_tiles` products of tiles of A and B. Streams
/// are generated from these sizes, whatever the elements are.
///
/// Programs that a [`CoreLibrary`] knows multiply int16 with int32 sums, and store tiles as blocks of 4 × 4, block after
/// block by rows. Their sums wrap around; whether the hardware's do is not known, since public tests stay below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemmKernel {
    /// Rows of a tile of A and C.
    pub m: usize,
    /// Columns of a tile of A.
    pub k: usize,
    /// Columns of a tile of B and C.
    pub n: usize,
    /// Products per tile of C.
    pub k_tiles: usize,
    /// Buffers of A.
    pub a: PingPong,
    /// Buffers of B.
    pub b: PingPong,
    /// Buffers of C.
    pub c: PingPong,
}

/// Side of a block.
const BLOCK: usize = 4;

/// The programs that the model knows.
#[derive(Debug, Clone, Default)]
pub struct CoreLibrary {
    known: Vec<([u8; 32], GemmKernel)>,
    /// Whether others are interpreted.
    interprets: bool,
}

impl CoreLibrary {
    /// A library without programs: every core with a program is a fault.
    pub fn new() -> Self {
        Self::default()
    }

    /// A library without programs, whose cores execute the instructions of theirs.
    pub fn interpreter() -> Self {
        Self { known: Vec::new(), interprets: true }
    }

    /// Adds a program by the SHA-256 of its words. Tiles must be made of whole blocks.
    #[must_use]
    pub fn with(mut self, digest: [u8; 32], kernel: GemmKernel) -> Self {
        debug_assert!([kernel.m, kernel.k, kernel.n].iter().all(|size| size.is_multiple_of(BLOCK)));
        self.known.push((digest, kernel));
        self
    }

    /// The digest of a program.
    pub fn digest(program: &[u32]) -> [u8; 32] {
        let mut hasher = Sha256::new();
        for word in program {
            hasher.update(word.to_le_bytes());
        }
        hasher.finalize().into()
    }

    pub(super) fn core(&self, place: TilePlace, program: &[u32]) -> Result<Core, Fault> {
        let digest = Self::digest(program);
        match self.known.iter().find(|(known, _)| *known == digest) {
            Some((_, kernel)) => Ok(Core::Known(KnownCore::new(*kernel))),
            None if self.interprets => Ok(Core::Interpreted(Box::new(Interpreter::new(place, program)))),
            None => {
                let digest = digest.iter().map(|byte| format!("{byte:02x}")).collect();
                Err(Fault::UnknownProgram { place, digest })
            }
        }
    }
}

/// A core that runs a program.
#[derive(Debug, Clone)]
pub(super) enum Core {
    Known(KnownCore),
    Interpreted(Box<Interpreter>),
}

impl Core {
    /// Unfinished work, if there is any.
    pub(super) fn pending(&self, locks: &[i32]) -> Option<String> {
        match self {
            Self::Known(core) => core.pending(locks),
            Self::Interpreted(core) => core.pending(),
        }
    }

    /// The lock that it waits for, if its program is interpreted. Waiting is how such a core rests.
    pub(super) fn waits(&self) -> Option<String> {
        match self {
            Self::Known(_) => None,
            Self::Interpreted(core) => core.waits(),
        }
    }

    /// Does the next piece of work if its locks allow it.
    pub(super) fn advance(&mut self, tile: &mut Tile) -> Result<bool, Fault> {
        match self {
            Self::Known(core) => core.advance(tile.place, &mut tile.memory, &mut tile.locks),
            Self::Interpreted(core) => core.advance(tile),
        }
    }
}

/// A core that runs a known program.
#[derive(Debug, Clone)]
pub(super) struct KnownCore {
    kernel: GemmKernel,
    /// Sums of the tile of C that is being computed; `None` while its buffer is awaited.
    sums: Option<Vec<i32>>,
    /// Products in `sums`.
    products: usize,
    /// Buffers used so far, of each matrix; their parity is the buffer that is next.
    used: [usize; 3],
}

fn take(locks: &mut [i32], index: usize) -> bool {
    match locks.get_mut(index) {
        Some(value) if *value > 0 => {
            *value -= 1;
            true
        }
        _ => false,
    }
}

impl KnownCore {
    fn new(kernel: GemmKernel) -> Self {
        Self { kernel, sums: None, products: 0, used: [0; 3] }
    }

    fn pending(&self, locks: &[i32]) -> Option<String> {
        let GemmKernel { k_tiles, a, b, .. } = self.kernel;
        let [a, b] = [a, b].map(|buffer| locks.get(buffer.full).copied().unwrap_or(0));
        (self.products > 0 || a > 0 || b > 0).then(|| {
            format!("{} of {k_tiles} products, with {a} tiles of A and {b} of B to come", self.products)
        })
    }

    fn advance(&mut self, place: TilePlace, memory: &mut [u32], locks: &mut [i32]) -> Result<bool, Fault> {
        let GemmKernel { m, k, n, k_tiles, a, b, c } = self.kernel;
        let Some(sums) = &mut self.sums else {
            let taken = take(locks, c.empty);
            if taken {
                self.sums = Some(vec![0; m * n]);
                self.products = 0;
            }
            return Ok(taken);
        };
        // Both inputs or none: the program takes A first and then waits, which nothing else can observe.
        let ready = |index: usize| locks.get(index).is_some_and(|&value| value > 0);
        if !(ready(a.full) && ready(b.full)) {
            return Ok(false);
        }
        take(locks, a.full);
        take(locks, b.full);
        let tile_a = load(memory, a.addresses[self.used[0] % 2], m, k);
        let tile_b = load(memory, b.addresses[self.used[1] % 2], k, n);
        multiply(&tile_a, &tile_b, sums, k, n);
        give(place, locks, a.empty)?;
        give(place, locks, b.empty)?;
        self.used[0] += 1;
        self.used[1] += 1;
        self.products += 1;
        if self.products == k_tiles {
            store(memory, c.addresses[self.used[2] % 2], sums, n);
            give(place, locks, c.full)?;
            self.used[2] += 1;
            self.sums = None;
            self.products = 0;
        }
        Ok(true)
    }
}

fn give(place: TilePlace, locks: &mut [i32], index: usize) -> Result<(), Fault> {
    match locks.get_mut(index) {
        Some(value) if *value < 63 => {
            *value += 1;
            Ok(())
        }
        _ => Err(Fault::LockOverflow { place, index }),
    }
}

/// Index of an element in a tile of `columns` columns that is stored in blocks.
fn blocked(row: usize, column: usize, columns: usize) -> usize {
    let block = row / BLOCK * (columns / BLOCK) + column / BLOCK;
    block * BLOCK * BLOCK + row % BLOCK * BLOCK + column % BLOCK
}

/// An int16 tile by rows.
fn load(memory: &[u32], address: u32, rows: usize, columns: usize) -> Vec<i32> {
    let base = (address % CORE_MEMORY / 4) as usize;
    let mut tile = Vec::with_capacity(rows * columns);
    for row in 0..rows {
        for column in 0..columns {
            let element = blocked(row, column, columns);
            let word = memory.get(base + element / 2).copied().unwrap_or(0);
            tile.push(i32::from((word >> (16 * (element % 2))) as i16));
        }
    }
    tile
}

fn multiply(a: &[i32], b: &[i32], sums: &mut [i32], k: usize, n: usize) {
    for (row_a, row_c) in a.chunks_exact(k).zip(sums.chunks_exact_mut(n)) {
        for (&a, row_b) in row_a.iter().zip(b.chunks_exact(n)) {
            for (sum, &b) in row_c.iter_mut().zip(row_b) {
                *sum = sum.wrapping_add(a.wrapping_mul(b));
            }
        }
    }
}

fn store(memory: &mut [u32], address: u32, sums: &[i32], columns: usize) {
    let base = (address % CORE_MEMORY / 4) as usize;
    for (index, &sum) in sums.iter().enumerate() {
        let element = blocked(index / columns, index % columns, columns);
        if let Some(word) = memory.get_mut(base + element) {
            *word = sum as u32;
        }
    }
}
