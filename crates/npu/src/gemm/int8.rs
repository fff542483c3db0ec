//! The project's own overlay: products of int8 with exact sums in int32.
//!
//! Everything in it is written by this crate: the cores' program by the [assembler](crate::isa), routes, locks and
//! buffer descriptors as register writes, and the file by the writer of xclbins. It has up to four columns and four
//! rows of cores. **It has never run on hardware**; it is right on the array model, whose cores execute its program.
//!
//! ```text
//!            column 0      column 1            A: one strip of rows per row of cores, from the shim tile of the
//! row 1      core ──A──▶   core                   column with the same number; along the row in both directions
//!             ▲ B           ▲ B                B: one strip of columns per column of cores, from its shim tile; up
//! row 0      core ──A──▶   core                C: one tile per core, down to the column's memory tile, which
//!           ▲B│C           ▲B│C                   sends the strip of the column to its shim tile
//!            memory        memory              Memory tiles cut A and B into the blocks that the multiplier takes
//!            shim          shim                   (4 × 8 and 8 × 8), and put the blocks of C in order
//! ```
//!
//! A core multiplies tiles of 64 × 128 and 128 × 32, eight rows at a time: eight accumulators of 4 × 8, eight products
//! and ten loads in eight cycles. With [`Int8::requantised`] it then rounds the tile of C to int8.

use sha2::{Digest, Sha256};

use super::overlay::{InputType, OutputType, Overlay, ShimPort, port};
use crate::array::switch::{Port, master_index, slave_index};
use crate::array::{CoreLibrary, GemmKernel, PingPong};
use crate::bytes::words_of;
use crate::error::Result;
use crate::isa;
use crate::tile::{Direction, FIRST_CORE_ROW, Register, TilePlace};
use crate::xclbin::{Cdo, CdoCommand, Partition, Pdi, Xclbin};

/// Tile sizes of a core, in elements: rows of A, columns of A, columns of B.
const M: usize = 64;
const K: usize = 128;
const N: usize = 32;
/// Tiles of A and B per tile of C.
const K_TILES: usize = 4;
/// Sides of the multiplier's blocks.
const BLOCK_M: usize = 4;
const BLOCK_K: usize = 8;
const BLOCK_N: usize = 8;
/// Where a core sees its own memory, and its first lock.
const OWN_MEMORY: u32 = 0x7_0000;
const OWN_LOCKS: usize = 48;
/// The multiplier's configuration: int8 with signs, 4 × 8 × 8, lanes of 32 bits; and the same, from zero.
const MULTIPLY: u32 = 0x308;
const MULTIPLY_FROM_ZERO: u32 = 0x309;

const KERNEL: GemmKernel = GemmKernel {
    m: M,
    k: K,
    n: N,
    k_tiles: K_TILES,
    a: PingPong { addresses: [0x0000, 0x2000], empty: 0, full: 1 },
    b: PingPong { addresses: [0x4000, 0x5000], empty: 2, full: 3 },
    c: PingPong { addresses: [0x8000, 0xa000], empty: 4, full: 5 },
};

/// The same with C in int8: two buffers of a quarter each, behind the sums of the tile that is being computed.
const REQUANTISED: GemmKernel =
    GemmKernel { c: PingPong { addresses: [0xa000, 0xa800], empty: 4, full: 5 }, ..KERNEL };
const SUMS: u32 = 0x8000;
/// Values of the control registers: rounding to the nearest with ties to even, and saturation.
const NEAREST_EVEN: u32 = 12;
const SATURATE: u32 = 1;

const A_PORTS: [ShimPort; 4] = [port(0, 0), port(1, 0), port(2, 0), port(3, 0)];
const B_PORTS: [ShimPort; 4] = [port(0, 1), port(1, 1), port(2, 1), port(3, 1)];
const C_PORTS: [ShimPort; 4] = A_PORTS;

