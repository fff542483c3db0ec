//! Files decode and encode to the same bytes, and damaged ones are errors.

use npu::bundle::Bundle;
use npu::isa::{self, Instruction};
use npu::tile::{Address, Direction, Register, TilePlace};
use npu::txn::{Op, Stream, Sync};
use npu::xclbin::{Cdo, CdoCommand, Partition, Pdi, Xclbin};
use npu::{Error, Format};

use super::{data, small_overlay};

const XCLBINS: [(&str, u16, usize); 3] = [
    ("gemm-256-1col.xclbin", 4, 136),
    ("gemm-512-4col.xclbin", 4, 1613),
    ("mladf_gemm_4x4_a8w8acc32.xclbin", 5, 853),
];

const STREAMS: [(&str, usize); 4] = [
    ("gemm-256-1col.insts.txt", 68),
    ("gemm-512-4col.insts.txt", 68),
    ("mladf_a8w8acc32_8_2048_2048.bin", 352),
    ("mladf_a8w8acc32_32_2048_2048.bin", 584),
];

#[test]
fn public_overlays_are_the_same_after_decoding_and_encoding() {
    for (name, columns, commands) in XCLBINS {
        let Some(file) = data(name) else { continue };
        let xclbin = Xclbin::decode(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(xclbin.encode().expect("an encodable xclbin") == file, "{name}");
        let partition = xclbin.partition().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(partition.columns, columns, "{name}");
        let section = xclbin.sections().iter().find(|section| section.kind == npu::xclbin::AIE_PARTITION);
        assert!(
            section.is_some_and(|section| section.data == partition.encode().expect("a section")),
            "{name}"
        );
        for entry in &partition.pdis {
            let pdi = entry.pdi().unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(pdi.encode().expect("a PDI") == entry.image, "{name}");
            assert_eq!(pdi.cdo.commands.len(), commands, "{name}");
            let known = |command: &CdoCommand| !matches!(command, CdoCommand::Other { .. });
            assert!(pdi.cdo.commands.iter().all(known), "{name}");
            let cdo = pdi.cdo.encode().expect("a CDO");
            assert_eq!(Cdo::decode(&cdo).expect("the same CDO"), pdi.cdo, "{name}");
        }
        // With the same partition again, everything but the JSON copy of the headers.
        let mut copy = xclbin.clone();
        copy.set_partition(&partition).expect("the same partition");
        assert_eq!(copy.sections(), xclbin.sections());
    }
}

#[test]
fn public_streams_are_the_same_after_decoding_and_encoding() {
    for (name, count) in STREAMS {
        let Some(file) = data(name) else { continue };
        let stream = Stream::decode(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(stream.instructions.len(), count, "{name}");
        assert!(stream.encode().expect("a stream") == file, "{name}");
        let text = stream.encode_text().expect("a text");
        assert_eq!(text.lines().count(), file.len() / 4, "{name}");
        assert_eq!(Stream::decode(text.as_bytes()).expect("the same stream"), stream, "{name}");
        // One line for the header, and one per instruction.
        assert_eq!(stream.to_string().lines().count(), 1 + count, "{name}");
    }
}

#[test]
fn disassembly_of_a_public_stream() {
    let Some(file) = data("gemm-512-4col.insts.txt") else { return };
    let text = Stream::decode(&file).expect("a stream").to_string();
    for line in [
        "; version 0.1, device 3, 4 × 6 tiles, 68 instructions",
        "    1  patch       shim(1,0) bd0.1 = argument 2 + 0x0",
        "    2  mask_write  shim(1,0) s2mm0.control = 0x00000f00 & 0x00001f00",
        "    6  write       shim(0,0) mm2s0.queue = 0x00030000",
        "   65  sync        shim(1,0) s2mm1",
    ] {
        assert!(text.lines().any(|have| have == line), "{line}\n{text}");
    }
}

fn every_instruction() -> Stream {
    let sync = Sync {
        place: TilePlace { column: 1, row: 0 },
        direction: Direction::Mm2s,
        channel: 1,
        columns: 2,
        rows: 1,
    };
    Stream::new(
        4,
        vec![
            Op::Write { address: 0x1_d214, value: 7 },
            Op::BlockWrite { address: 0x1_d000, data: vec![1, 2, 3] },
            Op::BlockWrite { address: 0x1_d000, data: Vec::new() },
            Op::MaskWrite { address: 0x1_d200, value: 0xf00, mask: 0x1f00 },
            Op::MaskPoll { address: 0x1_d220, value: 0, mask: 0x3c },
            Op::Sync(sync),
            Op::Patch { address: 0x1_d004, argument: 2, offset: 1 << 33 },
        ],
    )
}

#[test]
fn own_streams_are_the_same_after_encoding_and_decoding() {
    let stream = every_instruction();
    let bytes = stream.encode().expect("a stream");
    assert_eq!(bytes.len(), 16 + 24 + 28 + 16 + 28 + 28 + 16 + 48);
    assert_eq!(Stream::decode(&bytes).expect("the same stream"), stream);
    let text = stream.encode_text().expect("a text");
    assert_eq!(Stream::decode(text.as_bytes()).expect("the same stream"), stream);
}

#[test]
fn own_overlays_are_the_same_after_encoding_and_decoding() {
    let file = small_overlay::xclbin();
    let xclbin = Xclbin::decode(&file).expect("an xclbin");
    assert_eq!(xclbin.encode().expect("the same xclbin"), file);
    assert_eq!(xclbin.uuid(), small_overlay::UUID);
    let partition = xclbin.partition().expect("a partition");
    assert_eq!(partition.pdis[0].pdi().expect("a PDI").cdo, small_overlay::cdo());

    let mut wide = partition.clone();
    wide.pdis.push(wide.pdis[0].clone());
    wide.start_columns = vec![0, 1, 2];
    wide.name = "two".to_owned();
    wide.kernel_commit = None;
    let section = wide.encode().expect("a section");
    assert_eq!(Partition::decode(&section).expect("the same partition"), wide);
}

#[test]
fn commands_of_every_length() {
    for len in [0, 1, 252, 253, 254, 255, 256, 1000] {
        let commands = vec![
            CdoCommand::Nop { payload: vec![0; len] },
            CdoCommand::DmaWrite { address: 1 << 32 | 0x20_0000, data: vec![7; len] },
            CdoCommand::Other { id: 0x10f, payload: vec![1; len] },
        ];
        let cdo = Cdo::new(commands);
        assert_eq!(Cdo::decode(&cdo.encode().expect("a CDO")).expect("the same CDO"), cdo, "{len}");
        let pdi = Pdi::new(cdo);
        assert_eq!(Pdi::decode(&pdi.encode().expect("a PDI")).expect("the same PDI"), pdi, "{len}");
    }
}

#[test]
fn cut_files_are_errors() {
    let file = small_overlay::xclbin();
    let image =
        &Xclbin::decode(&file).and_then(|xclbin| xclbin.partition()).expect("a partition").pdis[0].image;
    let stream = every_instruction().encode().expect("a stream");
    for len in 0..file.len() {
        assert!(Xclbin::decode(&file[..len]).is_err(), "xclbin of {len} bytes");
    }
    for len in 0..image.len() {
        assert!(Pdi::decode(&image[..len]).is_err(), "PDI of {len} bytes");
    }
    for len in 0..stream.len() {
        assert!(Stream::decode(&stream[..len]).is_err(), "stream of {len} bytes");
    }
}

#[test]
fn errors_say_what_and_where() {
    let stream = every_instruction().encode().expect("a stream");
    let mut opcode = stream.clone();
    opcode[16] = 2;
    let error = Stream::decode(&opcode).expect_err("an unknown opcode").to_string();
    assert!(error.contains("opcode 2 (byte 0x10)"), "{error}");

    let mut version = stream;
    version[0] = 1;
    let error = Stream::decode(&version).expect_err("an unknown version").to_string();
    assert!(error.contains("version 1.1 is not supported"), "{error}");

    let mut image = Pdi::new(small_overlay::cdo()).encode().expect("a PDI");
    image[0xa0] ^= 1;
    match Pdi::decode(&image) {
        Err(Error::Malformed { format: Format::Pdi, offset: 0x90, reason }) => {
            assert!(reason.contains("checksum"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    let error = Stream::decode(b"0001 zz").expect_err("no hexadecimal word").to_string();
    assert!(error.contains("not hexadecimal"), "{error}");
}

/// The programs in an overlay: one per core.
fn programs(file: &[u8]) -> Vec<Vec<u8>> {
    let partition = Xclbin::decode(file).and_then(|xclbin| xclbin.partition()).expect("a partition");
    let mut programs: Vec<(TilePlace, Vec<u8>)> = Vec::new();
    for entry in &partition.pdis {
        for command in entry.pdi().expect("a PDI").cdo.commands {
            let CdoCommand::DmaWrite { address, data } = command else { continue };
            let address = Address::of(address as u32);
            let Register::Program { offset } = address.register else { continue };
            if offset == 0 {
                programs.push((address.place, Vec::new()));
            }
            let (place, program) = programs.last_mut().expect("a program begins at its first word");
            assert_eq!((*place, program.len()), (address.place, offset as usize), "written in order");
            program.extend(data.iter().flat_map(|word| word.to_le_bytes()));
        }
    }
    programs.into_iter().map(|(_, program)| program).collect()
}

#[test]
fn every_bundle_of_the_public_programs_is_the_same_after_decoding_and_encoding() {
    for (name, cores, expected) in [
        ("gemm-256-1col.xclbin", 1, 497),
        ("gemm-512-4col.xclbin", 16, 16 * 492),
        ("mladf_gemm_4x4_a8w8acc32.xclbin", 16, 13_884),
    ] {
        let Some(file) = data(name) else { continue };
        let programs = programs(&file);
        assert_eq!(programs.len(), cores, "{name}");
        let mut bundles = 0;
        for program in programs {
            let decoded = Bundle::decode_all(&program).unwrap_or_else(|error| panic!("{name}: {error}"));
            let encoded: Vec<u8> = decoded.iter().flat_map(Bundle::encode).collect();
            assert_eq!(encoded, program, "{name}");
            bundles += decoded.len();
        }
        assert_eq!(bundles, expected, "{name}");
    }
}

#[test]
fn every_instruction_of_the_public_products_is_the_same_after_decoding_and_encoding() {
    for (name, cores, expected) in [
        ("gemm-256-1col.xclbin", 1, 497),
        ("gemm-512-4col.xclbin", 16, 16 * 481),
        ("mladf_gemm_4x4_a8w8acc32.xclbin", 16, 17_624),
    ] {
        let Some(file) = data(name) else { continue };
        let programs = programs(&file);
        assert_eq!(programs.len(), cores, "{name}");
        let mut instructions = 0;
        for program in programs {
            for bundle in Bundle::decode_all(&program).expect("bundles") {
                for &(slot, bits) in bundle.instructions() {
                    let instruction =
                        Instruction::decode(slot, bits).unwrap_or_else(|error| panic!("{name}: {error}"));
                    assert_eq!(instruction.encode(), bits, "{name}: {instruction}");
                    instructions += 1;
                }
            }
            let text = isa::disassemble(&program).expect("a text");
            let again = isa::assemble(&text).expect("the same program");
            // AMD's programs begin with a bundle that is longer than it has to be.
            let first = if again.len() < program.len() { [8, 6] } else { [0, 0] };
            assert!(again[first[1]..] == program[first[0]..], "{name}");
        }
        assert_eq!(instructions, expected, "{name}");
    }
}

#[test]
fn disassembly_of_a_public_program() {
    let Some(file) = data("gemm-512-4col.xclbin") else { return };
    let text = isa::disassemble(&programs(&file)[0]).expect("a text");
    for line in [
        "jl #2080",
        "paddb [sp], #96; nopxm",
        "mova r27, #0; movx r4, #0; st r2, [sp, #-76]",
        "vlda.ups.s64.s32 bmh8, s0, [p3, #32]; vldb wl4, [p5], #32",
        "vlda wl8, [p1], #256; vldb wl4, [p6], #32; vmac cm7, cm2, x11, x2, r3",
        "vst.srs.s32.s64 bmh0, s0, [p4, #32]; jnz r14, #1424",
        "acq #49, r17",
    ] {
        assert!(
            text.lines().any(|have| have.split(" //").next().unwrap_or("").trim_end() == line),
            "{line}\n{text}"
        );
    }
}
