//! A single changed stride, route or lock fails.
//!
//! For the small overlay every bit with a meaning is changed, one at a time, in the configuration and in the stream; for
//! the public ones a bit of some words with a meaning.

use std::collections::BTreeSet;

use npu::array::HostMemory;
use npu::gemm::{GemmPlan, InputType, Int8, Overlay};
use npu::tile::{Address, Register, TileKind};
use npu::txn::{Op, Stream};
use npu::xclbin::{Cdo, CdoCommand};

use super::{Random, cdo, data, load, reference, small_overlay};

/// Schedules, by seed; a change must fail in at least one. A lock that admits too much fails only when its consumer is
/// starved: on the small overlay each channel and core is, on the public ones some.
const SMALL: std::ops::Range<u64> = 0..36;
const PUBLIC: std::ops::Range<u64> = 0..4;

/// A product that uses both buffers of each pair.
struct Case<'a> {
    overlay: &'a Overlay,
    plan: GemmPlan<'a>,
    a: Vec<u8>,
    b: Vec<u8>,
    want: Vec<i32>,
    schedules: std::ops::Range<u64>,
}

impl<'a> Case<'a> {
    fn new(overlay: &'a Overlay, (m, k, n): (usize, usize, usize), schedules: std::ops::Range<u64>) -> Self {
        let plan = GemmPlan::new(overlay, m, k, n).expect("a plan");
        let mut random = Random(5);
        let (mut a, mut b) = (random.matrix(m * k), random.matrix(k * n));
        let packed = match overlay.input_type {
            InputType::Int16 => (plan.pack_a(&a), plan.pack_b(&b)),
            InputType::Int8 => {
                let narrow = |matrix: &mut [i16]| -> Vec<i8> {
                    matrix.iter_mut().for_each(|value| *value %= 128);
                    matrix.iter().map(|&value| value as i8).collect()
                };
                (plan.pack_a(&narrow(&mut a)), plan.pack_b(&narrow(&mut b)))
            }
        };
        let want = reference(&a, &b, k, n);
        Self { overlay, a: packed.0.expect("A"), b: packed.1.expect("B"), plan, want, schedules }
    }

    fn passes(&self, cdo: &Cdo, stream: &Stream) -> bool {
        self.schedules.clone().all(|seed| {
            let c = vec![0xa5; self.plan.c_bytes()];
            let mut host = HostMemory::from_arguments(vec![self.a.clone(), self.b.clone(), c]);
            // Several times what the products take: a core may run in a loop without an end.
            let array = load(self.overlay, cdo).map(|array| array.with_seed(seed).with_limit(1 << 14));
            let run = array.and_then(|mut array| Ok(array.run(stream, &mut host)?));
            let have = run.and_then(|()| self.plan.unpack_c(host.argument(2).expect("three arguments")));
            have.is_ok_and(|have| have == self.want)
        })
    }
}

/// The words of a command that the array gets, each with its address.
fn words(command: &mut CdoCommand) -> Vec<(Address, &mut u32)> {
    match command {
        CdoCommand::Write { address, value } => vec![(Address::of(*address), value)],
        CdoCommand::DmaWrite { address, data } => {
            let first = *address as u32;
            data.iter_mut().zip(0..).map(|(word, index)| (Address::of(first + 4 * index), word)).collect()
        }
        _ => Vec::new(),
    }
}

/// The bits of a word that change what a configuration does. `ordered` says whether a descriptor has dimensions.
fn meaningful(address: Address, ordered: bool) -> u32 {
    let kind = address.place.kind();
    match address.register {
        Register::Master { .. } => 0xc000_0007,
        Register::Slave { .. } => 0xc000_0000,
        Register::Slot { .. } => 0x1f00_0137,
        Register::ShimMux => 0xcc00,
        Register::ShimDemux => 0xc0,
        Register::Lock { .. } => 0x3f,
        Register::CoreControl | Register::Program { offset: 0 } => 1,
        Register::TaskQueue { .. } => 0x3f,
        Register::Descriptor { word, .. } => match (kind, word) {
            (TileKind::Core, 0) => 0x0fff_ffff,
            (TileKind::Core, 1) => 0xc000_0000,
            // All but what begins a packet.
            (TileKind::Core, 5) => 0x7ffd_ffef,
            (TileKind::Memory, 0) => 0x8001_ffff,
            (TileKind::Memory, 1) => 0xffff_ffff,
            (TileKind::Memory, 2..=4) if ordered => 0x07ff_ffff,
            (TileKind::Memory, 5) if ordered => 0x0001_ffff,
            (TileKind::Memory, 7) => 0xffff_ffff,
            _ => 0,
        },
        _ => 0,
    }
}