/// The overlay for a number of columns and rows of cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Int8 {
    columns: u8,
    rows: u8,
    /// Bits by which sums are shifted; `None` for int32 sums.
    shift: Option<u8>,
}

impl Int8 {
    /// What the overlay is called.
    pub const NAME: &'static str = "int8";

    /// All sixteen cores.
    pub const WHOLE: Self = Self { columns: 4, rows: 4, shift: None };

    /// `rows` × `columns` cores, 1 to 4 of each; at least as many columns as rows, since each row of cores has its A
    /// from another column's shim tile.
    pub fn new(columns: u8, rows: u8) -> Option<Self> {
        ((1..=4).contains(&columns) && (1..=columns).contains(&rows)).then_some(Self {
            columns,
            rows,
            shift: None,
        })
    }

    /// The same with C in int8: sums divided by 2^shift, rounded and saturated by the cores ([`OutputType::Int8`]). K
    /// is at most 512 then. `None` for a shift of 32 or more.
    pub fn requantised(self, shift: u8) -> Option<Self> {
        (shift < 32).then_some(Self { shift: Some(shift), ..self })
    }

    fn output_type(self) -> OutputType {
        self.shift.map_or(OutputType::Int32, |shift| OutputType::Int8 { shift })
    }

    fn kernel(self) -> GemmKernel {
        if self.shift.is_some() { REQUANTISED } else { KERNEL }
    }

    /// What the generator of streams has to know.
    pub fn overlay(self) -> Result<Overlay> {
        let (columns, rows) = (usize::from(self.columns), usize::from(self.rows));
        Ok(Overlay {
            name: Self::NAME,
            file: Sha256::digest(self.xclbin()?).into(),
            program: CoreLibrary::digest(&program(self.shift)?),
            columns: self.columns,
            input_type: InputType::Int8,
            output_type: self.output_type(),
            kernel: self.kernel(),
            a: &A_PORTS[..rows],
            b: &B_PORTS[..columns],
            c: &C_PORTS[..columns],
        })
    }

    /// The overlay's file.
    pub fn xclbin(self) -> Result<Vec<u8>> {
        let partition = Partition::new(u16::from(self.columns), self.pdi()?);
        Xclbin::new(*b"indrik int8 gemm", &partition)?.encode()
    }

    /// The image that a context is created with.
    pub fn pdi(self) -> Result<Vec<u8>> {
        Pdi::new(self.cdo()?).encode()
    }

    /// The configuration.
    pub fn cdo(self) -> Result<Cdo> {
        let mut writer = Writer(vec![CdoCommand::Nop { payload: Vec::new() }]);
        let program = program(self.shift)?;
        for column in 0..self.columns {
            for row in 0..self.rows {
                self.start_core(&mut writer, core(column, row), &program);
            }
        }
        for column in 0..self.columns {
            self.buffers(&mut writer, column);
        }
        for column in 0..self.columns {
            self.routes(&mut writer, column);
        }
        for column in 0..self.columns {
            for row in 0..self.rows {
                writer.write(core(column, row), Register::CoreControl, 1);
            }
        }
        Ok(Cdo::new(writer.0))
    }

    /// Stops and resets a core and its DMA, and writes its program: in the order of the public overlays.
    fn start_core(self, writer: &mut Writer, place: TilePlace, program: &[u32]) {
        let channels = |reset| {
            [Direction::Mm2s, Direction::S2mm].into_iter().flat_map(move |direction| {
                (0..2).map(move |channel| (Register::ChannelControl { direction, channel }, reset))
            })
        };
        writer.mask_write(place, Register::CoreControl, 1, 0);
        channels(2).for_each(|(register, value)| writer.mask_write(place, register, 2, value));
        writer.block(place, Register::Program { offset: 0 }, program);
        channels(0).for_each(|(register, value)| writer.mask_write(place, register, 2, value));
        writer.mask_write(place, Register::CoreControl, 2, 2);
        writer.mask_write(place, Register::CoreControl, 2, 0);
        for index in 0..16 {
            writer.write(place, Register::Lock { index }, 0);
        }
        for buffers in [KERNEL.a, KERNEL.b, KERNEL.c] {
            writer.write(place, Register::Lock { index: buffers.empty }, 2);
        }
    }

