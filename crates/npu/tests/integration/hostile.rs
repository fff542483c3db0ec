//! Damaged files: an error, or what encodes to the same again; never a panic.
//!
//! Each test takes thousands of damaged inputs. INDRIK_NPU_CASES sets how many of each.

use std::sync::LazyLock;

use npu::array::{Array, CoreLibrary, Fault, HostMemory};
use npu::bundle::{Bundle, Slot};
use npu::isa::{self, Instruction};
use npu::tile::{Register, TileKind, TilePlace};
use npu::txn::Stream;
use npu::xclbin::{Cdo, CdoCommand, Partition, Pdi, Xclbin};

use super::{Random, data, small_overlay};

fn cases() -> usize {
    cases_or(20_000)
}

/// Cases of tests that load an array for each: a megabyte that has to be made.
fn cases_of_arrays() -> usize {
    cases_or(2000)
}

fn cases_or(default: usize) -> usize {
    std::env::var("INDRIK_NPU_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(default)
}

/// Changes a few bytes or words, or cuts, repeats or inserts some.
fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(6) {
        let len = bytes.len();
        if len < 8 {
            return;
        }
        let at = random.below(len);
        let word = random.below(len / 4) * 4;
        let value = match random.below(8) {
            0 => 0,
            1 => 1,
            2 => u32::MAX,
            3 => 0x7fff_ffff,
            4 => len as u32,
            5 => 1 << random.below(32),
            6 => random.below(256) as u32,
            _ => random.next() as u32,
        };
        match random.below(10) {
            0..3 => bytes[at] ^= 1 << random.below(8),
            3 => bytes[at] = value as u8,
            4..8 => bytes[word..word + 4].copy_from_slice(&value.to_le_bytes()),
            8 => bytes.truncate(at),
            _ => {
                let end = len.min(at + 4 * random.below(8));
                let copy = bytes[at..end].to_vec();
                let to = random.below(len / 4) * 4;
                bytes.splice(to..to, copy);
            }
        }
    }
}

/// Puts the complement of the sum of the words before it into the word at `at`.
fn repair_checksum(bytes: &mut [u8], from: usize, at: usize) {
    if bytes.len() >= at + 4 {
        let words = bytes[from..at].chunks_exact(4);
        let word = |word: &[u8]| u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        let sum = words.fold(0u32, |sum, bytes| sum.wrapping_add(word(bytes)));
        bytes[at..at + 4].copy_from_slice(&(!sum).to_le_bytes());
    }
}

/// A CDO's length and checksum, so that its commands are read.
fn repair_cdo(bytes: &mut [u8], at: usize, end: usize) {
    if bytes.len() >= at + 20 && end >= at + 20 {
        bytes[at + 12..at + 16].copy_from_slice(&(((end - at) / 4 - 5) as u32).to_le_bytes());
        repair_checksum(bytes, at, at + 16);
    }
}

/// Damages each of `files` in turn, and counts the damaged ones that are still valid.
fn check(name: &str, files: &[Vec<u8>], mut valid: impl FnMut(&mut Vec<u8>, &mut Random) -> bool) {
    let mut random = Random(17);
    let (mut count, cases) = (0, cases());
    for case in 0..cases {
        let mut bytes = files[case % files.len()].clone();
        damage(&mut bytes, &mut random);
        count += usize::from(valid(&mut bytes, &mut random));
    }
    println!("{name}: {cases} damaged inputs, of which {count} are valid");
    // If almost nothing were valid, most of the decoder would not have been reached.
    assert!(count * 200 > cases, "{count} of {cases}");
}

fn streams() -> Vec<Vec<u8>> {
    let overlay = small_overlay::overlay();
    let plan = npu::gemm::GemmPlan::new(&overlay, 8, 32, 16).expect("a plan");
    let own = plan.stream().expect("a stream");
    let mut streams = vec![own.encode().expect("bytes"), own.encode_text().expect("a text").into_bytes()];
    streams.extend(data("gemm-512-4col.insts.txt"));
    streams
}

#[test]
fn damaged_streams() {
    check("transaction stream", &streams(), |bytes, random| {
        let binary = bytes.first() == Some(&0);
        if binary && bytes.len() >= 16 && random.below(4) > 0 {
            let len = bytes.len() as u32;
            bytes[12..16].copy_from_slice(&len.to_le_bytes());
        }
        let Ok(stream) = Stream::decode(bytes) else { return false };
        let again = stream.encode().expect("what was decoded");
        assert!(!binary || again == *bytes);
        assert_eq!(Stream::decode(&again).expect("the same stream"), stream);
        assert!(stream.to_string().lines().count() > stream.instructions.len());
        true
    });
}

