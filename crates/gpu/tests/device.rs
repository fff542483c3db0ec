//! Memory, recording, fault injection and the pipeline cache on Mesa's CPU driver with the validation layer.

use std::time::Duration;

use gpu::{Arena, DeviceOptions, Error, Fault, Lifetime, Memory, StagingRing, TimestampMode};
use kernels::bench::probe::{Read, ReadShape, Touch};

const TIMEOUT: Duration = Duration::from_secs(1800);

#[test]
fn arenas_cut_aligned_disjoint_buffers_and_free_whole_blocks() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = Arena::new(&device, Lifetime::Weights, Memory::Shared).with_block_size(1 << 16);
    let buffers: Vec<_> = [1, 300, 256, 5000].map(|size| arena.buffer("b", size).unwrap()).into();
    for (i, a) in buffers.iter().enumerate() {
        assert_eq!(a.view().address() % 256, 0);
        for b in &buffers[i + 1..] {
            let (a, b) = (a.view(), b.view());
            assert!(a.address() + a.len() <= b.address() || b.address() + b.len() <= a.address());
        }
    }
    assert_eq!(device.counters().allocations, 1, "small buffers share a block");
    // A large buffer gets a block of exactly its size.
    let large = arena.buffer("large", 1 << 20).unwrap();
    assert_eq!(device.counters().allocations, 2);
    let small = arena.buffer("small again", 16).unwrap();
    assert_eq!(device.counters().allocations, 2, "the current block still has room");
    assert_eq!(device.allocated_bytes(Lifetime::Weights), (1 << 16) + (1 << 20));
    assert_eq!(arena.allocated_bytes(), device.allocated_bytes(Lifetime::Weights));
    drop((arena, buffers, small));
    assert_eq!(
        device.allocated_bytes(Lifetime::Weights),
        1 << 20,
        "a block lives as long as its last buffer"
    );
    drop(large);
    assert_eq!(device.allocated_bytes(Lifetime::Weights), 0);
    device.assert_no_messages();
}

#[test]
fn accesses_outside_a_buffer_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = Arena::new(&device, Lifetime::Scratch, Memory::Shared);
    let mut buffer = arena.buffer("b", 100).unwrap();
    buffer.write(90, &[1; 10]).unwrap();
    assert!(matches!(buffer.write(91, &[1; 10]), Err(Error::InvalidUse { .. })));
    assert!(matches!(buffer.write(u64::MAX, &[1; 10]), Err(Error::InvalidUse { .. })));
    assert!(buffer.read(100, &mut [0; 1]).is_err());
    assert!(buffer.slice(50..101).is_err());
    assert!(arena.buffer("nothing", 0).is_err());
    let limit = device.caps().max_allocation;
    assert!(matches!(arena.buffer("huge", limit + 1), Err(Error::AllocationTooLarge { .. })));
}

#[test]
fn exhausted_memory_is_reported_before_allocating() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = Arena::new(&device, Lifetime::Kv, Memory::Device);
    let free = device.heaps()[0].free();
    let mut kept = Vec::new();
    // The CPU driver commits memory only when it is written, so these allocations cost nothing.
    let error = loop {
        match arena.buffer("KV cache", device.caps().max_allocation) {
            Ok(buffer) => kept.push(buffer),
            Err(error) => break error,
        }
        assert!(
            kept.len() as u64 <= free / device.caps().max_allocation + 1,
            "more was allocated than the heap has"
        );
    };
    assert!(matches!(error, Error::OutOfDeviceMemory { .. }), "{error}");
    assert!(error.to_string().contains("KV cache needs"), "{error}");
    drop((arena, kept));
    assert_eq!(device.allocated_bytes(Lifetime::Kv), 0);
}

#[test]
fn an_injected_allocation_failure_leaks_nothing() {
    let Some(device) = testkit::cpu_device() else { return };
    device.inject(Fault::Allocation { allocation: 2 });
    let mut arena = Arena::new(&device, Lifetime::Weights, Memory::Device).with_block_size(4096);
    let first = arena.buffer("first", 4096).unwrap();
    assert!(matches!(arena.buffer("second", 4096), Err(Error::OutOfDeviceMemory { .. })));
    assert_eq!(device.allocated_bytes(Lifetime::Weights), 4096);
    arena.buffer("third works again", 4096).unwrap();
    drop((arena, first));
    assert_eq!(device.allocated_bytes(Lifetime::Weights), 0);
    device.assert_no_messages();
}