    /// Buffer descriptors and their tasks of a column.
    fn buffers(self, writer: &mut Writer, column: u8) {
        let words = |rows: usize, columns: usize, bytes: usize| (rows * columns * bytes / 4) as u32;
        let (a, b, c) = (words(M, K, 1), words(K, N, 1), words(M, N, self.output_type().bytes()));
        let kernel = self.kernel();
        for row in 0..self.rows {
            let place = core(column, row);
            writer.core_buffers(place, 0, a, kernel.a, Direction::S2mm);
            writer.core_buffers(place, 2, b, kernel.b, Direction::S2mm);
            writer.core_buffers(place, 4, c, kernel.c, Direction::Mm2s);
            writer.start(place, Direction::S2mm, 0, 0);
            writer.start(place, Direction::S2mm, 1, 2);
            writer.start(place, Direction::Mm2s, 0, 4);
        }
        let place = memory(column);
        // The blocks of a tile: two words, the rows of a block, the blocks of a row of blocks, and so on.
        let blocks = |row: u32, rows: usize, blocks: usize| {
            [2 << 17, (rows as u32) << 17 | (row - 1), (blocks as u32) << 17 | 1, rows as u32 * row - 1]
        };
        let blocks_a = blocks(K as u32 / 4, BLOCK_M, K / BLOCK_K);
        let blocks_b = blocks(N as u32 / 4, BLOCK_K, N / BLOCK_N);
        // And back: the words of a row of each block of a row of blocks, for each of its rows.
        let width_c = words(1, BLOCK_N, self.output_type().bytes());
        let block_c = BLOCK_M as u32 * width_c;
        let row_c = (N / BLOCK_N) as u32;
        let rows_c = [
            width_c << 17,
            row_c << 17 | (block_c - 1),
            (BLOCK_M as u32) << 17 | (width_c - 1),
            row_c * block_c - 1,
        ];
        let linear = [0; 4];
        let base_c = 0x4000;
        if usize::from(column) < usize::from(self.rows) {
            writer.memory_pair(place, 0, a, 0, (0, 1), linear);
            writer.memory_pair(place, 2, a, 0, (1, 0), blocks_a);
            writer.start(place, Direction::S2mm, 0, 0);
            writer.start(place, Direction::Mm2s, 0, 2);
        }
        writer.memory_pair(place, 24, b, 0x2000, (2, 3), linear);
        writer.memory_pair(place, 26, b, 0x2000, (3, 2), blocks_b);
        writer.start(place, Direction::S2mm, 1, 24);
        writer.start(place, Direction::Mm2s, 1, 26);
        for index in [0, 2] {
            writer.write(place, Register::Lock { index }, 2);
        }
        let rows = u32::from(self.rows);
        for row in 0..rows {
            // Descriptors of even channels come before those of odd ones.
            let first = [4, 28, 6, 30][row as usize];
            let (empty, full) = (4 + 2 * row, 5 + 2 * row);
            let address = base_c + 2 * c * row;
            writer.memory_pair(place, first, c, address, (empty, full), linear);
            writer.start(place, Direction::S2mm, 2 + row as usize, first as u32);
            writer.write(place, Register::Lock { index: empty as usize }, 2);
            for turn in 0..2 {
                // One chain: the tiles of all rows, then their other buffers.
                let index = 8 + turn * rows + row;
                let next = 8 + (turn * rows + row + 1) % (2 * rows);
                let descriptor = memory_descriptor(c, address + turn * c, next, (full, empty), rows_c);
                writer.block(place, Register::Descriptor { index: index as usize, word: 0 }, &descriptor);
            }
        }
        writer.start(place, Direction::Mm2s, 2, 8);
    }

