//! The runtime on the fake driver: the sequence of calls, faults at each of them, and products through them.

use std::sync::Arc;
use std::time::Duration;

use npu::Error;
use npu::gemm::{GemmPlan, Overlay};
use npu::runtime::fake::{CommandOutcome, FakeDriver, FakeMemory, FakeNode, FakeRange, HeapRule};
use npu::runtime::{AccelIo, Call, Context, Device, DriverFacts};
use npu::selftest;
use npu::tile::{Register, TileKind, TilePlace};
use npu::txn::{Op, Stream};
use npu::uapi::{BoKind, CommandState, CreateBo, GemClose, GetBoInfo, MAX_CONTEXTS, SetState};
use npu::xclbin::Xclbin;
use rustix::io::Errno;

use super::{Random, data, reference, small_overlay};

const TIMEOUT: Duration = Duration::from_secs(2);
/// Calls that release something: after their failure nothing is wrong.
const RELEASES: [&str; 4] = ["munmap", "GEM_CLOSE", "DESTROY_HWCTX", "SYNCOBJ_DESTROY"];
const EXPANDABLE: HeapRule = HeapRule::Expandable { chunks: 8 };

fn driver(rule: HeapRule) -> FakeDriver {
    FakeDriver::new(rule, small_overlay::overlay().library())
}

/// A product through the driver.
fn gemm(
    driver: &FakeDriver,
    overlay: &Overlay,
    image: &[u8],
    shape: (usize, usize, usize),
) -> npu::Result<bool> {
    let (m, k, n) = shape;
    let plan = GemmPlan::new(overlay, m, k, n)?;
    let mut random = Random(1);
    let (a, b) = (random.matrix(m * k), random.matrix(k * n));

    let device = Device::open(driver.open())?;
    let context = device.context(u16::from(overlay.columns), image)?;
    let instructions = device.instructions(&plan.stream()?)?;
    let (packed_a, packed_b) = (plan.pack_a(&a)?, plan.pack_b(&b)?);
    let (buffer_a, buffer_b) = (device.buffer(packed_a.len())?, device.buffer(packed_b.len())?);
    let buffer_c = device.buffer(plan.c_bytes())?;
    buffer_a.write(&packed_a)?;
    buffer_b.write(&packed_b)?;
    context.run(&instructions, &[&buffer_a, &buffer_b, &buffer_c], TIMEOUT)?;
    let mut c = vec![0; plan.c_bytes()];
    buffer_c.read(&mut c)?;
    Ok(plan.unpack_c(&c)? == reference(&a, &b, k, n))
}

fn small(driver: &FakeDriver) -> npu::Result<bool> {
    gemm(driver, &small_overlay::overlay(), &small_overlay::pdi(), (9, 40, 20))
}

#[test]
fn a_product_through_the_driver() {
    for rule in [HeapRule::Fixed, EXPANDABLE] {
        let driver = driver(rule);
        assert!(small(&driver).unwrap_or_else(|error| panic!("{rule:?}: {error}")), "{rule:?}");
        assert_eq!(driver.leaks(), [""; 0], "{rule:?}");
    }
}

#[test]
fn the_calls_of_a_run() {
    let driver = driver(HeapRule::Fixed);
    small(&driver).expect("a product");
    let buffer = ["CREATE_BO", "GET_BO_INFO", "mmap", "GET_BO_INFO"];
    let in_heap = ["CREATE_BO", "GET_BO_INFO", "SYNC_BO"];
    let mut want = vec!["VERSION", "GET_INFO"];
    // The heap, and the PDI in it; the context; the stream.
    want.extend(["mmap", "CREATE_BO", "GET_BO_INFO", "mmap"]);
    want.extend(in_heap);
    want.extend(["CREATE_HWCTX", "CONFIG_HWCTX"]);
    want.extend(in_heap);
    // A, B and C, each flushed; A and B are written.
    for _ in 0..3 {
        want.extend(buffer);
        want.push("SYNC_BO");
    }
    want.extend(["SYNC_BO", "SYNC_BO"]);
    // The command, which is closed after the wait; C is read.
    want.extend(buffer);
    want.extend(["EXEC_CMD", "SYNCOBJ_TIMELINE_WAIT", "munmap", "GEM_CLOSE", "SYNC_BO"]);
    // C, B, A; the stream; the context and its PDI; the heap and its addresses.
    want.extend(["munmap", "GEM_CLOSE"].repeat(3));
    want.extend(["GEM_CLOSE", "DESTROY_HWCTX", "SYNCOBJ_DESTROY", "GEM_CLOSE"]);
    want.extend(["munmap", "GEM_CLOSE", "munmap"]);
    assert_eq!(driver.calls(), want);
}