#[test]
fn a_lost_device_fails_all_calls_and_can_be_reopened() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = kernels::selftest::arena(&device);
    let counter = arena.buffer_from("counter", &[0_u32]).unwrap();
    let touch = Touch::new(&device, true).unwrap();
    let mut recorder = device.recorder().unwrap();
    touch.record(&mut recorder, "touch", &counter.view()).unwrap();
    let program = recorder.seal().unwrap();
    device.inject(Fault::DeviceLost { submission: 3 });
    program.run(TIMEOUT).unwrap();
    let ticket = program.submit().unwrap();
    assert!(matches!(program.submit(), Err(Error::DeviceLost { .. })));
    assert!(matches!(device.wait(ticket, TIMEOUT), Err(Error::DeviceLost { .. })));
    assert!(matches!(program.submit(), Err(Error::DeviceLost { .. })));
    assert!(matches!(arena.buffer("more", 1 << 24), Err(Error::DeviceLost { .. })));
    assert!(matches!(device.recorder().map(|_| ()), Err(Error::DeviceLost { .. })));
    drop((program, arena, counter));

    let adapters = device.instance().adapters().unwrap();
    let again =
        gpu::Device::open(gpu::select_adapter(&adapters, None).unwrap(), &DeviceOptions::default()).unwrap();
    assert!(again.recorder().unwrap().seal().unwrap().run(TIMEOUT).is_ok());
}

#[test]
fn barriers_follow_from_buffer_accesses() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = kernels::selftest::arena(&device);
    let words = arena.buffer_from("words", &[0_u32; 256]).unwrap();
    let touch = Touch::new(&device, true).unwrap();
    let barriers = |offsets: &[u64]| {
        let before = device.counters().barriers_recorded;
        let mut recorder = device.recorder().unwrap();
        for offset in offsets {
            touch.record(&mut recorder, "touch", &words.slice(*offset..offset + 4).unwrap()).unwrap();
        }
        recorder.seal().unwrap().run(TIMEOUT).unwrap();
        // Every program has one barrier at each end.
        device.counters().barriers_recorded - before - 2
    };
    assert_eq!(barriers(&[0, 4, 8, 12]), 0);
    assert_eq!(barriers(&[0, 0, 0, 0]), 3);
    assert_eq!(barriers(&[0, 4, 0, 4]), 1);
    assert_eq!(words.read_vec::<u32>().unwrap()[..4], [7, 3, 1, 1]);
    device.assert_no_messages();
}

#[test]
fn copies_fills_and_dispatches_are_ordered() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = kernels::selftest::arena(&device);
    let a = arena.buffer_from("a", &[0_u32; 16]).unwrap();
    let b = arena.buffer_from("b", &[0_u32; 16]).unwrap();
    let touch = Touch::new(&device, true).unwrap();
    let mut recorder = device.recorder().unwrap();
    recorder.fill("fill", &a, 41).unwrap();
    touch.record(&mut recorder, "touch", &a.view()).unwrap();
    recorder.copy("copy", &a, &b).unwrap();
    touch.record(&mut recorder, "touch", &b.view()).unwrap();
    assert!(recorder.copy("uneven", a.slice(0..8).unwrap(), b.slice(0..4).unwrap()).is_err());
    assert!(recorder.fill("odd", a.slice(0..3).unwrap(), 0).is_err());
    assert!(recorder.fill("nothing", a.slice(8..8).unwrap(), 0).is_err());
    assert!(recorder.copy("onto itself", a.slice(0..8).unwrap(), a.slice(4..12).unwrap()).is_err());
    let program = recorder.seal().unwrap();
    program.run(TIMEOUT).unwrap();
    assert_eq!(a.read_vec::<u32>().unwrap()[..2], [42, 41]);
    assert_eq!(b.read_vec::<u32>().unwrap()[..2], [43, 41]);
    device.assert_no_messages();
}