    /// The stream switches of a column.
    fn routes(self, writer: &mut Writer, column: u8) {
        let shim = TilePlace { column, row: 0 };
        let memory = memory(column);
        let (rows, has_a) = (usize::from(self.rows), column < self.rows);
        if has_a {
            writer.connect(shim, Port::South(3), Port::North(0));
            writer.connect(memory, Port::South(0), Port::Dma(0));
            writer.connect(memory, Port::Dma(0), Port::North(1));
        }
        writer.connect(shim, Port::South(7), Port::North(1));
        writer.connect(memory, Port::South(1), Port::Dma(1));
        writer.connect(memory, Port::Dma(1), Port::North(0));
        for row in 0..rows {
            writer.connect(memory, Port::North(row), Port::Dma(2 + row));
        }
        writer.connect(memory, Port::Dma(2), Port::South(0));
        writer.connect(shim, Port::North(0), Port::South(2));
        let (source, last) = (usize::from(column), usize::from(self.columns) - 1);
        for row in 0..rows {
            let place = core(column, row as u8);
            writer.connect(place, Port::South(0), Port::Dma(1));
            if row + 1 < rows {
                writer.connect(place, Port::South(0), Port::North(0));
            }
            // A comes from below in its own column, from the west right of it, and from the east left of it.
            let from = match source.cmp(&row) {
                std::cmp::Ordering::Equal => Port::South(1),
                std::cmp::Ordering::Greater => Port::West(0),
                std::cmp::Ordering::Less => Port::East(0),
            };
            writer.connect(place, from, Port::Dma(0));
            if source >= row && source < last {
                writer.connect(place, from, Port::East(0));
            }
            if source <= row && source > 0 {
                writer.connect(place, from, Port::West(0));
            }
            if has_a && row < source {
                writer.connect(place, Port::South(1), Port::North(1));
            }
            writer.connect(place, Port::Dma(0), Port::South(row));
            for above in row + 1..rows {
                writer.connect(place, Port::North(above), Port::South(above));
            }
        }
        // Completion tokens with controller id 15: arbiter 5, select 3, to South 0.
        writer.write(shim, Register::Master { port: 2 }, 0xc000_0045);
        writer.write(shim, Register::Slave { port: 0 }, 0xc000_0000);
        writer.write(shim, Register::Slot { port: 0, slot: 0 }, 0x0f1f_0135);
        if has_a {
            writer.mask_write(shim, Register::ShimMux, 0xc00, 0x400);
        }
        writer.mask_write(shim, Register::ShimMux, 0xc000, 0x4000);
        writer.mask_write(shim, Register::ShimDemux, 0x30, 0x10);
    }
}

fn core(column: u8, row: u8) -> TilePlace {
    TilePlace { column, row: FIRST_CORE_ROW as u8 + row }
}

fn memory(column: u8) -> TilePlace {
    TilePlace { column, row: 1 }
}

/// A descriptor of a memory tile. Addresses in words and locks are the tile's own, which come after its western
/// neighbour's.
fn memory_descriptor(words: u32, address: u32, next: u32, locks: (u32, u32), order: [u32; 4]) -> [u32; 8] {
    let (acquire, release) = locks;
    let locks = 1 << 31 | 1 << 24 | (64 + release) << 16 | 1 << 15 | 0x7f << 8 | (64 + acquire);
    let [d0, d1, d2, d3] = order;
    [words, next << 20 | 1 << 19 | 0x2_0000 | address, d0, d1, d2, d3, 0, locks]
}

/// Writes registers. Those that are written here exist in their tiles, which the tests show.
struct Writer(Vec<CdoCommand>);

impl Writer {
    fn address(place: TilePlace, register: Register) -> u32 {
        place.address(register.offset(place.kind()).unwrap_or(0))
    }

    fn write(&mut self, place: TilePlace, register: Register, value: u32) {
        self.0.push(CdoCommand::Write { address: Self::address(place, register), value });
    }