#[test]
fn damaged_programs() {
    let slots = [Slot::LoadA, Slot::LoadB, Slot::Alu, Slot::Move, Slot::Store, Slot::Vector];
    // Bundles of several lengths.
    let program: Vec<u8> = (0..slots.len())
        .flat_map(|first| slots[first..].chunks(2))
        .filter_map(|slots| Bundle::new(&slots.iter().map(|slot| (*slot, 0x5555)).collect::<Vec<_>>()).ok())
        .flat_map(|bundle| bundle.encode())
        .collect();
    check("core program", &[program], |bytes, _| {
        let Ok(bundles) = Bundle::decode_all(bytes) else { return false };
        assert_eq!(bundles.iter().flat_map(Bundle::encode).collect::<Vec<_>>(), *bytes);
        assert!(bundles.iter().all(|bundle| !bundle.to_string().is_empty()));
        true
    });
}

#[test]
fn random_instructions() {
    let slots = [Slot::LoadA, Slot::LoadB, Slot::Alu, Slot::Move, Slot::Store, Slot::Vector, Slot::Long];
    let (mut random, mut known) = (Random(29), 0);
    for case in 0..cases() {
        let slot = slots[case % slots.len()];
        let bits = (random.next() << 31 | random.next()) & ((1 << slot.bits()) - 1);
        let Ok(instruction) = Instruction::decode(slot, bits) else { continue };
        assert_eq!((instruction.slot(), instruction.encode()), (slot, bits));
        let text = instruction.to_string();
        assert_eq!(Instruction::parse(&text).expect("its own text"), instruction, "{text}");
        known += 1;
    }
    println!("instructions: {} random ones, of which {known} are known", cases());
    assert!(known * 20 > cases(), "{known} of {}", cases());
}

#[test]
fn damaged_texts_of_programs() {
    let source = "start: mova r0, #5; vldb wl0, [p0], #32\n add r0, r0, #-1; movx lc, #7 // text\n\
                  .align 16\nend: jnz r0, start\nvst.srs.s32.s64 bmh0, s0, [p4, #32]; vmac cm0, cm1, x0, x2, r3\n";
    check("assembler", &[source.as_bytes().to_vec()], |bytes, _| {
        let Ok(program) = isa::assemble(&String::from_utf8_lossy(bytes)) else { return false };
        let text = isa::disassemble(&program).expect("what was assembled");
        assert_eq!(isa::assemble(&text).expect("the same program"), program);
        true
    });
}

/// Where the random part of a program begins.
const BODY: usize = 8 * 6 + 32 * 4;

/// How programs begin: with pointers into memory, so that loads and stores happen, and a mode of the multiplier in
/// every register.
static START: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let pointers = (0..8).map(|n| format!("movxm p{n}, #{}", 0x7_0000 + 0x1000 * n));
    let registers = (0..32).map(|n| format!("mova r{n}, #0x308"));
    let start: Vec<String> = pointers.chain(registers).collect();
    let program = isa::assemble(&start.join("\n")).expect("a program");
    assert_eq!(program.len(), BODY);
    program
});

/// Programs of instructions that the table has, so that most of what is executed is known to the model.
fn random_program(random: &mut Random) -> Vec<u8> {
    let slots = [Slot::LoadA, Slot::LoadB, Slot::Alu, Slot::Move, Slot::Store, Slot::Vector];
    let mut program = START.clone();
    for _ in 0..random.below(40) {
        let mut instructions = Vec::new();
        for slot in slots {
            if random.below(3) == 0 {
                // Most random bits are no instruction.
                let mut bits = (0..20).map(|_| random.next() & ((1 << slot.bits()) - 1));
                let known = bits.find(|&bits| Instruction::decode(slot, bits).is_ok());
                instructions.extend(known.map(|bits| (slot, bits)));
            }
        }
        program.extend(Bundle::new(&instructions).map(|bundle| bundle.encode()).unwrap_or_default());
    }
    if random.below(2) == 0 {
        program.extend(isa::assemble("j #176\nnop\nnop\nnop\nnop\nnop").expect("a program"));
    }
    program.resize(program.len().next_multiple_of(4), 0);
    program
}

#[test]
fn random_programs_on_a_core() {
    let mut random = Random(31);
    let core = TilePlace { column: 0, row: 2 };
    let address = |register: Register| core.address(register.offset(TileKind::Core).expect("a register"));
    let (mut ran, cases) = (0, cases_of_arrays());
    for _ in 0..cases {
        let mut program = random_program(&mut random);
        if random.below(4) == 0 {
            damage(&mut program, &mut random);
        }
        if let Ok(text) = isa::disassemble(&program) {
            // Bundles have more than one form; the shortest is the same again.
            let shortest = isa::assemble(&text).expect("its own text");
            let again = isa::disassemble(&shortest).expect("a text");
            assert_eq!(isa::assemble(&again).expect("the same program"), shortest);
        }
        let data = program
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect();
        let cdo = Cdo::new(vec![
            CdoCommand::DmaWrite { address: u64::from(address(Register::Program { offset: 0 })), data },
            CdoCommand::Write { address: address(Register::Lock { index: 3 }), value: 2 },
            CdoCommand::Write { address: address(Register::CoreControl), value: 1 },
        ]);
        let array = Array::load(1, &cdo, CoreLibrary::interpreter()).expect("a configuration");
        // Faults are fine; panics, and runs without end, are not.
        let result = array.with_limit(20).run(&Stream::new(1, Vec::new()), &mut HostMemory::new());
        // The first random bundles have been executed.
        ran += usize::from(match result {
            Err(Fault::Instruction { pc, .. }) => {
                u32::from_str_radix(pc.trim_start_matches("0x"), 16).expect("an address") as usize > BODY + 16
            }
            _ => true,
        });
    }
    println!("cores: {cases} random programs, of which {ran} came further than a few bundles");
    assert!(ran * 10 > cases, "{ran} of {cases}");
}

