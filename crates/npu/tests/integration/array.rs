//! Overlays and streams in the array model, compared with the CPU.

use npu::array::{Array, CoreLibrary, Fault, HostMemory};
use npu::gemm::{GemmPlan, Overlay};
use npu::txn::{Op, Stream};

use super::{Random, cdo, data, load, product, reference, small_overlay};

/// A public overlay with its own stream and shape.
fn public(overlay: &'static Overlay, size: usize) -> Option<()> {
    let file = data(&format!("{}.xclbin", overlay.name))?;
    let stream = Stream::decode(&data(&format!("{}.insts.txt", overlay.name))?).expect("a stream");
    assert_eq!(Overlay::of(&file).map(|found| found.name), Some(overlay.name));
    let plan = GemmPlan::new(overlay, size, size, size).expect("a plan");
    assert_eq!(plan.padded(), (size, size, size));
    let mut random = Random(size as u64);
    let (a, b) = (random.matrix(size * size), random.matrix(size * size));
    let want = reference(&a, &b, size, size);
    let mut array = load(overlay, &cdo(&file)).expect("a configuration");
    // Twice: the first run leaves the array ready for the next.
    for _ in 0..2 {
        let have = product(&mut array, &stream, &plan, &a, &b).unwrap_or_else(|error| panic!("{error}"));
        assert!(have == want, "{}", overlay.name);
    }
    Some(())
}

#[test]
fn one_core_with_its_own_stream() {
    public(&Overlay::GEMM_256_1COL, 256);
}

#[test]
fn sixteen_cores_with_their_own_stream() {
    public(&Overlay::GEMM_512_4COL, 512);
}

#[test]
fn own_overlay_in_any_schedule() {
    let (overlay, cdo) = (small_overlay::overlay(), small_overlay::cdo());
    let plan = GemmPlan::new(&overlay, 24, 64, 16).expect("a plan");
    let stream = plan.stream().expect("a stream");
    let mut random = Random(3);
    let (a, b) = (random.matrix(24 * 64), random.matrix(64 * 16));
    let want = reference(&a, &b, 64, 16);
    for seed in 0..50 {
        let mut array = load(&overlay, &cdo).expect("a configuration").with_seed(seed);
        assert_eq!(product(&mut array, &stream, &plan, &a, &b).expect("a product"), want, "seed {seed}");
    }
}

/// The fault of a stream of these instructions on the small overlay.
fn fault_of(ops: Vec<Op>) -> Fault {
    let overlay = small_overlay::overlay();
    let mut array = load(&overlay, &small_overlay::cdo()).expect("a configuration");
    let mut host = HostMemory::from_arguments(vec![vec![0; 4096]]);
    array.run(&Stream::new(1, ops), &mut host).expect_err("a fault")
}

const QUEUE: u64 = 0x1_d214;
const BD: u32 = 0x1_d000;

fn descriptor(length: u32) -> Op {
    Op::BlockWrite { address: BD, data: vec![length, 0, 0, 0, 0, 0, 0, 1 << 25] }
}

fn patch(argument: u64, offset: u64) -> Op {
    Op::Patch { address: u64::from(BD) + 4, argument, offset }
}

#[test]
fn faults_of_streams() {
    let write = |address, value| Op::Write { address, value };
    let cases: Vec<(Vec<Op>, &str)> = vec![
        (vec![write(1 << 40, 0)], "is in no tile"),
        (vec![write(2 << 25, 0)], "is in no tile"),
        (vec![write(0x1_d220, 0)], "does not have"),
        (vec![write(QUEUE, 0)], "it is not valid"),
        (vec![write(QUEUE, 0x100)], "a task has a descriptor"),
        (vec![write(0x1_4000, 64)], "a lock holds 0 to 63"),
        (vec![descriptor(64), patch(1, 0)], "argument 1 of 1"),
        (vec![Op::Patch { address: 0x1_d008, argument: 0, offset: 0 }], "does not have"),
        (vec![descriptor(16), patch(0, 4096), write(QUEUE, 0)], "which is no memory"),
        (vec![descriptor(16), patch(0, 4092), write(QUEUE, 0)], "which is no memory"),
        // A task is queued; then its descriptor is written again.
        (vec![descriptor(16), patch(0, 0), write(QUEUE, 0), descriptor(16)], "while a channel uses it"),
        (vec![write(QUEUE, 0); 5], "the task queue is full"),
        // Half a tile of B.
        (vec![descriptor(16), patch(0, 0), write(QUEUE, 0)], "unfinished work"),
        (vec![Op::MaskPoll { address: 0x1_4000, value: 1, mask: 1 }], "deadlock"),
        (
            vec![Op::MaskWrite { address: 0x1_d200, value: 1, mask: 1 }],
            "out-of-order, compressed and paused channels are not modelled",
        ),
    ];
    for (ops, want) in cases {
        let text = ops.iter().map(Op::to_string).collect::<Vec<_>>().join("; ");
        let have = fault_of(ops).to_string();
        assert!(have.contains(want), "{text}: {have}");
    }
}

#[test]
fn unknown_programs_are_not_run() {
    let error = Array::load(1, &small_overlay::cdo(), CoreLibrary::new()).expect_err("no program is known");
    assert!(matches!(error, Fault::UnknownProgram { .. }), "{error}");
    if let Some(file) = data("mladf_gemm_4x4_a8w8acc32.xclbin") {
        assert!(Array::load(5, &cdo(&file), CoreLibrary::new()).is_err());
    }
}

#[test]
fn streams_that_take_too_long_are_stopped() {
    let overlay = small_overlay::overlay();
    let plan = GemmPlan::new(&overlay, 24, 64, 16).expect("a plan");
    let mut array = load(&overlay, &small_overlay::cdo()).expect("a configuration").with_limit(3);
    let error = product(&mut array, &plan.stream().expect("a stream"), &plan, &[1; 24 * 64], &[1; 64 * 16]);
    let error = error.expect_err("too few rounds").to_string();
    assert!(error.contains("not ended after 3 rounds"), "{error}");
}