#[test]
fn a_fault_at_any_call_is_an_error_without_leaks() {
    let calls = driver(HeapRule::Fixed);
    small(&calls).expect("a product");
    let calls = calls.calls();
    let is_release = |name: &str| RELEASES.contains(&name);
    let errors = [Errno::INVAL, Errno::NOMEM, Errno::NODEV, Errno::AGAIN, Errno::NOSPC, Errno::TIME];
    let mut failed = 0;
    for rule in [HeapRule::Fixed, EXPANDABLE] {
        for (index, name) in calls.iter().enumerate() {
            for error in errors {
                let driver = driver(rule);
                driver.fail_call(index, error);
                let result = small(&driver);
                // EAGAIN for a device buffer asks for another chunk of the heap, which expandable ones have.
                let retried = error == Errno::AGAIN && *name == "CREATE_BO" && rule == EXPANDABLE;
                match result {
                    Ok(right) => {
                        assert!(right && (is_release(name) || retried), "{name} ({index}): {error}");
                    }
                    Err(_) => failed += 1,
                }
                // A context that may exist keeps its PDI and the heap.
                let is_kept = *name == "DESTROY_HWCTX";
                let kept = if is_kept { &["2 buffers", "1 mappings", "1 ranges"][..] } else { &[] };
                assert_eq!(driver.leaks(), kept, "{name} ({index}): {error}");
            }
        }
    }
    println!("{failed} faults at {} calls, each an error without leaks", calls.len());
    let others = calls.iter().filter(|name| !is_release(name)).count();
    // Two buffers are in the heap: the PDI and the stream.
    assert_eq!(failed, 2 * errors.len() * others - 2);
}

#[test]
fn the_rules_of_the_kernel() {
    let driver = driver(HeapRule::Fixed);
    let node = driver.open();
    let create = |size, kind| {
        let mut args = CreateBo::new(BoKind::Shared, size);
        args.kind = kind;
        node.call(Call::CreateBuffer(&mut args)).map(|()| args.handle)
    };
    let errno = |result: std::io::Result<u32>| result.expect_err("a rule is broken").raw_os_error();
    let code = |errno: Errno| Some(errno.raw_os_error());
    assert_eq!(errno(create(4096, 3)), code(Errno::INVAL), "a device buffer before the heap");
    assert_eq!(errno(create(32 << 20, 2)), code(Errno::INVAL), "a heap of another size");
    assert_eq!(errno(create(0, 1)), code(Errno::INVAL), "nothing");
    assert_eq!(errno(create(4096, 9)), code(Errno::INVAL), "an unknown kind");
    let heap = create(64 << 20, 2).expect("a heap");
    assert_eq!(errno(create(4096, 3)), code(Errno::INVAL), "a device buffer before the heap is mapped");
    assert_eq!(errno(create(64 << 20, 2)), code(Errno::BUSY), "a second heap");
    let mut info = GetBoInfo::new(heap);
    node.call(Call::BufferInfo(&mut info)).expect("an answer");
    let odd = node.reserve(256 << 20, 32 << 20).expect("a range");
    assert!(node.map_into(&odd, 32 << 20, info.map_offset, 64 << 20).is_err(), "not a multiple of 64 MiB");

    let mut args = SetState::default();
    let state = node.call(Call::SetState { args: &mut args, buffer: &[0; 8] });
    assert_eq!(state.expect_err("not root").raw_os_error(), code(Errno::ACCESS));
    driver.set_root(true);
    node.call(Call::SetState { args: &mut args, buffer: &[0; 8] }).expect("root");
}