    fn mask_write(&mut self, place: TilePlace, register: Register, mask: u32, value: u32) {
        self.0.push(CdoCommand::MaskWrite { address: Self::address(place, register), mask, value });
    }

    fn block(&mut self, place: TilePlace, register: Register, data: &[u32]) {
        let address = u64::from(Self::address(place, register));
        self.0.push(CdoCommand::DmaWrite { address, data: data.to_vec() });
    }

    fn connect(&mut self, place: TilePlace, from: Port, to: Port) {
        let slave = slave_index(place.kind(), from).unwrap_or(0);
        let master = master_index(place.kind(), to).unwrap_or(0);
        self.write(place, Register::Slave { port: slave }, 1 << 31);
        self.write(place, Register::Master { port: master }, 1 << 31 | slave as u32);
    }

    fn start(&mut self, place: TilePlace, direction: Direction, channel: usize, descriptor: u32) {
        self.write(place, Register::TaskQueue { direction, channel }, descriptor);
        self.mask_write(place, Register::ChannelControl { direction, channel }, 0, 1);
    }

    /// A pair of a core's descriptors that take turns.
    fn core_buffers(
        &mut self,
        place: TilePlace,
        first: u32,
        words: u32,
        buffers: PingPong,
        direction: Direction,
    ) {
        let (acquire, release) = match direction {
            Direction::S2mm => (buffers.empty as u32, buffers.full as u32),
            Direction::Mm2s => (buffers.full as u32, buffers.empty as u32),
        };
        for (turn, address) in (0..).zip(buffers.addresses) {
            let next = first + 1 - turn;
            let locks = 0x7f << 5 | 1 << 12 | acquire | release << 13 | 1 << 18;
            let last = next << 27 | 1 << 26 | 1 << 25 | locks;
            let index = (first + turn) as usize;
            let words = [(address / 4) << 14 | words, 0, 0, 0, 0, last];
            self.block(place, Register::Descriptor { index, word: 0 }, &words);
        }
    }

    /// A pair of a memory tile's descriptors that take turns.
    fn memory_pair(
        &mut self,
        place: TilePlace,
        first: usize,
        words: u32,
        address: u32,
        locks: (u32, u32),
        order: [u32; 4],
    ) {
        for turn in 0..2 {
            let next = first as u32 + 1 - turn;
            let descriptor = memory_descriptor(words, address + turn * words, next, locks, order);
            let index = first + turn as usize;
            self.block(place, Register::Descriptor { index, word: 0 }, &descriptor);
        }
    }
}

/// The words of the cores' program, with C in int8 after this shift if there is one.
fn program(shift: Option<u8>) -> Result<Vec<u32>> {
    Ok(words_of(&isa::assemble(&source(shift))?))
}

/// A bundle of 16 bytes: what has no instruction has one that does nothing.
fn full(load_a: &str, load_b: &str, vector: &str) -> String {
    let or = |text: &str, nop: &str| if text.is_empty() { nop.to_owned() } else { text.to_owned() };
    let (a, b, v) = (or(load_a, "nopa"), or(load_b, "nopb"), or(vector, "nopv"));
    format!("{a}; {b}; nopx; nopm; nops; {v}\n")
}

/// The loads of the next step of K, in the first five of eight cycles: A by rows of blocks, B by blocks. Each pointer
/// moves once per cycle.
const LOADS: [(&str, &str); 8] = [
    ("vlda wl0, [p0], #32", "vldb wl2, [p2], #32"),
    ("vlda wl1, [p1], #32", "vldb wh2, [p2], #32"),
    ("vlda wh3, [p3], #64", "vldb wl3, [p2], #64"),
    ("vlda wh4, [p3], #64", "vldb wl4, [p2], #64"),
    ("vlda wh5, [p3], #128", "vldb wl5, [p2], #64"),
    ("", ""),
    ("", ""),
    ("", ""),
];