#[test]
fn a_staging_ring_uploads_more_data_than_it_holds() {
    let Some(device) = testkit::cpu_device() else { return };
    const SLOT: usize = 4096;
    let data: Vec<u8> = (0..SLOT * 7 + 123).map(|i| (i * 31 % 251) as u8).collect();
    let mut arena = Arena::new(&device, Lifetime::Weights, Memory::Shared);
    let target = arena.buffer("target", data.len() as u64).unwrap();
    let ring = StagingRing::new(&device, 3, SLOT as u64, TIMEOUT).unwrap();
    // Two threads fill slots, each with every other chunk.
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (ring, data, target) = (&ring, &data, &target);
            scope.spawn(move || {
                for (i, chunk) in data.chunks(SLOT).enumerate().filter(|(i, _)| i % 2 == thread) {
                    let mut slot = ring.acquire().unwrap();
                    slot.bytes_mut().unwrap()[..chunk.len()].copy_from_slice(chunk);
                    let (at, len) = ((i * SLOT) as u64, chunk.len() as u64);
                    let to = target.slice(at..at + len).unwrap();
                    ring.send(slot, |recorder, from| recorder.copy("chunk", from.slice(0..len)?, to))
                        .unwrap();
                }
            });
        }
    });
    ring.finish().unwrap();
    assert_eq!(target.read_vec::<u8>().unwrap(), data);
    assert_eq!(device.allocated_bytes(Lifetime::Staging), (3 * SLOT) as u64);
    drop(ring);
    assert_eq!(device.allocated_bytes(Lifetime::Staging), 0);
    device.assert_no_messages();
}

#[test]
fn a_staging_ring_returns_slots_after_errors() {
    let Some(device) = testkit::cpu_device() else { return };
    let ring = StagingRing::new(&device, 2, 256, Duration::from_millis(50)).unwrap();
    let target = Arena::new(&device, Lifetime::Weights, Memory::Device).buffer("target", 256).unwrap();
    for _ in 0..4 {
        let slot = ring.acquire().unwrap();
        // An invalid copy: the slot still returns to the ring.
        let failed = ring.send(slot, |recorder, from| recorder.copy("invalid", from.slice(0..128)?, &target));
        assert!(matches!(failed, Err(Error::InvalidUse { .. })));
    }
    let slots = [(); 2].map(|()| ring.acquire().unwrap());
    assert!(matches!(ring.acquire().map(|_| ()), Err(Error::Timeout { .. })), "all slots are taken");
    slots.into_iter().for_each(|slot| ring.release(slot));
    let slot = ring.acquire().unwrap();
    ring.send(slot, |recorder, from| recorder.copy("valid", from.clone(), &target)).unwrap();
    ring.finish().unwrap();
    drop(target);
    assert_eq!(device.allocated_bytes(Lifetime::Weights), 0, "an idle ring keeps no destination alive");
    device.assert_no_messages();
}

#[test]
fn a_wait_times_out_and_succeeds_later() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = Arena::new(&device, Lifetime::Scratch, Memory::Device);
    let source = arena.buffer("source", 256 << 20).unwrap();
    let mut mapped = arena.buffer("mapped", 64).unwrap();
    let result = arena.buffer("result", 64).unwrap();
    let shape = ReadShape { threads: 128, groups: 16, in_flight: 4 };
    let mut recorder = device.timed_recorder(TimestampMode::PerCommand(2)).unwrap();
    let read = Read::new(&device, shape).unwrap();
    read.record(&mut recorder, "first", &source.view(), &result.view()).unwrap();
    read.record(&mut recorder, "second", &source.view(), &result.view()).unwrap();
    assert!(
        read.record(&mut recorder, "third", &source.view(), &result.view()).is_err(),
        "only two timestamps are reserved"
    );
    let program = recorder.seal().unwrap();
    assert!(program.timings().is_err(), "the program has not run yet");
    let ticket = program.submit().unwrap();
    assert!(matches!(device.wait(ticket, Duration::from_micros(10)), Err(Error::Timeout { .. })));
    assert!(!device.is_done(ticket).unwrap());
    assert!(mapped.write(0, &[1; 4]).is_err(), "the submission is still running");
    device.wait(ticket, TIMEOUT).unwrap();
    assert!(device.is_done(ticket).unwrap());
    mapped.write(0, &[1; 4]).unwrap();
    let timings = program.timings().unwrap();
    assert_eq!(timings.iter().map(|timing| timing.name.as_str()).collect::<Vec<_>>(), ["first", "second"]);
    assert!(timings.iter().all(|timing| timing.nanoseconds > 0.0), "{timings:?}");
    device.assert_no_messages();
}

