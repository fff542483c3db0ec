//! An overlay with one core in one column, made by this crate's writers: tiles of 8 × 8, K of 32.
//!
//! It has the structure of the public overlays, but other buffers, locks, channels and ports, and a program that only
//! the model knows.

use npu::array::{CoreLibrary, GemmKernel, PingPong};
use npu::gemm::{InputType, OutputType, Overlay, ShimPort};
use npu::tile::{Direction, Register, TileKind, TilePlace};
use npu::xclbin::{Cdo, CdoCommand, Partition, Pdi, Xclbin};

pub const UUID: [u8; 16] = *b"small overlay 01";
const PROGRAM: [u32; 4] = [0x1234_5678, 0x9abc_def0, 1, 2];

const SHIM: TilePlace = TilePlace { column: 0, row: 0 };
const MEMORY: TilePlace = TilePlace { column: 0, row: 1 };
const CORE: TilePlace = TilePlace { column: 0, row: 2 };

const TILE: u32 = 8;
/// Words of a tile of int16, and of int32.
const INPUT: u32 = TILE * TILE / 2;
const OUTPUT: u32 = TILE * TILE;

pub fn overlay() -> Overlay {
    Overlay {
        name: "small",
        file: [0; 32],
        program: CoreLibrary::digest(&PROGRAM),
        columns: 1,
        input_type: InputType::Int16,
        output_type: OutputType::Int32,
        kernel: GemmKernel {
            m: 8,
            k: 8,
            n: 8,
            k_tiles: 4,
            a: PingPong { addresses: [0x400, 0x500], empty: 3, full: 2 },
            b: PingPong { addresses: [0x600, 0x700], empty: 5, full: 4 },
            c: PingPong { addresses: [0x800, 0xa00], empty: 7, full: 6 },
        },
        a: &[ShimPort { column: 0, channel: 1 }],
        b: &[ShimPort { column: 0, channel: 0 }],
        c: &[ShimPort { column: 0, channel: 1 }],
    }
}

struct Writer(Vec<CdoCommand>);

impl Writer {
    fn write(&mut self, place: TilePlace, register: Register, value: u32) {
        let offset = register.offset(place.kind()).unwrap_or_else(|| panic!("{place} has no {register}"));
        self.0.push(CdoCommand::Write { address: place.address(offset), value });
    }

    /// Connects an input port to an output port.
    fn connect(&mut self, place: TilePlace, slave: usize, master: usize) {
        self.write(place, Register::Slave { port: slave }, 1 << 31);
        self.write(place, Register::Master { port: master }, 1 << 31 | slave as u32);
    }

    fn descriptor(&mut self, place: TilePlace, index: usize, words: &[u32]) {
        let register = Register::Descriptor { index, word: 0 };
        let offset = register.offset(place.kind()).unwrap_or_else(|| panic!("{place} has no {register}"));
        let address = u64::from(place.address(offset));
        self.0.push(CdoCommand::DmaWrite { address, data: words.to_vec() });
    }

    fn start(&mut self, place: TilePlace, direction: Direction, channel: usize, descriptor: u32) {
        self.write(place, Register::TaskQueue { direction, channel }, descriptor);
    }

    /// A pair of descriptors of the core that take turns.
    fn core_buffers(&mut self, first: usize, words: u32, buffers: PingPong, direction: Direction) {
        let (acquire, release) = match direction {
            Direction::S2mm => (buffers.empty, buffers.full),
            Direction::Mm2s => (buffers.full, buffers.empty),
        };
        for turn in 0..2 {
            let next = (first + 1 - turn) as u32;
            let locks = 0x7f << 5 | 1 << 12 | acquire as u32 | (release as u32) << 13 | 1 << 18;
            let base = buffers.addresses[turn] / 4;
            let last = next << 27 | 1 << 26 | 1 << 25 | locks;
            self.descriptor(CORE, first + turn, &[base << 14 | words, 0, 0, 0, 0, last]);
        }
    }

    /// A pair of descriptors of the memory tile that take turns, with steps and wraps of three dimensions.
    fn memory_buffers(&mut self, first: usize, words: u32, base: u32, locks: (u32, u32), order: [u32; 4]) {
        let (acquire, release) = locks;
        for turn in 0..2u32 {
            let next = first as u32 + 1 - turn;
            // Addresses and locks of the tile itself come after those of its neighbour.
            let address = 0x2_0000 + base + turn * words;
            let locks = 1 << 31 | 1 << 24 | (64 + release) << 16 | 1 << 15 | 0x7f << 8 | (64 + acquire);
            let mut data = vec![words, next << 20 | 1 << 19 | address];
            data.extend_from_slice(&order);
            data.extend_from_slice(&[0, locks]);
            self.descriptor(MEMORY, first + turn as usize, &data);
        }
    }
}

