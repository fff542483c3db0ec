//! KV pages: how many a sequence holds, when they are released, and that results stay correct.

use crate::common::{Fixture, difference, limits, load};
use gpu::Lifetime;
use model::{DecodeRow, Error, KvScheme, Limits, Runner, Sampling};
use weights::plan;

/// A model with a window of 32, a prompt of 300, pages of 4.
const NAME: &str = "untied_long";

#[test]
fn pages_are_released_when_the_window_has_left_them() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open(NAME);
    let model = load(&device, &fixture.path);
    let mut runner = Runner::new(model, limits(2, 320, 16)).unwrap();
    let all = runner.cache().free_pages();
    assert_eq!(all.0, 2 * 80, "pages of 4 for 320 positions, twice");
    assert_eq!(all.1, 2 * 13, "a window of 32, a chunk of 16, and one page more, twice");
    let mut sequence = runner.start().unwrap();
    let sampling = Sampling::default();
    let mut sampled = runner.prompt(&mut sequence, &fixture.ids, &sampling, |_| true).unwrap();
    assert_eq!((sequence.len(), sequence.pages().0), (300, 75));
    assert!((8..=13).contains(&sequence.pages().1), "{:?}", sequence.pages());
    for _ in 0..20 {
        let next = DecodeRow::new(&mut sequence, sampled.token, &sampling);
        sampled = runner.decode(&mut [next], 1).unwrap().remove(0).remove(0);
        // A window of 32 positions lies on 8 or 9 pages.
        assert!(sequence.pages().1 <= 9, "{:?}", sequence.pages());
    }
    let held = sequence.pages();
    assert_eq!(runner.cache().free_pages(), (all.0 - held.0, all.1 - held.1));

    let next = DecodeRow::new(&mut sequence, sampled.token, &sampling);
    let error = runner.decode(&mut [next], 1).unwrap_err();
    assert!(
        matches!(error, Error::ContextLengthExceeded { tokens: 321, context_length: 320, .. }),
        "{error}"
    );
    assert_eq!(sequence.pages(), held, "an error changes nothing");
    drop(sequence);
    assert_eq!(runner.cache().free_pages(), all);
}

#[test]
fn a_truncated_sequence_continues_as_if_nothing_had_followed() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open(NAME);
    let model = load(&device, &fixture.path);
    let ids = &fixture.ids[..120];
    let mut runner = Runner::new(model, limits(2, 320, 64)).unwrap();
    let logits = |runner: &mut Runner, sequence: &mut _, ids: &[u32]| {
        let mut last = Vec::new();
        let keep = |row: &[f32]| {
            last = row.to_vec();
            Ok(())
        };
        runner.logits(sequence, ids, keep).unwrap();
        last
    };
    let mut fresh = runner.start().unwrap();
    let expected = logits(&mut runner, &mut fresh, ids);

    let mut sequence = runner.start().unwrap();
    logits(&mut runner, &mut sequence, ids);
    let other: Vec<u32> = ids.iter().rev().copied().take(9).collect();
    logits(&mut runner, &mut sequence, &other);
    let free = runner.cache().free_pages();
    assert!(!runner.truncate(&mut sequence, 60), "the window before 60 has been released");
    assert!(!runner.truncate(&mut sequence, 130), "beyond the end");
    assert_eq!(
        (sequence.len(), runner.cache().free_pages()),
        (129, free),
        "a failed truncation changes nothing"
    );
    assert!(runner.truncate(&mut sequence, 119));
    assert!(runner.cache().free_pages().0 > free.0);
    let again = logits(&mut runner, &mut sequence, &ids[119..]);
    assert!(difference(&again, &expected) < 1e-3 * fixture.largest());

    // Truncated to nothing, it is a new sequence.
    assert!(runner.truncate(&mut sequence, 0));
    assert_eq!(sequence.pages(), (0, 0));
    let again = logits(&mut runner, &mut sequence, ids);
    assert!(difference(&again, &expected) < 1e-3 * fixture.largest());
}

#[test]
fn the_memory_plan_covers_what_is_allocated() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open(NAME);
    let model = load(&device, &fixture.path);
    for (kv, chunk) in [(KvScheme::F16, 16), (KvScheme::F32, 256), (KvScheme::Int8, 16)] {
        let limits = Limits { kv_scheme: kv, page_size: 64, ..limits(8, 512, chunk) };
        let reservation = limits.reservation(&model.config, 64);
        let layers = weights::blueprint::kv_layers(&model.config, &reservation);
        let planned = plan::kv_bytes(&layers, reservation.context_length, reservation.max_sequences);
        let (kv_before, scratch_before) =
            (device.allocated_bytes(Lifetime::Kv), device.allocated_bytes(Lifetime::Scratch));
        let mut runner = Runner::new(model.clone(), limits).unwrap();
        let cache = device.allocated_bytes(Lifetime::Kv) - kv_before;
        // Memory is allocated in whole blocks: the rest of the last one comes on top.
        assert!((planned..planned + (70 << 20)).contains(&cache), "{planned} planned, {cache} allocated");
        let mut sequence = runner.start().unwrap();
        runner.logits(&mut sequence, &fixture.ids, |_| Ok(())).unwrap();
        runner.prompt(&mut sequence, &fixture.ids[..20], &Sampling::default(), |_| true).unwrap();
        // All programs of a server, with the most scratch memory that a sampler can need.
        let filtered = Sampling { temperature: 1.0, top_k: 40, top_p: 0.9, ..Sampling::default() };
        let penalised = Sampling { top: 5, repetition: 1.1, ..filtered.clone() };
        runner.prepare_serving(&[Sampling::default(), filtered, penalised]).unwrap();
        let allocated = device.allocated_bytes(Lifetime::Scratch) - scratch_before;
        assert!(
            allocated < reservation.scratch_bytes + (32 << 20),
            "{} planned, {allocated} allocated",
            reservation.scratch_bytes
        );
    }
}

