//! Cores that execute their instructions, compared with the CPU and with cores that are known by hash.

use npu::array::{Array, CoreLibrary, Fault, HostMemory};
use npu::bundle::Bundle;
use npu::gemm::{GemmPlan, Int8, Overlay};
use npu::isa::Instruction;
use npu::tile::{Address, Register, TilePlace};
use npu::txn::Stream;
use npu::xclbin::{Cdo, CdoCommand};

use super::{Random, cdo, data, load, product, reference};

/// An array whose cores execute their instructions.
fn interpreted(overlay: &Overlay, cdo: &Cdo) -> npu::Result<Array> {
    Ok(Array::load(overlay.columns, cdo, CoreLibrary::interpreter())?)
}

/// A public overlay with its own stream and shape, on interpreted cores.
fn public(overlay: &'static Overlay, size: usize) -> Option<()> {
    let file = data(&format!("{}.xclbin", overlay.name))?;
    let stream = Stream::decode(&data(&format!("{}.insts.txt", overlay.name))?).expect("a stream");
    let plan = GemmPlan::new(overlay, size, size, size).expect("a plan");
    let mut random = Random(size as u64);
    let (a, b) = (random.matrix(size * size), random.matrix(size * size));
    let mut array = interpreted(overlay, &cdo(&file)).expect("a configuration");
    let have = product(&mut array, &stream, &plan, &a, &b).unwrap_or_else(|error| panic!("{error}"));
    assert!(have == reference(&a, &b, size, size), "{}", overlay.name);
    Some(())
}

#[test]
fn one_interpreted_core_with_its_own_stream() {
    public(&Overlay::GEMM_256_1COL, 256);
}

#[test]
fn sixteen_interpreted_cores_with_their_own_stream() {
    public(&Overlay::GEMM_512_4COL, 512);
}

#[test]
fn interpreted_cores_compute_what_known_ones_do() {
    for (overlay, shapes) in [
        (&Overlay::GEMM_256_1COL, &[(32, 256, 32), (33, 300, 40), (1, 1, 1), (64, 512, 96)][..]),
        (&Overlay::GEMM_512_4COL, &[(70, 520, 130)]),
    ] {
        let Some(file) = data(&format!("{}.xclbin", overlay.name)) else { continue };
        let cdo = cdo(&file);
        for (number, &(m, k, n)) in shapes.iter().enumerate() {
            let plan = GemmPlan::new(overlay, m, k, n).expect("a plan");
            let stream = plan.stream().expect("a stream");
            // All of int16: sums wrap around, in the instructions as in the known cores.
            let mut random = Random(number as u64);
            let mut matrix = |len: usize| -> Vec<i16> { (0..len).map(|_| random.next() as i16).collect() };
            let (a, b) = (matrix(m * k), matrix(k * n));
            let mut known = load(overlay, &cdo).expect("a configuration");
            let want = product(&mut known, &stream, &plan, &a, &b).expect("a product");
            let array = interpreted(overlay, &cdo).expect("a configuration");
            // Another channel or core is starved each time.
            let mut array = array.with_seed(7 * number as u64);
            let have = product(&mut array, &stream, &plan, &a, &b).unwrap_or_else(|error| panic!("{error}"));
            assert!(have == want, "{} {m} × {k} × {n}", overlay.name);
        }
    }
}

/// A change of one instruction: where, what it was, and what it is.
struct Change {
    at: usize,
    text: String,
    program: Vec<u8>,
}

/// The place of a program's first word in a configuration.
fn program(cdo: &Cdo) -> (usize, Vec<u8>) {
    let is_program = |command: &CdoCommand| match command {
        CdoCommand::DmaWrite { address, data } => {
            let register = Address::of(*address as u32).register;
            (register == Register::Program { offset: 0 })
                .then(|| data.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())
        }
        _ => None,
    };
    let found = cdo.commands.iter().enumerate().find_map(|(at, command)| Some((at, is_program(command)?)));
    found.expect("a program")
}

/// The configuration with another program of the same length.
fn with_program(cdo: &Cdo, command: usize, program: &[u8]) -> Cdo {
    let mut cdo = cdo.clone();
    let CdoCommand::DmaWrite { data, .. } = &mut cdo.commands[command] else { panic!("a program") };
    data.iter_mut().zip(program.chunks_exact(4)).for_each(|(word, bytes)| {
        *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    });
    cdo
}

