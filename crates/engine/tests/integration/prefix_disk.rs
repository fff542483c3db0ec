//! The prefix cache on disk under the engine: after a restart, beside running requests, with lost devices and
//! cancelled requests.

use std::{path::Path, sync::Arc};

use crate::{
    common::{Fixture, limits, load_alone},
    runner::{OPTIONS, alone, collect, complete, request},
};
use engine::{Engine, Event, EventStream, GpuBackend, Request, Sampling};
use gpu::{Device, Fault};
use model::{Fingerprint, Limits, Model, PrefixDisk, Runner};

/// A window of 32, a text of 300.
const NAME: &str = "untied_long";

fn model(device: &Device) -> (Fixture, Arc<Model>) {
    let fixture = Fixture::open(NAME);
    let model = Arc::new(load_alone(device, &fixture.path).with_reproducible(true));
    (fixture, model)
}

fn runner(model: &Arc<Model>, limits: Limits, disk: &PrefixDisk) -> model::Result<Runner> {
    let fingerprint = Fingerprint::new(b"weights", model, &limits);
    Ok(Runner::new(model.clone(), limits)?.with_prefix_disk(disk.clone(), fingerprint))
}

fn start(model: &Arc<Model>, limits: Limits, disk: &PrefixDisk) -> Engine {
    let backend = GpuBackend::new(runner(model, limits, disk).unwrap(), || Err(model::Error::Cancelled));
    Engine::start(backend, OPTIONS).unwrap()
}

fn open(folder: &Path) -> PrefixDisk {
    PrefixDisk::open(folder, 1 << 30).unwrap()
}

/// Stores the pages of a prompt.
fn store(model: &Arc<Model>, limits: Limits, disk: &PrefixDisk, prompt: &[u32]) {
    let engine = start(model, limits, disk);
    complete(&engine, &request(prompt, 1, Sampling::default()));
    engine.stop();
    disk.flush();
}

#[test]
fn a_restarted_engine_prefills_only_what_is_not_on_disk() {
    let Some(device) = testkit::cpu_device() else { return };
    let (fixture, model) = model(&device);
    let limits = limits(2, 320, 16);
    let folder = tempfile::tempdir().unwrap();
    let penalised = Sampling { repetition: 1.3, frequency: 0.5, ..Sampling::default() };
    let mut turn = request(&fixture.ids[..150], 20, penalised);
    let mut stored = 0;
    for number in 0..3 {
        let disk = open(folder.path());
        let engine = start(&model, limits, &disk);
        let (tokens, cached) = complete(&engine, &turn);
        assert_eq!(tokens, alone(&model, limits, &turn), "turn {number}");
        assert_eq!(cached, stored, "turn {number}");
        assert_eq!(engine.status().prompt_tokens, turn.prompt.len() as u64 - u64::from(cached));
        assert_eq!(disk.stats().restored_tokens, u64::from(cached));
        // Its last pages are stored when it stops.
        engine.stop();
        // Pages have 4 tokens, and the last generated token was in no step.
        stored = (turn.prompt.len() as u32 + 19) / 4 * 4;
        turn.prompt.extend(tokens);
        turn.prompt.extend(&fixture.ids[200..205]);
    }
}