#[test]
fn at_most_six_contexts() {
    let driver = driver(HeapRule::Fixed);
    let image = small_overlay::pdi();
    // Of one device or of several: each opens the node, and has a heap of its own.
    let devices = [0; 2].map(|_| Device::open(driver.open()).expect("a device"));
    let mut contexts: Vec<Context<_>> = Vec::new();
    for index in 0..MAX_CONTEXTS {
        contexts.push(devices[index % 2].context(1, &image).expect("a context"));
    }
    let error = devices[0].context(1, &image).err().expect("a seventh context");
    assert!(error.to_string().contains("all contexts may be in use") && !error.is_of_device(), "{error}");
    contexts.pop();
    contexts.push(devices[0].context(1, &image).expect("a context in place of another"));
    // Handles belong to the opened node.
    let foreign = devices[1].instructions(&Stream::new(1, Vec::new())).expect("a stream");
    let error = contexts[0].run(&foreign, &[], TIMEOUT).expect_err("another node's stream").to_string();
    assert!(error.contains("EXEC_CMD"), "{error}");
    drop((foreign, contexts, devices));
    assert_eq!(driver.leaks(), [""; 0]);
}

/// An opened node that a test calls beside the runtime.
#[derive(Clone)]
struct SharedNode(Arc<FakeNode>);

impl AccelIo for SharedNode {
    type Memory = FakeMemory;
    type Range = FakeRange;

    fn call(&self, call: Call<'_>) -> std::io::Result<()> {
        self.0.call(call)
    }

    fn map(&self, map_offset: u64, len: u64) -> std::io::Result<FakeMemory> {
        self.0.map(map_offset, len)
    }

    fn reserve(&self, len: u64, align: u64) -> std::io::Result<FakeRange> {
        self.0.reserve(len, align)
    }

    fn map_into(&self, range: &FakeRange, at: u64, map_offset: u64, len: u64) -> std::io::Result<FakeMemory> {
        self.0.map_into(range, at, map_offset, len)
    }

    fn deadline(&self, timeout: Duration) -> i64 {
        self.0.deadline(timeout)
    }
}

#[test]
fn memory_that_goes_while_the_npu_may_use_it_is_noticed() {
    let close = |node: &SharedNode, handle| {
        let mut args = GemClose::default();
        args.handle = handle;
        node.call(Call::CloseBuffer(&args))
    };
    let driver = driver(HeapRule::Fixed);
    let node = SharedNode(Arc::new(driver.open()));
    let device = Device::open(node.clone()).expect("a device");
    let context = device.context(1, &small_overlay::pdi()).expect("a context");
    let instructions = device.instructions(&Stream::new(1, Vec::new())).expect("a stream");
    let [used, unused] = [0; 2].map(|_| device.buffer(64).expect("a buffer"));
    let early = || driver.released_early().len();
    let fence = context.submit(&instructions, &[&used]).expect("a fence");
    // All objects of this driver, while a command runs: the heap, the PDI, the stream, a buffer and the command.
    let closed = (0..40).filter(|&handle| close(&node, handle).is_ok()).count();
    assert_eq!((closed, early()), (6, 5), "{:?}", driver.released_early());
    drop(fence);
    drop((used, unused, instructions, context, device));
    assert_eq!(early(), 5, "the context was destroyed before memory was unmapped");
}