/// Each instruction of the bundles in `range` in turn: left out, or with one bit changed.
fn changes(program: &[u8], range: std::ops::Range<usize>, random: &mut Random) -> Vec<Change> {
    let (mut changes, mut at) = (Vec::new(), 0);
    for bundle in Bundle::decode_all(program).expect("bundles") {
        for (index, &(slot, bits)) in bundle.instructions().iter().enumerate() {
            let text = Instruction::decode(slot, bits).expect("an instruction").to_string();
            if !range.contains(&at) || text.starts_with("nop") {
                continue;
            }
            let nop = ["nopa", "nopb", "nopx", "nopm", "nops", "nopv", "nopxm"]
                .map(|nop| Instruction::parse(nop).expect("an instruction"))
                .into_iter()
                .find(|nop| nop.slot() == slot);
            let nop = nop.expect("each slot has one").encode();
            for changed in [nop, bits ^ 1 << random.below(slot.bits() as usize)] {
                let mut instructions = bundle.instructions().to_vec();
                instructions[index].1 = changed;
                let new = Bundle::new(&instructions).expect("the same slots").encode();
                // Bundles of the same slots have several forms; only one of the same length fits.
                if new.len() == bundle.bytes() {
                    let mut program = program.to_vec();
                    program[at..at + new.len()].copy_from_slice(&new);
                    let to = Instruction::decode(slot, changed).map_or("?".to_owned(), |new| new.to_string());
                    changes.push(Change { at, text: format!("{text} → {to}"), program });
                }
            }
        }
        at += bundle.bytes();
    }
    changes
}

/// The changes to `gemm-256-1col` that change no result, of all: events, a pointer that is saved for nobody, no shift
/// instead of none, a step that equals the other, and the zero of another register.
const UNNOTICED: (usize, &[&str]) = (
    392,
    &[
        "0x524: event #0 → nopx",
        "0x524: mov s0, #0 → nopm",
        "0x524: st p7, [sp, #-28] → nops",
        "0x524: st p7, [sp, #-28] → st p7, [sp, #-156]",
        "0x55a: padds [p3], m0 → padds.3d [p3], d0",
        "0x756: lda p7, [sp, #-28] → nopa",
        "0x756: event #1 → nopx",
        "0x756: event #1 → event #3",
        "0x78c: event #0 → nopx",
        "0x7b0: vst wl0, [p0, dj0] → vst wh0, [p0, dj0]",
        "0x84c: event #1 → nopx",
    ],
);

/// The same of our overlay: bits above those of addresses, and waits for locks that are free in this test's schedule.
const UNNOTICED_OF_INT8: (usize, &[&str]) = (
    316,
    &[
        "0x6: movxm r21, #475136 → movxm r21, #268910592",
        "0x36: movxm le, #640 → movxm le, #2097792",
        "0x3c: acq #52, r16 → nopx",
        "0x5a: acq #51, r16 → nopx",
    ],
);

/// Checks changes of all programs, or of every `step`-th.
fn check(changes: &[Change], step: usize, unnoticed: (usize, &[&str]), is_missed: impl Fn(&[u8]) -> bool) {
    let all = std::env::var_os("INDRIK_TEST_ALL").is_some();
    let (mut count, mut missed) = (0, Vec::new());
    for change in changes.iter().step_by(if all { 1 } else { step }) {
        count += 1;
        if is_missed(&change.program) {
            missed.push(format!("{:#x}: {}", change.at, change.text));
        }
    }
    println!("{} of {count} changes are not noticed:\n{}", missed.len(), missed.join("\n"));
    if all {
        assert_eq!(
            (count, missed.iter().map(String::as_str).collect::<Vec<_>>()),
            (unnoticed.0, unnoticed.1.to_vec())
        );
    } else {
        let unexpected: Vec<_> =
            missed.iter().filter(|missed| !unnoticed.1.contains(&missed.as_str())).collect();
        assert!(count > 20 && unexpected.is_empty(), "of {count}: {unexpected:#?}");
    }
}