pub fn cdo() -> Cdo {
    let kernel = overlay().kernel;
    let mut cdo = Writer(vec![CdoCommand::Nop { payload: vec![0] }]);
    let program = CORE.address(Register::Program { offset: 0 }.offset(TileKind::Core).expect("a program"));
    cdo.0.push(CdoCommand::DmaWrite { address: u64::from(program), data: PROGRAM.to_vec() });
    for (place, empty) in [(CORE, [3, 5, 7]), (MEMORY, [0, 2, 4])] {
        for index in empty {
            cdo.write(place, Register::Lock { index }, 2);
        }
    }

    cdo.core_buffers(0, INPUT, kernel.a, Direction::S2mm);
    cdo.core_buffers(2, INPUT, kernel.b, Direction::S2mm);
    cdo.core_buffers(4, OUTPUT, kernel.c, Direction::Mm2s);
    cdo.start(CORE, Direction::S2mm, 1, 0);
    cdo.start(CORE, Direction::S2mm, 0, 2);
    cdo.start(CORE, Direction::Mm2s, 1, 4);

    // Blocks of 4 × 4: two words, four rows, the blocks of a row of blocks.
    let row = TILE / 2;
    let blocks = [2 << 17, 4 << 17 | (row - 1), (TILE / 4) << 17 | 1, 4 * row - 1];
    // And back: four words of each block of a row of blocks, four rows.
    let rows = [4 << 17, (TILE / 4) << 17 | 15, 4 << 17 | 3, 4 * TILE - 1];
    let linear = [0; 4];
    cdo.memory_buffers(0, INPUT, 0x100, (0, 1), linear);
    cdo.memory_buffers(2, INPUT, 0x100, (1, 0), blocks);
    cdo.memory_buffers(24, INPUT, 0x200, (2, 3), linear);
    cdo.memory_buffers(26, INPUT, 0x200, (3, 2), blocks);
    cdo.memory_buffers(4, OUTPUT, 0x300, (4, 5), linear);
    cdo.memory_buffers(6, OUTPUT, 0x300, (5, 4), rows);
    // A on channels 2 and 0, B on 1, C on 4 and 2.
    cdo.start(MEMORY, Direction::S2mm, 2, 0);
    cdo.start(MEMORY, Direction::Mm2s, 0, 2);
    cdo.start(MEMORY, Direction::S2mm, 1, 24);
    cdo.start(MEMORY, Direction::Mm2s, 1, 26);
    cdo.start(MEMORY, Direction::S2mm, 4, 4);
    cdo.start(MEMORY, Direction::Mm2s, 2, 6);

    // A: shim South 7 → North 0 → memory South 0 → DMA 2; DMA 0 → North 2 → core South 2 → DMA 1.
    cdo.connect(SHIM, 9, 12);
    cdo.connect(MEMORY, 7, 2);
    cdo.connect(MEMORY, 0, 13);
    cdo.connect(CORE, 7, 2);
    // B: shim South 3 → North 5 → memory South 5 → DMA 1; DMA 1 → North 0 → core South 0 → DMA 0.
    cdo.connect(SHIM, 5, 17);
    cdo.connect(MEMORY, 12, 1);
    cdo.connect(MEMORY, 1, 11);
    cdo.connect(CORE, 5, 1);
    // C: core DMA 1 → South 3 → memory North 3 → DMA 4; DMA 2 → South 1 → shim North 1 → South 3.
    cdo.connect(CORE, 2, 8);
    cdo.connect(MEMORY, 16, 4);
    cdo.connect(MEMORY, 2, 8);
    cdo.connect(SHIM, 15, 5);
    // Tokens with controller id 15: arbiter 5, select 3, to South 0.
    cdo.write(SHIM, Register::Master { port: 2 }, 0xc000_0045);
    cdo.write(SHIM, Register::Slave { port: 0 }, 0xc000_0000);
    cdo.write(SHIM, Register::Slot { port: 0, slot: 0 }, 0x0f1f_0135);
    cdo.write(SHIM, Register::ShimMux, 1 << 10 | 1 << 14);
    cdo.write(SHIM, Register::ShimDemux, 1 << 6);
    cdo.write(CORE, Register::CoreControl, 1);
    Cdo::new(cdo.0)
}

pub fn pdi() -> Vec<u8> {
    Pdi::new(cdo()).encode().expect("a PDI")
}

pub fn xclbin() -> Vec<u8> {
    let partition = Partition::new(1, pdi());
    Xclbin::new(UUID, &partition).and_then(|xclbin| xclbin.encode()).expect("an xclbin")
}