#[test]
fn what_cannot_be_stopped_keeps_its_memory() {
    for is_forgotten in [false, true] {
        let driver = driver(HeapRule::Fixed);
        let device = Device::open(driver.open()).expect("a device");
        let context = device.context(1, &small_overlay::pdi()).expect("a context");
        let instructions = device.instructions(&Stream::new(1, Vec::new())).expect("a stream");
        let [used, unused] = [0; 2].map(|_| device.buffer(64).expect("a buffer"));
        driver.set_outcome(CommandOutcome::Hang);
        let fence = context.submit(&instructions, &[&used]).expect("a fence");
        let before = driver.calls().len();
        if is_forgotten {
            std::mem::forget(fence);
        } else {
            // After the wait.
            driver.refuse_call(before + 1, Errno::NODEV);
            let error = fence.wait(TIMEOUT).expect_err("a hang");
            assert!(matches!(error, Error::NotStopped { .. }) && error.is_of_device(), "{error}");
            let text = error.to_string();
            assert!(text.contains("did not finish") && text.contains("cannot be destroyed"), "{text}");
            assert!(matches!(context.submit(&instructions, &[]), Err(Error::ContextLost)));
        }
        drop((used, unused, instructions, context, device));
        assert_eq!(driver.released_early(), [""; 0]);
        let count = |name: &str| driver.calls()[before..].iter().filter(|call| **call == name).count();
        // The unused buffer, and if it could be stopped its PDI.
        assert_eq!((count("munmap"), count("GEM_CLOSE")), (1, 1 + usize::from(is_forgotten)));
        assert_eq!(count("DESTROY_HWCTX"), 1);
        // The heap is kept with its context; others go on.
        let (device, image) = (Device::open(driver.open()).expect("a device"), small_overlay::pdi());
        let contexts: Vec<_> = (0..MAX_CONTEXTS).map_while(|_| device.context(1, &image).ok()).collect();
        assert_eq!(contexts.len(), if is_forgotten { 6 } else { 5 });
    }
}