/// Every change with a meaning: the command, the word in it, and its bits.
fn changes(cdo: &Cdo) -> Vec<(usize, usize, u32)> {
    let mut changes = Vec::new();
    let mut written = BTreeSet::new();
    for (command, contents) in cdo.clone().commands.iter_mut().enumerate().rev() {
        let words = words(contents);
        let ordered = words.len() > 2 && *words[2].1 != 0;
        for (word, (address, value)) in words.into_iter().enumerate() {
            // Most locks that are set to zero are not used; and what is written again later does not matter.
            let unused = matches!(address.register, Register::Lock { .. }) && *value == 0;
            let last = written.insert(address.place.address(address.offset));
            if last && !unused {
                changes.push((command, word, meaningful(address, ordered)));
            }
        }
    }
    changes
}

fn flip(cdo: &Cdo, command: usize, word: usize, bit: u32) -> Cdo {
    let mut changed = cdo.clone();
    *words(&mut changed.commands[command])[word].1 ^= 1 << bit;
    changed
}

fn set_bits(word: u32) -> impl Iterator<Item = u32> {
    (0..32).filter(move |bit| word >> bit & 1 != 0)
}

fn describe(cdo: &Cdo, command: usize, word: usize, bit: u32) -> String {
    let mut command = cdo.commands[command].clone();
    let (address, value) = words(&mut command).swap_remove(word);
    format!("{address} = {value:#010x} bit {bit}")
}

#[test]
fn every_bit_of_the_small_overlay_matters() {
    let overlay = small_overlay::overlay();
    // More tiles of C in flight than there are buffers on their way, so that a starved receiver stalls the cores.
    let case = Case::new(&overlay, (16, 32, 64), SMALL);
    let (cdo, stream) = (small_overlay::cdo(), case.plan.stream().expect("a stream"));
    assert!(case.passes(&cdo, &stream), "unchanged");
    let mut count = 0;
    let mut unnoticed = Vec::new();
    for (command, word, bits) in changes(&cdo) {
        for bit in set_bits(bits) {
            count += 1;
            if case.passes(&flip(&cdo, command, word, bit), &stream) {
                unnoticed.push(describe(&cdo, command, word, bit));
            }
        }
    }
    assert!(unnoticed.is_empty(), "of {count} changes: {unnoticed:#?}");
    assert_eq!(count, 2126);
}

/// The bits of a stream's words that change what it does.
fn meaningful_in_stream(op: &Op, word: usize) -> u32 {
    match (op, word) {
        (Op::BlockWrite { .. }, 0) => 0xffff,
        (Op::BlockWrite { .. }, 3) => 0x3fff_ffff,
        // Without the rows of B, of which each begins where the one before ends.
        (Op::BlockWrite { data, .. }, 4) if data[6] != 0 => 0x000f_ffff,
        (Op::BlockWrite { .. }, 4) => 0x3fff_ffff,
        (Op::BlockWrite { .. }, 5) => 0x000f_ffff,
        // Steps between executions, and their number if it gets smaller.
        (Op::BlockWrite { data, .. }, 6) if data[6] != 0 => 0x000f_ffff | data[6] & 0x03f0_0000,
        // Next and valid. That a descriptor waits for a lock at zero, which no other uses, changes nothing.
        (Op::BlockWrite { .. }, 7) => 0x0600_0000,
        // Token, repeat count and descriptor, without the half of the descriptors, since the halves are alike.
        (Op::Write { .. }, 0) => 0x80ff_0007,
        _ => 0,
    }
}

fn stream_words(op: &mut Op) -> Vec<&mut u32> {
    match op {
        Op::BlockWrite { data, .. } => data.iter_mut().collect(),
        Op::Write { value, .. } => vec![value],
        _ => Vec::new(),
    }
}

/// Every change with a meaning: the instruction, the word in it, and its bits.
fn stream_changes(stream: &Stream) -> Vec<(usize, usize, u32)> {
    let mut changes = Vec::new();
    for (index, op) in stream.ops().enumerate() {
        for word in 0..stream_words(&mut op.clone()).len() {
            changes.push((index, word, meaningful_in_stream(op, word)));
        }
    }
    changes.retain(|&(_, _, bits)| bits != 0);
    changes
}

fn flip_in_stream(stream: &Stream, index: usize, word: usize, bit: u32) -> Stream {
    let mut changed = stream.clone();
    *stream_words(&mut changed.instructions[index].op)[word] ^= 1 << bit;
    changed
}

