//! Replaying a program records nothing and allocates nothing: neither on the device nor on the host.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use gpu::{Counters, Lifetime};
use kernels::bench::probe::Touch;

/// The system's allocator, counting.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: by the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: by the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// The only test of this binary: another one running beside it would be counted too.
#[test]
fn a_replay_records_and_allocates_nothing() {
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
    program.run(Duration::from_secs(10)).unwrap();

    let device_before = device.counters();
    let host_before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..REPLAYS / 2 {
        program.run(Duration::from_secs(10)).unwrap();
        // Several at once, too.
        let ticket = device.submit(&[&program, &program]).unwrap();
        device.wait(ticket, Duration::from_secs(10)).unwrap();
    }
    let host_after = ALLOCATIONS.load(Ordering::Relaxed);
    let device_after = device.counters();

    assert_eq!(host_after - host_before, 0, "the host allocated while replaying");
    let expected = Counters { submissions: device_before.submissions + REPLAYS, ..device_before };
    assert_eq!(device_after, expected, "only submissions may count up");
    assert_eq!(counter.read_vec::<u32>().unwrap(), [10 * (1 + 3 * REPLAYS as u32 / 2)]);

    // The counters do count: recording and allocating show.
    let mut recorder = device.recorder().unwrap();
    touch.record(&mut recorder, "touch", &counter.view()).unwrap();
    let other = gpu::Arena::new(&device, Lifetime::Kv, gpu::Memory::Device).buffer("other", 64).unwrap();
    assert!(device.counters().commands_recorded > device_after.commands_recorded);
    assert_eq!(device.counters().allocations, device_after.allocations + 1);
    assert!(ALLOCATIONS.load(Ordering::Relaxed) > host_after);
    drop(other);
    device.assert_no_messages();
}