#[test]
fn a_changed_instruction_is_noticed() {
    let overlay = &Overlay::GEMM_256_1COL;
    let Some(file) = data("gemm-256-1col.xclbin") else { return };
    let cdo = cdo(&file);
    let (command, bytes) = program(&cdo);
    // Three blocks: both buffers of each pair, and one that is used again.
    let plan = GemmPlan::new(overlay, 96, 256, 32).expect("a plan");
    let stream = plan.stream().expect("a stream");
    let mut random = Random(11);
    let (a, b) = (random.matrix(96 * 256), random.matrix(256 * 32));
    let want = reference(&a, &b, 256, 32);
    let run = |program: &[u8]| {
        let array = interpreted(overlay, &with_program(&cdo, command, program));
        array.and_then(|array| product(&mut array.with_limit(4000), &stream, &plan, &a, &b))
    };
    assert_eq!(run(&bytes).expect("the program as it is"), want);
    // The inner loops of the product, and the loop that clears C.
    let changes = changes(&bytes, 0x500..0x850, &mut random);
    check(&changes, 9, UNNOTICED, |program| match run(program) {
        Ok(have) => have == want,
        Err(npu::Error::Array(Fault::Instruction { place, instruction, .. })) => {
            assert_eq!(place, TilePlace { column: 0, row: 2 });
            assert!(!instruction.is_empty());
            false
        }
        Err(_) => false,
    });
}

#[test]
fn a_changed_instruction_of_the_int8_overlay_is_noticed() {
    let size = Int8::new(1, 1).expect("a size");
    let (overlay, cdo) = (size.overlay().expect("an overlay"), size.cdo().expect("a CDO"));
    let (command, bytes) = program(&cdo);
    // Three tiles of C: both buffers of each pair, and one that is used again.
    let plan = GemmPlan::new(&overlay, 192, 512, 32).expect("a plan");
    let stream = plan.stream().expect("a stream");
    let mut random = Random(13);
    let mut matrix = |len: usize| -> Vec<i8> { (0..len).map(|_| random.next() as i8).collect() };
    let (a, b) = (matrix(192 * 512), matrix(512 * 32));
    let [a, b] = [plan.pack_a(&a).expect("A"), plan.pack_b(&b).expect("B")];
    let run = |program: &[u8]| {
        let mut host = HostMemory::from_arguments(vec![a.clone(), b.clone(), vec![0xa5; plan.c_bytes()]]);
        let array = interpreted(&overlay, &with_program(&cdo, command, program))?;
        array.with_limit(8000).run(&stream, &mut host)?;
        plan.unpack_c(host.argument(2).expect("three arguments"))
    };
    let want = run(&bytes).expect("the program as it is");
    let changes = changes(&bytes, 0..bytes.len(), &mut random);
    check(&changes, 15, UNNOTICED_OF_INT8, |program| run(program).is_ok_and(|have| have == want));
}

#[test]
fn an_unknown_instruction_is_a_fault_that_names_it() {
    let overlay = &Overlay::GEMM_256_1COL;
    let Some(file) = data("gemm-256-1col.xclbin") else { return };
    let cdo = cdo(&file);
    let (command, mut program) = program(&cdo);
    // `event #0`, in the first bundle that has it.
    let event = Instruction::parse("event #0").expect("an instruction");
    let at = 0x524;
    let bundle = Bundle::decode(&program[at..]).expect("a bundle");
    let mut instructions = bundle.instructions().to_vec();
    let place = instructions.iter_mut().find(|(slot, bits)| (*slot, *bits) == (event.slot(), event.encode()));
    place.expect("it is there").1 = 0x38;
    let new = Bundle::new(&instructions).expect("the same slots").encode();
    program[at..at + new.len()].copy_from_slice(&new);
    let plan = GemmPlan::new(overlay, 1, 1, 1).expect("a plan");
    let mut array = interpreted(overlay, &with_program(&cdo, command, &program)).expect("a configuration");
    let fault =
        product(&mut array, &plan.stream().expect("a stream"), &plan, &[1], &[1]).expect_err("unknown");
    let text = "core(0,2) at 0x524: `alu 0x38`: the model does not know this instruction";
    assert_eq!(fault.to_string(), format!("array model: {text}"));
}