#[test]
fn a_running_program_can_be_dropped() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = Arena::new(&device, Lifetime::Scratch, Memory::Device);
    let source = arena.buffer("source", 64 << 20).unwrap();
    let result = arena.buffer("result", 64).unwrap();
    let mut recorder = device.recorder().unwrap();
    let read = Read::new(&device, ReadShape { threads: 128, groups: 16, in_flight: 4 }).unwrap();
    read.record(&mut recorder, "read", &source.view(), &result.view()).unwrap();
    let program = recorder.seal().unwrap();
    program.submit().unwrap();
    drop((read, source, result, arena));
    assert!(device.allocated_bytes(Lifetime::Scratch) > 0, "the program keeps its buffers alive");
    drop(program);
    assert_eq!(device.allocated_bytes(Lifetime::Scratch), 0);
    device.assert_no_messages();
}

#[test]
fn objects_of_different_devices_are_rejected() {
    let (Some(one), Some(other)) = (testkit::cpu_device(), testkit::cpu_device()) else { return };
    let mut arena = kernels::selftest::arena(&one);
    let words = arena.buffer_from("words", &[0_u32]).unwrap();
    let touch = Touch::new(&other, true).unwrap();
    let mut recorder = other.recorder().unwrap();
    assert!(touch.record(&mut recorder, "touch", &words.view()).is_err());
    let program = recorder.seal().unwrap();
    assert!(one.submit(&[&program]).is_err());
    assert!(one.submit(&[]).is_err());
}

#[test]
fn equal_pipelines_are_compiled_once_and_cached_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let options = DeviceOptions { cache_dir: Some(dir.path().into()), ..DeviceOptions::default() };
    let Some(device) = testkit::cpu_device_with(&options) else { return };
    let file = device.cache_file().unwrap().to_path_buf();
    let [touch, again] = [(); 2].map(|()| Touch::new(&device, true).unwrap());
    let mut arena = kernels::selftest::arena(&device);
    let counter = arena.buffer_from("counter", &[0_u32]).unwrap();
    let record = |touch: &Touch| {
        let mut recorder = device.recorder().unwrap();
        touch.record(&mut recorder, "touch", &counter.view()).unwrap();
        assert_eq!(recorder.pipelines().len(), 1);
        recorder
    };
    let recorders = [record(&touch), record(&again)];
    assert_eq!(device.counters().pipelines, 0, "pipelines are compiled when a program is sealed");
    let programs = recorders.map(|recorder| recorder.seal().unwrap());
    assert_eq!(device.counters().pipelines, 1, "equal pipelines are shared");
    drop((touch, again, programs, arena, counter, device));
    assert!(file.exists());
}

#[test]
fn kept_pipelines_are_compiled_once_even_if_nothing_uses_them() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = kernels::selftest::arena(&device);
    let counter = arena.buffer_from("counter", &[0_u32]).unwrap();
    let compile = || {
        let mut recorder = device.recorder().unwrap();
        Touch::new(&device, true).unwrap().record(&mut recorder, "touch", &counter.view()).unwrap();
        recorder.seal().unwrap();
        device.counters().pipelines
    };
    assert_eq!([compile(), compile()], [1, 2]);
    let kept = [device.keep_pipelines(), device.keep_pipelines()];
    assert_eq!([compile(), compile()], [3, 3]);
    let [first, second] = kept;
    drop(first);
    assert_eq!(compile(), 3, "the second guard still keeps it");
    drop(second);
    assert_eq!(compile(), 4);
}

#[test]
fn a_workgroup_beyond_the_device_limit_is_an_error_that_names_the_shader() {
    let Some(device) = testkit::cpu_device() else { return };
    let threads = device.caps().max_threads + 1;
    let Err(error) = Read::new(&device, ReadShape { threads, groups: 1, in_flight: 4 }) else { panic!() };
    assert!(matches!(error, Error::Unsupported { .. }));
    assert!(error.to_string().contains("read.t0") && error.to_string().contains("threads"), "{error}");
}