#[test]
fn every_bit_of_a_stream_for_the_small_overlay_matters() {
    let overlay = small_overlay::overlay();
    let case = Case::new(&overlay, (16, 64, 24), SMALL);
    let (cdo, stream) = (small_overlay::cdo(), case.plan.stream().expect("a stream"));
    let mut count = 0;
    let mut unnoticed = Vec::new();
    for (index, word, bits) in stream_changes(&stream) {
        for bit in set_bits(bits) {
            count += 1;
            if case.passes(&cdo, &flip_in_stream(&stream, index, word, bit)) {
                unnoticed.push(format!("{}: word {word} bit {bit}", stream.instructions[index].op));
            }
        }
    }
    for index in 0..stream.instructions.len() {
        // Any instruction that is missing, except a descriptor that was the same before.
        let mut shorter = stream.clone();
        let missing = shorter.instructions.remove(index).op;
        let again = matches!(missing, Op::BlockWrite { .. }) && index > stream.instructions.len() * 2 / 5;
        count += 1;
        if !again && case.passes(&cdo, &shorter) {
            unnoticed.push(format!("without {missing}"));
        }
    }
    assert!(unnoticed.is_empty(), "of {count} changes: {unnoticed:#?}");
    assert_eq!(count, 1405);
}

/// The same for a public overlay.
fn public(overlay: &'static Overlay, shape: (usize, usize, usize), every: (usize, usize)) {
    let Some(file) = data(&format!("{}.xclbin", overlay.name)) else { return };
    sampled(overlay, &cdo(&file), shape, every);
}

/// Changes one bit of every n-th word with a meaning in the configuration, and of every m-th in a generated stream.
fn sampled(overlay: &Overlay, cdo: &Cdo, shape: (usize, usize, usize), (every, in_stream): (usize, usize)) {
    let case = Case::new(overlay, shape, PUBLIC);
    let stream = case.plan.stream().expect("a stream");
    let mut random = Random(9);
    let mut unnoticed = Vec::new();
    let mut count = 0;
    assert!(case.passes(cdo, &stream), "unchanged");
    let mut changes = changes(cdo);
    for (command, word, bits) in &mut changes {
        let mut contents = cdo.commands[*command].clone();
        let (address, _) = words(&mut contents).swap_remove(*word);
        match address.register {
            // Locks that admit too much would take more schedules than there is time for.
            Register::Lock { .. } => *bits = 2,
            // The way of tokens: not every shim tile has some to send.
            Register::Slot { .. } | Register::Slave { port: 0 } | Register::Master { port: 2 }
                if address.place.kind() == TileKind::Shim =>
            {
                *bits = 0;
            }
            _ => {}
        }
    }
    changes.retain(|&(_, _, bits)| bits != 0);
    for (number, (command, word, bits)) in changes.into_iter().enumerate() {
        if number % every == 0 {
            let bits: Vec<u32> = set_bits(bits).collect();
            let bit = bits[random.below(bits.len())];
            count += 1;
            if case.passes(&flip(cdo, command, word, bit), &stream) {
                unnoticed.push(describe(cdo, command, word, bit));
            }
        }
    }
    let in_configuration = count;
    for (number, (index, word, bits)) in stream_changes(&stream).into_iter().enumerate() {
        if number % in_stream == 0 {
            let bits: Vec<u32> = set_bits(bits).collect();
            let bit = bits[random.below(bits.len())];
            count += 1;
            if case.passes(cdo, &flip_in_stream(&stream, index, word, bit)) {
                unnoticed.push(format!("{}: word {word} bit {bit}", stream.instructions[index].op));
            }
        }
    }
    assert!(unnoticed.is_empty(), "of {count} changes: {unnoticed:#?}");
    println!(
        "{}: {in_configuration} changes of the configuration and {} of a stream, all noticed",
        overlay.name,
        count - in_configuration
    );
}

#[test]
fn words_of_one_public_core_matter() {
    public(&Overlay::GEMM_256_1COL, (64, 256, 256), (1, 1));
}

#[test]
fn words_of_sixteen_public_cores_matter() {
    let all = std::env::var_os("INDRIK_TEST_ALL").is_some();
    public(&Overlay::GEMM_512_4COL, (256, 512, 384), (61, if all { 1 } else { 11 }));
}

#[test]
fn words_of_our_own_overlay_matter() {
    let all = std::env::var_os("INDRIK_TEST_ALL").is_some();
    let one = Int8::new(1, 1).expect("a size");
    sampled(
        &one.overlay().expect("an overlay"),
        &one.cdo().expect("a CDO"),
        (64, 512, 256),
        if all { (1, 1) } else { (6, 6) },
    );
    if all {
        let whole = Int8::WHOLE;
        sampled(
            &whole.overlay().expect("an overlay"),
            &whole.cdo().expect("a CDO"),
            (256, 512, 384),
            (61, 11),
        );
    }
}