/// The products of a step of K: accumulator, A and B of each cycle. A load of the next step arrives seven cycles after
/// it was issued, so in its own cycle's last but one turn at the earliest: what is loaded in cycle c may be used up to
/// cycle c + 6, and anew from cycle c − 1 of the next step on.
const PRODUCTS: [(usize, usize, usize); 8] =
    [(0, 0, 2), (4, 1, 2), (1, 0, 3), (5, 1, 3), (2, 0, 4), (6, 1, 4), (3, 0, 5), (7, 1, 5)];

/// One step of K: eight cycles.
fn step(configuration: Option<&str>, loads: bool) -> String {
    let cycles = LOADS.iter().zip(PRODUCTS).map(|(&(load_a, load_b), (c, a, b))| {
        let product = configuration.map(|r| format!("vmac cm{c}, cm{c}, x{a}, x{b}, {r}"));
        let (load_a, load_b) = if loads { (load_a, load_b) } else { ("", "") };
        full(load_a, load_b, &product.unwrap_or_default())
    });
    cycles.collect()
}

/// The cores' program.
fn source(shift: Option<u8>) -> String {
    let GemmKernel { a, b, c, .. } = if shift.is_some() { REQUANTISED } else { KERNEL };
    let address = |buffers: PingPong| OWN_MEMORY + buffers.addresses[0];
    let turn = |buffers: PingPong| buffers.addresses[0] ^ buffers.addresses[1];
    let lock = |index: usize| OWN_LOCKS + index;
    let wait = |cycles: usize| "nop\n".repeat(cycles);
    // Quarters of accumulators in the order of the blocks of C: one row of blocks, then the other.
    let quarters: Vec<String> = (0..8)
        .flat_map(|number| ["ll", "lh", "hl", "hh"].map(|quarter| format!("am{quarter}{number}")))
        .collect();
    let load_c: String = quarters.iter().map(|quarter| format!("vlda {quarter}, [p4], #32\n")).collect();
    let mut store_c: Vec<String> =
        quarters.iter().map(|quarter| format!("vst {quarter}, [p5], #32")).collect();
    // The next eight rows of A begin where the second row of blocks ended.
    store_c[0] += "; padda [p0], #512";
    store_c[1] += "; padda [p1], #512";
    store_c[2] += "; add r12, r12, #-1";
    // Five delay slots are left.
    store_c[26] += "; jnz r12, rows";
    let store_c: String = store_c.iter().map(|line| format!("{line}\n")).collect();
    let (a_at, b_at, c_at) = (address(a), address(b), address(c));
    let (a_turn, b_turn, c_turn) = (turn(a), turn(b), turn(c));
    let (a_full, a_empty, b_full, b_empty) = (lock(a.full), lock(a.empty), lock(b.full), lock(b.empty));
    let (c_full, c_empty) = (lock(c.full), lock(c.empty));
    let (rows, steps) = (M / (2 * BLOCK_M), K / BLOCK_K - 2);
    let (prefetch, first) = (step(None, true), step(Some("r4"), true));
    let (body, last) = (step(Some("r3"), true), step(Some("r3"), false));
    // The hardware loop ends with the last bundle, which has a name.
    let (body, body_end) = body.split_at(body.trim_end().rfind('\n').map_or(0, |at| at + 1));
    let (wait3, wait5, wait6) = (wait(3), wait(5), wait(6));
    // Where sums are kept, and how complete ones are rounded.
    let (sums, control, narrow) = match shift {
        None => ("r22", String::new(), String::new()),
        Some(shift) => {
            let control = format!(
                "movxm r23, #{}\nmovxm r5, #{NEAREST_EVEN}\nmovxm r6, #{SATURATE}\nmov s0, #{shift}\n\
                 {wait3}movx crRnd, r5\nmovx crSat, r6\n",
                OWN_MEMORY + SUMS
            );
            let stores: String = (0..8)
                .map(|number| {
                    // Five delay slots are left.
                    let jump = if number == 2 { "; jnz r12, narrow" } else { "" };
                    format!("vst.srs.s8.s32 cm{number}, s0, [p5], #32{jump}\n")
                })
                .collect();
            let narrow = format!(
                "mova r12, #{rows}; mov p4, r23\nmov p5, r22\nnarrow:\n{load_c}{wait6}add r12, r12, #-1\n\
                 {stores}{wait6}{wait6}"
            );
            ("r23", control, narrow)
        }
    };
    format!(
        "// Registers that stay: buffers in turn, amounts for locks, the multiplier's configuration.
movxm r20, #{a_at}
movxm r21, #{b_at}
movxm r22, #{c_at}
movxm r24, #{a_turn}
movxm r25, #{b_turn}
movxm r26, #{c_turn}
movxm r3, #{MULTIPLY}
mova r16, #-1; movx r17, #1
movxm ls, body
movxm le, body_end
{control}
tile_of_c:
acq #{c_empty}, r16
{wait3}movxm r4, #{MULTIPLY_FROM_ZERO}
mova r11, #{K_TILES}

tile_of_k:
acq #{a_full}, r16
{wait3}acq #{b_full}, r16
{wait3}mova r12, #{rows}; mov p0, r20
mov p1, r20
padda [p1], #512; mov p4, {sums}
mov p5, {sums}

rows:
mov p2, r21
mov p3, r21
padda [p3], #96; movx lc, #{steps}
{load_c}.align 16
{prefetch}{first}body:
{body}body_end:
{body_end}{last}{store_c}
{wait6}rel #{a_empty}, r17
{wait3}rel #{b_empty}, r17
{wait3}xor r20, r20, r24
xor r21, r21, r25
add r11, r11, #-1
movxm r4, #{MULTIPLY}
jnz r11, tile_of_k
{wait5}{narrow}rel #{c_full}, r17
{wait3}xor r22, r22, r26
j tile_of_c
{wait5}.align 16
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::Bundle;
    use crate::tile::TileKind;

    #[test]
    fn the_inner_loop_is_eight_whole_bundles_that_begin_where_hardware_fetches() {
        let words = program(None).expect("a program");
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let text = isa::disassemble(&bytes).expect("a text");
        let number = |name: &str| {
            let line = text.lines().find(|line| line.contains(name)).expect("the register is set");
            let (_, rest) = line.split_once('#').expect("a constant");
            rest.split_whitespace().next().and_then(|digits| digits.parse::<usize>().ok()).expect("a number")
        };
        let (start, end) = (number("movxm ls"), number("movxm le"));
        assert_eq!((start % 16, end - start), (0, 7 * 16));
        for at in (start..=end).step_by(16) {
            let bundle = Bundle::decode(&bytes[at..]).expect("a bundle");
            assert_eq!(bundle.bytes(), 16);
        }
        assert!(bytes.len() <= crate::tile::PROGRAM_MEMORY as usize);
    }

    #[test]
    fn every_port_and_register_exists() {
        for columns in 1..=4 {
            for rows in 1..=columns {
                let commands = Int8::new(columns, rows).expect("a size").cdo().expect("a CDO").commands;
                for command in commands {
                    let address = match command {
                        CdoCommand::Write { address, .. } | CdoCommand::MaskWrite { address, .. } => address,
                        CdoCommand::DmaWrite { address, .. } => address as u32,
                        _ => continue,
                    };
                    let address = crate::tile::Address::of(address);
                    let usual = address.register != Register::Memory { offset: 0 };
                    assert!(usual && address.register != Register::Other, "{address}");
                    // A port that does not exist would be number 0, which only control has.
                    let control = address.place.kind() == TileKind::Shim;
                    let zero = address.register == Register::Slave { port: 0 };
                    let dma = address.place.kind() == TileKind::Memory;
                    assert!(!zero || control || dma, "{address}");
                }
            }
        }
        assert!(Int8::new(2, 3).is_none() && Int8::new(0, 0).is_none() && Int8::new(5, 1).is_none());
    }
}