#[test]
fn an_int8_kv_cache_takes_about_half_of_f16() {
    let Some(device) = testkit::cpu_device() else { return };
    let model = load(&device, &Fixture::open(NAME).path);
    // So large that whole blocks of memory hardly matter.
    let cache = |kv| {
        let before = device.allocated_bytes(Lifetime::Kv);
        let runner =
            Runner::new(model.clone(), Limits { kv_scheme: kv, page_size: 64, ..limits(2048, 512, 16) })
                .unwrap();
        (device.allocated_bytes(Lifetime::Kv) - before, runner.cache().bytes_read(&model.config, 99))
    };
    let [(f16, f16_read), (int8, int8_read)] = [KvScheme::F16, KvScheme::Int8].map(cache);
    // Heads of 64: 68 bytes instead of 128.
    let share = int8 as f64 / f16 as f64;
    assert!((0.5..0.6).contains(&share), "{int8} bytes for {f16}");
    assert_eq!(int8_read * 128, f16_read * 68);
}

#[test]
fn a_sequence_of_another_runner_is_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let model = load(&device, &Fixture::open("gguf_q4_0").path);
    let mut runner = Runner::new(model.clone(), limits(1, 32, 16)).unwrap();
    let other = Runner::new(model, limits(1, 32, 16)).unwrap();
    let mut sequence = other.start().unwrap();
    let error =
        runner.prompt(&mut sequence, &[2, 3], &Sampling::default(), |_| true).unwrap_err().to_string();
    assert!(error.contains("started by another runner"), "{error}");
    assert!(!runner.truncate(&mut sequence, 0));
}

#[test]
fn errors_name_the_missing_resource() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q4_0");
    let model = load(&device, &fixture.path);
    let mut runner = Runner::new(model.clone(), limits(1, 32, 16)).unwrap();
    let mut sequence = runner.start().unwrap();
    let error = runner.start().unwrap_err().to_string();
    assert!(error.contains("all 1 sequence slots"), "{error}");

    let sampling = Sampling::default();
    let mut prompt =
        |ids: &[u32]| runner.prompt(&mut sequence, ids, &sampling, |_| true).unwrap_err().to_string();
    assert!(prompt(&[]).contains("the prompt is empty"));
    assert!(
        prompt(&[2, 320]).contains("token 320 is not in the model's vocabulary of 320: ids go from 0 to 319")
    );
    let error = prompt(&[5; 33]);
    assert!(
        error.contains("33 tokens exceed the context length of 32") && error.contains("up to 512"),
        "{error}"
    );
    assert_eq!(sequence.len(), 0);
    assert_eq!(runner.counters().steps, 0, "before any work");

    for wrong in [
        Limits { context_length: 513, ..limits(1, 32, 16) },
        Limits { context_length: 0, ..limits(1, 32, 16) },
        Limits { page_size: 3, ..limits(1, 32, 16) },
        Limits { max_sequences: 0, ..limits(1, 32, 16) },
        Limits { max_pages: Some(7), ..limits(2, 32, 16) },
    ] {
        assert!(matches!(Runner::new(model.clone(), wrong), Err(Error::Limits(_))), "{wrong:?}");
    }
}

#[test]
fn sequences_compete_for_a_limited_number_of_pages() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q4_0");
    let model = load(&device, &fixture.path);
    let mut runner = Runner::new(model, Limits { max_pages: Some(9), ..limits(3, 32, 16) }).unwrap();
    assert_eq!((runner.cache().pages(), runner.cache().free_pages().0), (9, 9));
    let sampling = Sampling::default();
    let (mut one, mut other) = (runner.start().unwrap(), runner.start().unwrap());
    let first = runner.prompt(&mut one, &fixture.ids[..24], &sampling, |_| true).unwrap();
    runner.prompt(&mut other, &fixture.ids[..12], &sampling, |_| true).unwrap();
    let next = DecodeRow::new(&mut one, first.token, &sampling);
    let error = runner.decode(&mut [next], 1).unwrap_err();
    assert!(matches!(error, Error::NoFreePages { pages: 9 }), "{error}");
    assert_eq!(one.len(), 24, "an error changes nothing");
    drop(other);
    let next = DecodeRow::new(&mut one, first.token, &sampling);
    runner.decode(&mut [next], 1).unwrap().remove(0);
    assert_eq!(runner.cache().free_pages().0, 9 - 7);
}