#[test]
fn prefixes_are_read_and_written_beside_running_requests() {
    let Some(device) = testkit::cpu_device() else { return };
    let (fixture, model) = model(&device);
    // Pages for about two of the sequences, so that requests are preempted and prefixes evicted.
    let limits = Limits { max_pages: Some(90), ..limits(3, 320, 16) };
    let folder = tempfile::tempdir().unwrap();
    let disk = open(folder.path());
    store(&model, limits, &disk, &fixture.ids[..200]);
    let requests = [
        request(&fixture.ids[..4], 150, Sampling::default()),
        request(&fixture.ids[4..9], 150, Sampling::default()),
        request(&fixture.ids[..220], 5, Sampling::default()),
        request(&fixture.ids[..203], 40, Sampling::default()),
        request(&fixture.ids[20..120], 9, Sampling::default()),
    ];
    let expected = requests.each_ref().map(|request| alone(&model, limits, request));
    let engine = start(&model, limits, &disk);
    for round in 0..2 {
        let mut streams: Vec<EventStream> =
            requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
        for (number, (stream, expected)) in streams.iter_mut().zip(&expected).enumerate() {
            assert_eq!(&collect(stream).0, expected, "round {round}, request {number}");
        }
    }
    let (status, stats) = (engine.status(), disk.stats());
    assert_eq!((status.failed, stats.errors, status.pages.free), (0, 0, status.pages.total));
    // Some of it may be in memory already, or be evicted while the rest is read.
    assert!(stats.read_bytes > 0, "{stats:?}");
    engine.stop();
}

#[test]
fn a_device_that_is_lost_while_pages_move_is_invisible_in_streams() {
    let Some(device) = testkit::cpu_device_plain() else { return };
    let (fixture, model) = model(&device);
    let limits = limits(2, 320, 16);
    let turn = request(&fixture.ids[..170], 12, Sampling::default());
    let expected = alone(&model, limits, &turn);
    for submission in [1, 2, 10, 30, 60, 90] {
        let folder = tempfile::tempdir().unwrap();
        let disk = open(folder.path());
        store(&model, limits, &disk, &fixture.ids[..130]);
        let Some(lost) = testkit::cpu_device_plain() else { return };
        let (fixture, model) = self::model(&lost);
        let runner = self::runner(&model, limits, &disk).unwrap();
        drop(model);
        let (path, reloaded) = (fixture.path.clone(), disk.clone());
        let reload = move || {
            let device = testkit::cpu_device_plain().ok_or(gpu::Error::NoDriver)?;
            let model = Arc::new(load_alone(&device, &path).with_reproducible(true));
            self::runner(&model, limits, &reloaded)
        };
        lost.inject(Fault::DeviceLost { submission });
        let engine = Engine::start(GpuBackend::new(runner, reload), OPTIONS).unwrap();
        for _ in 0..2 {
            assert_eq!(complete(&engine, &turn).0, expected, "submission {submission}");
        }
        engine.stop();
        assert_eq!(disk.stats().errors, 0);
        assert!(disk.stats().restored_tokens >= 128, "{:?}", disk.stats());
    }
}

#[test]
fn a_request_that_is_cancelled_while_its_prefix_is_read_leaves_nothing_behind() {
    let Some(device) = testkit::cpu_device() else { return };
    let (fixture, model) = model(&device);
    let limits = limits(2, 320, 16);
    let folder = tempfile::tempdir().unwrap();
    let disk = open(folder.path());
    let turns: Vec<Request> =
        [0, 40, 80].map(|own| request(&fixture.ids[own..own + 200], 6, Sampling::default())).into();
    turns.iter().for_each(|turn| store(&model, limits, &disk, &turn.prompt));
    let expected: Vec<Vec<u32>> = turns.iter().map(|turn| alone(&model, limits, turn)).collect();
    let engine = start(&model, limits, &disk);
    for number in 0..12 {
        let turn = &turns[number % 3];
        let dropped = engine.submit(turn.clone()).unwrap();
        let mut kept = (number % 4 == 3).then(|| engine.submit(turns[(number + 1) % 3].clone()).unwrap());
        drop(dropped);
        if let Some(kept) = &mut kept {
            let (tokens, last) = collect(kept);
            assert_eq!(tokens, expected[(number + 1) % 3]);
            assert!(matches!(last, Event::Finished { .. }), "{last:?}");
        }
    }
    assert_eq!(complete(&engine, &turns[0]).0, expected[0]);
    engine.stop();
    let status = engine.status();
    assert_eq!((status.pages.free, status.failed, disk.stats().errors), (status.pages.total, 0, 0));
}
