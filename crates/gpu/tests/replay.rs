//! Replaying a program records no commands and allocates no memory, on the device or on the host.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use gpu::{Counters, Lifetime};
use kernels::bench::probe::Touch;

/// The system allocator with a counter.
struct CountingAllocator;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is forwarded to the system allocator unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds GlobalAlloc's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds GlobalAlloc's contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

// The only test of this binary: allocations of concurrent tests would be counted too.
#[test]
fn replay_records_and_allocates_nothing() {
    const REPLAYS: u64 = 50;
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = kernels::selftest::arena(&device);
    let counter = arena.buffer_from("counter", &[0_u32]).unwrap();
    let touch = Touch::new(&device, true).unwrap();
    let mut recorder = device.recorder().unwrap();
    for _ in 0..10 {
        touch.record(&mut recorder, "touch", &counter.view()).unwrap();
    }
    let program = recorder.seal().unwrap();
    program.run(Duration::from_secs(120)).unwrap();

    let device_before = device.counters();
    let host_before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..REPLAYS / 2 {
        program.run(Duration::from_secs(120)).unwrap();
        // Also several programs per submission.
        let ticket = device.submit(&[&program, &program]).unwrap();
        device.wait(ticket, Duration::from_secs(120)).unwrap();
    }
    let host_after = ALLOCATIONS.load(Ordering::Relaxed);
    let device_after = device.counters();

    assert_eq!(host_after - host_before, 0, "the host allocated while replaying");
    let expected = Counters { submissions: device_before.submissions + REPLAYS, ..device_before };
    assert_eq!(device_after, expected, "only submissions may count up");
    assert_eq!(counter.read_vec::<u32>().unwrap(), [10 * (1 + 3 * REPLAYS as u32 / 2)]);

    // Cross-check: the counters do change when recording and allocating.
    let mut recorder = device.recorder().unwrap();
    touch.record(&mut recorder, "touch", &counter.view()).unwrap();
    let other = gpu::Arena::new(&device, Lifetime::Kv, gpu::Memory::Device).buffer("other", 64).unwrap();
    assert!(device.counters().commands_recorded > device_after.commands_recorded);
    assert_eq!(device.counters().allocations, device_after.allocations + 1);
    assert!(ALLOCATIONS.load(Ordering::Relaxed) > host_after);
    drop(other);
    device.assert_no_messages();
}