#[test]
fn damaged_cdos() {
    let mut files = vec![small_overlay::cdo().encode().expect("a CDO")];
    files.extend(data("gemm-256-1col.xclbin").map(|file| super::cdo(&file).encode().expect("a CDO")));
    check("CDO", &files, |bytes, random| {
        if random.below(8) > 0 {
            bytes.truncate(bytes.len() / 4 * 4);
            let end = bytes.len();
            repair_cdo(bytes, 0, end);
        }
        let Ok(cdo) = Cdo::decode(bytes) else { return false };
        assert_eq!(cdo.encode().expect("what was decoded"), *bytes);
        true
    });
}

#[test]
fn damaged_pdis() {
    check("PDI", &[small_overlay::pdi()], |bytes, random| {
        for (from, at) in [(0x10, 0x8c), (0x90, 0xcc), (0xd0, 0x14c)] {
            if random.below(16) > 0 {
                repair_checksum(bytes, from, at);
            }
        }
        let Ok(pdi) = Pdi::decode(bytes) else { return false };
        assert_eq!(pdi.encode().expect("what was decoded"), *bytes);
        true
    });
}

#[test]
fn damaged_partitions() {
    let xclbin = Xclbin::decode(&small_overlay::xclbin()).expect("an xclbin");
    let mut files = vec![xclbin.sections()[0].data.clone()];
    // Small enough that damage hits what is not an image.
    files.push(Partition::new(4, vec![7; 24]).encode().expect("a section"));
    check("AIE_PARTITION", &files, |bytes, _| {
        let Ok(partition) = Partition::decode(bytes) else { return false };
        let again = partition.encode().expect("what was decoded");
        assert_eq!(Partition::decode(&again).expect("the same partition"), partition);
        // Damaged offsets must not make it grow: nothing is counted twice.
        assert!(again.len() < 4 * bytes.len() + 4096, "{} from {}", again.len(), bytes.len());
        true
    });
}

#[test]
fn damaged_xclbins() {
    let small = Xclbin::new([1; 16], &Partition::new(4, vec![7; 24])).and_then(|xclbin| xclbin.encode());
    check("xclbin", &[small_overlay::xclbin(), small.expect("an xclbin")], |bytes, random| {
        if bytes.len() >= 0x138 && random.below(8) > 0 {
            let len = bytes.len() as u64;
            bytes[0x130..0x138].copy_from_slice(&len.to_le_bytes());
        }
        let Ok(xclbin) = Xclbin::decode(bytes) else { return false };
        let again = xclbin.encode().expect("what was decoded");
        assert_eq!(Xclbin::decode(&again).expect("the same xclbin"), xclbin);
        assert!(again.len() <= bytes.len() + 8 * xclbin.sections().len());
        let _ = xclbin.partition().map(|partition| partition.pdis.first().map(|entry| entry.pdi().is_ok()));
        true
    });
}

#[test]
fn damaged_configurations_and_streams_in_the_array() {
    let overlay = small_overlay::overlay();
    let plan = npu::gemm::GemmPlan::new(&overlay, 8, 32, 16).expect("a plan");
    let (cdo, stream) = (small_overlay::cdo(), plan.stream().expect("a stream"));
    let (cdo, stream) = (cdo.encode().expect("a CDO"), stream.encode().expect("a stream"));
    let host =
        HostMemory::from_arguments(vec![vec![1; 8 * 32 * 2], vec![1; 32 * 16 * 2], vec![0; 8 * 16 * 4]]);
    let (mut random, mut ran) = (Random(23), 0);
    let cases = cases_of_arrays();
    for case in 0..cases {
        let (mut cdo, mut stream) = (cdo.clone(), stream.clone());
        damage(if case % 2 == 0 { &mut cdo } else { &mut stream }, &mut random);
        cdo.truncate(cdo.len() / 4 * 4);
        let (end, len) = (cdo.len(), stream.len() as u32);
        repair_cdo(&mut cdo, 0, end);
        if stream.len() >= 16 {
            stream[12..16].copy_from_slice(&len.to_le_bytes());
        }
        let (Ok(cdo), Ok(stream)) = (Cdo::decode(&cdo), Stream::decode(&stream)) else { continue };
        let Ok(array) = Array::load(1, &cdo, overlay.library()) else { continue };
        // Faults are fine; panics, and runs without end, are not.
        let _ = array.with_limit(20_000).run(&stream, &mut host.clone());
        ran += 1;
    }
    println!("array: {cases} damaged inputs, of which {ran} ran");
    assert!(ran * 20 > cases, "{ran} of {cases}");
}