#[test]
fn heaps_of_both_rules_fill_up() {
    // A stream of somewhat more than 20 MiB: three fit into 64 MiB.
    let stream = Stream::new(1, vec![Op::BlockWrite { address: 0x20_0000, data: vec![0; 21 << 18] }]);
    for (rule, most) in [(HeapRule::Fixed, 3), (HeapRule::Expandable { chunks: 2 }, 6)] {
        let driver = driver(rule);
        let device = Device::open(driver.open()).expect("a device");
        let mut streams = Vec::new();
        let error = loop {
            match device.instructions(&stream) {
                Ok(stream) => streams.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(streams.len(), most, "{rule:?}");
        assert!(matches!(error, Error::HeapFull { .. }), "{error}");
        streams.pop();
        device.instructions(&stream).expect("room again");
        drop((streams, device));
        assert_eq!(driver.leaks(), [""; 0], "{rule:?}");
    }
}

#[test]
fn a_heap_that_cannot_grow_says_what_is_missing() {
    let stream = Stream::new(1, vec![Op::BlockWrite { address: 0x20_0000, data: vec![0; 21 << 18] }]);
    // The refused creation asks for a chunk: its creation, its address, its mapping.
    for (after, error, expected, is_of_device) in [
        (1, Errno::NOMEM, "raise the limit of locked memory", false),
        (1, Errno::NODEV, "the driver has lost the NPU", true),
        (1, Errno::BUSY, "no room", false),
        (3, Errno::AGAIN, "raise the limit of locked memory", false),
    ] {
        let driver = driver(EXPANDABLE);
        let device = Device::open(driver.open()).expect("a device");
        let streams = [0; 3].map(|_| device.instructions(&stream).expect("room for three"));
        driver.fail_call(driver.calls().len() + after, error);
        let failed = device.instructions(&stream).err().expect("no room for a fourth");
        assert!(failed.to_string().contains(expected), "{error}: {failed}");
        assert_eq!(failed.is_of_device(), is_of_device, "{error}: {failed}");
        // It grows when it can.
        let fourth = device.instructions(&stream).expect("another chunk");
        drop((fourth, streams, device));
        assert_eq!(driver.leaks(), [""; 0], "{error}");
    }
}

#[test]
fn failed_and_late_commands_lose_the_context() {
    let outcomes = [
        CommandOutcome::End(CommandState::Error),
        CommandOutcome::End(CommandState::Abort),
        CommandOutcome::End(CommandState::Timeout),
        CommandOutcome::End(CommandState::NoResponse),
        CommandOutcome::Hang,
    ];
    for outcome in outcomes {
        let driver = driver(HeapRule::Fixed);
        let device = Device::open(driver.open()).expect("a device");
        let context = device.context(1, &small_overlay::pdi()).expect("a context");
        let instructions = device.instructions(&Stream::new(1, Vec::new())).expect("a stream");
        context.run(&instructions, &[], TIMEOUT).expect("an empty stream");
        driver.set_outcome(outcome);
        let error = context.run(&instructions, &[], TIMEOUT).expect_err("a failed command");
        match outcome {
            CommandOutcome::Hang => {
                assert!(matches!(error, Error::Timeout { milliseconds: 2000 }), "{error}")
            }
            _ => assert!(matches!(error, Error::CommandFailed { .. }), "{error}"),
        }
        // The NPU has stopped before any buffer can be unmapped.
        let calls = driver.calls();
        assert_eq!(calls[calls.len() - 3..], ["DESTROY_HWCTX", "munmap", "GEM_CLOSE"], "{outcome:?}");
        driver.set_outcome(CommandOutcome::Run);
        let error = context.run(&instructions, &[], TIMEOUT).expect_err("a lost context");
        assert!(matches!(error, Error::ContextLost), "{error}");
        // Another one works.
        let another = device.context(1, &small_overlay::pdi()).expect("a context");
        another.run(&instructions, &[], TIMEOUT).expect("an empty stream");
        drop((another, context, instructions, device));
        assert_eq!(driver.leaks(), [""; 0], "{outcome:?}");
    }
}

#[test]
fn a_dropped_fence_destroys_the_context() {
    let driver = driver(HeapRule::Fixed);
    let device = Device::open(driver.open()).expect("a device");
    let context = device.context(1, &small_overlay::pdi()).expect("a context");
    let instructions = device.instructions(&Stream::new(1, Vec::new())).expect("a stream");
    let first = context.submit(&instructions, &[]).expect("a fence");
    let second = context.submit(&instructions, &[]).expect("a fence");
    second.wait(TIMEOUT).expect("an empty stream");
    first.wait(TIMEOUT).expect("an empty stream");
    drop(context.submit(&instructions, &[]).expect("a fence"));
    assert!(matches!(context.submit(&instructions, &[]), Err(Error::ContextLost)));
    drop((context, instructions, device));
    assert_eq!(driver.leaks(), [""; 0]);
}

#[test]
fn faults_of_the_array_reach_the_caller() {
    let driver = driver(HeapRule::Fixed);
    let device = Device::open(driver.open()).expect("a device");
    let shim = TilePlace { column: 0, row: 0 };
    let address =
        u64::from(shim.address(Register::Lock { index: 0 }.offset(TileKind::Shim).expect("a lock")));

    let context = device.context(1, &small_overlay::pdi()).expect("a context");
    let bad = device.instructions(&Stream::new(1, vec![Op::Write { address, value: 64 }])).expect("a stream");
    let error = context.run(&bad, &[], TIMEOUT).expect_err("a lock above 63");
    assert!(matches!(error, Error::CommandFailed { state: CommandState::Error }), "{error}");
    assert!(driver.fault().is_some_and(|fault| fault.to_string().contains("0 to 63")));

    // A stream that waits for what does not happen ends in a timeout.
    let context = device.context(1, &small_overlay::pdi()).expect("a context");
    let poll = Op::MaskPoll { address, value: 1, mask: 1 };
    let never = device.instructions(&Stream::new(1, vec![poll])).expect("a stream");
    let error = context.run(&never, &[], TIMEOUT).expect_err("a wait without end");
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
}

#[test]
fn wrong_uses_are_errors() {
    let other = driver(HeapRule::Fixed);
    other.set_name("amdgpu");
    let error = Device::open(other.open()).err().expect("another driver").to_string();
    assert!(error.contains("amdgpu"), "{error}");

    let driver = driver(HeapRule::Fixed);
    let device = Device::open(driver.open()).expect("a device");
    assert_eq!((device.metadata().cols, device.driver_version()), (5, (0, 7)));
    assert!(device.context(6, &small_overlay::pdi()).is_err(), "more columns than there are");
    assert!(device.context(1, b"no PDI").is_err());
    let context = device.context(1, &small_overlay::pdi()).expect("a context");
    let instructions = device.instructions(&Stream::new(1, Vec::new())).expect("a stream");
    let buffer = device.buffer(64).expect("a buffer");
    assert!(matches!(buffer.write(&[0; 65]), Err(Error::OutOfBounds { .. })));
    assert!(buffer.read(&mut [0; 65]).is_err());
    let error = context.submit(&instructions, &[&buffer; 6]).err().expect("six buffers");
    assert!(matches!(error, Error::TooManyArguments { given: 6, limit: 5 }), "{error}");
}

#[test]
fn public_overlays_through_the_driver() {
    for (overlay, shape) in
        [(&Overlay::GEMM_256_1COL, (40, 256, 70)), (&Overlay::GEMM_512_4COL, (256, 600, 130))]
    {
        let Some(file) = data(&format!("{}.xclbin", overlay.name)) else { continue };
        let partition = Xclbin::decode(&file).and_then(|xclbin| xclbin.partition()).expect("a partition");
        let driver = FakeDriver::new(HeapRule::Fixed, overlay.library());
        assert_eq!(partition.columns, u16::from(overlay.columns));
        let right = gemm(&driver, overlay, &partition.pdis[0].image, shape);
        assert!(right.unwrap_or_else(|error| panic!("{}: {error}", overlay.name)), "{}", overlay.name);
        assert_eq!(driver.leaks(), [""; 0]);
    }
}

#[test]
fn facts_of_the_driver_are_queried() {
    let driver = driver(HeapRule::Fixed);
    let facts = DriverFacts::query(&driver.open()).expect("facts");
    assert_eq!((facts.version, facts.firmware), ((0, 7), Some([1, 5, 2, 380])));
    assert_eq!((facts.array.cols, facts.array.core.row_count, facts.power_mode), (5, 4, Some("default")));
    let clocks: Vec<_> = facts.clocks.iter().map(|clock| (clock.name.as_str(), clock.mhz)).collect();
    assert_eq!(clocks, [("MP-NPU Clock", 600), ("H Clock", 1024)]);
    assert_eq!(facts.watts, None, "the kernel cannot read the power of Phoenix");
    assert_eq!(driver.leaks(), [""; 0]);
    // Optional answers may fail; the others may not.
    for (index, name) in driver.calls().iter().enumerate() {
        let failing = self::driver(HeapRule::Fixed);
        failing.fail_call(index, Errno::INVAL);
        assert_eq!(DriverFacts::query(&failing.open()).is_ok(), index >= 2, "{name} ({index})");
    }
}

#[test]
fn the_self_test_passes_and_notices_a_wrong_element() {
    let (overlay, image) = (small_overlay::overlay(), small_overlay::pdi());
    let subject = selftest::Subject::Generated(overlay.clone());
    let model = selftest::on_model(&subject, &image, &mut |_| {}).expect("products");
    assert!(model.passed() && model.dispatch.is_none() && model.products[0].gops().is_none(), "{model:?}");
    assert_eq!(model.products.len(), 2);

    let driver = driver(HeapRule::Fixed);
    let device = Device::open(driver.open()).expect("a device");
    let mut reported = Vec::new();
    let mut report = |product: &selftest::Product| reported.push(product.clone());
    let outcome = selftest::on_device(&device, &subject, &image, TIMEOUT, &mut report).expect("products");
    assert!(outcome.passed() && outcome.dispatch.is_some(), "{outcome:?}");
    assert_eq!(outcome.products, reported);
    let compared = |(m, _, n): selftest::Shape| 10 * m * n;
    for (product, shape) in outcome.products.iter().zip(selftest::shapes(&overlay)) {
        assert_eq!((product.shape, product.compared, product.wrong), (shape, compared(shape), 0));
    }

    // Commands that do nothing leave C as it was.
    driver.set_outcome(CommandOutcome::End(CommandState::Completed));
    let outcome = selftest::on_device(&device, &subject, &image, TIMEOUT, &mut |_| {}).expect("products");
    let product = &outcome.products[0];
    assert!(!outcome.passed() && product.wrong == product.compared, "{product:?}");
    let (row, column, found, right) = product.first_wrong.expect("a wrong element");
    assert_eq!((row, column, found), (0, 0, i32::from_le_bytes([0xa5; 4])));
    assert_ne!(found, right);
    drop(device);
    assert_eq!(driver.leaks(), [""; 0]);
}