#[test]
fn conditional_dispatches_are_skipped_while_the_predicate_is_zero() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = kernels::selftest::arena(&device);
    let mut word = arena.buffer_from("word", &[1_u32]).unwrap();
    let counter = arena.buffer_from("counter", &[0_u32]).unwrap();
    let touch = Touch::new(&device, true).unwrap();
    let mut recorder = device.recorder().unwrap();
    recorder
        .conditional(&word.view(), |recorder| {
            touch.record(recorder, "first", &counter.view())?;
            touch.record(recorder, "second", &counter.view())
        })
        .unwrap();
    touch.record(&mut recorder, "always", &counter.view()).unwrap();
    let program = recorder.seal().unwrap();
    program.run(TIMEOUT).unwrap();
    assert_eq!(counter.read_vec::<u32>().unwrap(), [3]);
    word.write(0, &[0; 4]).unwrap();
    program.run(TIMEOUT).unwrap();
    assert_eq!(
        counter.read_vec::<u32>().unwrap(),
        [4],
        "the conditional dispatches are skipped, the last one is not"
    );
    word.write(0, &[0, 0, 0, 7]).unwrap();
    program.run(TIMEOUT).unwrap();
    assert_eq!(counter.read_vec::<u32>().unwrap(), [7], "any non-zero predicate enables them");
    device.assert_no_messages();
}

#[test]
fn a_program_can_disable_later_programs_of_its_submission() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = kernels::selftest::arena(&device);
    // Three increments make it zero.
    let word = arena.buffer_from("word", &[u32::MAX - 2]).unwrap();
    let counter = arena.buffer_from("counter", &[0_u32]).unwrap();
    let touch = Touch::new(&device, true).unwrap();
    let mut recorder = device.recorder().unwrap();
    recorder
        .conditional(&word.view(), |recorder| {
            touch.record(recorder, "count", &counter.view())?;
            touch.record(recorder, "predicate", &word.view())
        })
        .unwrap();
    let program = recorder.seal().unwrap();
    let ticket = device.submit(&[&program; 8]).unwrap();
    device.wait(ticket, TIMEOUT).unwrap();
    assert_eq!((counter.read_vec::<u32>().unwrap(), word.read_vec::<u32>().unwrap()), (vec![3], vec![0]));
    // A predicate that an earlier command of the same program writes.
    let mut recorder = device.recorder().unwrap();
    recorder.fill("enable", &word, 1).unwrap();
    recorder.conditional(&word.view(), |recorder| touch.record(recorder, "count", &counter.view())).unwrap();
    recorder.fill("disable", &word, 0).unwrap();
    recorder.conditional(&word.view(), |recorder| touch.record(recorder, "count", &counter.view())).unwrap();
    recorder.seal().unwrap().run(TIMEOUT).unwrap();
    assert_eq!(counter.read_vec::<u32>().unwrap(), [4]);
    device.assert_no_messages();
}

#[test]
fn invalid_conditional_sections_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = kernels::selftest::arena(&device);
    let words = arena.buffer_from("words", &[1_u32, 0]).unwrap();
    let (word, counter) = (words.slice(0..4).unwrap(), words.slice(4..8).unwrap());
    let touch = Touch::new(&device, true).unwrap();
    let mut recorder = device.recorder().unwrap();
    let nothing = |_: &mut gpu::Recorder| Ok::<(), Error>(());
    assert!(recorder.conditional(&words.view(), nothing).is_err(), "a predicate of two words");
    recorder
        .conditional(&word, |recorder| {
            assert!(recorder.conditional(&word, nothing).is_err(), "nested");
            assert!(recorder.fill("fill", counter.clone(), 9).is_err(), "fills cannot be conditional");
            touch.record(recorder, "count", &counter)
        })
        .unwrap();
    // After an error within the section, the recorder is still usable.
    let failed: Result<(), Error> = recorder.conditional(&word, |_| Err(Error::NoDriver));
    assert!(matches!(failed, Err(Error::NoDriver)));
    recorder.seal().unwrap().run(TIMEOUT).unwrap();
    assert_eq!(words.read_vec::<u32>().unwrap(), [1, 1]);
    // The recorder is replaced within the section: neither can be sealed with an open section.
    let mut recorder = device.recorder().unwrap();
    let mut replaced = None;
    let result: Result<(), Error> = recorder.conditional(&word, |recorder| {
        replaced = Some(std::mem::replace(recorder, device.recorder()?));
        Ok(())
    });
    assert!(result.is_err() && replaced.unwrap().seal().is_err());
    device.assert_no_messages();
}
